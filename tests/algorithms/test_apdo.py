"""APDO is PDO but for one jump."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

from apdo import loop
from apdo.algorithms import apdo, k_adj, pdo
from apdo.algorithms.trial import Trial
from apdo.core import critics, dual, policies, replay
from apdo.core.data import flatten
from apdo.errors import InvalidInput
from apdo.objective import Measurement
from apdo.off_policy import ddpg, dual_estimate
from apdo.off_policy.units import empty_buffer, view
from problems import Reach, adjuster_of, advance_of, problem_of, random_batch, run, training_of

SMALL: dict[str, Any] = {"policy": policies.Config(hidden=(8,)), "critic": critics.Config(hidden=(8,), minibatches=2)}
K_ADJ = 2
LEARNER = ddpg.Learner(critic_hidden=(8,), actor_hidden=(8,), minibatch=16, initial_multiplier=4.0)
OFF_POLICY = dual_estimate.Config(learner=LEARNER, members=3, iterations=150)
OWN: dict[str, Any] = {"rule": dual.Ascent(), "units": "own", "dual_step": 0.1, "margin": 0.0}
"""The paper's dual step."""


def dual_config(**options):
    """APDO that adjusts the multipliers alone."""
    return apdo.Config(**({"adjust": "dual", "off_policy": OFF_POLICY} | SMALL | options))


@pytest.fixture(scope="module")
def runs():
    task = Reach(costs=2)
    return {
        "apdo": run(training_of(apdo, dual_config(k_adj=K_ADJ, **OWN), task), [3], 5),
        "pdo": run(training_of(pdo, pdo.Config(**SMALL, **OWN), task), [3], 5),
    }


def test_until_the_adjustment_it_plays_and_is_priced_as_pdo(runs):
    """On the same draws: what a compiler rounds otherwise in another program moves a step, but not the first batch."""
    ours, theirs = (runs[name][1] for name in ("apdo", "pdo"))
    assert ours[0].keys() == theirs[0].keys()
    for name in ("return", "cost", "multiplier"):
        np.testing.assert_allclose(ours[0][name], theirs[0][name], rtol=1e-4, atol=1e-6, err_msg=name)
    np.testing.assert_allclose(ours[1]["multiplier"], theirs[1]["multiplier"], rtol=1e-4)
    assert np.any(ours[1]["multiplier"] > 0.0)


def test_between_adjustments_a_step_is_pdos_bit_for_bit(monkeypatch):
    config, task = dual_config(k_adj=K_ADJ), Reach(costs=2)
    problem, batch, key = problem_of(task, 200), random_batch(random.key(1), task, 5, 40), random.key(2)
    compiled = jax.jit(pdo.step, static_argnums=(0, 1))
    state = apdo.init(config, problem, random.key(0))
    expected = compiled(config, problem, state.pdo, batch, key)
    monkeypatch.setattr(pdo, "step", compiled)
    after, metrics = apdo.step(config, problem, state, batch, key)
    for ours, theirs in zip(jax.tree.leaves((after.pdo, metrics)), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_after_the_adjustment_multiplier_and_policy_differ_from_pdo(runs):
    ours, theirs = (runs[name][1] for name in ("apdo", "pdo"))
    assert np.all(np.abs(ours[K_ADJ + 1]["multiplier"] - theirs[K_ADJ + 1]["multiplier"]) > 0.5)
    assert not np.array_equal(ours[K_ADJ + 2]["return"], theirs[K_ADJ + 2]["return"])


def test_after_the_jump_dual_ascent_goes_on_from_the_new_multiplier(runs):
    _, history = runs["apdo"]
    before, after = history[K_ADJ + 1], history[K_ADJ + 2]
    expected = np.maximum(before["multiplier"] + 0.1 * (before["cost"] - 0.5), 0.0)
    np.testing.assert_allclose(after["multiplier"], expected, rtol=1e-5)


def test_the_buffer_holds_exactly_the_batches_up_to_the_adjustment():
    """K_adj + 1 batches, since k counts from 0; every transition in it is one that was sampled."""
    training = training_of(apdo, dual_config(k_adj=K_ADJ, check=False), Reach(costs=2))
    state, history = run(training, [3], K_ADJ + 1)
    buffer = jax.tree.map(lambda leaf: leaf[0], state.algorithm.buffer)
    assert buffer.capacity == (K_ADJ + 1) * training.problem.batch == int(buffer.filled)
    o, a = 2, 1
    rewards = np.asarray(buffer.rows[: buffer.capacity, o + a]).reshape(K_ADJ + 1, training.steps, -1)
    np.testing.assert_allclose(rewards.sum(axis=1).mean(axis=1), [row["return"][0] for row in history], rtol=1e-5)


def leaves(tree):
    """Copies, without keys: what is compiled with donation uses up what it is given."""
    held = [leaf for leaf in jax.tree.leaves(tree) if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)]
    return [np.array(leaf) for leaf in held]


def assert_same(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.fixture(scope="module")
def finished():
    """Two seeds after one epoch, their adjuster, and the learners that have done their work."""
    training = training_of(apdo, dual_config(k_adj=0), Reach(costs=2))
    chunk = advance_of(training)(loop.start(training, [0, 1]), jnp.asarray(1, dtype=jnp.int32))
    adjuster = adjuster_of(training)
    return chunk.state, adjuster, adjuster.work(chunk.state, adjuster.begin(chunk.state), adjuster.total)


def finish(finished, *supported):
    """What the adjustment makes of a copy of the state, since it uses it up."""
    state, adjuster, learner = finished
    copy = dataclasses.replace(state, algorithm=jax.tree.map(jnp.copy, state.algorithm))
    return adjuster.finish(copy, learner, jnp.asarray(supported))


def test_the_jump_is_to_the_middle_of_the_members_mean_multipliers_which_are_the_unit_from_then_on(finished):
    _, _, learner = finished
    members = np.asarray(learner.path.multiplier)
    assert members.shape == (2, 3, 2)
    assert np.all(members.std(axis=1) > 0)
    middle = np.median(members, axis=1)
    adjusted, reported = finish(finished, True, True)
    np.testing.assert_array_equal(adjusted.algorithm.pdo.multiplier.value, middle)
    np.testing.assert_array_equal(adjusted.algorithm.pdo.multiplier.integral, middle)
    np.testing.assert_array_equal(adjusted.algorithm.pdo.units.jumped, middle)
    np.testing.assert_array_equal(reported.multiplier, middle)
    reach = 1.645 * members.std(axis=1, ddof=1)
    np.testing.assert_allclose(reported.low, np.maximum(middle - reach, 0.0), rtol=1e-4)
    np.testing.assert_allclose(reported.high, middle + reach, rtol=1e-4)
    assert int(learner.iteration[0, 0]) == 150


def test_an_adjustment_that_the_data_do_not_support_changes_nothing_but_of_the_seeds_that_they_do(finished):
    state, adjuster, learner = finished
    estimate = np.median(np.asarray(learner.path.multiplier), axis=1)
    assert adjuster.open(state).all()
    after, found = finish(finished, False, True)
    assert_same([leaf[0] for leaf in leaves(after.algorithm)], [leaf[0] for leaf in leaves(state.algorithm)])
    assert np.isnan(found.multiplier[0]).all()
    np.testing.assert_array_equal(after.algorithm.pdo.multiplier.value[1], estimate[1])
    np.testing.assert_array_equal(found.multiplier[1], estimate[1])
    np.testing.assert_array_equal(after.algorithm.adjusted, [False, True])
    assert adjuster.open(after).any()


def test_a_seed_that_has_been_adjusted_is_not_adjusted_again_with_the_others(finished):
    _, adjuster, learner = finished
    state, _ = finish(finished, False, True)
    kept = [leaf[1] for leaf in leaves(state.algorithm)]
    after, found = adjuster.finish(state, learner, jnp.asarray([True, True]))
    assert_same([leaf[1] for leaf in leaves(after.algorithm)], kept)
    assert np.isfinite(found.multiplier[0]).all()
    assert np.isnan(found.multiplier[1]).all()
    assert not adjuster.open(after).any()


def test_a_refused_adjustment_is_tried_again_when_the_data_have_doubled_at_most_three_times():
    due = apdo.adjustment.due
    checked, believed = apdo.Config(k_adj=3, check=True), apdo.Config(k_adj=3, check=False)
    assert [k for k in range(200) if due(checked, k)] == [3, 7, 15, 31]
    assert [k for k in range(200) if due(believed, k)] == [3]
    assert apdo.adjustment.checked(checked) is checked.off_policy
    assert apdo.adjustment.checked(believed) is None
    # The buffer has room for the last of them.
    training = training_of(apdo, dual_config(k_adj=0, check=True), Reach(costs=2))
    assert jax.tree.map(lambda leaf: leaf[0], loop.start(training, [0]).algorithm.buffer).capacity == 8 * 200


JUMP: dict[str, Any] = {
    "adjust": "primal-dual",
    "policy": policies.Config(hidden=(8,), bound=2.0),
    "critic": SMALL["critic"],
}
ACTOR = dataclasses.replace(LEARNER, bound=2.0, action_noise=0.3)
JUMPING = dual_estimate.Config(learner=ACTOR, members=2, iterations=100)


def pushing(policy, push):
    """A policy that pushes always alike."""
    last = jnp.zeros_like(policy.mean.weights[-1]), jnp.full_like(policy.mean.biases[-1], push)
    return eqx.tree_at(lambda p: (p.mean.weights[-1], p.mean.biases[-1]), policy, last)


@pytest.mark.parametrize(
    ("push", "limit", "taken"),
    [(3.0, 20.0, True), (-3.0, 20.0, False), (3.0, 1.0, False)],
    ids=["better", "worse", "better, but beyond the limit"],
)
def test_an_actor_on_trial_becomes_the_policy_only_if_its_lagrangian_is_better_and_it_keeps_the_limit(
    push, limit, taken
):
    """Reward a - 0.1 a² with |a| ≤ 2, cost [a]⁺ at a small price: pushing is better than pulling."""
    config = apdo.Config(k_adj=0, off_policy=JUMPING, **JUMP)
    training, numbers = training_of(apdo, config, Reach(costs=1)), {"problem.limits.0": limit}
    state, history = run(training, [0], 1, numbers)  # the jump follows this epoch
    assert history[0]["actor_taken"][0] == 0.0
    trial = state.algorithm.trial
    assert bool(trial.on[0])
    np.testing.assert_allclose(np.exp(state.algorithm.policy.log_std), 0.3, rtol=1e-5)

    candidate = pushing(state.algorithm.policy, push)
    small_price = jnp.full((1, 1), 0.01)
    algorithm = eqx.tree_at(lambda s: (s.pdo.policy, s.pdo.multiplier.value), state.algorithm, (candidate, small_price))
    expected = leaves((candidate, small_price) if taken else (trial.before, trial.multiplier.value))
    units = leaves(algorithm.pdo.units if taken else trial.units)
    critic_before = np.array(algorithm.pdo.critic.networks.weights[0])
    inserted = int(algorithm.buffer.inserted[0])
    state = dataclasses.replace(state, algorithm=algorithm)
    chunk = advance_of(training)(state, jnp.asarray(1, dtype=jnp.int32), {"problem.limits.0": jnp.full(1, limit)})
    after = chunk.state.algorithm
    assert bool(chunk.metrics["actor_taken"][0, 0]) == taken
    assert_same(leaves((after.policy, after.pdo.multiplier.value)), expected)
    assert_same(leaves(after.pdo.units), units)
    changed = not np.array_equal(after.pdo.critic.networks.weights[0], critic_before)
    assert changed == taken
    assert not bool(after.trial.on[0])
    # A refused actor leaves no data, and the adjustment is still to be made.
    assert int(after.buffer.inserted[0]) == inserted + taken * training.problem.batch
    assert bool(after.adjusted[0]) == taken
    assert bool(adjuster_of(training).open(chunk.state)) == (not taken)


@pytest.mark.parametrize("taken", [True, False])
def test_on_normalised_observations_whoever_goes_on_acts_on_raw_ones_as_before_whatever_statistics_do_next(taken):
    """The actor as it was trained, or the policy before it; and the buffer holds observations as they came."""
    config = apdo.Config(k_adj=0, off_policy=JUMPING, **JUMP)
    training = training_of(apdo, config, Reach(costs=1), limits=(100.0,), normalise=True)
    state, _ = run(training, [0], 1)
    algorithm = state.algorithm
    buffer = jax.tree.map(lambda leaf: leaf[0], algorithm.buffer)
    held = replay.take(buffer, jnp.arange(training.problem.batch))
    np.testing.assert_array_equal(held.observation[:, 1], held.step)

    def acts(policy, statistics):
        policy, statistics = jax.tree.map(lambda leaf: leaf[0], (policy, statistics))
        return np.asarray(jax.vmap(lambda o: policy(statistics.normalise(o)).mode())(held.observation))

    actor, before = (acts(policy, algorithm.statistics) for policy in (algorithm.policy, algorithm.trial.before))
    assert np.abs(actor - before).max() > 0.1
    mean = np.array(algorithm.statistics.mean)
    # Against a policy that earned nothing, or everything.
    algorithm = eqx.tree_at(lambda s: s.trial.objective, algorithm, jnp.asarray([-1e6 if taken else 1e6]))
    chunk = advance_of(training)(dataclasses.replace(state, algorithm=algorithm), jnp.asarray(1, dtype=jnp.int32))
    after = chunk.state.algorithm
    assert bool(chunk.metrics["actor_taken"][0, 0]) == taken
    assert np.abs(after.statistics.mean - mean).max() > 1e-3
    np.testing.assert_allclose(acts(after.policy, after.statistics), actor if taken else before, rtol=1e-3, atol=1e-4)


def test_exploring_keeps_the_first_policy_until_the_adjustment_and_no_longer():
    training = training_of(apdo, dual_config(k_adj=1, explore=True), Reach(costs=2))
    first = loop.start(training, [0]).algorithm.policy.mean.weights[0]
    before, _ = run(training, [0], 1)
    after, _ = run(training, [0], 4)
    np.testing.assert_array_equal(before.algorithm.policy.mean.weights[0], first)
    assert not np.array_equal(after.algorithm.policy.mean.weights[0], first)


def test_the_adjustment_can_be_repeated():
    due = apdo.adjustment.due
    for check in (True, False):
        often = apdo.Config(k_adj=4, again_every=3, check=check)
        assert [k for k in range(20) if due(often, k)] == [4, 7, 10, 13, 16, 19]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"policy": policies.Config(hidden=(9,), bound=2.0)}, "policy's shape"),
        ({"policy": policies.Config(hidden=(8,), bound=1.0)}, "to be the same"),
        ({"off_policy": dataclasses.replace(JUMPING, learner=dataclasses.replace(ACTOR, action_noise=0.0))}, "above 0"),
    ],
)
def test_an_actor_that_cannot_be_the_policy_is_refused_at_the_start(changes, told):
    config = apdo.Config(**{"off_policy": JUMPING, **JUMP, **changes})
    with pytest.raises(InvalidInput, match=told):
        loop.start(training_of(apdo, config, Reach(costs=1)), [0])


def estimates_of(lows, middles, highs):
    return [
        dual_estimate.Estimate(*(jnp.asarray([value]) for value in (middle, low, high)))
        for low, middle, high in zip(lows, middles, highs, strict=True)
    ]


def test_k_adj_sets_itself_where_two_estimates_lie_in_each_others_intervals(monkeypatch):
    """Three estimates: the second lies outside the first's interval, the third and the second agree."""
    config = dual_config(k_adj=k_adj.AUTO)
    training = training_of(apdo, config, Reach(costs=1))
    state = jax.tree.map(lambda leaf: leaf[0], loop.start(training, [0]).algorithm)
    members = dual_estimate.start(OFF_POLICY, training.problem, jax.random.key(0))
    told = []
    for found in estimates_of([1.0, 3.0, 3.5], [2.0, 4.0, 4.5], [3.0, 5.0, 5.5]):
        monkeypatch.setattr(dual_estimate, "estimate", lambda _, found=found: found)
        assert bool(apdo.adjustment.open(config, state))
        state, taken = apdo.adjustment.finish(config, training.problem, state, members, jnp.asarray(True))
        told.append(float(taken.multiplier[0]))
    np.testing.assert_array_equal(told, [np.nan, np.nan, 4.5])
    np.testing.assert_allclose(state.pdo.multiplier.value, [4.5])
    assert not bool(apdo.adjustment.open(config, state))


def test_k_adj_that_never_sees_two_estimates_agree_takes_the_last(monkeypatch):
    config = dual_config(k_adj=k_adj.AUTO)
    training = training_of(apdo, config, Reach(costs=1))
    state = jax.tree.map(lambda leaf: leaf[0], loop.start(training, [0]).algorithm)
    members = dual_estimate.start(OFF_POLICY, training.problem, jax.random.key(0))
    assert [k for k in range(100) if apdo.adjustment.due(config, k)] == list(k_adj.CHECKS["dual"])
    for i, _ in enumerate(k_adj.CHECKS["dual"]):
        value = 10.0 * (i + 1)
        found = estimates_of([value - 1.0], [value], [value + 1.0])[0]
        monkeypatch.setattr(dual_estimate, "estimate", lambda _, found=found: found)
        assert bool(apdo.adjustment.open(config, state))
        state, _ = apdo.adjustment.finish(config, training.problem, state, members, jnp.asarray(True))
    np.testing.assert_allclose(state.pdo.multiplier.value, [60.0])
    assert not bool(apdo.adjustment.open(config, state))


@pytest.mark.parametrize("last", [False, True])
def test_k_adj_auto_refuses_an_actor_that_earns_more_beyond_the_limit_until_the_last_check(last, monkeypatch):
    """A push of 3 is worth more than it costs at a price of 0.01, and costs far more than the limit."""
    monkeypatch.setattr(k_adj, "NARROW", np.inf)
    config = apdo.Config(**(JUMP | {"k_adj": k_adj.AUTO, "explore": True}), off_policy=JUMPING)
    training = training_of(apdo, config, Reach(costs=1))
    state, _ = run(training, [0], 2)  # the first adjustment follows epoch 1
    algorithm = state.algorithm
    assert bool(algorithm.trial.on[0])
    before = [np.array(leaf) for leaf in jax.tree.leaves(algorithm.trial.before)]
    assert not apdo.adjustment.open(config, jax.tree.map(lambda leaf: leaf[0], algorithm))
    reckless = eqx.tree_at(
        lambda p: (p.mean.weights[-1], p.mean.biases[-1]),
        algorithm.policy,
        replace_fn=jnp.zeros_like,
    )
    reckless = eqx.tree_at(lambda p: p.mean.biases[-1], reckless, replace_fn=lambda b: b + 3.0)
    checks = jnp.full((1,), len(k_adj.CHECKS["primal-dual"]) if last else 1)
    algorithm = eqx.tree_at(
        lambda s: (s.pdo.policy, s.pdo.multiplier.value, s.search.checks),
        algorithm,
        (reckless, jnp.full((1, 1), 0.01), checks),
    )
    expected = [np.array(leaf) for leaf in jax.tree.leaves(reckless)] if last else before
    inserted = int(algorithm.buffer.inserted[0])
    chunk = advance_of(training)(dataclasses.replace(state, algorithm=algorithm), jnp.asarray(1, dtype=jnp.int32))
    assert float(chunk.metrics["cost"][0, 0, 0]) > 1.2 * training.problem.limits[0]
    after = jax.tree.map(lambda leaf: leaf[0], chunk.state.algorithm)
    assert bool(chunk.metrics["actor_taken"][0, 0]) == last
    assert bool(after.adjusted) == last
    assert bool(apdo.adjustment.open(config, after)) == (not last)
    assert int(after.buffer.inserted) == inserted + last * training.problem.batch
    for ours, theirs in zip(jax.tree.leaves(after.policy), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs[0])


def measured(objective, cost, error=0.0):
    """What an epoch says, where only this much of it matters."""
    nothing = jnp.zeros(())
    return Measurement(
        objective=jnp.asarray(objective),
        objective_error=nothing,
        cost=jnp.asarray([cost]),
        cost_error=jnp.asarray([error]),
        undiscounted_return=nothing,
        discounted_return=nothing,
        undiscounted_cost=jnp.zeros(1),
        length=jnp.asarray(15.0),
        episodes=jnp.asarray(100.0),
    )


def trial_before(limit, objective, cost):
    """A trial of an actor after a policy with this return and cost."""
    training = training_of(apdo, dual_config(), Reach(costs=1))
    problem = dataclasses.replace(training.problem, limits=(limit,))
    trial = Trial.none(pdo.init(training.config, problem, jax.random.key(0)), problem)
    return problem, dataclasses.replace(trial, objective=jnp.asarray(objective), cost=jnp.asarray([cost]))


@pytest.mark.parametrize("error", [0.0, 0.03])
@pytest.mark.parametrize(("limit", "before", "slack"), [(0.2, 0.2, 0.01), (0.2, -1.8, 0.02), (0.0, -2.0, 0.02)])
def test_a_cost_keeps_a_limit_to_a_twentieth_of_it_or_a_hundredth_of_the_way_there_and_two_standard_errors(
    limit, before, slack, error
):
    problem, trial = trial_before(limit, 0.0, before)
    most = limit + slack + 2.0 * error
    for cost, kept in ((most - 0.001, True), (most + 0.001, False)):
        assert bool(trial._keeps(problem, measured(1.0, cost, error))) == kept


def test_a_cost_beyond_the_limit_but_nearer_than_before_keeps_it_by_what_can_be_asked():
    problem, trial = trial_before(0.2, 0.0, 5.0)
    assert bool(trial._keeps(problem, measured(1.0, 4.999)))
    assert not bool(trial._keeps(problem, measured(1.0, 5.001)))


def test_what_exceeds_a_limit_counts_three_times_its_price_and_what_keeps_it_once():
    """R - λ C - 2 λ [C - d]⁺ at λ = 3 and d = 1."""
    problem, trial = trial_before(1.0, 0.0, 0.0)
    for cost, worth in ((0.5, 10.0 - 1.5), (1.0, 10.0 - 3.0), (1.5, 10.0 - 4.5 - 3.0)):
        found = trial._worth(problem, jnp.asarray([3.0]), jnp.asarray(10.0), jnp.asarray([cost]))
        assert float(found) == pytest.approx(worth)


@pytest.mark.parametrize(("width", "tried"), [(0.29, [True]), (0.31, [False, True])])
def test_the_first_trial_of_k_adj_auto_waits_for_a_narrow_interval_and_the_second_does_not(monkeypatch, width, tried):
    config = apdo.Config(k_adj=k_adj.AUTO, off_policy=JUMPING, **JUMP)
    training = training_of(apdo, config, Reach(costs=1))
    state = jax.tree.map(lambda leaf: leaf[0], loop.start(training, [0]).algorithm)
    members = dual_estimate.start(JUMPING, training.problem, jax.random.key(0))
    found = estimates_of([4.0 - 2.0 * width], [4.0], [4.0 + 2.0 * width])[0]
    monkeypatch.setattr(dual_estimate, "estimate", lambda _: found)
    for on in tried:
        state, taken = apdo.adjustment.finish(config, training.problem, state, members, jnp.asarray(True))
        assert bool(state.trial.on) == on
        assert bool(np.isfinite(taken.multiplier[0])) == on
    assert not bool(apdo.adjustment.open(config, state))


def test_an_interval_is_narrow_against_the_largest_multiplier_in_units_that_can_be_compared():
    """Nothing is narrow against a multiplier of 0; against another constraint's, in the data's units, it may be."""
    config = apdo.Config(**(JUMP | {"k_adj": k_adj.AUTO, "explore": True}), off_policy=JUMPING)
    config = dataclasses.replace(
        config, off_policy=dataclasses.replace(JUMPING, learner=dataclasses.replace(ACTOR, units="data"))
    )
    task = Reach(costs=2)
    problem = problem_of(task, 200)
    batch = random_batch(jax.random.key(1), task, 10, 20)
    batch = dataclasses.replace(batch, cost=batch.cost * jnp.asarray([[[1.0, 3.0]]]))
    buffer = replay.insert(empty_buffer(problem, 200), flatten(batch))
    _, units = view(config.off_policy.learner, problem, buffer)
    assert abs(units.price[0] / units.price[1] - 1.0) > 0.2, "the units must differ for a mix-up to show"
    for widths, narrow in (((0.5, 0.5), True), ((0.5, 0.7), False), ((0.7, 0.5), False)):
        multiplier, width = jnp.asarray([0.0, 2.0]) * units.price, jnp.asarray(widths) * units.price
        found = dual_estimate.Estimate(multiplier=multiplier, low=multiplier - width / 2, high=multiplier + width / 2)
        assert bool(k_adj._narrow(config, problem, buffer, found)) == narrow


def test_a_run_with_k_adj_auto_records_the_jump_where_it_came(tmp_path):
    from apdo.experiment import runner, settings
    from apdo.report import runs

    small = {"policy.hidden": (8,), "critic.hidden": (8,), "batch": 60, "epochs": 4, "seeds": 2}
    small |= {f"off_policy.learner.{name}": value for name, value in {"critic_hidden": (8,), "minibatch": 8}.items()}
    # A spread of weights so wide that any two estimates agree: the second is taken, after epoch 2.
    options = small | {"k_adj": "auto", "off_policy.iterations": 100, "off_policy.learner.initial_multiplier": 3.0}
    options |= {"adjust": "dual", "check": False}
    experiment = settings.make_experiment("apdo", "two-state", options)
    result = runner.run(experiment, tmp_path / "run", quiet=True)
    found = runs.read(result.path).metrics.get("adjusted_multiplier")
    assert found is not None
    jumped = np.isfinite(found[..., 0])
    assert jumped.shape == (2, 4)
    assert np.all(jumped.sum(axis=1) <= 1)
    assert not jumped[:, [0, 1, 3]].any()


def test_where_k_adj_sets_itself_an_estimate_that_is_not_supported_counts_as_looked_at_and_changes_nothing_else():
    config = dual_config(k_adj=k_adj.AUTO)
    training = training_of(apdo, config, Reach(costs=1))
    state = jax.tree.map(lambda leaf: leaf[0], loop.start(training, [0]).algorithm)
    members = dual_estimate.start(OFF_POLICY, training.problem, jax.random.key(0))
    for checks in range(1, len(k_adj.CHECKS["dual"]) + 1):
        after, taken = apdo.adjustment.finish(config, training.problem, state, members, jnp.asarray(False))
        assert np.isnan(taken.multiplier).all()
        assert int(after.search.checks) == checks
        assert_same(leaves(dataclasses.replace(after, search=None)), leaves(dataclasses.replace(state, search=None)))
        state = after
    assert bool(apdo.adjustment.open(config, state))


def test_epochs_pass_for_the_safety_dial_whoever_plays_them():
    """π_0 while it explores, the off-policy actor on trial: the limit enforced counts from the first epoch of all."""
    noisy = dataclasses.replace(OFF_POLICY, learner=dataclasses.replace(LEARNER, action_noise=0.25))
    dialled: dict[str, Any] = {"safety": 1.0, "safety_half_life": 2.0, "margin": 0.0}
    wide: dict[str, Any] = SMALL | {"policy": policies.Config(hidden=(8,), log_std=0.0)}
    config = apdo.Config(k_adj=1, off_policy=noisy, explore=True, adjust="primal-dual", **wide, **dialled)
    state, history = run(training_of(apdo, config, Reach(costs=2)), [3], 4)
    first = history[0]["cost"]
    assert np.all(first > 0.5)
    for epoch, row in enumerate(history):
        np.testing.assert_allclose(row["enforced_limit"], 0.5 - (first - 0.5) * 2 ** (-epoch / 2.0), rtol=1e-4)
    assert int(state.algorithm.pdo.dial.epoch[0]) == 4
