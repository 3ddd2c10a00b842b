"""Critics Q(s, a) of several signals as one stack of networks, which may see the time."""

import dataclasses
from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from apdo import objective
from apdo.core import networks
from apdo.problem import Problem


class Critics(eqx.Module):
    """K critics. If actions are discrete, each has one output for every action."""

    stack: networks.MLP
    discrete: bool = eqx.field(static=True)
    """Whether actions are discrete."""
    horizon: int | None = eqx.field(static=True, default=None)
    """The episode's length in steps, if the critics see the time."""

    def q(self, s: Float[Array, "B O"], a: Float[Array, "B A"], step: Int[Array, " B"]) -> Float[Array, "K B"]:
        """Q at each state, action (or vector of probabilities) and step of the episode."""
        if self.discrete:
            return jnp.sum(self.of_choices(s, step) * a[None], axis=-1)
        return networks.apply_stack(self.stack, jnp.concatenate([self._timed(s, step), a], axis=-1))[..., 0]

    def of_choices(self, s: Float[Array, "B O"], step: Int[Array, " B"]) -> Float[Array, "K B A"]:
        """Q of every discrete action."""
        return networks.apply_stack(self.stack, self._timed(s, step))

    def first(self, count: int) -> "Critics":
        """The first `count` critics."""
        return dataclasses.replace(self, stack=self.stack.part(slice(count)))

    def rest(self, count: int) -> "Critics":
        """All critics but the first `count`."""
        return dataclasses.replace(self, stack=self.stack.part(slice(count, None)))

    def _timed(self, s: Float[Array, "B O"], step: Int[Array, " B"]) -> Float[Array, "B I"]:
        return s if self.horizon is None else jnp.concatenate([s, (step / self.horizon)[:, None]], axis=-1)


def init(
    key: PRNGKeyArray,
    problem: Problem,
    count: int,
    hidden: Sequence[int],
    *,
    clock: bool,
    activation: str | tuple[str, ...] = "tanh",
) -> Critics:
    """New critics. With a `clock` they see the time, if the rest of an episode depends on it."""
    o, a = problem.observation_size, problem.action_size
    inputs, outputs = (o, a) if problem.discrete_actions else (o + a, 1)
    clock = clock and objective.sees_time(objective.stationary(problem))
    return Critics(
        stack=networks.stack(key, count, inputs + clock, hidden, outputs, activation),
        discrete=problem.discrete_actions,
        horizon=problem.horizon if clock else None,
    )


def follow(rate: float, learned: Array, target: Array) -> Array:
    """An array of the target network after it has moved towards the learned one by a rate τ."""
    return rate * learned + (1.0 - rate) * target


def settling(target_rate: float, problem: Problem, iterations: int) -> float:
    """τ: the given rate, or a larger one with which values still converge in this number of iterations.

    A value is propagated step by step from the end of the horizon. With T effective steps this takes about T / τ
    iterations.
    """
    steps = max(objective.effective_steps(gamma, problem.horizon) for gamma in objective.sum_discounts(problem))
    return min(1.0, max(target_rate, _SETTLED * steps / iterations))


_SETTLED = 5.0
"""The number of iterations is at least this multiple of T / τ."""
