"""Steps along the natural gradient: TRPO's, and the plain one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from jax.flatten_util import ravel_pytree

from apdo.algorithms import natural_steps, primal_steps
from apdo.algorithms.surrogate import Samples, Surrogate
from problems import improved


def test_trpo_stays_within_its_radius_and_improves_the_surrogate(policy, samples):
    for radius in (0.001, 0.01, 0.1):
        new, _, metrics = improved(natural_steps.Trpo(radius=radius), policy, samples)
        surrogate = Surrogate.at(policy, samples)
        assert 0.3 * radius < float(surrogate.kl(new)) <= radius
        weighted = samples.weight * samples.advantage
        assert float(jnp.mean(surrogate.ratio(new) * weighted)) > float(jnp.mean(weighted))
        assert float(metrics["step_accepted"]) == 1.0


def test_trpo_keeps_the_old_policy_when_no_step_is_acceptable(policy, samples):
    """With advantages of zero no step improves anything."""
    idle = Samples(samples.observation, samples.action, jnp.zeros(1000), samples.weight)
    new, _, metrics = improved(natural_steps.Trpo(), policy, idle)
    np.testing.assert_array_equal(ravel_pytree(new)[0], ravel_pytree(policy)[0])
    assert float(metrics["step_accepted"]) == 0.0


def test_trpo_shortens_a_step_that_leaves_the_trust_region(policy, samples):
    """Far from quadratic: a huge radius makes the model wrong, and the first steps must be refused."""
    config = natural_steps.Trpo(radius=2.0)
    surrogate = Surrogate.at(policy, samples)
    full, _ = natural_steps.natural_step(config, surrogate, policy)
    parameters, unravel = ravel_pytree(policy)
    assert not float(surrogate.kl(unravel(parameters + full))) <= config.radius
    new, _, _ = improved(config, policy, samples)
    assert float(surrogate.kl(new)) <= config.radius


def test_the_natural_step_is_the_dense_solution_scaled_to_the_radius(policy, samples):
    config = natural_steps.NaturalGradient(fraction=1.0, iterations=200, damping=1e-3)
    surrogate = Surrogate.at(policy, samples)
    parameters, unravel = ravel_pytree(policy)
    weighted = samples.weight * samples.advantage
    gradient = jax.grad(lambda p: jnp.mean(surrogate.ratio(unravel(p)) * weighted))(parameters)
    fisher = jax.hessian(lambda p: surrogate.kl(unravel(p)))(parameters) + config.damping * jnp.eye(parameters.size)
    direction = np.linalg.solve(np.asarray(fisher, np.float64), np.asarray(gradient, np.float64))
    exact = direction * np.sqrt(2 * config.radius / (direction @ np.asarray(fisher) @ direction))
    step, _ = natural_steps.natural_step(config, surrogate, policy)
    cosine = step @ exact / np.linalg.norm(step) / np.linalg.norm(exact)
    assert cosine > 0.999
    assert np.linalg.norm(step) == pytest.approx(np.linalg.norm(exact), rel=0.02)


def test_the_natural_gradient_step_is_taken_whole(policy, samples):
    config = natural_steps.NaturalGradient()
    surrogate = Surrogate.at(policy, samples)
    new, _, _ = improved(config, policy, samples)
    step, _ = natural_steps.natural_step(config, surrogate, policy)
    # Two programs for conjugate gradient: where the condition is some 10³, a rounding of 10⁻⁷ becomes one of 10⁻⁴.
    rounding = 1e-4 * float(jnp.abs(step).max())
    np.testing.assert_allclose(ravel_pytree(new)[0], ravel_pytree(policy)[0] + step, rtol=1e-5, atol=rounding)


@pytest.mark.parametrize(
    "config", [natural_steps.NaturalGradient(anneal=20.0), natural_steps.NaturalGradient(anneal=20.0, rate=0.01)]
)
def test_a_natural_step_of_a_later_epoch_is_the_first_ones_times_the_length_told(policy, samples, config):
    """The same whether the rate or the region's edge ends it."""

    @jax.jit
    def move(epochs):
        new, *_ = primal_steps.improve(config, policy, (), samples, random.key(4), epochs=epochs)
        return ravel_pytree(new)[0] - ravel_pytree(policy)[0]

    for epochs, length in ((20, 0.5), (60, 0.25)):
        np.testing.assert_allclose(move(epochs), length * move(0), rtol=1e-3, atol=1e-6)


def test_trpos_trust_region_shrinks_as_its_steps_do(policy, samples):
    """A share of the length is its square of the divergence, which also bounds the search along the step."""
    config = natural_steps.Trpo(anneal=20.0)
    step = jax.jit(lambda epochs: primal_steps.improve(config, policy, (), samples, random.key(4), epochs=epochs)[2])
    for epochs, length in ((0, 1.0), (20, 0.5), (180, 0.1)):
        found = step(epochs)
        assert found["step_accepted"] == 1.0
        assert 0.3 * length**2 * config.radius < found["kl"] <= length**2 * config.radius


def test_without_annealing_the_steps_of_every_epoch_are_the_first_ones_bit_for_bit(policy, samples):
    step = jax.jit(
        lambda epochs: primal_steps.improve(
            natural_steps.Trpo(rate=0.3), policy, (), samples, random.key(4), epochs=epochs
        )[0]
    )
    np.testing.assert_array_equal(ravel_pytree(step(900))[0], ravel_pytree(step(0))[0])
