"""Value functions: what they estimate and how well they are fitted."""

import dataclasses
import itertools
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from apdo.core import critics, networks
from apdo.core.advantage import gae
from apdo.core.critics import Config

fit = partial(jax.jit, static_argnums=0)(critics.fit)
estimate = jax.jit(critics.estimate)
KEY = jax.random.key(0)
TANH = Config(hidden=(8,), rate=0.01, passes=80, minibatches=4)
LINEAR = Config(hidden=(), rate=0.03, passes=200, minibatches=2)


def normal(rng, *shape):
    return jnp.asarray(rng.normal(size=shape), dtype=jnp.float32)


def values(critic, observation, step=None):
    step = jnp.zeros(observation.shape[:-1], jnp.int32) if step is None else step
    return jax.jit(critics.values)(critic, observation, step)


def critic_of(config, stack, mean=None, scale=None, horizon=None):
    """A critic whose networks give values as they are, unless told otherwise."""
    signals = stack.biases[0].shape[0]
    return critics.Critic(
        networks=stack,
        mean=jnp.zeros(signals) if mean is None else jnp.asarray(mean),
        scale=jnp.ones(signals) if scale is None else jnp.asarray(scale),
        optimiser=optax.adam(config.rate).init(stack),
        horizon=horizon,
    )


def random_critic(rng, config, signals, **units):
    sizes = (3 + ("horizon" in units), *config.hidden, 1)
    weights = [normal(rng, signals, i, j) / np.sqrt(i) for i, j in itertools.pairwise(sizes)]
    biases = [normal(rng, signals, j) for j in sizes[1:]]
    return critic_of(config, networks.MLP(weights=tuple(weights), biases=tuple(biases)), **units)


def alone(stack, k):
    """The k-th network of a stack, still as a stack."""
    return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[k : k + 1]), stack)


def mean_squared_error(critic, observation, target):
    return np.mean((np.asarray(values(critic, observation)) - np.asarray(target)) ** 2, axis=0)


def test_values_are_those_of_the_single_networks_whatever_the_leading_axes():
    rng = np.random.default_rng(0)
    critic = random_critic(rng, TANH, 2)
    observation = np.asarray(normal(rng, 12, 3))
    flat = np.asarray(values(critic, jnp.asarray(observation)))
    assert flat.shape == (12, 2)
    assert len(np.unique(flat)) == flat.size
    for k in range(2):
        network = jax.tree.map(lambda leaf, k=k: np.asarray(leaf, dtype=np.float64)[k], critic.networks)
        hidden = np.tanh(observation @ network.weights[0] + network.biases[0])
        expected = hidden @ network.weights[1] + network.biases[1]
        np.testing.assert_allclose(flat[:, k], expected[:, 0], rtol=1e-4, atol=1e-5)
    folded = values(critic, jnp.asarray(observation.reshape(3, 4, 3)))
    np.testing.assert_allclose(folded, flat.reshape(3, 4, 2), atol=1e-6)


def test_fresh_value_functions_differ_from_signal_to_signal_and_have_not_been_fitted():
    critic = critics.init(LINEAR, KEY, 3, 4)
    assert [leaf.shape for leaf in jax.tree.leaves(critic.networks)] == [(4, 3, 1), (4, 1)]
    assert len(np.unique(np.asarray(jax.tree.leaves(critic.networks)[0]))) == 12
    optimiser: Any = critic.optimiser
    assert int(optimiser[0].count) == 0
    np.testing.assert_array_equal(values(critic, normal(np.random.default_rng(0), 5, 3)), np.zeros((5, 4)))


def test_estimates_are_gae_of_the_present_values_and_targets_are_value_plus_advantage(random_batch):
    rng = np.random.default_rng(1)
    batch = random_batch(rng, 19, 5)
    critic = random_critic(rng, TANH, 2)
    signal, discount, trace = normal(rng, 19, 5, 2), jnp.asarray([0.9, 0.5]), jnp.asarray([0.8, 1.0])
    assert batch.truncated.any()
    estimates = estimate(critic, batch, signal, discount, trace, batch.terminated)
    value, following = values(critic, batch.observation), values(critic, batch.next_observation)
    expected = jax.jit(gae)(signal, value, following, batch.terminated, batch.ended, discount, trace)
    np.testing.assert_allclose(estimates.advantage, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(estimates.target, np.asarray(value) + np.asarray(expected), rtol=1e-5, atol=1e-5)
    # After a terminated step nothing follows: its target is what it brought, whatever the value functions say.
    last = np.asarray(batch.terminated)
    assert last.any()
    np.testing.assert_allclose(np.asarray(estimates.target)[last], np.asarray(signal)[last], rtol=1e-4, atol=1e-5)


def chained(batch):
    """The batch with each next observation the one that follows, where an episode goes on."""
    follows = ~np.asarray(batch.ended)[:-1, :, None]
    following = np.array(batch.next_observation)
    following[:-1] = np.where(follows, np.asarray(batch.observation)[1:], following[:-1])
    return eqx.tree_at(lambda b: b.next_observation, batch, jnp.asarray(following))


def test_where_every_end_is_final_the_values_one_step_on_give_the_same_estimates(random_batch):
    """Critics that see the time take the short way: GAE with the values at the next observations is the long one."""
    rng = np.random.default_rng(6)
    batch = chained(random_batch(rng, 19, 5))
    assert batch.truncated.any()
    assert batch.terminated.any()
    assert not batch.ended[-1].all()
    critic = random_critic(rng, TANH, 2, horizon=20)
    signal, discount, trace = normal(rng, 19, 5, 2), jnp.asarray([0.9, 0.5]), jnp.asarray([0.8, 1.0])
    in_short = estimate(critic, batch, signal, discount, trace, batch.ended)
    value = values(critic, batch.observation, batch.step)
    following = values(critic, batch.next_observation, batch.step + 1)
    at_length = jax.jit(gae)(signal, value, following, batch.ended, batch.ended, discount, trace)
    np.testing.assert_allclose(in_short.advantage, at_length, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(in_short.target, value + at_length, rtol=1e-5, atol=1e-5)


def test_after_a_truncated_step_the_value_counts_unless_that_is_said_to_be_final(random_batch):
    rng = np.random.default_rng(7)
    batch = random_batch(rng, 19, 5, terminate=0.0)
    last = np.asarray(batch.truncated)
    assert last.any()
    critic, signal = random_critic(rng, TANH, 2), normal(rng, 19, 5, 2)
    discount, trace = jnp.asarray([0.9, 0.5]), jnp.asarray([0.8, 1.0])
    beyond = np.asarray(discount) * np.asarray(values(critic, batch.next_observation))
    for final, expected in ((batch.terminated, signal + beyond), (batch.ended, signal)):
        target = estimate(critic, batch, signal, discount, trace, final).target
        np.testing.assert_allclose(np.asarray(target)[last], np.asarray(expected)[last], rtol=1e-4, atol=1e-5)


def test_only_networks_with_a_horizon_see_the_time_as_a_share_of_it():
    rng = np.random.default_rng(8)
    observation, step = normal(rng, 4, 5, 3), jnp.asarray(rng.integers(0, 8, (4, 5)), jnp.int32)
    blind, seeing = random_critic(rng, TANH, 2), random_critic(rng, TANH, 2, horizon=8)
    flat = np.asarray(observation).reshape(20, 3)
    np.testing.assert_array_equal(critics.inputs(blind, observation, step), flat)
    found = np.asarray(critics.inputs(seeing, observation, step))
    np.testing.assert_array_equal(found[:, :3], flat)
    np.testing.assert_array_equal(found[:, 3], np.asarray(step).reshape(20) / 8)
    np.testing.assert_array_equal(values(blind, observation, step), values(blind, observation, step + 1))
    assert (np.abs(values(seeing, observation, step) - values(seeing, observation, step + 1)) > 1e-4).all()
    assert jax.tree.leaves(critics.init(TANH, KEY, 3, 2, 8).networks)[0].shape == (2, 4, 8)
    assert jax.tree.leaves(critics.init(TANH, KEY, 3, 2).networks)[0].shape == (2, 3, 8)


def test_values_are_mean_plus_scale_times_what_the_networks_give():
    rng = np.random.default_rng(9)
    plain = random_critic(rng, TANH, 2)
    scaled = dataclasses.replace(plain, mean=jnp.asarray([5.0, -1.0]), scale=jnp.asarray([100.0, 0.0]))
    observation = normal(rng, 6, 3)
    expected = np.asarray([5.0, -1.0]) + np.asarray([100.0, 0.0]) * np.asarray(values(plain, observation))
    np.testing.assert_allclose(values(scaled, observation), expected, rtol=1e-5)


def test_fitting_linear_values_to_noisy_linear_targets_reaches_least_squares():
    rng = np.random.default_rng(2)
    observation = normal(rng, 256, 3)
    slopes = np.array([[1.0, -2.0, 0.5], [0.3, 0.0, 2.0]])
    noisy = np.asarray(observation) @ slopes.T + [3.0, -1.0] + rng.normal(size=(256, 2)) * [0.5, 1.0]
    target = jnp.asarray(noisy, dtype=jnp.float32)
    critic, error = fit(LINEAR, random_critic(rng, LINEAR, 2), KEY, observation, target)
    design = np.column_stack([np.asarray(observation), np.ones(256)])
    best = np.mean((noisy - design @ np.linalg.lstsq(design, noisy, rcond=None)[0]) ** 2, axis=0)
    achieved = mean_squared_error(critic, observation, noisy)
    assert (achieved >= best * (1 - 1e-4)).all()
    np.testing.assert_array_less(achieved, 1.02 * best)
    np.testing.assert_allclose(error, achieved / noisy.var(axis=0), rtol=0.05)
    # Each minibatch of each pass is one step of Adam, and a second fit goes on with the first one's moments.
    assert int(critic.optimiser[0].count) == 200 * 2
    assert int(fit(LINEAR, critic, KEY, observation, target)[0].optimiser[0].count) == 2 * 200 * 2


def test_fitting_a_hidden_layer_explains_almost_all_of_a_linear_target():
    rng = np.random.default_rng(3)
    observation = normal(rng, 256, 3)
    target = jnp.asarray(np.asarray(observation) @ np.asarray([[1.0, 0.0], [-1.0, 0.1], [0.5, 0.2]], np.float32) + 1.0)
    before = random_critic(rng, TANH, 2)
    critic, _ = fit(TANH, before, KEY, observation, target)
    np.testing.assert_array_less(
        mean_squared_error(critic, observation, target), 0.01 * mean_squared_error(before, observation, target)
    )


def test_each_signal_is_fitted_as_if_it_were_alone_whatever_the_scale_of_the_others():
    rng = np.random.default_rng(4)
    observation = normal(rng, 256, 3)
    target = np.asarray(normal(rng, 256, 2)) * np.asarray([1e4, 1.0], np.float32)
    together = random_critic(rng, TANH, 2)
    joint, joint_error = fit(TANH, together, KEY, observation, jnp.asarray(target))
    after = np.asarray(values(joint, observation))
    moved = np.abs(after - np.asarray(values(together, observation))).max(axis=0)
    assert (moved > 1e-2).all(), "the fit must move every network"
    for k in range(2):
        single = critic_of(TANH, alone(together.networks, k))
        apart, error = fit(TANH, single, KEY, observation, jnp.asarray(target[:, k : k + 1]))
        np.testing.assert_allclose(after[:, k], np.asarray(values(apart, observation))[:, 0], rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(np.asarray(joint_error)[k], np.asarray(error)[0], rtol=1e-3)


IDLE = dataclasses.replace(TANH, rate=1e-30)
"""A fit that changes units and nothing else."""


def test_a_change_of_units_keeps_every_value_and_takes_mean_and_deviation_from_the_targets():
    rng = np.random.default_rng(10)
    observation = normal(rng, 64, 3)
    before = random_critic(rng, IDLE, 2, mean=[3.0, -700.0], scale=[0.5, 90.0])
    target = np.asarray(normal(rng, 64, 2)) * np.asarray([40.0, 2.0], np.float32) + np.asarray([-10.0, 5.0], np.float32)
    after, _ = fit(IDLE, before, KEY, observation, jnp.asarray(target))
    np.testing.assert_allclose(after.mean, target.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(after.scale, target.std(axis=0), rtol=1e-5)
    np.testing.assert_allclose(values(after, observation), values(before, observation), rtol=1e-4, atol=1e-3)


def test_a_signal_that_does_not_vary_keeps_its_units_and_one_that_never_did_has_its_mean_for_a_value():
    rng = np.random.default_rng(11)
    observation = normal(rng, 64, 3)
    constant = jnp.full((64, 2), 1000.1)
    before = random_critic(rng, IDLE, 2, mean=[3.0, 0.0], scale=[0.5, 0.0])
    after, error = fit(IDLE, before, KEY, observation, constant)
    np.testing.assert_array_equal(after.mean, before.mean)
    np.testing.assert_array_equal(after.scale, before.scale)
    assert np.isfinite(error).all()
    np.testing.assert_array_equal(np.asarray(values(after, observation))[:, 1], np.zeros(64))


def test_a_signal_that_varies_for_the_first_time_begins_at_its_mean_with_the_fresh_network():
    rng = np.random.default_rng(12)
    observation, target = normal(rng, 64, 3), 300.0 + 7.0 * normal(rng, 64, 1)
    fresh = critics.init(IDLE, KEY, 3, 1)
    after, _ = fit(IDLE, fresh, KEY, observation, target)
    for ours, theirs in zip(jax.tree.leaves(after.networks), jax.tree.leaves(fresh.networks), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-20)
    assert float(after.mean[0]) == pytest.approx(float(target.mean()), rel=1e-5)


@pytest.mark.parametrize("factors", [(1024.0, 2.0**-20), (0.25, 64.0)])
def test_targets_in_other_units_give_the_same_fit_bit_for_bit(factors):
    """Powers of two: every value is that many times as large, after a first fit and after a second to other targets."""
    rng = np.random.default_rng(13)
    observation, size = normal(rng, 128, 3), np.asarray(factors, np.float32)
    targets = [np.asarray(normal(rng, 128, 2)) * np.float32(s) + np.float32(1.0) for s in (1.0, 3.0)]
    plain = other = critics.init(TANH, KEY, 3, 2)
    for target in targets:
        plain, error = fit(TANH, plain, KEY, observation, jnp.asarray(target))
        other, same = fit(TANH, other, KEY, observation, jnp.asarray(target * size))
        np.testing.assert_array_equal(error, same)
        np.testing.assert_array_equal(np.asarray(values(plain, observation)) * size, values(other, observation))


def test_a_level_that_all_targets_share_need_not_be_learned():
    """To be fitted from 0 within one step of Adam, a level of a million would take a million steps of size one."""
    rng = np.random.default_rng(14)
    observation = normal(rng, 64, 3)
    target = 1e6 + 100.0 * normal(rng, 64, 1)
    one_step = dataclasses.replace(TANH, passes=1, minibatches=1)
    after, _ = fit(one_step, critics.init(one_step, KEY, 3, 1), KEY, observation, target)
    assert np.abs(np.asarray(values(after, observation)) - 1e6).max() < 500.0
