"""The benchmark's table and figure from curves that were written by hand, and what is left to run."""

import json

import pytest
from benchmarks import safety as benchmark


def curves(path, task, algorithm, seed, steps=60_000, cost=20.0):
    epochs = steps // benchmark.BATCH
    told = {"steps": steps, "batch": benchmark.BATCH, "return": [1000.0 + seed] * epochs, "cost": [cost] * epochs}
    told["multiplier"] = None if algorithm == "trpo" else [0.5] * epochs
    benchmark.path_of(task, algorithm, seed, path).write_text(json.dumps(told))


def test_the_document_gets_tables_and_figures_between_its_marks(tmp_path):
    for seed in (0, 1):
        curves(tmp_path, "halfcheetah", "cpo", seed)
    curves(tmp_path, "halfcheetah", "trpo", 0, cost=300.0)
    document = tmp_path / "benchmarks.md"
    document.write_text("# Head\n<!-- halfcheetah -->\nold\n<!-- /halfcheetah -->\ntail\n")
    benchmark.write_document(tmp_path, document)
    text = document.read_text()
    assert text.startswith("# Head\n<!-- halfcheetah -->\n| algorithm |")
    assert text.endswith("<!-- /halfcheetah -->\ntail\n")
    assert "old" not in text
    assert "| CPO | 60,000 | 2 | 1000 (1000 to 1001) | 20.0 (20.0 to 20.0) | 2786.48" in text
    assert "| TRPO (no limit) | 60,000 | 1 | 1000 | 300 | 6490.76" in text
    assert (tmp_path / "halfcheetah.svg").stat().st_size > 1000


def test_of_runs_of_different_lengths_the_longest_are_shown(tmp_path):
    curves(tmp_path, "pointgoal", "pdo", 0)
    curves(tmp_path, "pointgoal", "pdo", 1, steps=100_000)
    (shown,) = benchmark.gather("pointgoal", tmp_path)["pdo"]
    assert shown["steps"] == 100_000
    assert benchmark.steps_there(benchmark.path_of("pointgoal", "pdo", 1, tmp_path)) == 100_000
    assert benchmark.steps_there(benchmark.path_of("pointgoal", "cpo", 1, tmp_path)) == 0


@pytest.mark.parametrize("algorithm", benchmark.ALGORITHMS)
def test_every_option_of_the_benchmark_is_one_that_the_algorithm_has(algorithm):
    """On an environment that is always there; the run's own options are the same for all."""
    from apdo.experiment import settings

    options = benchmark.options_of(algorithm) | {"epochs": 50}
    found = settings.specify(algorithm, "point-gather", options)
    assert found.settings.limits == (25.0,)
    assert found.algorithm_config.policy.hidden == (64, 64)
