"""The problem for a learner of single transitions, and the learner's units."""

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
    """A learner's units, expressed in the problem's own: multiplying by them converts from the learner's units."""

    reward: Float[Array, ""]
    """The unit of rewards."""
    cost: Float[Array, " M"]
    """The units of costs."""
    limit: Float[Array, " M"]
    """d, in the learner's units."""
    possible: Float[Array, "2 M"]
    """The range of a cost's sum from any step on, in the learner's units, given the costs of single steps so far."""
    share: Float[Array, ""]
    """The value of a constrained cost of 1 in the learner's problem (`objective.total_share`)."""

    @property
    def size(self) -> Float[Array, " K"]:
        """The units of the reward and of the costs."""
        return jnp.concatenate([self.reward[None], self.cost])

    @property
    def price(self) -> Float[Array, " M"]:
        """The units of multipliers."""
        return self.reward / self.cost

    @property
    def total(self) -> Float[Array, " M"]:
        """The units of constrained costs."""
        return self.cost / self.share

    @property
    def sums(self) -> Float[Array, " K"]:
        """The units of values: of the return, then of each cost, as in the limits."""
        return self.size / self.share

    def seen(self, batch: Transition) -> Transition:
        """The transitions with rewards and costs in the learner's units."""
        cost = batch.cost / jnp.broadcast_to(self.cost, batch.cost.shape)
        return dataclasses.replace(batch, reward=batch.reward / self.reward, cost=cost)


@runtime_checkable
class Counting(Protocol):
    """Settings with a choice of units."""

    @property
    def units(self) -> str:
        """`own`: the problem's units; `data`: the data's spread; `powers`: the nearest powers of two to that."""
        ...


def view(config: Counting, problem: Problem, buffer: replay.Replay) -> tuple[Problem, Units]:
    """The problem for a learner of single transitions (`objective.stationary`), and the learner's units.

    The units from the data are σ √T for each signal, where T is the effective number of steps: the standard deviation
    of a return whose T steps had independent signals. The ratio of two units is the natural size of a multiplier.
    Units that are rounded to powers of two seldom change while a buffer grows, and changing them causes no rounding
    errors.
    """
    share, limit = _share_and_limit(problem, buffer)
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
    return problem, Units(reward=size[0], cost=size[1:], limit=limit / size[1:], possible=possible, share=share)


def _share_and_limit(problem: Problem, buffer: replay.Replay) -> tuple[Float[Array, ""], Float[Array, " M"]]:
    """What a total becomes for a learner of single transitions, and the limits there.

    If no episode in the buffer terminated, this is the share of episodes over the whole horizon, to the last bit.
    """
    learned = objective.stationary(problem)
    whole = jnp.asarray(objective.total_share(problem))
    if learned == problem:
        return whole, problem.limit
    step, terminated, held = replay.times(buffer)
    weight = jnp.where(held, objective.weight_of_total(problem, step, terminated), 0.0)
    share = jnp.sum(weight) / jnp.maximum(jnp.sum(held), 1)
    early = jnp.any(held & terminated)
    return jnp.where(early, share, whole), jnp.where(early, share * problem.limit, learned.limit)


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
