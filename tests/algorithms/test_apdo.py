"""APDO is PDO but for one jump."""

import dataclasses

import jax
import numpy as np
import pytest

from apdo.algorithms import apdo, dual_estimate, pd_ddpg, pdo
from apdo.core import critics, policies
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
    from apdo import loop

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
