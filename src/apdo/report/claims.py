"""The paper's claims about point-gather, compared with what was measured.

A verdict follows from the measured interval alone. The claim holds if the interval contains the paper's number, and
does not hold otherwise. If there are too few seeds to decide, the verdict says so.
"""

import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from apdo.report import comparison
from apdo.report.comparison import Estimate, OptimalMultiplier, Target
from apdo.report.runs import Run

HOLDS, DIFFERS, OPEN = "holds", "differs", "open"


@dataclasses.dataclass(frozen=True)
class Claim:
    """One claim of the paper."""

    paper: str
    measured: str
    verdict: str
    standing: str
    """`HOLDS`, `DIFFERS` or `OPEN`."""


def claims(
    runs: Mapping[str, Run], target: Target, optimal: OptimalMultiplier | None, steps: Mapping[str, Mapping[float, str]]
) -> list[Claim]:
    """The claims that the available arms can judge.

    `runs` has the arms by their names in `apdo reproduce`. `steps` has, for each algorithm, the arm of each dual step.
    """
    apdo, pdo, cpo = (runs.get(name) for name in ("apdo-k5", "pdo-0.1", "cpo"))
    found: list[Claim] = []
    if apdo:
        found.append(_epochs("APDO reaches a return of 11 within the limit in 45 epochs.", apdo, target, 45))
    if cpo:
        found.append(_epochs("CPO needs 90 epochs for that.", cpo, target, 90))
    if apdo and cpo:
        found.append(_speed_up(apdo, cpo, target))
    if pdo:
        found.append(_misses_limit(pdo, target))
    if apdo and optimal:
        found.append(_jump(apdo, optimal))
    if optimal:
        found += _bias(runs, optimal)
    if apdo and "apdo-k10" in runs:
        found.append(_late(apdo, runs["apdo-k10"], target))
    for algorithm, arms in steps.items():
        if all(name in runs for name in arms.values()):
            found.append(_steps(algorithm, {step: runs[name] for step, name in arms.items()}, target))
    return found


def show(estimate: Estimate, unit: str = "") -> str:
    """An estimate as text: `47 [43, 52]`, with `never` for infinity."""
    text = number(estimate.value) + unit
    if math.isnan(estimate.low) or math.isnan(estimate.high) or math.isinf(estimate.low):
        return text
    return f"{text} [{number(estimate.low)}, {number(estimate.high)}]"


def number(value: float) -> str:
    """A number with three digits; `never` for infinity."""
    if math.isinf(value):
        return "never"
    if math.isnan(value):
        return "unknown"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def _epochs(paper: str, run: Run, target: Target, said: float) -> Claim:
    times = comparison.to_target(run, target)
    found, reached = comparison.median(times), int(np.isfinite(times).sum())
    measured = f"{_after(found)}; {reached} of {len(times)} seeds got there in {len(run.epochs)} epochs"
    if math.isinf(found.value):
        return Claim(paper, measured, "at least half of the seeds never get there", DIFFERS)
    return Claim(paper, measured, *_against(found, said, "sooner than the paper", "later than the paper"))


def _speed_up(apdo: Run, cpo: Run, target: Target) -> Claim:
    found = comparison.ratio(comparison.to_target(cpo, target), comparison.to_target(apdo, target))
    verdict, standing = _against(found, 2.0, "less than 2×", "more than 2×")
    if found.low > 1.0:
        verdict += "; APDO is faster"
    elif found.high < 1.0:
        verdict += "; CPO is faster"
    elif not math.isnan(found.low) and not math.isnan(found.value):
        verdict += "; which of them is faster cannot be told"
    return Claim(
        "So APDO is 2× as sample-efficient as CPO.", f"CPO's epochs / APDO's: {_times(found)}", verdict, standing
    )


def _misses_limit(pdo: Run, target: Target) -> Claim:
    summary = comparison.summarise(pdo, target)
    measured = (
        f"{summary.feasible} of {summary.seeds} seeds come within the limit in {summary.epochs} epochs; "
        f"final cost {show(summary.final_cost[0])}, limit {pdo.limits[0]:g}"
    )
    kept = summary.feasible == 0
    return Claim(
        "PDO (step 0.1) fails to enforce the limit during the first 150 epochs.",
        measured,
        "holds" if kept else "some seeds keep it",
        HOLDS if kept else DIFFERS,
    )


def _jump(apdo: Run, optimal: OptimalMultiplier) -> Claim:
    paper = "APDO's multiplier jumps after K_adj = 5 to a nearly optimal value."
    after = comparison.adjusted_multiplier(apdo)
    if after is None:
        return Claim(paper, "the run has no adjustment", "cannot be told", OPEN)
    before = apdo.metrics["multiplier"][:, apdo.epochs == apdo.adjustment_epoch, 0][:, 0]
    star = optimal.estimate
    nearer = int((np.abs(after - star.value) < np.abs(before - star.value)).sum())
    found = comparison.median(after)
    measured = (
        f"from {number(float(np.median(before)))} to {show(found)} (seeds {number(after.min())} to "
        f"{number(after.max())}); λ* is {show(star)}; {nearer} of {len(after)} seeds come nearer to it"
    )
    close = int((np.abs(after - star.value) <= 0.2 * star.value).sum())
    if close == len(after):
        return Claim(paper, measured, "holds: every seed lands within 20 % of λ*", HOLDS)
    verdict = f"towards λ*, but {close} of {len(after)} seeds land within 20 % of it" if nearer else "away from λ*"
    return Claim(paper, measured, verdict, DIFFERS)


def _bias(runs: Mapping[str, Run], optimal: OptimalMultiplier) -> list[Claim]:
    paper = "A small K_adj gives a biased and inaccurate multiplier, a large one a more accurate one."
    by_epoch = {k: comparison.adjusted_multiplier(runs[f"apdo-k{k}"]) for k in (1, 5, 10) if f"apdo-k{k}" in runs}
    known = {k: values for k, values in by_epoch.items() if values is not None}
    if not {1, 10} <= set(known):
        return []
    star = optimal.estimate.value
    errors = {k: comparison.median(np.abs(values - star)) for k, values in known.items()}
    measured = "; ".join(
        f"K_adj {k}: {show(comparison.median(values))}, off by {show(errors[k])}" for k, values in known.items()
    )
    found = comparison.ratio(np.abs(known[1] - star), np.abs(known[10] - star))
    measured += f"; error at 1 / error at 10: {_times(found)}"
    return [Claim(paper, measured, *_greater(found, "holds", "the small one is the more accurate"))]


def _late(apdo: Run, late: Run, target: Target) -> Claim:
    found = comparison.ratio(comparison.to_target(late, target), comparison.to_target(apdo, target))
    return Claim(
        "A large K_adj (10) delays the adjustment.",
        f"epochs to the target with 10 / with 5: {_times(found)}",
        *_greater(found, "holds: later", "not later"),
    )


def _steps(algorithm: str, runs: Mapping[float, Run], target: Target) -> Claim:
    said = {
        "pdo": "For PDO, 0.1 is the best of the steps 0.01, 0.05, 0.1, 0.5; larger ones over-correct.",
        "apdo": "For APDO, selecting the step is much easier: a relatively small one will do.",
    }
    summaries = {step: comparison.summarise(run, target) for step, run in runs.items()}
    measured = "; ".join(
        f"{step:g}: {_after(summary.to_target)} ({summary.reached} of {summary.seeds} seeds), "
        f"final {number(summary.final_return.value)} at cost {number(summary.final_cost[0].value)}"
        for step, summary in summaries.items()
    )
    best = min(summaries, key=lambda step: (summaries[step].to_target.value, -summaries[step].reached))
    reaching = [step for step, summary in summaries.items() if math.isfinite(summary.to_target.value)]
    if not reaching:
        verdict, standing = "no step takes half of the seeds to the target", OPEN
    elif algorithm == "pdo":
        verdict, standing = f"{best:g} gets there first", HOLDS if best == 0.1 else DIFFERS
    else:
        verdict = f"{len(reaching)} of {len(summaries)} steps take half of the seeds there"
        standing = HOLDS if len(reaching) == len(summaries) else DIFFERS
    return Claim(said[algorithm], measured, verdict, standing)


def _after(found: Estimate) -> str:
    return show(found) + (" epochs" if math.isfinite(found.value) else "")


def _times(found: Estimate) -> str:
    """A ratio as text. An infinite ratio is not called `never`."""
    if math.isnan(found.value):
        return "unknown, as too few seeds get there"
    if math.isnan(found.low):
        return f"{number(found.value)}×"
    high = "∞" if math.isinf(found.high) else number(found.high)
    value = "∞" if math.isinf(found.value) else number(found.value)
    return f"{value}× [{number(found.low)}, {high}]"


def _against(found: Estimate, said: float, below: str, above: str) -> tuple[str, str]:
    if math.isnan(found.low) or math.isnan(found.high):
        return "one seed: no verdict", OPEN
    if math.isnan(found.value):
        return "cannot be told", OPEN
    if found.high < said:
        return below, DIFFERS
    if found.low > said:
        return above, DIFFERS
    return "agrees: the interval holds the paper's number", HOLDS


def _greater(found: Estimate, yes: str, no: str) -> tuple[str, str]:
    if math.isnan(found.low) or found.low <= 1.0 <= found.high:
        return "cannot be told from these seeds", OPEN
    return (yes, HOLDS) if found.low > 1.0 else (no, DIFFERS)
