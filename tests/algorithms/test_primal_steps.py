"""Each primal step improves its surrogate, within its own bounds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from jax.flatten_util import ravel_pytree

from apdo.algorithms import primal_steps
from apdo.core import policies, trust_region


@pytest.fixture(scope="module")
def policy():
    return policies.init(policies.Config(hidden=(8, 8), output_scale=1.0), random.key(0), 3, 2, discrete=False)


@pytest.fixture(scope="module")
def samples(policy):
    """Actions of the policy itself; the advantage prefers the first entry of the action to follow the observation."""
    observation = random.normal(random.key(1), (1000, 3))
    action = jax.vmap(lambda o, k: policy(o).sample(k))(observation, random.split(random.key(2), 1000))
    advantage = -jnp.square(action[:, 0] - observation[:, 0]) + 0.1 * random.normal(random.key(3), (1000,))
    return primal_steps.Samples(observation, action, (advantage - advantage.mean()) / advantage.std())


def improve(config, policy, samples):
    step = jax.jit(primal_steps.improve, static_argnums=0)
    return step(config, policy, primal_steps.init(config, policy), samples, random.key(4))


def test_trpo_stays_within_its_radius_and_improves_the_surrogate(policy, samples):
    for radius in (0.001, 0.01, 0.1):
        new, _, metrics = improve(primal_steps.Trpo(radius=radius), policy, samples)
        surrogate = primal_steps.Surrogate.around(policy, samples)
        assert 0.3 * radius < float(surrogate.kl(new)) <= radius
        assert float(jnp.mean(surrogate.ratio(new) * samples.advantage)) > float(jnp.mean(samples.advantage))
        assert float(metrics["step_accepted"]) == 1.0


def test_trpo_keeps_the_old_policy_when_no_step_is_acceptable(policy, samples):
    """With advantages of zero no step improves anything."""
    idle = primal_steps.Samples(samples.observation, samples.action, jnp.zeros(1000))
    new, _, metrics = improve(primal_steps.Trpo(), policy, idle)
    np.testing.assert_array_equal(ravel_pytree(new)[0], ravel_pytree(policy)[0])
    assert float(metrics["step_accepted"]) == 0.0


def test_trpo_shortens_a_step_that_leaves_the_trust_region(policy, samples):
    """Far from quadratic: a huge radius makes the model wrong, and the first steps must be refused."""
    config = primal_steps.Trpo(radius=2.0)
    surrogate = primal_steps.Surrogate.around(policy, samples)
    full = primal_steps.natural_step(config, surrogate, policy)
    parameters, unravel = ravel_pytree(policy)
    assert not float(surrogate.kl(unravel(parameters + full))) <= config.radius
    new, _, _ = improve(config, policy, samples)
    assert float(surrogate.kl(new)) <= config.radius


def test_the_natural_step_is_the_dense_solution_scaled_to_the_radius(policy, samples):
    config = primal_steps.NaturalGradient(fraction=1.0, iterations=200, damping=1e-3)
    surrogate = primal_steps.Surrogate.around(policy, samples)
    parameters, unravel = ravel_pytree(policy)
    gradient = jax.grad(lambda p: jnp.mean(surrogate.ratio(unravel(p)) * samples.advantage))(parameters)
    fisher = jax.hessian(lambda p: surrogate.kl(unravel(p)))(parameters) + config.damping * jnp.eye(parameters.size)
    direction = np.linalg.solve(np.asarray(fisher, np.float64), np.asarray(gradient, np.float64))
    exact = direction * np.sqrt(2 * config.radius / (direction @ np.asarray(fisher) @ direction))
    step = primal_steps.natural_step(config, surrogate, policy)
    cosine = step @ exact / np.linalg.norm(step) / np.linalg.norm(exact)
    assert cosine > 0.999
    assert np.linalg.norm(step) == pytest.approx(np.linalg.norm(exact), rel=0.02)


def test_the_natural_gradient_step_is_taken_whole(policy, samples):
    config = primal_steps.NaturalGradient()
    surrogate = primal_steps.Surrogate.around(policy, samples)
    new, _, _ = improve(config, policy, samples)
    expected = ravel_pytree(policy)[0] + primal_steps.natural_step(config, surrogate, policy)
    np.testing.assert_allclose(ravel_pytree(new)[0], expected, rtol=1e-5, atol=1e-6)


def test_the_likelihood_ratio_step_follows_the_score_function_gradient(policy, samples):
    """Adam's first step is the rate times the sign of the gradient of E[log π · A]."""
    new, _, _ = improve(primal_steps.LikelihoodRatio(rate=1e-3), policy, samples)

    def score(p):
        return jnp.mean(
            jax.vmap(lambda o, a: p(o).log_prob(a))(samples.observation, samples.action) * samples.advantage
        )

    gradient = ravel_pytree(jax.grad(score)(policy))[0]
    moved = ravel_pytree(new)[0] - ravel_pytree(policy)[0]
    clear = np.abs(gradient) > 1e-4
    assert clear.sum() > 20
    np.testing.assert_allclose(moved[clear], 1e-3 * np.sign(gradient[clear]), rtol=0.02)


def test_ppo_improves_the_surrogate_and_its_clip_holds_the_ratios_back(policy, samples):
    surrogate, spread = primal_steps.Surrogate.around(policy, samples), {}
    for clip in (0.1, 100.0):
        new, _, metrics = improve(primal_steps.Ppo(clip=clip, minibatches=4, rate=3e-3), policy, samples)
        assert float(metrics["surrogate_gain"]) > 0.02
        spread[clip] = float(surrogate.kl(new))
    assert spread[0.1] < 0.7 * spread[100.0]


def test_the_fisher_matrix_is_estimated_on_the_configured_share_of_the_batch(policy, samples):
    observation = samples.observation.at[1::5].set(100.0)
    vector = jnp.ones_like(ravel_pytree(policy)[0])
    fifth = primal_steps.fisher(trust_region.Curvature(fraction=0.2), policy, samples.observation)(vector)
    untouched = primal_steps.fisher(trust_region.Curvature(fraction=0.2), policy, observation)(vector)
    whole = primal_steps.fisher(trust_region.Curvature(fraction=1.0), policy, observation)(vector)
    np.testing.assert_array_equal(fifth, untouched)
    assert not np.allclose(fifth, whole, rtol=1e-2)
