"""An estimate of the multipliers with the checks that support or refute it: a verdict, in words and as plain values.

The data support an answer unless one of these checks fails. Each failure is reported in a sentence of its own:

    episodes       there are too few
    spread         it is wider than the estimate itself, for a price that matters
    calibration    critics of the logged policy miss its Monte-Carlo cost by more than the tolerance and two standard
                   errors, or most of that cost lies beyond where the episodes were cut off
    reach          no logged policy and no learned actor keeps the limit
    settling       the actors' cost is not at the limit though the price is not zero, or the price still swings
    coverage       most of what the actors do was hardly ever logged
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apdo.datasets import Dataset

Floats = NDArray[np.float64]

NEGLIGIBLE = 0.01
"""A price is negligible if the limit, or the logged cost, is worth no more than this share of the return."""
UNCOVERED = 0.5
"""No answer is supported if this share of states, or of probability, lies outside the logged data."""
SWINGING = 0.25
"""The most by which a price may still swing, as a share of it."""
MOSTLY = 0.5
"""If this share of a cost lies beyond the end of the episodes, the cost cannot be checked."""
BLOCKS = 10
"""The data are cut into this many parts, in order of their episodes; each is taken for a different policy."""


@dataclasses.dataclass(frozen=True, eq=False)
class Diagnostics:
    """Measurements of the data and of the learners, in the data's own units. K signals: the return, then the costs."""

    samples: int
    episodes: int
    logged: Floats
    """[K]: the Monte-Carlo mean of the logged episodes. If truncated, with what a critic expects beyond."""
    logged_error: Floats
    """[K]: its standard error."""
    blocks: Floats
    """[P, M]: the mean cost of each part of the data, in order of the episodes."""
    calibrated: Floats
    """[K]: the same mean according to critics of the logged policy, at the same starts."""
    calibration_error: Floats
    """[K]: the standard error of the difference."""
    tail: Floats
    """[K]: the share of `logged` that lies beyond the end of the episodes."""
    actor_cost: Floats
    """[E, M]: each member's cost by its own critics, over the last half of its iterations."""
    disagreement: Floats
    """[M]: the standard deviation of the members' critics on the cost of the same actor's first action. After the first
    action each critic assumes its own actor, so this measures both the critics' errors and the actors' differences."""
    swing: Floats
    """[M]: the standard deviation of a member's multiplier over the last half of its path, for the median member."""
    distance: float | None
    """For action vectors: the distance from the logged actions, in their standard deviations. None for choices."""
    outside: float
    """The share of states in which an actor's vector lies outside the logged 1 to 99 % range. For choices: the
    probability that the actors give to choices that were rarely logged in similar states."""

    @property
    def bias(self) -> Floats:
        """[K]: by how much the critics of the logged policy exceed its Monte-Carlo mean."""
        return self.calibrated - self.logged


@dataclasses.dataclass(frozen=True, eq=False)
class MultiplierEstimate:
    """The optimal multiplier λ* of each constraint, as far as logged data can tell."""

    multiplier: Floats
    """[M]: λ^OFF, what one more unit of limit is worth in return."""
    low: Floats
    high: Floats
    """[M]: the ends of the learners' spread; `high` is infinite if there is only one learner."""
    members: Floats
    """[E, M]: each member's estimate."""
    iterations: NDArray[np.int64]
    path: Floats
    """[P, E, M]: the members' multipliers after the numbers of `iterations` [P]."""
    limits: tuple[float, ...]
    cost_names: tuple[str, ...]
    diagnostics: Diagnostics
    unsupported: tuple[str, ...]
    """The reasons why the data cannot support this answer, a sentence each; empty if they do."""

    @property
    def supported(self) -> bool:
        """Whether no check failed."""
        return not self.unsupported

    def describe(self) -> list[str]:
        """The estimate, its diagnostics and the verdict, line by line."""
        about = self.diagnostics
        head = f"{about.samples:,} transitions of {about.episodes:,} episodes, {len(self.members)} learners"
        return [head, "", *_prices(self), *_checks(self), "", *_verdict(self)]

    def plain(self) -> dict[str, Any]:
        """Everything as values that JSON can hold; infinity becomes null."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "diagnostics"}
        about = {f.name: getattr(self.diagnostics, f.name) for f in dataclasses.fields(self.diagnostics)}
        return _plain({"supported": self.supported} | fields | {"diagnostics": about})


def reasons(
    data: Dataset, multiplier: Floats, low: Floats, high: Floats, about: Diagnostics, tolerance: float, fewest: int
) -> Iterator[str]:
    """The reasons why the data cannot support an answer, a sentence each."""
    if about.episodes < fewest:
        yield f"there are only {about.episodes} episodes, fewer than the {fewest} that an answer needs"
    for i, name in enumerate(data.cost_names):
        limit, price = data.limits[i], float(multiplier[i])
        if not np.any(data.cost[:, i]):
            yield f"no logged step has any {name}, so that the data know nothing of its price"
            continue
        small = negligible(about, limit, i)
        if high[i] > small and high[i] - low[i] > price:
            if math.isinf(high[i]):
                yield f"the price of {name} comes from a single learner, which has no spread; ask for more members"
            else:
                yield (
                    f"the learners' spread of {name}'s price, {low[i]:.3g} to {high[i]:.3g}, is wider than the "
                    f"estimate {price:.3g} itself"
                )
        yield from _calibration(name, about, limit, i, tolerance)
        signed = limit < 0.0 or bool(np.any(data.cost[:, i] < 0.0))
        slack = tolerance * _size(about, limit, i, signed=signed)
        yield from _reach(name, about, limit, i, slack, binding=price > small)
        if price > small and about.swing[i] > SWINGING * price:
            yield (
                f"the price of {name} still swings, by ± {about.swing[i]:.3g} around {price:.3g}, and the mean of a "
                "swing need not be its centre; try a smaller learner.dual_rate or a larger learner.actor_rate"
            )
    if about.outside > UNCOVERED:
        what = "actions outside of what was logged" if about.distance is not None else "choices hardly ever logged"
        yield f"the learned actors want {what} in {about.outside:.0%} of the cases, of which the data tell nothing"


def negligible(about: Diagnostics, limit: float, i: int) -> float:
    """The price below which constraint i is almost free."""
    unit = max(abs(limit), abs(float(about.logged[1 + i])))
    return NEGLIGIBLE * abs(float(about.logged[0])) / unit if unit else 0.0


def _calibration(name: str, about: Diagnostics, limit: float, i: int, tolerance: float) -> Iterator[str]:
    logged, bias, error = (float(part[1 + i]) for part in (about.logged, about.bias, about.calibration_error))
    if about.tail[1 + i] > MOSTLY:
        yield (
            f"the episodes are cut off so early that {about.tail[1 + i]:.0%} of their {name} lies beyond their end, "
            "where nothing was logged"
        )
    elif not abs(bias) <= tolerance * max(abs(logged), abs(limit)) + 2.0 * error:
        yield (
            f"critics trained on this data misjudge the logged {name}: they say {logged + bias:.3g}, and the episodes "
            f"{logged:.3g} (± {error:.2g}); more iterations, or observations that tell more, may help"
        )


def _size(about: Diagnostics, limit: float, i: int, *, signed: bool) -> float:
    """The size of a cost, against which differences between costs are large or small.

    For a cost that is never negative, it is the larger of the limit and the logged cost: critics that may misjudge the
    logged cost by a share of it know no other cost better. For a cost that can be negative, this would be misleading:
    around a limit of 0, a share of it would be almost nothing. So it is then two standard deviations of an episode, as
    in the units of the multipliers (`core.relative_units`).
    """
    if signed:
        return 2.0 * float(about.logged_error[1 + i]) * math.sqrt(about.episodes)
    return max(abs(limit), abs(float(about.logged[1 + i])))


def _reach(name: str, about: Diagnostics, limit: float, i: int, slack: float, *, binding: bool) -> Iterator[str]:
    actors, blocks = about.actor_cost[:, i], about.blocks[:, i]
    middle = float(np.median(actors))
    if min(actors.min(), blocks.min()) > limit + slack:
        yield (
            f"no policy in the data and no learned actor keeps the limit {limit:g} of {name}: the least cost is "
            f"{min(actors.min(), blocks.min()):.3g}; it may be out of reach, or the iterations too few"
        )
    elif middle > limit + slack or (binding and middle < limit - slack):
        yield (
            f"the price of {name} has not settled: the learned actors cost {middle:.3g} where the limit is {limit:g}; "
            "try more iterations"
        )


# Words.


def _prices(found: MultiplierEstimate) -> Iterator[str]:
    for i, name in enumerate(found.cost_names):
        price, low, high = (float(part[i]) for part in (found.multiplier, found.low, found.high))
        ends = "a single learner" if math.isinf(high) else f"learners' spread {low:.3g} to {high:.3g}"
        yield f"{name}: limit {found.limits[i]:g}, λ = {price:.4g} ({ends})"
        if price <= negligible(found.diagnostics, found.limits[i], i):
            yield "  one more unit of limit is worth next to nothing"
        else:
            yield f"  one more unit of limit is worth about {price:.3g} in return, at the margin"
        own = ", ".join(f"{value:.3g}" for value in found.members[:12, i])
        yield f"  the learners' own: {own}{', ...' if len(found.members) > 12 else ''}"
        yield ""


def _checks(found: MultiplierEstimate) -> Iterator[str]:
    about = found.diagnostics
    yield "checks"
    for k, name in enumerate(("return", *found.cost_names)):
        yield (
            f"  logged {name}: {about.logged[k]:.4g} ± {about.logged_error[k]:.2g} by its episodes, "
            f"{about.calibrated[k]:.4g} by critics trained on them (off by {about.bias[k]:+.2g} ± "
            f"{about.calibration_error[k]:.2g})"
        )
        if about.tail[k] > 0.01:
            yield f"    of it {about.tail[k]:.0%} lies beyond where episodes were cut off, and is a critic's guess"
    for i, name in enumerate(found.cost_names):
        yield (
            f"  {name} of the learned actors: {np.median(about.actor_cost[:, i]):.4g} by their critics, which "
            f"disagree by {about.disagreement[i]:.2g}; parts of the data: {about.blocks[:, i].min():.3g} to "
            f"{about.blocks[:, i].max():.3g}"
        )
        yield f"  the price of {name} swings by ± {about.swing[i]:.2g} along the last half of the learners' paths"
    if about.distance is None:
        yield f"  coverage: {about.outside:.1%} of the actors' probability goes to choices rarely logged near"
    else:
        yield (
            f"  coverage: the actors are {about.distance:.2g} standard deviations from the logged actions, and leave "
            f"their 1 to 99 % range in {about.outside:.1%} of states"
        )


def _verdict(found: MultiplierEstimate) -> Iterator[str]:
    if found.supported:
        yield "supported: no check speaks against this answer"
        return
    yield "unsupported: the data cannot support this answer"
    for reason in found.unsupported:
        yield f"  {reason}"


def _plain(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
