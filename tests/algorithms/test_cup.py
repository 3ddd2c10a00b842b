"""CUP's two steps: improve, then project."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from apdo.algorithms import cup, primal_steps
from apdo.core import critics, policies
from problems import (
    Reach,
    chances_of,
    descended,
    one_state_policy,
    one_state_samples,
    problem_of,
    random_batch,
)

SMALL: dict[str, Any] = {"policy": policies.Config(hidden=(8,)), "critic": critics.Config(hidden=(8,), minibatches=2)}
OLD, HALF = one_state_policy([0.3, -0.2, 0.1]), one_state_policy([1.0, -0.5, 0.4])


def test_on_one_state_the_projection_is_known_in_closed_form():
    """π_{k+1} ∝ π_{k+1/2} exp(-ν A_C), whatever π_k has sampled with."""
    cost = np.asarray([0.9, -0.4, 0.2], np.float32)
    samples = one_state_samples(OLD, [0.0, 0.0, 0.0])
    data = cup.Halfway(
        surrogate=primal_steps.Surrogate.around(OLD, samples),
        half=jax.vmap(HALF)(samples.observation),
        cost=jnp.asarray(cost),
    )
    expected = chances_of(HALF) * np.exp(-cost)
    found = chances_of(descended(lambda policy: cup.loss(policy, data), HALF))
    np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-3)


def test_with_multipliers_of_zero_the_projection_leaves_the_improved_policy_where_it_is():
    """So the first epoch is PPO's on the reward alone, and the second, with multipliers, is not."""
    config = cup.Config(margin=0.0, **SMALL)
    problem = problem_of(Reach(costs=2), 200, (0.1, 0.1))
    batch = random_batch(random.key(1), Reach(costs=2), 10, 20)
    step = jax.jit(cup.step, static_argnums=(0, 1))
    before = cup.init(config, problem, random.key(0))
    first, metrics = step(config, problem, before, batch, random.key(2))
    # Adam makes steps of what rounding leaves of a slope of zero.
    np.testing.assert_allclose(metrics["kl"], metrics["improvement_kl"], rtol=0.1)
    assert np.all(first.multiplier.value > 0.0)
    _, later = step(config, problem, first, batch, random.key(3))
    np.testing.assert_array_equal(later["multiplier"], first.multiplier.value)
    assert float(later["surrogate_gain"]) < float(metrics["surrogate_gain"])
