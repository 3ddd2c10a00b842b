"""Primal-dual DDPG: its targets, its three updates, its average, its exploration."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import random

from apdo import objective
from apdo.algorithms import pd_ddpg
from apdo.core import dual, replay
from apdo.core.data import flatten
from apdo.core.statistics import Statistics
from apdo.errors import InvalidInput
from apdo.off_policy import ddpg, ddpg_iteration
from apdo.off_policy.critics import Critics
from apdo.off_policy.units import empty_buffer, view
from problems import Reach, problem_of, random_batch, random_buffer

TASK = Reach(costs=2)
PROBLEM = problem_of(TASK, 200, (0.3, 0.4))
CONFIG = ddpg.Learner(critic_hidden=(8, 8), actor_hidden=(8,), minibatch=16)


@pytest.fixture(scope="module")
def learner():
    return ddpg.start(CONFIG, PROBLEM, random.key(0))


@pytest.fixture(scope="module")
def buffer():
    return random_buffer(TASK, PROBLEM)


@pytest.fixture(scope="module")
def minibatch(buffer):
    return replay.sample(buffer, random.key(2), (16,))


def plain(minibatch):
    """What the appendix's learner draws: a minibatch and nothing else."""
    return ddpg_iteration.Draws(batch=minibatch, starts=None, noise=None)


def network(mlp, x):
    for weight, bias in zip(mlp.weights[:-1], mlp.biases[:-1], strict=True):
        x = np.tanh(x @ np.asarray(weight) + np.asarray(bias))
    return x @ np.asarray(mlp.weights[-1]) + np.asarray(mlp.biases[-1])


def critics_by_hand(networks, s, a):
    x = np.concatenate([s, a], axis=-1)
    return np.stack(
        [network(jax.tree.map(lambda leaf, k=k: leaf[k], networks.critics.stack), x)[:, 0] for k in range(3)]
    )


def with_critics(stack, actor):
    return ddpg.Networks(Critics(stack, discrete=False), actor)


def test_targets_bootstrap_except_where_the_episode_terminated(learner, minibatch):
    target = np.asarray(ddpg_iteration.targets(PROBLEM, learner.target, plain(minibatch)))
    s, done = np.asarray(minibatch.next_observation), np.asarray(minibatch.terminated)
    after = critics_by_hand(learner.target, s, network(learner.target.actor, s))
    now = np.concatenate([np.asarray(minibatch.reward)[None], np.asarray(minibatch.cost).T])
    expected = now + PROBLEM.discount * np.where(done, 0.0, 1.0) * after
    assert 0 < done.sum() < len(done)
    np.testing.assert_allclose(target, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(target[:, done], now[:, done], rtol=1e-6)


def test_one_iteration_updates_critics_actor_multipliers_and_targets_as_algorithm_2_says(learner, minibatch):
    multiplier = jnp.asarray([0.5, 2.0])
    state = ddpg.LearnerState(**{**vars(learner), "multiplier": dual.start(dual.Ascent(), multiplier)})
    after, cost = jax.jit(ddpg_iteration.iterate, static_argnums=(0, 1))(
        CONFIG, PROBLEM, state, plain(minibatch), PROBLEM.limit
    )
    s, a = minibatch.observation, minibatch.action
    y = ddpg_iteration.targets(PROBLEM, state.target, plain(minibatch))

    def critic_loss(critics):
        return jnp.sum(
            jnp.mean(
                (y - with_critics(critics, state.learned.actor).q(s, a, minibatch.step)) ** 2,
                axis=1,
            )
        )

    adam: Any = optax.adam(1e-3)
    apply_updates: Any = optax.apply_updates
    update, _ = adam.update(jax.grad(critic_loss)(state.learned.critics.stack), adam.init(state.learned.critics.stack))
    critics = apply_updates(state.learned.critics.stack, update)

    def lagrangian(actor):
        q = with_critics(critics, actor).q(s, with_critics(critics, actor).mu(s), minibatch.step)
        return jnp.mean(q[0] - 0.5 * q[1] - 2.0 * q[2])

    ascent = jax.tree.map(jnp.negative, jax.grad(lagrangian)(state.learned.actor))
    update, _ = adam.update(ascent, adam.init(state.learned.actor))
    actor = apply_updates(state.learned.actor, update)
    for ours, theirs in zip(jax.tree.leaves(after.learned), jax.tree.leaves(with_critics(critics, actor)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    judged = with_critics(critics, state.learned.actor)
    expected_cost = np.asarray(judged.q(s, judged.mu(s), minibatch.step))[1:].mean(axis=1)
    np.testing.assert_allclose(cost, expected_cost, rtol=1e-4, atol=1e-6)
    expected = np.maximum(np.asarray(multiplier) + 0.01 * (expected_cost - np.array([0.3, 0.4])), 0.0)
    np.testing.assert_allclose(after.multiplier.value, expected, rtol=1e-5)
    for new, target, old in zip(
        jax.tree.leaves(after.learned), jax.tree.leaves(after.target), jax.tree.leaves(state.target), strict=True
    ):
        np.testing.assert_allclose(target, 0.001 * np.asarray(new) + 0.999 * np.asarray(old), rtol=1e-5, atol=1e-8)


def test_the_off_policy_multiplier_is_the_mean_of_the_path(learner, buffer):
    """Over a count that the block size does not divide, in one call and in pieces."""
    learn = jax.jit(ddpg.learn, static_argnums=(0, 1))
    state, path = learner, []
    for _ in range(250):
        state = learn(CONFIG, PROBLEM, state, buffer, jnp.asarray(1))
        path.append(np.asarray(state.multiplier.value))
    np.testing.assert_allclose(state.path.multiplier, np.mean(path, axis=0), rtol=1e-4)
    assert np.std(path, axis=0).max() > 0.01
    assert int(state.iteration) == 250
    whole = learn(CONFIG, PROBLEM, learner, buffer, jnp.asarray(200))
    pieces = learn(CONFIG, PROBLEM, learn(CONFIG, PROBLEM, learner, buffer, jnp.asarray(100)), buffer, jnp.asarray(100))
    for ours, theirs in zip(jax.tree.leaves(whole), jax.tree.leaves(pieces), strict=True):
        if not jnp.issubdtype(ours.dtype, jax.dtypes.prng_key):
            np.testing.assert_array_equal(ours, theirs)


def test_the_dual_gradient_can_be_taken_at_episode_starts_only(learner, buffer):
    """With a cost critic that tells the start of an episode by its observation, the two choices must differ."""
    config = ddpg.Learner(critic_hidden=(8, 8), actor_hidden=(8,), minibatch=16, dual_states="starts")
    rows, count = replay.episode_starts(buffer)
    starts = replay.take(buffer, rows[: int(count)])
    assert np.all(np.asarray(starts.step) == 0)
    dual_states = starts.observation[:16]
    minibatch = replay.sample(buffer, random.key(3), (16,))
    iterate = jax.jit(ddpg_iteration.iterate, static_argnums=(0, 1))
    _, cost = iterate(config, PROBLEM, learner, ddpg_iteration.Draws(minibatch, dual_states, None), PROBLEM.limit)
    after, _ = iterate(CONFIG, PROBLEM, learner, plain(minibatch), PROBLEM.limit)
    judged = ddpg.Networks(after.learned.critics, learner.learned.actor)
    expected = judged.q(dual_states, judged.mu(dual_states), minibatch.step)[1:].mean(axis=1)
    np.testing.assert_allclose(cost, expected, rtol=1e-4, atol=1e-6)


def test_a_slack_constraint_ends_at_a_multiplier_of_zero_and_a_violated_one_rises(buffer):
    """Costs are positive: a limit far above them is slack, one below them cannot be met."""
    problem = problem_of(TASK, 200, (100.0, -1.0))
    config = ddpg.Learner(critic_hidden=(8, 8), actor_hidden=(8,), minibatch=16, initial_multiplier=1.0)
    state = ddpg.start(config, problem, random.key(0))
    state = jax.jit(ddpg.learn, static_argnums=(0, 1))(config, problem, state, buffer, jnp.asarray(300))
    assert float(state.multiplier.value[0]) == 0.0
    assert float(state.multiplier.value[1]) > 2.0


def test_with_an_environment_it_explores_around_its_actor_and_learns_a_simple_task():
    """Reward a - 0.1 a² with |a| ≤ 2 and no binding limit: the actor must come to push hard."""
    from problems import run, training_of

    config = pd_ddpg.Config(
        learner=ddpg.Learner(critic_hidden=(32, 32), actor_hidden=(16,), minibatch=64, target_rate=0.01),
        replay_capacity=20_000,
        updates=2.0,
    )
    training = training_of(pd_ddpg, config, limits=(100.0,), environments=40)
    state, history = run(training, [0], 30)
    assert float(history[-1]["return"][0]) > 5.0 > float(history[0]["return"][0])
    assert float(history[-1]["multiplier"][0, 0]) == 0.0
    actor = jax.tree.map(lambda leaf: leaf[0], pd_ddpg.learned_policy(state.algorithm))
    noisy = [
        pd_ddpg.act(config, jax.tree.map(lambda x: x[0], state.algorithm), jnp.zeros(1), jnp.zeros(2), k)[0]
        for k in random.split(random.key(1), 50)
    ]
    assert np.std(noisy) == pytest.approx(0.3, rel=0.4)
    assert np.mean(noisy) == pytest.approx(float(actor(jnp.zeros(2)).mode()[0]), abs=0.2)


TOTAL = dataclasses.replace(PROBLEM, cost_discount=1.0, truncates=True)


@pytest.mark.parametrize("units", ["own", "data"])
def test_a_total_over_truncated_episodes_is_learned_as_the_discounted_cost_of_the_same_rate(buffer, units):
    """With a cost of 1 in every step, a limit of T on T steps is met exactly where that on a sum that goes on is."""
    total = dataclasses.replace(TOTAL, discount=0.9, horizon=15, limits=(15.0, 3.0))
    config = dataclasses.replace(CONFIG, units=units)
    whole = eqx.tree_at(lambda b: b.rows, buffer, buffer.rows.at[:, -2].set(0.0))  # no episode terminates
    seen, own = view(config, total, whole)
    assert seen == objective.stationary(total)
    assert seen.cost_discount == 0.9
    np.testing.assert_allclose(own.limit[0] * own.cost[0], sum(0.9**t for t in range(1000)), rtol=1e-5)
    np.testing.assert_allclose(own.limit * own.total, total.limits, rtol=1e-5)
    np.testing.assert_array_equal(own.limit, seen.limit / own.cost)  # to the last bit
    early = view(config, total, buffer)[1]
    held = np.asarray(buffer.rows[: int(buffer.filled)])
    share = objective.weight_of_total(total, jnp.asarray(held[:, -1]), jnp.asarray(held[:, -2] > 0.5)).mean()
    np.testing.assert_allclose(early.limit * early.cost, share * total.limit, rtol=1e-5)
    for same in (
        dataclasses.replace(total, cost_discount=0.9),
        dataclasses.replace(total, truncates=False),
        dataclasses.replace(total, discount=1.0),
    ):
        found, units_of = view(config, same, buffer)
        assert found == same
        assert units_of.share == 1.0


def test_the_critics_of_a_total_settle_at_what_an_episode_costs():
    """Every step costs 1 and no episode terminates: critics with γ_c = 1 would have grown by as many as were made."""
    total = dataclasses.replace(TOTAL, discount=0.8, horizon=30, limits=(40.0, 40.0))
    batch = random_batch(random.key(1), TASK, 10, 20)
    batch = dataclasses.replace(
        batch, cost=jnp.ones_like(batch.cost), terminated=jnp.zeros_like(batch.terminated), reward=0 * batch.reward
    )
    held = replay.insert(empty_buffer(total, 1000), flatten(batch))
    config = dataclasses.replace(CONFIG, target_rate=0.05, actor_rate=1e-9)
    learner = ddpg.start(config, total, random.key(0))
    costs = [
        np.asarray((learner := ddpg.learn(config, total, learner, held, jnp.asarray(n))).path.latest_cost)
        for n in (3000, 1000)
    ]
    np.testing.assert_allclose(costs, 30.0, rtol=0.1)


def test_targets_follow_fast_enough_for_values_to_come_to_rest_in_the_iterations_there_are():
    """Five times T / τ iterations for T effective steps; never more slowly than asked for, nor faster than at once."""
    config = dataclasses.replace(CONFIG, units="data", target_rate=0.01)
    total = dataclasses.replace(PROBLEM, cost_discount=1.0, truncates=False, horizon=100)
    discounted = dataclasses.replace(total, discount=0.9, cost_discount=0.5)
    assert ddpg.following(config, total, 20_000) == pytest.approx(5.0 * 100 / 20_000)
    assert ddpg.following(config, total, 10**6) == 0.01
    assert ddpg.following(config, total, 10) == 1.0
    assert ddpg.following(config, discounted, 2_000) == pytest.approx(5.0 * 10.0 / 2_000, rel=1e-3)
    for appendix, iterations in ((CONFIG, 20), (config, None)):
        assert ddpg.following(appendix, total, iterations) == appendix.target_rate


def test_learners_of_few_iterations_have_their_targets_follow_faster(buffer):
    """With targets that take all of what is learned at once, both are the same networks."""
    config = dataclasses.replace(CONFIG, units="data", target_rate=0.001)
    learner = ddpg.start(config, PROBLEM, random.key(0))
    for total, at_once in ((10, True), (10**6, False)):
        after = ddpg.learn(config, PROBLEM, learner, buffer, jnp.asarray(5), total)
        pairs = zip(jax.tree.leaves(after.learned), jax.tree.leaves(after.target), strict=True)
        assert all(np.allclose(ours, theirs, atol=1e-7) for ours, theirs in pairs) == at_once


@pytest.mark.parametrize("discrete", [False, True])
def test_an_actor_as_a_policy_is_the_actor_with_the_noise_that_it_was_trained_under(discrete):
    problem = dataclasses.replace(PROBLEM, discrete_actions=discrete, action_size=3)
    config = dataclasses.replace(CONFIG, action_noise=0.4, bound=2.0)
    state = ddpg.start(config, problem, random.key(0))
    learned = state.learned
    policy, s = ddpg.policy(config, state), random.normal(random.key(1), (1, 2))
    draws = jax.vmap(lambda k: policy(s[0]).sample(k))(random.split(random.key(2), 4000))
    np.testing.assert_allclose(draws.mean(axis=0), learned.mu(s)[0], atol=0.03)
    if not discrete:
        np.testing.assert_allclose(policy(s[0]).mode(), learned.mu(s)[0], rtol=1e-6)
        np.testing.assert_allclose(draws.std(axis=0), 0.4, rtol=0.05)


def test_on_normalised_observations_the_buffer_keeps_raw_ones_and_networks_see_them_normalised():
    """Learning from the raw buffer with statistics is learning from a normalised buffer without."""
    problem = dataclasses.replace(PROBLEM, normalise=True)
    batch = random_batch(random.key(1), TASK, 10, 20)
    batch = dataclasses.replace(batch, observation=5.0 + 3.0 * batch.observation)
    config = pd_ddpg.Config(learner=CONFIG, replay_capacity=1000, updates=0.5)
    state = pd_ddpg.init(config, problem, random.key(0))
    after, _ = pd_ddpg.step(config, problem, state, batch, random.key(2))
    held = replay.take(after.buffer, jnp.arange(200))
    np.testing.assert_array_equal(held.observation, flatten(batch).observation)

    statistics = Statistics.of(batch.observation)
    seen = dataclasses.replace(
        batch,
        observation=statistics.normalise(batch.observation),
        next_observation=statistics.normalise(batch.next_observation),
    )
    buffer = replay.insert(empty_buffer(problem, 1000), flatten(seen))
    twin = ddpg.learn(CONFIG, problem, state.learner, buffer, jnp.asarray(100))
    for ours, theirs in zip(jax.tree.leaves(after.learner.learned), jax.tree.leaves(twin.learned), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)

    raw = batch.observation[3, 4]
    mean = after.learner.learned.mu(statistics.normalise(raw)[None])[0]
    np.testing.assert_allclose(pd_ddpg.learned_policy(after)(raw).mode(), mean, rtol=1e-5)
    noisy, memory = pd_ddpg.act(config, after, jnp.zeros(1), raw, random.key(3))
    np.testing.assert_allclose(noisy, mean + memory, rtol=1e-5, atol=1e-6)


def test_rates_that_suit_a_buffer_that_stays_as_it_is_are_refused_for_one_that_grows():
    config = pd_ddpg.Config(learner=dataclasses.replace(CONFIG, units="data"))
    with pytest.raises(InvalidInput, match="stays as it is"):
        pd_ddpg.init(config, PROBLEM, random.key(0))
