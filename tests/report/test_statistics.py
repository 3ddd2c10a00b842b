import numpy as np
import pytest
import scipy.stats

from apdo.errors import InvalidInput
from apdo.report.statistics import bootstrap_interval, interquartile_mean


def mean(values):
    return values.mean(axis=0)


def middle_of_copies(values):
    """The definition: write every value four times, sort, drop the lowest and the highest quarter, average the rest."""
    copies = np.sort(np.repeat(values, 4, axis=0), axis=0)
    count = len(values)
    return copies[count : 3 * count].mean(axis=0)


@pytest.mark.parametrize("count", [*range(1, 14), 30, 101])
def test_the_interquartile_mean_is_the_mean_of_the_middle_half_for_any_number_of_seeds(count):
    values = np.random.default_rng(count).normal(size=(count, 3, 2))
    np.testing.assert_allclose(interquartile_mean(values), middle_of_copies(values), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("count", [4, 8, 40])
def test_it_is_the_quarter_trimmed_mean_where_the_quarters_hold_whole_seeds(count):
    values = np.random.default_rng(count).normal(size=count)
    np.testing.assert_allclose(interquartile_mean(values), scipy.stats.trim_mean(values, 0.25))


def test_one_seed_is_its_own_mean():
    np.testing.assert_array_equal(interquartile_mean([[3.5, -1.0]]), [3.5, -1.0])


@pytest.mark.parametrize("wild", [1e12, -1e12, np.inf, -np.inf])
def test_one_wild_seed_in_eight_moves_it_no_further_than_the_other_seeds_reach(wild):
    calm = np.random.default_rng(0).normal(size=7)
    result = interquartile_mean(np.append(calm, wild))
    assert calm.min() < result < calm.max()


def test_it_moves_and_scales_with_the_values():
    values = np.random.default_rng(1).normal(size=(7, 4))
    np.testing.assert_allclose(interquartile_mean(3 * values + 2), 3 * interquartile_mean(values) + 2)
    np.testing.assert_allclose(interquartile_mean(-values), -interquartile_mean(values), atol=1e-12)


def test_the_order_of_the_seeds_does_not_matter():
    values = np.random.default_rng(2).normal(size=(9, 4))
    np.testing.assert_array_equal(interquartile_mean(values), interquartile_mean(values[::-1]))


def test_a_seed_that_is_not_a_number_is_not_trimmed_away():
    values = np.zeros((8, 2))
    values[0, 1] = np.nan
    np.testing.assert_array_equal(interquartile_mean(values), [0, np.nan])


def test_the_interval_of_a_mean_agrees_with_scipys_percentile_bootstrap():
    values = np.random.default_rng(3).gamma(2.0, size=12)
    low, high = bootstrap_interval(mean, values, resamples=40_000)
    theirs = scipy.stats.bootstrap(
        (values,), np.mean, n_resamples=40_000, method="percentile", rng=np.random.default_rng(4)
    ).confidence_interval
    tolerance = 0.02 * (theirs.high - theirs.low)
    assert low == pytest.approx(theirs.low, abs=tolerance)
    assert high == pytest.approx(theirs.high, abs=tolerance)


@pytest.mark.parametrize("level", [0.5, 0.95])
def test_the_interval_covers_the_true_mean_about_as_often_as_it_says(level):
    experiments = np.random.default_rng(5).normal(loc=1.0, size=(40, 1000))
    low, high = bootstrap_interval(mean, experiments, level=level, resamples=500)
    assert np.mean((low <= 1.0) & (high >= 1.0)) == pytest.approx(level, abs=0.04)


def test_the_interval_holds_the_statistic_and_widens_with_the_level():
    values = np.random.default_rng(6).normal(size=(8, 5, 2))
    narrow, wide = (bootstrap_interval(interquartile_mean, values, level=level) for level in (0.5, 0.95))
    middle = interquartile_mean(values)
    assert middle.shape == wide[0].shape == (5, 2)
    assert np.all(wide[0] <= narrow[0])
    assert np.all(narrow[1] <= wide[1])
    assert np.all((wide[0] <= middle) & (middle <= wide[1]))


def test_every_position_gets_the_interval_that_it_gets_alone():
    values = np.random.default_rng(7).normal(size=(6, 3))
    together = bootstrap_interval(interquartile_mean, values)
    for i in range(3):
        alone = bootstrap_interval(interquartile_mean, values[:, i])
        np.testing.assert_allclose([together[0][i], together[1][i]], alone, rtol=1e-12)


def test_positions_are_worked_in_blocks_without_changing_the_result(monkeypatch):
    values = np.random.default_rng(8).normal(size=(6, 11))
    whole = bootstrap_interval(interquartile_mean, values)
    monkeypatch.setattr("apdo.report.statistics._BLOCK", 3 * 6 * 2000)
    np.testing.assert_allclose(bootstrap_interval(interquartile_mean, values), whole, rtol=1e-12)


def test_the_same_generator_seed_gives_the_same_interval():
    values = np.random.default_rng(9).normal(size=(6, 3))
    np.testing.assert_array_equal(bootstrap_interval(mean, values), bootstrap_interval(mean, values))
    assert not np.array_equal(bootstrap_interval(mean, values), bootstrap_interval(mean, values, seed=1))


def test_one_seed_has_an_unknown_interval_and_not_one_without_width():
    low, high = bootstrap_interval(mean, np.ones((1, 4)))
    assert low.shape == high.shape == (4,)
    assert np.isnan(low).all()
    assert np.isnan(high).all()


@pytest.mark.parametrize("arguments", [{"level": 0.0}, {"level": 95}, {"resamples": 0}])
def test_a_senseless_interval_is_refused(arguments):
    with pytest.raises(InvalidInput):
        bootstrap_interval(mean, np.ones(3), **arguments)


@pytest.mark.parametrize("values", [[], np.ones((0, 3)), 1.0])
def test_no_seed_at_all_is_refused(values):
    with pytest.raises(InvalidInput, match="at least one seed"):
        interquartile_mean(values)
