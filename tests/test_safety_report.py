"""The field's benchmark: its runs, the published figures beside it, and what its tables say of files."""

import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import published, safety, safety_report
from benchmarks.safety import Job

from apdo.experiment import records, settings
from benchmark_files import between, cells, file, seed

ROOT = Path(__file__).parent.parent


def test_every_run_of_the_benchmark_is_the_command_that_the_document_gives():
    given = safety.arguments([])
    jobs = safety.wanted(safety.arguments(["--out", "nowhere"]))
    assert len(jobs) == 5 * (6 * 5 + 2 * 3)
    assert jobs[:5] == [Job("point-goal-1", name, 0, 10_000_000) for name in ("trpo", "pdo", "ppo-lag", "cpo", "apdo")]
    assert {job.samples for job in jobs} == {10_000_000}
    assert " ".join(jobs[0].words(given.runs)) == (
        "apdo train trpo point-goal-1 --samples 10000000 --batch 20000 --seed 0 "
        "--out runs/benchmarks/point-goal-1-trpo-0 --resume --quiet"
    )
    chosen = safety.arguments(["--only", "hopper.*/(cup|pdo)", "--algorithms", "cup,sac-lag", "--seeds", "7"])
    assert list(safety.plan(chosen)) == [Job("hopper-velocity", "cup", 7, 10_000_000)]


@pytest.mark.parametrize("task", safety.TASKS)
def test_the_limit_of_a_task_is_25_on_the_plain_total_or_its_own(task):
    if task.endswith("-velocity"):
        pytest.importorskip("mujoco", reason="MuJoCo is not installed")
    problem = settings.make_experiment("pdo", task, {"samples": 10_000_000, "batch": 20_000}).problem()
    own = (0.2, 0.995) if task == "point-gather" else (25.0, 1.0)
    assert (
        (*problem.limits, problem.cost_discount) == own == (safety.TASKS[task].limit, safety.TASKS[task].cost_discount)
    )


def test_the_numbers_of_a_table_are_those_of_the_files(tmp_path):
    file(tmp_path, "hopper-velocity", "cpo", seed(1600.0, 20.0), seed(1700.0, 24.0, seconds=90), seed(1650.0, 25.0))
    file(tmp_path, "hopper-velocity", "apdo", seed(1000.0, 30.0), seed(1200.0, 40.0, samples=2_000_000))
    told = safety_report.table("hopper-velocity", tmp_path)
    # Student's t for two degrees of freedom is 4.3027; the deviations are 50 and the root of 7.
    returns, costs = f"1650 ± {4.3027 * 50 / 3**0.5:.0f}", f"23.0 ± {4.3027 * (7 / 3) ** 0.5:.1f}"
    theirs = "1713.71 ± 18.26 / 13.4 ± 5.82 (CPO)"
    assert cells(told, "cpo") == ["cpo", "3", returns, costs, returns, costs, "–", "1.5 to 10 min, 1 core", theirs]
    early = f"1100 ± {12.7062 * 100:.0f}", f"35.0 ± {12.7062 * 5:.1f}"
    assert cells(told, "apdo") == ["apdo", "2", *early, "1000 (1 of 2 seeds)", "30.0", "–", "10 min, 1 core", "–"]
    assert safety_report.table("ant-velocity", tmp_path) == "Not run yet."


def test_a_table_has_the_policies_that_runs_return_as_far_as_they_were_measured(tmp_path):
    measured = ({"return": earned, "cost": cost, "episodes": 100} for earned, cost in ((1600.0, 20.0), (1700.0, 22.0)))
    seeds = [seed(1500.0, 26.0, returned=one) for one in measured]
    file(tmp_path, "hopper-velocity", "cpo", *seeds, seed(1500.0, 26.0))
    file(tmp_path, "hopper-velocity", "pdo", seeds[0])
    told = safety_report.table("hopper-velocity", tmp_path)
    # Student's t for one degree of freedom is 12.7062.
    assert cells(told, "cpo")[6] == f"1650 ± {12.7062 * 50:.0f} at 21.0 ± {12.7062:.1f} (2 of 3 seeds)"
    assert cells(told, "pdo")[6] == "1600 at 20.0"


def test_a_table_says_which_seeds_failed_and_which_options_were_others(tmp_path):
    file(tmp_path, "ant-velocity", "pdo", seed(1.0, 1.0, differs={"trace": 0.9}), seed(1.0, 1.0, 30_000, failed="NaN"))
    told = safety_report.table("ant-velocity", tmp_path)
    assert cells(told, "pdo")[1:3] == ["2, 1 failed", "1.00 (1 of 2 seeds)"]
    assert told.endswith("pdo was run with other defaults than today's: `trace` 0.9.")


def test_the_summary_has_only_algorithms_within_the_limit(tmp_path):
    file(tmp_path, "hopper-velocity", "trpo", seed(3000.0, 400.0))
    file(tmp_path, "hopper-velocity", "cpo", seed(1800.0, 20.0), seed(1800.0, 30.1))
    file(tmp_path, "hopper-velocity", "pdo", seed(1600.0, 20.0), seed(1600.0, 29.9))
    file(tmp_path, "hopper-velocity", "apdo", seed(1500.0, 5.0))
    file(tmp_path, "hopper-velocity", "ppo-lag", seed(1900.0, 5.0, samples=2_000_000))
    file(tmp_path, "ant-velocity", "trpo", seed(6000.0, 900.0))
    file(tmp_path, "walker2d-velocity", "pdo", seed(2000.0, 10.0, samples=2_000_000))
    told = safety_report.summary(tmp_path)
    bar = ["CUP", "1716.08 ± 5.93 / 7.48 ± 5.535"]
    assert cells(told, "hopper-velocity")[:5] == ["hopper-velocity", "10 M", "pdo", "2", "1600 ± 0"]
    assert cells(told, "hopper-velocity")[6:] == [*bar, f"{100 * 1600 / 1716.08:.0f} %"]
    assert cells(told, "ant-velocity")[2] == "none"
    assert cells(told, "walker2d-velocity")[2] == "not at its end yet"
    assert cells(told, "point-goal-1")[2] == "not run yet"


def test_the_bars_are_the_best_published_results_within_the_limit():
    bars = {task: published.best(task) for task in safety.BENCHMARK.tasks}
    assert {task: (name, round(figure.earned, 1)) for task, (name, figure, _) in bars.items()} == {
        "point-goal-1": ("TRPOPID", 19.2),
        "point-circle-1": ("SACLag", 83.7),
        "halfcheetah-velocity": ("FOCOPS", 2965.2),
        "ant-velocity": ("PPOLag", 3261.9),
        "hopper-velocity": ("CUP", 1716.1),
        "walker2d-velocity": ("TRPOLag", 3207.1),
        "humanoid-velocity": ("PPOLag", 6624.5),
        "swimmer-velocity": ("CPPOPID", 91.0),
    }
    assert published.counterpart("point-goal-1", "sac-lag") == ("SACLag", (21.45, 6.97, 19.2, 9.7), 3_000_000)
    assert published.counterpart("hopper-velocity", "sac-lag") is None
    assert set(published.COUNTERPARTS) <= set(safety.ENTRIES)


def test_the_picture_has_the_seeds_that_went_furthest(tmp_path):
    seeds = {"0": seed(1.0, 1.0), "1": seed(3.0, 1.0), "2": seed(9.0, 1.0, samples=2_000_000)}
    assert [curve["return"].tolist() for curve in safety_report.furthest(seeds)] == [[1.0, 1.0], [3.0, 3.0]]
    file(tmp_path, "swimmer-velocity", "pdo", *seeds.values())
    safety_report.draw("swimmer-velocity", tmp_path)
    assert (tmp_path / "swimmer-velocity.svg").stat().st_size > 1000


def test_the_document_says_what_the_files_of_results_say():
    told = safety_report.parts(ROOT / safety.RESULTS)
    assert between(ROOT / safety_report.DOCUMENT, told) == told, "python -m benchmarks.safety --table"


def test_the_command_line_names_algorithms_that_it_does_not_know():
    words = [sys.executable, "-m", "benchmarks.safety", "--algorithms", "pdo,ddd"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    assert "unknown: ddd; known: trpo" in done.stderr


def test_nothing_is_trained_from_a_tree_with_changes(monkeypatch, tmp_path):
    """Days later it could not be filed."""
    monkeypatch.setattr(records, "commit", lambda: "c" * 40 + "-dirty")
    with pytest.raises(SystemExit, match="not committed"):
        safety.main(["--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out")])
    assert list(tmp_path.iterdir()) == []
