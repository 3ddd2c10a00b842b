"""Runs that are interrupted in every way, and go on as if they had not been."""

import dataclasses
import errno
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import apdo
from apdo import cli, files, loop
from apdo.core import critics, dual, trust_region
from apdo.errors import Interrupted, InvalidInput, StorageFailure
from apdo.experiment import checkpoint, opening, records, remarks, reproduce, rerun, resume_point, runner, settings
from apdo.report import runs
from countdown import Countdown

SMALL = {"policy.hidden": (8,), "critic.hidden": (8,), "critic.passes": 1, "critic.minibatches": 2}
LEARNER = {"critic_hidden": (8,), "actor_hidden": (8,), "minibatch": 8}
OPTIONS = {
    "pdo": SMALL | {"safety": 0.9},
    "pd-ddpg": {f"learner.{k}": v for k, v in LEARNER.items()} | {"replay_capacity": 200, "updates": 1.3},
    "sac-lag": {f"learner.{k}": v for k, v in LEARNER.items()}
    | {"replay_capacity": 200, "warm_up": 60, "updates": 1.3},
    "apdo": SMALL
    | {f"off_policy.learner.{k}": v for k, v in LEARNER.items()}
    | {"k_adj": 2, "off_policy.iterations": 1050, "check": False},
}
EPOCHS = 6


class Killed(BaseException):
    """Stands for a process that ends there and then: nobody catches it."""


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Programs are compiled once for all tests: a training's is the same however often it is begun."""
    monkeypatch.setattr(loop, "make_advance", _make_advance)
    monkeypatch.setattr(loop, "make_adjuster", _adjuster)
    monkeypatch.setattr(runner, "Stop", Countdown)
    monkeypatch.setattr(runner, "REPORT_EVERY", 1e-9)  # one epoch in a chunk, one hundred iterations in a piece
    monkeypatch.setattr(Countdown, "left", 10**9)
    monkeypatch.setattr(remarks, "IN_A_ROW", 2)  # so that such short runs remark upon something


_make_advance, _adjuster = functools.cache(loop.make_advance), functools.cache(loop.make_adjuster)


def experiment(algorithm, **changes):
    base = {"epochs": EPOCHS, "batch": 60, "seeds": 2, "seed": 3, "checkpoint_every": 2, "keep": 10}
    return settings.make_experiment(algorithm, "point-gather", base | OPTIONS[algorithm] | changes)


@functools.cache
def undisturbed(algorithm, folder):
    return runner.run(experiment(algorithm), folder / algorithm, quiet=True)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("undisturbed")


@pytest.fixture
def whole(place):
    """The run of an algorithm that nothing disturbs."""
    return lambda algorithm: undisturbed(algorithm, place)


def rows(folder):
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name not in ("seconds", "crc32")} for row in found]


def assert_same(result, reference):
    """Every metric of every epoch, in memory and in the records, and the last state: the same bits."""
    assert rows(result.path) == rows(reference.path)
    assert result.metrics.keys() == reference.metrics.keys()
    for name, values in reference.metrics.items():
        assert result.metrics[name].dtype == values.dtype
        np.testing.assert_array_equal(result.metrics[name], values, err_msg=name)
    with np.load(checkpoint.latest(result.path)) as ours, np.load(checkpoint.latest(reference.path)) as theirs:
        assert ours.files == theirs.files
        for name in ours.files:
            np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
    assert runs.read_remarks(result.path) == runs.read_remarks(reference.path) != []
    ours, theirs = runs.read_description(result.path), runs.read_description(reference.path)
    assert ours["status"] == "finished"
    assert ours.get("best") == theirs.get("best")


@pytest.fixture
def halfway(tmp_path):
    """A run stopped after four epochs, by a request."""

    def make(algorithm="pdo", looks=3):
        Countdown.left = looks
        with pytest.raises(Interrupted, match="Go on with: apdo resume"):
            runner.run(experiment(algorithm), tmp_path / "run", quiet=True)
        Countdown.left = 10**9
        return tmp_path / "run"

    return make


@pytest.mark.parametrize("algorithm", OPTIONS)
def test_a_run_asked_to_stop_saves_itself_and_goes_on_to_the_same_bits(algorithm, halfway, whole):
    folder = halfway(algorithm, looks=2)
    description = runs.read_description(folder)
    assert description["status"] == "interrupted"
    assert 0 < len(rows(folder)) < 2 * EPOCHS
    result = runner.resume(folder, quiet=True)
    assert_same(result, whole(algorithm))
    note = runs.read_description(folder)["resumed"][0]
    assert note["epoch"] == 3 - (algorithm == "apdo")
    assert note["commit"] == records.commit()


def test_an_adjustment_goes_on_from_its_learner_and_not_from_its_start(tmp_path, whole, monkeypatch):
    Countdown.left = 5
    with pytest.raises(Interrupted, match=r"stopped in the adjustment after 3 epochs, at [0-9,]+ of 1,050 iterations"):
        runner.run(experiment("apdo"), tmp_path / "run", quiet=True)
    assert [row["epoch"] for row in rows(tmp_path / "run")] == [0, 0, 1, 1]
    assert checkpoint.learner_path(tmp_path / "run", 3).exists()
    Countdown.left = 10**9
    worked = []
    work = loop.make_adjuster(opening.training_of(experiment("apdo"))).work
    adjuster = loop.make_adjuster(opening.training_of(experiment("apdo")))
    monkeypatch.setattr(
        adjuster, "work", lambda s, learner, more, _: (worked.append(more.max()), work(s, learner, more))[1]
    )
    monkeypatch.setattr(runner, "REPORT_EVERY", 10.0)
    result = runner.resume(tmp_path / "run", quiet=True)
    assert 0 < sum(worked) < 1050
    assert not checkpoint.learner_path(tmp_path / "run", 3).exists()
    assert_same(result, whole("apdo"))


def test_a_damaged_learner_is_begun_again(tmp_path, whole, monkeypatch):
    Countdown.left = 5
    with pytest.raises(Interrupted):
        runner.run(experiment("apdo"), tmp_path / "run", quiet=True)
    Countdown.left = 10**9
    learner = checkpoint.learner_path(tmp_path / "run", 3)
    learner.write_bytes(learner.read_bytes()[:-1])
    assert_same(runner.resume(tmp_path / "run", quiet=True), whole("apdo"))


@pytest.mark.parametrize("where", ["append", "checkpoint", "rename", "prune"])
@pytest.mark.parametrize("call", [2, 3])
def test_a_run_killed_anywhere_goes_on_to_the_same_bits(tmp_path, whole, monkeypatch, where, call):
    owner, name = {
        "append": (records.Records, "append"),
        "checkpoint": (checkpoint, "save"),
        "rename": (files, "_sync_folder"),
        "prune": (checkpoint, "prune"),
    }[where]
    real, calls = getattr(owner, name), []

    def deadly(*arguments):
        calls.append(1)
        if len(calls) == call:
            raise Killed
        return real(*arguments)

    monkeypatch.setattr(owner, name, deadly)
    with pytest.raises(Killed):
        runner.run(experiment("pdo"), tmp_path / "run", quiet=True)
    monkeypatch.setattr(owner, name, real)
    assert runs.read_description(tmp_path / "run")["status"] == "running"
    assert_same(runner.resume(tmp_path / "run", quiet=True), whole("pdo"))


def test_a_torn_last_line_is_repaired_and_no_epoch_appears_twice(halfway, whole):
    folder = halfway()
    lines = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_bytes(b"".join(lines) + lines[0][:40])
    assert_same(runner.resume(folder, quiet=True), whole("pdo"))


def test_a_checkpoint_older_than_the_metrics_computes_the_rest_again(halfway, whole):
    folder = halfway()
    checkpoint.latest(folder).unlink()
    assert_same(runner.resume(folder, quiet=True), whole("pdo"))


@pytest.mark.parametrize("spoilt", ["newest", "all"])
def test_a_damaged_checkpoint_is_noticed_and_the_one_before_it_used(halfway, whole, capsys, spoilt):
    folder = halfway()
    there = checkpoint.found(folder)
    for _, path in there[: 1 if spoilt == "newest" else None]:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    result = runner.resume(folder)
    said = capsys.readouterr().err
    assert f"{there[0][1]} is damaged: its checksum does not match. The checkpoint before it is used." in said
    assert ("begins again from its first epoch" in said) == (spoilt == "all")
    assert_same(result, whole("pdo"))


@pytest.mark.parametrize("line", [0, 3, 5])
def test_a_damaged_line_of_the_metrics_is_noticed_and_computed_again(halfway, whole, capsys, line):
    folder = halfway()
    lines = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    digit = lines[line].index(b'"return": ') + 11
    lines[line] = lines[line][:digit] + bytes([lines[line][digit] ^ 1]) + lines[line][digit + 1 :]
    (folder / "metrics.jsonl").write_bytes(b"".join(lines))
    with pytest.raises(InvalidInput, match=f"line {line + 1}: damaged or changed|line {line + 1}: not valid"):
        runs.read(folder)
    result = runner.resume(folder)
    assert f"whole for the first {line // 2} epochs" in capsys.readouterr().err
    assert_same(result, whole("pdo"))


def test_a_finished_run_is_only_read_unless_it_is_damaged(tmp_path, whole, capsys):
    folder = tmp_path / "run"
    shutil.copytree(whole("pdo").path, folder)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.name != "lock"}
    result = runner.resume(folder)
    assert "finished already, and whole" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.name != "lock"} == before
    assert_same(result, whole("pdo"))
    checkpoint.latest(folder).write_bytes(b"")
    with pytest.raises(InvalidInput, match="not a whole checkpoint"):
        apdo.load(folder)
    assert_same(runner.resume(folder, quiet=True), whole("pdo"))
    apdo.load(folder)


def test_a_finished_run_that_lost_rows_is_refused_by_reports_and_restored(tmp_path, whole):
    folder = tmp_path / "run"
    shutil.copytree(whole("pdo").path, folder)
    lines = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_bytes(b"".join(lines[:-2]))
    with pytest.raises(InvalidInput, match="has 5 whole epochs where 6 were written"):
        runs.read(folder)
    assert_same(runner.resume(folder, quiet=True), whole("pdo"))
    runs.read(folder)


def test_a_second_process_on_the_folder_is_refused(halfway):
    folder = halfway()
    with records.lock(folder), pytest.raises(InvalidInput, match="another process is at work"):
        runner.resume(folder, quiet=True)
    with records.lock(folder):
        pass  # a lock that was let go can be taken again


def test_train_with_resume_begins_goes_on_and_refuses_another_configuration(tmp_path, whole):
    folder = tmp_path / "run"
    Countdown.left = 3
    with pytest.raises(Interrupted):
        runner.train(experiment("pdo"), folder, quiet=True)
    Countdown.left = 10**9
    with pytest.raises(InvalidInput, match=r"algorithm_config\.dual_step is 0\.2 there and 0\.3 here"):
        runner.train(experiment("pdo", dual_step=0.3), folder, quiet=True)
    with pytest.raises(InvalidInput, match="algorithm is pdo there and apdo here"):
        runner.train(experiment("apdo"), folder, quiet=True)
    # What no result depends on may change.
    assert_same(runner.train(experiment("pdo", keep=1, checkpoint_every=5), folder, quiet=True), whole("pdo"))
    assert [epoch for epoch, _ in checkpoint.found(folder)] == [6]
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "run.json.partial").write_text("{")  # killed at its very start
    assert_same(runner.train(experiment("pdo"), folder, quiet=True), whole("pdo"))


def test_a_run_made_longer_is_the_run_that_was_planned_so_long(tmp_path, whole):
    short = runner.run(experiment("pdo", epochs=3), tmp_path / "run", quiet=True)
    with pytest.raises(InvalidInput, match="cannot be shortened to 2"):
        runner.resume(short.path, quiet=True, epochs=2)
    assert_same(runner.resume(short.path, quiet=True, epochs=EPOCHS), whole("pdo"))
    # It is that run for whoever asks for it by its options, too.
    assert_same(runner.train(experiment("pdo"), short.path, quiet=True), whole("pdo"))


def test_other_versions_go_on_and_say_that_bits_may_differ(halfway, capsys):
    folder = halfway()
    file = folder / "run.json"
    content = json.loads(file.read_text())
    content["versions"]["jax"] = "0.0.1"
    file.write_text(files.seal_page(content))
    runner.resume(folder)
    said = capsys.readouterr().err
    assert "versions.jax is 0.0.1 there" in said
    assert "bits may differ" in said


@pytest.mark.parametrize("full", ["checkpoint", "metrics"])
def test_a_full_disk_stops_the_run_with_one_sentence_and_nothing_lost(tmp_path, whole, monkeypatch, full):
    def no_space(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    folder, sync = tmp_path / "run", os.fsync
    if full == "checkpoint":
        real, calls = checkpoint._savez, []
        monkeypatch.setattr(
            checkpoint, "_savez", lambda file, **a: (calls.append(1), no_space() if len(calls) > 1 else real(file, **a))
        )
    else:
        calls = []
        monkeypatch.setattr(os, "fsync", lambda fd: (calls.append(1), no_space() if len(calls) == 7 else sync(fd))[1])
    with pytest.raises(StorageFailure, match="could not be written: no space left on device; free some space"):
        runner.run(experiment("pdo"), folder, quiet=True)
    monkeypatch.undo()
    assert not list(folder.rglob("*.partial"))
    assert checkpoint.found(folder)[0][0] == 2
    assert_same(runner.resume(folder, quiet=True), whole("pdo"))


def test_rows_that_do_not_fit_leave_no_part_of_themselves(tmp_path, whole, monkeypatch):
    record = records.Records(tmp_path / "run", runs.read_description(whole("pdo").path))
    record.append([{"epoch": 0, "seed": 3}])
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()

    class Full:
        def __init__(self, file):
            self.file = file

        def write(self, data):
            if len(data) < 10:
                raise OSError(errno.ENOSPC, "No space left on device")
            return self.file.write(data[:-5])

        def __getattr__(self, name):
            return getattr(self.file, name)

    monkeypatch.setattr(record, "_metrics", Full(record._metrics))
    with pytest.raises(StorageFailure):
        record.append([{"epoch": 1, "seed": 3}])
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before
    record.release()


def test_only_the_newest_checkpoints_are_kept(tmp_path):
    result = runner.run(experiment("pdo", keep=2, checkpoint_every=1), tmp_path / "run", quiet=True)
    assert [epoch for epoch, _ in checkpoint.found(result.path)] == [6, 5]


def test_time_asks_for_checkpoints_between_those_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "SAVE_EVERY", 0.0)
    monkeypatch.setattr(runner, "SAVE_SHARE", 1e9)
    result = runner.run(experiment("pdo", checkpoint_every=1000), tmp_path / "run", quiet=True)
    assert [epoch for epoch, _ in checkpoint.found(result.path)] == [6, 5, 4, 3, 2, 1]


def test_links_in_a_run_folder_are_not_written_through(halfway, tmp_path):
    folder = halfway()
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (folder / "metrics.jsonl").unlink()
    (folder / "metrics.jsonl").symlink_to(precious)
    with pytest.raises(InvalidInput, match="is a link"):
        runner.resume(folder, quiet=True)
    assert precious.read_text() == "mine"


def test_a_description_at_odds_with_its_configuration_is_refused(halfway):
    folder = halfway()
    content = json.loads((folder / "run.json").read_text())
    content["config"]["settings"]["seeds"] = 3
    (folder / "run.json").write_text(files.seal_page(content))
    with pytest.raises(InvalidInput, match="contradicts itself"):
        runner.resume(folder, quiet=True)


def test_a_run_of_the_first_format_goes_on(halfway, whole):
    """It had no checksums: lines without one are believed, as they were then."""
    folder = halfway()
    content = json.loads((folder / "run.json").read_text())
    del content["crc32"]
    (folder / "run.json").write_text(json.dumps(content | {"format": 1}))
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for row in found:
        del row["crc32"]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found))
    assert_same(runner.resume(folder, quiet=True), whole("pdo"))


def test_a_run_from_before_the_best_was_kept_is_refused_and_left_as_it_is(halfway, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "FORMAT", 2)
        folder = halfway()
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(InvalidInput, match="from before a run kept what its batches say"):
        runner.resume(folder, quiet=True)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_rerun_says_that_it_matched_and_where_it_did_not(whole, tmp_path):
    matched, said = rerun.rerun(whole("pdo").path, tmp_path / "again", quiet=True)
    assert matched
    assert "6 epochs and 2 seeds are the same" in said
    before, after = runs.read(whole("pdo").path), runs.read(tmp_path / "again")
    assert rerun.compare(before, after) == ""
    after.metrics["seconds"][:] = -1.0
    assert rerun.compare(before, after) == ""
    after.metrics["kl"][1, 4] += 1e-9
    assert "kl of epoch 4, seed 4 is" in rerun.compare(before, after)
    assert "1 values differ" in rerun.compare(before, after)


def test_an_interrupted_arm_of_a_study_goes_on_from_its_checkpoint(tmp_path):
    text = {name: str(value).strip("(),") for name, value in SMALL.items()}
    scale = dataclasses.replace(
        reproduce.SCALES["small"], name="tiny", seeds=2, batch=60, epochs=EPOCHS, options={"pdo": text}
    )
    arm = reproduce.Arm("pdo", "PDO", "pdo", {"batch": 60, "epochs": EPOCHS})
    undisturbed = reproduce.Plan(scale, 2, tmp_path / "a", (arm,))
    disturbed = dataclasses.replace(undisturbed, out=tmp_path / "b")
    train = functools.partial(runner.train, quiet=True)
    assert reproduce.fill(undisturbed, train, lambda _: None) == []
    Countdown.left = 2
    with pytest.raises(Interrupted):
        reproduce.fill(disturbed, train, lambda _: None)
    Countdown.left = 10**9
    block = tmp_path / "b" / "runs" / "pdo" / "seeds-000-001"
    reached = len(rows(block)) // 2
    said = []
    assert reproduce.fill(disturbed, train, said.append) == []
    assert any("interrupted; it goes on where it was" in line for line in said)
    assert runs.read_description(block)["resumed"][0]["epoch"] == reached > 0
    assert rows(block) == rows(tmp_path / "a" / "runs" / "pdo" / "seeds-000-001")


def nan_like(tree):
    return jax.tree.map(lambda leaf: leaf * jnp.nan, tree)


FAULTS = {
    "gradient": (trust_region, "conjugate_gradient", nan_like, "policy|kl|surrogate|entropy"),
    "value target": (
        critics,
        "estimate",
        lambda found: dataclasses.replace(found, target=nan_like(found.target)),
        "value_error|critic",
    ),
    "multiplier": (
        dual,
        "update",
        lambda found: dataclasses.replace(found, value=nan_like(found.value)),
        "multiplier",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_nan_is_caught_in_its_epoch_with_the_state_before_it_saved_and_exit_status_3(
    halfway, whole, monkeypatch, capsys, fault
):
    folder = halfway()
    owner, name, spoil, named = FAULTS[fault]
    with monkeypatch.context() as patched:
        real = getattr(owner, name)
        patched.setattr(owner, name, lambda *a, **k: spoil(real(*a, **k)))
        patched.setattr(loop, "make_advance", _make_advance.__wrapped__)  # compiled with the fault in it
        with pytest.raises(SystemExit) as stopped:
            cli.main(["resume", str(folder), "--quiet"])
    assert stopped.value.code == 3
    said = capsys.readouterr().err
    assert re.search(rf"epoch 4, seed 3, 4: the \w+ .*({named}).* is not finite", said)
    assert said.count("\n") == 1
    assert str(checkpoint.path_of(folder, 4)) in said
    assert checkpoint.found(folder)[0][0] == 4
    assert len(rows(folder)) == 8
    assert runs.read_description(folder)["status"] == "failed"
    # Without the fault the run goes on from there as if nothing had been.
    assert_same(runner.resume(folder, quiet=True), whole("pdo"))


STOPPING = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored, where the tests run in the background
from apdo.experiment.stopping import Stop
def say(text):
    sys.stdout.write(text + "\\n")
    sys.stdout.flush()
with Stop(say) as stop:
    say("ready")
    while not stop.asked or "{patience}" == "none":
        time.sleep(0.02)
say("saved")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_asks_and_a_second_interrupt_ends_at_once(number):
    def begin(patience):
        code = [sys.executable, "-c", STOPPING.format(patience=patience)]
        process = subprocess.Popen(code, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert "Ctrl-C again stops at once" in process.stdout.readline()
        return process

    process = begin("some")
    assert process.communicate(timeout=10)[0] == "saved\n"
    assert process.returncode == 0
    process = begin("none")
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=10) == ("", "apdo: interrupted.\n")
    assert process.returncode == 130


def test_the_command_line_saves_on_sigterm_and_says_how_to_go_on(tmp_path, capsys):
    folder = tmp_path / "run"
    words = ["--batch", "60", "--epochs", "1000000", "--policy.hidden", "8", "--critic.hidden", "8", "--quiet"]
    command = [sys.executable, "-m", "apdo.cli", "train", "pdo", "point-gather", "--out", str(folder), *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not (folder / "metrics.jsonl").exists():
        time.sleep(0.05)
    with pytest.raises(SystemExit) as refused:
        cli.main(["resume", str(folder)])
    assert refused.value.code == 2
    assert "another process is at work" in capsys.readouterr().err
    process.send_signal(signal.SIGTERM)
    out, error = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "")
    assert f"all saved. Go on with: apdo resume {folder}" in error
    epoch, _ = checkpoint.found(folder)[0]
    assert len(rows(folder)) == epoch
    assert (
        resume_point.find(
            folder,
            runs.read_description(folder),
            opening.training_of(settings.Experiment.restore(runs.read_description(folder)["config"])),
            lambda _: None,
        ).epoch
        == epoch
    )
