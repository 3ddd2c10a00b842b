"""REINFORCE's single step, and passes that end near the policy where they began."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import random
from jax.flatten_util import ravel_pytree

from apdo.algorithms import gradient_steps, ppo_steps, primal_steps
from apdo.algorithms.surrogate import Samples, Surrogate
from apdo.core import policies
from problems import improved


def test_the_likelihood_ratio_step_follows_the_score_function_gradient(policy, samples):
    """Adam's first step is the rate times the sign of the gradient of E[w · log π · A]."""
    new, _, _ = improved(gradient_steps.LikelihoodRatio(rate=1e-3), policy, samples)

    def score(p):
        log_prob = jax.vmap(lambda o, a: p(o).log_prob(a))(samples.observation, samples.action)
        return jnp.mean(log_prob * samples.weight * samples.advantage)

    gradient = ravel_pytree(jax.grad(score)(policy))[0]
    moved = ravel_pytree(new)[0] - ravel_pytree(policy)[0]
    clear = np.abs(gradient) > 1e-4
    assert clear.sum() > 20
    np.testing.assert_allclose(moved[clear], 1e-3 * np.sign(gradient[clear]), rtol=0.02)


def test_ppo_ends_its_passes_once_the_policy_has_moved_too_far(policy, samples):
    """Four steps of Adam in each pass: the first is always made, and one that leads too far is the last."""

    def passes(most_kl):
        config = ppo_steps.Ppo(minibatches=4, rate=3e-3, most_kl=most_kl)
        new, optimiser, metrics = improved(config, policy, samples)
        steps = int(optax.tree_utils.tree_get(optimiser, "count"))
        assert float(Surrogate.at(policy, samples).kl(new)) == pytest.approx(float(metrics["kl"]), rel=1e-3)
        return steps / 4, float(metrics["kl"])

    every, far = passes(0.0)
    assert every == 10
    assert passes(1e-9)[0] == 1
    assert passes(2.0 * far)[0] == 10
    some, stopped = passes(0.3 * far)
    assert 1 < some < 10
    assert stopped > 0.3 * far
    # Every pass but the last kept within the bound.
    assert passes(1.001 * stopped)[0] > some


def test_a_narrow_policy_is_moved_no_further_than_a_wide_one_and_its_gradient_steps_become_shorter():
    """One pass at a rate that suits a wide policy takes a narrow one far beyond where passes are meant to end."""
    config = ppo_steps.Ppo(rate=3e-3, most_kl=0.02, clip=100.0)
    narrow = policies.init(policies.Config(hidden=(8, 8), log_std=-5.0), random.key(0), 3, 2, discrete=False)
    observation = random.normal(random.key(1), (1000, 3))
    action = jax.vmap(lambda o, k: narrow(o).sample(k))(observation, random.split(random.key(2), 1000))
    drawn = Samples(observation, action, random.normal(random.key(3), (1000,)), jnp.ones(1000))
    step = jax.jit(primal_steps.improve, static_argnums=0)
    free = improved(ppo_steps.Ppo(rate=3e-3, most_kl=0.0, clip=100.0, passes=1), narrow, drawn)[2]["kl"]
    assert free > 10 * config.most_kl
    walk, paces = primal_steps.init(config, narrow), []
    for _ in range(12):
        _, walk, metrics = step(config, narrow, walk, drawn, random.key(4))
        assert isinstance(walk, gradient_steps.Walk)
        # The divergence is not quite a square of the step, so that a shortened step may be a little longer than that.
        assert metrics["kl"] < 3 * config.most_kl
        paces.append(float(walk.pace))
    assert 0.01 < paces[-1] < 0.5


def test_steps_that_stay_near_keep_their_rate_and_a_pace_that_was_lost_comes_back(policy, samples):
    config = ppo_steps.Ppo(rate=1e-5)
    fresh = primal_steps.init(config, policy)
    assert isinstance(fresh, gradient_steps.Walk)
    slowed = fresh._replace(pace=jnp.asarray(0.5))
    step = jax.jit(primal_steps.improve, static_argnums=0)
    paces = [float(step(config, policy, walk, samples, random.key(4))[1].pace) for walk in (fresh, slowed)]
    assert paces[0] == 1.0
    assert 0.5 < paces[1] < 0.6
