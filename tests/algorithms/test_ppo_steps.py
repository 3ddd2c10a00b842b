"""PPO's clip, its annealing and the worth of entropy."""

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


def test_ppo_improves_the_surrogate_and_its_clip_holds_the_ratios_back(policy, samples):
    surrogate, spread = Surrogate.at(policy, samples), {}
    for clip in (0.1, 100.0):
        new, _, metrics = improved(ppo_steps.Ppo(clip=clip, minibatches=4, rate=3e-3), policy, samples)
        assert float(metrics["surrogate_gain"]) > 0.02
        spread[clip] = float(surrogate.kl(new))
    assert spread[0.1] < 0.7 * spread[100.0]


def test_the_clips_edge_is_reached_however_slow_the_steps_are_and_annealing_draws_it_in(policy, samples):
    """PPO goes as far as it may, however small the advantage: a lower rate alone is no shorter step."""
    kl = {
        name: float(improved(config, policy, samples)[2]["kl"])
        for name, config in {
            "plain": ppo_steps.Ppo(passes=40, most_kl=0.0),
            "slow": ppo_steps.Ppo(passes=40, most_kl=0.0, rate=3e-4),
            "near": ppo_steps.Ppo(passes=40, most_kl=0.0, clip=0.02),
        }.items()
    }
    assert kl["slow"] > 0.5 * kl["plain"]
    assert kl["near"] < 0.1 * kl["plain"]


def test_steps_are_half_as_long_after_as_many_epochs_of_gradient_steps_as_annealing_is_told(policy):
    config = ppo_steps.Ppo(passes=3, minibatches=5, anneal=20.0)
    state = primal_steps.init(config, policy)

    @jax.jit
    def bounds(epochs):
        found = gradient_steps.annealed(config, optax.tree_utils.tree_set(state, count=15 * epochs))
        return found.rate, found.clip

    for epochs, length in ((0, 1.0), (20, 0.5), (60, 0.25)):
        np.testing.assert_allclose(bounds(epochs), (length * config.rate, length * config.clip), rtol=1e-6)
    assert gradient_steps.annealed(ppo_steps.Ppo(), state) == ppo_steps.Ppo()


@pytest.mark.parametrize("discrete", [True, False])
def test_the_worth_of_entropy_adds_its_gradient_to_the_surrogates(discrete):
    """The gradient of the sum by finite differences of the mean entropy."""
    policy = policies.init(policies.Config(hidden=(4,), output_scale=1.0), random.key(0), 3, 2, discrete=discrete)
    observation = random.normal(random.key(1), (50, 3))
    action = jax.vmap(lambda o, k: policy(o).sample(k))(observation, random.split(random.key(2), 50))
    weight = random.uniform(random.key(5), (50,), minval=0.2, maxval=2.0)
    samples = Samples(observation, action, random.normal(random.key(3), (50,)), weight)
    theta, unravel = ravel_pytree(policy)

    def gradient(entropy):
        surrogate = Surrogate.at(policy, samples)
        return jax.grad(lambda p: ppo_steps.clipped_gain(ppo_steps.Ppo(entropy=entropy), surrogate, unravel(p)))(theta)

    @jax.jit
    def mean_entropy(parameters):
        entropies = jax.vmap(lambda o: unravel(parameters)(o).entropy())(observation)
        return jnp.mean(weight * entropies)

    added = gradient(0.5) - gradient(0.0)
    for i in range(0, theta.shape[0], 5):
        along = jnp.zeros_like(theta).at[i].set(3e-3)
        slope = float(mean_entropy(theta + along) - mean_entropy(theta - along)) / 6e-3
        assert float(added[i]) == pytest.approx(0.5 * slope, rel=0.01, abs=2e-4)


def test_what_entropy_is_worth_falls_with_the_steps(policy):
    config = ppo_steps.Ppo(passes=3, minibatches=5, anneal=20.0, entropy=0.4)
    late = optax.tree_utils.tree_set(primal_steps.init(config, policy), count=15 * 60)
    np.testing.assert_allclose(gradient_steps.annealed(config, late).entropy, 0.1, rtol=1e-6)
