"""Exploration noise for a deterministic actor."""

import dataclasses
from math import inf

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from apdo.options import OURS, option

DDPG = "the DDPG paper"


@dataclasses.dataclass(frozen=True)
class OrnsteinUhlenbeck:
    """Correlated noise, restarted in each episode: n ← n - reversion·n + scale·ε, ε ~ N(0, 1)."""

    reversion: float = option(0.15, "pull of the noise towards zero", DDPG, within=(0.0, 1.0))
    scale: float = option(
        0.3, "standard deviation of the noise added at each step", "rllab's default", within=(0.0, inf)
    )


@dataclasses.dataclass(frozen=True)
class Independent:
    """Gaussian noise, independent at each step."""

    scale: float = option(0.5, "standard deviation of the noise", OURS, within=(0.0, inf))


Config = OrnsteinUhlenbeck | Independent
CHOICES = {"ornstein-uhlenbeck": OrnsteinUhlenbeck, "gaussian": Independent}


def start(action_size: int) -> Float[Array, " A"]:
    """The noise before the first step of an episode."""
    return jnp.zeros(action_size)


def advance(config: Config, noise: Float[Array, " A"], key: PRNGKeyArray) -> Float[Array, " A"]:
    """The noise of the next step."""
    fresh = config.scale * jax.random.normal(key, noise.shape)
    match config:
        case OrnsteinUhlenbeck():
            return (1.0 - config.reversion) * noise + fresh
        case Independent():
            return fresh
