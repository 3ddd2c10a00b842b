"""The value functions of PDO: one for the reward and one for each cost, or a single one of r - Σ λ_i c_i.

The published code has a single one. It gives no advantages of the costs, in which gains could be counted or a step
could be seen to carry a cost through its limit, and it has the multipliers inside before they move.
"""

from typing import Protocol, runtime_checkable

from jaxtyping import Array, Float

from apdo.algorithms import on_policy
from apdo.core import critics
from apdo.core.data import Transition
from apdo.errors import InvalidInput
from apdo.problem import Problem


@runtime_checkable
class Config(Protocol):
    """What of PDO's settings the value functions need, or must agree with."""

    @property
    def values(self) -> str:
        """`separate` or `combined`."""
        ...

    @property
    def trace(self) -> float:
        """λ of generalised advantage estimation, reward."""
        ...

    @property
    def cost_trace(self) -> float:
        """The same for costs."""
        ...

    @property
    def units(self) -> str:
        """What the multipliers' gains are counted in."""
        ...

    @property
    def first(self) -> str:
        """What moves first in an epoch."""
        ...


def signals(config: Config, problem: Problem) -> int:
    """How many there are; InvalidInput where other options do not allow for a single one."""
    if config.values == "separate":
        return 1 + problem.constraints
    if config.units == "relative":
        raise InvalidInput("values combined has no advantages of the costs to count gains in; it needs units own.")
    if config.first == "multipliers":
        raise InvalidInput("values combined has the multipliers inside before they move; it needs first policy.")
    return 1


def estimates(
    config: Config, problem: Problem, critic: critics.Critic, multiplier: Float[Array, " M"], batch: Transition
) -> critics.Estimates:
    """Advantages and value targets: of each signal or, with a combined value function, of r - Σ λ_i c_i."""
    if config.values == "separate":
        return on_policy.estimate(problem, critic, batch, config.trace, config.cost_trace)
    return on_policy.estimate_one(problem, critic, batch, batch.reward - batch.cost @ multiplier, config.trace)
