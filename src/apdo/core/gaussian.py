"""Diagonal Gaussian policies: a = μ_θ(s) + σ·ε, with a state-independent log σ.

This distribution and the one in `categorical` have the same methods (`sample`, `mode`, `log_prob`, `kl`, `entropy`,
`fisher`). Each works on one example, and callers vmap it.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from apdo.core import networks


class Gaussian(eqx.Module):
    """N(mean, diag(exp(log_std))²)."""

    mean: Float[Array, " A"]
    log_std: Float[Array, " A"]

    def sample(self, key: PRNGKeyArray) -> Float[Array, " A"]:
        """One draw."""
        return self.mean + jnp.exp(self.log_std) * jax.random.normal(key, self.mean.shape)

    def mode(self) -> Float[Array, " A"]:
        """The most likely action."""
        return self.mean

    def log_prob(self, action: Float[Array, " A"]) -> Float[Array, ""]:
        """log π(a)."""
        standardised = (action - self.mean) * jnp.exp(-self.log_std)
        return -0.5 * jnp.sum(jnp.square(standardised) + 2.0 * self.log_std + math.log(2.0 * math.pi))

    def kl(self, other: "Gaussian") -> Float[Array, ""]:
        """KL(self ‖ other)."""
        ratio = jnp.exp(2.0 * (self.log_std - other.log_std))
        distance = jnp.square(self.mean - other.mean) * jnp.exp(-2.0 * other.log_std)
        return jnp.sum(other.log_std - self.log_std + 0.5 * (ratio + distance - 1.0))

    def entropy(self) -> Float[Array, ""]:
        """The differential entropy."""
        return jnp.sum(self.log_std + 0.5 * math.log(2.0 * math.pi * math.e))

    def fisher(self, tangent: "Gaussian") -> "Gaussian":
        """The Fisher matrix of (mean, log_std), diag(1/σ², 2), times a tangent."""
        return Gaussian(mean=tangent.mean * jnp.exp(-2.0 * self.log_std), log_std=2.0 * tangent.log_std)


class Policy(eqx.Module):
    """π_θ: a tanh network for the mean and a free log standard deviation."""

    mean: networks.Network
    log_std: Float[Array, " A"]
    bound: float = eqx.field(static=True, default=0.0)
    """The bound b: the mean stays within ±b. With 0 it is unbounded."""

    def __call__(self, observation: Float[Array, " O"]) -> Gaussian:
        """The action distribution at one observation."""
        return Gaussian(mean=networks.bounded(self.mean(observation), self.bound), log_std=self.log_std)
