"""Value functions: what they estimate and how well they are fitted."""

import itertools
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from apdo.core import critics, networks
from apdo.core.advantage import gae
from apdo.core.critics import Config

fit = partial(jax.jit, static_argnums=0)(critics.fit)
estimate = partial(jax.jit, static_argnames="truncates")(critics.estimate)
values = jax.jit(critics.values)
KEY = jax.random.key(0)
TANH = Config(hidden=(8,), rate=0.01, passes=80, minibatches=4)
LINEAR = Config(hidden=(), rate=0.03, passes=200, minibatches=2)


def normal(rng, *shape):
    return jnp.asarray(rng.normal(size=shape), dtype=jnp.float32)


def critic_of(config, stack):
    return critics.Critic(networks=stack, optimiser=optax.adam(config.rate).init(stack))


def random_critic(rng, config, signals):
    sizes = (3, *config.hidden, 1)
    weights = [normal(rng, signals, i, j) / np.sqrt(i) for i, j in itertools.pairwise(sizes)]
    biases = [normal(rng, signals, j) for j in sizes[1:]]
    return critic_of(config, networks.MLP(weights=tuple(weights), biases=tuple(biases)))


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
    assert len(np.unique(np.asarray(critic.networks.weights[0]))) == 12
    optimiser: Any = critic.optimiser
    assert int(optimiser[0].count) == 0


def test_estimates_are_gae_of_the_present_values_and_targets_are_value_plus_advantage(random_batch):
    rng = np.random.default_rng(1)
    batch = random_batch(rng, 19, 5)
    critic = random_critic(rng, TANH, 2)
    signal, discount, trace = normal(rng, 19, 5, 2), jnp.asarray([0.9, 0.5]), jnp.asarray([0.8, 1.0])
    assert batch.truncated.any()
    estimates = estimate(critic, batch, signal, discount, trace, truncates=True)
    value, following = values(critic, batch.observation), values(critic, batch.next_observation)
    expected = jax.jit(gae)(signal, value, following, batch.terminated, batch.ended, discount, trace)
    np.testing.assert_allclose(estimates.advantage, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(estimates.target, np.asarray(value) + np.asarray(expected), rtol=1e-5, atol=1e-5)
    # After a terminated step nothing follows: its target is what it brought, whatever the value functions say.
    last = np.asarray(batch.terminated)
    assert last.any()
    np.testing.assert_allclose(np.asarray(estimates.target)[last], np.asarray(signal)[last], rtol=1e-4, atol=1e-5)


def test_where_nothing_is_truncated_the_values_one_step_on_give_the_same_estimates(random_batch):
    rng = np.random.default_rng(6)
    batch = random_batch(rng, 19, 5, terminate=0.3, truncate=0.0)
    assert not batch.truncated.any()
    assert not batch.terminated[-1].all()
    follows = ~np.asarray(batch.terminated)[:-1, :, None]
    following = np.array(batch.next_observation)
    following[:-1] = np.where(follows, np.asarray(batch.observation)[1:], following[:-1])
    batch = eqx.tree_at(lambda b: b.next_observation, batch, jnp.asarray(following))
    critic = random_critic(rng, TANH, 2)
    signal, discount, trace = normal(rng, 19, 5, 2), jnp.asarray([0.9, 0.5]), jnp.asarray([0.8, 1.0])
    at_length, in_short = (estimate(critic, batch, signal, discount, trace, truncates=t) for t in (True, False))
    np.testing.assert_allclose(in_short.advantage, at_length.advantage, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(in_short.target, at_length.target, rtol=1e-5, atol=1e-5)


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
    np.testing.assert_allclose(error, achieved, rtol=0.05)
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
