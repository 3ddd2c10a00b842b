"""Tables and pictures of the benchmark, from the files that `benchmarks.safety` writes.

A result is a mean over seeds, with a 95 % interval by Student's t if there are at least two seeds. A picture's band
goes from the lowest to the highest seed.
"""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from apdo.algorithms import ALGORITHMS
from benchmarks import document, published
from benchmarks.safety import BENCHMARK, EARLY, LIMIT, RESULTS, TASKS, length, path_of, read

DOCUMENT = Path("docs/benchmarks.md")
SUMMARY = "summary"
NOT_RUN = "Not run yet."
NOTHING = "–"
RETURNED = "policy that a run returns"


class Estimate(NamedTuple):
    """A mean over seeds and half of its 95 % interval, which is NaN for one seed."""

    mean: float
    half: float
    seeds: int

    @property
    def places(self) -> int:
        """The number of decimals that are worth showing."""
        return 0 if abs(self.mean) >= 100 else 1 if abs(self.mean) >= 10 else 2

    @property
    def alone(self) -> str:
        """The mean without its interval."""
        return f"{self.mean:.{self.places}f}"

    def __str__(self) -> str:
        return self.alone + (f" ± {self.half:.{self.places}f}" if math.isfinite(self.half) else "")


def estimate(values: list[float]) -> Estimate:
    """The mean, and its interval by Student's t."""
    from scipy import stats

    mean, count = float(np.mean(values)), len(values)
    if count < 2:
        return Estimate(mean, math.nan, count)
    half = float(stats.t.ppf(0.975, count - 1)) * float(np.std(values, ddof=1)) / math.sqrt(count)
    return Estimate(mean, half, count)


def gather(task: str, out: Path, names: Iterable[str] = ALGORITHMS) -> dict[str, dict[str, dict[str, Any]]]:
    """Algorithm ↦ seed ↦ its filed result."""
    found = {algorithm: read(path_of(task, algorithm, out)).get("seeds", {}) for algorithm in names}
    return {algorithm: seeds for algorithm, seeds in found.items() if seeds}


def at(seeds: dict[str, dict[str, Any]], samples: int) -> dict[str, Estimate] | None:
    """Return and cost of an algorithm after so many samples, over the seeds that came so far; None if none did."""
    ends = [seed["ends"][str(samples)] for seed in seeds.values() if str(samples) in seed["ends"]]
    if not ends:
        return None
    return {name: estimate([end[name] for end in ends]) for name in ("return", "cost")}


def row(task: str, algorithm: str, seeds: dict[str, dict[str, Any]]) -> list[str]:
    """A row of a task's table."""
    told = [returned(seeds), duration(task, algorithm, seeds), theirs(task, algorithm)]
    return [*ends(task, algorithm, seeds), *told]


def ends(task: str, algorithm: str, seeds: dict[str, dict[str, Any]]) -> list[str]:
    """The row's cells of name, seeds, and return and cost early and at the end."""
    failed = sum("failed" in seed for seed in seeds.values())
    cells = [algorithm, f"{len(seeds)}" + (f", {failed} failed" if failed else "")]
    for samples in (EARLY, TASKS[task].samples):
        found = at(seeds, samples)
        fewer = (
            f" ({found['return'].seeds} of {len(seeds)} seeds)" if found and found["cost"].seeds < len(seeds) else ""
        )
        cells += [NOTHING] * 2 if found is None else [f"{found['return']}{fewer}", str(found["cost"])]
    return cells


def returned(seeds: dict[str, dict[str, Any]]) -> str:
    """Return and cost of the policies that the runs return, over the seeds for which they were measured."""
    told = [seed["returned"] for seed in seeds.values() if "returned" in seed]
    if not told:
        return NOTHING
    earned, cost = (estimate([one[name] for one in told]) for name in ("return", "cost"))
    return f"{earned} at {cost}" + (f" ({len(told)} of {len(seeds)} seeds)" if len(told) < len(seeds) else "")


def duration(task: str, algorithm: str, seeds: dict[str, dict[str, Any]]) -> str:
    """The time of the fastest and of the slowest whole seed, and the device."""
    whole = [seed for seed in seeds.values() if seed["samples"] >= length(task, algorithm)]
    if not whole:
        return NOTHING
    minutes = sorted(seed["seconds"] / 60 for seed in whole)
    ends = dict.fromkeys(f"{time:.{0 if time >= 10 else 1}f}" for time in (minutes[0], minutes[-1]))
    places = dict.fromkeys(_place(seed) for seed in whole)
    return f"{' to '.join(ends)} min, {' or '.join(places)}"


def _place(seed: dict[str, Any]) -> str:
    kind, _, name = seed["device"].partition(": ")
    if kind != "cpu":
        return name
    cores = seed.get("cores")
    return "CPU" if cores is None else f"{cores} core{'s' * (cores > 1)}"


def theirs(task: str, algorithm: str) -> str:
    """OmniSafe's result with the most similar algorithm, and its number of steps unless it is ten million."""
    found = published.counterpart(task, algorithm)
    if found is None:
        return NOTHING
    name, figure, steps = found
    return f"{figure} ({name}{'' if steps == published.ON_POLICY_STEPS else f', {_short(steps)}'})"


def _short(samples: int) -> str:
    return f"{samples / 1e6:g} M"


def headings(task: str) -> list[str]:
    """The headings of the cells of `ends`."""
    early, full = _short(EARLY), _short(TASKS[task].samples)
    return ["algorithm", "seeds", f"return at {early}", f"cost at {early}", f"return at {full}", f"cost at {full}"]


def table(task: str, out: Path) -> str:
    """The table of a task's results, or a sentence that there are none."""
    found = gather(task, out)
    if not found:
        return NOT_RUN
    heading = [
        *headings(task),
        RETURNED,
        "time of a seed",
        f"OmniSafe at {_short(published.ON_POLICY_STEPS)}: return / cost",
    ]
    told = document.table(heading, *(row(task, algorithm, seeds) for algorithm, seeds in found.items()))
    return "\n\n".join([told, *changes(found)])


def changes(found: dict[str, dict[str, dict[str, Any]]]) -> list[str]:
    """A sentence for each algorithm that was run with other defaults than today's."""
    return list(filter(None, (_changed(algorithm, seeds) for algorithm, seeds in found.items())))


def _changed(algorithm: str, seeds: dict[str, dict[str, Any]]) -> str:
    """A sentence on options whose defaults have changed since an algorithm was run; empty if there are none."""
    options = {name: value for seed in seeds.values() for name, value in seed["differs"].items()}
    told = ", ".join(f"`{name}` {value}" for name, value in options.items())
    return f"{algorithm} was run with other defaults than today's: {told}." if options else ""


def best(task: str, out: Path) -> tuple[str, dict[str, Estimate]] | None:
    """The algorithm with the highest return whose mean cost at the end is within the limit; None if there is none."""
    told = {name: at(seeds, TASKS[task].samples) for name, seeds in gather(task, out).items()}
    within = {name: end for name, end in told.items() if end is not None and end["cost"].mean <= LIMIT}
    if not within:
        return None
    name = max(within, key=lambda one: within[one]["return"].mean)
    return name, within[name]


def summary(out: Path) -> str:
    """The table of our best result within the limit and OmniSafe's, by task."""
    heading = ["task", "steps", "our best within the limit", "seeds", "return", "cost"]
    heading += ["OmniSafe's best within it", "its return / cost", "ours of its return"]
    return document.table(heading, *(_against(task, out) for task in BENCHMARK.tasks))


def _against(task: str, out: Path) -> list[str]:
    name, figure, steps = published.best(task)
    bar = [name if steps == published.ON_POLICY_STEPS else f"{name} ({_short(steps)})", str(figure)]
    mine, found = best(task, out), gather(task, out)
    if mine is None:
        over = any(at(seeds, TASKS[task].samples) for seeds in found.values())
        said = "none" if over else "not at its end yet" if found else "not run yet"
        return [task, _short(TASKS[task].samples), said, *[NOTHING] * 3, *bar, NOTHING]
    algorithm, end = mine
    share = f"{100 * end['return'].mean / figure.earned:.0f} %"
    cells = [algorithm, str(end["return"].seeds), str(end["return"]), str(end["cost"])]
    return [task, _short(TASKS[task].samples), *cells, *bar, share]


# Pictures.


def furthest(seeds: dict[str, dict[str, Any]]) -> list[dict[str, np.ndarray]]:
    """The curves of the seeds that went furthest; their points are at the same samples."""
    most = max(seed["samples"] for seed in seeds.values())
    whole = [seed["curve"] for seed in seeds.values() if seed["samples"] == most]
    return [{name: np.asarray(values, dtype=float) for name, values in curve.items()} for curve in whole]


def draw(task: str, out: Path) -> None:
    """Draw return and cost against samples: the mean over seeds, a band from lowest to highest, the limit as a line."""
    import matplotlib
    from matplotlib.figure import Figure

    from apdo.report import plot

    with matplotlib.rc_context(plot.LOOK):
        figure = Figure(figsize=(10, 4.2), layout="constrained")
        panels = figure.subplots(1, 2)
        for algorithm, seeds in gather(task, out, BENCHMARK.algorithms).items():
            lines(panels, seeds, plot.COLOURS[BENCHMARK.algorithms.index(algorithm)], algorithm)
        finish(panels, task)
        names, labels = panels[0].get_legend_handles_labels()
        figure.legend(names, labels, loc="outside lower center", ncols=min(len(labels), 9), frameon=False)
        plot.write(figure, out / f"{task}.svg")


def lines(panels: Any, seeds: dict[str, dict[str, Any]], colour: str, label: str) -> None:
    """Draw the return and the cost of an algorithm, each in its panel."""
    curves = furthest(seeds)
    x = curves[0]["samples"] / 1e6
    for panel, name in zip(panels, ("return", "cost"), strict=True):
        values = np.array([curve[name] for curve in curves])
        panel.fill_between(x, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, linewidth=0)
        panel.plot(x, values.mean(axis=0), color=colour, linewidth=1.6, label=label)


def finish(panels: Any, task: str) -> None:
    """Draw axes and text. The axis of the cost is linear up to twice the limit, and logarithmic beyond."""
    (earned, cost), limit = panels, TASKS[task].limit
    cost.axhline(limit, color="#333333", linestyle=(0, (5, 3)), linewidth=1)
    top = max(2.4 * limit, cost.get_ylim()[1])
    cost.set_yscale("symlog", linthresh=2 * limit)
    ticks = [share * limit for share in (0, 0.4, 1, 2, 4, 8, 16, 32) if share * limit <= top]
    cost.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    cost.minorticks_off()
    cost.set_ylim(0, top)
    for panel, title in ((earned, f"{task}: return of an episode"), (cost, f"cost of an episode (limit {limit:g})")):
        panel.set_title(title, loc="left", fontweight="bold")
        panel.set_xlabel("million steps")
        panel.set_xlim(left=0)


# The document.


def parts(out: Path) -> dict[str, str]:
    """The content between each pair of marks in the document."""
    told = {SUMMARY: summary(out)}
    for task in BENCHMARK.tasks:
        picture = (
            f"\n\n![return and cost on {task}](../results/benchmarks/{task}.svg)"
            if gather(task, out, BENCHMARK.algorithms)
            else ""
        )
        told[task] = table(task, out) + picture
    return told


def write(out: Path = RESULTS, target: Path = DOCUMENT) -> None:
    """Write the pictures, and the tables into the document. Tables of results in another folder are printed instead."""
    for task in BENCHMARK.tasks:
        if gather(task, out, BENCHMARK.algorithms):
            draw(task, out)
    if out == RESULTS:
        document.fill(target, parts(out))
    else:
        print("\n\n".join(parts(out).values()))
