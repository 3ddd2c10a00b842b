"""Rules for the Lagrange multipliers λ ≥ 0."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def ascend(
    multiplier: Float[Array, " M"], cost: Float[Array, " M"], limit: Float[Array, " M"], step: float
) -> Float[Array, " M"]:
    """Projected dual gradient ascent, λ_i ← [λ_i + β (C_i(π) - d_i)]⁺ (paper, Algorithm 1, line 6)."""
    return jnp.maximum(multiplier + step * (cost - limit), 0.0)
