"""The field's benchmark: what it files of a run, what it runs again, and what its tables say."""

import dataclasses
import json
import sys
import threading

import numpy as np
import pytest
from benchmarks import provenance, safety
from benchmarks.safety import Job, Refused, Study, Task

import apdo
from apdo.experiment import records, runner, settings
from apdo.report import runs

COMMIT = "c" * 40
SAMPLES, EARLY, BATCH = 40_000, 20_000, 1_000
JOB = Job("navigation", "pdo", 3, SAMPLES)
STUDY = Study(("navigation",), ("pdo",))
SMALL = {"policy.hidden": (8,), "critic.hidden": (8,)}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """A task that is quick, next to the benchmark's own."""
    monkeypatch.setattr(safety, "BATCH", BATCH)
    monkeypatch.setattr(safety, "EARLY", EARLY)
    monkeypatch.setattr(safety, "POINTS", 7)
    monkeypatch.setitem(safety.TASKS, "navigation", Task(SAMPLES, seeds=(3,), limit=3.0))


def train(folder, changes=None, commit=COMMIT, epochs=SAMPLES // BATCH):
    """A real run, stopped after so many epochs."""
    given = {"samples": SAMPLES, "batch": BATCH, "seed": JOB.seed} | (changes or {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "commit", lambda: commit)
        experiment = settings.make_experiment(JOB.algorithm, JOB.task, given)
        stop = [lambda epoch: "enough" if epoch.epoch == epochs else None] if epochs < SAMPLES // BATCH else []
        runner.run(experiment, folder, quiet=True, callbacks=stop)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder of run folders with one whole run in it."""
    folder = tmp_path_factory.mktemp("runs")
    train(folder / JOB.name)
    return folder


def asked(tmp_path, *words, runs=None):
    return safety.arguments(["--runs", str(runs or tmp_path / "runs"), "--out", str(tmp_path / "out"), *words])


def by_hand(folder, low, high):
    """Means over the lines of metrics.jsonl whose samples are above `low` and up to `high`."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if low < line["samples"] <= high]
    pick = {"return": "return", "cost": "undiscounted_cost", "multiplier": "multiplier"}
    return {name: np.mean([np.ravel(line[key])[0] for line in lines]) for name, key in pick.items()}


def test_what_is_filed_are_the_means_of_the_lines_in_the_last_twentieth(made):
    found = safety.read_seed(JOB, made / JOB.name)
    assert list(found["ends"]) == ["20000", "40000"]
    assert found["ends"]["40000"] == pytest.approx(by_hand(made / JOB.name, 38_000, 40_000), rel=1e-5)
    assert found["ends"]["20000"] == pytest.approx(by_hand(made / JOB.name, 19_000, 20_000), rel=1e-5)
    assert found["samples"] == SAMPLES
    before = 0
    for i, end in enumerate(found["curve"]["samples"]):
        point = {name: values[i] for name, values in found["curve"].items() if name != "samples"}
        assert point == pytest.approx(by_hand(made / JOB.name, before, end), rel=1e-5)
        before = end
    assert (before, len(found["curve"]["samples"])) == (SAMPLES, 7)


def test_where_a_result_comes_from_is_what_the_run_says_of_itself(made):
    """And not what the process says that files it."""
    found, told = safety.read_seed(JOB, made / JOB.name), runs.read_description(made / JOB.name)
    assert found["commit"] == COMMIT
    assert found["versions"] == told["versions"]
    assert found["date"] == told["finished"]
    assert found["device"] == told["device"]
    assert found["seconds"] == round(told["seconds"])
    assert found["differs"] == {}
    assert found["command"] == (
        "apdo train pdo navigation --samples 40000 --batch 1000 --seed 3 "
        "--out runs/benchmarks/navigation-pdo-3 --resume --quiet"
    )
    assert provenance.missing(found) == []


def test_options_that_the_command_does_not_give_are_told(tmp_path):
    train(tmp_path / JOB.name, SMALL | {"checkpoint_every": 7}, epochs=2)
    found = safety.read_seed(JOB, tmp_path / JOB.name)
    assert found["differs"] == {"policy.hidden": [8], "critic.hidden": [8]}
    assert found["ends"] == {}


def test_an_option_that_is_newer_than_the_run_and_off_is_no_difference():
    older = safety.options_of(JOB.described())
    assert older.pop("primal.anneal") == 0.0
    older.pop("primal.radius")
    assert safety.differing(JOB, older) == {"primal.radius": None}


def test_an_option_that_did_later_what_runs_did_before_it_is_no_difference():
    older = safety.options_of(JOB.described())
    assert older.pop("margin_most") == safety.FORMERLY["margin_most"]
    assert safety.differing(JOB, older) == {}
    assert safety.differing(JOB, older | {"margin_most": 0.1}) == {"margin_most": 0.1}


def test_a_filed_run_is_compared_with_the_defaults_of_every_later_day(made, tmp_path):
    found = safety.read_seed(JOB, made / JOB.name)
    assert not {"seed", "seeds", "keep"} & found["options"].keys()
    then = found | {"options": found["options"] | {"trace": 0.9}}
    safety.add(JOB, then, tmp_path)
    path = safety.path_of(JOB.task, JOB.algorithm, tmp_path)
    safety.compare_with_today(tmp_path)
    assert safety.read(path)["seeds"]["3"] == then | {"differs": {"trace": 0.9}}
    safety.add(JOB, found | {"differs": {"trace": 0.9}}, tmp_path)
    safety.compare_with_today(tmp_path)
    assert safety.read(path)["seeds"]["3"] == found
    without = {name: value for name, value in found.items() if name != "options"} | {"differs": {"trace": 0.8}}
    safety.add(JOB, without, tmp_path)
    safety.compare_with_today(tmp_path)
    assert safety.read(path)["seeds"]["3"] == without


def test_a_tree_with_changes_another_run_and_one_that_is_not_over_are_refused(made, tmp_path, monkeypatch):
    train(tmp_path / "changed", commit=COMMIT + "-dirty", epochs=1)
    with pytest.raises(Refused, match="commit"):
        safety.read_seed(JOB, tmp_path / "changed")
    for name, other in (("seed", 4), ("algorithm", "cpo"), ("task", "point-goal-1"), ("samples", 1)):
        changed = dataclasses.replace(JOB, **{name: other})
        with pytest.raises(Refused, match="another run"):
            safety.read_seed(changed, made / JOB.name)
    whole = runs.read(made / JOB.name)
    whole.description["status"] = "running"
    monkeypatch.setattr(runs, "read", lambda _: whole)
    with pytest.raises(Refused, match="not over: 40,000 of 40,000"):
        safety.read_seed(JOB, made / JOB.name)


def test_a_seed_that_is_incomplete_goes_on_and_is_not_begun_anew(tmp_path):
    folder = tmp_path / "runs" / JOB.name
    train(folder, epochs=3)
    there, began = (folder / "metrics.jsonl").read_bytes(), runs.read_description(folder)["started"]
    given = asked(tmp_path, "--only", "navigation/pdo")
    safety.file_all(given, STUDY)
    path = safety.path_of("navigation", "pdo", given.out)
    assert safety.read(path)["seeds"]["3"]["samples"] == 3_000
    assert safety.wanted(given, STUDY) == [JOB]
    assert safety.run_all(safety.wanted(given, STUDY), given)
    told = runs.read_description(folder)
    assert told["started"] == began
    assert [one["epoch"] for one in told["resumed"]] == [3]
    assert (folder / "metrics.jsonl").read_bytes().startswith(there)
    seed = safety.read(path)["seeds"]["3"]
    assert (seed["samples"], seed["status"]) == (SAMPLES, "finished")
    assert seed["cores"] >= 1
    assert safety.wanted(given, STUDY) == []
    assert safety.wanted(asked(tmp_path, "--only", "navigation/pdo", "--again"), STUDY) == [JOB]


def test_seeds_that_are_filed_join_those_that_are_there(made, tmp_path):
    given = asked(tmp_path, "--only", "navigation/.*", runs=made)
    safety.add(Job("navigation", "pdo", 12, SAMPLES), {"samples": 1}, given.out)
    safety.file_all(given, STUDY)
    told = safety.read(safety.path_of("navigation", "pdo", given.out))
    assert list(told["seeds"]) == ["3", "12"]
    assert told["seeds"]["12"] == {"samples": 1}
    filed = told["seeds"]["3"]
    played = apdo.evaluate(made / JOB.name, 3, episodes=safety.EPISODES)
    assert filed.pop("returned") == {
        "return": played.undiscounted_return.mean,
        "cost": played.constrained_cost[0].mean,
        "episodes": safety.EPISODES,
    }
    assert filed == safety.read_seed(JOB, made / JOB.name)
    assert [path.name for path in given.out.iterdir()] == ["navigation-pdo.json"]


def test_seeds_of_one_program_are_filed_each_with_what_its_own_lines_say(tmp_path):
    given = asked(tmp_path, "--only", "navigation/pdo", "--seeds", "3,4,6", "--together")
    several, alone = safety.wanted(given, STUDY)
    assert (several.name, several.seeds, alone.seeds) == ("navigation-pdo-3to4", (3, 4), (6,))
    assert "--seed 3 --seeds 2" in " ".join(several.words())
    train(tmp_path / "runs" / several.name, {"seeds": 2}, epochs=4)
    safety.file_all(given, STUDY)
    filed = safety.read(safety.path_of("navigation", "pdo", given.out))["seeds"]
    assert list(filed) == ["3", "4"]
    lines = [json.loads(line) for line in (tmp_path / "runs" / several.name / "metrics.jsonl").read_text().splitlines()]
    for seed in (3, 4):
        own = [line["return"] for line in lines if line["seed"] == seed]
        assert filed[str(seed)]["curve"]["return"] == pytest.approx(own, rel=1e-5)
    assert filed["3"]["curve"]["return"] != filed["4"]["curve"]["return"]
    assert filed["3"]["seconds"] <= round(runs.read_description(tmp_path / "runs" / several.name)["seconds"] / 2)


def test_a_folder_that_holds_another_run_is_told_and_not_filed(tmp_path):
    folder = tmp_path / "runs" / JOB.name
    train(folder, {"samples": 2_000})
    given = asked(tmp_path)
    well, line = safety.train_apart(JOB, given, [0], threading.Event())
    assert not well
    assert "FAILED" in line
    assert "holds another run" in line
    assert not given.out.exists()


def test_after_the_time_no_run_begins_and_one_under_way_is_asked_once_to_stop(tmp_path):
    over = threading.Event()
    over.set()
    well, line = safety.train_apart(JOB, asked(tmp_path), [0], over)
    assert well
    assert "not begun" in line
    assert list(tmp_path.iterdir()) == []
    over, ready = threading.Event(), tmp_path / "ready"
    child = (
        "import signal, sys, time, pathlib\n"
        "count = []\n"
        "signal.signal(signal.SIGTERM, lambda *_: count.append(1))\n"
        f"pathlib.Path({str(ready)!r}).touch()\n"
        "while not count: time.sleep(0.01)\n"
        "time.sleep(1.5)\n"
        "sys.exit(f'saved after {len(count)}')\n"
    )
    process = safety._started([sys.executable, "-c", child], sorted(safety.os.sched_getaffinity(0))[:1])
    threading.Thread(target=lambda: [_wait_for(ready), over.set()], daemon=True).start()
    assert safety._watched(process, over).strip() == "saved after 1"


def _wait_for(path):
    while not path.exists():
        threading.Event().wait(0.01)


@pytest.mark.parametrize("epochs", [1, 6, 7, 8, 500])
def test_a_thinned_curve_keeps_the_mean_and_ends_where_the_run_ends(epochs):
    rng = np.random.default_rng(epochs)
    curve = {
        "samples": 20 * np.arange(1, epochs + 1),
        "return": rng.normal(size=epochs),
        "cost": rng.uniform(size=epochs),
    }
    thin = safety.thinned(curve)
    lengths = np.diff([0, *thin["samples"]]) / 20
    assert (len(lengths), thin["samples"][-1]) == (min(epochs, 7), 20 * epochs)
    for name in ("return", "cost"):
        assert np.average(thin[name], weights=lengths) == pytest.approx(curve[name].mean(), abs=1e-5)
    assert "multiplier" not in thin


def test_an_epoch_without_a_value_is_left_out_of_its_mean():
    curve = {"samples": np.arange(1, 15), "return": np.arange(14.0), "cost": np.full(14, np.nan)}
    curve["return"][0] = np.nan
    thin = safety.thinned(curve)
    assert thin["return"][:2] == [1.0, 2.5]
    assert thin["cost"] == [None] * 7
