"""Any environment with what is left of its budgets in sight: Saute and the early-terminated MDP, for every algorithm.

With limits d_i > 0 and γ the discount of the costs, what is left of each budget is a part of the state and of the
observation (Sootla et al. 2022):

    z_0 = 1,   z_{t+1} = (z_t - c_t / d) / γ     so that   γ^t z_t = 1 - Σ_{k<t} γ^k c_k / d

An episode keeps the limit if z_t ≥ 0 throughout. Once a budget is exhausted, z_{t+1} < 0 for some constraint,

    Saute               the reward of every step is the unsafe reward, until the episode's end
    early termination   the step's reward is the unsafe reward and the episode ends there (Sun et al. 2021)

Either makes the limit hold for every single episode, rather than on average, as far as the unsafe reward deters. An
unconstrained algorithm (`trpo`) then suffices; any other still has its limit, on the mean. The limits keep their
place in the problem: budgets are made from them.

Deviations:
1. z is at least -1: an exhausted budget stays exhausted where costs are not negative, and 1/γ^t would blow it up.
2. A budget that is spent to the last unit is not exhausted: rounding errors up to 1e-5 are forgiven.
3. Sun et al. leave the observation as it is and rely on memory or context. The remaining budget is all that is missing
   to make the early-terminated problem Markov, so it is observed here too.
4. The unsafe reward has the reward's unit, and no default can know it: it must be worse than what the task pays.
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
    """A task that sees its budgets."""

    inner: Any
    limits: tuple[float, ...]
    cost_discount: float
    unsafe_reward: float
    ends: bool
    """Whether an exhausted budget ends the episode."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        if name == "inner" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.inner, name)

    @property
    def observation_size(self) -> int:
        """The inner one's, and the budgets."""
        return self.inner.observation_size + len(self.limits)

    @property
    def action_size(self) -> int:
        """The inner one's."""
        return self.inner.action_size

    @property
    def discrete_actions(self) -> bool:
        """The inner one's."""
        return self.inner.discrete_actions

    @property
    def cost_names(self) -> tuple[str, ...]:
        """The inner one's."""
        return self.inner.cost_names

    @property
    def discount(self) -> float:
        """The inner one's."""
        return self.inner.discount

    @property
    def horizon(self) -> int:
        """The inner one's."""
        return self.inner.horizon

    @property
    def horizon_terminates(self) -> bool:
        """The inner one's."""
        return self.inner.horizon_terminates


class BudgetedEnvironment(Budgeted):
    """An environment of ours that sees its budgets; a state is the inner one's with z."""

    def reset(self, key: PRNGKeyArray) -> PyTree:
        """An episode's start, with all of the budgets."""
        return self.inner.reset(key), jnp.ones(len(self.limits))

    def observe(self, state: PyTree) -> Float[Array, " O"]:
        """The inner observation, then z."""
        return jnp.concatenate([self.inner.observe(state[0]), state[1]])

    def step(self, state: PyTree, action: Float[Array, " A"], key: PRNGKeyArray) -> Outcome:
        """One step of the inner dynamics, charged to the budgets."""
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
    """A task of the host that sees its budgets."""

    @property
    def action_meaning(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The inner one's."""
        return self.inner.action_meaning

    @property
    def steps_seeds_together(self) -> bool:
        """Whether the inner one does."""
        return getattr(self.inner, "steps_seeds_together", False)

    def open(self, count: int) -> Copies:
        """So many copies, each with its own budgets."""
        return cast(Copies, BudgetedCopies(self.inner.open(count), self))


class BudgetedCopies:
    """Copies of an environment of the host, charged to their budgets outside of them."""

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
        if unknown.any() and not last:  # ends that the environment does not know of
            self.restart(unknown)

    def restart(self, which: np.ndarray) -> None:
        """Give up the episodes of some copies, and begin their next ones with all of their budgets."""
        self._inner.restart(which)
        self._left[which] = 1.0
        self._show("observation")

    def _show(self, name: str) -> None:
        getattr(self.arrays, name)[:] = np.concatenate([getattr(self._inner.arrays, name), self._left], axis=1)

    def watched(self) -> contextlib.AbstractContextManager[None]:
        """The inner ones' watch."""
        return self._inner.watched()

    def close(self) -> None:
        """Let go of the environments."""
        self._inner.close()


def wrap(task: Task, kind: str, limits: Sequence[float], cost_discount: float, unsafe_reward: float) -> Any:  # noqa: ANN401
    """The task with its budgets in sight, of one kind or the other."""
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
