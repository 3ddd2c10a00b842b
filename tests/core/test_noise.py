"""Exploration noise: its moments and its memory."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from apdo.core import noise

CHAINS = 4000
STEPS = 40


@cache
def paths(config):
    """The noise of one episode in each of many action entries, [STEPS, CHAINS]."""

    def advance(state, key):
        state = noise.advance(config, state, key)
        return state, state

    keys = jax.random.split(jax.random.key(0), STEPS)
    return np.asarray(jax.lax.scan(advance, noise.start(CHAINS), keys)[1])


def test_noise_starts_an_episode_at_zero():
    np.testing.assert_array_equal(noise.start(3), np.zeros(3))


@pytest.mark.parametrize("config", [noise.OrnsteinUhlenbeck(), noise.OrnsteinUhlenbeck(reversion=0.6, scale=2.0)])
def test_ornstein_uhlenbeck_has_the_variance_of_its_recursion_and_reaches_the_stationary_one(config):
    path = paths(config)
    keep = 1.0 - config.reversion
    stationary = config.scale**2 / (1.0 - keep**2)
    tolerance = 4.5 * np.sqrt(2.0 / CHAINS)
    for step in (0, 1, 4, STEPS - 1):
        expected = stationary * (1.0 - keep ** (2 * (step + 1)))
        assert abs(path[step].var() / expected - 1.0) < tolerance
        assert abs(path[step].mean()) < 4.5 * np.sqrt(expected / CHAINS)
    assert abs(path[-1].var() / stationary - 1.0) < tolerance
    correlation = np.corrcoef(path[-2], path[-1])[0, 1]
    assert abs(correlation - keep) < 4.5 * (1 - keep**2) / np.sqrt(CHAINS)


def test_ornstein_uhlenbeck_pulls_the_old_noise_towards_zero_by_the_reversion():
    config = noise.OrnsteinUhlenbeck(reversion=0.25, scale=0.5)
    key, old = jax.random.key(3), jnp.asarray([8.0, -4.0, 0.0])
    fresh = np.asarray(noise.advance(config, jnp.zeros(3), key))
    np.testing.assert_allclose(np.asarray(noise.advance(config, old, key)) - fresh, [6.0, -3.0, 0.0], atol=1e-6)
    assert len(np.unique(fresh)) == 3


def test_gaussian_noise_forgets_the_old_noise_and_has_the_configured_spread():
    config = noise.Independent(scale=0.7)
    key = jax.random.key(3)
    np.testing.assert_array_equal(
        noise.advance(config, jnp.zeros(2), key), noise.advance(config, jnp.asarray([9.0, -9.0]), key)
    )
    path = paths(config)
    assert stats.kstest(path.ravel(), stats.norm(0.0, 0.7).cdf).pvalue > 1e-3
    for lag in (1, 2):
        correlation = np.corrcoef(path[lag:].ravel(), path[:-lag].ravel())[0, 1]
        assert abs(correlation) < 4.5 / np.sqrt(path[lag:].size)
