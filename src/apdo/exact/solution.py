"""The optimum of a finite CMDP with its proof, a description of infeasible limits, and the optimum for many limits."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from apdo.errors import InvalidInput, unknown
from apdo.exact import decomposition, program
from apdo.exact.certificate import Certificate, certify_evaluated
from apdo.exact.dual import lagrangian
from apdo.exact.evaluation import deterministic, evaluate
from apdo.finite import FiniteCMDP, Floats

METHODS = ("decomposition", *program.METHODS)
RARE = 1e-10
"""States with less than this share of all visits count as not visited: their occupancies are rounding errors."""
UNIQUE = 1e-4
"""An interval of multipliers narrower than this, relative to 1 + λ, counts as a single multiplier."""


@dataclasses.dataclass(frozen=True, eq=False)
class Solution:
    """An optimal stationary policy, optimal multipliers, and the proof that they are optimal."""

    policy: Floats
    """[S, A]: π. At states that it never visits, it is greedy for the reward r - Σ λ_i c_i."""
    value: float
    """R(π), the optimal expected discounted return."""
    costs: Floats
    """[M]: C(π)."""
    multipliers: Floats
    """[M]: λ* ≥ 0. If it is not unique, this is one of the optimal multipliers."""
    multiplier_low: Floats
    """[M]: the least optimal λ_i, the marginal gain in return if the limit d_i is raised."""
    multiplier_high: Floats
    """[M]: the greatest optimal λ_i, perhaps infinite, the marginal loss of return if the limit d_i is lowered."""
    occupancy: Floats
    """[S, A]: expected discounted visits Σ_t γ^t P(s_t = s, a_t = a), not normalised."""
    state_values: Floats
    """[S]: the optimal values of r - Σ λ_i c_i."""
    certificate: Certificate

    @property
    def unique(self) -> bool:
        """Whether λ* is the only optimal one, up to rounding."""
        width = self.multiplier_high - self.multiplier_low
        return bool((width <= UNIQUE * (1 + self.multipliers)).all())


class Infeasible(InvalidInput):
    """No policy keeps the limits."""

    def __init__(self, cmdp: FiniteCMDP, excess: float, least: Floats) -> None:
        self.excess = excess
        """The smallest amount by which all limits must be raised together."""
        self.least = least
        """[M]: the least possible value of each cost, if the other costs do not matter."""
        alone = ", ".join(
            f"{name} can be {low:.6g} at the least (limit {limit:g})"
            for name, low, limit in zip(cmdp.cost_names, least, cmdp.limits, strict=True)
        )
        each = "the limit" if cmdp.constraints == 1 else "all limits together"
        super().__init__(f"no policy keeps the limits: {alone}; raise {each} by {excess:.6g} or more.")


def solve(cmdp: FiniteCMDP, *, method: str = "decomposition") -> Solution:
    """The optimum; raises `Infeasible` if no policy keeps the limits.

    `method` is "decomposition" (the fastest), or "highs-ds" or "highs-ipm" for the whole occupancy program.
    """
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    pool = decomposition.Pool(cmdp)
    _check_feasible(cmdp, pool)
    if method == "decomposition":
        mixture = decomposition.mix(cmdp, pool)
        occupancy = _occupancy(cmdp, pool, mixture.weights)
        prices, values, actions = mixture.multipliers, mixture.state_values, mixture.actions
        greedy = deterministic(actions, cmdp.actions)
    else:
        found = program.occupancy(cmdp, method)
        if found is None:
            raise InvalidInput("HiGHS finds no policy that keeps the limits, which are feasible by rounding only.")
        point = lagrangian(cmdp, found.multipliers)
        occupancy, prices, values, greedy = found.occupancy, found.multipliers, point.state_values, point.policy
    policy = _policy(occupancy, greedy)
    outcome = evaluate(cmdp, policy)
    upper = float(cmdp.start @ values + prices @ cmdp.limits)
    ends = [decomposition.interval(cmdp, pool, upper, i) for i in range(cmdp.constraints)]
    return Solution(
        policy=policy,
        value=outcome.value,
        costs=outcome.costs,
        multipliers=prices,
        # λ* itself is optimal, so the interval contains it even if rounding moves an end past it.
        multiplier_low=np.minimum([low for low, _ in ends], prices) if ends else prices,
        multiplier_high=np.maximum([high for _, high in ends], prices) if ends else prices,
        occupancy=outcome.occupancy,
        state_values=values,
        certificate=certify_evaluated(cmdp, outcome, prices, values),
    )


@dataclasses.dataclass(frozen=True, eq=False)
class TradeOff:
    """The optimum as a function of one limit, with the other limits fixed. It is NaN if no policy keeps the limits."""

    constraint: int
    """The index of the constraint whose limit varies."""
    limits: Floats
    """[N]: the values of that limit."""
    values: Floats
    """[N]: the optimal returns, a concave and non-decreasing function of the limit."""
    multipliers: Floats
    """[N, M]: optimal λ. The multiplier of the constraint itself is the slope of `values`."""


def trade_off(cmdp: FiniteCMDP, constraint: int, limits: ArrayLike) -> TradeOff:
    """The optimal return and multipliers for each of the limits of one constraint."""
    if not 0 <= constraint < cmdp.constraints:
        raise InvalidInput(f"there are {cmdp.constraints} constraints, and number {constraint} is none of them.")
    points = np.asarray(limits, dtype=np.float64)
    return _trade_off(cmdp, decomposition.Pool(cmdp), constraint, points)


def trade_offs(cmdp: FiniteCMDP, points: int = 41, gap: float = decomposition.GAP) -> list[TradeOff]:
    """For each constraint, the whole trade-off curve: from the least feasible limit to one that is slack.

    A relative gap of 1e-5 is enough for a picture, and saves most of the time.
    """
    pool = decomposition.Pool(cmdp)
    _check_feasible(cmdp, pool)
    decomposition.least_costs(cmdp, pool)
    curves = []
    for i in range(cmdp.constraints):
        lowest = _least_given_others(cmdp, pool, i)
        slack = float(_free(cmdp, pool, i))
        width = max(slack, cmdp.limits[i]) - lowest
        margin = 0.08 * width if width > 0 else max(abs(lowest), 1.0)
        grid = np.linspace(lowest, max(slack, cmdp.limits[i]) + margin, points)
        curves.append(_trade_off(cmdp, pool, i, np.unique(np.r_[grid, cmdp.limits[i], slack]), gap))
    return curves


def _trade_off(
    cmdp: FiniteCMDP, pool: decomposition.Pool, constraint: int, limits: Floats, gap: float = decomposition.GAP
) -> TradeOff:
    values, prices = np.full(len(limits), np.nan), np.full((len(limits), cmdp.constraints), np.nan)
    for n, limit in enumerate(limits):
        changed = _with_limit(cmdp, constraint, float(limit))
        if decomposition.violation(changed, pool).amount <= _allowed(changed):
            mixture = decomposition.mix(changed, pool, gap)
            values[n], prices[n] = float(pool.gains @ mixture.weights), mixture.multipliers
    return TradeOff(constraint=constraint, limits=limits, values=values, multipliers=prices)


def _check_feasible(cmdp: FiniteCMDP, pool: decomposition.Pool) -> None:
    if decomposition.violation(cmdp, pool).amount > _allowed(cmdp):
        least = decomposition.least_costs(cmdp, pool)
        raise Infeasible(cmdp, decomposition.violation(cmdp, pool, to_the_end=True).amount, least)


def _allowed(cmdp: FiniteCMDP) -> float:
    """The largest excess over a limit that counts as rounding."""
    return decomposition.FEASIBLE * max(np.abs(cmdp.limits).max(initial=0.0), np.abs(cmdp.cost).max(initial=0.0))


def _with_limit(cmdp: FiniteCMDP, constraint: int, limit: float) -> FiniteCMDP:
    limits = cmdp.limits.copy()
    limits[constraint] = limit
    return cmdp.with_limits(limits)


def _without(cmdp: FiniteCMDP, constraint: int) -> FiniteCMDP:
    """The problem without one of its constraints."""
    kept = [i for i in range(cmdp.constraints) if i != constraint]
    return dataclasses.replace(
        cmdp, cost=cmdp.cost[kept], limits=cmdp.limits[kept], cost_names=tuple(cmdp.cost_names[i] for i in kept)
    )


def _least_given_others(cmdp: FiniteCMDP, pool: decomposition.Pool, constraint: int) -> float:
    """The least possible value of one cost while the other limits are kept: a CMDP whose reward is minus that cost."""
    others = _without(dataclasses.replace(cmdp, reward=-cmdp.cost[constraint]), constraint)
    own = decomposition.Pool(others)
    decomposition.violation(others, own)
    mixture = decomposition.mix(others, own)
    # The pool gets these policies, because the curve begins at this limit.
    for column in np.flatnonzero(mixture.weights > 0):
        pool.add(own.actions[column])
    return -float(own.gains @ mixture.weights)


def _free(cmdp: FiniteCMDP, pool: decomposition.Pool, constraint: int) -> float:
    """The cost of an optimal policy without the limit on this cost."""
    others = _without(cmdp, constraint)
    own = decomposition.Pool(others)
    decomposition.violation(others, own)
    weights = decomposition.mix(others, own).weights
    total = 0.0
    for column in np.flatnonzero(weights > 0):
        pool.add(own.actions[column])
        total += weights[column] * pool.costs[constraint, -1]
    return total


def _occupancy(cmdp: FiniteCMDP, pool: decomposition.Pool, weights: Floats) -> Floats:
    total = np.zeros_like(cmdp.reward)
    for column in np.flatnonzero(weights > 0):
        total += weights[column] * evaluate(cmdp, deterministic(pool.actions[column], cmdp.actions)).occupancy
    return total


def _policy(occupancy: Floats, greedy: Floats) -> Floats:
    """The policy of an occupancy. It is greedy at states without visits."""
    visits = occupancy.sum(axis=1)
    visited = visits > RARE * visits.sum()
    return np.where(visited[:, None], occupancy / np.where(visited, visits, 1.0)[:, None], greedy)


def mixed_states(policy: Sequence[Sequence[float]] | Floats, threshold: float = 1e-9) -> int:
    """The number of states in which a policy mixes actions. An optimum needs at most M of them."""
    return int((np.sum(np.asarray(policy) > threshold, axis=1) > 1).sum())
