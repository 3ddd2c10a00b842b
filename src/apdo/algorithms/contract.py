"""What every algorithm module offers, and what one with an off-policy adjustment offers besides.

There is no base class and no registry: a module with these names is an algorithm.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Array, Float, PRNGKeyArray

from apdo.core.data import Transition
from apdo.problem import Problem


@runtime_checkable
class Algorithm(Protocol):
    """An algorithm: pure functions over an explicit state."""

    Config: type
    """A frozen dataclass of options."""

    @staticmethod
    def init(config: Any, problem: Problem, key: PRNGKeyArray) -> Any:
        """The state before the first epoch."""
        ...

    @staticmethod
    def memory(config: Any, problem: Problem) -> Any:
        """What acting remembers at the start of an episode."""
        ...

    @staticmethod
    def act(
        config: Any, state: Any, memory: Any, observation: Float[Array, " O"], key: PRNGKeyArray
    ) -> tuple[Float[Array, " A"], Any]:
        """An exploring action in one environment, and the memory after it."""
        ...

    @staticmethod
    def step(
        config: Any, problem: Problem, state: Any, batch: Transition, key: PRNGKeyArray
    ) -> tuple[Any, dict[str, Array]]:
        """The state after learning from one batch, and the epoch's metrics."""
        ...

    @staticmethod
    def learned_policy(state: Any) -> Any:
        """The policy learned so far: a module from one observation to a distribution with `sample` and `mode`."""
        ...


class Adjustment(NamedTuple):
    """A long piece of work between two epochs, cut so that its caller can report and stop in between."""

    due: Callable[[Any, int], bool]
    """(config, epoch) ↦ whether it follows that epoch."""
    iterations: Callable[[Any], int]
    """config ↦ how many iterations it takes in all."""
    begin: Callable[..., Any]
    """(config, problem, state, key) ↦ its learner."""
    work: Callable[..., Any]
    """(config, problem, state, learner, iterations) ↦ the learner after so many iterations more."""
    finish: Callable[[Any, Any], tuple[Any, Float[Array, " M"]]]
    """(state, learner) ↦ the adjusted state, and the multipliers that it now has."""
