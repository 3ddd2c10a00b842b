"""The value functions of PDO: one for the reward and one for each cost, or a single one of r - Σ λ_i c_i.

The published code has a single one. A single one gives no advantages of the costs. Gains then have no relative units,
and the effect of a step on a cost is unknown. It also includes the multipliers from before their update.
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
    """The part of PDO's settings that the value functions need, or must agree with."""

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
        """λ of generalised advantage estimation, costs."""
        ...

    @property
    def units(self) -> str:
        """The units of the multipliers' gains."""
        ...

    @property
    def first(self) -> str:
        """What is updated first in an epoch, `policy` or `multipliers`."""
        ...


def signals(config: Config, problem: Problem) -> int:
    """The number of value functions; InvalidInput if other options contradict a single one."""
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
