"""The whole occupancy program of a CMDP, solved by HiGHS.

    max Σ x(s,a) r(s,a)   subject to   Σ_a x(s',a) - γ Σ_{s,a} P(s'|s,a) x(s,a) = start(s'),   Σ x c_i ≤ d_i,   x ≥ 0

The duals of the equations are the values of r - Σ λ_i c_i, and those of the inequalities are λ.
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
    """The solution of the program."""

    occupancy: Floats
    """[S, A]: x."""
    multipliers: Floats
    """[M]: λ."""


def occupancy(cmdp: FiniteCMDP, method: str = "highs-ds", seconds: float = np.inf) -> Program | None:
    """The optimal occupancy and multipliers, by dual simplex or by the interior point method with crossover.

    It is None if no policy keeps the limits. A solution that takes longer than `seconds` raises `NumericalFailure`.
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
