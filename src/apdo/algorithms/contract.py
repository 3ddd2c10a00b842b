"""What every algorithm module offers, and what one with an off-policy adjustment offers besides.

There is no base class and no registry: a module with these names is an algorithm.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from apdo.core.data import Transition
from apdo.problem import Problem

OwnConfig: TypeAlias = Any
"""An algorithm's own `Config`: only its module knows what is in it."""


@runtime_checkable
class Algorithm(Protocol):
    """An algorithm: pure functions over an explicit state."""

    Config: type
    """A frozen dataclass of options."""

    @staticmethod
    def init(config: OwnConfig, problem: Problem, key: PRNGKeyArray) -> PyTree:
        """The state before the first epoch."""
        ...

    @staticmethod
    def memory(config: OwnConfig, problem: Problem) -> PyTree:
        """What acting remembers at the start of an episode."""
        ...

    @staticmethod
    def act(
        config: OwnConfig, state: PyTree, memory: PyTree, observation: Float[Array, " O"], key: PRNGKeyArray
    ) -> tuple[Float[Array, " A"], PyTree]:
        """An exploring action in one environment, and the memory after it."""
        ...

    @staticmethod
    def step(
        config: OwnConfig, problem: Problem, state: PyTree, batch: Transition, key: PRNGKeyArray
    ) -> tuple[PyTree, dict[str, Array]]:
        """The state after learning from one batch, and the epoch's metrics."""
        ...

    @staticmethod
    def learned_policy(state: PyTree) -> PyTree:
        """The policy learned so far: a module from one observation to a distribution with `sample` and `mode`."""
        ...


class Adjustment(NamedTuple):
    """A long piece of work between two epochs, cut so that its caller can report and stop in between."""

    due: Callable[[OwnConfig, int], bool]
    """(config, epoch) ↦ whether it follows that epoch."""
    open: Callable[[OwnConfig, PyTree], Bool[Array, ""]]
    """(config, state) ↦ whether the state still waits for one; when none does, none is made."""
    iterations: Callable[[OwnConfig], int]
    """config ↦ how many iterations it takes in all."""
    begin: Callable[..., PyTree]
    """(config, problem, state, key) ↦ its learner."""
    work: Callable[..., PyTree]
    """(config, problem, state, learner, iterations) ↦ the learner after so many iterations more."""
    finish: Callable[..., tuple[PyTree, PyTree]]
    """(config, problem, state, learner, whether the data support the estimate) ↦ the adjusted state, or the same one,
    and the estimate that it was adjusted to (`multiplier`, `low`, `high`), or NaN."""
    checked: Callable[[OwnConfig], Any]
    """config ↦ the estimate's settings, if it is to be checked against the data; None if it is believed as it is."""
    shown: Callable[[PyTree], Array]
    """learner ↦ its multipliers so far, [..., M], to be shown while it works."""
    timeless: Callable[[OwnConfig], OwnConfig] = lambda config: config
    """config ↦ one that does not say when: the same for those whose learners can work side by side."""
