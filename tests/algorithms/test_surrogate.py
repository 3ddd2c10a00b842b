"""The surrogate of samples with weights."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from apdo.algorithms.surrogate import Samples, Surrogate


def test_a_sample_of_twice_the_weight_counts_as_two(policy, samples):
    """The gradient of the surrogate, with weights of 0, 1, 2 and 3, is that of samples repeated so often."""
    times = np.arange(1000) % 4
    rows = np.repeat(np.arange(1000), times)
    weight = jnp.asarray(times / times.mean(), jnp.float32)
    weighted = Samples(samples.observation, samples.action, samples.advantage, weight)
    repeated = Samples(samples.observation[rows], samples.action[rows], samples.advantage[rows], jnp.ones(len(rows)))
    ours, theirs = (ravel_pytree(jax.grad(Surrogate.at(policy, each).gain)(policy))[0] for each in (weighted, repeated))
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)
