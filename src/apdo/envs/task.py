"""The attributes that describe every task, wherever its environments run. No JAX: worker processes import this too."""

from typing import Protocol, runtime_checkable


@runtime_checkable
class Task(Protocol):
    """Sizes, costs, limits and horizon of a constrained task."""

    @property
    def observation_size(self) -> int:
        """The number of entries of an observation."""
        ...

    @property
    def action_size(self) -> int:
        """The number of entries of an action."""
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
        """The limit of each cost in the task's source; empty if it has none."""
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
