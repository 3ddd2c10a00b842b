"""Constrained soft actor-critic against brute force: soft values, caution, units."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

from apdo import loop
from apdo.algorithms import apdo
from apdo.core import critics, gaussian, policies, replay
from apdo.core.data import Transition
from apdo.errors import InvalidInput
from apdo.off_policy import dual_estimate, sac, sac_iteration, sac_state
from apdo.off_policy.units import view
from apdo.problem import Problem
from problems import Reach, problem_of, random_buffer, training_of

TASK = Reach(costs=2)
PROBLEM = problem_of(TASK, 200, (0.3, 0.4))
SMALL = sac.Learner(critic_hidden=(8, 8), actor_hidden=(8,), minibatch=16, costs=3)
FINITE = Problem(
    observation_size=2,
    action_size=2,
    batch=4,
    limits=(1.0,),
    discount=0.8,
    cost_discount=0.7,
    horizon=100,
    truncates=True,
    discrete_actions=True,
)
"""Two states, two choices: choice a leads to state a; it pays and costs by the tables, and (1, 1) ends the episode."""
REWARD, COST = np.array([[1.0, 0.5], [-0.5, 2.0]]), np.array([[0.0, 1.0], [0.5, 0.2]])
ENDS = np.array([[False, False], [False, True]])


def finite_batch():
    s, a = np.repeat([0, 1], 2), np.tile([0, 1], 2)
    return Transition(
        observation=jnp.eye(2)[s],
        action=jnp.eye(2)[a],
        reward=jnp.asarray(REWARD[s, a], jnp.float32),
        cost=jnp.asarray(COST[s, a], jnp.float32)[:, None],
        next_observation=jnp.eye(2)[a],
        terminated=jnp.asarray(ENDS[s, a]),
        truncated=jnp.zeros(4, dtype=bool),
        step=jnp.zeros(4, dtype=jnp.int32),
    )


def draws_of(batch, steps=(1, 1, 1, 1)):
    """Draws whose transitions are said to have so many steps, for the costs."""
    return sac_iteration.Draws(batch=batch, longer=batch, steps=jnp.asarray(steps), starts=None, noise=None)


def backup(reward, gamma, policy, temperature, value):
    """r + γ Σ_a π(a|s') (Q(s', a) - α log π(a|s')) at every (s, a), by hand."""
    soft = np.sum(policy * (value - temperature * np.log(policy)), axis=1)
    return reward + gamma * np.where(ENDS, 0.0, soft[None, :])


def test_targets_are_the_soft_bellman_backup_by_hand():
    """The lower twin with its entropy for both rewards; each cost critic from its own target, without entropy."""
    state = sac.start(SMALL, FINITE, random.key(0))
    # Actors begin all but uniform; this one is not.
    actor = eqx.tree_at(lambda a: a.biases[-1], state.learned.actor, jnp.asarray([0.7, -0.4]))
    learned = eqx.tree_at(lambda n: n.actor, state.learned, actor)
    draws = draws_of(finite_batch())
    any_sum = jnp.asarray([[-jnp.inf], [jnp.inf]])
    found = sac_iteration.targets(SMALL, FINITE, learned, state.target, jnp.asarray(0.3), draws, any_sum)
    q = np.asarray(state.target.of_choices(jnp.eye(2), jnp.zeros(2, dtype=jnp.int32)), np.float64)
    policy = np.exp(np.asarray(learned.log_probabilities(jnp.eye(2)), np.float64))
    expected = [backup(REWARD, 0.8, policy, 0.3, np.minimum(q[0], q[1])).reshape(-1)] * 2
    expected += [backup(COST, 0.7, policy, 0.0, each).reshape(-1) for each in q[2:]]
    np.testing.assert_allclose(found, np.stack(expected), rtol=1e-5, atol=1e-6)


def test_a_cost_target_over_several_steps_discounts_what_critics_say_of_the_rest_once_for_each():
    state = sac.start(SMALL, FINITE, random.key(0))
    any_sum = jnp.asarray([[-jnp.inf], [jnp.inf]])
    steps = np.array([1, 2, 3, 1])

    def found(*steps):
        draws = draws_of(finite_batch(), *steps)
        return np.asarray(
            sac_iteration.targets(SMALL, FINITE, state.learned, state.target, jnp.asarray(0.3), draws, any_sum)
        )

    one, several = found(), found(steps)
    np.testing.assert_array_equal(several[:2], one[:2])  # the reward's have one
    now = COST.reshape(-1)[None]
    np.testing.assert_allclose(several[2:], now + 0.7 ** (steps - 1) * (one[2:] - now), rtol=1e-5, atol=1e-6)


def test_a_cost_critic_is_never_asked_for_less_or_more_than_costs_can_add_up_to():
    """Targets that have run away below 0 ask for 0, those above the longest sum of the largest cost ask for that."""
    state = sac.start(SMALL, FINITE, random.key(0))
    draws = draws_of(finite_batch())
    buffer = replay.of(finite_batch())
    _, units = view(SMALL, FINITE, buffer)
    longest = COST.max() / (1.0 - 0.7) / np.asarray(units.cost)
    np.testing.assert_allclose(units.possible, [[0.0], longest], rtol=1e-6)
    for shift, bound in ((-1e6, 0.0), (1e6, longest[0])):
        stack = state.target.stack
        away = eqx.tree_at(lambda c: c.stack.biases[-1], state.target, stack.biases[-1] + shift)
        found = sac_iteration.targets(SMALL, FINITE, state.learned, away, jnp.asarray(0.3), draws, units.possible)
        goes_on = ~np.asarray(draws.batch.terminated)
        np.testing.assert_allclose(np.asarray(found)[2:, goes_on], bound, rtol=1e-6)
        assert np.all(np.abs(np.asarray(found)[:2, goes_on]) > 1e5)  # what the reward may come to is not bounded


def test_critics_come_to_the_exact_soft_values_of_a_fixed_policy():
    """A policy and a temperature that hardly move: values are then the solution of a linear system."""
    config = dataclasses.replace(
        SMALL,
        critic_hidden=(),
        actor_hidden=(),
        critic_rate=0.02,
        target_rate=0.05,
        actor_rate=1e-12,
        temperature_rate=1e-12,
        temperature=0.5,
        dual_rate=0.0,
        cloning=0.0,
    )
    buffer = replay.of(finite_batch())
    start = sac.start(config, FINITE, random.key(0))
    state = jax.jit(lambda s: sac.learn(config, FINITE, s, buffer, jnp.asarray(3000)))(start)
    policy = np.exp(np.asarray(state.learned.log_probabilities(jnp.eye(2)), np.float64))
    size = np.asarray(state.size, np.float64)
    exact, costs = np.zeros((2, 2)), np.zeros((2, 2))
    for _ in range(500):
        exact = backup(REWARD, 0.8, policy, 0.5 * size[0], exact)
        costs = backup(COST, 0.7, policy, 0.0, costs)
    q = np.asarray(state.learned.critics.of_choices(jnp.eye(2), jnp.zeros(2, dtype=jnp.int32)), np.float64)
    np.testing.assert_allclose(q[0] * size[0], exact, atol=0.03)
    np.testing.assert_allclose(q[2:] * size[1], np.broadcast_to(costs, (3, 2, 2)), atol=0.03)


def test_critics_of_the_reward_alone_are_normalised_if_those_of_costs_are_not():
    """Observations a thousand times as large change nothing behind a layer that is normalised, others much."""
    config = dataclasses.replace(
        SMALL, critic_hidden=(64,), critic_activation="normalised-relu", cost_activation="relu"
    )
    judges = sac.start(config, PROBLEM, random.key(0)).learned.critics
    observation = random.normal(random.key(1), (5, PROBLEM.observation_size))
    action, step = jnp.zeros((5, PROBLEM.action_size)), jnp.zeros(5, dtype=jnp.int32)
    near, far = (judges.q(scale * observation, action, step) for scale in (1.0, 1000.0))
    np.testing.assert_allclose(far[:2], near[:2], rtol=0.02)
    assert np.abs(far[2:] / near[2:]).min() > 100.0
    np.testing.assert_array_equal(judges.first(2).q(observation, action, step), near[:2])
    np.testing.assert_array_equal(judges.rest(2).q(observation, action, step), near[2:])


@pytest.mark.parametrize("shape", [(5,), (5, 4)], ids=["vectors", "choices"])
def test_caution_is_the_mean_and_so_many_deviations_of_each_costs_critics(shape):
    q = np.random.default_rng(0).normal(size=(2 + 2 * 3, *shape)).astype(np.float32)
    config = dataclasses.replace(SMALL, caution=1.5)
    found = sac_iteration.cautious(config, jnp.asarray(q), 2)
    np.testing.assert_allclose(found[0], np.minimum(q[0], q[1]))
    for i, own in ((1, q[2:5]), (2, q[5:8])):
        np.testing.assert_allclose(found[i], own.mean(axis=0) + 1.5 * own.std(axis=0), rtol=1e-5, atol=1e-6)


def test_critics_that_agree_to_the_last_digit_leave_a_finite_gradient():
    same = jnp.ones((2 + 2 * 3, 4))
    slope = jax.grad(lambda q: jnp.sum(sac_iteration.cautious(SMALL, q, 2)))(same)
    assert np.all(np.isfinite(slope))


def scaled(buffer, reward, cost):
    first = PROBLEM.observation_size + PROBLEM.action_size
    factors = jnp.asarray([reward] + [cost] * PROBLEM.constraints)
    return eqx.tree_at(lambda b: b.rows, buffer, buffer.rows.at[:, first : first + 3].multiply(factors))


@pytest.mark.parametrize("steps", [1, 4])
def test_nothing_depends_on_what_rewards_and_costs_are_counted_in(steps):
    """Rewards times 8, costs and limits times 1/2: the same actor bit for bit, and λ 16 times as large."""
    buffer = random_buffer(TASK, PROBLEM)
    learner = dataclasses.replace(SMALL, cost_steps=steps)
    tighter = dataclasses.replace(PROBLEM, limits=tuple(0.5 * limit for limit in PROBLEM.limits))
    start = sac.start(dataclasses.replace(SMALL, initial_multiplier=1.0), PROBLEM, random.key(5))
    run = jax.jit(lambda problem, b: sac.learn(learner, problem, start, b, jnp.asarray(200), 200), static_argnums=0)
    one, same = run(PROBLEM, buffer), run(tighter, scaled(buffer, 8.0, 0.5))
    assert (one.path.multiplier > 0.0).all()
    for ours, theirs in zip(jax.tree.leaves(one.learned), jax.tree.leaves(same.learned), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(same.path.multiplier, 16.0 * one.path.multiplier)
    np.testing.assert_array_equal(same.path.cost, 0.5 * one.path.cost)


def test_values_multipliers_and_temperature_stay_what_they_are_when_the_datas_spread_changes():
    buffer = random_buffer(TASK, PROBLEM)
    config = dataclasses.replace(SMALL, initial_multiplier=1.0)
    state = sac.prepare(config, PROBLEM, sac.start(config, PROBLEM, random.key(0)), buffer)
    after = sac.prepare(config, PROBLEM, state, scaled(buffer, 8.0, 0.5))
    np.testing.assert_array_equal(after.size, state.size * jnp.asarray([8.0, 0.5, 0.5]))
    s, a, t = jnp.ones((3, 2)), jnp.ones((3, 1)), jnp.zeros(3, dtype=jnp.int32)

    def known(state):
        unit = jnp.repeat(state.size, jnp.asarray([2, 3, 3]))[:, None]
        price = state.size[0] / state.size[1:]
        alpha = jnp.exp(state.log_temperature) * state.size[0]
        return (
            state.learned.critics.q(s, a, t) * unit,
            state.target.q(s, a, t) * unit,
            state.multiplier.value * price,
            alpha,
        )

    for ours, theirs in zip(known(state), known(after), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_an_actor_as_an_on_policy_one_has_its_mean_and_about_its_deviation():
    buffer = random_buffer(TASK, PROBLEM)
    state = jax.jit(lambda s: sac.learn(SMALL, PROBLEM, s, buffer, jnp.asarray(200)))(
        sac.start(SMALL, PROBLEM, random.key(1))
    )
    policy, squashed = sac.policy(SMALL, state), sac_state.acting(state)
    s = jnp.asarray([0.3, -0.2])
    np.testing.assert_allclose(policy(s).mode(), squashed(s).mode(), rtol=1e-4, atol=1e-6)
    draws = jax.vmap(squashed(s).sample)(random.split(random.key(2), 4000))
    assert isinstance(policy, gaussian.Policy)
    np.testing.assert_allclose(jnp.exp(policy.log_std), draws.std(axis=0), rtol=0.25)


def test_apdo_jumps_with_a_soft_actor_critic_as_its_learner():
    """The policy on trial has the actor's middle, and the estimate is the members' median."""
    config = dataclasses.replace(SMALL, initial_multiplier=4.0)
    off_policy = dual_estimate.Config(learner=config, members=2, iterations=100)
    small = {"policy": policies.Config(hidden=(8,), bound=2.0), "critic": critics.Config(hidden=(8,), minibatches=2)}
    training = training_of(
        apdo, apdo.Config(k_adj=0, check=False, again_every=1, warm=True, off_policy=off_policy, **small)
    )
    adjuster = loop.Adjuster(training)
    state = loop.make_advance(training)(loop.start(training, [0]), jnp.asarray(1, dtype=jnp.int32)).state
    members = adjuster.work(state, adjuster.begin(state), adjuster.total)
    found = np.asarray(adjuster.shown(members))
    after, estimate = adjuster.finish(state, members, jnp.asarray([True]))
    assert found.shape == (1, 2, 1)
    np.testing.assert_allclose(estimate.multiplier, np.median(found, axis=1), rtol=1e-6)
    s = jnp.asarray([[0.3, -0.2]])
    policy = jax.tree.map(lambda leaf: leaf[0], after.algorithm.policy)
    actors = [jax.tree.map(lambda leaf, e=e: leaf[0, e], members) for e in range(2)]
    gaps = [np.abs(policy(s[0]).mode() - sac.actions(actor, s)[0]).max() for actor in actors]
    assert min(gaps) < 1e-5
    # Warm: the next adjustment goes on with these members, with fresh draws and means.
    onward = adjuster.begin(after)
    for ours, theirs in zip(jax.tree.leaves(onward.learned), jax.tree.leaves(members.learned), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(onward.multiplier.value, members.multiplier.value)
    assert not np.any(onward.iteration)
    assert not np.any(onward.path.multiplier)


def test_an_actor_of_another_shape_than_the_policys_is_refused_with_what_would_fit():
    with pytest.raises(InvalidInput, match=r"must be \(64, 32\), tanh, 2.0"):
        sac.check_policy(SMALL, PROBLEM, policies.Config(bound=2.0))
