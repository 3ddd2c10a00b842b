"""CPO's step from noisy gradients: how far their predictions are believed, and how they are averaged over epochs.

A batch of 20 episodes gives a poor estimate of the thousands of entries of b, so most of bᵀH⁻¹b is noise. A step along
H⁻¹b fits this noise: it seems to remove any excess, but removes nothing. There are two remedies (both are ours, and off
in `--preset paper`):

    belief    The batch's episodes are split into two halves, whose errors are independent. The effect of a move along
              H⁻¹b of one half is estimated with b of the other: the noise in b_AᵀH⁻¹b_B averages to zero. Lengths of
              moves, in KL, are those of the whole batch.
    history   g and b are averaged over epochs, for each half: v ← (1 - w) v_new + w v. A policy changes little in one
              step, and perhaps its gradient too. Let n² be the noise of the new gradient, a quarter of the squared
              distance between the halves, and D the squared distance of the new gradient from the average, both in
              the metric H⁻¹. The squared error of the average is then D - n², and w = n² / D, at most `history`.

Let v_0 = g and v_i = b_i of the whole batch. A move is x = Σ_j a_j H⁻¹v_j. In terms of a, the trust region is
aᵀGa/2 ≤ δ with G_jk = v_jᵀH⁻¹v_k. The effect on sum k is (Γa)_k, where Γ_jk is the same product across the halves. This
is CPO's problem in 1 + m dimensions. Without noise Γ = G, and the step is that of CPO.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from apdo.core import constrained_step

_LEAST_BELIEF = 0.01
"""The least share of a direction's predicted effect that is believed, even if the halves disagree."""
_ALIKE = 1.0 - 1e-6
"""The largest cosine between two gradients, so that the small linear system is not singular."""


class Plan(eqx.Module):
    """A step in the span of H⁻¹v_j, and its predicted effect."""

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
        """The predicted change of each cost by the whole step."""
        return (self.effect @ self.amounts)[1:]

    @property
    def belief(self) -> Float[Array, " M"]:
        """For each cost, the share that is believed of the effect of a move along H⁻¹b_i."""
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
    """The step from the gradients of the sums (return, then costs) by halves, H⁻¹ times them, and c = C(π) - d.

    The step is shortened to `share` of its length; for `settles` see `constrained_step.Move.shortened`.
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
    """The gradients averaged with the earlier ones, H⁻¹ times them, and the weight w of the earlier ones."""

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
    """G, which gives the lengths of moves, and Γ, which gives their predicted effects."""
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
    """The solution of CPO's problem in the span of H⁻¹v_j, and its coefficients a."""
    scale = jnp.sqrt(jnp.diagonal(length))
    scale = jnp.where(scale > 0.0, scale, 1.0)
    alike = length / (scale[:, None] * scale[None])
    # Conjugate gradient is stopped early, so the computed cosine of parallel gradients may exceed 1.
    normal = jnp.where(jnp.eye(scale.shape[0], dtype=bool), alike + 1e-6, jnp.clip(alike, -_ALIKE, _ALIKE))
    directions = jnp.linalg.solve(normal, (effect / scale[None]).T).T / scale[None]
    gram = effect @ directions.T
    gram = 0.5 * (gram + gram.T)
    move = constrained_step.solve(gram[0, 0], gram[0, 1:], gram[1:, 1:], excess, radius).shortened(share, settles)
    return move, move.along_objective * directions[0] + move.along_constraint @ directions[1:]
