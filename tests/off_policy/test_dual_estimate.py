"""The dependable learner's parts, each by its law, and what an ensemble says."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

from apdo.core import replay
from apdo.errors import InvalidInput
from apdo.off_policy import ddpg, ddpg_iteration, dual_estimate, sac
from apdo.off_policy.units import view
from problems import Reach, problem_of, random_buffer

TASK = Reach(costs=2)
PROBLEM = problem_of(TASK, 200, (0.3, 0.4))
SMALL = {"critic_hidden": (8, 8), "actor_hidden": (8,), "minibatch": 16}
PLAIN = ddpg.Learner(**SMALL)
DEPENDABLE = dataclasses.replace(dual_estimate.DEPENDABLE, **SMALL)


@pytest.fixture(scope="module")
def buffer():
    return random_buffer(TASK, PROBLEM)


@pytest.fixture(scope="module")
def minibatch(buffer):
    return replay.sample(buffer, random.key(2), (16,))


def learn(config, problem, state, buffer, iterations, total=None):
    run = jax.jit(lambda s, n: ddpg.learn(config, problem, s, buffer, n, total))
    return run(state, jnp.asarray(iterations))


def test_critics_tell_the_time_only_where_the_horizon_ends_episodes():
    s, a = jnp.ones((3, 2)), jnp.ones((3, 1))
    early, late = jnp.zeros(3, dtype=jnp.int32), jnp.full(3, 4)
    config = dataclasses.replace(PLAIN, clock=True)
    seeing = ddpg.start(config, PROBLEM, random.key(0)).learned
    assert np.all(np.abs(seeing.q(s, a, early) - seeing.q(s, a, late)) > 1e-3)
    endless = problem_of(Reach(costs=2, horizon_terminates=False), 200, (0.3, 0.4))
    # A total that the horizon cuts off is read off discounted sums, which go on; but for a discount of 1.
    total = dataclasses.replace(endless, cost_discount=1.0)
    counted = ddpg.start(config, dataclasses.replace(total, discount=1.0), random.key(0)).learned
    assert np.all(np.abs(counted.q(s, a, early) - counted.q(s, a, late)) > 1e-3)
    for own, problem in ((PLAIN, PROBLEM), (config, endless), (config, total)):
        blind = ddpg.start(own, problem, random.key(0)).learned
        np.testing.assert_array_equal(blind.q(s, a, early), blind.q(s, a, late))


def test_noise_and_time_enter_the_targets_as_written(minibatch):
    """y = r + γ Q'(s', μ'(s') + ε, t + 1), and the reward alone at the end of an episode."""
    target = ddpg.start(DEPENDABLE, PROBLEM, random.key(0)).target
    noise = random.normal(random.key(5), (3, 16, 1))
    draws = ddpg_iteration.Draws(batch=minibatch, starts=None, noise=noise)
    found = ddpg_iteration.targets(PROBLEM, target, draws)
    after = target.q(minibatch.next_observation, target.mu(minibatch.next_observation) + noise[0], minibatch.step + 1)
    now = jnp.concatenate([minibatch.reward[None], minibatch.cost.T])
    alive = ~np.asarray(minibatch.terminated)
    assert 0 < alive.sum() < 16
    np.testing.assert_allclose(found[:, alive], (now + PROBLEM.discount * after)[:, alive], rtol=1e-5)
    np.testing.assert_allclose(found[:, ~alive], now[:, ~alive], rtol=1e-6)


def test_targets_of_costs_stay_within_the_possible_where_critics_are_bounded(minibatch):
    """Whatever the critics have come to; the reward's target is left alone."""
    target = ddpg.start(DEPENDABLE, PROBLEM, random.key(0)).target
    stack = target.critics.stack
    draws = ddpg_iteration.Draws(batch=minibatch, starts=None, noise=None)
    possible = jnp.asarray([[0.0, -1.0], [5.0, 7.0]])
    alive = ~np.asarray(minibatch.terminated)
    for shift, row in ((-1e6, 0), (1e6, 1)):
        away = eqx.tree_at(lambda n: n.critics.stack.biases[-1], target, stack.biases[-1] + shift)
        found = np.asarray(ddpg_iteration.targets(PROBLEM, away, draws, possible))
        np.testing.assert_array_equal(found[1:, alive], np.repeat(possible[row][:, None], alive.sum(), axis=1))
        assert np.all(np.abs(found[0, alive]) > 1e5)


def test_a_bounded_actor_stays_within_its_bound_and_is_free_well_inside():
    learned = ddpg.start(dataclasses.replace(PLAIN, bound=2.0), PROBLEM, random.key(0)).learned
    far = eqx.tree_at(lambda n: n.actor.biases[-1], learned, jnp.asarray([50.0]))
    np.testing.assert_allclose(far.mu(jnp.ones((3, 2))), 2.0, rtol=1e-6)
    near = eqx.tree_at(lambda n: n.actor.weights[-1], learned, 0.01 * learned.actor.weights[-1])
    free = jax.vmap(near.actor)(jnp.ones((3, 2)))
    np.testing.assert_allclose(near.mu(jnp.ones((3, 2))), free, rtol=1e-3)


def test_a_heavy_cloning_weight_makes_the_actor_the_mean_of_what_was_done(buffer):
    config = dataclasses.replace(PLAIN, cloning=1e4, actor_rate=1e-2)
    state = learn(config, PROBLEM, ddpg.start(config, PROBLEM, random.key(3)), buffer, 1500)
    everything = replay.take(buffer, jnp.arange(200))
    mu = np.asarray(state.learned.mu(everything.observation))
    actions = np.asarray(everything.action)
    assert np.mean((mu - actions) ** 2) < 1.02 * np.var(actions)
    assert abs(mu.mean() - actions.mean()) < 0.1 * actions.std()


def test_rates_are_multiplied_and_fall_to_their_last_share(minibatch, buffer):
    draws = ddpg_iteration.Draws(batch=minibatch, starts=None, noise=None)
    state = ddpg.start(dataclasses.replace(PLAIN, initial_multiplier=5.0), PROBLEM, random.key(0))
    iterate = jax.jit(lambda rate: ddpg_iteration.iterate(PLAIN, PROBLEM, state, draws, PROBLEM.limit, rate)[0])
    whole, quarter = iterate(jnp.asarray(1.0)), iterate(jnp.asarray(0.25))
    for part in (lambda s: s.learned.critics.stack.biases[0], lambda s: s.learned.actor.biases[0]):
        np.testing.assert_allclose(
            part(quarter) - part(state), 0.25 * (part(whole) - part(state)), rtol=1e-3, atol=1e-8
        )
    step = whole.multiplier.value - state.multiplier.value
    np.testing.assert_allclose(quarter.multiplier.value - state.multiplier.value, 0.25 * step, rtol=0.05)
    # Over 1,000 iterations the last ones move a fiftieth of what the first did.
    falling = dataclasses.replace(PLAIN, last_rate=0.001)
    first = learn(falling, PROBLEM, state, buffer, 100, total=1000)
    before = learn(falling, PROBLEM, state, buffer, 1000, total=1000)
    after = learn(falling, PROBLEM, before, buffer, 100, total=1000)

    def moved(one, other):
        return np.linalg.norm(np.asarray(other.learned.critics.stack.weights[0] - one.learned.critics.stack.weights[0]))

    assert moved(before, after) < 0.02 * moved(state, first)


def test_the_estimate_is_the_mean_over_the_last_part_of_the_path(buffer):
    config = dataclasses.replace(PLAIN, averaged=0.5)
    run = jax.jit(lambda s: ddpg.learn(config, PROBLEM, s, buffer, jnp.asarray(1), 400))
    state, path = ddpg.start(config, PROBLEM, random.key(0)), []
    for _ in range(400):
        state = run(state)
        path.append(np.asarray(state.multiplier.value))
    np.testing.assert_allclose(state.path.multiplier, np.mean(path[200:], axis=0), rtol=1e-4)
    assert abs(np.mean(path) - np.mean(path[200:])) > 0.01


def test_members_differ_in_their_weights_evenly_in_the_logarithm():
    config = dual_estimate.Config(learner=DEPENDABLE, members=4, spread=2.0)
    members = dual_estimate.start(config, PROBLEM, random.key(0))
    ratio = np.asarray(members.cloning) / DEPENDABLE.cloning
    np.testing.assert_allclose(np.log2(ratio), [-0.75, -0.25, 0.25, 0.75], rtol=1e-5)
    first = np.asarray(members.learned.actor.weights[0])
    assert not np.allclose(first[0], first[1])


def test_the_interval_is_the_spread_of_the_members_and_without_one_it_is_everything():
    def members_at(values):
        state = jax.vmap(lambda k: ddpg.start(PLAIN, PROBLEM, k))(random.split(random.key(0), len(values)))
        return eqx.tree_at(lambda s: s.path.multiplier, state, jnp.asarray(values))

    found = dual_estimate.estimate(members_at([[1.0, 0.1], [2.0, 0.1], [4.0, 0.1]]))
    np.testing.assert_allclose(found.multiplier, [2.0, 0.1])
    np.testing.assert_allclose(
        found.high - found.multiplier, np.array([1.645 * np.std([1, 2, 4], ddof=1), 0.0]), atol=1e-5
    )
    assert found.low[0] == 0.0  # never below zero
    alone = dual_estimate.estimate(members_at([[3.0, 1.0]]))
    assert np.all(np.isinf(alone.high))
    np.testing.assert_array_equal(alone.low, 0.0)


def test_every_actor_is_judged_by_every_critic():
    learner = ddpg.Learner(critic_hidden=(8,), action_noise=0.3)
    members = jax.vmap(lambda key: ddpg.start(learner, PROBLEM, key))(random.split(random.key(0), 3))
    first, key = random.normal(random.key(1), (50, 2)), random.key(2)
    config = dual_estimate.Config(learner=learner)
    table = dual_estimate.judgements(config, PROBLEM, members, first, key)
    noise = 0.3 * random.normal(key, (50, 1))
    for e in range(3):
        for f in range(3):
            actor, critic = (jax.tree.map(lambda leaf, i=i: leaf[i], members.learned) for i in (e, f))
            q = critic.q(first, actor.mu(first) + noise, jnp.zeros(50, dtype=jnp.int32))
            np.testing.assert_allclose(table[e, f], np.mean(q, axis=-1), rtol=1e-5, atol=1e-6)


def test_the_best_actor_is_judged_by_all_critics_and_kept_within_the_limits():
    """Critics that say Q_R = a, Q_C = 2 a at any state: of actions 0.05, 0.14 and 3 the best within 0.3 is 0.14."""
    problem = problem_of(Reach(costs=1), 200, (0.3,))
    config = dual_estimate.Config(learner=ddpg.Learner(critic_hidden=(1,), actor_hidden=(1,)), members=3)
    state = dual_estimate.start(config, problem, random.key(0))
    small = 1e-3  # where tanh is linear
    critics = state.learned.critics.stack
    critics = eqx.tree_at(
        lambda c: (c.weights, c.biases),
        critics,
        (
            (
                jnp.zeros_like(critics.weights[0]).at[:, :, 2, 0].set(small),
                jnp.broadcast_to(jnp.asarray([1.0, 2.0])[None, :, None, None] / small, critics.weights[1].shape),
            ),
            tuple(jnp.zeros_like(bias) for bias in critics.biases),
        ),
    )
    actor = eqx.tree_at(lambda a: a.weights[-1], state.learned.actor, jnp.zeros_like(state.learned.actor.weights[-1]))
    actor = eqx.tree_at(lambda a: a.biases[-1], actor, jnp.asarray([[0.05], [0.14], [3.0]]))
    learned = eqx.tree_at(lambda n: (n.critics.stack, n.actor), state.learned, (critics, actor))
    members = eqx.tree_at(lambda s: (s.learned, s.path.multiplier), state, (learned, jnp.ones((3, 1))))
    best = dual_estimate.best_actor(config, problem, members, random_buffer(Reach(costs=1), problem), random.key(0))
    np.testing.assert_allclose(best.learned.actor.biases[-1], [0.14])


@pytest.mark.parametrize(
    ("cost_discount", "steps"), [(1.0, (10.0, 10.0)), (0.8, ((1.0 - 0.9**10) / 0.1, (1.0 - 0.8**10) / 0.2))]
)
def test_the_datas_units_are_the_deviation_of_a_return_of_independent_steps(buffer, cost_discount, steps):
    """Of as many steps as the sums amount to: all of them in a total, whatever the discount is."""
    everything = replay.take(buffer, jnp.arange(200))
    problem = dataclasses.replace(PROBLEM, discount=0.9, cost_discount=cost_discount, horizon=10, truncates=False)
    _, units = view(dataclasses.replace(PLAIN, units="data"), problem, buffer)
    np.testing.assert_allclose(units.reward, np.std(everything.reward) * np.sqrt(steps[0]), rtol=1e-5)
    np.testing.assert_allclose(units.cost, np.std(everything.cost, axis=0) * np.sqrt(steps[1]), rtol=1e-5)
    np.testing.assert_allclose(units.limit * units.cost, problem.limit, rtol=1e-6)
    _, own = view(PLAIN, problem, buffer)
    assert float(own.reward) == 1.0
    assert (own.cost == 1.0).all()


def test_a_signal_that_never_varies_is_counted_in_its_own_units(buffer):
    first = PROBLEM.observation_size + PROBLEM.action_size
    still = eqx.tree_at(lambda b: b.rows, buffer, buffer.rows.at[:, first].set(3.0))
    _, units = view(dataclasses.replace(PLAIN, units="data"), PROBLEM, still)
    assert float(units.reward) == 1.0


def test_in_the_datas_units_the_multiplier_only_changes_its_unit_when_rewards_and_costs_do(buffer):
    """Rewards times 8 and costs times 1/2, powers of two: the same path, bit for bit, and λ^OFF 16 times as large."""
    first = PROBLEM.observation_size + PROBLEM.action_size
    factors = jnp.asarray([8.0] + [0.5] * PROBLEM.constraints)
    rows = buffer.rows.at[:, first : first + len(factors)].multiply(factors)
    other = eqx.tree_at(lambda b: b.rows, buffer, rows)
    tighter = dataclasses.replace(PROBLEM, limits=tuple(0.5 * limit for limit in PROBLEM.limits))
    config = dataclasses.replace(dual_estimate.DEPENDABLE, critic_hidden=(8,), actor_hidden=(8,), minibatch=16)
    start = ddpg.start(dataclasses.replace(config, initial_multiplier=1.0), PROBLEM, random.key(5))
    one, same = learn(config, PROBLEM, start, buffer, 300), learn(config, tighter, start, other, 300)
    assert (one.path.multiplier > 0.0).all()
    np.testing.assert_array_equal(same.multiplier.value, one.multiplier.value)
    np.testing.assert_allclose(same.path.multiplier, 16.0 * one.path.multiplier, rtol=1e-6)
    np.testing.assert_allclose(same.path.latest_cost, 0.5 * one.path.latest_cost, rtol=1e-6)


@pytest.mark.parametrize(
    ("config", "members", "ends"),
    [
        (PLAIN, [[0.163599, 0.157256], [0.176884, 0.136466], [0.209647, 0.128655]], [0.137897, 0.215872]),
        (DEPENDABLE, [[3.356289, 2.699467], [3.818885, 2.576609], [3.522143, 2.348005]], [3.136614, 3.907671]),
    ],
    ids=["appendix", "dependable"],
)
def test_the_papers_learner_computes_what_it_did_before_it_was_one_of_several(buffer, config, members, ends):
    """Recorded from the version in which it was the only one; other machines round otherwise."""
    ensemble = dual_estimate.Config(learner=config, members=3, iterations=250)
    state = jax.jit(lambda key: dual_estimate.start(ensemble, PROBLEM, key))(random.key(3))
    state = jax.jit(lambda s: dual_estimate.learn(ensemble, PROBLEM, s, buffer, jnp.asarray(250)))(state)
    np.testing.assert_allclose(state.path.multiplier, members, rtol=1e-3)
    found = dual_estimate.estimate(state)
    np.testing.assert_allclose([found.low[0], found.high[0]], ends, rtol=2e-3)


def test_costs_over_several_steps_are_refused_where_a_buffer_does_not_keep_them_one_after_the_other():
    config = dual_estimate.Config(learner=sac.Learner(cost_steps=3))
    with pytest.raises(InvalidInput, match="cost_steps must be 1 here"):
        dual_estimate.start(config, PROBLEM, random.key(0))
