"""The path of a learner's multipliers: iterations in blocks, and what is averaged over them.

λ^OFF is the mean of λ over the iterations, or over the last part of them, since the path itself keeps swinging. It is
accumulated block by block, so that single precision loses nothing.
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
"""Iterations whose minibatches are drawn together: one large gather instead of many small ones."""


class Path(eqx.Module):
    """What is known of the multipliers so far, in the problem's units."""

    multiplier: Float[Array, " M"]
    """The mean of λ over the iterations so far that are averaged: λ^OFF."""
    swing: Float[Array, " M"]
    """The variance of λ, without its passing terms, over the same iterations."""
    integral: Float[Array, " M"]
    """And its mean."""
    cost: Float[Array, " M"]
    """What the cost critics say of the actor, averaged over the same iterations."""
    latest_cost: Float[Array, " M"]
    """The same, averaged over the last block only."""
    latest: Float[Array, " M"]
    """λ, without its passing terms, after the last block."""

    @staticmethod
    def start(constraints: int) -> "Path":
        """Before the first iteration."""
        nothing = jnp.zeros(constraints)
        return Path(nothing, nothing, nothing, nothing, nothing, nothing)

    def extended(
        self, sums: Float[Array, "3 M"], latest: Float[Array, " M"], count: int | Array, counted: Array, units: Units
    ) -> "Path":
        """After a block of `count` iterations, of `counted` that are averaged by now.

        `sums` are over the block, in the learner's units: of λ, of λ without its passing terms, of the actor's cost.
        """
        # Before there are any that are averaged, of the newest block.
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
    """A learner's state, as the blocks need it."""

    @property
    def multiplier(self) -> dual.Multiplier:
        """λ, in the learner's units."""
        ...

    @property
    def path(self) -> Path:
        """Where λ has been."""
        ...

    @property
    def iteration(self) -> Int[Array, ""]:
        """How many there have been."""
        ...

    @property
    def key(self) -> PRNGKeyArray:
        """What every block's draws come from, with the iteration's number."""
        ...


S = TypeVar("S", bound=Walker)


def iterations_of(updates: float, samples: int) -> int:
    """The iterations that follow a batch of so many samples, at least one; InvalidInput where they are too many."""
    if updates * samples > LARGEST_WHOLE:
        raise InvalidInput(f"{updates:g} updates for each of {samples} samples are more than can be counted.")
    return max(1, round(updates * samples))


def unaveraged(averaged: float, total: int | None) -> int:
    """How many of the first iterations, in whole blocks, are left out where a share of the last is averaged."""
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
    """The state after so many iterations more.

    `draw` gives what the iterations of a block draw, `rate` the share of all learning rates at the block's beginning,
    and `iterate` the state after one iteration and the actor's cost. Where the iterations are `whole` blocks, the
    program knows how often its inner loop turns: an accelerator need not ask its host after every turn, and learners
    side by side need not choose, in each of their arrays, between a turn that is theirs and one that is not.
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
