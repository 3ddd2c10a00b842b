"""The default estimate of λ* against the exact one on finite problems, and the benchmark that measures it at length."""

import dataclasses
from functools import partial

import jax
import numpy as np
import pytest
from benchmarks import dual_estimation, ground_truth

import apdo
from apdo.datasets import Dataset
from apdo.experiment import opening
from apdo.tasks.tabular import TwoState
from logged_data import two_state_log

BAR = 0.10


@pytest.mark.slow
def test_on_two_states_the_default_learners_come_near_the_exact_price():
    """With their own rates, but two of them and a third of the iterations; the checks of the answer kept short."""
    _, optimum = ground_truth.solved(TwoState())
    data = Dataset.of(**two_state_log())
    found = apdo.estimate_multipliers(data, members=2, iterations=10_000, check_iterations=100)
    assert found.multiplier == pytest.approx(optimum.multipliers, rel=BAR)
    # A quarter is where the verdict calls an answer unsupported; undamped learners swing by four fifths.
    assert found.diagnostics.swing < 0.25 * optimum.multipliers


@pytest.mark.slow
@pytest.mark.parametrize("name", ["default", "no cloning"])
def test_on_the_grid_the_estimate_comes_near_the_exact_price(name):
    row = dataclasses.replace(dual_estimation.DEFAULT[f"{name} gridworld"], seeds=1)
    data = dual_estimation.collected("gridworld", row.k_adj + 1, row.seeds)
    assert dual_estimation.ratios(dual_estimation.measure(row, data)) == pytest.approx(1.0, abs=BAR)


@pytest.mark.parametrize("problem", dual_estimation.PROBLEMS)
def test_a_run_that_collects_data_may_have_other_networks_than_the_learners_and_keeps_all_batches(problem):
    experiment = dual_estimation.experiment_of(problem, batches=6, seeds=2)
    training = opening.training_of(experiment)
    begin = partial(training.algorithm.init, training.config, training.problem)
    state = jax.eval_shape(begin, jax.random.key(0))
    assert state.buffer.capacity >= 6 * training.problem.batch


def test_of_two_constraints_the_one_further_off_is_shown():
    """Estimates of two seeds, each the median of three members, against prices of 1 and 2."""
    members = [[[1.0, 3.0], [1.1, 3.0], [9.0, 3.0]], [[1.2, 4.0], [1.3, 4.0], [1.4, 4.0]]]
    np.testing.assert_allclose(dual_estimation.ratios({"multiplier": members, "optimum": (1.0, 2.0)}), [1.5, 2.0])
    only = [[0.5, 0.5, 0.8], [0.4, 0.7, 0.6]]
    np.testing.assert_allclose(dual_estimation.ratios({"multiplier": only, "optimum": (0.5,)}), [1.0, 1.2])


def test_the_documents_tables_are_those_of_the_results():
    text = dual_estimation.DOCUMENT.read_text(encoding="utf-8")
    for name, table in dual_estimation.tables().items():
        assert f"<!-- {name} -->\n{table}\n<!-- /{name} -->" in text, name
