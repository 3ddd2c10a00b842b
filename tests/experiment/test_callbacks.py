"""Functions that a run calls after each epoch, and the mirrors among them."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

import apdo
from apdo.errors import InvalidInput
from apdo.experiment import callbacks, mirrors, opening, settings
from apdo.report import runs
from command_line import call

TINY = {"batch": 200, "critic__passes": 1, "policy__hidden": (4,), "critic__hidden": (4,)}


def told(cost=(), returned=(), limits=(0.2,)):
    """A run with these costs and returns so far, [E, S, M] and [E, S]."""
    history = {"cost": np.asarray(cost), "return": np.asarray(returned)}
    return callbacks.Epoch(
        epoch=max(len(cost), len(returned)),
        epochs=10,
        seeds=[0, 1],
        metrics={},
        history=history,
        limits=limits,
        batch=200,
        folder=Path("run"),
        title="",
        training=opening.training_of(settings.make_experiment("trpo", "two-state")),
        state=None,
    )


def test_a_run_within_its_limits_is_stopped_when_every_seed_was_for_long_enough():
    look = callbacks.stop_within_limits(2)
    good, bad = [[0.1], [0.2]], [[0.1], [0.21]]
    assert look(told([good])) is None
    assert look(told([good, bad])) is None
    assert look(told([bad, good])) is None
    assert look(told([bad, good, good])) == "within the limits for 2 epochs"
    with pytest.raises(InvalidInput, match="at least 1"):
        callbacks.stop_within_limits(0)


def test_a_run_without_progress_is_stopped_when_the_mean_return_was_no_better_for_long_enough():
    look = callbacks.stop_without_progress(2, by=0.5)
    assert look(told(returned=[[1.0, 1.0], [1.0, 1.0]])) is None
    assert look(told(returned=[[1.0, 1.0], [1.0, 1.0], [1.0, 1.8]])) == "no better return for 2 epochs"
    assert look(told(returned=[[1.0, 1.0], [1.0, 1.0], [1.0, 2.2]])) is None


def test_a_callback_hears_of_every_epoch_stops_the_run_and_the_run_goes_on_as_if_never_stopped(tmp_path):
    heard, played = [], []

    def stop(epoch):
        heard.append((epoch.epoch, epoch.history["return"].shape, len(epoch.policies())))
        return "that is enough" if epoch.epoch == 3 else None

    evaluate = callbacks.evaluate_every(2, lambda epoch, found: played.append((epoch.epoch, len(found))), episodes=5)
    options = TINY | {"epochs": 5, "seeds": 2, "quiet": True}
    result = apdo.train("trpo", "two-state", out=tmp_path / "run", callbacks=[stop, evaluate], **options)
    assert heard == [(epoch, (epoch, 2), 2) for epoch in (1, 2, 3)]
    assert played == [(2, 2)]
    assert result.metrics["return"].shape == (2, 3)
    description = runs.read_description(tmp_path / "run")
    assert (description["status"], description["stopped"]) == ("stopped", "that is enough")
    apdo.resume(tmp_path / "run", quiet=True)
    whole = apdo.train("trpo", "two-state", out=tmp_path / "whole", **options)
    assert "stopped" not in runs.read_description(tmp_path / "run")
    again = runs.read(tmp_path / "run")
    for name, values in whole.metrics.items():
        np.testing.assert_array_equal(again.metrics[name], values, err_msg=name)


def test_metrics_become_single_numbers_by_name():
    found = mirrors.scalars({"return": np.asarray([1.0, 3.0]), "cost": np.asarray([[0.0, 4.0], [2.0, 6.0]])}, [4, 5])
    assert found["return"] == 2.0
    assert (found["cost/0"], found["cost/1"]) == (1.0, 5.0)
    assert (found["return/seed-4"], found["cost/1/seed-5"]) == (1.0, 6.0)
    assert mirrors.scalars({"cost": np.asarray([[0.5]])}, [0]) == {"cost": 0.5}


@pytest.mark.parametrize(("option", "package"), [("--tensorboard", "tensorboardX"), ("--wandb=mine", "wandb")])
def test_an_extra_that_is_missing_says_how_to_install_itself(capsys, monkeypatch, option, package, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, package, None)
    for command in (["train"], ["sweep"]):
        status, _, err = call(capsys, *command, "trpo", "two-state", "--out", str(tmp_path / "run"), option)
        extra = {"tensorboardX": "tensorboard"}.get(package, package)
        assert (status, err) == (2, f"apdo: {package} is not installed; get it with: pip install 'apdo[{extra}]'\n")
    assert not (tmp_path / "run").exists()


class Fake:
    """Stands for a package whose writer takes notes."""

    def __init__(self):
        self.noted, self.closed = [], False

    def SummaryWriter(self, folder, **options):
        self.folder = folder
        return self

    def add_scalar(self, name, value, step):
        self.noted.append((name, value, step))

    def close(self):
        self.closed = True


def test_tensorboard_is_told_of_every_epoch_as_the_records_are(monkeypatch, tmp_path):
    fake = Fake()
    monkeypatch.setattr(mirrors, "_package", lambda name, extra: fake)
    watch = mirrors.Watch(tensorboard=True)
    result = apdo.train(
        "trpo", "two-state", out=tmp_path / "run", callbacks=watch.callbacks(), epochs=5, quiet=True, **TINY
    )
    assert fake.closed
    assert fake.folder == str(tmp_path / "run" / "tensorboard")
    noted = [(step, value) for name, value, step in fake.noted if name == "return"]
    assert noted == [(i + 1, float(value)) for i, value in enumerate(result.metrics["return"][0])]


@pytest.mark.skipif(importlib.util.find_spec("tensorboardX") is None, reason="tensorboardX is not installed")
def test_tensorboard_files_hold_the_metrics(tmp_path):
    apdo.train(
        "trpo", "two-state", out=tmp_path / "run", callbacks=[mirrors.TensorBoard()], epochs=5, quiet=True, **TINY
    )
    [file] = (tmp_path / "run" / "tensorboard").glob("events*")
    content = file.read_bytes()
    assert b"return" in content
    assert b"cost" in content


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="wandb is not installed")
def test_weights_and_biases_logs_offline(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    watch = [mirrors.WeightsAndBiases("mine")]
    apdo.train("trpo", "two-state", out=tmp_path / "run", callbacks=watch, epochs=5, quiet=True, **TINY)
    [folder] = (tmp_path / "run" / "wandb").glob("offline-run-*")
    [log] = folder.glob("*.wandb")
    assert b"return" in log.read_bytes()
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "finished"
