"""Summaries of the seeds of an algorithm, and comparisons of two algorithms.

Times are numbers of epochs until something holds. A seed for which it never holds counts as infinity, not as missing.
Times are averaged by the median, which such a seed cannot spoil; all other numbers by the interquartile mean. Every
number has a 95 % bootstrap interval over whole seeds. The axes are S seeds, E epochs and m constraints.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from apdo.errors import InvalidInput
from apdo.report.runs import Run
from apdo.report.statistics import Statistic, bootstrap_interval, interquartile_mean

Values = NDArray[np.float64]

LAST = 10
"""The final return and cost are means over so many epochs at the end of a run."""

# This number replaces infinity in differences. No run has more epochs than its square root.
_NEVER = 1e12
_NEVER_FROM = 1e6


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval. Infinity means never. The interval of a single seed is NaN."""

    value: float
    low: float = math.nan
    high: float = math.nan

    def scaled(self, factor: float) -> "Estimate":
        """The same estimate in another unit."""
        return Estimate(self.value * factor, self.low * factor, self.high * factor)


@dataclasses.dataclass(frozen=True)
class Target:
    """When the task counts as solved: trailing means over `window` epochs reach this return and keep the limits."""

    reward: float = 11.0
    slack: float = 0.05
    """The share of a limit by which a cost may exceed it."""
    window: int = 5


@dataclasses.dataclass(frozen=True)
class OptimalMultiplier:
    """λ*: the multiplier at which the settled cost of a run with a fixed multiplier crosses the limit."""

    estimate: Estimate
    grid: tuple[float, ...]
    """The fixed multipliers, ascending."""
    cost: tuple[Estimate, ...]
    """The settled cost of each multiplier."""
    settled: Values
    """The settled cost of each seed, [S, V]."""
    enclosed: bool
    """Whether the cost crosses the limit within the grid. If not, the estimate is the nearer end of the grid."""


@dataclasses.dataclass(frozen=True)
class Summary:
    """A summary of the seeds of one arm."""

    seeds: int
    epochs: int
    batch: int
    reached: int
    """How many seeds met the target."""
    to_target: Estimate
    """Epochs until the target was met."""
    feasible: int
    """How many seeds came within the limits (trailing mean, with the target's slack)."""
    to_feasible: Estimate
    """Epochs until a seed came within the limits."""
    final_return: Estimate
    final_cost: tuple[Estimate, ...]
    violation: Estimate
    """The sum over training of the costs' excess over their limits, in cost × epochs."""
    multiplier_error: Estimate | None
    """The mean over training of |λ - λ*|; None without a multiplier or without λ*."""
    adjusted: Estimate | None
    """The median over seeds of the multiplier that an adjustment set; None without an adjustment."""
    adjusted_range: tuple[float, float] | None
    """Its smallest and its largest value over seeds."""

    @property
    def samples_to_target(self) -> Estimate:
        """`to_target` in environment samples."""
        return self.to_target.scaled(self.batch)


def join(runs: Sequence[Run]) -> Run:
    """Join runs of the same settings with different seeds. Epochs that not all of them have are left out."""
    if not runs:
        raise InvalidInput("there is no run to join.")
    if len(runs) == 1:
        return runs[0]
    seeds = tuple(seed for run in runs for seed in run.seeds)
    if len(set(seeds)) < len(seeds):
        raise InvalidInput(f"{runs[0].path} and another run of the same settings share a seed, and cannot be joined.")
    epochs = np.asarray(sorted(set.intersection(*(set(run.epochs.tolist()) for run in runs))), dtype=np.int64)
    if not len(epochs):
        raise InvalidInput(f"{runs[0].path} and another run of the same settings have no epoch in common.")
    names = [name for name in runs[0].metrics if all(name in run.metrics for run in runs)]
    metrics = {
        name: np.concatenate([run.metrics[name][:, np.isin(run.epochs, epochs)] for run in runs]) for name in names
    }
    order = np.argsort(seeds)
    return Run(
        path=runs[0].path.parent,
        description=runs[0].description | {"seeds": sorted(seeds), "best": [one for run in runs for one in run.best]},
        metrics={name: values[order] for name, values in metrics.items()},
        seeds=tuple(sorted(seeds)),
        epochs=epochs,
        remarks=tuple(one for run in runs for one in run.remarks),
    )


def take(run: Run, seeds: Sequence[int]) -> Run:
    """The run with only the named seeds."""
    kept = [i for i, seed in enumerate(run.seeds) if seed in seeds]
    chosen = tuple(run.seeds[i] for i in kept)
    metrics = {name: values[kept] for name, values in run.metrics.items()}
    description = run.description | {"seeds": list(chosen)}
    return dataclasses.replace(run, description=description, metrics=metrics, seeds=chosen)


# The numbers of each seed.


def trailing_mean(values: Values, window: int) -> Values:
    """The mean over the last `window` epochs, [S, E, ...] to the same; NaN for the first `window` - 1 epochs."""
    result = np.full(values.shape, np.nan)
    if values.shape[1] >= window:
        windows = np.lib.stride_tricks.sliding_window_view(values, window, axis=1)
        result[:, window - 1 :] = windows.mean(axis=-1)
    return result


def epochs_until(holds: NDArray[np.bool_], epochs: NDArray[np.int64]) -> Values:
    """After how many epochs a condition first held in each seed, [S, E] to [S]; infinity if it never did."""
    first = np.argmax(holds, axis=1)
    return np.where(holds.any(axis=1), epochs[first] + 1.0, np.inf)


def within_limits(run: Run, target: Target) -> NDArray[np.bool_]:
    """Whether the trailing mean of every cost is within its limit plus the target's slack, [S, E]."""
    limits = np.asarray(run.limits)
    allowed = limits + target.slack * np.abs(limits)
    return np.all(trailing_mean(run.metrics["cost"], target.window) <= allowed, axis=-1)


def to_target(run: Run, target: Target) -> Values:
    """The epochs until each seed met the target, [S]."""
    good = trailing_mean(run.metrics["return"], target.window) >= target.reward
    return epochs_until(good & within_limits(run, target), run.epochs)


def to_feasible(run: Run, target: Target) -> Values:
    """The epochs until each seed first came within the limits, [S]."""
    return epochs_until(within_limits(run, target), run.epochs)


def violation(run: Run) -> Values:
    """The sum over epochs and constraints of the costs' excess over their limits, in cost × epochs, [S]."""
    return np.maximum(run.metrics["cost"] - np.asarray(run.limits), 0.0).sum(axis=(1, 2))


def multiplier_error(run: Run, optimal: float) -> Values | None:
    """The mean over training of |λ - λ*|, [S]; None for a run without multipliers or with several constraints."""
    if "multiplier" not in run.metrics or len(run.limits) != 1:
        return None
    return np.nanmean(np.abs(run.metrics["multiplier"][..., 0] - optimal), axis=1)


def adjusted_multiplier(run: Run) -> Values | None:
    """The multiplier that the adjustment set, [S]; None without an adjustment, or with several constraints."""
    epoch = run.adjustment_epoch
    if "adjusted_multiplier" not in run.metrics or epoch not in run.epochs or len(run.limits) != 1:
        return None
    return run.metrics["adjusted_multiplier"][:, run.epochs == epoch, 0][:, 0]


# Their middles.


def middle(values: Values) -> Estimate:
    """The interquartile mean over the seeds."""
    return _estimate(interquartile_mean, values)


def median(values: Values) -> Estimate:
    """The median over the seeds. Between a finite and an infinite value it is infinite."""
    finite = np.where(np.isposinf(values), _NEVER, values)
    found = _estimate(partial(np.median, axis=0), finite)
    return Estimate(*(math.inf if number > _NEVER_FROM else number for number in dataclasses.astuple(found)))


def ratio(slower: Values, faster: Values) -> Estimate:
    """The ratio of two medians of times over independent seeds, with its own interval.

    If both medians are infinite, the ratio is undefined: its value is NaN. Resamples in which both are infinite count
    as 0 for the lower end of the interval and as infinity for the upper end.
    """
    value = _quotient(median(slower).value, median(faster).value)
    if min(len(slower), len(faster)) < 2:
        return Estimate(value)
    above, below = (np.where(np.isposinf(times), _NEVER, times) for times in (slower, faster))

    def resampled(undefined: float, drawn: Values) -> Values:
        others = np.random.default_rng(1).integers(len(below), size=(len(below), *drawn.shape[1:]))
        top, bottom = np.median(above[drawn.astype(int)], axis=0), np.median(below[others], axis=0)
        both = (top > _NEVER_FROM) & (bottom > _NEVER_FROM)
        return np.where(both, undefined, top / bottom)

    index = np.arange(len(above), dtype=np.float64)
    low = float(bootstrap_interval(partial(resampled, 0.0), index)[0])
    high = float(bootstrap_interval(partial(resampled, _NEVER), index)[1])
    return Estimate(
        value, *(0.0 if end < 1 / _NEVER_FROM else math.inf if end > _NEVER_FROM else end for end in (low, high))
    )


def summarise(run: Run, target: Target, optimal: OptimalMultiplier | None = None) -> Summary:
    """Summarise the seeds of a run."""
    reached, feasible = to_target(run, target), to_feasible(run, target)
    costs = run.metrics["cost"][:, -LAST:].mean(axis=1)
    error = None if optimal is None else multiplier_error(run, optimal.estimate.value)
    adjusted = adjusted_multiplier(run)
    return Summary(
        seeds=len(run.seeds),
        epochs=len(run.epochs),
        batch=run.batch,
        reached=int(np.isfinite(reached).sum()),
        to_target=median(reached),
        feasible=int(np.isfinite(feasible).sum()),
        to_feasible=median(feasible),
        final_return=middle(run.metrics["return"][:, -LAST:].mean(axis=1)),
        final_cost=tuple(middle(costs[:, i]) for i in range(costs.shape[1])),
        violation=middle(violation(run)),
        multiplier_error=None if error is None else middle(error),
        adjusted=None if adjusted is None else median(adjusted),
        adjusted_range=None if adjusted is None else (float(adjusted.min()), float(adjusted.max())),
    )


# λ*.


def crossing(grid: Values, cost: Values, limit: float) -> float:
    """Where a cost that decreases with the multiplier crosses the limit, linearly between two multipliers.

    The costs are first replaced by the nearest decreasing sequence (isotonic regression), so that noise causes no
    second crossing. If they do not cross the limit, the result is the nearer end of the grid.
    """
    falling = isotonic_regression(cost, increasing=False).x
    within = np.flatnonzero(falling <= limit)
    if not len(within):
        return float(grid[-1])
    i = int(within[0])
    if i == 0:
        return float(grid[0])
    share = (falling[i - 1] - limit) / (falling[i - 1] - falling[i])
    return float(grid[i - 1] + share * (grid[i] - grid[i - 1]))


def optimal_multiplier(runs: Mapping[float, Run], last: int) -> OptimalMultiplier:
    """Estimate λ* from runs with fixed multipliers, by the mean cost over seeds and the `last` epochs.

    The interval is a bootstrap interval over seeds. For a single seed, it is the two neighbours on the grid.
    """
    ordered = sorted(runs)
    common = sorted(set.intersection(*(set(run.seeds) for run in runs.values())))
    if not common:
        raise InvalidInput("the runs with fixed multipliers have no seed in common.")
    grid, limit = np.asarray(ordered, dtype=np.float64), runs[ordered[0]].limits[0]
    settled = np.stack(
        [take(runs[value], common).metrics["cost"][:, -last:, 0].mean(axis=1) for value in ordered], axis=1
    )

    def crossings(drawn: Values) -> Values:
        means = settled[drawn.astype(int)[..., 0]].mean(axis=0)
        return np.asarray([[crossing(grid, mean, limit)] for mean in means])

    mean = settled.mean(axis=0)
    value = crossing(grid, mean, limit)
    if len(common) > 1:
        low, high = (float(end) for end in bootstrap_interval(crossings, np.arange(len(common), dtype=np.float64)))
    else:
        low, high = float(grid[grid <= value][-1]), float(grid[grid >= value][0])
    return OptimalMultiplier(
        estimate=Estimate(value, low, high),
        grid=tuple(ordered),
        cost=tuple(_estimate(partial(np.mean, axis=0), settled[:, i]) for i in range(len(grid))),
        settled=settled,
        enclosed=bool(grid[0] < value < grid[-1]),
    )


def _estimate(statistic: Statistic, values: Values) -> Estimate:
    low, high = bootstrap_interval(statistic, values)
    return Estimate(float(statistic(values)), float(low), float(high))


def _quotient(top: float, bottom: float) -> float:
    if math.isinf(top) and math.isinf(bottom):
        return math.nan
    return top / bottom
