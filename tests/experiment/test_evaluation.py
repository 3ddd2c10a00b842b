"""What an evaluation says of a limit."""

import numpy as np
import pytest

from apdo.experiment.evaluation import Estimate


def test_the_verdict_is_what_the_interval_says():
    rng = np.random.default_rng(0)
    cost = Estimate.of(rng.normal(1.0, 0.5, size=400))
    assert cost.verdict(2.0).holds == "yes"
    assert cost.verdict(0.5).holds == "no"
    assert cost.verdict(cost.mean + 0.01).holds == "undecided"
    assert cost.verdict(cost.high).holds == "yes"
    for limit in np.linspace(0.8, 1.2, 41):
        verdict = cost.verdict(float(limit))
        assert (verdict.holds == "undecided") == (cost.low <= limit < cost.high)
        assert (verdict.deciding is not None) == (verdict.holds == "undecided")


def test_yes_is_said_wrongly_at_most_once_in_forty_and_the_probability_is_calibrated():
    """The limit is the true mean: a two-sided 95 % interval lies under it by chance in 2.5 %."""
    rng = np.random.default_rng(1)
    verdicts = [Estimate.of(rng.normal(size=30)).verdict(0.0) for _ in range(4000)]
    share = np.mean([verdict.holds == "yes" for verdict in verdicts])
    assert share == pytest.approx(0.025, abs=0.01)
    # Where the limit is the truth, p is uniform.
    p = np.sort([verdict.probability for verdict in verdicts])
    assert np.max(np.abs(p - np.linspace(0, 1, 4000))) < 0.03


def test_as_many_episodes_as_it_names_decide_if_the_mean_stays():
    rng = np.random.default_rng(2)
    few = rng.normal(size=50)
    few = (few - few.mean()) / few.std(ddof=1)
    needed = Estimate.of(few).verdict(0.1).deciding
    assert needed == pytest.approx((1.96 / 0.1) ** 2, rel=0.01)
    assert needed is not None
    more = np.resize(few, int(1.05 * needed))
    assert Estimate.of(more).verdict(0.1).holds == "yes"
    less = np.resize(few, int(0.85 * needed))
    assert Estimate.of(less).verdict(0.1).holds == "undecided"


def test_no_number_of_episodes_decides_for_a_mean_that_is_the_limit():
    assert Estimate.of(np.array([-1.0, 1.0])).verdict(0.0).deciding is None


def test_a_cost_that_never_varies_is_decided_by_its_value():
    cost = Estimate.of(np.full(10, 0.25))
    assert cost.verdict(0.25).holds == "yes"
    assert cost.verdict(0.2).holds == "no"
    assert cost.verdict(0.2).probability == 0.0
