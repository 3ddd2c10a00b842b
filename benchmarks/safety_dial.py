"""What the safety dial trades: violation during training against early return, and that it is forgotten in the end.

    make safety-dial                                                    3 algorithms, 5 positions, 8 seeds
    python -m benchmarks.safety_dial --algorithms cpo --seeds 2 --epochs 45 --batch 6000 --out runs/dial
    python -m benchmarks.safety_dial --table                            picture and table, from what was measured

One JSON file for each algorithm and position, in results/safety-dial; what is there with the same settings is not run
again. The picture goes beside them, the table into docs/safety-dial.md (with another --out it is printed).
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import document

RESULTS = Path("results/safety-dial")
DOCUMENT = Path("docs/safety-dial.md")
POSITIONS = (0.0, 0.25, 0.5, 0.75, 1.0)
EARLY, LATE = 1 / 3, 1 / 10
"""The first epochs, whose return is the early one, and the last, whose averages are the final ones."""
DAMPED = {"rule": "pid", "rule.proportional": 10.0}
"""The optimal multiplier is near 10 and π_0 exceeds the limit by 0.5: half of it comes at once."""
ALGORITHMS: dict[str, tuple[str, dict[str, Any]]] = {
    # The integral has to climb to the optimal multiplier within the run; after APDO's jump it is there already.
    "pdo": ("PDO", DAMPED | {"dual_step": 1.0}),
    "cpo": ("CPO", {}),
    "apdo": ("APDO", DAMPED | {"dual_step": 0.1, "k_adj": 5}),
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
    """One run: what each seed came to, and the mean curves."""
    import jax

    from apdo.experiment import runner, settings

    experiment = settings.specify(algorithm, "point-gather", options)
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
    """What was measured before, if it was with these options."""
    if not path.exists():
        return None
    found = json.loads(path.read_text(encoding="utf-8"))
    return found if options is None or found["options"] == options else None


def everything(out: Path) -> dict[str, list[dict[str, Any]]]:
    """What there is, by algorithm and in the order of S; of studies of several sizes the largest."""
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


def table(found: dict[str, list[dict[str, Any]]]) -> str:
    """Each algorithm and position, and whether what should fall with S falls."""
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
    one = next(iter(found.values()))[0]
    counted = "{seeds} seeds, {epochs} epochs of {batch:,} samples".format(**one["options"])
    half_life = f"half-life {one['options']['safety_half_life']:g} epochs"
    shortened = {one["options"].get("off_policy.iterations") for one in found.get("apdo", [])} - {None}
    half_life += "".join(f", APDO's estimate after {count:,} off-policy iterations" for count in shortened)
    verdicts = [f"- {verdict}" for verdict in verdicts]
    return "\n".join([f"{counted}, {half_life}; means over the seeds with 95 % intervals.", "", *lines, "", *verdicts])


def draw(found: dict[str, list[dict[str, Any]]], out: Path) -> None:
    """The trade-off; next to it what became of the policies in the end."""
    import matplotlib
    from matplotlib.figure import Figure

    from apdo.report import plot

    with matplotlib.rc_context(plot.LOOK):
        figure = Figure(figsize=(11, 4.0), layout="constrained")
        trade, reward, cost = figure.subplots(1, 3, width_ratios=(2.2, 1.2, 1.2))
        for index, (name, all) in enumerate(found.items()):
            colour, label = plot.COLOURS[index], ALGORITHMS[name][0]
            x, y = ([middle(one, measure)[0] for one in all] for measure in ("violation", "early_return"))
            trade.plot(x, y, "-o", color=colour, label=label, linewidth=1.7, markersize=5)
            for position, one in enumerate(all):
                # In turn above and below, since the positions of one algorithm may lie close.
                text, shift = f"S = {one['options']['safety']:g}", (4, 5) if position % 2 else (4, -10)
                place = (x[position], y[position])
                trade.annotate(text, place, shift, textcoords="offset points", fontsize=7, color=colour)
            for panel, measure in ((reward, "final_return"), (cost, "final_cost")):
                points = np.array([middle(one, measure) for one in all])
                safety = np.array([one["options"]["safety"] for one in all]) + 0.02 * (index - 1)
                reach = np.abs(points[:, 1:] - points[:, :1]).T
                panel.errorbar(safety, points[:, 0], reach, color=colour, fmt="-o", markersize=4, linewidth=1.2)
        cost.axhline(next(iter(found.values()))[0]["limit"], color="#333333", linestyle=(0, (5, 3)), linewidth=1)
        cost.set_ylim(bottom=0)
        trade.set_xlabel("total violation during training, Σ [C_k - d]⁺")
        trade.set_ylabel("mean return of the first third")
        trade.set_title("safety against early return", loc="left", fontweight="bold")
        trade.legend(frameon=False)
        for panel, heading in ((reward, "final return"), (cost, "final cost and its limit")):
            panel.set_title(heading, loc="left", fontweight="bold")
            panel.set_xticks(POSITIONS)
            panel.set_xlabel("S")
        plot.write(figure, out / "safety-dial")


def write_table(text: str) -> None:
    """Put the table into the document, between its marks."""
    document.fill(DOCUMENT, {"safety-dial": text})


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
    for algorithm in [] if given.table else given.algorithms:
        for safety in POSITIONS:
            path, options = path_of(given.out, algorithm, safety), describe(algorithm, safety, given)
            if stored(path, options) is None:
                found = measure(algorithm, options)
                path.write_text(json.dumps(found) + "\n", encoding="utf-8")
                print(f"{path}: {found['seconds']:.0f} s", flush=True)
    found = everything(given.out)
    if found:
        draw(found, given.out)
        text = table(found)
        write_table(text) if given.out == RESULTS else print(text)


if __name__ == "__main__":
    main()
