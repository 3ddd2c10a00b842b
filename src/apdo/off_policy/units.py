"""The problem as a learner of single transitions sees it, and the units that it counts in."""

import dataclasses
from typing import Protocol, runtime_checkable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from apdo import objective
from apdo.core import replay
from apdo.core.data import Transition
from apdo.errors import InvalidInput
from apdo.problem import Problem


class Units(eqx.Module):
    """What a learner's numbers are in the problem's own: a reward of 1, costs of 1, and a price of 1."""

    reward: Float[Array, ""]
    cost: Float[Array, " M"]
    limit: Float[Array, " M"]
    """d, in the learner's units."""
    possible: Float[Array, "2 M"]
    """The least and the most that a cost can add up to from any step on, by what single steps have cost so far."""
    share: float = eqx.field(static=True)
    """What a cost of 1, as the limits mean it, has become in the learner's problem (`objective.total_share`)."""

    @property
    def size(self) -> Float[Array, " K"]:
        """A reward of 1, and costs of 1."""
        return jnp.concatenate([self.reward[None], self.cost])

    @property
    def price(self) -> Float[Array, " M"]:
        """A multiplier of 1."""
        return self.reward / self.cost

    @property
    def total(self) -> Float[Array, " M"]:
        """A constrained cost of 1."""
        return self.cost / self.share

    @property
    def sums(self) -> Float[Array, " K"]:
        """A value of 1: of the return, then of each cost, as the limits mean them."""
        return self.size / self.share

    def seen(self, batch: Transition) -> Transition:
        """The transitions with rewards and costs in the learner's units."""
        cost = batch.cost / jnp.broadcast_to(self.cost, batch.cost.shape)
        return dataclasses.replace(batch, reward=batch.reward / self.reward, cost=cost)


@runtime_checkable
class Counting(Protocol):
    """Settings that say what is counted in."""

    @property
    def units(self) -> str:
        """`own`: the problem's units; `data`: the data's spread; `powers`: the nearest powers of two to that."""
        ...


def view(config: Counting, problem: Problem, buffer: replay.Replay) -> tuple[Problem, Units]:
    """The problem as single transitions can tell it, and the units that a learner sees it in.

    Those of the data are, for each signal, σ √T: the deviation that a return would have if the signals of its T steps
    were independent (of the effective T). A multiplier's natural size is the ratio of two of them. Rounded to powers of
    two they seldom change while a buffer grows, and changing them rounds nothing.
    """
    share = objective.total_share(problem)
    problem = objective.stationary(problem)
    size = jnp.ones(1 + problem.constraints)
    if config.units != "own":
        steps = [objective.effective_steps(gamma, problem.horizon) for gamma in objective.sum_discounts(problem)]
        spread = replay.spread(buffer) * jnp.sqrt(jnp.asarray(steps))
        if config.units == "powers":
            spread = _power_of_two(spread)
        size = jnp.where(spread > 0.0, spread, 1.0)
    longest = [objective.most_steps(problem, gamma) for gamma in objective.sum_discounts(problem)[1:]]
    possible = replay.range_of(buffer)[:, 1:] * (jnp.asarray(longest) / size[1:])[None]
    return problem, Units(reward=size[0], cost=size[1:], limit=problem.limit / size[1:], possible=possible, share=share)


def _power_of_two(value: Float[Array, " K"]) -> Float[Array, " K"]:
    """The power of two at or below each number; 0 of 0."""
    mantissa, exponent = jnp.frexp(value)
    return jnp.where(mantissa > 0.0, jnp.ldexp(jnp.ones_like(value), exponent - 1), 0.0)


def empty_buffer(problem: Problem, capacity: int) -> replay.Replay:
    """A buffer for the transitions of a problem."""
    if problem.image is not None:
        raise InvalidInput(
            "off-policy critics and actors have no convolutions for images: take an algorithm that learns on-policy "
            "alone, such as pdo or cpo, or --torso none to have the pixels as plain numbers."
        )
    return replay.init(capacity, problem.batch, problem.observation_size, problem.action_size, problem.constraints)
