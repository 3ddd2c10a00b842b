"""Normalised observations: networks move with the statistics, and stay the functions of raw observations they were."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

from apdo.algorithms import cpo, gradient_steps, natural_steps, on_policy, pd_ddpg, pdo, trpo
from apdo.core import critics, policies, trust_region
from apdo.core.statistics import Statistics
from apdo.off_policy import ddpg
from problems import Reach, problem_of, random_batch

TASK = Reach(costs=2)
PROBLEM = problem_of(TASK, 200, (1.0, 2.0), normalise=True)
SMALL: dict[str, Any] = {"policy": policies.Config(hidden=(8,), output_scale=1.0)}
SMALL |= {"critic": critics.Config(hidden=(8,), minibatches=2)}
STILL = gradient_steps.LikelihoodRatio(rate=1e-30)
LEARNER = ddpg.Learner(critic_hidden=(8,), actor_hidden=(8,), minibatch=8, actor_rate=1e-30)
IDLE: dict[str, Any] = {
    "trpo": (trpo, trpo.Config(primal=STILL, **SMALL)),
    "pdo": (pdo, pdo.Config(primal=STILL, **SMALL)),
    "cpo": (cpo, cpo.Config(search=trust_region.LineSearch(radius=1e-20), **SMALL)),
    "pd-ddpg": (pd_ddpg, pd_ddpg.Config(learner=LEARNER, replay_capacity=1000, updates=0.1)),
}
"""Algorithms whose policies stay where they are."""
DAMPED: dict[str, Any] = {"damping": 0.3, "fraction": 1.0}
CALM: dict[str, Any] = {
    "trpo": (trpo, trpo.Config(primal=natural_steps.Trpo(**DAMPED), **SMALL)),
    "pdo": (pdo, pdo.Config(primal=natural_steps.Trpo(**DAMPED), **SMALL)),
    "cpo": (cpo, cpo.Config(search=trust_region.LineSearch(**DAMPED), **SMALL)),
}
"""Algorithms whose steps do not amplify what is rounded."""


def batch_of(seed, shift=0.0, stretch=1.0):
    """A batch whose observations lie elsewhere."""
    batch = random_batch(random.key(seed), TASK, 10, 20)
    place = jnp.asarray([shift, -3.0 * shift])[None, None]
    return dataclasses.replace(
        batch,
        observation=stretch * batch.observation + place,
        next_observation=stretch * batch.next_observation + place,
    )


def modes(policy, observation):
    return np.asarray(jax.vmap(lambda o: policy(o).mode())(observation.reshape(-1, 2)))


FIRST, SECOND = batch_of(1), batch_of(2, shift=2.0, stretch=3.0)


def test_a_batch_is_seen_as_all_observations_so_far_normalise_it_and_as_it_is_where_none_do():
    before = Statistics.of(FIRST.observation)
    after, seen = on_policy.observe(before, SECOND)
    both = before.merge(Statistics.of(SECOND.observation))
    assert after is not None
    for ours, theirs in zip(jax.tree.leaves(after), jax.tree.leaves(both), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(seen.observation, both.normalise(SECOND.observation))
    np.testing.assert_array_equal(seen.next_observation, both.normalise(SECOND.next_observation))
    np.testing.assert_array_equal(seen.reward, SECOND.reward)
    assert on_policy.observe(None, SECOND) == (None, SECOND)


@pytest.mark.parametrize("discrete", [False, True])
def test_a_policy_that_moves_with_the_statistics_is_the_same_function_of_raw_observations(discrete):
    policy = policies.init(SMALL["policy"], random.key(0), 2, 3, discrete=discrete)
    before, after = Statistics.of(FIRST.observation), Statistics.of(SECOND.observation)
    moved = on_policy.rebase(policy, before, after)
    raw = 0.5 * FIRST.observation.reshape(-1, 2)

    def answers(network, statistics):
        return jax.tree.leaves(jax.vmap(policies.Normalised(network, statistics))(raw))

    expected = answers(policy, before)
    for ours, theirs in zip(answers(moved, after), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    assert not np.allclose(answers(policy, after)[0], expected[0], atol=0.1)


@pytest.mark.parametrize("horizon", [None, 5])
def test_value_functions_move_with_the_statistics_and_their_clock_does_not(horizon):
    critic = critics.init(SMALL["critic"], random.key(0), 2, 3, horizon)
    critic = dataclasses.replace(critic, mean=jnp.asarray([1.0, 0.0, -5.0]), scale=jnp.asarray([1.0, 2.0, 30.0]))
    before, after = Statistics.of(FIRST.observation), Statistics.of(SECOND.observation)
    moved = on_policy.rebase(critic, before, after)
    raw = 0.5 * FIRST.observation
    expected = critics.values(critic, before.normalise(raw), FIRST.step)
    found = critics.values(moved, after.normalise(raw), FIRST.step)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)


def test_fresh_networks_have_nothing_to_keep_and_see_normalised_observations():
    policy = policies.init(SMALL["policy"], random.key(0), 2, 1, discrete=False)
    moved = on_policy.rebase(policy, Statistics.empty(2), Statistics.of(SECOND.observation))
    for ours, theirs in zip(jax.tree.leaves(moved), jax.tree.leaves(policy), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("name", IDLE)
def test_after_an_epoch_the_statistics_have_moved_and_a_policy_that_made_no_step_acts_as_before(name):
    algorithm, config = IDLE[name]
    step = jax.jit(algorithm.step, static_argnums=(0, 1))
    state, _ = step(config, PROBLEM, algorithm.init(config, PROBLEM, random.key(0)), FIRST, random.key(1))
    after, _ = step(config, PROBLEM, state, SECOND, random.key(2))
    both = Statistics.of(FIRST.observation).merge(Statistics.of(SECOND.observation))
    for ours, theirs in zip(jax.tree.leaves(after.statistics), jax.tree.leaves(both), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    raw = FIRST.observation
    before, now = (algorithm.learned_policy(each) for each in (state, after))
    np.testing.assert_allclose(modes(now, raw), modes(before, raw), rtol=1e-3, atol=1e-4)
    drifted = modes(policies.Normalised(now.network, before.statistics), raw)
    assert np.abs(drifted - modes(before, raw)).max() > 0.05


@pytest.mark.parametrize("name", CALM)
def test_learning_from_raw_observations_is_learning_from_normalised_ones(name):
    """A twin that is given the normalised batch, and the networks that belong to it, learns the same."""
    algorithm, config = CALM[name]
    step = jax.jit(algorithm.step, static_argnums=(0, 1))
    state, _ = step(config, PROBLEM, algorithm.init(config, PROBLEM, random.key(0)), FIRST, random.key(1))
    after, metrics = step(config, PROBLEM, state, SECOND, random.key(2))
    statistics, seen = on_policy.observe(state.statistics, SECOND)
    moved = [on_policy.rebase(each, state.statistics, statistics) for each in (state.policy, state.critic)]
    twin = eqx.tree_at(lambda s: (s.policy, s.critic), dataclasses.replace(state, statistics=None), tuple(moved))
    plain = dataclasses.replace(PROBLEM, normalise=False)
    same, told = step(config, plain, twin, seen, random.key(2))
    for ours, theirs in zip(jax.tree.leaves(after.policy), jax.tree.leaves(same.policy), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)
    for key, value in told.items():
        np.testing.assert_allclose(metrics[key], value, rtol=1e-2, atol=1e-4, err_msg=key)


def test_where_observations_are_taken_as_they_are_nothing_is_remembered_of_them():
    plain = dataclasses.replace(PROBLEM, normalise=False)
    for algorithm, config in IDLE.values():
        assert algorithm.init(config, plain, random.key(0)).statistics is None
