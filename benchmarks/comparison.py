"""Every algorithm on three tasks with its defaults, compared with OmniSafe's figures and with the peers' runs.

    make comparison                                                    all of it, then what docs/comparison.md shows
    python -m benchmarks.comparison --only 'point-goal-1/(cup|focops)' a part: TASK/ALGORITHM as a pattern
    python -m benchmarks.comparison --lines                            the commands of what is missing
    python -m benchmarks.comparison --file                             file runs that were made by hand or elsewhere
    python -m benchmarks.comparison --table                            tables and pictures alone, from what was filed

Runs, files and options are those of `benchmarks.safety`, so each of the two studies uses what the other has run.
Off-policy algorithms have their own batches and end after 1,000,000 samples. PPO and TRPO under a wrapper are `trpo
--primal ppo` and `trpo`; they know the limit only through the wrapper's observations and rewards.
"""

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import comparison_curves, document, published, safety, transfer
from benchmarks import safety_report as report
from benchmarks.safety import EARLY, RESULTS, TASKS, Job, Study, length

DOCUMENT = Path("docs/comparison.md")
PEERS = Path("results/transfer")
FAMILIES = {
    "multipliers": ("pdo", "ppo-lag", "trpo-lag", "cppo-pid", "trpo-pid", "rcpo"),
    "solved or projected in each step": ("cpo", "pcpo"),
    "first-order": ("focops", "cup"),
    "no multipliers": ("p3o", "ipo", "crpo"),
    "off-policy, 1 M steps": ("apdo-1m", "sac-lag-1m"),
    "budgets in sight": ("ppo-saute", "trpo-saute", "ppo-early-termination", "trpo-early-termination"),
    "no limit": ("trpo",),
}
"""The kinds of algorithms, with a colour for each, and the algorithms of each kind that are compared."""
STUDY = Study(
    tasks=("halfcheetah-velocity", "point-goal-1", "point-gather"),
    algorithms=tuple(name for names in FAMILIES.values() for name in names),
    seeds=(0, 1, 2),
)
SAME = {"halfcheetah-velocity": "halfcheetah"}
"""Task ↦ the problem of the transfer study that is the same task, on which APDO was trained for as long."""
SHARE, IN_A_ROW = 0.8, 3
"""A policy is good if it earns this share of the best known return, in so many windows in a row."""
NOT_RUN = "not run yet"


class Known(NamedTuple):
    """The best known return within the limit on a task, and its source."""

    earned: float
    whose: str


KNOWN = {
    "halfcheetah-velocity": Known(2989.0, "APDO after 1 M steps, [transfer.md](transfer.md)"),
    "point-goal-1": Known(21.45, "OmniSafe's SACLag after 3 M steps, published"),
    "point-gather": Known(16.6, "APDO, adjusted again, after 1.1 M steps, [transfer.md](transfer.md)"),
}


# What files say.


class Result(NamedTuple):
    """The result of an algorithm on a task, at the end of its run."""

    earned: report.Estimate
    cost: report.Estimate
    lowest: tuple[float, float]
    """The lowest return and the lowest cost of a seed."""
    highest: tuple[float, float]


def at_end(task: str, algorithm: str, seeds: dict[str, dict[str, Any]], samples: int = 0) -> Result | None:
    """The result after so many samples, or at the run's end; None if no seed has come that far."""
    mark = str(samples or length(task, algorithm))
    ends = [seed["ends"][mark] for seed in seeds.values() if mark in seed["ends"]]
    if not ends:
        return None
    pairs = np.array([[end["return"], end["cost"]] for end in ends], dtype=float)
    earned, cost = (report.estimate(list(column)) for column in pairs.T)
    low, high = pairs.min(axis=0), pairs.max(axis=0)
    return Result(earned, cost, (low[0], low[1]), (high[0], high[1]))


def results(task: str, out: Path, samples: int = 0) -> dict[str, Result]:
    """Algorithm ↦ its result, for those that have one."""
    gathered = report.gather(task, out, STUDY.algorithms).items()
    found = {algorithm: at_end(task, algorithm, seeds, samples) for algorithm, seeds in gathered}
    return {algorithm: result for algorithm, result in found.items() if result is not None}


def samples_to(task: str, curve: dict[str, list[Any]]) -> float:
    """The end of the first of three windows in a row with a good return within the limit; infinity if there is none.

    A window is a hundredth of the run, as in the stored curve.
    """
    earned, cost = (np.asarray(curve[name], dtype=float) for name in ("return", "cost"))
    good = (earned >= SHARE * KNOWN[task].earned) & (cost <= TASKS[task].limit)
    for i in range(len(good) - IN_A_ROW + 1):
        if good[i : i + IN_A_ROW].all():
            return float(curve["samples"][i])
    return math.inf


def median_to(task: str, seeds: dict[str, dict[str, Any]]) -> tuple[float, int]:
    """The median over seeds, which may be infinite, and the number of seeds that ever have a good policy."""
    met = [samples_to(task, seed["curve"]) for seed in seeds.values()]
    return float(np.sort(met)[len(met) // 2]), sum(map(math.isfinite, met))


# What another study has run.


def take_over(out: Path, folder: Path = PEERS) -> None:
    """File APDO's runs of the transfer study that are as long as those of this study and have the same options."""
    for task, problem in SAME.items():
        told = json.loads((folder / f"{problem}-apdo.json").read_text(encoding="utf-8"))
        assert told["posed"]["limits"] == [TASKS[task].limit], told["posed"]
        for seed, one in told["seeds"].items():
            if one["samples"] != length(task, "apdo-1m"):
                continue
            curve = {name: np.asarray(values, dtype=float) for name, values in one["curve"].items()}
            curve["cost"] = curve.pop("costs")[:, 0]
            options = safety.options_of(told["config"])
            del options["limits"]  # the task's own, though it was given
            found = {
                "samples": one["samples"],
                "status": "finished",
                "ends": {str(one["samples"]): safety.ending(curve, one["samples"])},
                "seconds": round(one["seconds"]),
                "cores": one["threads"],
                "differs": {},
                "options": options | {"samples": one["samples"]},
                "returned": {
                    "return": one["return"]["mean"],
                    "cost": one["costs"][0]["mean"],
                    "episodes": transfer.EPISODES,
                },
                "command": told["command"],
                **{name: one[name] for name in ("commit", "versions")},
                "device": one["device"].replace("cpu,", "cpu:", 1),
                "date": one["finished"],
                "curve": safety.thinned(curve),
            }
            safety.add(Job(task, "apdo-1m", int(seed), one["samples"]), found, out)


# Tables.


def short(samples: float) -> str:
    """Samples in millions."""
    return f"{samples / 1e6:.2g} M"


def title(algorithm: str) -> str:
    """An algorithm's name in a table."""
    return algorithm.removesuffix("-1m")


def quickness(task: str, seeds: dict[str, dict[str, Any]]) -> str:
    """The table's cell for the samples to a good policy within the limit."""
    median, count = median_to(task, seeds)
    most = max(seed["samples"] for seed in seeds.values())
    said = short(median) if math.isfinite(median) else f"not in {short(most)}"
    return f"{said} ({count} of {len(seeds)} seeds)"


def share(task: str, algorithm: str, result: Result | None) -> str:
    """Our return as a part of OmniSafe's."""
    theirs = published.counterpart(task, algorithm)
    if theirs is None or result is None:
        return report.NOTHING
    return f"{100 * result.earned.mean / theirs[1].earned:.0f} %"


def row(task: str, algorithm: str, out: Path) -> list[str]:
    """A line of a task's table."""
    theirs = report.theirs(task, algorithm)
    seeds = report.gather(task, out, [algorithm]).get(algorithm, {})
    if not seeds:
        return [title(algorithm), NOT_RUN, *[report.NOTHING] * 7, theirs, report.NOTHING]
    cells = report.ends(task, algorithm, seeds)[1:]
    if length(task, algorithm) < TASKS[task].samples:
        cells[-2:] = [f"ends at {short(length(task, algorithm))}", report.NOTHING]
    told = [report.returned(seeds), quickness(task, seeds), report.duration(task, algorithm, seeds), theirs]
    return [title(algorithm), *cells, *told, share(task, algorithm, at_end(task, algorithm, seeds))]


def table(task: str, out: Path) -> str:
    """The table of a task's results; algorithms that were not run have a row too."""
    heading = [*report.headings(task), report.RETURNED, "samples to a good policy within the limit", "time of a seed"]
    heading += ["OmniSafe: return / cost", "ours of its return"]
    told = document.table(heading, *(row(task, algorithm, out) for algorithm in STUDY.algorithms))
    return "\n\n".join([told, *report.changes(report.gather(task, out, STUDY.algorithms))])


def overview(out: Path) -> str:
    """Return and cost of each algorithm on each task, as shares of the best known return and of the limit."""
    found = {task: (results(task, out), results(task, out, EARLY)) for task in STUDY.tasks}

    def cell(task: str, algorithm: str) -> str:
        full, early = (each.get(algorithm) for each in found[task])
        result = full or early
        if result is None:
            return NOT_RUN
        spent = math.ceil(100 * result.cost.mean / TASKS[task].limit) / 100  # rounded up: 1.00 d is within the limit
        said = f"{100 * result.earned.mean / KNOWN[task].earned:.0f} % at {spent:.2f} d"
        said = f"**{said}**" if result.cost.mean <= TASKS[task].limit else said
        return said if full else f"{said}, after {short(EARLY)}"

    lines = [[title(name), *(cell(task, name) for task in STUDY.tasks)] for name in STUDY.algorithms]
    return document.table(["algorithm", *STUDY.tasks], *lines)


def best(found: dict[str, Result], task: str) -> str:
    """The algorithm with the highest return within the limit, and that return."""
    within = {name: one for name, one in found.items() if one.cost.mean <= TASKS[task].limit}
    if not within:
        return "none" if found else NOT_RUN
    name = max(within, key=lambda one: within[one].earned.mean)
    return f"{title(name)}: {within[name].earned} at {within[name].cost}"


def quickest(task: str, out: Path) -> str:
    """The algorithm whose median seed is the first to have a good policy within the limit."""
    medians = {name: median_to(task, seeds)[0] for name, seeds in report.gather(task, out, STUDY.algorithms).items()}
    if not medians:
        return NOT_RUN
    name = min(medians, key=lambda one: medians[one])
    return f"{title(name)}: {short(medians[name])}" if math.isfinite(medians[name]) else "none"


def leaders(out: Path) -> str:
    """The leading algorithm on each task so far, and how much of the study has been run."""
    rows = []
    for task in STUDY.tasks:
        early, full = results(task, out, EARLY), results(task, out)
        whole = {name: one for name, one in full.items() if length(task, name) == TASKS[task].samples}
        there = f"{len(full)} of {len(STUDY.algorithms)}"
        rows.append([task, there, best(early, task), best(whole, task), quickest(task, out)])
    full = short(safety.FULL)
    heading = ["task", "algorithms at their end", f"best within the limit at {short(EARLY)}"]
    heading += [f"best within it at {full}", "soonest a good policy within it"]
    return document.table(heading, *rows)


def peers(folder: Path = PEERS) -> str:
    """The table of the peers' runs on point-gather, and ours of the same length."""
    rows = []
    for path in [path for part in (folder / "peers", folder) for path in sorted(part.glob("point-gather-0.2-*.json"))]:
        seeds = list(json.loads(path.read_text(encoding="utf-8"))["seeds"].values())
        whose, _, algorithm = path.stem.removeprefix("point-gather-0.2-").partition("-")
        ours = path.parent == folder
        name = {"fsrl": "FSRL", "omnisafe": "OmniSafe"}.get(whose, whose)
        earned, cost = (
            report.estimate([kind["mean"] for kind in column])
            for column in zip(*((seed["return"], seed["total_costs"][0]) for seed in seeds), strict=True)
        )
        samples = ", ".join(dict.fromkeys(f"{seed['samples']:,}" for seed in seeds))
        names = ["ours", whose] if ours else [name, algorithm]
        rows.append([*names, str(len(seeds)), samples, str(earned), str(cost)])
    return document.table(["whose", "algorithm", "seeds", "samples", "return", "bombs, plain total"], *rows)


# Pictures.


def drawn(task: str, out: Path) -> bool:
    """Whether there is anything to draw: results at the end, or early ones."""
    return bool(results(task, out) or results(task, out, EARLY))


WIDEST = 2.4
"""How far the axis of the cost reaches, in limits; points beyond are drawn at its edge."""


def picture_of(task: str, out: Path) -> Path:
    """The file of a task's picture."""
    return out / f"{task}-compared.svg"


def draw(task: str, out: Path, path: Path | None = None) -> None:
    """Draw cost and return at the end: a named point for each algorithm, bars from the lowest to the highest seed."""
    import matplotlib
    from matplotlib.figure import Figure

    from apdo.report import plot

    found, limit, when = results(task, out), TASKS[task].limit, "at the end of training"
    if not found:
        found, when = results(task, out, EARLY), f"after {EARLY:,} steps"
    inside = {name: one for name, one in found.items() if one.cost.mean <= WIDEST * limit} or found
    low = min(one.lowest[0] for one in inside.values())
    high = max(KNOWN[task].earned, *(one.highest[0] for one in inside.values()))
    bottom, top = low - 0.06 * (high - low), high + 0.06 * (high - low)
    with matplotlib.rc_context(plot.LOOK):
        figure = Figure(figsize=(10, 6.0))
        panel = figure.add_axes((0.08, 0.17, 0.60, 0.75))
        panel.set(xlim=(0, WIDEST * limit), ylim=(bottom, top), xlabel=f"cost of an episode (limit {limit:g})")
        panel.axvspan(0, limit, color="#009E73", alpha=0.05, linewidth=0)
        panel.axvline(limit, color="#333333", linestyle=(0, (5, 3)), linewidth=1)
        panel.axhline(KNOWN[task].earned, color="#999999", linestyle=(0, (1, 2)), linewidth=1)
        panel.annotate(
            "best known within the limit",
            (1.03 * limit, KNOWN[task].earned),
            va="bottom",
            color="#777777",
            fontsize=8,
        )
        panel.set_title(f"{task}: return of an episode, {when}", loc="left", fontweight="bold")
        _points(panel, found, (bottom, top), limit)
        for colour, family in zip(plot.COLOURS, FAMILIES, strict=True):
            if any(name in found for name in FAMILIES[family]):
                panel.plot([], [], "o", color=colour, label=family)
        figure.legend(loc="lower left", bbox_to_anchor=(0.06, 0.0), ncols=4, frameon=False)
        plot.write(figure, path or picture_of(task, out))


def _points(panel: Any, found: dict[str, Result], height: tuple[float, float], limit: float) -> None:
    """Draw points and bars. The names form a column beside them, ordered by return, each with a line to its point."""
    from apdo.report import plot

    order = sorted(found, key=lambda name: found[name].earned.mean)
    bottom, top = height
    places = {
        name: (min(found[name].cost.mean, WIDEST * limit), min(max(found[name].earned.mean, bottom), top))
        for name in order
    }
    heights = spread([(places[name][1] - bottom) / (top - bottom) for name in order], gap=0.047)
    for name, at in zip(order, heights, strict=True):
        one, (x, y) = found[name], places[name]
        colour = next(plot.COLOURS[i] for i, names in enumerate(FAMILIES.values()) if name in names)
        beyond = (x, y) != (one.cost.mean, one.earned.mean)
        if not beyond:
            panel.hlines(y, one.lowest[1], one.highest[1], color=colour, linewidth=1.2, alpha=0.6)
            panel.vlines(x, one.lowest[0], one.highest[0], color=colour, linewidth=1.2, alpha=0.6)
        panel.plot([x], [y], ">" if beyond else "o", color=colour, markersize=6, clip_on=False, zorder=3)
        panel.annotate(
            f"{title(name)}  {one.earned.alone} at {one.cost.alone}",
            (x, y),
            xytext=(1.05, at),
            textcoords="axes fraction",
            color=colour,
            fontsize=9,
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": colour,
                "alpha": 0.35,
                "linewidth": 0.8,
                "shrinkA": 1,
                "shrinkB": 3,
                "relpos": (0, 0.5),
            },
        )


def spread(wanted: list[float], gap: float) -> list[float]:
    """Positions in [0, 1] near the wanted ones, in their order, and at least a gap apart if there is room."""
    gap = min(gap, 1.0 / max(len(wanted) - 1, 1))
    blocks: list[list[float]] = []
    for i, place in enumerate(wanted):
        # With the gaps subtracted, only the order matters: neighbours in the wrong order get their common mean.
        blocks.append([place - i * gap])
        while len(blocks) > 1 and np.mean(blocks[-2]) > np.mean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    level = [float(np.mean(block)) for block in blocks for _ in block]
    most = 1.0 - (len(wanted) - 1) * gap
    return [min(max(place, 0.0), most) + i * gap for i, place in enumerate(level)]


# The document.


def parts(out: Path) -> dict[str, str]:
    """The content between each pair of marks in the document."""
    told = {"leaders": leaders(out), "overview": overview(out), "peers": peers()}
    for task in STUDY.tasks:
        picture = f"![cost and return on {task}](../{picture_of(task, RESULTS).as_posix()})\n\n"
        told[task] = (picture if drawn(task, out) else "") + table(task, out)
    return told


def write(out: Path = RESULTS, target: Path = DOCUMENT) -> None:
    """Write the pictures, and the tables into the document. Tables of results in another folder are printed instead."""
    for task in STUDY.tasks:
        if drawn(task, out):
            draw(task, out)
    comparison_curves.draw_all(STUDY, out)
    if out == RESULTS:
        document.fill(target, parts(out))
        for page in comparison_curves.pages(STUDY):
            curves = comparison_curves.text(page, STUDY, out)
            document.fill(comparison_curves.FOLDER / f"{page}.md", {comparison_curves.MARK: curves})
    else:
        print("\n\n".join(parts(out).values()))


def main(words: list[str] | None = None) -> None:
    given = safety.arguments(words, STUDY, __doc__)
    if given.file:
        take_over(given.out)
    safety.run(given, STUDY, write)


if __name__ == "__main__":
    main()
