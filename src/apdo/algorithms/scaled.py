"""Any algorithm behind running normalisation of its observations, and factors on its rewards and costs.

The algorithm sees normalised observations and scaled signals and limits, and does not know. Its user sees raw ones: the
learned policy takes raw observations, and metrics are in raw units (but for `value_error` and what a trust region says
of its own step, which stay in the algorithm's).

Acting in an epoch and learning from it use the same statistics; the epoch's observations then enter those of the next.
Only the very first epoch acts without any and learns with its own: a fresh policy hardly depends on what it sees. What
a replay buffer holds keeps the normalisation of its epoch; statistics of k epochs move by about 1/k in the next.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from apdo.algorithms.contract import Adjustment, Algorithm, OwnConfig
from apdo.core.data import Transition
from apdo.core.statistics import CLIP, Statistics
from apdo.problem import Problem


class ActionMeaning(eqx.Module):
    """What the environment is given for an action: clip(shift + scale · action, low, high)."""

    shift: Float[Array, " A"]
    scale: Float[Array, " A"]
    low: Float[Array, " A"]
    high: Float[Array, " A"]

    def __call__(self, action: Float[Array, " A"]) -> Float[Array, " A"]:
        """The environment's action."""
        return jnp.clip(self.shift + self.scale * action, self.low, self.high)


class Meant(eqx.Module):
    """A distribution over the environment's actions."""

    inner: PyTree
    meaning: ActionMeaning | None

    def sample(self, key: PRNGKeyArray) -> Float[Array, " A"]:
        """One draw."""
        return self._mean(self.inner.sample(key))

    def mode(self) -> Float[Array, " A"]:
        """What the inner distribution's mode means."""
        return self._mean(self.inner.mode())

    def _mean(self, action: Float[Array, " A"]) -> Float[Array, " A"]:
        return action if self.meaning is None else self.meaning(action)


class RawPolicy(eqx.Module):
    """A policy over normalised observations as one over raw ones, which gives the environment's own actions."""

    network: PyTree
    statistics: Statistics
    meaning: ActionMeaning | None

    def __call__(self, observation: Float[Array, " O"]) -> Meant:
        """The distribution of the environment's action."""
        return Meant(inner=self.inner(observation), meaning=self.meaning)

    def inner(self, observation: Float[Array, " O"]) -> PyTree:
        """The distribution of the algorithm's action."""
        return self.network(self.statistics.normalise(observation))

    def around(self) -> dict[str, np.ndarray]:
        """What is done before and after the network, under the names that an exported policy has for it."""
        named: dict[str, np.ndarray] = {}
        if float(self.statistics.count) > 0:
            named |= {
                "observation_mean": np.asarray(self.statistics.mean),
                "observation_std": np.asarray(self.statistics.scale()),
                "observation_clip": np.asarray(CLIP, dtype=np.float32),
            }
        if self.meaning is not None:
            named |= {f"action_{name}": np.asarray(value) for name, value in vars(self.meaning).items()}
        return named


class State(eqx.Module):
    """The algorithm's own state, and all that its policy needs to serve raw observations."""

    inner: PyTree
    statistics: Statistics
    meaning: ActionMeaning | None
    """None where actions mean what they say."""


_UNITS = {
    "return": (1, 0),
    "discounted_return": (1, 0),
    "return_error": (1, 0),
    "cost": (0, 1),
    "cost_error": (0, 1),
    "undiscounted_cost": (0, 1),
    "critic_cost": (0, 1),
    "enforced_limit": (0, 1),
    "multiplier": (1, -1),
    "multiplier_mean": (1, -1),
}
"""Metric ↦ the powers of the reward's and of the cost's factor in it."""


class Scaled:
    """An algorithm made from another one."""

    def __init__(
        self,
        inner: Algorithm,
        *,
        normalise: bool = True,
        reward_scale: float = 1.0,
        cost_scale: float = 1.0,
        meaning: ActionMeaning | None = None,
    ) -> None:
        self._inner, self._meaning = inner, meaning
        self._normalises = normalise
        self._reward, self._cost = reward_scale, cost_scale
        self.Config = inner.Config
        self.samples_its_policy = getattr(inner, "samples_its_policy", True)
        own = getattr(inner, "adjustment", None)
        self.adjustment = None if own is None else self._adjustment(own)

    def init(self, config: OwnConfig, problem: Problem, key: PRNGKeyArray) -> State:
        """The inner algorithm's start, and no statistics."""
        return State(
            inner=self._inner.init(config, self._problem(problem), key),
            statistics=Statistics.empty(problem.observation_size),
            meaning=self._meaning,
        )

    def working_memory(self, config: OwnConfig, problem: Problem) -> int:
        """The inner algorithm's."""
        own = getattr(self._inner, "working_memory", None)
        return 0 if own is None else own(config, problem)

    def memory(self, config: OwnConfig, problem: Problem) -> PyTree:
        """The inner algorithm's."""
        return self._inner.memory(config, self._problem(problem))

    def act(
        self, config: OwnConfig, state: State, memory: PyTree, observation: Float[Array, " O"], key: PRNGKeyArray
    ) -> tuple[Float[Array, " A"], PyTree]:
        """The inner algorithm's action on a raw observation."""
        return self._inner.act(config, state.inner, memory, state.statistics.normalise(observation), key)

    def step(
        self, config: OwnConfig, problem: Problem, state: State, batch: Transition, key: PRNGKeyArray
    ) -> tuple[State, dict[str, Array]]:
        """Learn from a raw batch."""
        after = state.statistics.merge(Statistics.of(batch.observation)) if self._normalises else state.statistics
        first = state.statistics.count == 0
        used = jax.tree.map(lambda new, old: jnp.where(first, new, old), after, state.statistics)
        seen = dataclasses.replace(
            batch,
            observation=used.normalise(batch.observation),
            next_observation=used.normalise(batch.next_observation),
            reward=self._reward * batch.reward,
            cost=self._cost * batch.cost,
        )
        inner, metrics = self._inner.step(config, self._problem(problem), state.inner, seen, key)
        onward = State(inner=inner, statistics=after, meaning=state.meaning)
        return onward, {name: self._raw(name, value) for name, value in metrics.items()}

    def learned_policy(self, state: State) -> RawPolicy:
        """What has been learned, for raw observations."""
        return RawPolicy(
            network=self._inner.learned_policy(state.inner), statistics=state.statistics, meaning=state.meaning
        )

    def _raw(self, name: str, value: Array) -> Array:
        reward, cost = _UNITS.get(name, (0, 0))
        return value / (self._reward**reward * self._cost**cost)

    def _problem(self, problem: Problem) -> Problem:
        return dataclasses.replace(problem, limits=tuple(self._cost * limit for limit in problem.limits))

    def _adjustment(self, own: Adjustment) -> Adjustment:
        def begin(config: OwnConfig, problem: Problem, state: State, key: PRNGKeyArray) -> PyTree:
            return own.begin(config, self._problem(problem), state.inner, key)

        def work(config: OwnConfig, problem: Problem, state: State, learner: PyTree, iterations: Any) -> PyTree:  # noqa: ANN401
            return own.work(config, self._problem(problem), state.inner, learner, iterations)

        def finish(config: OwnConfig, problem: Problem, state: State, learner: PyTree) -> tuple[State, PyTree]:
            inner, found = own.finish(config, self._problem(problem), state.inner, learner)
            onward = State(inner=inner, statistics=state.statistics, meaning=state.meaning)
            return onward, jax.tree.map(lambda value: self._raw("multiplier", value), found)

        def waits(config: OwnConfig, state: State) -> Array:
            return own.open(config, state.inner)

        def remark(config: OwnConfig, problem: Problem, multipliers: Float[Array, "S M"]) -> str:
            one = self._raw("multiplier", jnp.ones_like(multipliers))
            return own.remark(config, self._problem(problem), multipliers / one)

        return Adjustment(
            due=own.due,
            open=waits,
            iterations=own.iterations,
            begin=begin,
            work=work,
            finish=finish,
            remark=remark,
        )
