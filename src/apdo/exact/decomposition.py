"""The linear program of a CMDP by Dantzig-Wolfe decomposition.

The occupancies of a CMDP are the mixtures of those of its deterministic policies p, of which an optimum needs at most
M + 1. So the program over S·A occupancies is one over mixtures,

    max Σ_p w_p R_p   subject to   Σ_p w_p C_p ≤ d,   Σ_p w_p = 1,   w ≥ 0

with M + 1 rows and a column for each policy, of which only useful ones are ever written down. HiGHS solves the program
over the columns known so far; its duals are multipliers λ; policy iteration with reward r - Σ λ_i c_i finds the column
that improves the mixture most, or shows by g(λ) that none does. The columns do not depend on the limits, so a `Pool` of
them serves every limit of a trade-off curve.

Against the occupancy program given to HiGHS in one piece (`apdo.exact.program`), this is faster by orders of magnitude
on large problems (docs/performance.md).
"""

import dataclasses

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import OptimizeResult, linprog

from apdo.errors import NumericalFailure
from apdo.exact import dual
from apdo.exact.evaluation import deterministic, evaluate
from apdo.finite import FiniteCMDP, Floats

GAP = 1e-11
"""The decomposition ends when the dual function is this near to the mixture's value, relative to the returns."""
FEASIBLE = 1e-9
"""Limits missed by no more than this, relative to the costs, count as kept: least costs are themselves rounded."""
COLUMNS = 5000
TIGHT = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}


@dataclasses.dataclass(frozen=True, eq=False)
class Mixture:
    """An optimal mixture of deterministic policies."""

    weights: Floats
    """[P]: over the columns of the pool."""
    multipliers: Floats
    """[M]."""
    upper: float
    """g(λ): no policy that keeps the limits earns more."""
    actions: NDArray[np.intp]
    """[S]: optimal for r - Σ λ_i c_i from every state."""
    state_values: Floats
    """[S]: its values."""


@dataclasses.dataclass(frozen=True, eq=False)
class Violation:
    """By how much all limits must be raised together before some policy keeps them; at most 0 if one does."""

    amount: float
    costs: Floats
    """[M]: the costs of the mixture that needs the least."""


class Pool:
    """Deterministic policies of one CMDP with their returns and costs, whatever the limits."""

    def __init__(self, cmdp: FiniteCMDP) -> None:
        self._cmdp = cmdp
        self.actions: list[NDArray[np.intp]] = []
        self._gains: list[float] = []
        self._costs: list[Floats] = []

    @property
    def gains(self) -> Floats:
        """[P]: R_p."""
        return np.asarray(self._gains)

    @property
    def costs(self) -> Floats:
        """[M, P]: C_p."""
        return np.stack(self._costs, axis=1)

    def add(self, actions: NDArray[np.intp]) -> None:
        """A policy and its sums."""
        found = evaluate(self._cmdp, deterministic(actions, self._cmdp.actions))
        self.actions.append(actions)
        self._gains.append(found.value)
        self._costs.append(found.costs)

    def best(self, gain: float, prices: Floats) -> tuple[NDArray[np.intp], Floats]:
        """The best actions of all policies for gain · r - Σ λ_i c_i, from the best policy known, and their values."""
        reward = gain * self._cmdp.reward - np.tensordot(prices, self._cmdp.cost, axes=1)
        known = self.actions[int(np.argmax(gain * self.gains - prices @ self.costs))] if self.actions else None
        return dual.improve(self._cmdp, reward, known)


def least_costs(cmdp: FiniteCMDP, pool: Pool) -> Floats:
    """[M]: the least that each cost alone can be."""
    least = []
    for i in range(cmdp.constraints):
        actions, values = pool.best(0.0, np.eye(cmdp.constraints)[i])
        pool.add(actions)
        least.append(0.0 - float(cmdp.start @ values))  # and not -0
    return np.asarray(least, dtype=np.float64)


def violation(cmdp: FiniteCMDP, pool: Pool, *, to_the_end: bool = False) -> Violation:
    """The smallest uniform relaxation of the limits; stops at the first mixture that keeps them unless told not to.

    min t  subject to  Σ_p w_p C_p - t ≤ d,  Σ_p w_p = 1,  by columns as above: its duals ν ≥ 0 sum to one and the
    column to add is the policy of least Σ ν_i C_i.
    """
    m = cmdp.constraints
    if not pool.actions:
        pool.add(pool.best(1.0, np.zeros(m))[0])
    if m == 0:
        return Violation(amount=-np.inf, costs=np.zeros(0))
    while True:
        excess = pool.costs - cmdp.limits[:, None]
        size = max(np.abs(excess).max(), 1e-300)
        columns = excess.shape[1]
        found = _highs(
            np.r_[np.zeros(columns), 1.0],
            np.hstack([excess / size, -np.ones((m, 1))]),
            np.zeros(m),
            np.r_[np.ones(columns), 0.0][None],
            free_last=True,
        )
        weights = found.x[:columns]
        amount = size * float(found.fun)
        slack = FEASIBLE * max(np.abs(pool.costs).max(), np.abs(cmdp.limits).max())
        now = Violation(amount=amount, costs=pool.costs @ weights)
        if amount <= 0 and not to_the_end:
            return now
        prices = np.maximum(-found.ineqlin.marginals, 0.0)
        actions, values = pool.best(0.0, prices)
        # The relaxation is at least what the best policy at these prices still misses.
        bound = -float(cmdp.start @ values) - prices @ cmdp.limits
        if amount - bound <= 1e-3 * slack or not _new(pool, actions):
            return now
        pool.add(actions)


def mix(cmdp: FiniteCMDP, pool: Pool, gap: float = GAP) -> Mixture:
    """The best mixture up to a relative gap; limits must be feasible, and the pool have a mixture that keeps them."""
    while True:
        weights, prices = _master(cmdp, pool)
        actions, values = pool.best(1.0, prices)
        upper = float(cmdp.start @ values + prices @ cmdp.limits)
        mixed = float(pool.gains @ weights)
        size = max(np.abs(pool.gains).max(), float(prices @ np.abs(cmdp.limits)), 1e-300)
        if upper - mixed <= gap * size or not _new(pool, actions):
            return Mixture(weights=weights, multipliers=prices, upper=upper, actions=actions, state_values=values)
        if len(pool.actions) >= COLUMNS:
            raise NumericalFailure(f"the decomposition did not settle within {COLUMNS} policies.")
        pool.add(actions)


def interval(cmdp: FiniteCMDP, pool: Pool, value: float, constraint: int) -> tuple[float, float]:
    """The least and the greatest optimal λ_i (infinite where it is unbounded).

    The optimal multipliers are the λ ≥ 0 with g(λ) = V, where V is the optimal value: a polytope. Over it λ_i reaches
    from the right derivative of V in the limit d_i to its left derivative. Each end is a small program over λ with one
    row, R_p - λ·(C_p - d) ≤ V, for each policy known, to which the policy that breaks g(λ) ≤ V most is added until none
    does. V is known up to rounding, which widens the interval by rounding over slope.
    """
    m = cmdp.constraints
    direction = np.eye(m)[constraint]
    ends = []
    for sign in (1.0, -1.0):
        while True:
            excess = pool.costs - cmdp.limits[:, None]
            slack = _rounding(pool, value)
            reach = np.maximum(np.abs(excess).max(axis=1), 1e-300)
            size = max(np.abs(pool.gains - value).max(), slack, 1e-300)
            # λ_i in units of size / reach_i, so that every coefficient is of order one.
            rows, right = -(excess / reach[:, None]).T, (value + slack - pool.gains) / size
            found = linprog(sign * direction, A_ub=rows, b_ub=right, bounds=(0, None), method="highs", options=TIGHT)
            if found.status == 3:
                ends.append(np.inf)
                break
            if found.status != 0:
                raise NumericalFailure(f"the interval of the multipliers was not found: {found.message}")
            prices = np.maximum(found.x, 0.0) * size / reach
            actions, values = pool.best(1.0, prices)
            upper = float(cmdp.start @ values + prices @ cmdp.limits)
            if upper <= value + 2 * slack or not _new(pool, actions):
                ends.append(float(prices[constraint]))
                break
            pool.add(actions)
    return ends[0], ends[1]


def _rounding(pool: Pool, value: float) -> float:
    return GAP * max(np.abs(pool.gains).max(), abs(value), 1e-300)


def _new(pool: Pool, actions: NDArray[np.intp]) -> bool:
    return not any(np.array_equal(actions, known) for known in pool.actions)


def _master(cmdp: FiniteCMDP, pool: Pool) -> tuple[Floats, Floats]:
    """Weights [P] and multipliers [M] over the columns known, with everything scaled to order one for HiGHS."""
    gains, excess = pool.gains, pool.costs - cmdp.limits[:, None]
    if cmdp.constraints == 0:
        return np.eye(len(gains))[int(np.argmax(gains))], np.zeros(0)
    spread = max(np.ptp(gains), 1e-12 * np.abs(gains).max(), 1e-300)
    size = np.maximum(np.abs(excess).max(axis=1), 1e-300)
    # Limits at the very edge of what is feasible are missed by rounding; HiGHS is let off that much.
    edge = FEASIBLE * np.maximum(np.abs(pool.costs).max(), np.abs(cmdp.limits).max()) / size
    costs, ones = excess / size[:, None], np.ones((1, len(gains)))
    objective = -(gains - gains.max()) / spread
    found = _highs(objective, costs, np.zeros_like(size), ones, or_with=edge)
    prices = np.maximum(-found.ineqlin.marginals, 0.0) * spread / size
    weights = np.maximum(found.x, 0.0)
    return weights / weights.sum(), prices


def _highs(
    objective: Floats,
    rows: Floats,
    right: Floats,
    sums: Floats,
    *,
    free_last: bool = False,
    or_with: Floats | None = None,
) -> OptimizeResult:
    bounds = [(0, None)] * (len(objective) - free_last) + [(None, None)] * free_last
    found = linprog(
        objective, A_ub=rows, b_ub=right, A_eq=sums, b_eq=[1.0], bounds=bounds, method="highs-ds", options=TIGHT
    )
    if found.status == 2 and or_with is not None:
        return _highs(objective, rows, right + or_with, sums, free_last=free_last)
    if found.status != 0:
        raise NumericalFailure(f"HiGHS did not solve the program over {len(objective)} policies: {found.message}")
    return found
