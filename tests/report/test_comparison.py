import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from apdo.errors import InvalidInput
from apdo.report import comparison
from apdo.report.claims import claims, show
from apdo.report.comparison import Estimate, Target
from apdo.report.runs import Run


def run(returns, costs, limits=(0.2,), first_seed=0, multiplier=None, adjusted=None, adjustment_epoch=None):
    """A run in memory; returns [S, E], costs [S, E] of one constraint or [S, E, m]."""
    returns, costs = np.asarray(returns, dtype=np.float64), np.asarray(costs, dtype=np.float64)
    costs = costs[..., None] if costs.ndim == 2 else costs
    metrics = {"return": returns, "cost": costs}
    if multiplier is not None:
        metrics["multiplier"] = np.asarray(multiplier, dtype=np.float64)[..., None]
    if adjusted is not None:
        metrics["adjusted_multiplier"] = np.full((*returns.shape, 1), np.nan)
        metrics["adjusted_multiplier"][:, adjustment_epoch, 0] = adjusted
    seeds = tuple(range(first_seed, first_seed + len(returns)))
    description = {
        "algorithm": "pdo",
        "environment": "point-gather",
        "problem": {"limits": list(limits)},
        "batch": 100,
        "seeds": list(seeds),
        "adjustment_epoch": adjustment_epoch,
    }
    return Run(Path("runs/one"), description, metrics, seeds, np.arange(returns.shape[1]))


def brute_force_target(one, target):
    """Epoch by epoch, seed by seed, from the definition."""
    times = []
    for s in range(len(one.seeds)):
        found = math.inf
        for e in reversed(range(target.window - 1, len(one.epochs))):
            window = slice(e - target.window + 1, e + 1)
            good = one.metrics["return"][s, window].mean() >= target.reward
            for i, limit in enumerate(one.limits):
                good &= one.metrics["cost"][s, window, i].mean() <= limit * (1 + target.slack)
            if good:
                found = e + 1
        times.append(found)
    return times


@pytest.mark.parametrize("draw", range(5))
@pytest.mark.parametrize("constraints", [1, 2])
def test_the_time_to_the_target_is_that_of_the_definition(draw, constraints):
    rng = np.random.default_rng(draw)
    returns = rng.uniform(9, 13, size=(12, 20))
    returns[0] -= 3  # one that never does
    costs = rng.uniform(0.1, 0.32, size=(12, 20, constraints))
    one, target = run(returns, costs, limits=(0.2, 0.25)[:constraints]), Target()
    found = comparison.to_target(one, target)
    assert found.tolist() == brute_force_target(one, target)
    assert np.isinf(found).any()
    assert np.isfinite(found).any()


def test_a_trailing_mean_needs_a_whole_window():
    found = comparison.trailing_mean(np.asarray([[1.0, 2.0, 6.0, 10.0]]), 3)
    np.testing.assert_allclose(found, [[np.nan, np.nan, 3.0, 6.0]])
    assert np.isnan(comparison.trailing_mean(np.ones((2, 3)), 5)).all()


def test_a_seed_that_never_gets_there_counts_as_never_and_not_as_missing():
    good, bad = np.full(10, 12.0), np.full(10, 5.0)
    summary = comparison.summarise(run([good, good, bad], np.full((3, 10), 0.1)), Target())
    assert (summary.reached, summary.seeds) == (2, 3)
    assert summary.to_target.value == 5
    assert summary.to_target.high == math.inf
    worse = comparison.summarise(run([good, bad, bad], np.full((3, 10), 0.1)), Target())
    assert worse.to_target.value == math.inf
    assert worse.samples_to_target.value == math.inf


def test_the_median_between_a_finite_and_an_infinite_time_is_infinite():
    assert comparison.median(np.asarray([3.0, math.inf])).value == math.inf
    assert comparison.median(np.asarray([3.0, 4.0, math.inf])).value == 4.0


def test_times_that_are_all_infinite_have_an_infinite_interval():
    found = comparison.median(np.full(4, math.inf))
    assert (found.value, found.low, found.high) == (math.inf,) * 3


def test_one_seed_has_no_interval():
    found = comparison.median(np.asarray([7.0]))
    assert found.value == 7.0
    assert math.isnan(found.low)
    assert math.isnan(comparison.ratio(np.asarray([7.0]), np.asarray([3.0])).low)


def test_the_interval_of_a_ratio_is_that_of_all_resamples():
    slower, faster = np.asarray([40.0, 60.0, 90.0]), np.asarray([10.0, 20.0, 25.0])
    medians = [
        sorted(np.median([values[i] for i in drawn]) for drawn in itertools.product(range(3), repeat=3))
        for values in (slower, faster)
    ]
    every = [top / bottom for top in medians[0] for bottom in medians[1]]
    found = comparison.ratio(slower, faster)
    assert found.value == 3.0
    np.testing.assert_allclose([found.low, found.high], np.quantile(every, [0.025, 0.975]), rtol=1e-9)


def test_a_ratio_of_two_nevers_can_be_anything():
    found = comparison.ratio(np.full(5, math.inf), np.full(5, math.inf))
    assert math.isnan(found.value)
    assert (found.low, found.high) == (0.0, math.inf)


def test_a_ratio_with_one_never_lies_at_its_end():
    times = np.asarray([5.0, 6.0, 7.0])
    never = np.full(3, math.inf)
    assert comparison.ratio(never, times) == Estimate(math.inf, math.inf, math.inf)
    assert comparison.ratio(times, never) == Estimate(0.0, 0.0, 0.0)


def test_violation_is_the_area_above_the_limit_alone():
    costs = np.asarray([[[0.5, 0.0], [0.1, 0.3]], [[0.2, 0.1], [0.2, 0.1]]])
    found = comparison.violation(run(np.zeros((2, 2)), costs, limits=(0.2, 0.1)))
    np.testing.assert_allclose(found, [0.3 + 0.2, 0.0])


def test_the_multipliers_error_is_its_mean_distance():
    one = run(np.zeros((1, 3)), np.zeros((1, 3)), multiplier=[[0.0, 10.0, 12.0]])
    found = comparison.multiplier_error(one, 10.0)
    assert found is not None
    np.testing.assert_allclose(found, [4.0])
    assert comparison.multiplier_error(run(np.zeros((1, 3)), np.zeros((1, 3))), 10.0) is None


def test_joined_blocks_are_one_run_in_the_order_of_the_seeds():
    late = run([[3.0], [4.0]], [[0.3], [0.4]], first_seed=2)
    early = run([[1.0], [2.0]], [[0.1], [0.2]])
    joined = comparison.join([late, early])
    assert joined.seeds == (0, 1, 2, 3)
    assert joined.metrics["return"][:, 0].tolist() == [1, 2, 3, 4]
    assert comparison.take(joined, range(1, 3)).metrics["cost"][:, 0, 0].tolist() == [0.2, 0.3]


def test_blocks_that_share_a_seed_are_not_joined():
    one = run([[1.0]], [[0.1]])
    with pytest.raises(InvalidInput, match="share a seed"):
        comparison.join([one, one])


def test_the_crossing_of_a_line_is_where_it_is():
    grid = np.asarray([8.0, 9.0, 11.0])
    assert comparison.crossing(grid, 0.2 - 0.03 * (grid - 10.2), 0.2) == pytest.approx(10.2)


def test_noise_gives_no_second_crossing():
    grid = np.asarray([1.0, 2.0, 3.0, 4.0])
    # The falling sequence nearest to it is 0.4, 0.2, 0.2, 0.0.
    assert comparison.crossing(grid, np.asarray([0.4, 0.1, 0.3, 0.0]), 0.3) == pytest.approx(1.5)


def test_a_cost_that_does_not_cross_gives_the_nearer_end():
    grid = np.asarray([8.0, 12.0])
    assert comparison.crossing(grid, np.asarray([0.1, 0.05]), 0.2) == 8.0
    assert comparison.crossing(grid, np.asarray([0.5, 0.4]), 0.2) == 12.0


def test_the_interval_of_the_optimal_multiplier_holds_the_truth_and_widens_with_the_spread():
    widths = []
    for spread in (0.001, 0.01):
        rng = np.random.default_rng(0)
        fixed = {}
        for value in (8.0, 9.0, 10.0, 11.0, 12.0):
            costs = 0.2 - 0.03 * (value - 10.3) + spread * rng.normal(size=(8, 1)) + np.zeros((8, 6))
            fixed[value] = run(np.zeros((8, 6)), costs)
        found = comparison.optimal_multiplier(fixed, last=3)
        assert found.enclosed
        assert found.estimate.low <= 10.3 <= found.estimate.high
        widths.append(found.estimate.high - found.estimate.low)
    assert widths[1] > 5 * widths[0]


def test_the_optimal_multiplier_of_one_seed_lies_between_its_neighbours():
    fixed = {value: run(np.zeros((1, 4)), np.full((1, 4), 0.2 - 0.03 * (value - 10.3))) for value in (8.0, 10.0, 12.0)}
    found = comparison.optimal_multiplier(fixed, last=2).estimate
    assert (found.low, found.high) == (10.0, 12.0)
    assert found.value == pytest.approx(10.3)


def constant(reached, epochs=100):
    """Seeds that reach the target at the epochs given."""
    returns = np.zeros((len(reached), epochs))
    for returned, when in zip(returns, reached, strict=True):
        returned[when - 5 :] = 12.0
    return run(returns, np.full(returns.shape, 0.1))


def test_a_claim_holds_where_the_interval_holds_the_papers_number():
    arms = {"apdo-k5": constant([44, 45, 46, 47]), "cpo": constant([60, 61, 62, 63])}
    epochs, cpo, speed_up = claims(arms, Target(), None, {})
    assert (epochs.standing, cpo.standing, speed_up.standing) == ("holds", "differs", "differs")
    assert cpo.verdict == "sooner than the paper"
    assert speed_up.verdict == "less than 2×; APDO is faster"
    assert "4 of 4 seeds" in epochs.measured


def test_estimates_in_words():
    assert show(Estimate(47.0, 43.0, math.inf)) == "47 [43, never]"
    assert show(Estimate(math.inf, math.inf, math.inf)) == "never"
    assert show(Estimate(0.21)) == "0.21"
