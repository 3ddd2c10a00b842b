"""Every algorithm side by side: what is run under which name, and what tables and pictures say of the files."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from benchmarks import comparison, comparison_curves, provenance, published, safety
from benchmarks.safety import Job, Refused

from apdo.algorithms import ALGORITHMS
from apdo.experiment import records, runner, settings
from benchmark_files import between, cells, file, seed

ROOT = Path(__file__).parent.parent
POINT = Job("point-gather", "ppo-saute", 5, 10_000)


def test_every_algorithm_is_compared_on_three_tasks_with_three_seeds():
    asked = safety.arguments(["--out", "nowhere"], comparison.STUDY)
    jobs = safety.wanted(asked, comparison.STUDY)
    assert len(set(jobs)) == len(jobs) == 20 * 3 * 3
    compared = {job.entry.algorithm for job in jobs}
    assert compared == set(ALGORITHMS) - {"pd-ddpg"}
    assert {job.samples for job in jobs if not job.entry.own_batch} == {10_000_000}
    words = {(job.task, job.algorithm): " ".join(job.words()) for job in jobs if job.seed == 0}
    assert words["point-gather", "ppo-saute"] == (
        "apdo train trpo point-gather --samples 10000000 --batch 20000 --primal ppo --wrap saute --seed 0 "
        "--out runs/benchmarks/point-gather-ppo-saute-0 --resume --quiet"
    )
    assert words["point-goal-1", "apdo-1m"] == (
        "apdo train apdo point-goal-1 --samples 1000000 --seed 0 "
        "--out runs/benchmarks/point-goal-1-apdo-1m-0 --resume --quiet"
    )


def test_the_commands_of_what_is_missing_are_printed_one_in_a_line(tmp_path, capsys):
    file(tmp_path, "point-gather", "cup", seed(9.0, 0.1))
    comparison.main(["--lines", "--only", "point-gather/(cup|pdo)", "--out", str(tmp_path), "--seeds", "0,1"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[2] for line in lines] == ["pdo", "pdo", "cup"]
    assert all(line.startswith("apdo train ") and " --resume" in line for line in lines)


@pytest.mark.parametrize("task", comparison.STUDY.tasks)
@pytest.mark.parametrize("algorithm", comparison.STUDY.algorithms)
def test_every_run_can_be_specified(task, algorithm):
    if task.endswith("-velocity"):
        pytest.importorskip("mujoco", reason="MuJoCo is not installed")
    described = Job(task, algorithm, 0, safety.length(task, algorithm)).described()
    assert described["settings"]["samples"] >= safety.length(task, algorithm)
    assert described["settings"]["wrap"] == safety.ENTRIES[algorithm].options.get("wrap", "none")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run under a wrapper whose batch is not a whole number of episodes, as another machine would hand it back."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "commit", lambda: "c" * 40)
        patch.setattr(safety, "BATCH", 1_000)
        given = POINT.options | {"samples": POINT.samples}
        experiment = settings.make_experiment("trpo", POINT.task, given)
        runner.run(experiment, folder / "made", quiet=True)
    (folder / POINT.name).mkdir()
    for name in ("run.json", "metrics.jsonl"):
        (folder / POINT.name / name).write_bytes((folder / "made" / name).read_bytes())
    return folder


def test_a_run_under_a_wrapper_is_filed_with_what_the_environment_itself_paid(made, tmp_path, monkeypatch):
    monkeypatch.setattr(safety, "BATCH", 1_000)
    monkeypatch.setattr(safety, "EARLY", 5_000)
    with pytest.raises(SystemExit, match="0"):
        comparison.main(["--file", "--runs", str(made), "--out", str(tmp_path), "--cores", "1"])
    told = json.loads((tmp_path / "point-gather-ppo-saute.json").read_text())
    assert (told["limit"], told["algorithm"]) == (0.2, "ppo-saute")
    found = told["seeds"]["5"]
    lines = [json.loads(line) for line in (made / POINT.name / "metrics.jsonl").read_text().splitlines()]
    assert found["samples"] == lines[-1]["samples"] == 10 * 1_005
    assert found["curve"]["return"] == pytest.approx([np.ravel(line["plain_return"])[0] for line in lines], rel=1e-5)
    assert found["curve"]["cost"] == pytest.approx([np.ravel(line["cost"])[0] for line in lines], rel=1e-5)
    assert found["curve"]["return"] != [np.ravel(line["return"])[0] for line in lines]
    assert list(found["ends"]) == ["5000"]
    assert found["differs"] == {}


def test_apdos_runs_of_the_transfer_study_are_filed_with_the_policies_that_they_returned(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    comparison.take_over(tmp_path)
    filed = json.loads((tmp_path / "halfcheetah-velocity-apdo-1m.json").read_text())["seeds"]
    study = json.loads((comparison.PEERS / "halfcheetah-apdo.json").read_text())["seeds"]
    assert filed.keys() == study.keys()
    for name, found in filed.items():
        returned = {"return": study[name]["return"]["mean"], "cost": study[name]["costs"][0]["mean"]}
        assert found["returned"] == returned | {"episodes": 1000}
        assert provenance.missing(found) == []
        assert found["samples"] == found["options"]["samples"] == 1_000_000


@pytest.mark.parametrize("other", ["trpo", "trpo-saute", "ppo-early-termination", "pdo"])
def test_a_run_under_another_wrapper_or_none_is_refused(made, monkeypatch, other):
    monkeypatch.setattr(safety, "BATCH", 1_000)
    job = dataclasses.replace(POINT, algorithm=other)
    with pytest.raises(Refused, match="another run"):
        safety.read_seed(job, made / POINT.name)


@pytest.mark.parametrize(
    ("returns", "costs", "expected"),
    [
        ([14.0] * 5, [0.2] * 5, 10),
        ([13.2] * 5, [0.1] * 5, math.inf),
        ([14.0] * 5, [0.21, 0.2, 0.2, 0.21, 0.1], math.inf),
        ([14.0] * 5, [0.21, 0.3, 0.2, 0.1, 0.0], 30),
        ([1.0, 14.0, 14.0, None, 14.0], [0.1] * 5, math.inf),
        ([14.0, 14.0], [0.1, 0.1], math.inf),
    ],
)
def test_a_good_policy_counts_from_the_first_of_three_windows_in_a_row(returns, costs, expected):
    """80 % of 16.6 is 13.28."""
    curve = {"samples": [10, 20, 30, 40, 50][: len(returns)], "return": returns, "cost": costs}
    assert comparison.samples_to("point-gather", curve) == expected


def test_a_table_has_every_algorithm_run_or_not(tmp_path):
    file(tmp_path, "halfcheetah-velocity", "cup", *[seed(2800.0, 20.0)] * 2, seed(2000.0, 20.0, samples=2_000_000))
    file(tmp_path, "halfcheetah-velocity", "sac-lag-1m", seed(2700.0, 1.0, samples=1_000_000))
    told = comparison.table("halfcheetah-velocity", tmp_path)
    assert len(told.splitlines()) == 2 + 20
    assert cells(told, "crpo") == ["crpo", "not run yet", *["–"] * 9]
    cup = cells(told, "cup")
    assert cup[4:6] == ["2800 ± 0 (2 of 3 seeds)", "20.0 ± 0.0"]
    assert cup[6:] == [
        "–",
        "not in 10 M (0 of 3 seeds)",
        "10 min, 1 core",
        "2850.6 ± 244.65 / 4.27 ± 4.46 (CUP)",
        "98 %",
    ]
    off_policy = cells(told, "sac-lag")
    assert off_policy[2:6] == ["2700", "1.00", "ends at 1 M", "–"]
    assert off_policy[-1] == f"{100 * 2700 / 2834:.0f} %"


def test_bold_is_what_keeps_the_limit_and_the_best_is_among_it(tmp_path):
    file(tmp_path, "point-gather", "cup", seed(8.3, 0.2))
    file(tmp_path, "point-gather", "p3o", seed(14.0, 0.20001))
    told = comparison.overview(tmp_path)
    assert cells(told, "cup")[3] == "**50 % at 1.00 d**"
    assert cells(told, "p3o")[3] == "84 % at 1.01 d"
    assert cells(told, "cup")[1:3] == ["not run yet"] * 2
    leaders = cells(comparison.leaders(tmp_path), "point-gather")
    assert leaders == ["point-gather", "2 of 20", "cup: 8.30 at 0.20", "cup: 8.30 at 0.20", "none"]


def test_a_run_that_is_not_at_its_end_is_overviewed_by_its_first_million_steps_and_says_so(tmp_path):
    file(tmp_path, "point-gather", "cup", seed(8.3, 0.1, samples=1_000_000))
    assert cells(comparison.overview(tmp_path), "cup")[3] == "**50 % at 0.50 d**, after 1 M"
    assert comparison.drawn("point-gather", tmp_path)
    assert not comparison.drawn("point-goal-1", tmp_path)


def test_names_in_a_picture_keep_their_order_and_their_distance():
    rng = np.random.default_rng(0)
    for count in (1, 2, 20, 60):
        wanted = sorted(rng.uniform(0.4, 0.6, size=count))
        found = np.array(comparison.spread(wanted, gap=0.04))
        assert len(found) == count
        assert found.min() >= -1e-9
        assert found.max() <= 1 + 1e-9
        assert (np.diff(found) >= min(0.04, 1 / max(count - 1, 1)) - 1e-9).all()
    apart = [0.1, 0.5, 0.9]
    assert comparison.spread(apart, gap=0.04) == pytest.approx(apart)


def test_a_picture_names_every_algorithm_that_came_to_its_end(tmp_path):
    file(tmp_path, "point-goal-1", "cup", seed(15.0, 20.0), seed(16.0, 22.0))
    file(tmp_path, "point-goal-1", "trpo", seed(27.0, 300.0))
    file(tmp_path, "point-goal-1", "ipo", seed(9.0, 2.0, samples=2_000_000))
    comparison.draw("point-goal-1", tmp_path)
    text = comparison.picture_of("point-goal-1", tmp_path).read_text()
    assert "cup  15.5 at 21.0" in text
    assert "trpo  27.0 at 300" in text
    assert "ipo" not in text


def test_every_counterpart_has_figures():
    for algorithm in comparison.STUDY.algorithms:
        if algorithm in published.COUNTERPARTS:
            for task in ("point-goal-1", "halfcheetah-velocity"):
                assert published.counterpart(task, algorithm) is not None
    within = [published.best(task)[1].earned for task in ("point-goal-1", "halfcheetah-velocity")]
    assert all(
        comparison.KNOWN[task].earned >= earned
        for task, earned in zip(("point-goal-1", "halfcheetah-velocity"), within, strict=True)
    )


def test_what_is_compared_stands_on_the_page_of_its_algorithm():
    pages = comparison_curves.pages(comparison.STUDY)
    assert sorted(name for names in pages.values() for name in names) == sorted(comparison.STUDY.algorithms)
    assert pages["aliases"] == ["ppo-lag", "trpo-lag", "cppo-pid", "trpo-pid", "rcpo"]
    assert pages["sac-lag"] == ["sac-lag-1m"]
    assert pages["pd-ddpg"] == []
    assert {f"{page}.md" for page in pages} == {path.name for path in (ROOT / "docs/algorithms").iterdir()}


def test_the_document_and_the_pages_say_what_the_files_of_results_say(monkeypatch):
    monkeypatch.chdir(ROOT)
    told = comparison.parts(safety.RESULTS)
    assert between(ROOT / comparison.DOCUMENT, told) == told, "python -m benchmarks.comparison --table"
    for page in comparison_curves.pages(comparison.STUDY):
        curves = {"curves": comparison_curves.text(page, comparison.STUDY, safety.RESULTS)}
        assert between(ROOT / f"docs/algorithms/{page}.md", curves) == curves, "python -m benchmarks.comparison --table"
