"""Diagonal Gaussian policies: a = μ_θ(s) + σ·ε, with a state-independent log σ.

Every distribution here and its siblings answer the same calls (`sample`, `mode`, `log_prob`, `kl`, `entropy`,
`fisher`), for one example; callers vmap.
"""

import dataclasses
import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from apdo.core import networks
from apdo.options import PAPER, PUBLISHED, option


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

    mean: networks.MLP
    log_std: Float[Array, " A"]

    def __call__(self, observation: Float[Array, " O"]) -> Gaussian:
        """The action distribution at one observation."""
        return Gaussian(mean=self.mean(observation), log_std=self.log_std)


@dataclasses.dataclass(frozen=True)
class Config:
    """The shape of a policy network and where its exploration starts."""

    hidden: tuple[int, ...] = option((64, 32), "hidden layers of the policy network, tanh", PAPER, above=0, most=10**5)
    log_std: float = option(0.0, "starting log standard deviation of each action entry", PUBLISHED)


def policy(config: Config, key: PRNGKeyArray, observation_size: int, action_size: int) -> Policy:
    """A fresh policy."""
    mean = networks.mlp(key, observation_size, config.hidden, action_size)
    return Policy(mean=mean, log_std=jnp.full((action_size,), config.log_std))
