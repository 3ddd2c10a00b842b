"""Normalisation and scaling are invisible: the algorithm sees scaled numbers, its user raw ones."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from apdo.algorithms import apdo, dual_estimate, pd_ddpg, pdo, primal_steps
from apdo.algorithms.scaled import ActionMeaning, Scaled
from apdo.core import critics, dual, policies
from apdo.core.statistics import Statistics
from apdo.problem import Problem

CONFIG = pdo.Config(
    primal=primal_steps.LikelihoodRatio(),
    policy=policies.Config(hidden=(4,)),
    critic=critics.Config(hidden=(4,), minibatches=2),
)
PROBLEM = Problem(3, 2, 40, (1.0, 2.0), 0.9, 0.8, 10, truncates=True)


@pytest.fixture
def batch(random_batch):
    return random_batch(np.random.default_rng(0), 10, 4)


def changed(batch, **fields):
    return jax.tree.unflatten(
        jax.tree.structure(batch),
        [fields.get(name, getattr(batch, name)) for name in batch.__dataclass_fields__],
    )


def test_factors_of_one_and_no_normalisation_change_nothing(batch):
    key = jax.random.key(0)
    plain, wrapped = pdo.init(CONFIG, PROBLEM, key), Scaled(pdo, normalise=False)
    state = wrapped.init(CONFIG, PROBLEM, key)
    after, metrics = pdo.step(CONFIG, PROBLEM, plain, batch, key)
    ours, same = wrapped.step(CONFIG, PROBLEM, state, batch, key)
    for one, other in zip(jax.tree.leaves((after, metrics)), jax.tree.leaves((ours.inner, same)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_what_is_measured_does_not_depend_on_the_factors(batch):
    key = jax.random.key(0)
    found = []
    config, problem = dataclasses.replace(CONFIG, safety=1.0), dataclasses.replace(PROBLEM, limits=(-9.0, 2.0))
    for reward, cost in ((1.0, 1.0), (0.01, 50.0)):
        algorithm = Scaled(pdo, normalise=False, reward_scale=reward, cost_scale=cost)
        state = algorithm.init(config, problem, key)
        found.append(algorithm.step(config, problem, state, batch, key))
    (_, metrics), (state, scaled) = found
    assert float(metrics["enforced_limit"][0]) < -10.0
    for name in ("return", "discounted_return", "cost", "undiscounted_cost", "episode_length", "enforced_limit"):
        np.testing.assert_allclose(metrics[name], scaled[name], rtol=1e-4, err_msg=name)
    # λ' of the scaled problem is λ · reward factor / cost factor: the dual step sees costs 50 times as large.
    again = Scaled(pdo, normalise=False, reward_scale=0.01, cost_scale=50.0)
    shown = again.step(config, problem, state, batch, key)[1]["multiplier"]
    np.testing.assert_allclose(shown, state.inner.multiplier.value * 50.0 / 0.01, rtol=1e-5)


def test_learning_uses_the_statistics_that_acting_used_and_then_adds_the_batch(batch):
    algorithm = Scaled(pdo)
    key = jax.random.key(0)
    first, _ = algorithm.step(CONFIG, PROBLEM, algorithm.init(CONFIG, PROBLEM, key), batch, key)
    own = Statistics.of(batch.observation)
    np.testing.assert_allclose(first.statistics.mean, own.mean, rtol=1e-6)
    shifted = changed(batch, observation=batch.observation + 5.0, next_observation=batch.next_observation + 5.0)
    second, _ = algorithm.step(CONFIG, PROBLEM, first, shifted, key)
    both = own.merge(Statistics.of(shifted.observation))
    np.testing.assert_allclose(second.statistics.variance, both.variance, rtol=1e-5)
    seen = changed(
        shifted,
        observation=own.normalise(shifted.observation),
        next_observation=own.normalise(shifted.next_observation),
    )
    twin, _ = pdo.step(CONFIG, PROBLEM, first.inner, seen, key)
    for one, other in zip(jax.tree.leaves(twin), jax.tree.leaves(second.inner), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_the_learned_policy_takes_raw_observations_and_gives_the_environments_actions(batch):
    low, high = jnp.asarray([-2.0, 0.0]), jnp.asarray([4.0, 1e30])
    meaning = ActionMeaning(shift=jnp.asarray([1.0, 0.0]), scale=jnp.asarray([3.0, 1.0]), low=low, high=high)
    algorithm = Scaled(pdo, meaning=meaning)
    key = jax.random.key(0)
    state, _ = algorithm.step(CONFIG, PROBLEM, algorithm.init(CONFIG, PROBLEM, key), batch, key)
    observation = batch.observation[0, 0]
    action, _ = algorithm.act(CONFIG, state, (), observation, key)
    drawn = algorithm.learned_policy(state)(observation).sample(key)
    np.testing.assert_allclose(drawn, jnp.clip(jnp.asarray([1.0, 0.0]) + jnp.asarray([3.0, 1.0]) * action, low, high))
    inner = state.inner.policy(state.statistics.normalise(observation))
    np.testing.assert_allclose(action, inner.sample(key), rtol=1e-6)


def test_an_adjustment_finds_its_multiplier_in_raw_units(batch):
    config = apdo.Config(
        primal=primal_steps.LikelihoodRatio(),
        policy=policies.Config(hidden=(4,)),
        critic=critics.Config(hidden=(4,), minibatches=2),
        k_adj=0,
        off_policy=dual_estimate.Config(learner=pd_ddpg.Learner(critic_hidden=(4,), actor_hidden=(4,), minibatch=8)),
    )
    algorithm, key = Scaled(apdo, reward_scale=0.5, cost_scale=4.0), jax.random.key(0)
    state, _ = algorithm.step(config, PROBLEM, algorithm.init(config, PROBLEM, key), batch, key)
    assert algorithm.adjustment is not None
    learner = algorithm.adjustment.begin(config, PROBLEM, state, key)
    learner = algorithm.adjustment.work(config, PROBLEM, state, learner, jnp.asarray(100))
    adjusted, found = algorithm.adjustment.finish(config, PROBLEM, state, learner)
    middle = np.median(learner.multiplier_mean, axis=0)
    np.testing.assert_allclose(found.multiplier, middle * 4.0 / 0.5, rtol=1e-6)
    np.testing.assert_array_equal(adjusted.inner.pdo.multiplier.value, middle)


def test_a_remark_on_gains_is_about_the_numbers_that_they_act_on():
    """Inside, λ is an eighth and d four times what the user sees: λ/d is 1 where it looks like 32."""
    algorithm = Scaled(apdo, reward_scale=0.5, cost_scale=4.0)
    assert algorithm.adjustment is not None
    for gain, said in ((4.5, ""), (5.5, "Try about --rule.proportional 0.5 --dual-step 0.05.")):
        config = apdo.Config(rule=dual.Pid(proportional=gain))
        remark = algorithm.adjustment.remark(config, PROBLEM, jnp.asarray([[32.0, 64.0]]))
        assert remark.endswith(said)
        assert bool(remark) == bool(said)
