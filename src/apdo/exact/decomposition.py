"""The linear program of a CMDP by Dantzig-Wolfe decomposition.

The occupancies of a CMDP are the mixtures of the occupancies of its deterministic policies p, and an optimum mixes at
most M + 1 of them. So the program over S·A occupancies becomes a program over mixtures:

    max Σ_p w_p R_p   subject to   Σ_p w_p C_p ≤ d,   Σ_p w_p = 1,   w ≥ 0

It has M + 1 rows and a column for each policy, and columns are added only when they are useful. HiGHS solves the
program over the known columns; its duals are the multipliers λ. Policy iteration with reward r - Σ λ_i c_i then finds
the column that improves the mixture most, or shows by g(λ) that none does. Columns do not depend on the limits, so all
limits of a trade-off curve share one `Pool` of columns.

On large problems this is faster by orders of magnitude than giving HiGHS the whole occupancy program
(`apdo.exact.program`; docs/performance.md).
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
"""The decomposition ends when the dual function is this close to the mixture's value, relative to the returns."""
FEASIBLE = 1e-9
"""An excess of at most this share of the costs counts as rounding: least costs have rounding errors themselves."""
COLUMNS = 5000
"""The most policies before the decomposition gives up."""
TIGHT = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}


@dataclasses.dataclass(frozen=True, eq=False)
class Mixture:
    """An optimal mixture of deterministic policies."""

    weights: Floats
    """[P]: the weights of the columns of the pool."""
    multipliers: Floats
    """[M]: λ."""
    upper: float
    """g(λ), an upper bound on the return of policies that keep the limits."""
    actions: NDArray[np.intp]
    """[S]: the deterministic policy that is optimal for r - Σ λ_i c_i from every state."""
    state_values: Floats
    """[S]: the values of that policy."""


@dataclasses.dataclass(frozen=True, eq=False)
class Violation:
    """The smallest amount by which all limits must be raised together before some policy keeps them."""

    amount: float
    """The amount, in units of the costs. It is at most 0 if some policy keeps the limits."""
    costs: Floats
    """[M]: the costs of the mixture that needs the smallest amount."""


class Pool:
    """Deterministic policies of one CMDP with their returns and costs, which do not depend on the limits."""

    def __init__(self, cmdp: FiniteCMDP) -> None:
        self._cmdp = cmdp
        self.actions: list[NDArray[np.intp]] = []
        self._gains: list[float] = []
        self._costs: list[Floats] = []

    @property
    def gains(self) -> Floats:
        """[P]: the returns R_p."""
        return np.asarray(self._gains)

    @property
    def costs(self) -> Floats:
        """[M, P]: the costs C_p."""
        return np.stack(self._costs, axis=1)

    def add(self, actions: NDArray[np.intp]) -> None:
        """Add a policy with its return and costs."""
        found = evaluate(self._cmdp, deterministic(actions, self._cmdp.actions))
        self.actions.append(actions)
        self._gains.append(found.value)
        self._costs.append(found.costs)

    def best(self, gain: float, prices: Floats) -> tuple[NDArray[np.intp], Floats]:
        """The optimal actions for the reward gain · r - Σ λ_i c_i, and their values.

        Policy iteration starts from the best policy in the pool.
        """
        reward = gain * self._cmdp.reward - np.tensordot(prices, self._cmdp.cost, axes=1)
        known = self.actions[int(np.argmax(gain * self.gains - prices @ self.costs))] if self.actions else None
        return dual.improve(self._cmdp, reward, known)


def least_costs(cmdp: FiniteCMDP, pool: Pool) -> Floats:
    """[M]: the least possible value of each cost, if the other costs do not matter."""
    least = []
    for i in range(cmdp.constraints):
        actions, values = pool.best(0.0, np.eye(cmdp.constraints)[i])
        pool.add(actions)
        least.append(0.0 - float(cmdp.start @ values))  # and not -0
    return np.asarray(least, dtype=np.float64)


def violation(cmdp: FiniteCMDP, pool: Pool, *, to_the_end: bool = False) -> Violation:
    """The smallest uniform relaxation of the limits. It stops at the first mixture that keeps them unless `to_the_end`.

    min t  subject to  Σ_p w_p C_p - t ≤ d,  Σ_p w_p = 1  is solved by adding columns, as above. Its duals ν ≥ 0 sum to
    one, and the next column is the policy with the least Σ ν_i C_i.
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
        # Weak duality gives a lower bound on the relaxation.
        bound = -float(cmdp.start @ values) - prices @ cmdp.limits
        if amount - bound <= 1e-3 * slack or not _new(pool, actions):
            return now
        pool.add(actions)


def mix(cmdp: FiniteCMDP, pool: Pool, gap: float = GAP) -> Mixture:
    """The best mixture up to a relative gap. The pool must contain a mixture that keeps the limits."""
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
    """The least and the greatest optimal λ_i (infinite if it is unbounded).

    The optimal multipliers are the polytope of λ ≥ 0 with g(λ) = V, where V is the optimal value. In it λ_i ranges from
    the right derivative of V in the limit d_i to its left derivative. Each end is the solution of a small linear
    program over λ, with one row R_p - λ·(C_p - d) ≤ V for each known policy. The policy that violates g(λ) ≤ V most is
    added until none does. V is known up to rounding, which widens the interval by the rounding error over the slope.
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
    """Weights [P] and multipliers [M] over the known columns. Everything is scaled to order one for HiGHS."""
    gains, excess = pool.gains, pool.costs - cmdp.limits[:, None]
    if cmdp.constraints == 0:
        return np.eye(len(gains))[int(np.argmax(gains))], np.zeros(0)
    spread = max(np.ptp(gains), 1e-12 * np.abs(gains).max(), 1e-300)
    size = np.maximum(np.abs(excess).max(axis=1), 1e-300)
    # If limits are only just feasible, rounding makes the program infeasible. It is then solved with relaxed limits.
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
