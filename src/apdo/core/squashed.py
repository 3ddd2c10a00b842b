"""Squashed Gaussian policies: a = b · tanh(u / b), u ~ N(m_θ(s), diag(σ_θ(s))²), within ±b wherever u lies.

Densities are those of a / b, within ±1, so that an entropy means the same whatever b is.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from apdo.core import networks

NEARLY_UNIFORM = 0.9
"""σ / b of u at which a / b, with a mean of 0, is all but uniform: atanh of a uniform number deviates as much."""
_LEAST, _MOST = -5.0, 1.0
"""Between these log(σ / b) stays."""


class Squashed(eqx.Module):
    """The distribution of one action."""

    mean: Float[Array, "*batch A"]
    """Of u / b."""
    log_std: Float[Array, "*batch A"]
    """Of u / b."""
    bound: float = eqx.field(static=True)

    def sample(self, key: PRNGKeyArray) -> Float[Array, "*batch A"]:
        """One draw."""
        return self.at(jax.random.normal(key, self.mean.shape))[0]

    def mode(self) -> Float[Array, "*batch A"]:
        """Where u is at its mean: the middle of the distribution, as it is for any squashed policy."""
        return self.bound * jnp.tanh(self.mean)

    def at(self, noise: Float[Array, "*batch A"]) -> tuple[Float[Array, "*batch A"], Float[Array, "*batch"]]:
        """The action for standard normal noise, and the logarithm of its density."""
        u = self.mean + jnp.exp(self.log_std) * noise
        normal = -0.5 * jnp.square(noise) - self.log_std - 0.5 * math.log(2.0 * math.pi)
        # log(1 - tanh²(u)), without the cancellation.
        slope = 2.0 * (math.log(2.0) - u - jax.nn.softplus(-2.0 * u))
        return self.bound * jnp.tanh(u), jnp.sum(normal - slope, axis=-1)


class Policy(eqx.Module):
    """π_θ: one network for means and deviations, which first acts all but uniformly."""

    network: networks.MLP
    """From an observation to 2 A numbers."""
    bound: float = eqx.field(static=True, default=1.0)

    def __call__(self, observation: Float[Array, " O"]) -> Squashed:
        """The action distribution at one observation."""
        return distribution(self.network(observation), self.bound)


def distribution(output: Float[Array, "*batch U"], bound: float) -> Squashed:
    """What a network's 2 A outputs mean; where the second half is 0, σ is `NEARLY_UNIFORM`."""
    mean, spread = jnp.split(output, 2, axis=-1)
    log_std = jnp.clip(math.log(NEARLY_UNIFORM) + spread, _LEAST, _MOST)
    return Squashed(mean=mean, log_std=log_std, bound=bound)
