"""CUP's two steps: improve, then project."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import random

from apdo.algorithms import cup, gradient_steps, ppo_steps
from apdo.algorithms.surrogate import Surrogate
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
        surrogate=Surrogate.at(OLD, samples),
        half=jax.vmap(HALF)(samples.observation),
        cost=jnp.asarray(cost),
    )
    expected = chances_of(HALF) * np.exp(-cost)
    found = chances_of(descended(lambda policy: cup.loss(policy, data), HALF))
    np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-3)


def stepped(config, problem, before):
    batch = random_batch(random.key(1), Reach(costs=2), 10, 20)
    return jax.jit(cup.step, static_argnums=(0, 1))(config, problem, before, batch, random.key(2))


def test_with_multipliers_of_zero_the_projection_leaves_the_improved_policy_where_it_is():
    """So an epoch within its limits is PPO's on the reward alone, and one beyond them is not."""
    config = cup.Config(margin=0.0, **SMALL)
    within, beyond = (problem_of(Reach(costs=2), 200, limits) for limits in ((1e3, 1e3), (0.1, 0.1)))
    before = cup.init(config, within, random.key(0))
    _, free = stepped(config, within, before)
    np.testing.assert_array_equal(free["multiplier"], 0.0)
    # Adam makes steps of what rounding leaves of a slope of zero.
    np.testing.assert_allclose(free["kl"], free["improvement_kl"], rtol=0.1)
    after, bound = stepped(config, beyond, before)
    assert np.all(bound["multiplier"] > 0.0)
    np.testing.assert_allclose(bound["improvement_kl"], free["improvement_kl"], rtol=1e-3)
    assert abs(float(bound["kl"] / bound["improvement_kl"]) - 1.0) > 0.2
    np.testing.assert_array_equal(after.multiplier.value, bound["multiplier"])


def test_annealing_shortens_both_steps_alike():
    """After 1,000 epochs' gradient steps and with a half after one, what is left of either is a thousandth."""
    config = cup.Config(margin=0.0, primal=ppo_steps.Ppo(anneal=1.0), **SMALL)
    problem = problem_of(Reach(costs=2), 200, (0.1, 0.1))
    fresh = cup.init(config, problem, random.key(0))
    count = 1000 * config.primal.passes * config.primal.minibatches
    late = eqx.tree_at(lambda s: optax.tree_utils.tree_get(s.optimiser, "count"), fresh, jnp.asarray(count))
    _, first = stepped(config, problem, fresh)
    _, last = stepped(config, problem, late)
    assert float(last["improvement_kl"]) < 1e-3 * float(first["improvement_kl"])
    assert float(last["kl"]) < 1e-3 * float(first["kl"])


def test_the_projection_goes_no_farther_from_the_improved_policy_than_it_may():
    """However large the price, which a noisy batch would follow for ever."""
    problem = problem_of(Reach(costs=2), 200, (0.01, 0.01))
    far = {}
    for most in (0.0, 0.003):
        projection = gradient_steps.Passes(rate=0.02, most_kl=most)
        config = cup.Config(projection=projection, margin=0.0, **SMALL)
        before = cup.init(config, problem, random.key(0))
        dear = eqx.tree_at(lambda state: state.multiplier.integral, before, jnp.full(2, 50.0))
        far[most] = float(stepped(config, problem, dear)[1]["projection_kl"])
    assert far[0.0] > 0.03
    # Shortened by the square of the distance, which KL is up to terms of third order.
    assert far[0.003] <= 1.3 * 2 * 0.003
