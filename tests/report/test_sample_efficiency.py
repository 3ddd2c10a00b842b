"""Samples to a target: from which evaluation on, for whom a trial does not count, and what the document says."""

import numpy as np
from benchmarks import sample_efficiency


def found(returns, costs, **more):
    """Evaluations [epochs, seeds] of an arm with batches of 100 and a limit of 0.2."""
    base = {"batch": 100, "limit": 0.2, "on_trial": False, "adjusted": [], "estimates": []}
    return base | {"return": returns, "cost": costs} | more


def test_a_target_is_met_from_the_first_of_three_good_evaluations_in_a_row():
    returns = np.transpose([[12, 12, 9, 12, 12, 12, 12], [12] * 7, [12, 12, 9, 12, 12, 9, 12]])
    costs = np.full((7, 3), 0.2)
    costs[:2, 1] = 0.2101
    first = sample_efficiency.samples_to(found(returns, costs), 11)
    np.testing.assert_array_equal(first, [400, 300, np.inf])


def test_a_cost_a_twentieth_above_the_limit_is_allowed_and_no_more():
    for cost, meets in ((0.21, True), (0.2101, False)):
        first = sample_efficiency.samples_to(found(np.full((3, 1), 12.0), np.full((3, 1), cost)), 11)
        assert np.isfinite(first[0]) == meets


def test_an_evaluation_on_trial_does_not_count_for_those_who_are_on_trial():
    """Two seeds meet the target all along; after epoch 1 only the first of them tries an actor."""
    estimates = [{"multiplier": [[3.0], [np.nan]]}]
    one = found(np.full((6, 2), 12.0), np.full((6, 2), 0.1), on_trial=True, adjusted=[1], estimates=estimates)
    np.testing.assert_array_equal(sample_efficiency.samples_to(one, 11), [300, 100])


def test_the_cost_kept_is_the_mean_from_the_target_on_for_half_a_million_samples():
    costs = np.full((10, 1), 0.2)
    costs[:2], costs[7:] = 0.9, 0.5
    one = found(np.full((10, 1), 12.0), costs, batch=100_000)
    # Met at 300,000; up to 800,000 there are five more.
    np.testing.assert_allclose(sample_efficiency.kept(one, 11), [(5 * 0.2 + 0.5) / 6])


def test_the_documents_tables_are_those_of_the_results():
    text = sample_efficiency.DOCUMENT.read_text(encoding="utf-8")
    for name, table in sample_efficiency.tables().items():
        assert table in text, name
