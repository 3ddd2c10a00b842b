"""The results of a sweep: a table with a row for each setting and seed, and pictures of the options' effects."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from apdo import files
from apdo.errors import InvalidInput
from apdo.report import comparison, plot, runs
from apdo.report.runs import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_CURVES = 12
_MOST_OPTIONS = 6


@dataclasses.dataclass(frozen=True, eq=False)
class Entry:
    """The runs of one setting."""

    name: str
    algorithm: str
    environment: str
    varied: Mapping[str, Any]
    """The options that differ between settings, with their values."""
    run: Run | None
    """The setting's seeds, joined; None if none of them has finished an epoch."""
    failed: Mapping[int, str]
    """The reason of each failed seed."""


def rows(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """A row for each setting and seed. Return, costs and multipliers are means over the last epochs of a seed."""
    found = []
    for entry in entries:
        own = {"setting": entry.name, "algorithm": entry.algorithm, "environment": entry.environment}
        own |= {name: _plain(value) for name, value in entry.varied.items()}
        seeds = () if entry.run is None else entry.run.seeds
        for i, seed in enumerate(seeds):
            if entry.run is not None:
                found.append(own | {"seed": seed} | _of_seed(entry.run, i) | {"error": entry.failed.get(seed, "")})
        found += [own | {"seed": seed, "error": why} for seed, why in entry.failed.items() if seed not in seeds]
    return found


def _of_seed(run: Run, i: int) -> dict[str, Any]:
    def last(name: str) -> Any:  # noqa: ANN401
        return run.metrics[name][i, -comparison.LAST :].mean(axis=0)

    cost = last("cost")
    row: dict[str, Any] = {"epochs": len(run.epochs), "samples": int(run.samples[-1]), "return": float(last("return"))}
    for name, value, limit in zip(run.cost_names, cost, run.limits, strict=True):
        row |= {name: float(value), f"{name} limit": limit}
    row["within limits"] = bool(np.all(cost <= np.asarray(run.limits)))
    if "multiplier" in run.metrics:
        row |= {f"{n} multiplier": float(v) for n, v in zip(run.cost_names, last("multiplier"), strict=True)}
    for best in run.best:
        if best["seed"] == run.seeds[i]:
            # For the best policy, values are discounted if the limits are; the returns of epochs are plain sums.
            discounted = run.description.get("problem", {}).get("cost_discount", 1.0) < 1.0
            name = "best discounted return" if discounted else "best return"
            row |= {name: best["return"], "best is within limits": best["known"]}
            row |= {f"best {n}": v for n, v in zip(run.cost_names, best["cost"], strict=True)}
    return row


def write_table(found: Sequence[Mapping[str, Any]], file: Path) -> list[Path]:
    """Write the rows as `FILE.csv`, and as `FILE.parquet` if pyarrow is installed."""
    columns = list(dict.fromkeys(name for row in found for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    with files.replacing(file.with_suffix(".csv")) as out:
        out.write(text.getvalue().encode())
    written = [file.with_suffix(".csv")]
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        return written
    data = {name: _column([row.get(name) for row in found]) for name in columns}
    with files.replacing(file.with_suffix(".parquet")) as out:
        parquet.write_table(pa.table(data), out)
    return [*written, file.with_suffix(".parquet")]


def _column(values: list[Any]) -> list[Any]:
    """Values of one type: all become text unless all are numbers."""
    kinds = {type(value) for value in values if value is not None}
    return values if len(kinds) == 1 or kinds <= {int, float} else [None if v is None else str(v) for v in values]


def _plain(value: object) -> object:
    if isinstance(value, str) and not math.isnan(number := _number(value)):
        return number
    return ",".join(str(part) for part in value) if isinstance(value, list | tuple) else value


def draw(entries: Sequence[Entry], out: Path, names: Mapping[str, str]) -> list[Path]:
    """Draw pictures for each environment: the learning curves of a few settings, and the effect of each option.

    `names` has the short name of each option.
    """
    written: list[Path] = []
    for environment in dict.fromkeys(entry.environment for entry in entries):
        here = [entry for entry in entries if entry.environment == environment and entry.run is not None]
        stem = re.sub(r"[^\w.-]+", "-", environment)
        if 0 < len(here) <= _MOST_CURVES:
            titles = [entry.name.replace(f"-{stem}", "", 1) for entry in here]
            written += plot.plot([_run(entry) for entry in here], out / f"curves-{stem}", environment, names=titles)
        numbers = [name for name in names if len(_values(here, name)) > 1][:_MOST_OPTIONS]
        if numbers:
            written += _draw_options(here, numbers, out / f"options-{stem}", environment, names)
    return written


def _run(entry: Entry) -> Run:
    if entry.run is None:
        raise InvalidInput(f"{entry.name} has no finished epoch.")
    return entry.run


def _number(value: object) -> float:
    """An option's value as a number for an axis, also if it was written as text; NaN if it is not a number."""
    one = value[0] if isinstance(value, list | tuple) and len(value) == 1 else value
    if isinstance(one, str):
        try:
            return float(one)
        except ValueError:
            return math.nan
    return float(one) if isinstance(one, int | float) and not isinstance(one, bool) else math.nan


def _values(here: Sequence[Entry], name: str) -> set[float]:
    return {value for entry in here if not math.isnan(value := _number(entry.varied.get(name)))}


def _draw_options(
    here: Sequence[Entry], options: Sequence[str], out: Path, title: str, names: Mapping[str, str]
) -> list[Path]:
    """Draw a row for each option: return and costs against its value. A point is a setting, a colour an algorithm."""
    import matplotlib
    from matplotlib.figure import Figure

    costs = _run(here[0]).cost_names
    with matplotlib.rc_context(plot.LOOK):
        figure = Figure(figsize=(3.2 * (1 + len(costs)), 2.6 * len(options)), layout="constrained")
        panels = figure.subplots(len(options), 1 + len(costs), squeeze=False)
        for line, name in zip(panels, options, strict=True):
            for i, panel in enumerate(line):
                _draw_panel(panel, here, name, i - 1)
                panel.set_xlabel(names[name])
                panel.set_ylabel("return" if i == 0 else costs[i - 1])
        figure.suptitle(title)
        algorithms = dict.fromkeys(entry.algorithm for entry in here)
        if len(algorithms) > 1:
            handles = panels[0][0].get_legend_handles_labels()
            figure.legend(*handles, loc="outside lower center", ncols=len(algorithms), frameon=False)
        return plot.write(figure, out)


def _draw_panel(panel: Axes, here: Sequence[Entry], name: str, cost: int) -> None:
    algorithms = list(dict.fromkeys(entry.algorithm for entry in here))
    for algorithm, colour in zip(algorithms, plot.COLOURS, strict=False):
        own = [
            entry for entry in here if entry.algorithm == algorithm and not math.isnan(_number(entry.varied.get(name)))
        ]
        places = [_number(entry.varied[name]) for entry in own]
        heights = [_final(_run(entry), cost) for entry in own]
        panel.plot(places, heights, "o", color=colour, markersize=4, alpha=0.8, label=algorithm)
        if cost >= 0:
            limits = [_run(entry).limits[cost] for entry in own]
            panel.plot(places, limits, "_", color=colour, markersize=12, alpha=0.5)
    values = _values(here, name)
    if min(values) > 0 and max(values) >= 20 * min(values):
        from matplotlib.ticker import NullFormatter

        panel.set_xscale("log")
        # Powers of ten as plain numbers: the usual labels are formulas, and formulas are switched off.
        panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        panel.xaxis.set_minor_formatter(NullFormatter())


def _final(run: Run, cost: int) -> float:
    last = run.metrics["return"] if cost < 0 else run.metrics["cost"][..., cost]
    return float(last[:, -comparison.LAST :].mean())


def joined(folders: Sequence[Path]) -> Run | None:
    """The seeds of one setting, joined from its blocks as far as each has come; None if no block has an epoch."""
    found = []
    for folder in folders:
        try:
            found.append(runs.read(folder))
        except InvalidInput:
            continue
    try:
        return comparison.join(found) if found else None
    except InvalidInput:
        return found[0]
