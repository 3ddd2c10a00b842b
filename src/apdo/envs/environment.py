"""What an environment is: the dynamics of one instance, as pure functions.

No vectorisation, no automatic reset and no time limit live here; `apdo.rollout` owns all three.
"""

from typing import NamedTuple, Protocol, runtime_checkable

from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree


class Outcome(NamedTuple):
    """What one action brought about."""

    state: PyTree
    observation: Float[Array, " O"]
    reward: Float[Array, ""]
    cost: Float[Array, " M"]
    terminated: Bool[Array, ""]


@runtime_checkable
class Environment(Protocol):
    """A single instance of a constrained task; `state` is any pytree of arrays."""

    @property
    def observation_size(self) -> int:
        """Entries of an observation."""
        ...

    @property
    def action_size(self) -> int:
        """Entries of an action."""
        ...

    @property
    def discrete_actions(self) -> bool:
        """Whether an action is one of `action_size` choices, given as a one-hot vector."""
        ...

    @property
    def cost_names(self) -> tuple[str, ...]:
        """The costs, in the order in which a step returns them."""
        ...

    @property
    def limits(self) -> tuple[float, ...]:
        """The limit that the task's source gives for each cost."""
        ...

    @property
    def discount(self) -> float:
        """The discount that the task's source uses."""
        ...

    @property
    def horizon(self) -> int:
        """The most steps in an episode."""
        ...

    @property
    def horizon_terminates(self) -> bool:
        """Whether the last step counts as terminal (no bootstrap) rather than as cut off."""
        ...

    def reset(self, key: PRNGKeyArray) -> PyTree:
        """The state that an episode starts from."""
        ...

    def observe(self, state: PyTree) -> Float[Array, " O"]:
        """The observation of a state."""
        ...

    def step(self, state: PyTree, action: Float[Array, " A"], key: PRNGKeyArray) -> Outcome:
        """One step of the dynamics."""
        ...
