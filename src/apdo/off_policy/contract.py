"""The contract of an off-policy learner: pure functions over its own settings and an opaque state.

There is no base class: a module with these names is a learner, and `kinds` finds it by the type of its settings.
"""

from typing import Any, Protocol, TypeAlias, runtime_checkable

from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from apdo.core import policies, replay
from apdo.core.statistics import Statistics
from apdo.off_policy.path import Path
from apdo.problem import Problem

OwnState: TypeAlias = Any
"""A learner's own state, for one learner or for several side by side. Only its module knows all fields."""


@runtime_checkable
class Settings(Protocol):
    """The part of a learner's settings that other modules read."""

    @property
    def critic_hidden(self) -> tuple[int, ...]:
        """Hidden layers of a critic."""
        ...

    @property
    def critic_rate(self) -> float:
        """Adam's learning rate for the critics."""
        ...

    @property
    def target_rate(self) -> float:
        """τ, the rate at which target networks follow the learned ones."""
        ...

    @property
    def last_rate(self) -> float:
        """The share of their initial value to which all rates fall."""
        ...

    @property
    def minibatch(self) -> int:
        """Transitions in one iteration."""
        ...

    @property
    def clock(self) -> bool:
        """Whether critics see the time, if the horizon ends an episode."""
        ...

    @property
    def units(self) -> str:
        """The units of rewards and costs while learning (`units.view`)."""
        ...

    @property
    def cloning(self) -> float:
        """The weight of the actor's distance from the data's actions in its loss."""
        ...

    @property
    def actor_hidden(self) -> tuple[int, ...]:
        """Hidden layers of the actor."""
        ...


@runtime_checkable
class State(Protocol):
    """The part of a learner's state that other modules read."""

    @property
    def path(self) -> Path:
        """The history of the multipliers."""
        ...

    @property
    def key(self) -> PRNGKeyArray:
        """The key of its random draws."""
        ...


@runtime_checkable
class Learner(Protocol):
    """A learner: functions that start it, let it learn and act, and evaluate actors."""

    Learner: type
    """A frozen dataclass of `Settings`."""

    @staticmethod
    def start(config: Any, problem: Problem, key: PRNGKeyArray, caution: Float[Array, ""] | None = None) -> OwnState:  # noqa: ANN401
        """The state before the first iteration. `caution` multiplies the cloning weight."""
        ...

    @staticmethod
    def learn(
        config: Any,  # noqa: ANN401
        problem: Problem,
        state: OwnState,
        buffer: replay.Replay,
        iterations: Int[Array, ""],
        total: int | None = None,
        statistics: Statistics | None = None,
        unseen: Float[Array, " M"] | None = None,
        whole: bool = False,
    ) -> OwnState:
        """The state after `iterations` further iterations on the buffer.

        `total` is the number of iterations in all, if it is known: rates fall over them, and the last of them are
        averaged. The networks see observations normalised by `statistics`, if there are any. `unseen` is by how much
        the critics underestimate the actor's costs, in units of the limits; the multipliers respond to the sum.
        `whole` promises that the iterations are whole blocks (`path.BLOCK`).
        """
        ...

    @staticmethod
    def policy(config: Any, state: OwnState) -> PyTree:  # noqa: ANN401
        """The actor as a stochastic policy of the kind that on-policy algorithms improve."""
        ...

    @staticmethod
    def check_policy(config: Any, problem: Problem, policy: policies.Config) -> None:  # noqa: ANN401
        """Raise InvalidInput unless `policy` gives a network of the shape in the on-policy settings."""
        ...

    @staticmethod
    def actions(state: OwnState, observation: Float[Array, "B O"]) -> Float[Array, "B A"]:
        """The actor's actions without noise; their probabilities if they are discrete."""
        ...

    @staticmethod
    def value(
        config: Any,  # noqa: ANN401
        problem: Problem,
        judge: OwnState,
        actor: OwnState,
        observation: Float[Array, "B O"],
        key: PRNGKeyArray,
    ) -> Float[Array, " K"]:
        """The value of one learner's actor by another's critics, averaged over first observations of episodes.

        It is in the learners' units (`units.Units.sums`).
        """
        ...

    @staticmethod
    def working_bytes(config: Any, problem: Problem) -> int:  # noqa: ANN401
        """About how many bytes learning needs besides the state and the buffer."""
        ...
