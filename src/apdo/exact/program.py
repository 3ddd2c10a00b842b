"""The occupancy program of a CMDP, given to HiGHS in one piece.

    max Σ x(s,a) r(s,a)   subject to   Σ_a x(s',a) - γ Σ_{s,a} P(s'|s,a) x(s,a) = start(s'),   Σ x c_i ≤ d_i,   x ≥ 0

The duals of the first rows are the values of r - Σ λ_i c_i, those of the second are λ.
"""

import dataclasses

import numpy as np
import scipy.sparse
from scipy.optimize import linprog

from apdo.errors import InvalidInput, NumericalFailure
from apdo.finite import FiniteCMDP, Floats

METHODS = ("highs-ds", "highs-ipm")


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """HiGHS's answer."""

    occupancy: Floats
    """[S, A]."""
    multipliers: Floats
    """[M]."""


def occupancy(cmdp: FiniteCMDP, method: str = "highs-ds", seconds: float = np.inf) -> Program | None:
    """The optimal occupancy and multipliers by dual simplex or by the interior point method with crossover; none if no
    policy keeps the limits. An answer that takes longer than `seconds` is a `NumericalFailure`.
    """
    if method not in METHODS:
        raise InvalidInput(f"the occupancy program is solved by {' or '.join(METHODS)}, not by {method!r}.")
    states, actions = cmdp.reward.shape
    leave = scipy.sparse.kron(scipy.sparse.eye_array(states), np.ones((actions, 1)), format="csr")
    flow = scipy.sparse.csr_array((leave - cmdp.discount * cmdp.transition).T)
    found = linprog(
        -cmdp.reward.reshape(-1),
        A_ub=cmdp.cost.reshape(cmdp.constraints, -1) if cmdp.constraints else None,
        b_ub=cmdp.limits if cmdp.constraints else None,
        A_eq=flow,
        b_eq=cmdp.start,
        bounds=(0, None),
        method=method,
        options={"time_limit": seconds},
    )
    if found.status == 2:
        return None
    if found.status != 0:
        raise NumericalFailure(f"HiGHS did not solve the occupancy program: {found.message}")
    prices = np.maximum(-found.ineqlin.marginals, 0.0) if cmdp.constraints else np.zeros(0)
    return Program(occupancy=np.maximum(found.x, 0.0).reshape(states, actions), multipliers=prices)
