"""What the epoch of an actor on trial says of the next one."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

from apdo.algorithms import pdo
from apdo.algorithms.trial import Trial
from apdo.core import critics, policies
from apdo.core.data import Transition
from apdo.problem import Problem

LENGTH, COPIES = 4, 6
CONFIG = pdo.Config(policy=policies.Config(hidden=(4,)), critic=critics.Config(hidden=(4,)))


def problem_with(*limits):
    return Problem(
        observation_size=2,
        action_size=1,
        batch=LENGTH * COPIES,
        limits=limits,
        discount=1.0,
        cost_discount=1.0,
        horizon=LENGTH,
        truncates=False,
    )


def episodes_that_cost(*costs):
    """One episode in each of the copies, all alike."""
    shape = (LENGTH, COPIES)
    step = jnp.broadcast_to(jnp.arange(LENGTH)[:, None], shape)
    return Transition(
        observation=jnp.zeros((*shape, 2)),
        action=jnp.zeros((*shape, 1)),
        reward=jnp.zeros(shape),
        cost=jnp.broadcast_to(jnp.asarray(costs, jnp.float32) / LENGTH, (*shape, len(costs))),
        next_observation=jnp.zeros((*shape, 2)),
        terminated=step == LENGTH - 1,
        truncated=jnp.zeros(shape, bool),
        step=step,
    )


def corrected(limits, costs, unseen=0.0, on=True):
    """What critics are known to miss after a trial with these costs, and whether that was beyond them."""
    problem = problem_with(*limits)
    state = pdo.init(CONFIG, problem, random.key(0))
    trial = dataclasses.replace(Trial.none(state, problem), on=jnp.asarray(on))
    unseen = jnp.full(len(limits), unseen)
    unseen, beyond = trial.corrected(problem, unseen, episodes_that_cost(*costs))
    return np.asarray(unseen), bool(beyond)


def test_an_actor_that_cost_twice_the_limit_is_followed_by_one_that_aims_at_half_of_it():
    unseen, beyond = corrected((3.0, 5.0), (6.0, 4.0))
    np.testing.assert_allclose(unseen, [1.5, 0.0], rtol=1e-6)
    assert beyond


def test_critics_that_see_a_third_of_the_cost_are_corrected_until_it_is_at_its_limit():
    limit, unseen = 2.0, 0.0
    for _ in range(3):
        unseen = float(corrected((limit,), (3.0 * (limit - unseen),), unseen)[0][0])
    np.testing.assert_allclose(3.0 * (limit - unseen), limit, rtol=1e-5)


def test_an_actor_within_the_limits_corrects_nothing():
    unseen, beyond = corrected((3.0,), (3.1,))
    assert unseen == [0.0]
    assert not beyond


def test_an_epoch_without_trial_corrects_nothing():
    unseen, beyond = corrected((3.0,), (30.0,), on=False)
    assert unseen == [0.0]
    assert not beyond


@pytest.mark.parametrize("limit", [0.0, -2.0])
def test_where_a_limit_is_not_positive_the_next_actor_aims_lower_by_the_excess(limit):
    unseen, beyond = corrected((limit,), (1.0,))
    np.testing.assert_allclose(unseen, [1.0 - limit], rtol=1e-6)
    assert beyond


def test_the_correction_counts_in_the_units_of_the_cost():
    plain, other = corrected((3.0,), (7.0,))[0], corrected((3.0 * 1024,), (7.0 * 1024,))[0]
    np.testing.assert_array_equal(other, 1024 * plain)
