"""Tables and picture of docs/transfer.md, from the files that benchmarks.transfer and benchmarks.peers_transfer wrote.

Let R be the return of the policy that a run returns, R_0 that of the policies with which runs start, and R* the best
known return within the limits. The normalised return is (R - R_0) / (R* - R_0). A run keeps its limits if every cost,
in the mean over fresh episodes, is at most 1.05 times its limit. Over problems and seeds we report the interquartile
mean and the 95 % interval of a bootstrap that draws seeds again within each problem (Agarwal et al. 2021).
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from apdo.report import plot
from apdo.report.statistics import interquartile_mean
from benchmarks import document, transfer
from benchmarks.transfer import ALGORITHMS, RESULTS, UNCONSTRAINED, WITHIN, Job
from benchmarks.transfer_problems import CASES, REWARDS

DOCUMENT = Path("docs/transfer.md")
PICTURE = "curves.png"
RESAMPLES = 5000
KEPT = 0.9
"""The share of the best epoch's return, and of its gain over R_0, that the returned policy should keep. If that epoch
earned less than 0, or less than the first policies, the remaining share is how much more may be lost."""
SUMMARY = [
    "algorithm",
    "over",
    "problems, runs",
    "within 1.05 d",
    "normalised return (IQM)",
    "the same, 0 beyond a limit",
    f"≥ {100 * KEPT:.0f} % of the best epoch's return",
    f"≥ {100 * KEPT:.0f} % of its gain over R_0",
]
NAMES = {"apdo": "APDO", "pdo": "PDO", "cpo": "CPO", "trpo": "TRPO"}
PEERS = {
    "fsrl-ppo-lag": "FSRL PPO-Lag",
    "fsrl-trpo-lag": "FSRL TRPO-Lag",
    "fsrl-cpo": "FSRL CPO",
    "omnisafe-ppo-lag": "OmniSafe PPO-Lag",
    "omnisafe-trpo-lag": "OmniSafe TRPO-Lag",
    "omnisafe-cpo": "OmniSafe CPO",
}


@dataclasses.dataclass(frozen=True)
class Problem:
    """What is known about a case: its limits, where runs start, and the best return ever seen within the limits."""

    name: str
    limits: np.ndarray
    unit: np.ndarray
    """The unit of an excess of each cost: the limit or, if that is 0, the cost's absolute sum."""
    start: float
    start_costs: np.ndarray
    best: float
    best_by: str

    def excess(self, costs: Sequence[float] | np.ndarray) -> np.ndarray:
        """The worst excess of the costs [..., M] over a limit, as a share of it: 0 is at the limit."""
        return np.max((np.asarray(costs) - self.limits) / self.unit, axis=-1)

    def normalised(self, earned: float) -> float:
        """0 for the return with which runs start, 1 for the best known one."""
        return (earned - self.start) / (self.best - self.start)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of one run: the policy that it returned."""

    score: float
    """The normalised return; 0 for a run that failed."""
    within: bool
    earned: float
    excess: float
    kept: bool | None
    """Whether it earns almost as much as the best epoch within the limits; None if there was no such epoch."""
    kept_gain: bool | None
    """The same for what both gained over the first policies, which is stricter if those earned more than 0."""


def problem_of(name: str, out: Path) -> Problem | None:
    """What is known about a case; None until its start has been measured."""
    reference = transfer.read(transfer.path_of(Job("reference", name, "start", ()), out))
    if not reference:
        return None
    seeds = list(reference["seeds"].values())
    limits, allowance = np.asarray(reference["posed"]["limits"]), np.asarray(reference["allowance"])
    start = float(np.mean([seed["return"]["mean"] for seed in seeds]))
    costs = np.mean([[cost["mean"] for cost in seed["costs"]] for seed in seeds], axis=0)
    best, by = best_known(name, out, limits, reference)
    return Problem(name, limits, allowance / (WITHIN - 1.0), start, costs, best, by)


def best_known(name: str, out: Path, limits: np.ndarray, reference: dict[str, Any]) -> tuple[float, str]:
    """The best return within the limits and its source: the exact optimum, or the best policy ever measured."""
    if "optimum" in reference:
        return reference["optimum"]["return"], "exact"
    case = CASES[name]
    found = [] if case.known is None else [(case.known, case.by or "controller")]
    for path in every_file(name, out):
        told = transfer.read(path)
        by = (NAMES | PEERS)[told["algorithm"]] + (", long" if path.parent.name == "long" else "")
        for seed in told["seeds"].values():
            if "failed" not in seed and all(c["mean"] <= d for c, d in zip(seed["costs"], limits, strict=True)):
                found.append((seed["return"]["mean"], by))
    if case.units_of is not None:
        own = problem_of(case.units_of, out)
        found += [] if own is None or np.isnan(own.best) else [(REWARDS * own.best, own.best_by)]
    return max(found, default=(np.nan, "none"))


def every_file(name: str, out: Path) -> list[Path]:
    """All files of results on a case: of the study, of the long runs and of the peers."""
    paths = [transfer.path_of(Job("study", name, algorithm, ()), out) for algorithm in ALGORITHMS]
    paths += [transfer.path_of(Job("long", name, algorithm, ()), out) for algorithm in (*ALGORITHMS, UNCONSTRAINED)]
    paths += [transfer.path_of(Job("peers", name, algorithm, ()), out) for algorithm in PEERS]
    return [path for path in paths if path.exists()]


def outcomes(problem: Problem, told: dict[str, Any]) -> list[Outcome]:
    """The outcomes of the runs in a file."""
    return [outcome(problem, seed) for seed in told.get("seeds", {}).values()]


def outcome(problem: Problem, seed: dict[str, Any]) -> Outcome:
    """The outcome of one run."""
    if "failed" in seed:
        return Outcome(0.0, within=False, earned=np.nan, excess=np.inf, kept=False, kept_gain=False)
    earned, excess = seed["return"]["mean"], float(problem.excess([cost["mean"] for cost in seed["costs"]]))
    best = seed["best_epoch"]
    kept, kept_gain = (
        (None, None) if best is None else (keeps(earned, best["return"], zero) for zero in (0.0, problem.start))
    )
    return Outcome(problem.normalised(earned), excess <= WITHIN - 1.0, earned, excess, kept, kept_gain)


def keeps(earned: float, best: float, zero: float) -> bool:
    """Whether a return keeps the share `KEPT` of the best epoch's, both counted from `zero`."""
    return earned - zero >= best - zero - (1.0 - KEPT) * abs(best - zero)


def pooled(scores: list[np.ndarray]) -> float:
    """The interquartile mean over all problems and seeds."""
    return float(interquartile_mean(np.concatenate(scores)))


def stratified_interval(
    scores: list[np.ndarray], level: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float]:
    """The bootstrap interval of `pooled`: every resample draws the seeds of each problem again."""
    rng = np.random.default_rng(seed)
    drawn = [own[rng.integers(len(own), size=(len(own), resamples))] for own in scores]
    low, high = np.quantile(interquartile_mean(np.concatenate(drawn)), [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    return float(low), float(high)


def summary_row(name: str, what: str, runs: list[list[Outcome]]) -> list[str]:
    """A row of the summary: an algorithm over some problems."""
    flat = [run for own in runs for run in own]
    scores = [np.array([run.score for run in own]) for own in runs]
    safe = [np.array([run.score * run.within for run in own]) for own in runs]
    return [
        name,
        what,
        f"{len(runs)}, {len(flat)}",
        _share([run.within for run in flat]),
        _with_interval(scores),
        _with_interval(safe),
        _share([run.kept for run in flat if run.kept is not None]),
        _share([run.kept_gain for run in flat if run.kept_gain is not None]),
    ]


def _share(flags: Sequence[bool]) -> str:
    return f"{100 * np.mean(flags):.0f} % ({int(np.sum(flags))} of {len(flags)})" if flags else "–"


def _with_interval(scores: list[np.ndarray]) -> str:
    low, high = stratified_interval(scores)
    return f"{pooled(scores):.2f} ({low:.2f} to {high:.2f})"


def summary(problems: list[Problem], out: Path) -> str:
    """The table of each algorithm over all problems, over those used in development, and over those held out."""
    parts = [("all", None), ("seen", False), ("held out", True)]
    rows = []
    for algorithm in ALGORITHMS:
        for what, held_out in parts:
            chosen = [problem for problem in problems if held_out in (None, CASES[problem.name].held_out)]
            runs = [own for problem in chosen if (own := runs_of(problem, algorithm, out))]
            rows += [summary_row(NAMES[algorithm], what, runs)] if runs else []
    return document.table(SUMMARY, *rows)


def runs_of(problem: Problem, algorithm: str, out: Path) -> list[Outcome]:
    """The outcomes of an algorithm on a problem whose best return is known; empty if it is not known."""
    kind = "peers" if algorithm in PEERS else "study"
    found = outcomes(problem, transfer.read(transfer.path_of(Job(kind, problem.name, algorithm, ()), out)))
    return found if np.isfinite(problem.best) else []


def peers_summary(problems: list[Problem], out: Path) -> str:
    """The table of the peers, and of APDO on the same problems, for each set of problems that a peer has run."""
    rows = []
    for peer in PEERS:
        both = [
            (theirs, ours)
            for problem in problems
            if (theirs := runs_of(problem, peer, out)) and (ours := runs_of(problem, "apdo", out))
        ]
        if both:
            rows.append(summary_row(PEERS[peer], "its own", [theirs for theirs, _ in both]))
            rows.append(summary_row(NAMES["apdo"], "the same", [ours for _, ours in both]))
    return document.table(SUMMARY, *rows)


def problems_table(problems: list[Problem], out: Path) -> str:
    """The table of the problems, and of what is known about them."""
    heading = ["problem", "cost", "limit", "steps", "held out", "start", "unconstrained", "R*", "by"]
    rows = []
    for problem in problems:
        case = CASES[problem.name]
        free = transfer.read(transfer.path_of(Job("long", problem.name, UNCONSTRAINED, ()), out))
        reference = transfer.read(transfer.path_of(Job("reference", problem.name, "start", ()), out))
        cost = f"`{case.options['cost']}`" if "cost" in case.options else ", ".join(reference["posed"]["cost_names"])
        rows.append(
            [
                case.title,
                cost,
                ", ".join(f"{limit:.3g}" for limit in problem.limits),
                str(case.horizon),
                "yes" if case.held_out else "",
                _pair(problem.start, problem.start_costs),
                _unconstrained(free),
                "–" if np.isnan(problem.best) else f"{problem.best:.4g}",
                problem.best_by,
            ]
        )
    return document.table(heading, *rows)


def _pair(earned: float, costs: Sequence[float] | np.ndarray) -> str:
    return f"{earned:.4g} / " + ", ".join(f"{cost:.3g}" for cost in costs)


def _unconstrained(told: dict[str, Any]) -> str:
    seeds = [seed for seed in told.get("seeds", {}).values() if "failed" not in seed]
    if not seeds:
        return "–"
    best = max(seeds, key=lambda seed: seed["return"]["mean"])
    return _pair(best["return"]["mean"], [cost["mean"] for cost in best["costs"]])


def results_table(problems: list[Problem], out: Path) -> str:
    """By problem and algorithm: the median seed's return, as a share of R* if that makes sense, and its worst cost."""
    present = [name for name in (*ALGORITHMS, *PEERS) if any(runs_of(problem, name, out) for problem in problems)]
    rows = []
    for problem in problems:
        for name in present:
            if runs := runs_of(problem, name, out):
                rows.append([CASES[problem.name].title, (NAMES | PEERS)[name], *_cells(problem, runs)])
    heading = ["problem", "algorithm", "return", "of R*", "normalised", "cost, % of limit (worst)", "within"]
    return document.table(heading, *rows)


def _cells(problem: Problem, runs: list[Outcome]) -> list[str]:
    earned, excess = np.array([run.earned for run in runs]), np.array([run.excess for run in runs])
    middle = float(np.nanmedian(earned)) if np.isfinite(earned).any() else np.nan
    # A share means nothing if the return is negative, or negative at the start and small.
    share = f"{100 * middle / problem.best:.0f} %" if problem.best > 0 else "–"
    return [
        f"{middle:.4g}",
        share,
        f"{np.median([run.score for run in runs]):.2f}",
        f"{100 * (1 + np.median(excess)):.0f} ({100 * (1 + excess.max()):.0f})",
        f"{sum(run.within for run in runs)} of {len(runs)}",
    ]


def picture(problems: list[Problem], out: Path) -> None:
    """Draw a panel for each problem that was run: return above, the worst cost relative to its limit below."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    ran = {name for name in ALGORITHMS for problem in problems if curves_of(problem, name, out)}
    problems = [problem for problem in problems if any(curves_of(problem, name, out) for name in ran)]
    columns = 6
    rows = -(-len(problems) // columns)
    look: dict[Any, Any] = plot.LOOK | {"font.size": 7}
    with matplotlib.rc_context(look):
        figure = Figure(figsize=(2.5 * columns, 2.6 * rows), layout="constrained")
        grid = figure.subfigures(rows, columns, squeeze=False).ravel()
        for panel, problem in zip(grid, problems, strict=False):
            draw_panel(panel, problem, out)
        handles = [
            Line2D([], [], color=plot.COLOURS[i], label=NAMES[name]) for i, name in enumerate(ALGORITHMS) if name in ran
        ]
        handles.append(Line2D([], [], color="#333333", linestyle=(0, (5, 3)), label="limit; R*"))
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
        plot.write(figure, out / PICTURE)


def curves_of(problem: Problem, algorithm: str, out: Path) -> list[dict[str, Any]]:
    """The training curves of a problem and algorithm, one for each seed."""
    told = transfer.read(transfer.path_of(Job("study", problem.name, algorithm, ()), out))
    return [seed["curve"] for seed in told.get("seeds", {}).values() if "curve" in seed]


def draw_panel(panel: Any, problem: Problem, out: Path) -> None:
    """Draw one problem: every seed as a faint line, their median as a thick one."""
    above, below = panel.subplots(2, 1, sharex=True)
    mark = "*" if CASES[problem.name].held_out else ""
    above.set_title(CASES[problem.name].title + mark, loc="left", fontweight="bold", fontsize=7)
    for i, name in enumerate(ALGORITHMS):
        curves = curves_of(problem, name, out)
        for axes, values in ((above, _returns(curves)), (below, [1 + problem.excess(c["costs"]) for c in curves])):
            for curve, own in zip(curves, values, strict=True):
                axes.plot(np.asarray(curve["samples"]) / 1000, own, color=plot.COLOURS[i], linewidth=0.5, alpha=0.35)
            if curves and len({len(own) for own in values}) == 1:
                samples = np.asarray(curves[0]["samples"]) / 1000
                axes.plot(samples, np.median(values, axis=0), color=plot.COLOURS[i], linewidth=1.4)
    for axes, level in ((above, problem.best), (below, 1.0)):
        if np.isfinite(level):
            axes.axhline(level, color="#333333", linestyle=(0, (5, 3)), linewidth=0.8)
    below.set_ylim(0.0, max(2.0, min(below.get_ylim()[1], 6.0)))
    above.set_ylabel("return")
    below.set_ylabel("cost / limit")
    below.set_xlabel("thousand samples")


def _returns(curves: list[dict[str, Any]]) -> list[np.ndarray]:
    return [np.asarray(curve["return"]) for curve in curves]


def write(out: Path) -> None:
    """Write tables and picture: into the document if `out` is the study's own folder; otherwise print and keep them."""
    problems = [problem for name in CASES if (problem := problem_of(name, out)) is not None]
    tables = {
        "problems": problems_table(problems, out),
        "summary": summary(problems, out),
        "results": results_table(problems, out),
        "peers": peers_summary(problems, out),
    }
    if out == RESULTS:
        document.fill(DOCUMENT, tables)
    else:
        print("\n\n".join(tables.values()))
    if problems:
        picture(problems, out)
