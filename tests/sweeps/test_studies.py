"""The paper's studies with their jobs in several processes: the same folders and numbers, whatever dies."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from functools import partial

import numpy as np
import pytest

from apdo.experiment import reproduce, runner
from apdo.report import runs
from apdo.sweeps import local, studies

SHORT = dataclasses.replace(
    reproduce.SCALES["small"],
    batch=1500,
    epochs=2,
    fixed_epochs=2,
    grid=(4.0, 10.0),
    options={"pdo": {"critic.passes": 1}},
)


def plan(out):
    """Two arms of the reproduction, made small."""
    return reproduce.Plan(SHORT, 1, out, reproduce.studies(SHORT)["lambda-star"].arms)


def fill(wanted, at_once=2):
    """What failed, and what was said."""
    said = []
    elsewhere = partial(studies._in_processes, wanted, "apdo reproduce lambda-star", at_once)
    train = partial(runner.train, quiet=True)
    return reproduce.fill(wanted, train, said.append, False, at_once, elsewhere if at_once > 1 else None), said


def found(wanted):
    every = [reproduce.finished_run(wanted.out, arm, 1) for arm in wanted.arms]
    return [run for run in every if run is not None]


def test_two_jobs_at_once_give_the_folders_and_numbers_of_one_after_the_other(tmp_path, capsys):
    one, two = plan(tmp_path / "one"), plan(tmp_path / "two")
    assert fill(one, 1)[0] == fill(two, 2)[0] == []
    shown = capsys.readouterr().out
    assert "fixed-4/seeds-000-000: finished, epoch 2/2" in shown
    ours, theirs = (sorted(p.relative_to(w.out) for p in w.out.rglob("*") if "logs" not in p.parts) for w in (two, one))
    assert ours == theirs
    for a, b in zip(found(one), found(two), strict=True):
        for name in a.metrics.keys() - {"seconds"}:
            np.testing.assert_array_equal(a.metrics[name], b.metrics[name], err_msg=name)


def test_a_process_that_is_killed_is_told_of_and_the_call_again_finishes(tmp_path, monkeypatch):
    wanted, give, killed = plan(tmp_path / "out"), local._Worker.give, []

    def fatal(self, job, tries):
        give(self, job, tries)
        if not killed:
            killed.append(job[0].folder)
            self.process.kill()

    with monkeypatch.context() as patch:
        patch.setattr(local, "_TRIES", 1)
        patch.setattr(local._Worker, "give", fatal)
        failures, _ = fill(wanted)
    assert len(failures) == 1
    assert "/seeds-000-000: the process that ran it ended with signal 9; its messages are in" in failures[0]
    assert len(found(wanted)) == 1
    assert fill(wanted)[0] == []
    assert len(found(wanted)) == 2


def test_a_signal_stops_all_jobs_in_order_and_the_call_again_goes_on(tmp_path):
    code = (
        "import dataclasses, pathlib, sys; from apdo.experiment import reproduce; from apdo.sweeps import studies; "
        "s = dataclasses.replace(reproduce.SCALES['small'], batch=1500, fixed_epochs=100_000, grid=(4.0, 10.0)); "
        "w = reproduce.Plan(s, 1, pathlib.Path(sys.argv[1]), reproduce.studies(s)['lambda-star'].arms); "
        "studies.run(w, 'apdo reproduce', False, 2)"
    )
    out = tmp_path / "out"
    with subprocess.Popen([sys.executable, "-c", code, str(out)], stderr=subprocess.PIPE, text=True) as process:
        folders = [out / "runs" / f"fixed-{value}" / "seeds-000-000" for value in (4, 10)]
        until = time.monotonic() + 120
        while not all((f / "metrics.jsonl").exists() and (f / "metrics.jsonl").stat().st_size for f in folders):
            assert time.monotonic() < until
            assert process.poll() is None
            time.sleep(0.1)
        os.kill(process.pid, signal.SIGTERM)
        _, err = process.communicate(timeout=120)
    assert "stopped with 0 of 2 runs done, and the others saved. Go on with: apdo reproduce" in err
    for folder in folders:
        assert runs.read_description(folder)["status"] == "interrupted"
        assert list((folder / "checkpoints").glob("epoch-*.npz"))


@pytest.mark.parametrize(("backend", "devices", "jobs"), [("cpu", 8, 1), ("gpu", 1, 4), ("gpu", 8, 8)])
def test_as_many_jobs_as_suit_the_machine(monkeypatch, backend, devices, jobs):
    import jax

    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    monkeypatch.setattr(jax, "device_count", lambda: devices)
    assert studies._fitting() == jobs


def test_processes_that_share_an_accelerator_take_no_memory_before_they_need_it(tmp_path, monkeypatch):
    given, hello = [], {"backend": "gpu", "devices": 2}

    class Worker:
        answers = job = None

        def __init__(self, number, logs, device, settings):
            self.device = device
            given.append((device, dict(settings)))

        def hello(self):
            return hello

        def give(self, job, tries):
            self.job = job

        def end(self):
            pass

    monkeypatch.setattr(local, "_Worker", Worker)
    monkeypatch.setattr(local.selectors, "DefaultSelector", Selector)
    pool = local.Pool(tmp_path, 3)
    for i in range(3):
        pool.submit([local.Task(str(i), {})])
    assert given == [(None, local.SHARING), *((device, local.SHARING) for device in (0, 1, 0))]
    given.clear()
    hello["devices"] = 4
    pool = local.Pool(tmp_path, 2)
    pool.submit([local.Task("0", {})])
    pool.submit([local.Task("1", {})])
    assert given == [(None, local.SHARING), (0, {}), (1, {})]


class Selector:
    """Nothing to be selected from."""

    def register(self, *given):
        pass

    def unregister(self, *given):
        pass
