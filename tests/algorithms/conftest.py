"""A policy with samples of its own, for the tests of steps that learn from such samples."""

import jax
import jax.numpy as jnp
import pytest
from jax import random

from apdo.algorithms.surrogate import Samples
from apdo.core import policies


@pytest.fixture(scope="module")
def policy():
    return policies.init(policies.Config(hidden=(8, 8), output_scale=1.0), random.key(0), 3, 2, discrete=False)


@pytest.fixture(scope="module")
def samples(policy):
    """Actions of the policy itself; the advantage prefers the first entry of the action to follow the observation.

    Some samples count more than others, 1 on average.
    """
    observation = random.normal(random.key(1), (1000, 3))
    action = jax.vmap(lambda o, k: policy(o).sample(k))(observation, random.split(random.key(2), 1000))
    advantage = -jnp.square(action[:, 0] - observation[:, 0]) + 0.1 * random.normal(random.key(3), (1000,))
    weight = random.uniform(random.key(5), (1000,), minval=0.2, maxval=2.0)
    return Samples(observation, action, (advantage - advantage.mean()) / advantage.std(), weight / weight.mean())
