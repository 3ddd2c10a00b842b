"""Squashed Gaussians: densities by change of variables, and where they begin."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from apdo.core import networks, squashed


def test_the_density_is_that_of_the_gaussian_after_the_change_of_variables():
    """Of a/b: numerical integration over what the density says of it must give 1, and its mean the draws' mean."""
    one = squashed.Squashed(mean=jnp.asarray([0.4]), log_std=jnp.asarray([-0.5]), bound=2.0)
    noise = jnp.linspace(-8.0, 8.0, 20_001)[:, None]
    action, log_density = jax.vmap(one.at)(noise)
    inside, density = np.asarray(action[:, 0], np.float64) / 2.0, np.exp(np.asarray(log_density, np.float64))
    np.testing.assert_allclose(np.trapezoid(density, inside), 1.0, rtol=1e-3)
    draws = jax.vmap(one.sample)(random.split(random.key(0), 20_000))
    np.testing.assert_allclose(np.trapezoid(density * inside, inside), np.mean(draws) / 2.0, atol=0.01)
    assert np.abs(draws).max() <= 2.0


def test_a_fresh_policy_acts_all_but_uniformly():
    """The entropy of a uniform action within ±1 is log 2 an entry; the first policy's is within 2 % of it."""
    policy = squashed.Policy(networks.mlp(random.key(0), 3, (8,), 4, 0.01), bound=1.0)
    here = policy(jnp.ones(3))
    noise = random.normal(random.key(1), (20_000, 2))
    entropy = -np.mean(jax.vmap(here.at)(noise)[1])
    assert 2.0 * np.log(2.0) > entropy > 0.98 * 2.0 * np.log(2.0)
