"""The checks on an estimate, where their answers are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

from apdo.core.data import Transition
from apdo.off_policy import ddpg, dual_diagnostics
from apdo.problem import Problem

CHAIN = 3


def chain(episodes):
    """CHAIN steps from a state that shows a number x: each earns x and costs 1, and the last one ends it."""
    x = np.repeat(np.linspace(-1.0, 1.0, episodes, dtype=np.float32), CHAIN)
    step = np.tile(np.arange(CHAIN), episodes)
    seen = jnp.asarray(np.stack([x, step / CHAIN], axis=1))
    batch = Transition(
        observation=seen,
        action=jnp.zeros((len(x), 1)),
        reward=jnp.asarray(x),
        cost=jnp.ones((len(x), 1)),
        next_observation=seen + jnp.asarray([[0.0, 1.0 / CHAIN]]),
        terminated=jnp.asarray(step == CHAIN - 1),
        truncated=jnp.zeros(len(x), dtype=bool),
        step=jnp.asarray(step, dtype=jnp.int32),
    )
    return dual_diagnostics.Logged(batch=batch, next_action=batch.action, known=jnp.arange(len(x)))


def problem_of(cost_discount=1.0):
    return Problem(
        observation_size=2,
        action_size=1,
        batch=60,
        limits=(1.0,),
        discount=0.5,
        cost_discount=cost_discount,
        horizon=CHAIN,
        truncates=False,
    )


@pytest.mark.parametrize(
    ("cost_discount", "brought"),
    [(1.0, lambda left: left), (0.5, lambda left: 2.0 - 0.5 ** (left - 1.0))],
    ids=["totals", "discounted sums"],
)
def test_a_behaviour_critic_finds_what_the_logged_episodes_bring(cost_discount, brought):
    """As the problem means it: a total counts every reward and cost alike, whatever the discount."""
    learner = ddpg.Learner(critic_hidden=(32,), critic_rate=1e-2, target_rate=0.1, last_rate=0.05)
    logged, problem = chain(20), problem_of(cost_discount)
    fit = jax.jit(lambda: dual_diagnostics.behaviour_critic(learner, problem, logged, 3000, random.key(0)))
    batch = logged.batch
    q = np.asarray(fit().q(batch.observation, batch.action, batch.step))
    left = CHAIN - np.asarray(batch.step)
    np.testing.assert_allclose(q[1], brought(left), atol=0.1)
    np.testing.assert_allclose(q[0], np.asarray(batch.reward) * brought(left), atol=0.1)


def test_a_row_whose_next_action_is_unknown_is_not_learned_from():
    """Without the rows that end, nothing anchors the values; and what those rows hold must not matter."""
    learner = ddpg.Learner(critic_hidden=(8,), minibatch=16)
    logged = chain(20)
    known = jnp.flatnonzero(~logged.batch.terminated)
    poison = jnp.where(logged.batch.terminated, jnp.nan, logged.batch.reward)
    found = []
    for reward in (logged.batch.reward, poison):
        batch = Transition(**{**vars(logged.batch), "reward": reward})
        poisoned = dual_diagnostics.Logged(batch=batch, next_action=logged.next_action, known=known)
        critic = dual_diagnostics.behaviour_critic(learner, problem_of(), poisoned, 20, random.key(0))
        found.append(np.asarray(critic.stack.biases[0]))
    np.testing.assert_array_equal(found[0], found[1])


def test_coverage_of_vectors_is_measured_in_deviations_of_the_logged_ones():
    rng = np.random.default_rng(0)
    everything = (rng.normal(size=(20_000, 2)) * [1.0, 10.0]).astype(np.float32)
    logged = everything[:500]
    assert dual_diagnostics.coverage_of_vectors(logged[None], logged, everything)[0] == 0.0
    moved = (logged + np.asarray([2.0, 20.0]))[None].astype(np.float32)
    assert dual_diagnostics.coverage_of_vectors(moved, logged, everything)[0] == pytest.approx(2.0, rel=0.02)
    middle, far = np.zeros((2, 500, 2), np.float32), np.zeros((2, 500, 2), np.float32)
    far[0, :, 1] = 30.0
    assert dual_diagnostics.coverage_of_vectors(middle, logged, everything)[1] == 0.0
    assert dual_diagnostics.coverage_of_vectors(far, logged, everything)[1] == 0.5


def test_a_choice_that_was_never_logged_near_is_not_covered_though_it_was_elsewhere():
    rng = np.random.default_rng(0)
    states = rng.integers(0, 2, 1000)
    seen, done = np.eye(2, dtype=np.float32)[states], np.eye(2, dtype=np.float32)[states]  # in state i, always choice i
    at = np.eye(2, dtype=np.float32)
    same, other = at[None], at[None, ::-1]
    assert dual_diagnostics.coverage_of_choices(same, at, seen, done, rng) == 0.0
    assert dual_diagnostics.coverage_of_choices(other, at, seen, done, rng) == 1.0
    half = np.full((1, 2, 2), 0.5, dtype=np.float32)
    assert dual_diagnostics.coverage_of_choices(half, at, seen, done, rng) == 0.5
