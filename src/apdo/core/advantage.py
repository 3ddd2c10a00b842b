"""Returns and advantages of sampled episodes."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def gae(
    signal: Float[Array, "T N K"],
    value: Float[Array, "T N K"],
    next_value: Float[Array, "T N K"],
    final: Bool[Array, "T N"],
    ended: Bool[Array, "T N"],
    discount: Float[Array, " K"],
    trace: Float[Array, " K"],
) -> Float[Array, "T N K"]:
    """Generalised advantage estimation of K signals at once.

    A_t = Σ_l (γ·trace)^l δ_{t+l} up to the episode's end, with δ_t = x_t + γ V(s_{t+1}) - V(s_t), where V(s_{t+1})
    counts as zero after a final step. `next_value` is the value of the observation before any reset.
    """
    alive = 1.0 - final.astype(signal.dtype)[..., None]
    onward = 1.0 - ended.astype(signal.dtype)[..., None]
    error = signal + discount[None, None] * next_value * alive - value

    def backward(
        later: Float[Array, "N K"], now: tuple[Float[Array, "N K"], Float[Array, "N 1"]]
    ) -> tuple[Float[Array, "N K"], Float[Array, "N K"]]:
        error_t, onward_t = now
        advantage = error_t + (discount * trace)[None] * onward_t * later
        return advantage, advantage

    _, advantages = jax.lax.scan(backward, jnp.zeros_like(error[0]), (error, onward), reverse=True)
    return advantages


def episode_totals(
    signal: Float[Array, "T N K"], ended: Bool[Array, "T N"], discount: Float[Array, " K"]
) -> Float[Array, "T N K"]:
    """Σ_l γ^l x_{t+l} from each step to the end of its episode (or of the batch)."""
    onward = 1.0 - ended.astype(signal.dtype)[..., None]

    def backward(
        later: Float[Array, "N K"], now: tuple[Float[Array, "N K"], Float[Array, "N 1"]]
    ) -> tuple[Float[Array, "N K"], Float[Array, "N K"]]:
        signal_t, onward_t = now
        total = signal_t + discount[None] * onward_t * later
        return total, total

    _, totals = jax.lax.scan(backward, jnp.zeros_like(signal[0]), (signal, onward), reverse=True)
    return totals


def standardise(advantage: Float[Array, "..."]) -> Float[Array, "..."]:
    """Zero mean and unit variance; an advantage that is the same everywhere becomes zero."""
    centred = advantage - jnp.mean(advantage)
    deviation = jnp.std(centred)
    # Below this the deviation is the rounding error of the mean.
    varies = deviation > 1e-5 * jnp.max(jnp.abs(advantage))
    return jnp.where(varies, centred / jnp.where(varies, deviation, 1.0), 0.0)
