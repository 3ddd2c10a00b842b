"""What holds for every primal step."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from apdo.algorithms import gradient_steps, natural_steps, ppo_steps
from apdo.algorithms.surrogate import Samples
from problems import improved


@pytest.mark.parametrize(
    "config", [natural_steps.Trpo(), gradient_steps.LikelihoodRatio(), ppo_steps.Ppo(minibatches=1)]
)
def test_samples_without_weight_do_not_count(config, policy, samples):
    """Whatever the advantages of half of the samples are: their weight is 0."""
    half = jnp.arange(1000) % 2 == 0
    found = []
    for other in (0.0, 50.0):
        advantage = jnp.where(half, samples.advantage, other * samples.advantage)
        quiet = Samples(samples.observation, samples.action, advantage, 2.0 * half.astype(jnp.float32))
        found.append(ravel_pytree(improved(config, policy, quiet)[0])[0])
    np.testing.assert_array_equal(*found)
    assert not np.array_equal(found[0], ravel_pytree(policy)[0])
