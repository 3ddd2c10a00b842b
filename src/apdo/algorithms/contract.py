"""The contract of an algorithm module, and of one with an off-policy adjustment.

There is no base class and no registry: a module with these names is an algorithm.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from apdo.core.data import Transition
from apdo.problem import Problem

OwnConfig: TypeAlias = Any
"""An algorithm's own `Config`. Only its module knows the fields."""


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
        """The memory of `act` at the start of an episode."""
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
    """A long computation between two epochs, cut into pieces so that its caller can report and stop in between."""

    due: Callable[[OwnConfig, int], bool]
    """(config, epoch) ↦ whether an adjustment follows that epoch."""
    open: Callable[[OwnConfig, PyTree], Bool[Array, ""]]
    """(config, state) ↦ whether the state still needs an adjustment. If no seed's state does, it is skipped."""
    iterations: Callable[[OwnConfig], int]
    """config ↦ the number of its iterations."""
    begin: Callable[..., PyTree]
    """(config, problem, state, key) ↦ a new learner."""
    work: Callable[..., PyTree]
    """(config, problem, state, learner, iterations) ↦ the learner after this number of further iterations."""
    finish: Callable[..., tuple[PyTree, PyTree]]
    """(config, problem, state, learner, whether the data support the estimate) ↦ the state and the estimate.

    If the adjustment is made, these are the adjusted state and the estimate it was adjusted to (`multiplier`, `low`,
    `high`). Otherwise the state does not change, and the estimate is NaN."""
    checked: Callable[[OwnConfig], Any]
    """config ↦ the estimate's settings, if the estimate is to be checked against the data; None if it is not."""
    shown: Callable[[PyTree], Array]
    """learner ↦ its multipliers so far, [..., M], for display while it works."""
    timeless: Callable[[OwnConfig], OwnConfig] = lambda config: config
    """config ↦ the config without the time of the adjustment. Runs for which it is equal adjust side by side."""
