"""Sweeps as a user meets them: what is run, what is left, what goes on."""

import csv
import json
import os
import re
import signal
import sys
import time
from typing import Any

import numpy as np
import pytest

import apdo
from apdo.errors import Interrupted, InvalidInput, StorageFailure
from apdo.experiment import blocks
from apdo.report import following, runs
from apdo.sweeps import cluster, plan, sweep
from apdo.sweeps.local import Pool
from apdo.sweeps.work import Task
from command_line import call
from hands import Hands, write

PLAN = {
    "algorithms": ["pdo", "trpo"],
    "environments": ["two-state"],
    "seeds": 2,
    "options": {"epochs": 3, "batch": 200},
}
TINY = {"epochs": 2, "batch": 200, "critic.passes": 1, "policy.hidden": [4], "critic.hidden": [4]}


@pytest.fixture
def do(tmp_path):
    """Does a sweep in one folder, and returns what came out and the jobs that it took."""

    def do(hands=None, retry=False, **changes):
        hands = hands or Hands()
        wanted = plan.parse(PLAN | {"grid": {"limits": [0.1, 0.2]}} | changes)
        options = sweep.Options(out=tmp_path / "out", retry=retry, quiet=True)
        return sweep.run(wanted, options, lambda: hands), hands.jobs

    return do


def test_every_setting_is_run_once_and_a_second_call_runs_nothing(do, tmp_path):
    found, jobs = do()
    assert jobs == [
        [f"{name}-two-state-limits={limit}/seeds-000-001"] for name in ("pdo", "trpo") for limit in (0.1, 0.2)
    ]
    assert len(found.rows) == 8
    assert repr(found) == f"<Sweep: 8 runs of 4 settings, in {found.path}>"
    shown = found._repr_html_()
    assert shown.count("<tr>") == 9
    assert f"<td>{found.rows[0]['return']:.4g}</td>" in shown
    assert do()[1] == []
    with (tmp_path / "out" / "results.csv").open() as file:
        read = list(csv.DictReader(file))
    assert [(row["algorithm"], float(row["limits"]), int(row["seed"])) for row in read] == [
        (row["algorithm"], row["limits"], row["seed"]) for row in found.rows
    ]
    assert [row["return"] for row in found.rows if row["seed"] == 1] == [pytest.approx(1.1)] * 4
    assert {row["within limits"] for row in found.rows} == {False}
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"sweep.json", "results.parquet", "curves-two-state.png", "options-two-state.svg", "report.html"} <= names


def test_values_that_a_command_line_gives_as_text_are_drawn_and_filed_as_numbers(do, tmp_path):
    """`--grid limits=0.1,0.2` arrives as text, and is one option: the commonest sweep."""
    found, _ = do(grid={"limits": ["0.1", "2e-1"]}, algorithms=["pdo"])
    assert sorted({row["limits"] for row in found.rows}) == [0.1, 0.2]
    assert (tmp_path / "out" / "options-two-state.png").exists()


def test_more_seeds_and_settings_are_added_to_those_that_are_there(do):
    do()
    _, jobs = do(seeds=5, grid={"limits": [0.2, 0.3]}, algorithms="trpo")
    assert jobs == [["trpo-two-state-limits=0.2/seeds-002-004"], ["trpo-two-state-limits=0.3/seeds-000-004"]]
    found, _ = do(seeds=5)
    assert sorted(row["seed"] for row in found.rows if row["setting"] == "trpo-two-state-limits=0.2") == [0, 1, 2, 3, 4]


def test_seeds_can_be_cut_into_runs_of_their_own(do):
    _, jobs = do(block=2, seeds=5, algorithms="pdo", grid={"limits": [0.1]})
    assert [job[0].split("/")[1] for job in jobs] == ["seeds-000-001", "seeds-002-003", "seeds-004-004"]


def test_a_failed_run_takes_no_other_along_and_is_told_in_one_sentence(do, tmp_path):
    found, jobs = do(Hands({"pdo-two-state-limits=0.1": "failed"}))
    assert len(jobs) == 4
    assert found.failures == {"pdo-two-state-limits=0.1/seeds-000-001": "epoch 1, seed 0: the reward is not finite."}
    told = [row for row in found.rows if row["error"]]
    assert [(row["setting"], row["seed"]) for row in told] == [("pdo-two-state-limits=0.1", seed) for seed in (0, 1)]


def test_a_run_that_failed_is_left_alone_until_it_is_asked_for(do, tmp_path):
    setting = plan.expand(plan.parse(PLAN | {"grid": {"limits": [0.1]}, "algorithms": "pdo"}))[0]
    folder = tmp_path / "out" / "runs" / setting.name / "seeds-000-001"
    with blocks.alone(tmp_path / "out" / sweep.PAGE, "", ""):
        blocks.remember(tmp_path / "out" / sweep.PAGE, {}, {})
    write(folder, setting.with_seeds(0, 2), "failed", error="it broke.")
    found, jobs = do(algorithms="pdo")
    assert jobs == [["pdo-two-state-limits=0.2/seeds-000-001"]]
    assert found.failures == {f"{setting.name}/seeds-000-001": "it broke."}
    state = sweep.sweep_state(
        plan.parse(PLAN | {"algorithms": "pdo"}), [setting], sweep.Options(tmp_path / "out", retry=True), print
    )
    assert [block.folder for block in state.missing] == [folder]


def test_an_interrupted_sweep_says_how_to_go_on_and_goes_on(do, tmp_path):
    with pytest.raises(Interrupted, match=r"stopped with 3 of 4 runs done, .* Go on with: apdo sweep"):
        do(Hands({"pdo-two-state-limits=0.2": "interrupted"}))
    assert do()[1] == [["pdo-two-state-limits=0.2/seeds-000-001"]]


def test_a_full_disk_ends_a_sweep_with_its_sentence(do):
    with pytest.raises(StorageFailure, match=r"not finite\. Go on with: apdo sweep"):
        do(Hands({"limits=0.2": "storage"}))


def test_two_sweeps_in_one_folder_and_a_folder_of_something_else_are_refused(do, tmp_path):
    do(algorithms="pdo")
    with (
        blocks.alone(tmp_path / "out" / sweep.PAGE, "sweep's folder", "apdo sweep"),
        pytest.raises(InvalidInput, match="another apdo sweep is at work in"),
    ):
        do()
    with pytest.raises(InvalidInput, match=r"from another configuration: .*epochs is 3 there and 4 here"):
        do(options={"epochs": 4, "batch": 200})
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    options = sweep.Options(out=tmp_path / "other", quiet=True)
    with pytest.raises(InvalidInput, match=r"is no sweep's folder \(it has no sweep.json\)"):
        sweep.run(plan.parse(PLAN), options, Hands)


def test_a_dry_run_tells_everything_and_touches_nothing(capsys, tmp_path):
    words = ["sweep", "pdo,trpo", "two-state", "--grid", "limits=0.1,0.2", "--seeds", "3", "--samples", "1000"]
    status, out, _ = call(capsys, *words, "--out", str(tmp_path / "out"), "--dry-run")
    assert status == 0
    assert "4 settings, 4 runs: 0 done, 4 to do." in out
    assert "trpo-two-state-limits=0.2  seeds 0 to 2" in out
    assert "nothing was run" in out
    assert not (tmp_path / "out").exists()


def test_a_sweep_runs_in_processes_and_survives_the_death_of_one(tmp_path):
    """One run succeeds though its process is killed, one fails before it begins."""
    made = plan.expand(plan.parse({"algorithms": "trpo", "environments": "two-state", "options": TINY}))[0]
    folders = [tmp_path / name for name in ("good", "large")]
    good = made.with_seeds(0, 1)
    large = json.loads(json.dumps(good.describe()))
    large["settings"] |= {"batch": 10**9, "samples": 2 * 10**9}
    pool = Pool(tmp_path / "logs", count=1)
    try:
        pool.submit([Task(str(folders[0]), good.describe())])
        first = pool.workers[0].process.pid
        while not folders[0].exists():
            time.sleep(0.02)
        os.kill(first, signal.SIGKILL)
        [told] = wait(pool)
        assert told.status == "again"
        assert re.search(
            r"ended with signal 9; its messages are in .*worker-0\.log\. It goes on in another\.", told.error
        )
        ended = wait(pool)
        assert [(one.status, one.error) for one in ended] == [("finished", "")]
        assert pool.workers[0].process.pid != first
        pool.submit([Task(str(folders[1]), large)])
        ended = wait(pool)
        assert [one.status for one in ended] == ["failed"]
        assert "GB of memory" in ended[0].error
    finally:
        pool.close()
    assert runs.read_description(folders[0])["status"] == "finished"
    alone = apdo.train("trpo", "two-state", out=tmp_path / "alone", quiet=True, **dots(TINY))
    np.testing.assert_array_equal(runs.read(folders[0]).metrics["return"], alone.metrics["return"])


def dots(options):
    return {name.replace(".", "__"): value for name, value in options.items()}


def wait(pool):
    while True:
        for ended in pool.poll(0.5):
            return ended


def test_a_run_is_followed_as_it_grows_and_after_it_was_cut_back(tmp_path):
    made = plan.expand(plan.parse(PLAN | {"algorithms": "pdo"}))[0]
    follower = following.Follower(tmp_path / "run")
    assert follower.look().status == "waiting"
    write(tmp_path / "run", made.with_seeds(0, 2))
    seen = follower.look()
    assert (seen.status, seen.done, seen.epochs, seen.seeds) == ("finished", 3, 3, 2)
    assert seen.last is not None
    assert seen.last.returned == pytest.approx(0.2 + 0.5)
    file = tmp_path / "run" / runs.METRICS
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:3]) + lines[3][:20])
    assert follower.look().done == 1
    file.write_bytes(b"".join(lines))
    assert [point.epoch for point in follower.points] == [1]
    assert follower.look().done == 3


def test_a_node_that_cannot_do_a_job_says_why_in_one_sentence(tmp_path):
    page = tmp_path / sweep.PAGE
    page.touch()
    about = {**cluster.about_here(), "page": str(page), "gpus": "yes"}
    task = {"folder": str(tmp_path / "run"), "config": {}}
    for changes, said in (
        ({"apdo": "0.0.9"}, r"the node .* has apdo .*, and the sweep was started with 0\.0\.9\."),
        ({"page": str(tmp_path / "none.json")}, r"does not see .*none\.json: the sweep's folder must be shared"),
        ({}, "the run's configuration is not one that apdo wrote"),
    ):
        [outcome] = cluster.do_on_node([task], about | changes)
        assert outcome["status"] == "failed"
        assert re.search(said, outcome["error"])


def test_where_a_sweep_runs_is_checked_before_anything_begins(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"on": "rai"}, "did you mean 'ray'"),
        ({"on": "local", "address": "host:1"}, r"--address is for --on ray\."),
        ({"on": "ray", "cpus": "many"}, "--cpus must be a number"),
        ({"on": "ray", "partition": "long"}, r"--partition is for --on slurm\."),
        ({"cpus": 2}, r"--cpus is for --on ray and --on slurm\."),
    ]
    for given, said in wrong:
        with pytest.raises(InvalidInput, match=said):
            sweep.executor(tmp_path, **given)
    begin = sweep.executor(tmp_path, "ray")
    assert begin is not None
    with pytest.raises(InvalidInput, match=r"Ray is not installed; get it with: pip install 'apdo\[ray\]'"):
        begin()
    monkeypatch.setitem(sys.modules, "submitit", None)
    begin = sweep.executor(tmp_path, "slurm", minutes="30")
    assert begin is not None
    with pytest.raises(InvalidInput, match=r"submitit is not installed; get it with: pip install 'apdo\[slurm\]'"):
        begin()
    with pytest.raises(InvalidInput, match="must be HOST:PORT"):
        cluster._check_answers("nowhere")


def test_runs_that_may_share_a_program_become_one_job_for_each_that_works(tmp_path):
    given = PLAN | {"grid": {"limits": [0.1, 0.2, 0.3], "batch": [200, 400]}, "algorithms": ["pdo", "apdo"]}
    given |= {"options": {"epochs": 3}, "for": {"apdo": {"options": {"k_adj": 1}}}}
    wanted, options = plan.parse(given), sweep.Options(tmp_path, together=True)
    missing = sweep.sweep_state(wanted, plan.expand(wanted), options, print).missing
    shared, two = (sweep.jobs_of(missing, options, "cpu", count) for count in (1, 2))
    assert [len(job) for job in shared] == [3] * 4
    assert [len(job) for job in two] == [2, 1] * 4
    alone = sweep.Options(tmp_path)
    each = sweep.jobs_of(missing, alone, "cpu", 2)
    assert [len(job) for job in each] == [1] * 12
    assert sweep.seconds_for(shared, "gpu", 1) < sweep.seconds_for(each, "gpu", 1) / 2.5
