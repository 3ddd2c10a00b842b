"""CPO's step: the best move inside a trust region and a set of linear constraints, from a handful of numbers.

With g the gradient of the objective, b_i those of the constraints, H the Fisher matrix, c_i = C_i(π) - d_i, δ the
radius:

    maximise gᵀx   subject to   c_i + b_iᵀx ≤ 0,   xᵀHx/2 ≤ δ

The solution lies in the span of H⁻¹g and H⁻¹b_i, so that it depends on  q = gᵀH⁻¹g,  r_i = gᵀH⁻¹b_i,
S_ij = b_iᵀH⁻¹b_j,  c and δ  alone. With multipliers λ of the trust region and ν of the constraints the Lagrangian is
stationary at x = H⁻¹(g - Bν)/λ, and the dual function is

    D(ν) = sqrt(2δ·w(ν)) - νᵀc,   w(ν) = q - 2rᵀν + νᵀSν,   λ = sqrt(w/2δ),   to be minimised over ν ≥ 0.

If the constraints in a set A are active and the others are not, then with inverses and vectors restricted to A

    λ² = (q - rᵀS⁻¹r) / (2δ - cᵀS⁻¹c),    ν = S⁻¹(r + λc),    x = α (H⁻¹g - H⁻¹B S⁻¹r) - H⁻¹B S⁻¹c,   α = 1/λ.

x is a move within the active faces, as far as the trust region allows, after the shortest move onto them. Nothing is
divided by c. D is convex, so that the least D over the 2^m sets, with ν clipped to ν ≥ 0, is the optimum: a wrong set
gives a feasible ν too, and cannot win.

Where the constraints and the trust region have no point in common, the recovery step leads towards the nearest point
(in the metric H) that satisfies the constraints, -H⁻¹Bν with ν ≥ 0 maximising νᵀc - νᵀSν/2, to the edge of the trust
region.
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
    """x = along_objective·H⁻¹g + Σ_i along_constraint_i·H⁻¹b_i, and how it came about."""

    along_objective: Float[Array, ""]
    along_constraint: Float[Array, " M"]
    back: Float[Array, " M"]
    """The part of it that goes to where the active constraints hold exactly: -H⁻¹B of it."""
    left: Float[Array, ""]
    """What is left of g where moves keep to the active constraints, as a share of its length, both in H⁻¹."""
    multiplier: Float[Array, " M"]
    """ν, the price of each constraint in units of the objective; zero in recovery."""
    recovering: Bool[Array, ""]
    constrained: Bool[Array, ""]
    """Whether any constraint is active, so that the step is not TRPO's."""

    def shortened(self, length: float | Float[Array, ""], settles: bool | Bool[Array, ""]) -> "Move":
        """This share of the step; where it is to settle, its part along the constraints shrinks with the gradient too.

        CPO goes to the edge of its region along the constraints, also where nothing but noise is left to gain.
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
    """The nearest point to here with c_i + b_iᵀx ≤ 0 for all i: its squared distance, and ν with x = -H⁻¹Bν."""
    sets, usable = _active_sets(s)
    return _nearest(s, c, sets, usable)


def _active_sets(s: Float[Array, "M M"]) -> tuple[Bool[Array, "sets M"], Bool[Array, " M"]]:
    """The sets of constraints that may be active together, and which can be at all."""
    m = s.shape[0]
    if m > MOST_CONSTRAINTS:
        raise InvalidInput(f"CPO solves for at most {MOST_CONSTRAINTS} constraints, not {m}.")
    # A constraint whose gradient vanishes cannot be acted on; it must not be able to look active. One that is merely
    # small has small units, or a neighbour with large ones.
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
    # Parallel constraints make S singular; a trace of the identity picks the shortest of the equivalent solutions.
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
    # Conjugate gradient stops before its end, and of gradients that are all noise q = gᵀH⁻¹g may come out negative.
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
    """The squared distance to the nearest point within the usable constraints, and ν with that point at -H⁻¹Bν."""
    c = jnp.where(usable, c, -1.0)

    def on_faces(active: Bool[Array, " M"]) -> tuple[Float[Array, ""], Float[Array, " M"]]:
        multiplier = jnp.maximum(_restricted_inverse(s, active) @ c, 0.0)
        return multiplier @ c - 0.5 * multiplier @ s @ multiplier, multiplier

    gains, multipliers = jax.vmap(on_faces)(sets)
    choice = jnp.argmax(gains)
    return 2.0 * gains[choice], multipliers[choice]
