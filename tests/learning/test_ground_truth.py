"""Algorithms against the exact optimum: the quick ones in every test run, all of docs/ground-truth.md when asked."""

import json

import numpy as np
import pytest

from benchmarks import ground_truth
from benchmarks.ground_truth import ALGORITHMS, CASES, COST_BAR, MULTIPLIER_BAR, RETURN_BAR, path_of, verdicts

QUICK = {"batch": 6000, "epochs": 80, "seeds": 1}


@pytest.mark.parametrize("algorithm", ["pdo", "cpo"])
def test_on_two_states_the_optimum_and_its_price_are_found(algorithm):
    """With a third of the samples and one seed, to within what those can tell: 5 % of the limit."""
    seen = verdicts(ground_truth.train("two-state", algorithm, QUICK))
    assert seen["shortfall"][0] < RETURN_BAR
    assert abs(seen["excess"][0]) < 0.05
    assert seen["error"][0] < MULTIPLIER_BAR


def test_the_off_policy_learner_of_choices_finds_the_price_on_two_states():
    """APDO's jump alone: λ^OFF from the batches of the first epochs."""
    found = ground_truth.train(
        "two-state",
        "apdo",
        {
            "batch": 3000,
            "epochs": 3,
            "seeds": 1,
            "k_adj": 2,
            "off_policy_iterations": 20_000,
            "off_policy.dual_rate": 0.01,
        },
    )
    estimate = found["seeds"][0]["off_policy_multipliers"][0]
    assert estimate == pytest.approx(found["optimum"]["multipliers"][0], rel=0.25)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("algorithm", ["pdo", "apdo", "cpo"])
@pytest.mark.slow
def test_the_optimum_is_reached_over_five_seeds(case, algorithm):
    seen = verdicts(ground_truth.train(case, algorithm))
    assert np.all(seen["shortfall"] <= RETURN_BAR), seen
    assert np.all(seen["excess"] <= COST_BAR), seen
    if algorithm != "cpo":
        assert np.all(seen["error"] <= MULTIPLIER_BAR), seen


def test_every_line_of_the_document_has_its_result_and_every_result_its_line():
    text = ground_truth.DOCUMENT.read_text(encoding="utf-8")
    for name, table in ground_truth.tables().items():
        assert table in text, name
    for case in CASES:
        for algorithm in ALGORITHMS:
            found = json.loads(path_of(("train", case, algorithm)).read_text())
            assert len(found["seeds"]) == ground_truth.SEEDS
            assert ground_truth.row(found) in text
