"""The definition of an environment: the dynamics of one instance, as pure functions.

Environments have no vectorisation, no automatic reset and no time limit; `apdo.rollout` adds all three.
"""

from typing import NamedTuple, Protocol, runtime_checkable

from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from apdo.envs.task import Task


class Outcome(NamedTuple):
    """The result of one action."""

    state: PyTree
    observation: Float[Array, " O"]
    reward: Float[Array, ""]
    cost: Float[Array, " M"]
    terminated: Bool[Array, ""]
    plain_reward: Float[Array, ""] | None = None
    """The environment's own reward, if a wrapper replaces it."""


@runtime_checkable
class Environment(Task, Protocol):
    """A single instance of a constrained task; `state` is any pytree of arrays."""

    def reset(self, key: PRNGKeyArray) -> PyTree:
        """The first state of an episode."""
        ...

    def observe(self, state: PyTree) -> Float[Array, " O"]:
        """The observation of a state."""
        ...

    def step(self, state: PyTree, action: Float[Array, " A"], key: PRNGKeyArray) -> Outcome:
        """One step of the dynamics."""
        ...
