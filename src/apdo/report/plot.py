"""Learning curves: return, each cost with its limit, and multipliers, side by side.

A colour is a run and a line style is a constraint. If there are more runs than colours, and each has one constraint, a
line style is an algorithm. A thick line is the interquartile mean over the seeds, its band the 95 % bootstrap interval,
and each seed is a faint line. matplotlib is imported only when a picture is drawn.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from apdo.errors import InvalidInput
from apdo.report.runs import Run
from apdo.report.statistics import bootstrap_interval, interquartile_mean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
"""The file endings of pictures."""

# Okabe and Ito's palette, which stays distinct under every common colour blindness, without yellow, which is too pale.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# One per constraint. Dashed lines are reserved for the limits.
_STYLES: tuple[Any, ...] = ("-", (0, (1, 1.1)), (0, (6, 1.5, 1, 1.5)), (0, (6, 1.5, 1, 1.5, 1, 1.5)))
_DASHES = (0, (5, 3))
_ACROSS = 4
"""The most panels in a row."""
# Entries of a configuration that a label shows in another way, or only if nothing else distinguishes two runs.
_ASIDE = {"algorithm", "environment", "note"} | {
    f"settings.{name}" for name in ("limits", "epochs", "seeds", "seed", "checkpoint_every")
}
_BAND = "optimal multiplier λ* (95 %)"
_INK = "#333333"
_PALE = "#777777"
LOOK: dict[Any, Any] = {
    "font.size": 9,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": "#999999",
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.grid": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "xtick.color": "#999999",
    "ytick.color": "#999999",
    "xtick.labelcolor": _INK,
    "ytick.labelcolor": _INK,
    "text.parse_math": False,  # a dollar in a note is a dollar
    "svg.hashsalt": "apdo",  # the same runs give the same file
}


def plot(
    runs: Sequence[Run],
    out: str | Path,
    title: str | None = None,
    *,
    band: tuple[float, float] | None = None,
    names: Sequence[str] | None = None,
) -> list[Path]:
    """Write the learning curves of the runs, and return the files written.

    If `out` has one of `SUFFIXES`, it is the file; without a suffix, a `.png` and an `.svg` file are written. `band`
    and `names` are passed to `figure`.
    """
    return write(figure(runs, title, band=band, names=names), out)


def write(picture: Figure, out: str | Path) -> list[Path]:
    """Write a picture that was made with `LOOK`, and return the files; see `plot` for `out`."""
    import matplotlib

    files = _files(Path(out))
    with matplotlib.rc_context(LOOK):
        for file in files:
            date = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(file.suffix.lower())
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                picture.savefig(file, dpi=180, metadata=date)
            except OSError as error:
                raise InvalidInput(f"{file} cannot be written: {error.strerror}.") from error
    return files


def figure(
    runs: Sequence[Run],
    title: str | None = None,
    *,
    band: tuple[float, float] | None = None,
    names: Sequence[str] | None = None,
) -> Figure:
    """The learning curves of the runs: axes for the return, for each cost, and for the multipliers, in this order.

    Costs have axes of their own because they have units of their own. `band` is an interval for the optimal multiplier,
    drawn with the multipliers. `names` replace the runs' `labels`.
    """
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    if not runs:
        raise InvalidInput("there is nothing to plot; give at least one run folder.")
    with matplotlib.rc_context(LOOK):
        colours, dashes = _looks(runs)
        styles = _styles(runs)
        costs = list(styles)
        rows = -(-(2 + len(costs)) // _ACROSS)
        across = -(-(2 + len(costs)) // rows)
        layout = ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.06, wspace=0.03)
        picture = Figure(figsize=(max(11.0, 3.5 * across), 3.4 * rows), layout=layout)
        grid = picture.add_gridspec(rows, across)
        panels = [picture.add_subplot(grid[i // across, i % across]) for i in range(2 + len(costs))]
        shown = [("return", styles, "return per episode")]
        shown += [("cost", {c: styles[c]}, c if len(costs) > 1 else "cost per episode") for c in costs]
        shown += [("multiplier", styles, "multiplier")]
        for panel, (name, drawn, heading) in zip(panels, shown, strict=True):
            panel.set_title(heading, loc="left", fontweight="bold")
            for run, colour, dash in zip(runs, colours, dashes, strict=True):
                _draw(panel, run, name, colour, drawn if dash is None else dict.fromkeys(drawn, dash))
            _mark_adjustments(panel, runs, colours)
            if name == "multiplier" and band is not None:
                panel.axhspan(*band, color=_PALE, alpha=0.5, linewidth=0, zorder=2.5, label=_BAND)
            limits = _draw_limits(panel, runs, colours, *drawn) if name == "cost" else []
            _scale(panel, runs, name)
            _name_limits(panel, limits)
        if not any(_has(run, "multiplier") for run in runs):
            panels[-1].set_yticks([])
            panels[-1].text(0.5, 0.5, "no multiplier", transform=panels[-1].transAxes, ha="center", color=_PALE)
        heading = title or ", ".join(_distinct(run.environment for run in runs))
        looks = list(zip(colours, dashes, strict=True))
        _explain(picture, heading, runs, labels(runs) if names is None else names, looks, styles, band is not None)
    return picture


def labels(runs: Sequence[Run]) -> list[str]:
    """A name for each run: its algorithm, and whatever distinguishes it from other runs of the algorithm.

    Settings that differ are named by the last part of their name, with more parts if two settings would look the same.
    Runs with equal settings are distinguished by their folders. Environments are named if there are several.
    """
    several = len({run.environment for run in runs}) > 1
    names = [f"{run.algorithm} on {run.environment}" if several else run.algorithm for run in runs]
    for traits in (_settings, _terms, _extent, _folder):
        for alike in {name: [i for i, other in enumerate(names) if other == name] for name in names}.values():
            if len(alike) > 1:
                for i, difference in zip(alike, _differences([traits(runs[i]) for i in alike]), strict=True):
                    names[i] = f"{names[i]} {difference}".strip()
    return names


# What may distinguish two runs, in the order in which it is tried.


def _settings(run: Run) -> dict[str, Any]:
    """The settings that change what is learned. The limits are those in force, not those that were asked for."""
    flat = _flatten(run.description.get("config") or {})
    return {name: value for name, value in flat.items() if name not in _ASIDE} | {"limits": list(run.limits)}


def _terms(run: Run) -> dict[str, Any]:
    return _flatten(run.description["problem"])


def _extent(run: Run) -> dict[str, Any]:
    return {"batch": run.batch, "epochs": run.description.get("epochs"), "seeds": len(run.seeds)}


def _folder(run: Run) -> dict[str, Any]:
    return {"run": str(run.path)}


def _flatten(settings: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    flat = {}
    for name, value in settings.items():
        flat |= _flatten(value, f"{above}{name}.") if isinstance(value, Mapping) else {f"{above}{name}": value}
    return flat


def _differences(settings: Sequence[Mapping[str, Any]], most: int = 3) -> list[str]:
    """For each of several settings, the entries that not all of them share: `k_adj=5 rate=0.1`."""
    known = list(dict.fromkeys(name for one in settings for name in one))
    absent = object()
    differing = [
        name for name in known if any(one.get(name, absent) != settings[0].get(name, absent) for one in settings)
    ]
    short = _short_names(differing)
    result = []
    for one in settings:
        parts = [f"{short[name]}={_value(one[name])}" for name in differing if name in one]
        rest = f" and {len(parts) - most} more" if len(parts) > most else ""
        result.append(" ".join(parts[:most]) + rest)
    return result


def _short_names(names: Sequence[str]) -> dict[str, str]:
    """The shortest ending of each dotted name that no other name has."""
    short = {}
    for name in names:
        parts = name.split(".")
        tails = [".".join(parts[i:]) for i in range(len(parts) - 1, -1, -1)]
        unique = [t for t in tails if sum(n == t or n.endswith(f".{t}") for n in names) == 1]
        short[name] = unique[0] if unique else name
    return short


def _value(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return ",".join(_value(part) for part in value)
    return str(value)


# Panels.


def _draw(panel: Axes, run: Run, name: str, colour: str, styles: Mapping[str, Any]) -> None:
    """Draw a metric's curve for each constraint that has a style, or its only curve."""
    if not _has(run, name):
        return
    values = run.metrics[name]
    curves = (
        [(styles[run.cost_names[0]] if len(run.cost_names) == 1 else "-", values)]
        if values.ndim == 2
        else [(styles[c], values[..., i]) for i, c in enumerate(run.cost_names) if c in styles]
    )
    marker = "o" if len(run.epochs) == 1 else None
    for style, seeds in curves:
        low, high = bootstrap_interval(interquartile_mean, seeds)
        if len(seeds) > 1:
            faint = {"color": colour, "linewidth": 0.6, "alpha": max(0.12, 0.35 - 0.015 * len(seeds)), "zorder": 1.5}
            panel.plot(run.samples, seeds.T, linestyle=style, marker=marker, markersize=3, **faint)
            panel.fill_between(run.samples, low, high, color=colour, alpha=0.18, linewidth=0, zorder=1.8)
        middle = interquartile_mean(seeds)
        panel.plot(run.samples, middle, color=colour, linestyle=style, linewidth=1.9, marker=marker, zorder=3)


def _draw_limits(panel: Axes, runs: Sequence[Run], colours: Sequence[str], cost: str) -> list[tuple[float, str, str]]:
    """Draw a dashed line at each limit of a cost, in a run's colour if they differ. Returns place, name and colour."""
    owners: dict[float, list[int]] = {}
    for i, run in enumerate(runs):
        for name, limit in zip(run.cost_names, run.limits, strict=True):
            if name == cost:
                owners.setdefault(limit, []).append(i)
    limits = []
    for limit, who in owners.items():
        colour = colours[who[0]] if len(who) == 1 and len(owners) > 1 else _INK
        label = f"limit\n{limit:g}"
        panel.axhline(limit, color=colour, linestyle=_DASHES, linewidth=1.1, zorder=3.5, label=label.replace("\n", " "))
        limits.append((limit, label, colour))
    return limits


def _name_limits(panel: Axes, limits: Iterable[tuple[float, str, str]]) -> None:
    """Write the name of each limit beside the end of its line. Names that would overlap are moved upwards."""
    bottom, top = panel.get_ylim()
    place = -np.inf
    for limit, label, colour in sorted(limits):
        place = max(limit, place + 0.13 * (top - bottom))
        panel.text(1.015, place, label, transform=panel.get_yaxis_transform(), va="center", fontsize=7.5, color=colour)


def _mark_adjustments(panel: Axes, runs: Sequence[Run], colours: Sequence[str]) -> None:
    """Draw a dotted line where an APDO run has replaced its multipliers."""
    owners: dict[int, list[int]] = {}
    for i, run in enumerate(runs):
        if _adjusted(run):
            owners.setdefault((_epoch(run) + 1) * run.batch, []).append(i)
    for place, who in owners.items():
        colour = colours[who[0]] if len(who) == 1 else _INK
        panel.axvline(place, color=colour, linestyle=":", linewidth=1.2, zorder=2, label="multiplier adjusted")


def _scale(panel: Axes, runs: Sequence[Run], name: str) -> None:
    from matplotlib.ticker import EngFormatter, FixedLocator, MaxNLocator

    ticks = MaxNLocator(6, steps=[1, 1.5, 2, 2.5, 3, 4, 5, 10], integer=True)
    panel.set_xlim(0, max(run.samples[-1] for run in runs) * 1.015)
    panel.xaxis.set_major_locator(ticks)
    panel.xaxis.set_major_formatter(EngFormatter(sep=""))
    panel.set_xlabel("environment samples")
    lowest = min((np.nanmin(run.metrics[name]) for run in runs if _has(run, name)), default=0)
    if name != "return" and lowest >= 0:
        panel.set_ylim(bottom=0)
    if name == "multiplier" and np.isfinite(top := _top_multiplier(runs)):
        panel.set_ylim(top=top)
    batch = runs[0].batch
    if all(run.batch == batch for run in runs):
        # Epoch k ends at (k + 1) batches; the epochs start at 0, though the axis of samples starts one batch before.
        scales: Any = (lambda samples: samples / batch - 1, lambda epoch: (epoch + 1) * batch)
        epochs = panel.secondary_xaxis("top", functions=scales)
        last = max(run.epochs[-1] for run in runs)
        epochs.xaxis.set_major_locator(FixedLocator([t for t in ticks.tick_values(0, last + 1) if 0 <= t <= last + 1]))
        epochs.tick_params(labelsize=7, length=2, pad=1, labelcolor=_PALE)
        panel.set_title("epoch", loc="right", fontsize=7, color=_PALE)


def _top_multiplier(runs: Sequence[Run]) -> float:
    """Where the multipliers' axis is cut off: infinity, unless rare spikes of single seeds would flatten everything."""
    drawn = [run.metrics["multiplier"].ravel() for run in runs if _has(run, "multiplier")]
    if not drawn:
        return np.inf
    values = np.concatenate(drawn)
    nearly_all = 1.3 * float(np.nanpercentile(values, 99))
    return nearly_all if 0 < 2.0 * nearly_all < np.nanmax(values) else np.inf


# Words around the panels.


def _explain(
    picture: Figure,
    title: str,
    runs: Sequence[Run],
    names: Sequence[str],
    looks: Sequence[tuple[str, Any]],
    styles: Mapping[str, Any],
    banded: bool,
) -> None:
    """Draw the title and the legend above the panels and the notes below them. The figure grows to make room."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [
        Line2D([], [], color=colour, linestyle=dash or "-", linewidth=2.2, label=name)
        for (colour, dash), name in zip(looks, names, strict=True)
    ]
    if len(styles) > 1:
        handles += [Line2D([], [], color=_PALE, linestyle=s, linewidth=1.9, label=n) for n, s in styles.items()]
    if any(_adjusted(run) for run in runs):
        handles.append(Line2D([], [], color=_INK, linestyle=":", linewidth=1.2, label="multiplier adjusted"))
    if banded:
        handles.append(Patch(color=_PALE, alpha=0.5, linewidth=0, label=_BAND))
    columns = max(1, min(len(handles), 150 // (8 + max(len(str(handle.get_label())) for handle in handles))))
    picture.legend(
        handles=handles,
        loc="outside upper left",
        ncols=columns,
        title=title,
        title_fontproperties={"size": 12, "weight": "bold"},
        alignment="left",
        frameon=False,
        handlelength=2.2,
        columnspacing=2.2,
    )
    lines = [line for text in _small_print(runs, names) for line in textwrap.wrap(text, 190)]
    picture.supxlabel("\n".join(lines), x=0.012, ha="left", fontsize=7.5, color=_PALE, linespacing=1.3)
    rows = -(-len(handles) // columns)
    picture.set_figheight(picture.get_figheight() + 0.3 + 0.19 * rows + 0.15 * len(lines))


def _small_print(runs: Sequence[Run], names: Sequence[str]) -> list[str]:
    counts = [str(count) for count in sorted({len(run.seeds) for run in runs})]
    if counts == ["1"]:
        lines = ["One seed, so nothing is known of the spread between seeds."]
    else:
        seeds = " or ".join(filter(None, [", ".join(counts[:-1]), counts[-1]]))
        lines = [f"Lines: interquartile mean over {seeds} seeds; bands: its 95 % bootstrap interval; faint: each seed."]
    discounts = _distinct(str(run.description["problem"].get("cost_discount", 1)) for run in runs)
    if len(discounts) == 1 and float(discounts[0]) < 1:
        lines[0] += f" Costs are discounted by {float(discounts[0]):g} per step."
    if np.isfinite(top := _top_multiplier(runs)):
        lines.append(f"Multipliers of single seeds above {top:.3g} are cut off.")
    without = [name for name, run in zip(names, runs, strict=True) if not _has(run, "multiplier")]
    lines += [f"{name} has no multiplier." for name in _distinct(without)]
    for name, run in zip(names, runs, strict=True):
        status = run.description.get("status", "finished")
        if status != "finished":
            lines.append(f"{name}: {status}, shown up to epoch {run.epochs[-1]}.")
        broken = np.count_nonzero([np.isnan(r).any() or np.isnan(c).any() for r, c in _outcomes(run)])
        if broken:
            lines.append(f"{name}: {broken} of {len(run.seeds)} seeds gave NaN; no mean is drawn there.")
    return [" ".join(lines), *_distinct(run.note for run in runs if run.note)]


def _outcomes(run: Run) -> Iterable[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Each seed's return and cost."""
    return zip(run.metrics["return"], run.metrics["cost"], strict=True)


def _has(run: Run, name: str) -> bool:
    return name in run.metrics and not np.all(np.isnan(run.metrics[name]))


def _epoch(run: Run) -> int:
    return -1 if run.adjustment_epoch is None else run.adjustment_epoch


def _adjusted(run: Run) -> bool:
    return 0 <= _epoch(run) <= int(run.epochs[-1])


def _styles(runs: Sequence[Run]) -> dict[str, Any]:
    names = _distinct(name for run in runs for name in run.cost_names)
    return {name: _STYLES[i % len(_STYLES)] for i, name in enumerate(names)}


def _looks(runs: Sequence[Run]) -> tuple[list[str], list[Any]]:
    """Each run's colour, and its line style if line styles mean algorithms instead of constraints."""
    algorithms = _distinct(run.algorithm for run in runs)
    place = [sum(other.algorithm == run.algorithm for other in runs[:i]) for i, run in enumerate(runs)]
    alone = all(len(run.limits) == 1 for run in runs)
    if len(runs) > len(COLOURS) > max(place) and alone and 1 < len(algorithms) <= len(_STYLES):
        return [COLOURS[i] for i in place], [_STYLES[algorithms.index(run.algorithm)] for run in runs]
    return _colours(len(runs)), [None] * len(runs)


def _colours(count: int) -> list[str]:
    if count <= len(COLOURS):
        return list(COLOURS[:count])
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    shades: NDArray[np.float64] = np.linspace(0, 0.92, count)
    return [to_hex(colormaps["viridis"](shade)) for shade in shades]


def _distinct(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def _files(out: Path) -> list[Path]:
    suffix = out.suffix.lower()
    if suffix in SUFFIXES:
        return [out]
    # A name such as "beta0.05" has no suffix; its dot belongs to a number.
    if suffix[1:].isalpha():
        raise InvalidInput(f"cannot write a picture as {suffix!r}; use one of {', '.join(SUFFIXES)}.")
    return [out.with_name(out.name + kind) for kind in (".png", ".svg")]
