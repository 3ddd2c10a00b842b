"""K_adj that sets itself: after which epoch the adjustment of APDO is worth making.

With adjust = dual, λ^OFF is estimated after epochs 1, 2, 4, 8, 16 and 32, and taken as soon as it and the estimate
before lie in each other's intervals, at the latest after epoch 32. With primal-dual an actor is tried after epochs 1, 5
and 17, until one is taken: the first that its own epoch does not show to be beyond the limits, or the last. A trial
takes an epoch, and the first is made only where the interval is narrow. That is at most six, or three, times the work
of one adjustment.
"""

from typing import Protocol, runtime_checkable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from apdo.core import replay
from apdo.off_policy import dual_estimate
from apdo.options import LARGEST
from apdo.problem import Problem

AUTO = -1
"""K_adj that sets itself."""
CHECKS = {"dual": (1, 2, 4, 8, 16, 32), "primal-dual": (1, 5, 17)}
"""After which epochs it is looked for: the data have doubled, or, since a trial takes an epoch of them, trebled."""
NARROW = 0.3
"""Up to which width, as a share of the estimate, an interval is narrow."""


@runtime_checkable
class Config(Protocol):
    """What of APDO's settings the search needs."""

    @property
    def adjust(self) -> str:
        """What is adjusted."""
        ...

    @property
    def off_policy(self) -> dual_estimate.Config:
        """How λ^OFF is estimated."""
        ...


class Search(eqx.Module):
    """What is known of the multipliers while K_adj is looked for."""

    earlier: dual_estimate.Estimate
    """The estimate of the time before."""
    checks: Int[Array, ""]

    @staticmethod
    def start(constraints: int) -> "Search":
        """Before the first estimate: one that none agrees with."""
        never = jnp.full((constraints,), LARGEST)
        earlier = dual_estimate.Estimate(multiplier=jnp.zeros_like(never), low=never, high=-never)
        return Search(earlier=earlier, checks=jnp.asarray(0))


def look(
    config: Config,
    problem: Problem,
    search: Search,
    buffer: replay.Replay,
    found: dual_estimate.Estimate,
    *,
    trial: bool,
) -> tuple[Search, Bool[Array, ""]]:
    """The search after one more estimate, and whether that is worth an adjustment."""
    after = Search(earlier=found, checks=search.checks + 1)
    if trial:
        worth = _narrow(config, problem, buffer, found) | (after.checks > 1)
    else:
        worth = _within(found, search.earlier) & _within(search.earlier, found)
    return after, worth | (after.checks == len(CHECKS[config.adjust]))


def _within(one: dual_estimate.Estimate, other: dual_estimate.Estimate) -> Bool[Array, ""]:
    """Whether one estimate lies in the other's interval."""
    return jnp.all((other.low <= one.multiplier) & (one.multiplier <= other.high))


def _narrow(config: Config, problem: Problem, buffer: replay.Replay, found: dual_estimate.Estimate) -> Bool[Array, ""]:
    """Whether the widest interval is narrow against the largest multiplier, all in units that can be compared."""
    seen = dual_estimate.relative(config.off_policy, problem, buffer, found)
    return jnp.max(seen.high - seen.low) <= NARROW * jnp.max(seen.multiplier)
