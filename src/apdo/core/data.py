"""The batches that a sampler gives to an algorithm.

Axis legend, used in every annotation: T steps in time, N environments side by side, B = T·N samples, M constraints,
O observation entries, A action entries, K value signals (the reward, then the costs), S seeds.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


class Transition(eqx.Module):
    """T steps of N environments, or any other leading axes; `next_observation` is the one before any reset.

    After a terminated step the episode is over: its value bootstraps from zero. A truncated step was cut off by a time
    limit: it bootstraps from the value of `next_observation`. The last step of a batch is neither if its episode would
    have gone on.
    """

    observation: Float[Array, "*batch O"]
    action: Float[Array, "*batch A"]
    reward: Float[Array, "*batch"]
    cost: Float[Array, "*batch M"]
    next_observation: Float[Array, "*batch O"]
    terminated: Bool[Array, "*batch"]
    truncated: Bool[Array, "*batch"]
    step: Int[Array, "*batch"]
    """The step's index within its episode, from 0."""
    plain_reward: Float[Array, "*batch"] | None = None
    """The environment's own reward, if a wrapper replaced it in `reward`. It is only reported, never learned from."""

    @property
    def ended(self) -> Bool[Array, "*batch"]:
        """Whether the episode stops after this step, for either reason."""
        return self.terminated | self.truncated


def flatten(batch: Transition) -> Transition:
    """[T, N] becomes [B]; the steps of one environment are no longer next to each other."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), batch)


def by_environment(batch: Transition) -> Transition:
    """[T, N] becomes [B], with the steps of an environment one after the other."""
    return jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1).reshape(-1, *leaf.shape[2:]), batch)
