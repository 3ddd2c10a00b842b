"""CPO's step from gradients that are noisy: how much of them is believed, and how long they are remembered.

A batch of 20 episodes knows thousands of entries of b badly: most of bᵀH⁻¹b is then noise, which a step along H⁻¹b is
sure to please. Such a step promises to remove any excess and removes nothing. So (both are ours, and off in
`--preset paper`):

    belief    the batch's episodes are cut in two halves, whose errors are independent. What a move along the one's
              H⁻¹b does to the cost is read off the other: b_AᵀH⁻¹b_B has the signal and none of the noise. Lengths
              of moves, in KL, are those of the whole batch.
    history   g and b are averaged over epochs, half by half: v ← (1 - w) v_new + w v. A policy moves little in one
              step, and so may its gradient. How little shows: with n² the noise of the new one, a quarter of the
              halves' squared distance, and D the squared distance of the new one from the average, both in H⁻¹,
              the average is off by D - n², and w = n² / D, at most `history`.

With v_0 = g and v_i = b_i of the whole batch, a move is x = Σ_j a_j H⁻¹v_j. In a, the trust region is aᵀGa/2 ≤ δ with
G_jk = v_jᵀH⁻¹v_k, and the effect on the sum k is (Γa)_k with Γ_jk the same product across the halves: CPO's problem
again, of 1 + m dimensions. Where there is no noise Γ = G, and it is CPO's own.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from apdo.core import constrained_step

_LEAST_BELIEF = 0.01
"""The least share of a direction's own effect that is believed, whatever the halves say."""
_ALIKE = 1.0 - 1e-6
"""The largest cosine between two gradients, so that a small system of them has a solution."""


class Plan(eqx.Module):
    """A step from gradients, in the span of H⁻¹v_j, and what it is believed to do."""

    move: constrained_step.Move
    """CPO's solution in that span."""
    step: Float[Array, " P"]
    """x."""
    amounts: Float[Array, " K"]
    """a."""
    length: Float[Array, "K K"]
    """G."""
    effect: Float[Array, "K K"]
    """Γ."""

    @property
    def change(self) -> Float[Array, " M"]:
        """What the whole step changes in each cost."""
        return (self.effect @ self.amounts)[1:]

    @property
    def belief(self) -> Float[Array, " M"]:
        """The share of the effect of each cost's own direction that is believed."""
        own = jnp.diagonal(self.length)[1:]
        return jnp.diagonal(self.effect)[1:] / jnp.maximum(own, jnp.finfo(jnp.float32).tiny)


def solve(
    gradients: Float[Array, "H K P"],
    solved: Float[Array, "H K P"],
    excess: Float[Array, " M"],
    radius: float,
    share: float | Float[Array, ""] = 1.0,
    settles: bool | Bool[Array, ""] = False,
) -> Plan:
    """The step from gradients of the sums (return, then costs), by halves, H⁻¹ times them, and c = C(π) - d.

    Or a share of it, which may be one that settles (`constrained_step.Move.shortened`).
    """
    along = jnp.mean(solved, axis=0)
    length, effect = products(gradients, solved)
    move, amounts = small_step(length, effect, excess, radius, share, settles)
    return Plan(move=move, step=amounts @ along, amounts=amounts, length=length, effect=effect)


def averaged(
    fresh: Float[Array, "H K P"],
    fresh_solved: Float[Array, "H K P"],
    before: Float[Array, "H K P"],
    before_solved: Float[Array, "H K P"],
    most: Float[Array, ""],
) -> tuple[Float[Array, "H K P"], Float[Array, "H K P"], Float[Array, " K"]]:
    """The gradients averaged with those before, H⁻¹ times them, and how much those before count."""

    def squared(vector: Float[Array, "K P"], solved: Float[Array, "K P"]) -> Float[Array, " K"]:
        return jnp.maximum(jnp.sum(vector * solved, axis=-1), 0.0)

    noise = 0.25 * squared(fresh[0] - fresh[-1], fresh_solved[0] - fresh_solved[-1])
    away = squared(jnp.mean(fresh - before, axis=0), jnp.mean(fresh_solved - before_solved, axis=0))
    share = jnp.where(away > noise, noise / jnp.where(away > 0.0, away, 1.0), 1.0)
    kept = jnp.where(away > 0.0, jnp.minimum(share, most), 0.0)
    mix = lambda new, old: (1.0 - kept)[None, :, None] * new + kept[None, :, None] * old  # noqa: E731
    return mix(fresh, before), mix(fresh_solved, before_solved), kept


def products(
    gradients: Float[Array, "H K P"], solved: Float[Array, "H K P"]
) -> tuple[Float[Array, "K K"], Float[Array, "K K"]]:
    """G, by which moves are as long as they are, and Γ, by which they are believed to have their effects."""
    whole, along = jnp.mean(gradients, axis=0), jnp.mean(solved, axis=0)
    length = whole @ along.T
    length = 0.5 * (length + length.T)
    if gradients.shape[0] == 1:
        return length, length
    across = 0.5 * jnp.sum(gradients[0] * solved[1] + gradients[1] * solved[0], axis=-1)
    own = jnp.diagonal(length)
    believed = jnp.clip(across / jnp.where(own > 0.0, own, 1.0), _LEAST_BELIEF, 1.0)
    return length, length * jnp.sqrt(believed[:, None] * believed[None])


def small_step(
    length: Float[Array, "K K"],
    effect: Float[Array, "K K"],
    excess: Float[Array, " M"],
    radius: float,
    share: float | Float[Array, ""] = 1.0,
    settles: bool | Bool[Array, ""] = False,
) -> tuple[constrained_step.Move, Float[Array, " K"]]:
    """CPO's problem in the span of H⁻¹v_j, and the amount of each of them in its solution."""
    scale = jnp.sqrt(jnp.diagonal(length))
    scale = jnp.where(scale > 0.0, scale, 1.0)
    alike = length / (scale[:, None] * scale[None])
    # Conjugate gradient stops before its end, so that parallel gradients may come out as more than parallel.
    normal = jnp.where(jnp.eye(scale.shape[0], dtype=bool), alike + 1e-6, jnp.clip(alike, -_ALIKE, _ALIKE))
    directions = jnp.linalg.solve(normal, (effect / scale[None]).T).T / scale[None]
    gram = effect @ directions.T
    gram = 0.5 * (gram + gram.T)
    move = constrained_step.solve(gram[0, 0], gram[0, 1:], gram[1:, 1:], excess, radius).shortened(share, settles)
    return move, move.along_objective * directions[0] + move.along_constraint @ directions[1:]
