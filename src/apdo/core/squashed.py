"""Squashed Gaussian policies: a = b · tanh(u / b), u ~ N(m_θ(s), diag(σ_θ(s))²). So a is always within ±b.

Densities are those of a / b, which is within ±1, so that an entropy does not depend on b.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from apdo.core import networks

NEARLY_UNIFORM = 0.9
"""The σ / b at which a / b is nearly uniform for a mean of 0: the standard deviation of atanh of a uniform number."""
_LEAST, _MOST = -5.0, 1.0
"""The range of log(σ / b)."""


class Squashed(eqx.Module):
    """The distribution of one action."""

    mean: Float[Array, "*batch A"]
    """The mean of u / b."""
    log_std: Float[Array, "*batch A"]
    """The logarithm of the standard deviation of u / b."""
    bound: float = eqx.field(static=True)

    def sample(self, key: PRNGKeyArray) -> Float[Array, "*batch A"]:
        """One draw."""
        return self.at(jax.random.normal(key, self.mean.shape))[0]

    def mode(self) -> Float[Array, "*batch A"]:
        """The action at the mean of u, which is the median of each entry of a."""
        return self.bound * jnp.tanh(self.mean)

    def at(self, noise: Float[Array, "*batch A"]) -> tuple[Float[Array, "*batch A"], Float[Array, "*batch"]]:
        """The action for standard normal noise, and the logarithm of its density."""
        u = self.mean + jnp.exp(self.log_std) * noise
        normal = -0.5 * jnp.square(noise) - self.log_std - 0.5 * math.log(2.0 * math.pi)
        # log(1 - tanh²(u)), written so that it does not lose precision to cancellation.
        slope = 2.0 * (math.log(2.0) - u - jax.nn.softplus(-2.0 * u))
        return self.bound * jnp.tanh(u), jnp.sum(normal - slope, axis=-1)


class Policy(eqx.Module):
    """π_θ: one network for means and deviations. A new policy is nearly uniform."""

    network: networks.MLP
    """It maps an observation to 2 A numbers."""
    bound: float = eqx.field(static=True, default=1.0)

    def __call__(self, observation: Float[Array, " O"]) -> Squashed:
        """The action distribution at one observation."""
        return distribution(self.network(observation), self.bound)


def distribution(output: Float[Array, "*batch U"], bound: float) -> Squashed:
    """The distribution for a network's 2 A outputs. If the second half is 0, σ / b is `NEARLY_UNIFORM`."""
    mean, spread = jnp.split(output, 2, axis=-1)
    log_std = jnp.clip(math.log(NEARLY_UNIFORM) + spread, _LEAST, _MOST)
    return Squashed(mean=mean, log_std=log_std, bound=bound)
