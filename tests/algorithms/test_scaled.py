"""The mapping of actions is invisible to the algorithm: it acts in its own units, what it learns in the task's."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from apdo.algorithms import apdo, gradient_steps, pd_ddpg, pdo
from apdo.algorithms.scaled import ActionMeaning, Scaled
from apdo.core import critics, policies
from apdo.off_policy import ddpg, dual_estimate
from apdo.problem import Problem

SMALL = {
    "primal": gradient_steps.LikelihoodRatio(),
    "policy": policies.Config(hidden=(4,)),
    "critic": critics.Config(hidden=(4,), minibatches=2),
}
CONFIG = pdo.Config(**SMALL)
PROBLEM = Problem(3, 2, 40, (1.0, 2.0), 0.9, 0.8, 10, truncates=True, normalise=True)
LOW, HIGH = jnp.asarray([-2.0, 0.0]), jnp.asarray([4.0, 1e30])
MEANING = ActionMeaning(shift=jnp.asarray([1.0, 0.0]), scale=jnp.asarray([3.0, 1.0]), low=LOW, high=HIGH)


@pytest.fixture
def batch(random_batch):
    return random_batch(np.random.default_rng(0), 10, 4)


@pytest.mark.parametrize("meaning", [None, MEANING])
def test_what_actions_mean_changes_nothing_in_what_is_learned(batch, meaning):
    key = jax.random.key(0)
    plain, wrapped = pdo.init(CONFIG, PROBLEM, key), Scaled(pdo, meaning)
    state = wrapped.init(CONFIG, PROBLEM, key)
    after, metrics = pdo.step(CONFIG, PROBLEM, plain, batch, key)
    ours, same = wrapped.step(CONFIG, PROBLEM, state, batch, key)
    for one, other in zip(jax.tree.leaves((after, metrics)), jax.tree.leaves((ours.inner, same)), strict=True):
        np.testing.assert_array_equal(one, other)
    observation = batch.observation[0, 0]
    action, _ = wrapped.act(CONFIG, ours, (), observation, key)
    np.testing.assert_array_equal(action, pdo.act(CONFIG, after, (), observation, key)[0])


def test_the_learned_policy_takes_raw_observations_and_gives_the_environments_actions(batch):
    algorithm = Scaled(pdo, MEANING)
    key = jax.random.key(0)
    state, _ = algorithm.step(CONFIG, PROBLEM, algorithm.init(CONFIG, PROBLEM, key), batch, key)
    observation = batch.observation[0, 0]
    action, _ = algorithm.act(CONFIG, state, (), observation, key)
    learned = algorithm.learned_policy(state)
    expected = jnp.clip(jnp.asarray([1.0, 0.0]) + jnp.asarray([3.0, 1.0]) * action, LOW, HIGH)
    np.testing.assert_allclose(learned(observation).sample(key), expected)
    inner = state.inner.policy(state.inner.statistics.normalise(observation))
    np.testing.assert_allclose(action, inner.sample(key), rtol=1e-6)
    np.testing.assert_allclose(learned(observation).mode(), MEANING(inner.mode()), rtol=1e-6)


def test_actions_that_mean_what_they_say_are_given_as_they_are(batch):
    algorithm = Scaled(pdo)
    state = algorithm.init(CONFIG, PROBLEM, jax.random.key(0))
    learned, observation = algorithm.learned_policy(state), batch.observation[0, 0]
    np.testing.assert_array_equal(learned(observation).mode(), state.inner.policy(observation).mode())
    assert learned.around() == {}


def test_an_exported_policy_is_told_what_actions_mean():
    told = Scaled(pdo, MEANING).learned_policy(Scaled(pdo, MEANING).init(CONFIG, PROBLEM, jax.random.key(0))).around()
    assert set(told) == {"action_shift", "action_scale", "action_low", "action_high"}
    np.testing.assert_array_equal(told["action_scale"], [3.0, 1.0])


def test_an_adjustment_is_the_inner_algorithms_own(batch):
    learner = ddpg.Learner(critic_hidden=(4,), actor_hidden=(4,), minibatch=8)
    off_policy = dual_estimate.Config(learner=learner, members=2, iterations=100)
    config = apdo.Config(k_adj=0, adjust="dual", off_policy=off_policy, **SMALL)
    algorithm, key = Scaled(apdo, MEANING), jax.random.key(0)
    state, _ = algorithm.step(config, PROBLEM, algorithm.init(config, PROBLEM, key), batch, key)
    outer, own = algorithm.adjustment, apdo.adjustment
    assert outer is not None
    found = []
    for adjustment, held in ((outer, state), (own, state.inner)):
        learner = adjustment.begin(config, PROBLEM, held, key)
        learner = adjustment.work(config, PROBLEM, held, learner, jnp.asarray(100))
        found.append(adjustment.finish(config, PROBLEM, held, learner, jnp.asarray(True)))
        assert bool(adjustment.open(config, held))
    (adjusted, estimate), (inner, same) = found
    np.testing.assert_array_equal(estimate.multiplier, same.multiplier)
    np.testing.assert_array_equal(adjusted.inner.pdo.multiplier.value, inner.pdo.multiplier.value)
    assert not bool(outer.open(config, adjusted))
    assert adjusted.meaning is MEANING
    assert algorithm.working_memory(config, PROBLEM) == apdo.working_memory(config, PROBLEM)


def test_whether_batches_speak_of_the_learned_policy_is_the_inner_algorithms_to_say():
    assert Scaled(pdo).samples_its_policy
    assert not Scaled(pd_ddpg).samples_its_policy
    assert Scaled(pdo).adjustment is None
    assert dataclasses.is_dataclass(Scaled(pdo).Config)
