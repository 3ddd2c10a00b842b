"""APDO is PDO but for one jump."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from apdo import loop
from apdo.algorithms import apdo, dual_estimate, pd_ddpg, pdo
from apdo.core import critics, dual, policies
from apdo.core.advantage import EpisodeSummary
from apdo.errors import InvalidInput
from problems import Reach, run, training_of

SMALL = {"policy": policies.Config(hidden=(8,)), "critic": critics.Config(hidden=(8,), minibatches=2)}
K_ADJ = 2
LEARNER = pd_ddpg.Learner(critic_hidden=(8,), actor_hidden=(8,), minibatch=16, initial_multiplier=4.0)
OFF_POLICY = dual_estimate.Config(learner=LEARNER, members=3, iterations=150)


@pytest.fixture(scope="module")
def runs():
    task = Reach(costs=2)
    config = apdo.Config(k_adj=K_ADJ, off_policy=OFF_POLICY, **SMALL)
    return {
        "apdo": run(training_of(apdo, config, task), [3], 5),
        "pdo": run(training_of(pdo, pdo.Config(**SMALL), task), [3], 5),
    }


def test_up_to_the_adjustment_every_number_equals_pdo_bit_for_bit(runs):
    for epoch in range(K_ADJ + 1):
        ours, theirs = runs["apdo"][1][epoch], runs["pdo"][1][epoch]
        assert ours.keys() == theirs.keys()
        for name in ours:
            np.testing.assert_array_equal(ours[name], theirs[name], err_msg=f"epoch {epoch}, {name}")


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
    config = apdo.Config(k_adj=K_ADJ, off_policy=OFF_POLICY, **SMALL)
    training = training_of(apdo, config, Reach(costs=2))
    state, history = run(training, [3], K_ADJ + 1)
    buffer = jax.tree.map(lambda leaf: leaf[0], state.algorithm.buffer)
    assert buffer.capacity == (K_ADJ + 1) * training.problem.batch == int(buffer.filled)
    o, a = 2, 1
    rewards = np.asarray(buffer.rows[: buffer.capacity, o + a]).reshape(K_ADJ + 1, training.steps, -1)
    np.testing.assert_allclose(rewards.sum(axis=1).mean(axis=1), [row["return"][0] for row in history], rtol=1e-5)


def test_the_jump_is_to_the_middle_of_the_members_mean_multipliers():
    config = apdo.Config(k_adj=0, off_policy=OFF_POLICY, **SMALL)
    training = training_of(apdo, config, Reach(costs=2))
    state, _ = run(training_of(apdo, apdo.Config(k_adj=1, off_policy=OFF_POLICY, **SMALL), Reach(costs=2)), [0], 1)
    adjuster = loop.Adjuster(training)
    learner = adjuster.work(state, adjuster.begin(state), adjuster.total)
    members = np.asarray(learner.multiplier_mean)[0]
    assert members.shape == (3, 2)
    assert np.all(members.std(axis=0) > 0)
    middle = np.median(members, axis=0)[None]
    adjusted, reported = adjuster.finish(state, learner)
    np.testing.assert_array_equal(adjusted.algorithm.pdo.multiplier.value, middle)
    np.testing.assert_array_equal(reported.multiplier, middle)
    reach = 1.645 * members.std(axis=0, ddof=1)
    np.testing.assert_allclose(reported.low, middle - reach, rtol=1e-4)
    np.testing.assert_allclose(reported.high, middle + reach, rtol=1e-4)
    assert int(learner.iteration[0, 0]) == 150


JUMP = {"adjust": "primal-dual", "policy": policies.Config(hidden=(8,), bound=2.0), "critic": SMALL["critic"]}
ACTOR = dataclasses.replace(LEARNER, bound=2.0, action_noise=0.3)
JUMPING = dual_estimate.Config(learner=ACTOR, members=2, iterations=100)


@pytest.mark.parametrize("better", [True, False])
def test_an_actor_on_trial_becomes_the_policy_only_if_its_lagrangian_is_better(better):
    """Reward a - 0.1 a² with |a| ≤ 2, cost [a]⁺ at a small price: pushing is better than pulling."""
    config = apdo.Config(k_adj=0, off_policy=JUMPING, **JUMP)
    training = training_of(apdo, config, Reach(costs=1), limits=(1.0,))
    state, history = run(training, [0], 1)  # the jump follows this epoch
    assert history[0]["actor_taken"][0] == 0.0
    trial = state.algorithm.trial
    assert bool(trial.on[0])
    before = trial.before
    np.testing.assert_allclose(np.exp(state.algorithm.policy.log_std), 0.3, rtol=1e-5)

    def pushing(policy, push):
        last = jnp.zeros_like(policy.mean.weights[-1]), jnp.full_like(policy.mean.biases[-1], push)
        return eqx.tree_at(lambda p: (p.mean.weights[-1], p.mean.biases[-1]), policy, last)

    candidate = pushing(state.algorithm.policy, 3.0 if better else -3.0)
    small_price = jnp.full((1, 1), 0.01)
    algorithm = eqx.tree_at(lambda s: (s.pdo.policy, s.pdo.multiplier.value), state.algorithm, (candidate, small_price))
    # Copies: the compiled loop uses up what it is given.
    expected = [np.array(leaf) for leaf in jax.tree.leaves(candidate if better else before)]
    advance = loop.make_advance(training)
    critic_before = np.array(algorithm.pdo.critic.networks.weights[0])
    chunk = advance(loop.State(algorithm=algorithm, key=state.key, epoch=state.epoch), jnp.asarray(1))
    after = chunk.state.algorithm
    assert bool(chunk.metrics["actor_taken"][0, 0]) == better
    for ours, theirs in zip(jax.tree.leaves(after.policy), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    changed = not np.array_equal(after.pdo.critic.networks.weights[0], critic_before)
    assert changed == better
    np.testing.assert_allclose(after.pdo.multiplier.value, 0.01)
    assert not bool(after.trial.on[0])


def test_exploring_keeps_the_first_policy_until_the_adjustment_and_no_longer():
    config = apdo.Config(k_adj=1, explore=True, off_policy=OFF_POLICY, **SMALL)
    training = training_of(apdo, config, Reach(costs=2))
    first = loop.start(training, [0]).algorithm.policy.mean.weights[0]
    before, _ = run(training, [0], 1)
    after, _ = run(training, [0], 4)
    np.testing.assert_array_equal(before.algorithm.policy.mean.weights[0], first)
    assert not np.array_equal(after.algorithm.policy.mean.weights[0], first)


def test_the_adjustment_can_be_repeated():
    due = apdo.adjustment.due
    once, often = apdo.Config(k_adj=3), apdo.Config(k_adj=3, again_every=4)
    assert [k for k in range(20) if due(once, k)] == [3]
    assert [k for k in range(20) if due(often, k)] == [3, 7, 11, 15, 19]


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
    config = apdo.Config(k_adj=apdo.AUTO, off_policy=OFF_POLICY, **SMALL)
    training = training_of(apdo, config, Reach(costs=1))
    state = jax.tree.map(lambda leaf: leaf[0], loop.start(training, [0]).algorithm)
    members = dual_estimate.start(OFF_POLICY, training.problem, jax.random.key(0))
    told = []
    for found in estimates_of([1.0, 3.0, 3.5], [2.0, 4.0, 4.5], [3.0, 5.0, 5.5]):
        monkeypatch.setattr(dual_estimate, "estimate", lambda _, found=found: found)
        assert bool(apdo.adjustment.open(config, state))
        state, taken = apdo.adjustment.finish(config, training.problem, state, members)
        told.append(float(taken.multiplier[0]))
    np.testing.assert_array_equal(told, [np.nan, np.nan, 4.5])
    np.testing.assert_allclose(state.pdo.multiplier.value, [4.5])
    assert not bool(apdo.adjustment.open(config, state))


def test_k_adj_that_never_sees_two_estimates_agree_takes_the_last(monkeypatch):
    config = apdo.Config(k_adj=apdo.AUTO, off_policy=OFF_POLICY, **SMALL)
    training = training_of(apdo, config, Reach(costs=1))
    state = jax.tree.map(lambda leaf: leaf[0], loop.start(training, [0]).algorithm)
    members = dual_estimate.start(OFF_POLICY, training.problem, jax.random.key(0))
    assert [k for k in range(100) if apdo.adjustment.due(config, k)] == list(apdo.CHECKS["dual"])
    for i, _ in enumerate(apdo.CHECKS["dual"]):
        value = 10.0 * (i + 1)
        found = estimates_of([value - 1.0], [value], [value + 1.0])[0]
        monkeypatch.setattr(dual_estimate, "estimate", lambda _, found=found: found)
        assert bool(apdo.adjustment.open(config, state))
        state, _ = apdo.adjustment.finish(config, training.problem, state, members)
    np.testing.assert_allclose(state.pdo.multiplier.value, [60.0])
    assert not bool(apdo.adjustment.open(config, state))


@pytest.mark.parametrize("last", [False, True])
def test_k_adj_auto_refuses_an_actor_that_earns_more_beyond_the_limit_until_the_last_check(last, monkeypatch):
    """A push of 3 is worth more than it costs at a price of 0.01, and costs far more than the limit."""
    monkeypatch.setattr(apdo, "NARROW", np.inf)
    config = apdo.Config(**(JUMP | {"k_adj": apdo.AUTO, "explore": True}), off_policy=JUMPING)
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
    checks = jnp.full((1,), len(apdo.CHECKS["primal-dual"]) if last else 1)
    algorithm = eqx.tree_at(
        lambda s: (s.pdo.policy, s.pdo.multiplier.value, s.search.checks),
        algorithm,
        (reckless, jnp.full((1, 1), 0.01), checks),
    )
    expected = [np.array(leaf) for leaf in jax.tree.leaves(reckless)] if last else before
    inserted = int(algorithm.buffer.inserted[0])
    chunk = loop.make_advance(training)(
        loop.State(algorithm=algorithm, key=state.key, epoch=state.epoch), jnp.asarray(1)
    )
    assert float(chunk.metrics["cost"][0, 0, 0]) > 1.2 * training.problem.limits[0]
    after = jax.tree.map(lambda leaf: leaf[0], chunk.state.algorithm)
    assert bool(chunk.metrics["actor_taken"][0, 0]) == last
    assert bool(after.adjusted) == last
    assert bool(apdo.adjustment.open(config, after)) == (not last)
    assert int(after.buffer.inserted) == inserted + last * training.problem.batch
    for ours, theirs in zip(jax.tree.leaves(after.policy), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs[0])


@pytest.mark.parametrize("error", [0.0, 0.03])
@pytest.mark.parametrize(("limit", "before", "slack"), [(0.2, 0.2, 0.01), (0.2, 2.2, 0.02), (0.0, -2.0, 0.02)])
def test_a_cost_keeps_a_limit_to_a_twentieth_of_it_or_a_hundredth_of_what_was_to_be_taken_off_and_two_standard_errors(
    limit, before, slack, error
):
    problem = training_of(apdo, apdo.Config(off_policy=OFF_POLICY, **SMALL), Reach(costs=1)).problem
    problem = dataclasses.replace(problem, limits=(limit,))
    most = limit + slack + 2.0 * error
    for cost, kept in ((most - 0.001, True), (most + 0.001, False)):
        seen = EpisodeSummary(
            undiscounted_return=jnp.asarray(1.0),
            discounted_return=jnp.asarray(1.0),
            undiscounted_cost=jnp.asarray([cost]),
            constrained_cost=jnp.asarray([cost]),
            cost_error=jnp.asarray([error]),
            length=jnp.asarray(15.0),
            episodes=jnp.asarray(100.0),
        )
        assert bool(apdo._keeps(problem, seen, jnp.asarray([before]))) == kept


@pytest.mark.parametrize(("width", "tried"), [(0.29, [True]), (0.31, [False, True])])
def test_the_first_trial_of_k_adj_auto_waits_for_a_narrow_interval_and_the_second_does_not(monkeypatch, width, tried):
    config = apdo.Config(k_adj=apdo.AUTO, off_policy=JUMPING, **JUMP)
    training = training_of(apdo, config, Reach(costs=1))
    state = jax.tree.map(lambda leaf: leaf[0], loop.start(training, [0]).algorithm)
    members = dual_estimate.start(JUMPING, training.problem, jax.random.key(0))
    found = estimates_of([4.0 - 2.0 * width], [4.0], [4.0 + 2.0 * width])[0]
    monkeypatch.setattr(dual_estimate, "estimate", lambda _: found)
    for on in tried:
        state, taken = apdo.adjustment.finish(config, training.problem, state, members)
        assert bool(state.trial.on) == on
        assert bool(np.isfinite(taken.multiplier[0])) == on
    assert not bool(apdo.adjustment.open(config, state))


def test_an_interval_is_narrow_against_the_largest_multiplier_in_units_that_can_be_compared():
    """Nothing is narrow against a multiplier of 0; against another constraint's, in the data's units, it may be."""
    config = apdo.Config(**(JUMP | {"k_adj": apdo.AUTO, "explore": True}), off_policy=JUMPING)
    config = dataclasses.replace(
        config, off_policy=dataclasses.replace(JUMPING, learner=dataclasses.replace(ACTOR, units="data"))
    )
    training = training_of(apdo, config, Reach(costs=2))
    state, _ = run(training, [0], 1)
    buffer = jax.tree.map(lambda leaf: leaf[0], state.algorithm.buffer)
    _, units = pd_ddpg.view(config.off_policy.learner, training.problem, buffer)
    assert abs(units.price[0] / units.price[1] - 1.0) > 0.2, "the units must differ for a mix-up to show"
    for widths, narrow in (((0.5, 0.5), True), ((0.5, 0.7), False), ((0.7, 0.5), False)):
        multiplier, width = jnp.asarray([0.0, 2.0]) * units.price, jnp.asarray(widths) * units.price
        found = dual_estimate.Estimate(multiplier=multiplier, low=multiplier - width / 2, high=multiplier + width / 2)
        assert bool(apdo._narrow(config, training.problem, buffer, found)) == narrow


def test_a_run_with_k_adj_auto_records_the_jump_where_it_came(tmp_path):
    from apdo.experiment import runner, settings
    from apdo.report import runs

    small = {"policy.hidden": (8,), "critic.hidden": (8,), "batch": 60, "epochs": 4, "seeds": 2}
    small |= {f"off_policy.learner.{name}": value for name, value in {"critic_hidden": (8,), "minibatch": 8}.items()}
    # A spread of weights so wide that any two estimates agree: the second is taken, after epoch 2.
    options = small | {"k_adj": "auto", "off_policy.iterations": 100, "off_policy.learner.initial_multiplier": 3.0}
    experiment = settings.specify("apdo", "two-state", options)
    result = runner.run(experiment, tmp_path / "run", quiet=True)
    found = runs.read(result.path).metrics.get("adjusted_multiplier")
    assert found is not None
    jumped = np.isfinite(found[..., 0])
    assert jumped.shape == (2, 4)
    assert np.all(jumped.sum(axis=1) <= 1)
    assert not jumped[:, [0, 1, 3]].any()


@pytest.mark.parametrize(
    ("gains", "estimates", "said"),
    [
        # λ/d is 4 and 10: K_P may be five times the smaller.
        ({"proportional": 19.0}, [[2.0, 2.0]], ""),
        ({"proportional": 21.0}, [[2.0, 2.0]], "Try about --rule.proportional 2 --dual-step 0.2."),
        # A seed without an estimate yet does not count, nor a constraint whose price is 0.
        ({"proportional": 21.0}, [[2.0, 0.0], [np.nan, np.nan]], "Try about --rule.proportional 2 --dual-step 0.2."),
        ({"proportional": 49.0}, [[0.0, 2.0]], ""),
        ({"proportional": 21.0}, [[np.nan, np.nan]], ""),
        ({"proportional": 21.0, "reach": 1.0}, [[2.0, 2.0]], ""),
    ],
)
def test_gains_of_another_problem_are_remarked_upon_with_those_that_would_suit(gains, estimates, said):
    config = apdo.Config(rule=dual.Pid(**gains), off_policy=OFF_POLICY, **SMALL)
    problem = training_of(apdo, config, Reach(costs=2), limits=(0.5, -0.2)).problem
    remark = apdo.adjustment.remark(config, problem, jnp.asarray(estimates))
    assert remark.endswith(said)
    assert bool(remark) == bool(said)


def test_epochs_pass_for_the_safety_dial_whoever_plays_them():
    """π_0 while it explores, the off-policy actor on trial: the limit enforced counts from the first epoch of all."""
    noisy = dataclasses.replace(OFF_POLICY, learner=dataclasses.replace(LEARNER, action_noise=0.25))
    config = apdo.Config(
        k_adj=1, off_policy=noisy, explore=True, safety=1.0, safety_half_life=2.0, adjust="primal-dual", **SMALL
    )
    state, history = run(training_of(apdo, config, Reach(costs=2)), [3], 4)
    first = history[0]["cost"]
    assert np.all(first > 0.5)
    for epoch, row in enumerate(history):
        np.testing.assert_allclose(row["enforced_limit"], 0.5 - (first - 0.5) * 2 ** (-epoch / 2.0), rtol=1e-4)
    assert int(state.algorithm.pdo.dial.epoch[0]) == 4
