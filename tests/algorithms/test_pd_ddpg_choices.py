"""Primal-dual DDPG where actions are choices: the same lines, with probabilities in place of actions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

from apdo import exact, rollout
from apdo.algorithms import pd_ddpg
from apdo.core import dual, replay
from apdo.core.data import flatten
from apdo.off_policy import ddpg
from apdo.off_policy.units import empty_buffer
from apdo.tasks.tabular import TwoState
from problems import problem_of

TASK = TwoState()
START = jnp.zeros(2, dtype=jnp.int32)
CONFIG = ddpg.Learner(
    critic_hidden=(16,),
    actor_hidden=(16,),
    critic_rate=3e-3,
    actor_rate=3e-3,
    target_rate=0.02,
    dual_states="starts",
    dual_rate=1e-9,
)


@pytest.fixture(scope="module")
def problem():
    return problem_of(TASK, 60 * 50)


@pytest.fixture(scope="module")
def buffer(problem):
    """Fifty episodes of choices made by chance."""

    def act(memory, observation, key):
        return jax.nn.one_hot(random.randint(key, (), 0, 2), 2), memory

    batch = rollout.collect(TASK, act, (), random.key(0), steps=60, environments=50)
    return replay.insert(empty_buffer(problem, 3000), flatten(batch))


def test_a_critic_has_a_value_for_each_choice_and_averages_them_by_probability(problem):
    learned = ddpg.start(CONFIG, problem, random.key(0)).learned
    s = jnp.eye(2)
    choices = [learned.q(s, jnp.tile(jnp.eye(2)[a], (2, 1)), START) for a in range(2)]
    mixed = learned.q(s, jnp.asarray([[0.25, 0.75], [1.0, 0.0]]), START)
    np.testing.assert_allclose(mixed[:, 0], 0.25 * choices[0][:, 0] + 0.75 * choices[1][:, 0], rtol=1e-5)
    np.testing.assert_allclose(mixed[:, 1], choices[0][:, 1], rtol=1e-5)
    np.testing.assert_allclose(learned.mu(s).sum(axis=-1), [1.0, 1.0], rtol=1e-6)


@pytest.mark.parametrize("multiplier", [0.05, 0.8])
def test_at_a_given_price_actor_and_critics_become_those_of_the_exact_solution(problem, buffer, multiplier):
    """Below λ* = 0.29 the machine works while hot, above it rests; the critics' cost of that is the exact one."""
    learner = ddpg.start(CONFIG, problem, random.key(1))
    held = ddpg.LearnerState(**{**vars(learner), "multiplier": dual.start(CONFIG.rule, jnp.asarray([multiplier]))})
    after = jax.jit(lambda s: ddpg.learn(CONFIG, problem, s, buffer, jnp.asarray(4000)))(held)
    truth = exact.lagrangian(TASK.model(), [multiplier])
    np.testing.assert_allclose(after.learned.mu(jnp.eye(2)), truth.policy, atol=0.1)
    assert float(after.path.latest_cost[0]) == pytest.approx(truth.costs[0], abs=0.4)
    reward = after.learned.q(jnp.eye(2), after.learned.mu(jnp.eye(2)), START)[0]
    assert float(reward[0]) == pytest.approx(truth.gain, rel=0.06)
    assert float(after.multiplier.value[0]) == pytest.approx(multiplier, rel=1e-3)


def test_exploring_now_and_then_takes_any_choice(problem):
    config = pd_ddpg.Config(learner=CONFIG, uniform=0.5, replay_capacity=3000)
    state = pd_ddpg.init(config, problem, random.key(0))
    keys = random.split(random.key(1), 2**12)
    act = jax.jit(jax.vmap(lambda k: pd_ddpg.act(config, state, jnp.zeros(2), jnp.eye(2)[0], k)[0]))
    found = np.asarray(act(keys)).mean(axis=0)
    expected = 0.5 * np.asarray(state.learner.learned.mu(jnp.eye(2)[:1]))[0] + 0.25
    np.testing.assert_allclose(found, expected, atol=0.04)
