"""Runs that differ in numbers only share a program, and come out as if each had run alone."""

import dataclasses
import shutil

import numpy as np
import pytest

import apdo
from apdo import arguments, loop
from apdo.errors import Interrupted, NumericalFailure, StorageFailure
from apdo.experiment import checkpoint, history, opening, runner, settings, together
from apdo.report import runs

TINY = {"epochs": 3, "batch": 200, "critic.passes": 1, "policy.hidden": (4,), "critic.hidden": (4,), "seeds": 2}
CHANGES = {
    "tight": {"limits": 0.1},
    "loose": {"limits": 0.4, "trace": 0.8, "primal.radius": 0.05},
    "eager": {"limits": 0.2, "initial_multiplier": 2.0, "seed": 7},
}


def experiment(**changes):
    return settings.make_experiment("pdo", "two-state", TINY | changes)


def enter(folder, names=tuple(CHANGES)):
    return [opened(folder / name, **CHANGES[name]) for name in names]


def opened(folder, **changes):
    found = opening.enter(experiment(**changes), folder, lambda _: None)
    assert isinstance(found, opening.Opened)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three runs that were trained together."""
    folder = tmp_path_factory.mktemp("together")
    ends = together.train(enter(folder))
    assert set(ends.values()) == {None}
    return folder


def metrics(folder):
    found = runs.read(folder)
    return {name: values for name, values in found.metrics.items() if name != "seconds"}


def assert_same(one, other, near=0.0):
    assert metrics(one).keys() == metrics(other).keys()
    for name, values in metrics(one).items():
        allowed = near * np.abs(values).max()
        np.testing.assert_allclose(values, metrics(other)[name], rtol=near, atol=allowed, err_msg=name)


def test_a_configuration_is_its_structure_and_its_numbers():
    one, other = (opening.training_of(experiment(**CHANGES[name])) for name in ("tight", "loose"))
    assert arguments.structure(one) == arguments.structure(other)
    found = arguments.numbers(one)
    assert found["problem.limits.0"] == 0.1
    assert found["config.trace"] == one.config.trace
    assert arguments.put(one, arguments.numbers(other)) == other
    assert arguments.put(one, {}) is one
    assert arguments.put(one, {"config.trace": 0.5}).problem is one.problem
    longer = dataclasses.replace(one, steps=one.steps + 1)
    assert arguments.structure(longer) != arguments.structure(one)


def test_numbers_that_python_looks_at_stay_constants_and_others_become_arguments():
    training = opening.training_of(experiment())
    free = ["problem.limits.0", "config.trace", "config.primal.radius", "config.initial_multiplier", "config.dual_step"]
    assert together.can_be_arguments(training, free)
    assert together.can_be_arguments(training, [])
    assert not together.can_be_arguments(training, ["problem.cost_discount"])
    assert not together.can_be_arguments(training, [*free, "problem.cost_discount"])


def test_runs_that_differ_in_more_than_numbers_are_in_programs_of_their_own(tmp_path):
    changes = [{"limits": 0.1}, {"limits": 0.2}, {"limits": 0.2, "batch": 400}, {"limits": 0.3, "constrain": "total"}]
    every = [opened(tmp_path / str(i), **change) for i, change in enumerate(changes)]
    names = [[one.record.folder.name for one in group] for group in together.groups(every)]
    assert sorted(names) == [["0", "1"], ["2"], ["3"]]
    for one in every:
        one.record.release()


def test_runs_together_give_what_each_gives_alone(folder, tmp_path):
    for name in ("loose", "eager"):
        runner.run(experiment(**CHANGES[name]), tmp_path / name, quiet=True)
        alone, shared = metrics(tmp_path / name), metrics(folder / name)
        assert alone.keys() == shared.keys()
        for metric, values in alone.items():
            size = np.abs(values).max()
            np.testing.assert_allclose(
                shared[metric][:, :2], values[:, :2], rtol=1e-3, atol=1e-3 * size, err_msg=metric
            )
        there, here = (runs.read_description(path / name) for path in (folder, tmp_path))
        assert there["config"] == here["config"]
        assert there["status"] == "finished"
    limits = {tuple(runs.read_description(folder / name)["problem"]["limits"]) for name in CHANGES}
    assert limits == {(0.1,), (0.4,), (0.2,)}


def test_a_dual_step_of_zero_holds_the_multipliers_beside_a_run_whose_step_is_not(tmp_path):
    changes = {"held": {"dual_step": 0.0, "initial_multiplier": 2.0}, "moving": {"dual_step": 0.5, "limits": 0.1}}
    every = [opened(tmp_path / name, **change) for name, change in changes.items()]
    assert len(together.groups(every)) == 1
    assert set(together.train(every).values()) == {None}
    assert set(metrics(tmp_path / "held")["multiplier"].ravel()) == {2.0}
    assert len(set(metrics(tmp_path / "moving")["multiplier"].ravel())) > 2


def test_side_by_side_as_on_an_accelerator_runs_give_what_they_give_in_turns(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "suits_side_by_side", lambda: True)
    assert set(together.train(enter(tmp_path)).values()) == {None}
    for name in CHANGES:
        vmapped = metrics(tmp_path / name)
        for metric, values in metrics(folder / name).items():
            allowed = {"rtol": 1e-2, "atol": 1e-2 * np.abs(values).max(), "err_msg": f"{name} {metric}"}
            np.testing.assert_allclose(vmapped[metric][:, :2], values[:, :2], **allowed)


def test_a_run_of_a_group_is_a_run_like_any_other(folder):
    result = apdo.resume(folder / "tight", quiet=True)
    assert result.metrics["return"].shape == (2, 3)
    assert result.policy(np.zeros(runs.read_description(folder / "tight")["problem"]["observation_size"])) is not None


def test_an_interrupted_group_goes_on_with_the_same_bits(folder, tmp_path, monkeypatch):
    class Asked(together.Stop):
        @property
        def asked(self):
            return True

    with monkeypatch.context() as patch:
        patch.setattr(together, "Stop", Asked)
        ends = together.train(enter(tmp_path))
    assert all(isinstance(end, Interrupted) for end in ends.values())
    assert {runs.read_description(tmp_path / name)["status"] for name in CHANGES} == {"interrupted"}
    assert {len(runs.read(tmp_path / name).epochs) for name in CHANGES} == {1}
    assert set(together.train(enter(tmp_path)).values()) == {None}
    for name in CHANGES:
        assert_same(tmp_path / name, folder / name)


def test_a_full_disk_ends_all_runs_of_a_group_which_go_on_when_there_is_room(folder, tmp_path, monkeypatch):
    save = checkpoint.save

    def full(path, state, epoch):
        if "loose" in path.parts:
            raise StorageFailure(f"{path} could not be written: no space left on device.")
        save(path, state, epoch)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", full)
        ends = together.train(enter(tmp_path))
    assert all(isinstance(end, StorageFailure) for end in ends.values())
    assert "no space left" in str(ends[tmp_path / "tight"])
    assert {runs.read_description(tmp_path / name)["status"] for name in CHANGES} == {"interrupted"}
    # The others were saved in the meantime, and are ahead: they go on in another program.
    every = enter(tmp_path)
    assert sorted(len(group) for group in together.groups(every)) == [1, 2]
    assert set(together.train(every).values()) == {None}
    assert_same(tmp_path / "loose", folder / "loose", near=1e-4)


def test_a_run_that_fails_is_left_behind_and_changes_nothing_for_the_others(folder, tmp_path, monkeypatch):
    real = history.chunk_results

    def broken(chunk):
        """Two epochs later, something of the second run is not finite."""
        found = real(chunk)
        if int(chunk.state.epoch) == 2:
            found.finite["measured cost"] = np.asarray([True, True, False, False, True, True])
        return found

    monkeypatch.setattr(history, "chunk_results", lambda chunk: broken(chunk))
    ends = together.train(enter(tmp_path))
    assert [type(ends[tmp_path / name]) for name in CHANGES] == [type(None), NumericalFailure, type(None)]
    told = runs.read_description(tmp_path / "loose")
    assert told["status"] == "failed"
    assert "seed 0, 1: the measured cost is not finite" in told["error"]
    for name in ("tight", "eager"):
        assert_same(tmp_path / name, folder / name)
    shutil.rmtree(tmp_path)
