"""Proof that a policy and multipliers are optimal, from numbers that no optimiser produced.

Weak duality: for any λ ≥ 0 and any values v with v ≥ r - Σ λ_i c_i + γ P v everywhere, every policy that keeps the
limits earns at most start·v + λ·d. So a policy that keeps them and earns that much is optimal, and λ is an optimal
multiplier. Return and costs of the policy come from a sparse linear solve, the inequality from one sparse product.
"""

import dataclasses

import numpy as np
from numpy.typing import ArrayLike

from apdo.exact.dual import backup, longest, priced
from apdo.exact.evaluation import Evaluation, evaluate
from apdo.finite import FiniteCMDP, Floats

TOLERANCE = 1e-7


@dataclasses.dataclass(frozen=True)
class Certificate:
    """How far a policy and multipliers are from a proof of optimality. Zeros are a proof."""

    primal_violation: float
    """By how much the policy exceeds a limit, at most: max_i C_i(π) - d_i, or 0."""
    dual_violation: float
    """By how much values and multipliers break the dual's constraints, at most: r - Σ λ_i c_i + γ P v - v, and -λ."""
    gap: float
    """What optimal could at most be above R(π): start·v + λ·d + (longest episode) · (dual violation) - R(π)."""
    primal_scale: float
    """Largest of the limits and the costs of one step."""
    dual_scale: float
    """Largest reward r - Σ λ_i c_i of one step."""
    gap_scale: float
    """Larger of |R(π)| and the largest reward of one step."""
    tolerance: float = TOLERANCE
    """What is allowed, relative to the scales."""

    @property
    def holds(self) -> bool:
        """Whether all three are zero up to the tolerance. NaN is not."""
        return bool(
            self.primal_violation <= self.tolerance * self.primal_scale
            and self.dual_violation <= self.tolerance * self.dual_scale
            # A policy above the upper bound proves as little as one below it.
            and abs(self.gap) <= self.tolerance * self.gap_scale
        )


def certify(cmdp: FiniteCMDP, policy: ArrayLike, multipliers: ArrayLike, state_values: ArrayLike) -> Certificate:
    """The certificate of a policy [S, A], multipliers λ [M] and values v [S] of r - Σ λ_i c_i."""
    return certify_evaluated(
        cmdp,
        evaluate(cmdp, policy),
        np.asarray(multipliers, dtype=np.float64),
        np.asarray(state_values, dtype=np.float64),
    )


def certify_evaluated(cmdp: FiniteCMDP, found: Evaluation, prices: Floats, values: Floats) -> Certificate:
    """The same for a policy that has been evaluated."""
    reward = priced(cmdp, prices)
    residual = float((backup(cmdp, reward, values) - values[:, None]).max())
    negative = float(np.max(-prices, initial=0.0))
    # Raising v by residual · (steps to the end) makes it feasible, at that price in the bound.
    bound = cmdp.start @ values + prices @ cmdp.limits + longest(cmdp) * max(residual, 0.0)
    most = np.abs(cmdp.reward).max()
    return Certificate(
        primal_violation=float(np.max(found.costs - cmdp.limits, initial=0.0)),
        dual_violation=max(residual, negative, 0.0),
        gap=float(bound - found.value),
        primal_scale=float(max(np.abs(cmdp.limits).max(initial=0.0), np.abs(cmdp.cost).max(initial=0.0))),
        dual_scale=float(max(np.abs(reward).max(), 1e-300)),
        gap_scale=float(max(abs(found.value), most, 1e-300)),
    )
