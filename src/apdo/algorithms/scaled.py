"""Any algorithm for an environment whose actions are mapped by clip(shift + scale · action, low, high).

The algorithm's actions are of order one, and it does not know the mapping. The learned policy gives the environment's
own actions. During training the environment's side maps the actions, so this module only adds the mapping to the
learned policy.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from apdo.algorithms.contract import Adjustment, Algorithm, OwnConfig
from apdo.core.data import Transition
from apdo.problem import Problem


class ActionMeaning(eqx.Module):
    """The map from an algorithm's action to the environment's: clip(shift + scale · action, low, high)."""

    shift: Float[Array, " A"]
    scale: Float[Array, " A"]
    low: Float[Array, " A"]
    high: Float[Array, " A"]

    def __call__(self, action: Float[Array, " A"]) -> Float[Array, " A"]:
        """The environment's action."""
        return jnp.clip(self.shift + self.scale * action, self.low, self.high)


class RawDistribution(eqx.Module):
    """A distribution over the environment's actions."""

    inner: PyTree
    meaning: ActionMeaning | None

    def sample(self, key: PRNGKeyArray) -> Float[Array, " A"]:
        """One draw."""
        return self._mean(self.inner.sample(key))

    def mode(self) -> Float[Array, " A"]:
        """The mapped mode of the inner distribution."""
        return self._mean(self.inner.mode())

    def _mean(self, action: Float[Array, " A"]) -> Float[Array, " A"]:
        return action if self.meaning is None else self.meaning(action)


class RawPolicy(eqx.Module):
    """A policy that gives the environment's own actions."""

    network: PyTree
    meaning: ActionMeaning | None

    def __call__(self, observation: Float[Array, " O"]) -> RawDistribution:
        """The distribution of the environment's action."""
        return RawDistribution(inner=self.inner(observation), meaning=self.meaning)

    def inner(self, observation: Float[Array, " O"]) -> PyTree:
        """The distribution of the algorithm's action."""
        return self.network(observation)

    def around(self) -> dict[str, np.ndarray]:
        """The mapping after the network, under the names of an exported policy's arrays."""
        if self.meaning is None:
            return {}
        return {f"action_{name}": np.asarray(value) for name, value in vars(self.meaning).items()}


class State(eqx.Module):
    """The algorithm's own state, and the map of its actions."""

    inner: PyTree
    meaning: ActionMeaning | None
    """None if actions are not mapped."""


class Scaled:
    """An algorithm made from another one."""

    def __init__(self, inner: Algorithm, meaning: ActionMeaning | None = None) -> None:
        self._inner, self._meaning = inner, meaning
        self.Config = inner.Config
        self.samples_its_policy = getattr(inner, "samples_its_policy", True)
        own = getattr(inner, "adjustment", None)
        self.adjustment = None if own is None else _adjustment(own)
        begin = getattr(inner, "start_from", None)
        self.start_from = None if begin is None else _start_from(begin)

    def init(self, config: OwnConfig, problem: Problem, key: PRNGKeyArray) -> State:
        """The inner algorithm's state before the first epoch, with the map."""
        return State(inner=self._inner.init(config, problem, key), meaning=self._meaning)

    def working_memory(self, config: OwnConfig, problem: Problem) -> int:
        """The inner algorithm's working memory, in bytes."""
        own = getattr(self._inner, "working_memory", None)
        return 0 if own is None else own(config, problem)

    def memory(self, config: OwnConfig, problem: Problem) -> PyTree:
        """The inner algorithm's memory at the start of an episode."""
        return self._inner.memory(config, problem)

    def act(
        self, config: OwnConfig, state: State, memory: PyTree, observation: Float[Array, " O"], key: PRNGKeyArray
    ) -> tuple[Float[Array, " A"], PyTree]:
        """The inner algorithm's action."""
        return self._inner.act(config, state.inner, memory, observation, key)

    def step(
        self, config: OwnConfig, problem: Problem, state: State, batch: Transition, key: PRNGKeyArray
    ) -> tuple[State, dict[str, Array]]:
        """The inner algorithm's step."""
        inner, metrics = self._inner.step(config, problem, state.inner, batch, key)
        return State(inner=inner, meaning=state.meaning), metrics

    def learned_values(self, state: State) -> PyTree:
        """The inner algorithm's value functions; None if it has none."""
        own = getattr(self._inner, "learned_values", None)
        return None if own is None else own(state.inner)

    def learned_policy(self, state: State) -> RawPolicy:
        """The learned policy, with the environment's own actions."""
        return RawPolicy(network=self._inner.learned_policy(state.inner), meaning=state.meaning)


def _start_from(own: Callable[[PyTree, PyTree], PyTree]) -> Callable[[State, PyTree], State]:
    """The inner algorithm's `start_from`, on states with the map."""
    return lambda state, start: State(inner=own(state.inner, start), meaning=state.meaning)


def _adjustment(own: Adjustment) -> Adjustment:
    """The inner algorithm's adjustment, on states with the map."""

    def inside(function: Any) -> Any:  # noqa: ANN401
        return lambda config, problem, state, *rest: function(config, problem, state.inner, *rest)

    def finish(config: OwnConfig, problem: Problem, state: State, *rest: PyTree) -> tuple[State, PyTree]:
        inner, found = own.finish(config, problem, state.inner, *rest)
        return State(inner=inner, meaning=state.meaning), found

    return own._replace(
        open=lambda config, state: own.open(config, state.inner),
        begin=inside(own.begin),
        work=inside(own.work),
        finish=finish,
    )
