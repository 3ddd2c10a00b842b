"""What every off-policy learner offers: pure functions over its own settings and a state that nobody looks into.

There is no base class: a module with these names is a learner, and `kinds` finds it by the type of its settings.
"""

from typing import Any, Protocol, TypeAlias, runtime_checkable

from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from apdo.core import policies, replay
from apdo.core.statistics import Statistics
from apdo.off_policy.path import Path
from apdo.problem import Problem

OwnState: TypeAlias = Any
"""A learner's own state, for one learner or for several side by side: its module knows what is in it."""


@runtime_checkable
class Settings(Protocol):
    """What of a learner's settings others read: those of its critics, and what it counts in."""

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
        """τ, by which target networks follow."""
        ...

    @property
    def last_rate(self) -> float:
        """The share of all rates that is left at the end."""
        ...

    @property
    def minibatch(self) -> int:
        """Transitions in one iteration."""
        ...

    @property
    def clock(self) -> bool:
        """Whether critics see the time, where the horizon ends an episode."""
        ...

    @property
    def units(self) -> str:
        """What rewards and costs are counted in while learning (`units.view`)."""
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
    """What of a learner's state others read."""

    @property
    def path(self) -> Path:
        """The multipliers, and what was seen of them on the way."""
        ...

    @property
    def key(self) -> PRNGKeyArray:
        """What its draws come from."""
        ...


@runtime_checkable
class Learner(Protocol):
    """A learner: how it starts, learns, acts, and judges."""

    Learner: type
    """A frozen dataclass of `Settings`."""

    @staticmethod
    def start(config: Any, problem: Problem, key: PRNGKeyArray, caution: Float[Array, ""] | None = None) -> OwnState:  # noqa: ANN401
        """A learner before its first iteration; `caution` multiplies how strongly it is held to the data's actions."""
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
        """The learner after so many iterations more on the buffer.

        Of `total` iterations in all, where that is known: over them rates fall, and the last of them are averaged. The
        networks see observations normalised by `statistics`, where there are any. `unseen` is what the critics are
        known to miss of the actor's costs, as the limits mean them: the multipliers see it. `whole` promises that the
        iterations are whole blocks (`path.BLOCK`).
        """
        ...

    @staticmethod
    def policy(config: Any, state: OwnState) -> PyTree:  # noqa: ANN401
        """The actor as a stochastic policy of the kind that on-policy algorithms step."""
        ...

    @staticmethod
    def check_policy(config: Any, problem: Problem, policy: policies.Config) -> None:  # noqa: ANN401
        """Raise InvalidInput unless `policy` gives one of the shape that the on-policy settings ask for."""
        ...

    @staticmethod
    def actions(state: OwnState, observation: Float[Array, "B O"]) -> Float[Array, "B A"]:
        """What the actor does, without noise; of choices, their probabilities."""
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
        """What one learner's critics say of another's actor, on average over first observations of episodes.

        In the units that learners count in (`units.Units.sums`).
        """
        ...

    @staticmethod
    def working_bytes(config: Any, problem: Problem) -> int:  # noqa: ANN401
        """About what learning needs besides the state and the buffer."""
        ...
