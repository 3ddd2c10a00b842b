"""What an environment is: the dynamics of one instance, as pure functions.

No vectorisation, no automatic reset and no time limit live here; `apdo.rollout` owns all three.
"""

from typing import NamedTuple, Protocol, runtime_checkable

from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from apdo.envs.task import Task


class Outcome(NamedTuple):
    """What one action brought about."""

    state: PyTree
    observation: Float[Array, " O"]
    reward: Float[Array, ""]
    cost: Float[Array, " M"]
    terminated: Bool[Array, ""]
    plain_reward: Float[Array, ""] | None = None
    """What the environment itself paid, where a wrapper pays otherwise."""


@runtime_checkable
class Environment(Task, Protocol):
    """A single instance of a constrained task; `state` is any pytree of arrays."""

    def reset(self, key: PRNGKeyArray) -> PyTree:
        """The state that an episode starts from."""
        ...

    def observe(self, state: PyTree) -> Float[Array, " O"]:
        """The observation of a state."""
        ...

    def step(self, state: PyTree, action: Float[Array, " A"], key: PRNGKeyArray) -> Outcome:
        """One step of the dynamics."""
        ...
