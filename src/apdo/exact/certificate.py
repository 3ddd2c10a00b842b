"""A proof that a policy and multipliers are optimal, which does not rely on the optimiser's own numbers.

Weak duality: let λ ≥ 0, and let v be any values with v ≥ r - Σ λ_i c_i + γ P v everywhere. Then every policy that keeps
the limits has a return of at most start·v + λ·d. A policy that keeps them and attains this return is optimal, and λ is
an optimal multiplier. The policy's return and costs are computed by a sparse linear solve, and the inequality is
checked with one sparse product.
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
    """The largest excess over a limit: max_i C_i(π) - d_i, or 0."""
    dual_violation: float
    """The largest violation of the dual's constraints: of r - Σ λ_i c_i + γ P v - v ≤ 0, and of -λ ≤ 0."""
    gap: float
    """A bound on R* - R(π): start·v + λ·d + (longest episode) · (dual violation) - R(π)."""
    primal_scale: float
    """Largest of the limits and the costs of one step."""
    dual_scale: float
    """Largest reward r - Σ λ_i c_i of one step."""
    gap_scale: float
    """Larger of |R(π)| and the largest reward of one step."""
    tolerance: float = TOLERANCE
    """The largest allowed violations and gap, relative to the scales."""

    @property
    def holds(self) -> bool:
        """Whether both violations and the gap are zero up to the tolerance. False if any is NaN."""
        return bool(
            self.primal_violation <= self.tolerance * self.primal_scale
            and self.dual_violation <= self.tolerance * self.dual_scale
            # A return above the upper bound shows an error in the numbers, so it is no proof either.
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
    """The certificate of a policy that has been evaluated already."""
    reward = priced(cmdp, prices)
    residual = float((backup(cmdp, reward, values) - values[:, None]).max())
    negative = float(np.max(-prices, initial=0.0))
    # Raising v by residual · (steps to the end) makes it feasible, and raises the bound by as much.
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
