"""Returns and advantages of sampled episodes, with terminated and truncated kept apart."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from apdo.core.data import Transition


def gae(
    signal: Float[Array, "T N K"],
    value: Float[Array, "T N K"],
    next_value: Float[Array, "T N K"],
    terminated: Bool[Array, "T N"],
    ended: Bool[Array, "T N"],
    discount: Float[Array, " K"],
    trace: Float[Array, " K"],
) -> Float[Array, "T N K"]:
    """Generalised advantage estimation of K signals at once.

    A_t = Σ_l (γ·trace)^l δ_{t+l} up to the episode's end, with δ_t = x_t + γ V(s_{t+1}) - V(s_t), where V(s_{t+1})
    counts as zero after a terminated step. `next_value` is the value of the observation before any reset.
    """
    alive = 1.0 - terminated.astype(signal.dtype)[..., None]
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


class EpisodeSummary(eqx.Module):
    """Means over the episodes that started and ended within a batch."""

    undiscounted_return: Float[Array, ""]
    discounted_return: Float[Array, ""]
    undiscounted_cost: Float[Array, " M"]
    constrained_cost: Float[Array, " M"]
    """C(π) - the cost that the limits speak of, discounted with the problem's cost discount."""
    cost_error: Float[Array, " M"]
    """The standard error of that mean."""
    length: Float[Array, ""]
    episodes: Float[Array, ""]


def summarise(batch: Transition, discount: float, cost_discount: float) -> EpisodeSummary:
    """R(π) and C(π) of the policy that sampled the batch, from this batch alone."""
    ones = jnp.ones_like(batch.reward)[..., None]
    reward = batch.reward[..., None]
    signal = jnp.concatenate([reward, reward, batch.cost, batch.cost, ones], axis=-1)
    m = batch.cost.shape[-1]
    factors = jnp.asarray([1.0, discount] + [1.0] * m + [cost_discount] * m + [1.0])
    totals = episode_totals(signal, batch.ended, factors)
    finishes = jnp.flip(jax.lax.cummax(jnp.flip(batch.ended.astype(jnp.int32), 0), axis=0), 0)
    weight = ((batch.step == 0) & (finishes == 1)).astype(totals.dtype)
    episodes = jnp.sum(weight)
    means = jnp.sum(totals * weight[..., None], axis=(0, 1)) / episodes
    squares = jnp.sum(jnp.square(totals - means[None, None]) * weight[..., None], axis=(0, 1))
    errors = jnp.sqrt(squares / jnp.maximum(episodes - 1.0, 1.0) / episodes)
    return EpisodeSummary(
        undiscounted_return=means[0],
        discounted_return=means[1],
        undiscounted_cost=means[2 : 2 + m],
        constrained_cost=means[2 + m : 2 + 2 * m],
        cost_error=errors[2 + m : 2 + 2 * m],
        length=means[-1],
        episodes=episodes,
    )


def standardise(advantage: Float[Array, "..."]) -> Float[Array, "..."]:
    """Zero mean and unit variance; an advantage that is the same everywhere becomes zero."""
    centred = advantage - jnp.mean(advantage)
    deviation = jnp.std(centred)
    # Below this the deviation is the rounding error of the mean.
    varies = deviation > 1e-5 * jnp.max(jnp.abs(advantage))
    return jnp.where(varies, centred / jnp.where(varies, deviation, 1.0), 0.0)
