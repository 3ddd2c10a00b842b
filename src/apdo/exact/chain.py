"""The Markov chain of one policy: (I - γ P_π) v = b for values, and the transposed system for visits.

There are two methods, and the faster one is used. A direct factorisation suits small chains, and chains whose time is
folded into the state (the matrix is triangular and has no fill-in). On a large chain without structure a factorisation
has much fill-in. There a Krylov method converges within some tens of products, because γ < 1 bounds the spectrum. The
residual of each answer is computed.
"""

from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse
import scipy.sparse.linalg

from apdo.errors import NumericalFailure
from apdo.finite import FiniteCMDP, Floats

FACTORISED = 100
"""Up to this many states, factorisation is fast for any structure."""
PRECISION = 1e-13
"""The desired residual, relative to the largest entry of the answer."""
WORST = 1e-8
"""An answer with a larger relative residual is refused."""
KRYLOV_ROUNDS = 6
KRYLOV_STEPS = 300


class Chain:
    """The Markov chain of a policy [S, A] in a CMDP."""

    def __init__(self, cmdp: FiniteCMDP, policy: Floats) -> None:
        states, actions = policy.shape
        weights = scipy.sparse.csr_array(
            (policy.reshape(-1), np.arange(states * actions), np.arange(0, states * actions + 1, actions)),
            shape=(states, states * actions),
        )
        weights = weights.copy()
        weights.eliminate_zeros()
        moves = scipy.sparse.csr_array(weights @ cmdp.transition)
        self._matrix = scipy.sparse.csc_array(scipy.sparse.eye_array(states) - cmdp.discount * moves)
        rows = np.repeat(np.arange(states), np.diff(moves.indptr))
        self._triangular = bool((moves.indices > rows).all())
        self._direct = self._triangular or states <= FACTORISED

    def values(self, signal: Floats) -> Floats:
        """[S]: the expected discounted sum of a signal [S] from each state."""
        return self._solve(signal, transposed=False)

    def visits(self, start: Floats) -> Floats:
        """[S]: the expected discounted number of visits to each state."""
        return self._solve(start, transposed=True)

    @cached_property
    def _factors(self) -> Any:  # noqa: ANN401 - SuperLU is not a public class
        # The matrix is a row-dominant M-matrix. It needs no pivoting, so the order can be chosen for sparsity alone.
        order = "NATURAL" if self._triangular else "MMD_AT_PLUS_A"
        return scipy.sparse.linalg.splu(
            self._matrix, permc_spec=order, diag_pivot_thresh=0.0, options={"SymmetricMode": True}
        )

    def _solve(self, right: Floats, *, transposed: bool) -> Floats:
        matrix = scipy.sparse.csr_array(self._matrix.T if transposed else self._matrix)

        def residual(answer: Floats) -> Floats:
            return right - matrix @ answer

        def error(answer: Floats) -> float:
            # The comparison is written so that a NaN gives an infinite error.
            worst = np.abs(residual(answer)).max()
            return float(worst / max(np.abs(answer).max(), np.abs(right).max(), 1e-300)) if worst >= 0 else np.inf

        if not self._direct:
            # The method sometimes breaks down, so it is restarted on the residual.
            answer = np.zeros_like(right)
            for _ in range(KRYLOV_ROUNDS):
                answer = answer + _bicgstab(matrix, residual(answer), tolerance=1e-9)
                if error(answer) <= PRECISION:
                    return answer
            self._direct = True
        way = "T" if transposed else "N"
        answer = self._factors.solve(right, way)
        if error(answer) > PRECISION:
            answer = answer + self._factors.solve(residual(answer), way)
        if error(answer) > WORST:
            raise NumericalFailure(
                f"the values of a policy came out with a relative error of {error(answer):.1g}; episodes last too long "
                "for double precision, so lower the discount or let them end."
            )
        return answer


def _bicgstab(matrix: scipy.sparse.csr_array, right: Floats, tolerance: float) -> Floats:
    """BiCGSTAB (van der Vorst, 1992) from zero, until it converges or breaks down.

    SciPy's version computes inner products with BLAS. Its threads slow down products of vectors of this length, by
    several times on a busy machine. `einsum` has no threads.
    """

    def dot(one: Floats, other: Floats) -> float:
        return float(np.einsum("i,i->", one, other))

    answer, left, shadow = np.zeros_like(right), right, right
    direction, image = np.zeros_like(right), np.zeros_like(right)
    rho = alpha = omega = 1.0
    goal = tolerance**2 * dot(right, right)
    for _ in range(KRYLOV_STEPS):
        size = dot(left, left)
        before, rho = rho, dot(shadow, left)
        # Stop if converged, or if the residual is orthogonal to the shadow, where the next step would divide by zero.
        if size <= goal or rho**2 <= 1e-30 * size * dot(shadow, shadow):
            break
        direction = left + rho / before * alpha / omega * (direction - omega * image)
        image = matrix @ direction
        along = dot(shadow, image)
        if along == 0:
            break
        alpha = rho / along
        half = left - alpha * image
        turned = matrix @ half
        square = dot(turned, turned)
        omega = dot(turned, half) / square if square > 0 else 0.0
        answer = answer + alpha * direction + omega * half
        left = half - omega * turned
        if omega == 0:
            break
    return answer
