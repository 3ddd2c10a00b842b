"""Return and costs of a given policy, by linear solves."""

import dataclasses

import numpy as np
from numpy.typing import ArrayLike

from apdo.errors import InvalidInput
from apdo.exact.chain import Chain
from apdo.finite import FiniteCMDP, Floats


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluation:
    """A policy's return, costs and occupancy from the start distribution."""

    value: float
    """R(π), the expected discounted return."""
    costs: Floats
    """[M]: C_i(π), the expected discounted costs."""
    occupancy: Floats
    """[S, A]: expected discounted visits Σ_t γ^t P(s_t = s, a_t = a). Not normalised: R(π) = Σ occupancy · reward."""


def evaluate(cmdp: FiniteCMDP, policy: ArrayLike) -> Evaluation:
    """Return, costs and occupancy of a stationary policy [S, A], each row a distribution over actions."""
    checked = check_policy(cmdp, policy)
    visits = np.maximum(Chain(cmdp, checked).visits(cmdp.start), 0.0)
    occupancy = visits[:, None] * checked
    costs = np.asarray([np.sum(occupancy * cost) for cost in cmdp.cost], dtype=np.float64)
    return Evaluation(value=float(np.sum(occupancy * cmdp.reward)), costs=costs, occupancy=occupancy)


def check_policy(cmdp: FiniteCMDP, policy: ArrayLike) -> Floats:
    """The policy as floats; InvalidInput if it is not a policy for this problem."""
    array = np.asarray(policy, dtype=np.float64)
    if array.shape != cmdp.reward.shape:
        raise InvalidInput(f"a policy here has shape {list(cmdp.reward.shape)}, and {list(array.shape)} was given.")
    off = ~((array >= 0).all(axis=1) & (np.abs(array.sum(axis=1) - 1) < 1e-9))
    if off.any():
        raise InvalidInput(
            f"a policy's rows are distributions over actions, and that of state {np.argmax(off)} is not."
        )
    return array


def deterministic(actions: np.ndarray, count: int) -> Floats:
    """The policy [S, A] that takes the given action in each state."""
    return np.eye(count)[actions]
