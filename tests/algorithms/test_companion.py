"""A companion of PDO: when its actors are tried, when they are taken, and what it costs nothing to be without."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import apdo as library
from apdo import objective
from apdo.algorithms import apdo, pdo, trial
from apdo.algorithms.companion import LONGEST, Companion
from apdo.algorithms.trial import Trial
from apdo.core import critics, policies
from apdo.errors import InvalidInput
from apdo.experiment import settings
from apdo.off_policy import dual_estimate, sac_online
from apdo.problem import Asked
from problems import Reach, random_batch, run, training_of

SMALL: dict[str, Any] = {
    "policy": policies.Config(hidden=(8,), bound=1.0),
    "critic": critics.Config(hidden=(8,), minibatches=2),
}
SOFT = dataclasses.replace(sac_online.ONLINE, critic_hidden=(8,), actor_hidden=(8,), activation="tanh", minibatch=16)
LEARNING = dual_estimate.Config(learner=SOFT, members=1)


def config(**changes):
    return apdo.Config(**({"companion": True, "k_adj": 3, "off_policy": LEARNING} | SMALL | changes))


def started(costs=1):
    training = training_of(apdo, config(), Reach(costs=costs))
    members = dual_estimate.start(LEARNING, training.problem, jax.random.key(0))
    return Companion.start(members, costs)


def after(companion, outcomes):
    """The epochs of PDO that follow each trial, where the trials come to these outcomes."""
    waits = []
    for taken in outcomes:
        companion = companion.after_epoch(jnp.zeros(1), jnp.asarray(True), jnp.asarray(taken))
        waits.append(int(companion.wait))
    return waits


def test_the_next_actor_is_tried_at_once_while_actors_are_taken_and_ever_later_while_they_are_refused():
    assert after(started(), [True, True, False, False, False, False, False, True, False]) == [
        *(0, 0, 1, 2, 4, LONGEST, LONGEST, 0, 1)
    ]


def test_epochs_of_pdo_bring_the_next_trial_nearer_and_say_nothing_of_the_critics():
    companion = dataclasses.replace(started(), wait=jnp.asarray(3), unseen=jnp.asarray([0.25]))
    later = companion.after_epoch(jnp.asarray([9.0]), jnp.asarray(False), jnp.asarray(False))
    assert (int(later.wait), float(later.unseen[0]), int(later.epoch)) == (2, 0.25, 1)


def test_what_critics_miss_of_an_actors_cost_is_known_after_some_trials():
    """Critics that always say 0 of an actor that costs 2."""
    companion = started()
    for _ in range(10):
        companion = companion.after_epoch(jnp.asarray([2.0]), jnp.asarray(True), jnp.asarray(True))
    assert float(companion.unseen[0]) == pytest.approx(2.0, rel=2e-3)


def test_after_k_adj_no_actor_is_tried_and_the_learner_rests():
    training = training_of(apdo, config(k_adj=3), Reach(costs=1))
    state, history = run(training, [0], 7)
    tried = [bool(epoch["actor_on_trial"][0]) for epoch in history]
    # The first epoch is PDO's; the learner takes iterations after epochs 1 to 3, each of which an actor may follow.
    assert not tried[0]
    assert any(tried[1:4])
    assert not any(tried[4:])
    each = round(training.config.updates * training.problem.batch)
    assert int(state.algorithm.companion.members.iteration[0, 0]) == 3 * each
    assert not bool(state.algorithm.trial.on[0])


def test_the_learner_sees_what_refused_actors_saw(monkeypatch):
    """In one adjustment it does not. No gain is beyond doubt here, so that every actor is refused."""
    monkeypatch.setattr(trial, "ERRORS", 1e9)
    training = training_of(apdo, config(k_adj=5), Reach(costs=1))
    state, history = run(training, [0], 6)
    refused = [bool(epoch["actor_on_trial"][0] > epoch["actor_taken"][0]) for epoch in history]
    assert any(refused)
    assert int(state.algorithm.buffer.inserted[0]) == 6 * training.problem.batch


def verdict(before, **how):
    """Whether an actor is taken whose epoch earns what `random_batch` does, where the policy before it earned this."""
    training = training_of(apdo, config(), Reach(costs=1), limits=[1e6])
    problem, key = training.problem, jax.random.key(0)
    state = pdo.init(training.config, problem, key)
    batch = random_batch(jax.random.key(1), Reach(costs=1), 5, 40)
    trial = dataclasses.replace(Trial.none(state, problem), on=jnp.asarray(True), objective=jnp.asarray(before))
    return bool(trial.verdict(training.config, problem, state, state, batch, key, strict=True, **how)[2])


@pytest.mark.parametrize(
    ("errors", "plainly", "clearly", "leniently"),
    [(-3.0, True, True, True), (-1.0, True, False, True), (1.0, False, False, True), (3.0, False, False, False)],
)
def test_the_first_actor_has_to_be_better_beyond_doubt_and_later_ones_need_only_not_be_shown_worse(
    errors, plainly, clearly, leniently
):
    """`errors` by how many standard errors the policy before earned more; there is no price on the cost."""
    training = training_of(apdo, config(), Reach(costs=1), limits=[1e6])
    seen = objective.measure(training.problem, random_batch(jax.random.key(1), Reach(costs=1), 5, 40))
    before = float(seen.objective + errors * seen.objective_error)
    assert verdict(before) == plainly
    assert verdict(before, clear=True) == clearly
    assert verdict(before, lenient=True) == leniently


@pytest.mark.parametrize(
    "changes",
    [{"adjust": "dual"}, {"explore": True}, {"again_every": 2}, {"warm": True}, {"k_adj": -1}],
    ids=lambda changes: next(iter(changes)),
)
def test_options_of_one_adjustment_are_refused_beside_a_companion(changes):
    training = training_of(apdo, config(**changes), Reach(costs=1))
    with pytest.raises(InvalidInput, match="companion"):
        apdo.init(training.config, training.problem, jax.random.key(0))


def chosen(environment="navigation", **given):
    return settings.make_experiment("apdo", environment, {"limits": 3.0} | given).algorithm_config


def test_where_actions_are_vectors_there_is_a_companion_for_the_first_four_fifths_of_a_run():
    assert chosen().companion
    assert chosen(epochs=10).k_adj == 7
    assert chosen(epochs=1).k_adj == 0


def test_a_companion_is_there_for_a_million_samples_at_most():
    assert chosen(samples=20_000_000).k_adj == 1_000_000 // 5_000 - 1


def test_where_actions_are_choices_there_is_one_adjustment():
    assert not chosen("gridworld").companion


@pytest.mark.parametrize("given", [{"k_adj": 3}, {"adjust": "dual"}, {"off_policy.members": 2}, {"companion": False}])
def test_whoever_sets_an_option_of_the_one_adjustment_has_it(given):
    assert not chosen(**given).companion
    assert chosen(companion=True, k_adj=3).companion


def test_the_companions_actor_has_the_shape_of_the_policy_that_is_asked_for():
    found = settings.make_experiment("apdo", "navigation", {"policy.hidden": (16,)}).algorithm_config
    assert found.off_policy.learner.actor_hidden == (16,)


def test_presets_are_what_they_were():
    for preset in ("paper", "fast", "demo"):
        assert not settings.make_experiment("apdo", "point-gather", {}, preset=preset).algorithm_config.companion


def test_suited_options_of_pdo_are_among_those_of_apdo():
    asked = Asked(horizon=15, discrete_actions=True, epochs=50, batch=5000, given={})
    assert apdo.suited(asked) == pdo.suited(asked) | {"careful": True}


def test_a_run_with_a_companion_goes_on_bit_for_bit(tmp_path):
    def train(name, callbacks=()):
        chosen = {"off_policy.learner.critic_hidden": (8,), "off_policy.learner.minibatch": 16, "policy.hidden": (8,)}
        return library.train(
            "apdo",
            "point-gather",
            companion=True,
            k_adj=3,
            epochs=6,
            batch=150,
            checkpoint_every=1,
            out=tmp_path / name,
            quiet=True,
            callbacks=list(callbacks),
            **{option.replace(".", "__"): value for option, value in chosen.items()},
        )

    whole = train("whole")
    train("interrupted", [lambda epoch: "that will do" if epoch.epoch == 3 else None])
    resumed = library.resume(tmp_path / "interrupted", quiet=True)
    for name, values in whole.metrics.items():
        if name != "seconds":
            np.testing.assert_array_equal(values, resumed.metrics[name], err_msg=name)
    assert np.sum(whole.metrics["actor_on_trial"]) >= 1
