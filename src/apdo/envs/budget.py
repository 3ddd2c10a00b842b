"""Adds the remaining budgets to an environment's observation: Saute and the early-terminated MDP, for every algorithm.

With limits d_i > 0 and the discount γ of the costs, the rest of each budget is part of the state and of the observation
(Sootla et al. 2022):

    z_0 = 1,   z_{t+1} = (z_t - c_t / d) / γ     so that   γ^t z_t = 1 - Σ_{k<t} γ^k c_k / d

An episode keeps the limit if z_t ≥ 0 throughout. Once a budget is exhausted, z_{t+1} < 0 for some constraint,

    Saute               the reward of every step is the unsafe reward, until the episode's end
    early termination   the step's reward is the unsafe reward and the episode ends there (Sun et al. 2021)

Both make the limit hold for every single episode instead of on average, as far as the unsafe reward deters. So an
unconstrained algorithm (`trpo`) is sufficient. Any other algorithm still has its limit, on the mean. The limits stay
limits of the problem; the budgets are made from them.

Deviations: 1. z is at least -1. If costs are not negative, an exhausted budget stays exhausted, and 1/γ^t would make it
explode. 2. A budget that is used exactly is not exhausted: rounding errors up to 1e-5 are allowed. 3. Sun et al. leave
the observation as it is and rely on memory or context. Only the remaining budget is missing to make the
early-terminated problem Markov, so it is observed here too. 4. The unsafe reward has the reward's unit, so no default
can be right for every task. It must be worse than what the task pays.
"""

import contextlib
import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from apdo.envs.environment import Environment, Outcome
from apdo.envs.host import Arrays, Copies, HostTask
from apdo.envs.task import Task
from apdo.errors import InvalidInput

SAUTE, EARLY = "saute", "early-termination"
_ROUNDING = 1e-5


@dataclasses.dataclass(frozen=True)
class Budgeted:
    """A task whose observations contain its remaining budgets."""

    inner: Any
    limits: tuple[float, ...]
    cost_discount: float
    unsafe_reward: float
    ends: bool
    """Whether the episode ends when a budget is exhausted."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        if name == "inner" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.inner, name)

    @property
    def observation_layout(self) -> None:
        """None: with its budgets an observation is a vector."""
        return

    @property
    def observation_size(self) -> int:
        """The inner task's, plus one entry for each budget."""
        return self.inner.observation_size + len(self.limits)

    @property
    def action_size(self) -> int:
        """The inner task's."""
        return self.inner.action_size

    @property
    def discrete_actions(self) -> bool:
        """The inner task's."""
        return self.inner.discrete_actions

    @property
    def cost_names(self) -> tuple[str, ...]:
        """The inner task's."""
        return self.inner.cost_names

    @property
    def discount(self) -> float:
        """The inner task's."""
        return self.inner.discount

    @property
    def horizon(self) -> int:
        """The inner task's."""
        return self.inner.horizon

    @property
    def horizon_terminates(self) -> bool:
        """The inner task's."""
        return self.inner.horizon_terminates


class BudgetedEnvironment(Budgeted):
    """A JAX environment whose observations contain its remaining budgets; a state is the inner state with z."""

    def reset(self, key: PRNGKeyArray) -> PyTree:
        """The start of an episode, with full budgets."""
        return self.inner.reset(key), jnp.ones(len(self.limits))

    def observe(self, state: PyTree) -> Float[Array, " O"]:
        """The inner observation, followed by z."""
        return jnp.concatenate([self.inner.observe(state[0]), state[1]])

    def step(self, state: PyTree, action: Float[Array, " A"], key: PRNGKeyArray) -> Outcome:
        """One step of the inner dynamics; its costs are subtracted from the budgets."""
        outcome = self.inner.step(state[0], action, key)
        left = jnp.maximum((state[1] - outcome.cost / jnp.asarray(self.limits)) / self.cost_discount, -1.0)
        exhausted = jnp.any(left < -_ROUNDING)
        return Outcome(
            state=(outcome.state, left),
            observation=jnp.concatenate([outcome.observation, left]),
            reward=jnp.where(exhausted, self.unsafe_reward, outcome.reward),
            cost=outcome.cost,
            terminated=(outcome.terminated | exhausted) if self.ends else outcome.terminated,
            plain_reward=outcome.reward,
        )


class BudgetedHostTask(Budgeted):
    """A host task whose observations contain its remaining budgets."""

    @property
    def action_meaning(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The inner task's."""
        return self.inner.action_meaning

    @property
    def steps_seeds_together(self) -> bool:
        """The inner task's; False if it does not say."""
        return getattr(self.inner, "steps_seeds_together", False)

    def open(self, count: int) -> Copies:
        """Make so many copies, each with its own budgets."""
        return cast(Copies, BudgetedCopies(self.inner.open(count), self))


class BudgetedCopies:
    """Copies of a host environment, whose budgets are kept outside of them."""

    def __init__(self, inner: Copies, task: Budgeted) -> None:
        self._inner, self._task = inner, task
        own, m = inner.arrays, len(task.limits)
        self._left = np.ones((own.count, m), np.float32)
        wide = (own.count, own.observation.shape[1] + m)
        shared = {name: getattr(own, name) for name in ("count", "action", "cost", "step")}
        mine = {"observation": np.zeros(wide, np.float32), "next_observation": np.zeros(wide, np.float32)}
        mine |= {name: getattr(own, name).copy() for name in ("reward", "terminated", "truncated")}
        mine |= {"plain_reward": own.reward.copy()}
        self.arrays = cast(Arrays, SimpleNamespace(**shared, **mine))

    def reset(self, entropy: Sequence[int]) -> None:
        """Begin an episode in each copy."""
        self._inner.reset(entropy)
        self._left[:] = 1.0
        self._show("observation")

    def step(self, *, last: bool) -> None:
        """One step of each copy."""
        self._inner.step(last=last)
        own, mine, task = self._inner.arrays, cast(Any, self.arrays), self._task
        spent = own.cost / np.asarray(task.limits, np.float32)
        self._left[:] = np.maximum((self._left - spent) / np.float32(task.cost_discount), -1.0)
        exhausted = (self._left < -_ROUNDING).any(axis=1)
        mine.plain_reward[:] = own.reward
        mine.reward[:] = np.where(exhausted, np.float32(task.unsafe_reward), own.reward)
        mine.terminated[:] = (own.terminated | exhausted) if task.ends else own.terminated
        mine.truncated[:] = own.truncated & ~mine.terminated
        self._show("next_observation")
        over = own.terminated | own.truncated
        self._left[over] = 1.0
        self._show("observation")
        unknown = mine.terminated & ~over
        if unknown.any() and not last:  # episodes that ended without the environment knowing it
            self.restart(unknown)

    def restart(self, which: np.ndarray) -> None:
        """Give up the episodes of some copies, and begin their next ones with full budgets."""
        self._inner.restart(which)
        self._left[which] = 1.0
        self._show("observation")

    def _show(self, name: str) -> None:
        getattr(self.arrays, name)[:] = np.concatenate([getattr(self._inner.arrays, name), self._left], axis=1)

    def watched(self) -> contextlib.AbstractContextManager[None]:
        """The inner copies' context."""
        return self._inner.watched()

    def close(self) -> None:
        """Close the environments."""
        self._inner.close()


def wrap(task: Task, kind: str, limits: Sequence[float], cost_discount: float, unsafe_reward: float) -> Any:  # noqa: ANN401
    """The task with its remaining budgets in the observation; `kind` is `SAUTE` or `EARLY`."""
    for limit in limits:
        if not limit > 0.0:
            raise InvalidInput(f"--wrap {kind} makes a budget from each limit, which must be positive, not {limit:g}.")
    if not cost_discount > 0.0:
        raise InvalidInput(f"--wrap {kind} divides by the discount of the costs, which is 0 here.")
    given = (task, tuple(limits), cost_discount, unsafe_reward, kind == EARLY)
    if isinstance(task, Environment):
        return BudgetedEnvironment(*given)
    assert isinstance(task, HostTask)
    return BudgetedHostTask(*given)
