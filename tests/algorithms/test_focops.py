"""FOCOPS: its target in closed form, and the order of its epoch."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from apdo.algorithms import focops
from apdo.algorithms.surrogate import Surrogate
from apdo.core import critics, dual, policies
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
OLD = one_state_policy([0.3, -0.2, 0.1, 0.8])
ADVANTAGE = np.asarray([1.0, -0.5, 2.0, -1.5]) - 0.7 * np.asarray([0.5, -1.0, 1.5, 0.0])
"""A_R - ν A_C."""


def loss(policy, radius):
    near = Surrogate.at(OLD, one_state_samples(OLD, ADVANTAGE))
    return focops.loss(policy, near, 1.5, radius)


def test_on_one_state_the_losss_minimum_is_the_optimum_in_closed_form():
    """π* ∝ π_k exp((A_R - ν A_C) / λ)."""
    found = chances_of(descended(lambda policy: loss(policy, 0.0), OLD))
    expected = chances_of(OLD) * np.exp(ADVANTAGE / 1.5)
    np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-3)


def test_a_state_where_the_policy_has_gone_too_far_has_no_gradient():
    far = one_state_policy([3.0, -0.2, 0.1, 0.8])
    for radius, moves in ((10.0, True), (0.02, False)):
        gradient = jax.grad(lambda policy, radius=radius: loss(policy, radius))(far)
        assert bool(jnp.any(gradient.logits.biases[0] != 0.0)) == moves


def test_the_multipliers_move_before_the_policy_by_the_cost_of_the_batch_just_sampled():
    """C exceeds the limit 1 and is below 20: the first multiplier rises by a share of its unit, the other stays 0."""
    config = focops.Config(rule=dual.Ascent(), dual_step=0.3, margin=0.0, **SMALL)
    problem = problem_of(Reach(costs=2), 200, (1.0, 20.0))
    batch = random_batch(random.key(1), Reach(costs=2), 10, 20)
    before = focops.init(config, problem, random.key(0))
    after, metrics = jax.jit(focops.step, static_argnums=(0, 1))(config, problem, before, batch, random.key(2))
    cost = float(metrics["cost"][0])
    assert cost > 1.0
    excess = after.units.excess(metrics["cost"], problem.limit)
    expected = 0.3 * float(after.units.price()[0]) * float(excess[0])
    assert expected > 0.0
    np.testing.assert_allclose(metrics["multiplier"], [expected, 0.0], rtol=1e-5)
