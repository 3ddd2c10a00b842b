"""CPO's step: the best move inside a trust region and a set of linear constraints, from a handful of numbers.

g is the gradient of the objective, b_i those of the constraints, H the Fisher matrix, c_i = C_i(π) - d_i, and δ the
radius:

    maximise gᵀx   subject to   c_i + b_iᵀx ≤ 0,   xᵀHx/2 ≤ δ

The solution lies in the span of H⁻¹g and H⁻¹b_i. It therefore depends only on  q = gᵀH⁻¹g,  r_i = gᵀH⁻¹b_i,
S_ij = b_iᵀH⁻¹b_j,  c and δ. Let λ be the multiplier of the trust region and ν those of the constraints. The Lagrangian
is stationary at x = H⁻¹(g - Bν)/λ, and the dual function is

    D(ν) = sqrt(2δ·w(ν)) - νᵀc,   w(ν) = q - 2rᵀν + νᵀSν,   λ = sqrt(w/2δ),   to be minimised over ν ≥ 0.

If exactly the constraints in a set A are active, then (with inverses and vectors restricted to A)

    λ² = (q - rᵀS⁻¹r) / (2δ - cᵀS⁻¹c),    ν = S⁻¹(r + λc),    x = α (H⁻¹g - H⁻¹B S⁻¹r) - H⁻¹B S⁻¹c,   α = 1/λ.

x has two parts: the shortest move onto the active faces, and then a move within these faces as far as the trust region
allows. No formula divides by c.

The code computes ν for each of the 2^m sets, clips it to ν ≥ 0, and takes the set with the least D. This is the
optimum: each clipped ν is feasible in the convex dual problem, so a wrong set cannot have a smaller D than the right
one.

If no point satisfies both the constraints and the trust region, the step is a recovery step. It goes towards the point
that satisfies the constraints and is nearest in the metric H, and stops at the edge of the trust region. That point is
-H⁻¹Bν, where ν ≥ 0 maximises νᵀc - νᵀSν/2.
"""

import dataclasses
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from apdo.errors import InvalidInput

MOST_CONSTRAINTS = 10
_VANISHING = 1e-30


class Move(eqx.Module):
    """The move x = along_objective·H⁻¹g + Σ_i along_constraint_i·H⁻¹b_i, and how it was found."""

    along_objective: Float[Array, ""]
    along_constraint: Float[Array, " M"]
    back: Float[Array, " M"]
    """-H⁻¹B·back is the part of x that leads to where the active constraints hold with equality."""
    left: Float[Array, ""]
    """The length of g projected onto the active faces, as a share of the length of g, both in the metric H⁻¹."""
    multiplier: Float[Array, " M"]
    """ν, the multiplier of each constraint, in units of the objective per unit of the cost; zero in recovery."""
    recovering: Bool[Array, ""]
    constrained: Bool[Array, ""]
    """Whether any constraint is active. If none is, the step is that of TRPO."""

    def shortened(self, length: float | Float[Array, ""], settles: bool | Bool[Array, ""]) -> "Move":
        """The step times `length`. If `settles`, its part within the active faces is also multiplied by `left`.

        CPO always goes along the active constraints to the edge of the trust region, even if the gradient there is
        only noise. With `settles` the step shrinks as that gradient does.
        """
        along = length * jnp.where(settles, self.left, 1.0)
        return dataclasses.replace(
            self,
            along_objective=along * self.along_objective,
            along_constraint=along * self.along_constraint - (length - along) * self.back,
            back=length * self.back,
        )


def solve(
    q: Float[Array, ""],
    r: Float[Array, " M"],
    s: Float[Array, "M M"],
    c: Float[Array, " M"],
    radius: float | Float[Array, ""],
) -> Move:
    """The optimal move, or the recovery move where no move is feasible."""
    sets, usable = _active_sets(s)
    best = jax.vmap(lambda active: _on_faces(q, r, s, c, radius, active))(sets)
    choice = jnp.argmin(best.dual)
    distance, nearest = _nearest(s, c, sets, usable)
    recovering = distance > 2.0 * radius
    length = jnp.sqrt(2.0 * radius / jnp.where(recovering, distance, 1.0))
    return Move(
        along_objective=jnp.where(recovering, 0.0, best.along_objective[choice]),
        along_constraint=jnp.where(recovering, -length * nearest, best.along_constraint[choice]),
        back=jnp.where(recovering, length * nearest, best.back[choice]),
        left=best.left[choice],
        multiplier=jnp.where(recovering, 0.0, best.multiplier[choice]),
        recovering=recovering,
        constrained=recovering | jnp.any(best.multiplier[choice] > 0.0),
    )


def nearest(s: Float[Array, "M M"], c: Float[Array, " M"]) -> tuple[Float[Array, ""], Float[Array, " M"]]:
    """The point x nearest to 0 with c_i + b_iᵀx ≤ 0 for all i: its squared distance, and ν with x = -H⁻¹Bν."""
    sets, usable = _active_sets(s)
    return _nearest(s, c, sets, usable)


def _active_sets(s: Float[Array, "M M"]) -> tuple[Bool[Array, "sets M"], Bool[Array, " M"]]:
    """All sets of constraints that may be active together, and whether each constraint can be active at all."""
    m = s.shape[0]
    if m > MOST_CONSTRAINTS:
        raise InvalidInput(f"CPO solves for at most {MOST_CONSTRAINTS} constraints, not {m}.")
    # No step can change a constraint whose gradient vanishes, so it must never count as active. A small gradient is
    # no reason to exclude a constraint: its cost may be measured in small units.
    usable = jnp.diagonal(s) > _VANISHING
    return jnp.asarray(list(itertools.product([False, True], repeat=m))) & usable[None], usable


class _Candidate(eqx.Module):
    dual: Float[Array, "..."]
    along_objective: Float[Array, "..."]
    along_constraint: Float[Array, "... M"]
    back: Float[Array, "... M"]
    left: Float[Array, "..."]
    multiplier: Float[Array, "... M"]


def _restricted_inverse(s: Float[Array, "M M"], active: Bool[Array, " M"]) -> Float[Array, "M M"]:
    """The inverse of S on the active constraints, zero elsewhere."""
    both = active[:, None] & active[None]
    scale = jnp.where(active, jnp.sqrt(jnp.abs(jnp.diagonal(s))), 1.0)
    scale = jnp.where(scale > 0.0, scale, 1.0)
    normalised = jnp.where(both, s / (scale[:, None] * scale[None]), jnp.eye(s.shape[0]))
    # Parallel constraints make S singular. A small multiple of the identity selects the shortest of the solutions.
    regular = normalised + 1e-6 * jnp.eye(s.shape[0])
    return jnp.where(both, jnp.linalg.inv(regular) / (scale[:, None] * scale[None]), 0.0)


def _on_faces(
    q: Float[Array, ""],
    r: Float[Array, " M"],
    s: Float[Array, "M M"],
    c: Float[Array, " M"],
    radius: float | Float[Array, ""],
    active: Bool[Array, " M"],
) -> _Candidate:
    inverse = _restricted_inverse(s, active)
    face_r, face_c = inverse @ r, inverse @ c
    free = jnp.maximum(q - r @ face_r, 0.0)
    room = 2.0 * radius - c @ face_c
    # Conjugate gradient is stopped early, so q = gᵀH⁻¹g may come out negative if the gradients are pure noise.
    movable = free > 1e-6 * jnp.abs(q)
    price = jnp.sqrt(jnp.maximum(free, 0.0) / jnp.where(room > 0.0, room, 1.0))
    reach = jnp.where(movable, 1.0 / jnp.where(movable, price, 1.0), 0.0)
    multiplier = jnp.maximum(face_r + price * face_c, 0.0) * active
    dual = (
        jnp.sqrt(2.0 * radius * jnp.maximum(q - 2.0 * r @ multiplier + multiplier @ s @ multiplier, 0.0))
        - c @ multiplier
    )
    return _Candidate(
        dual=jnp.where(room > 0.0, dual, jnp.inf),
        along_objective=reach,
        along_constraint=-reach * face_r - face_c,
        back=face_c,
        left=jnp.sqrt(jnp.where(q > 0.0, free / jnp.where(q > 0.0, q, 1.0), 0.0)),
        multiplier=multiplier,
    )


def _nearest(
    s: Float[Array, "M M"], c: Float[Array, " M"], sets: Bool[Array, "sets M"], usable: Bool[Array, " M"]
) -> tuple[Float[Array, ""], Float[Array, " M"]]:
    """The squared distance to the nearest point that satisfies the usable constraints, and ν: the point is -H⁻¹Bν."""
    c = jnp.where(usable, c, -1.0)

    def on_faces(active: Bool[Array, " M"]) -> tuple[Float[Array, ""], Float[Array, " M"]]:
        multiplier = jnp.maximum(_restricted_inverse(s, active) @ c, 0.0)
        return multiplier @ c - 0.5 * multiplier @ s @ multiplier, multiplier

    gains, multipliers = jax.vmap(on_faces)(sets)
    choice = jnp.argmax(gains)
    return 2.0 * gains[choice], multipliers[choice]
