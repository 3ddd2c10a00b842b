"""What a run does with an off-policy estimate that its data do not support: it says why, and changes nothing."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from apdo import loop
from apdo.errors import Interrupted
from apdo.experiment import adjusting, checkpoint, dual_checks, opening, runner, settings
from apdo.report import runs
from countdown import Countdown

EPOCHS, K_ADJ = 6, 1
RUN = {"epochs": EPOCHS, "batch": 160, "seeds": 2, "seed": 3, "horizon": 4, "checkpoint_every": 2}
RUN |= {"policy.hidden": (8,), "critic.hidden": (8,), "critic.passes": 1, "critic.minibatches": 2}
OFF_POLICY = {"k_adj": K_ADJ, "off_policy.iterations": 300, "off_policy.members": 2}
OFF_POLICY |= {f"off_policy.learner.{name}": (8,) for name in ("critic_hidden", "actor_hidden")}
COLD = {"heating": 0.0}
"""A machine that work never heats: no hour ever costs anything."""
SENTENCE = "no logged step has any hot hours, so that the data know nothing of its price"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Short checks, and programs that are compiled once."""
    monkeypatch.setattr(dual_checks.Checks, "__init__", functools.partialmethod(_brief, dual_checks.Checks.__init__))
    monkeypatch.setattr(loop, "make_advance", _make_advance)
    monkeypatch.setattr(loop, "make_adjuster", _adjuster)
    monkeypatch.setattr(runner, "Stop", Countdown)
    monkeypatch.setattr(Countdown, "left", 10**9)


def _brief(self, init, *given):
    init(self, *(given or (50,)))


_make_advance, _adjuster = functools.cache(loop.make_advance), functools.cache(loop.make_adjuster)


def experiment(algorithm="apdo", **changes):
    own = OFF_POLICY if algorithm == "apdo" else {}
    return settings.make_experiment(algorithm, "two-state", RUN | COLD | own | changes)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@functools.cache
def _undisturbed(place):
    return runner.run(experiment(), place / "whole", quiet=True)


@pytest.fixture
def whole(place):
    """The run on the cold machine, from its start to its end."""
    return _undisturbed(place)


def arrays(folder):
    with np.load(checkpoint.latest(folder)) as stored:
        return {name: stored[name] for name in stored.files}


@functools.cache
def _learned():
    training = opening.training_of(experiment())
    state = loop.start(training, [3, 4])
    state = loop.make_advance(training)(state, jnp.asarray(K_ADJ + 1, dtype=jnp.int32)).state
    adjuster = loop.Adjuster(training)
    return training, state, adjuster, adjuster.work(state, adjuster.begin(state), adjuster.total)


def learned():
    """The state after the epochs before the first adjustment, and what its learners come to."""
    training, state, adjuster, learner = _learned()
    # A copy: the adjuster uses up the state that it is given.
    return training, jax.tree.map(jnp.array, state), adjuster, learner


def test_data_without_any_cost_support_no_estimate_and_leave_the_state_as_it_was():
    training, state, adjuster, learner = learned()
    assert [reasons[0] for reasons in adjusting.doubts(training, state, learner)] == [SENTENCE] * 2
    before = jax.tree.map(jnp.array, state.algorithm)
    after, found = adjuster.finish(state, learner, jnp.asarray([False, False]))
    assert np.isnan(found.multiplier).all()
    for one, other in zip(jax.tree.leaves(before), jax.tree.leaves(after.algorithm), strict=True):
        np.testing.assert_array_equal(one, other)
    assert adjuster.open(after).any()


def test_a_seed_is_refused_for_its_own_data_alone():
    """The same learners and state, but for which seed the data are said to support."""
    _, state, adjuster, learner = learned()
    before = jax.tree.map(jnp.array, state.algorithm)
    after, found = adjuster.finish(state, learner, jnp.asarray([False, True]))
    np.testing.assert_array_equal(np.isfinite(found.multiplier), [[False], [True]])
    np.testing.assert_array_equal(after.algorithm.adjusted, [False, True])
    for one, other in zip(jax.tree.leaves(before), jax.tree.leaves(after.algorithm), strict=True):
        np.testing.assert_array_equal(one[0], other[0])


def test_whoever_believes_estimates_as_they_are_has_no_doubts():
    training, state, _, learner = learned()
    believing = dataclasses.replace(training, config=dataclasses.replace(training.config, check=False))
    assert adjusting.doubts(believing, state, learner) == [[], []]


def test_a_refused_run_says_why_each_time_the_data_have_doubled(whole):
    said = [(one["epoch"], one["text"]) for one in runs.read_remarks(whole.path) if "no jump" in one["text"]]
    tried = [2, 4]
    assert said == [
        (epoch, f"seed {seed}: no jump after {epoch} epochs, since {SENTENCE}.") for epoch in tried for seed in (3, 4)
    ]
    assert "adjusted_multiplier" not in runs.read(whole.path).metrics


def test_a_run_whose_adjustments_are_all_refused_is_pdo(whole, place):
    plain = runner.run(experiment("pdo"), place / "pdo", quiet=True)
    for name, values in plain.metrics.items():
        np.testing.assert_allclose(whole.metrics[name], values, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("looks", "where"),
    [
        (0, "after 1 of 6 epochs"),
        (1, "in the adjustment after 2 epochs"),
        (4, "after 3 of 6 epochs"),
        (6, "in the adjustment after 4 epochs"),
    ],
)
def test_a_refused_run_that_was_stopped_goes_on_to_the_same_bits(whole, tmp_path, monkeypatch, looks, where):
    monkeypatch.setattr(runner, "REPORT_EVERY", 1e-9)  # one epoch in a chunk, one hundred iterations in a piece
    Countdown.left = looks
    with pytest.raises(Interrupted, match=where):
        runner.run(experiment(), tmp_path / "run", quiet=True)
    Countdown.left = 10**9
    result = runner.resume(tmp_path / "run", quiet=True)
    for name, values in whole.metrics.items():
        np.testing.assert_array_equal(result.metrics[name], values, err_msg=name)
    ours, theirs = arrays(result.path), arrays(whole.path)
    assert ours.keys() == theirs.keys()
    for name, values in theirs.items():
        np.testing.assert_array_equal(ours[name], values, err_msg=name)
    assert runs.read_remarks(result.path) == runs.read_remarks(whole.path)


@functools.cache
def _believing(place):
    return runner.run(experiment(check=False), place / "believing", quiet=True)


def refusals(folder):
    return [(one["epoch"], one["text"]) for one in runs.read_remarks(folder) if "was refused" in one["text"]]


def test_a_run_says_of_an_actor_that_failed_its_trial_what_its_epoch_showed(place):
    """Seed 4's: it earned less than the policy before it, and both cost nothing."""
    found = _believing(place)
    jumped = np.asarray(np.isfinite(runs.read(found.path).metrics["adjusted_multiplier"]).all(axis=-1))
    np.testing.assert_array_equal(jumped[:, K_ADJ], [True, True])
    trial = K_ADJ + 1
    np.testing.assert_array_equal(found.metrics["actor_taken"][:, trial], [1.0, 0.0])
    shown, before = (f"{found.metrics['discounted_return'][1, k]:.3g}" for k in (trial, K_ADJ))
    [(epoch, text), *_] = refusals(found.path)
    assert epoch == trial + 1
    assert text == (
        f"seed 4: the off-policy actor of the adjustment after {trial} epochs was refused: its epoch showed a return "
        f"of {shown} with hot hours of 0 (limit 2), and the epoch before it a return of {before} with hot hours of 0 "
        "(limit 2)."
    )
    assert len(refusals(found.path)) == np.sum(jumped[:, :-1] & (found.metrics["actor_taken"][:, 1:] == 0.0))


@pytest.mark.parametrize("looks", [0, 3, 4])
def test_a_run_that_was_stopped_before_or_after_a_trial_remarks_on_it_once(place, tmp_path, monkeypatch, looks):
    monkeypatch.setattr(runner, "REPORT_EVERY", 1e-9)
    Countdown.left = looks
    with pytest.raises(Interrupted):
        runner.run(experiment(check=False), tmp_path / "run", quiet=True)
    Countdown.left = 10**9
    result = runner.resume(tmp_path / "run", quiet=True)
    assert refusals(result.path) == refusals(_believing(place).path) != []
