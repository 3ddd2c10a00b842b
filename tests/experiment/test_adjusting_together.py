"""Runs of APDO that differ in numbers only adjust in one program, and come out as if each had run alone."""

import functools

import numpy as np
import pytest

from apdo.errors import Interrupted, NumericalFailure
from apdo.experiment import adjusting, checkpoint, dual_checks, opening, runner, settings, together
from apdo.report import runs
from countdown import Countdown

RUN = {"epochs": 5, "batch": 160, "seeds": 2, "seed": 3, "horizon": 4, "checkpoint_every": 5, "heating": 0.4}
RUN |= {"policy.hidden": (8,), "critic.hidden": (8,), "critic.passes": 1, "critic.minibatches": 2}
RUN |= {"k_adj": 1, "check": False, "limits": 0.02, "off_policy.iterations": 300, "off_policy.members": 2}
RUN |= {f"off_policy.learner.{name}": (8,) for name in ("critic_hidden", "actor_hidden")}
CHANGES = {
    "slow": {"dual_step": 0.01},
    "quick": {"dual_step": 0.5, "off_policy.learner.dual_rate": 0.02},
    "tight": {"limits": 0.01},
}


@pytest.fixture(autouse=True, scope="module")
def quick():
    """Short checks, and pieces of a hundred iterations."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dual_checks.Checks, "__init__", functools.partialmethod(_brief, dual_checks.Checks.__init__))
        patch.setattr(runner, "REPORT_EVERY", 1e-9)
        patch.setattr(together, "Stop", Countdown)
        yield


@pytest.fixture(autouse=True)
def no_signal():
    """A stop is only asked for where a test says so."""
    Countdown.left = 10**9


def _brief(self, init, *given):
    init(self, *(given or (50,)))


def experiment(**changes):
    return settings.make_experiment("apdo", "two-state", RUN | changes)


def enter(folder, changes=CHANGES, **more):
    return [opened(folder / name, **(own | more)) for name, own in changes.items()]


def opened(folder, **changes):
    found = opening.enter(experiment(**changes), folder, lambda _: None)
    assert isinstance(found, opening.Opened)
    return found


def metrics(folder):
    return {name: values for name, values in runs.read(folder).metrics.items() if name != "seconds"}


def assert_same(one, other):
    ours, theirs = metrics(one), metrics(other)
    assert ours.keys() == theirs.keys()
    for name, values in theirs.items():
        np.testing.assert_array_equal(ours[name], values, err_msg=name)
    assert runs.read_remarks(one) == runs.read_remarks(other)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three runs that were trained together, without any disturbance."""
    folder = tmp_path_factory.mktemp("together")
    every = enter(folder)
    assert [len(group) for group in together.groups(every)] == [3]
    assert set(together.train(every).values()) == {None}
    return folder


def test_runs_whose_adjustments_share_a_program_give_what_each_gives_alone(folder, tmp_path):
    for name in CHANGES:
        runner.run(experiment(**CHANGES[name]), tmp_path / name, quiet=True)
        alone, shared = metrics(tmp_path / name), metrics(folder / name)
        assert alone.keys() == shared.keys()
        assert np.isfinite(shared["adjusted_multiplier"][:, 1]).all()
        for metric, values in alone.items():
            # Of the epochs up to the adjustment, and what it came to.
            allowed = {"rtol": 1e-2, "atol": 1e-3 * np.nanmax(np.abs(values)), "err_msg": f"{name} {metric}"}
            np.testing.assert_allclose(shared[metric][:, :2], values[:, :2], **allowed)
        ours, theirs = (
            {file.name for file in (place / name / "checkpoints").iterdir()} for place in (folder, tmp_path)
        )
        assert ours == theirs
    found = [metrics(folder / name)["adjusted_multiplier"][:, 1] for name in CHANGES]
    assert len({tuple(one.ravel()) for one in found}) == 3


def test_side_by_side_as_on_an_accelerator_adjustments_give_what_they_give_in_turns(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(adjusting.loop, "suits_side_by_side", lambda: True)
    assert set(together.train(enter(tmp_path)).values()) == {None}
    for name in CHANGES:
        there, here = (metrics(place / name)["adjusted_multiplier"][:, 1] for place in (folder, tmp_path))
        np.testing.assert_allclose(here, there, rtol=0.02)


@pytest.mark.parametrize(
    ("looks", "where"), [(1, "in the adjustment after 2 epochs, at 100 of 300"), (3, "after 2 of 5 epochs")]
)
def test_an_adjustment_that_is_interrupted_in_a_group_goes_on(folder, tmp_path, looks, where):
    Countdown.left = looks
    ends = together.train(enter(tmp_path))
    assert all(isinstance(end, Interrupted) for end in ends.values())
    assert where in str(ends[tmp_path / "slow"])
    kept = [checkpoint.learner_path(tmp_path / name, 2).exists() for name in CHANGES]
    assert kept == [looks == 1] * 3
    Countdown.left = 10**9
    assert set(together.train(enter(tmp_path)).values()) == {None}
    for name in CHANGES:
        assert_same(tmp_path / name, folder / name)
        assert not checkpoint.learner_path(tmp_path / name, 2).exists()


def test_learners_that_were_saved_at_different_times_catch_up(folder, tmp_path, monkeypatch):
    """As after a crash between two files: one is further than another, and one was not kept at all."""
    for looks, name in ((1, "slow"), (2, "quick"), (1, "tight")):
        Countdown.left = looks
        together.train(enter(tmp_path, {name: CHANGES[name], f"beside {name}": {"limits": 0.3}}))
    checkpoint.learner_path(tmp_path / "tight", 2).unlink()
    Countdown.left, worked = 10**9, []
    work = adjusting.loop.Adjuster.work

    def counted(self, state, learner, more, numbers):
        worked.append(more.tolist())
        return work(self, state, learner, more, numbers)

    monkeypatch.setattr(adjusting.loop.Adjuster, "work", counted)
    assert set(together.train(enter(tmp_path)).values()) == {None}
    assert worked == [[0, 0, 0, 0, 100, 100], [100, 100, 0, 0, 100, 100], [100] * 6]
    for name in CHANGES:
        there, here = (metrics(place / name)["adjusted_multiplier"][:, 1] for place in (folder, tmp_path))
        np.testing.assert_allclose(here, there, rtol=1e-3)


def test_a_run_whose_estimate_is_refused_goes_on_beside_one_whose_is_taken(tmp_path, monkeypatch):
    changes = {"refused": {"limits": 0.1}, "taken": {"limits": 0.2}}

    def doubts(training, state, learner, of):
        return [["nothing is known"] if training.problem.limits == (0.1,) else []] * 2

    monkeypatch.setattr(adjusting, "doubts", doubts)
    every = enter(tmp_path, changes, check=True, adjust="dual")
    assert len(together.groups(every)) == 1
    assert set(together.train(every).values()) == {None}
    refused, taken = (metrics(tmp_path / name) for name in changes)
    assert "adjusted_multiplier" not in refused
    assert np.isfinite(taken["adjusted_multiplier"][:, 1]).all()
    said = [one["text"] for one in runs.read_remarks(tmp_path / "refused") if "no jump" in one["text"]]
    # Tried again when the data have doubled; the other run, which waits for nothing, stays as it is.
    assert said == [
        f"seed {s}: no jump after {epoch} epochs, since nothing is known." for epoch in (2, 4) for s in (3, 4)
    ]
    assert not [one for one in runs.read_remarks(tmp_path / "taken") if "no jump" in one["text"]]
    assert np.isnan(taken["adjusted_multiplier"][:, 2:]).all()
    for name, own in changes.items():
        runner.run(experiment(**own, check=True, adjust="dual"), tmp_path / "alone" / name, quiet=True)
        alone, shared = metrics(tmp_path / "alone" / name), metrics(tmp_path / name)
        assert alone.keys() == shared.keys()
        np.testing.assert_allclose(shared["multiplier"], alone["multiplier"], rtol=0.05, atol=1e-3)


def test_a_run_whose_learner_fails_takes_no_other_along(folder, tmp_path, monkeypatch):
    shown = adjusting.loop.Adjuster.shown

    def broken(self, learner):
        found = np.array(shown(self, learner))
        found[2] = np.nan
        return found

    monkeypatch.setattr(adjusting.loop.Adjuster, "shown", broken)
    ends = together.train(enter(tmp_path))
    assert [type(ends[tmp_path / name]) for name in CHANGES] == [type(None), NumericalFailure, type(None)]
    told = runs.read_description(tmp_path / "quick")
    assert told["status"] == "failed"
    assert "epoch 2, seed 3: the off-policy multiplier is not finite" in told["error"]
    for name in ("slow", "tight"):
        assert_same(tmp_path / name, folder / name)


LATER = {"early": {"k_adj": 1}, "late": {"k_adj": 2}, "later": {"k_adj": 2, "dual_step": 0.5}}


@pytest.fixture(scope="module")
def timed(tmp_path_factory):
    """Runs that adjust after different epochs, each of which was trained alone."""
    folder = tmp_path_factory.mktemp("timed")
    for name, own in LATER.items():
        runner.run(experiment(**own), folder / name, quiet=True)
    return folder


@pytest.mark.parametrize("looks", [10**9, 3, 2, 0])
def test_learners_of_runs_that_adjust_after_different_epochs_work_side_by_side(timed, tmp_path, monkeypatch, looks):
    """Without a signal, or with one in the adjustment, while some wait for others, before some have begun."""
    work, worked = adjusting.loop.Adjuster.work, []

    def counted(self, state, learner, more, numbers):
        worked.append(more.tolist())
        return work(self, state, learner, more, numbers)

    monkeypatch.setattr(adjusting.loop.Adjuster, "work", counted)
    Countdown.left = looks
    ends = together.train(enter(tmp_path, LATER))
    if looks < 10**9:
        assert all(isinstance(end, Interrupted) for end in ends.values())
        kept = [checkpoint.learner_path(tmp_path / name, own["k_adj"] + 1).exists() for name, own in LATER.items()]
        assert kept == [looks == 3] * 3
        Countdown.left = 10**9
        ends = together.train(enter(tmp_path, LATER))
    assert set(ends.values()) == {None}
    assert worked == [[100] * 6] * 3
    for name, own in LATER.items():
        alone, shared = metrics(timed / name), metrics(tmp_path / name)
        assert alone.keys() == shared.keys()
        found, there = (one["adjusted_multiplier"][:, own["k_adj"]] for one in (shared, alone))
        np.testing.assert_allclose(found, there, rtol=0.02)
        np.testing.assert_array_equal(
            np.isfinite(shared["adjusted_multiplier"]), np.isfinite(alone["adjusted_multiplier"])
        )


def test_runs_that_adjust_after_different_epochs_have_programs_of_their_own(tmp_path):
    given = LATER | {
        "tighter": {"k_adj": 2, "limits": 0.1},
        "auto": {"k_adj": "auto"},
        "other": {"k_adj": 3, "limits": 0.3},
    }
    every = enter(tmp_path, given)
    found = together.bundles(together.groups(every))
    names = [[[one.record.folder.name for one in group] for group in bundle] for bundle in found]
    # The last one differs from the first in a number that is no argument of its program, but of the second's.
    assert names == [[["early"], ["late", "later", "tighter"], ["other"]], [["auto"]]]
    assert not together.can_be_arguments(every[0].training, ["config.off_policy.learner.averaged"])
    for one in every:
        one.record.release()
