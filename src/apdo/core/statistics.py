"""Running mean and variance of observations. Batches can be merged in any order (Chan, Golub, LeVeque)."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from apdo.core.data import Transition

CLIP = 10.0
"""Normalised entries beyond this many standard deviations are clipped."""
_CONSTANT = 1e-6
"""An entry whose variance is below this share of its squared mean counts as constant. It is only shifted."""


class Statistics(eqx.Module):
    """The mean and variance of each of O entries, over `count` samples."""

    count: Float[Array, ""]
    mean: Float[Array, " O"]
    variance: Float[Array, " O"]

    @staticmethod
    def empty(size: int) -> "Statistics":
        """The statistics of no samples. Normalising by them changes nothing."""
        return Statistics(count=jnp.zeros(()), mean=jnp.zeros(size), variance=jnp.ones(size))

    @staticmethod
    def of(samples: Float[Array, "*batch O"]) -> "Statistics":
        """The statistics of samples along all axes but the last."""
        flat = samples.reshape(-1, samples.shape[-1])
        mean = jnp.mean(flat, axis=0)
        return Statistics(
            count=jnp.asarray(float(flat.shape[0])),
            mean=mean,
            variance=jnp.mean(jnp.square(flat - mean[None]), axis=0),
        )

    def merge(self, other: "Statistics") -> "Statistics":
        """The statistics of both sets of samples together. If one is empty, the result is the other."""
        count = self.count + other.count
        share = jnp.where(count > 0, other.count / jnp.maximum(count, 1.0), 0.0)
        delta = other.mean - self.mean
        spread = jnp.square(delta) * share * (1.0 - share)
        variance = (1.0 - share) * self.variance + share * other.variance + spread
        return Statistics(count=count, mean=self.mean + share * delta, variance=variance)

    def scale(self) -> Float[Array, " O"]:
        """The divisor of each entry: its standard deviation, or 1 if it is constant."""
        constant = self.variance <= _CONSTANT * jnp.square(self.mean) + jnp.finfo(self.variance.dtype).tiny
        return jnp.where(constant, 1.0, jnp.sqrt(jnp.where(constant, 1.0, self.variance)))

    def seen_from(self, other: "Statistics") -> tuple[Float[Array, " O"], Float[Array, " O"]]:
        """(scale, shift) with self.normalise(o) = scale · other.normalise(o) + shift for every observation o.

        The clip is not taken into account. Without samples, `self` leaves an observation as it is.
        """
        some = self.count > 0
        mean, scale = jnp.where(some, self.mean, 0.0), jnp.where(some, self.scale(), 1.0)
        return other.scale() / scale, (other.mean - mean) / scale

    def normalise(self, observation: Float[Array, "*batch O"]) -> Float[Array, "*batch O"]:
        """The observation with zero mean and unit variance, clipped. Without samples it stays as it is."""
        lead = (1,) * (observation.ndim - 1)
        shifted = (observation - self.mean.reshape(*lead, -1)) / self.scale().reshape(*lead, -1)
        return jnp.where(self.count > 0, jnp.clip(shifted, -CLIP, CLIP), observation)


def normalised(statistics: Statistics | None, batch: Transition) -> Transition:
    """The batch with normalised observations, as the networks see it. Without statistics it stays as it is."""
    if statistics is None:
        return batch
    seen = (statistics.normalise(batch.observation), statistics.normalise(batch.next_observation))
    return eqx.tree_at(lambda b: (b.observation, b.next_observation), batch, seen)
