"""The path of a learner's multipliers: iterations in blocks, and the averages over them.

λ^OFF is the mean of λ over the iterations, or over the last part of them, because λ itself keeps oscillating. It is
accumulated block by block, so that single precision suffices.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import random
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from apdo.core import dual
from apdo.errors import InvalidInput
from apdo.off_policy.units import Units
from apdo.options import LARGEST_WHOLE

BLOCK = 100
"""The number of iterations whose minibatches are drawn together: one large gather instead of many small ones."""


class Path(eqx.Module):
    """Averages of the multipliers and costs so far, in the problem's units."""

    multiplier: Float[Array, " M"]
    """λ^OFF: the mean of λ over the averaged iterations so far."""
    swing: Float[Array, " M"]
    """The variance of λ, without PID's proportional and derivative terms, over the same iterations."""
    integral: Float[Array, " M"]
    """The mean of λ, without these terms, over the same iterations."""
    cost: Float[Array, " M"]
    """The actor's cost by the critics, averaged over the same iterations."""
    latest_cost: Float[Array, " M"]
    """The actor's cost by the critics, averaged over the last block only."""
    latest: Float[Array, " M"]
    """λ, without these terms, after the last block."""

    @staticmethod
    def start(constraints: int) -> "Path":
        """The path before the first iteration."""
        nothing = jnp.zeros(constraints)
        return Path(nothing, nothing, nothing, nothing, nothing, nothing)

    def extended(
        self, sums: Float[Array, "3 M"], latest: Float[Array, " M"], count: int | Array, counted: Array, units: Units
    ) -> "Path":
        """The path after a block of `count` iterations, when `counted` iterations are averaged so far.

        `sums` are sums over the block, in the learner's units: of λ, of PID's integral, and of the actor's cost.
        """
        # While no iteration is averaged yet, the means are those of the newest block.
        share = count / jnp.maximum(counted, count)
        value, integral, cost = sums / count * jnp.stack([units.price, units.price, units.total])
        ahead = integral - self.integral
        swing = (1.0 - share) * (self.swing + share * jnp.square(ahead))
        means = (self.multiplier, self.integral, self.cost)
        multiplier, mean, seen = (
            old + share * (new - old) for old, new in zip(means, (value, integral, cost), strict=True)
        )
        return Path(multiplier, swing, mean, seen, cost, latest * units.price)


@runtime_checkable
class Walker(Protocol):
    """The part of a learner's state that the blocks need."""

    @property
    def multiplier(self) -> dual.Multiplier:
        """λ, in the learner's units."""
        ...

    @property
    def path(self) -> Path:
        """The path of λ so far."""
        ...

    @property
    def iteration(self) -> Int[Array, ""]:
        """The number of iterations so far."""
        ...

    @property
    def key(self) -> PRNGKeyArray:
        """The key of every block's draws, together with the number of the iteration."""
        ...


S = TypeVar("S", bound=Walker)


def iterations_of(updates: float, samples: int) -> int:
    """The iterations after a batch of this size, at least one; InvalidInput if there are too many."""
    if updates * samples > LARGEST_WHOLE:
        raise InvalidInput(f"{updates:g} updates for each of {samples} samples are more than can be counted.")
    return max(1, round(updates * samples))


def unaveraged(averaged: float, total: int | None) -> int:
    """The number of first iterations, in whole blocks, that are left out if the share `averaged` is averaged."""
    return 0 if total is None else int((1.0 - averaged) * total) // BLOCK * BLOCK


def walk(
    state: S,
    iterations: Int[Array, ""],
    units: Units,
    skipped: int,
    draw: Callable[[PRNGKeyArray], PyTree],
    rate: Callable[[Int[Array, ""]], float | Array],
    iterate: Callable[[S, PyTree, float | Array], tuple[S, Float[Array, " M"]]],
    whole: bool = False,
) -> S:
    """The state after `iterations` further iterations.

    `draw` gives the random draws of a block, `rate` the factor of all learning rates at the block's beginning, and
    `iterate` the state after one iteration and the actor's cost. If the iterations are `whole` blocks, the program
    knows the number of turns of its inner loop. An accelerator then does not ask its host after every turn, and
    vmapped learners need not mask turns that are not theirs.
    """
    end = state.iteration + iterations

    def block(state: S) -> S:
        draws = draw(random.fold_in(state.key, state.iteration))
        now_rate = rate(state.iteration)

        def one(i: Int[Array, ""], carry: tuple[S, Array]) -> tuple[S, Array]:
            state, sums = carry
            now = jax.tree.map(lambda leaf: leaf[i], draws)
            state, cost = iterate(state, now, now_rate)
            return state, sums + jnp.stack([state.multiplier.value, state.multiplier.integral, cost])

        count = BLOCK if whole else jnp.minimum(BLOCK, end - state.iteration)
        nothing = jnp.zeros((3, *state.path.cost.shape))
        after, sums = jax.lax.fori_loop(0, count, one, (state, nothing))
        counted = after.iteration - skipped
        path = state.path.extended(sums, after.multiplier.integral, count, counted, units)
        return eqx.tree_at(lambda s: s.path, after, path)

    return jax.lax.while_loop(lambda state: state.iteration < end, block, state)
