"""Automatic K_adj: the search for the epoch after which APDO's adjustment is made.

With adjust = dual, λ^OFF is estimated after epochs 1, 2, 4, 8, 16 and 32. It is accepted as soon as this and the
previous estimate lie in each other's intervals, at the latest after epoch 32. With primal-dual an actor is tried after
epochs 1, 5 and 17, until one is adopted. The last may exceed the limits, earlier ones may not. A trial takes an epoch,
and the first is made only if the interval is narrow. The search takes at most six (dual) or three (primal-dual) times
the work of one adjustment.
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
"""The value of `k_adj` for an automatic search."""
CHECKS = {"dual": (1, 2, 4, 8, 16, 32), "primal-dual": (1, 5, 17)}
"""The epochs of the checks. Between them the data double or, since a trial costs an epoch, treble."""
NARROW = 0.3
"""The largest width of a narrow interval, as a share of the estimate."""


@runtime_checkable
class Config(Protocol):
    """The part of APDO's settings that the search needs."""

    @property
    def adjust(self) -> str:
        """What is adjusted."""
        ...

    @property
    def off_policy(self) -> dual_estimate.Config:
        """How λ^OFF is estimated."""
        ...


class Search(eqx.Module):
    """The state of the search for K_adj."""

    earlier: dual_estimate.Estimate
    """The estimate of the previous check."""
    checks: Int[Array, ""]

    @staticmethod
    def start(constraints: int) -> "Search":
        """The state before the first check, with an earlier estimate that no other agrees with."""
        never = jnp.full((constraints,), LARGEST)
        earlier = dual_estimate.Estimate(multiplier=jnp.zeros_like(never), low=never, high=-never)
        return Search(earlier=earlier, checks=jnp.asarray(0))


def check_estimate(
    config: Config,
    problem: Problem,
    search: Search,
    buffer: replay.Replay,
    found: dual_estimate.Estimate,
    *,
    trial: bool,
) -> tuple[Search, Bool[Array, ""]]:
    """The search after one more estimate, and whether the adjustment should be made."""
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
    """Whether the widest interval is narrow compared with the largest multiplier, all in comparable units."""
    seen = dual_estimate.relative(config.off_policy, problem, buffer, found)
    return jnp.max(seen.high - seen.low) <= NARROW * jnp.max(seen.multiplier)
