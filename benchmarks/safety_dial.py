"""The trade-off of the safety dial: violation during training against early return, with the same policy in the end.

    make safety-dial                                                    3 algorithms, 5 positions, 8 seeds
    python -m benchmarks.safety_dial --algorithms cpo --seeds 2 --epochs 45 --batch 6000 --out runs/dial
    python -m benchmarks.safety_dial --table                            picture and table, from what was measured

Each algorithm and position has a JSON file in results/safety-dial, which is written as soon as it is measured. A file
with the same settings is not made again. The picture is written to the same folder, and the table into
docs/safety-dial.md (with another --out it is printed). Processes with different --algorithms may run side by side, also
on one device: each writes its own files, and the last one to end writes the picture and the table of all.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import document, provenance

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RESULTS = Path("results/safety-dial")
DOCUMENT = Path("docs/safety-dial.md")
POSITIONS = (0.0, 0.25, 0.5, 0.75, 1.0)
PLAIN, FORGOTTEN = 0.5, (0.25, 0.75, 1.0)
"""The plain algorithm's position, and the positions that should end with the same policy."""
EARLY, LATE = 1 / 3, 1 / 10
"""The first epochs, whose return is the early return, and the last ones, whose averages are the final values."""
ALGORITHMS: dict[str, tuple[str, dict[str, Any]]] = {
    "pdo": ("PDO", {}),
    "cpo": ("CPO", {}),
    # One jump of the multiplier at a fixed time, so that the curves of all seeds can be compared.
    "apdo": ("APDO", {"k_adj": 5, "adjust": "dual", "check": False}),
}
MEASURES = {
    "violation": "total violation",
    "early_return": "early return",
    "final_return": "final return",
    "final_cost": "final cost",
}


def describe(algorithm: str, safety: float, given: argparse.Namespace) -> dict[str, Any]:
    """All options of one run."""
    own = dict(ALGORITHMS[algorithm][1])
    if algorithm == "apdo" and given.iterations:
        own["off_policy.iterations"] = given.iterations
    run = {"epochs": given.epochs, "batch": given.batch, "seeds": given.seeds, "checkpoint_every": 10**6}
    return run | own | {"safety": safety, "safety_half_life": given.half_life}


def measure(algorithm: str, options: dict[str, Any]) -> dict[str, Any]:
    """Make one run: the results of each seed, and the mean curves."""
    import jax

    from apdo.experiment import runner, settings

    experiment = settings.make_experiment(algorithm, "point-gather", options)
    limit = experiment.problem().limits[0]
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        metrics = runner.run(experiment, Path(folder) / "run", quiet=True).metrics
    returns, costs = np.asarray(metrics["return"]), np.asarray(metrics["cost"])[..., 0]
    enforced = (
        np.asarray(metrics["enforced_limit"])[..., 0] if "enforced_limit" in metrics else np.full_like(costs, limit)
    )
    epochs = returns.shape[1]
    early, late = max(1, round(EARLY * epochs)), max(1, round(LATE * epochs))
    seeds = {
        "violation": np.maximum(costs - limit, 0.0).sum(axis=1),
        "early_return": returns[:, :early].mean(axis=1),
        "final_return": returns[:, -late:].mean(axis=1),
        "final_cost": costs[:, -late:].mean(axis=1),
    }
    curves = {
        "return": returns,
        "cost": costs,
        "multiplier": np.asarray(metrics["multiplier"])[..., 0],
        "enforced_limit": enforced,
    }
    return {
        "algorithm": algorithm,
        "options": options,
        "limit": limit,
        "seeds": {name: values.round(4).tolist() for name, values in seeds.items()},
        "curves": {name: values.mean(axis=0).round(4).tolist() for name, values in curves.items()},
        "seconds": round(time.perf_counter() - began, 1),
        "device": f"{jax.devices()[0].device_kind}, jax {jax.__version__}",
    }


def path_of(out: Path, algorithm: str, safety: float) -> Path:
    return out / f"{algorithm}-{safety:g}.json"


def stored(path: Path, options: dict[str, Any] | None = None) -> dict[str, Any] | None:
    """An earlier result, if it was made with these options."""
    if not path.exists():
        return None
    found = json.loads(path.read_text(encoding="utf-8"))
    return found if options is None or found["options"] == options else None


def everything(out: Path) -> dict[str, list[dict[str, Any]]]:
    """All results by algorithm, in the order of S. Of studies of several sizes, the largest one counts."""
    read = {name: [stored(path_of(out, name, safety)) for safety in POSITIONS] for name in ALGORITHMS}
    sizes = [size(one) for all in read.values() for one in all if one]
    found = {name: [one for one in all if one and size(one) == max(sizes)] for name, all in read.items()}
    return {name: all for name, all in found.items() if all}


def size(one: dict[str, Any]) -> tuple[float, ...]:
    return tuple(one["options"][name] for name in ("seeds", "epochs", "batch", "safety_half_life"))


def middle(one: dict[str, Any], name: str) -> tuple[float, float, float]:
    """The mean over seeds with its 95 % bootstrap interval."""
    from apdo.report.statistics import bootstrap_interval

    values = one["seeds"][name]
    low, high = bootstrap_interval(lambda seeds: seeds.mean(axis=0), values)
    return float(np.mean(values)), float(low), float(high)


def difference(one: dict[str, Any], other: dict[str, Any], name: str) -> tuple[float, float, float]:
    """The difference of two positions' means with its 95 % bootstrap interval, with each position's seeds drawn
    separately.

    Seeds with equal numbers share no noise once their policies differ, so they are not paired.
    """
    from apdo.report.statistics import bootstrap_interval

    values, others = (np.asarray(run["seeds"][name], dtype=np.float64) for run in (one, other))
    value = float(values.mean() - others.mean())
    if len(others) < 2:
        return value, np.nan, np.nan

    def resampled(drawn: NDArray[np.float64]) -> NDArray[np.float64]:
        counter = np.random.default_rng(1).integers(len(others), size=(len(others), *drawn.shape[1:]))
        return drawn.mean(axis=0) - others[counter].mean(axis=0)

    low, high = bootstrap_interval(resampled, values)
    return value, float(low), float(high)


def forgotten(all: list[dict[str, Any]], name: str, decimals: int) -> str:
    """Whether the positions that should end like the plain algorithm do so, within noise."""
    arms = {one["options"]["safety"]: one for one in all}
    found = {safety: difference(arms[safety], arms[PLAIN], name) for safety in FORGOTTEN}
    # z: a difference that rounds to zero has no sign.
    shown = ["{:z.{n}f} ({:z.{n}f} to {:z.{n}f})".format(*each, n=decimals) for each in found.values()]
    apart = [f"{safety:g}" for safety, (_, low, high) in found.items() if low > 0 or high < 0]
    if np.isnan(list(found.values())).any():
        verdict = "cannot be told without an interval"
    else:
        verdict = f"differs at S = {', '.join(apart)}" if apart else "the same within noise"
    positions = ", ".join(f"{safety:g}" for safety in FORGOTTEN)
    return f"{MEASURES[name]} at S = {positions} against {PLAIN:g}: {', '.join(shown)}; {verdict}."


def table(found: dict[str, list[dict[str, Any]]]) -> str:
    """The table of each algorithm and position: does what should fall with S fall, and is the final policy the same?"""
    lines = [
        "| algorithm | S | " + " | ".join(MEASURES.values()) + " |",
        "| --- | --- |" + " --- |" * len(MEASURES),
    ]
    verdicts = []
    for name, all in found.items():
        for one in all:
            cells = ["{:.2f} ({:.2f} to {:.2f})".format(*middle(one, measure)) for measure in MEASURES]
            lines.append(f"| {ALGORITHMS[name][0]} | {one['options']['safety']:g} | {' | '.join(cells)} |")
        for measure in ("violation", "early_return") if len(all) == len(POSITIONS) else ():
            path = [middle(one, measure)[0] for one in all]
            falls = "falls" if np.all(np.diff(path) < 0) else "does not fall throughout"
            verdicts.append(f"{ALGORITHMS[name][0]}: the {MEASURES[measure]} {falls} with S.")
        for measure, decimals in (("final_return", 2), ("final_cost", 3)) if len(all) == len(POSITIONS) else ():
            verdicts.append(f"{ALGORITHMS[name][0]}: {forgotten(all, measure, decimals)}")
    one = next(iter(found.values()))[0]
    counted = "{seeds} seeds, {epochs} epochs of {batch:,} samples".format(**one["options"])
    half_life = f"half-life {one['options']['safety_half_life']:g} epochs"
    shortened = {one["options"].get("off_policy.iterations") for one in found.get("apdo", [])} - {None}
    half_life += "".join(f", APDO's estimate after {count:,} off-policy iterations" for count in shortened)
    verdicts = [f"- {verdict}" for verdict in verdicts]
    return "\n".join([f"{counted}, {half_life}; means over the seeds with 95 % intervals.", "", *lines, "", *verdicts])


def picture(found: dict[str, list[dict[str, Any]]]) -> Figure:
    """The trade-off, and beside it the final policies.

    A colour is an algorithm. A position is a disc that is filled as far as the dial is turned. Points may lie close
    together, because there is no text among them that could overlap.
    """
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    from apdo.report import plot

    colours = dict(zip(ALGORITHMS, plot.COLOURS, strict=False))  # an algorithm always has the same colour
    with matplotlib.rc_context(plot.LOOK):
        figure = Figure(figsize=(11, 4.6), layout=ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.06, wspace=0.03))
        trade, reward, cost = figure.subplots(1, 3, width_ratios=(1.7, 1.2, 1.2))
        for name, all in found.items():
            settings = [one["options"]["safety"] for one in all]
            x, y = (np.array([middle(one, measure) for one in all]) for measure in ("violation", "early_return"))
            _draw_path(trade, settings, x, y, colours[name])
            beside = np.array(settings)[:, None] + 0.05 * (list(ALGORITHMS).index(name) - 1)
            for panel, measure in ((reward, "final_return"), (cost, "final_cost")):
                ends = np.array([middle(one, measure) for one in all])
                _draw_path(panel, settings, np.repeat(beside, 3, axis=1), ends, colours[name])
        limit = next(iter(found.values()))[0]["limit"]
        cost.axhline(limit, color="#333333", linestyle=(0, (5, 3)), linewidth=1)
        trade.set_xlabel("total violation Σ [C(π_k) - d]⁺ (cost per episode × epochs)")
        trade.set_ylabel("return of the first third (reward per episode)")
        reward.set_ylabel("return of the last tenth (reward per episode)")
        cost.set_ylabel("cost of the last tenth (cost per episode)")
        titles = ("violation against early return", "final return", f"final cost; dashed: limit {limit:g}")
        for panel, heading in zip((trade, reward, cost), titles, strict=True):
            panel.set_title(heading, loc="left", fontweight="bold")
        for panel in (reward, cost):
            panel.set_xticks(POSITIONS, [f"{safety:g}" for safety in POSITIONS])
            panel.set_xlabel("S (0: return first, 1: safety first)")
        _explain(figure, {ALGORITHMS[name][0]: colours[name] for name in found})
    return figure


def _draw_path(panel: Axes, settings: list[float], x: NDArray[np.float64], y: NDArray[np.float64], colour: str) -> None:
    """An algorithm's points (each row mean, low, high) in the order of S, with faint intervals."""
    reach = [np.abs(ends[:, 1:] - ends[:, :1]).T for ends in (y, x)]
    panel.errorbar(x[:, 0], y[:, 0], *reach, fmt="none", ecolor=colour, elinewidth=1.0, alpha=0.45, zorder=1.8)
    panel.plot(x[:, 0], y[:, 0], color=colour, linewidth=1.4, zorder=2)
    for safety, across, up in zip(settings, x[:, 0], y[:, 0], strict=True):
        for marker in _disc(safety, colour):
            panel.plot([across], [up], linestyle="none", zorder=3, **marker)


def _disc(safety: float, colour: str) -> list[dict[str, Any]]:
    """A white disc and the part of it that is filled, clockwise from the top."""
    from matplotlib.path import Path as Outline

    disc = {"marker": "o", "markerfacecolor": "white", "markeredgecolor": colour, "markersize": 7}
    if not 0 < safety < 1:
        return [disc | ({"markerfacecolor": colour} if safety else {})]
    sector: Any = Outline.wedge(90 - 360 * safety, 90)
    return [disc, {"marker": sector, "markerfacecolor": colour, "markeredgewidth": 0, "markersize": 7}]


def _explain(figure: Figure, colours: dict[str, str]) -> None:
    """Draw one line above the panels, with the algorithms' colours and the positions' discs."""
    from matplotlib.legend_handler import HandlerTuple
    from matplotlib.lines import Line2D

    handles: list[Any] = [Line2D([], [], color=colour, linewidth=2.2) for colour in colours.values()]
    for safety in POSITIONS:
        handles.append(tuple(Line2D([], [], linestyle="none", **part) for part in _disc(safety, "#333333")))
    figure.legend(
        handles,
        [*colours, *(f"S = {safety:g}" for safety in POSITIONS)],
        handler_map={tuple: HandlerTuple(ndivide=1)},
        loc="outside upper left",
        ncols=len(handles),
        frameon=False,
        columnspacing=1.6,
        handletextpad=0.5,
    )


def draw(found: dict[str, list[dict[str, Any]]], out: Path) -> None:
    """Write the picture beside the results."""
    from apdo.report import plot

    plot.write(picture(found), out / "safety-dial")


def write_table(text: str) -> None:
    """Put the table into the document, between its marks."""
    document.fill(DOCUMENT, {"safety-dial": text})


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Wait until no other process works in the folder. The lock is on the folder itself, and leaves no file behind."""
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def keep(path: Path, found: dict[str, Any]) -> None:
    """Write a result completely or not at all, because another process may be reading."""
    from apdo import files

    with files.replacing(path) as file:
        file.write((json.dumps(provenance.stamped(found)) + "\n").encode())


def present(out: Path) -> None:
    """Write the picture and the table of all results. One process at a time does so; the last one's have everything."""
    with alone_in(out):
        found = everything(out)
        if found:
            draw(found, out)
            text = table(found)
            write_table(text) if out == RESULTS else print(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS), choices=list(ALGORITHMS))
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=150)
    parser.add_argument("--batch", type=int, default=50_000)
    parser.add_argument("--half-life", type=float, default=8.0, help="h, in epochs")
    parser.add_argument("--iterations", type=int, default=0, help="off-policy iterations of APDO; 0: its default")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="write picture and table, run nothing")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    # Otherwise a process would take most of a device's memory at once, and leave none to others.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    for algorithm in [] if given.table else given.algorithms:
        for safety in POSITIONS:
            path, options = path_of(given.out, algorithm, safety), describe(algorithm, safety, given)
            if stored(path, options) is None:
                found = measure(algorithm, options)
                keep(path, found)
                print(f"{path}: {found['seconds']:.0f} s", flush=True)
    present(given.out)


if __name__ == "__main__":
    main()
