"""Running statistics: merging in any order gives those of all samples; normalising gives what NumPy gives."""

import jax.numpy as jnp
import numpy as np
import pytest

from apdo.core.statistics import CLIP, Statistics


def test_merging_in_any_order_gives_the_statistics_of_all_samples():
    rng = np.random.default_rng(0)
    parts = [rng.normal(loc, scale, size=(n, 3)) for loc, scale, n in ((0, 1, 7), (50, 0.1, 1), (-3, 20, 400))]
    whole = np.concatenate(parts)
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
        merged = Statistics.empty(3)
        for i in order:
            merged = merged.merge(Statistics.of(jnp.asarray(parts[i].reshape(1, -1, 3), dtype=jnp.float32)))
        assert float(merged.count) == len(whole)
        np.testing.assert_allclose(merged.mean, whole.mean(axis=0), rtol=1e-4)
        np.testing.assert_allclose(merged.variance, whole.var(axis=0), rtol=1e-4)


def test_merging_with_nothing_changes_nothing():
    some = Statistics.of(jnp.asarray([[1.0, 2.0], [3.0, 5.0]]))
    for merged in (Statistics.empty(2).merge(some), some.merge(Statistics.empty(2))):
        np.testing.assert_array_equal(merged.mean, some.mean)
        np.testing.assert_array_equal(merged.variance, some.variance)
    nothing = Statistics.empty(2).merge(Statistics.empty(2))
    np.testing.assert_array_equal(nothing.normalise(jnp.asarray([7.0, -100.0])), [7.0, -100.0])


def test_normalised_samples_have_zero_mean_and_unit_variance():
    samples = jnp.asarray(np.random.default_rng(1).normal([3.0, -1e4], [1e-3, 1e3], size=(500, 2)), dtype=jnp.float32)
    normal = np.asarray(Statistics.of(samples).normalise(samples))
    np.testing.assert_allclose(normal.mean(axis=0), 0.0, atol=1e-2)
    np.testing.assert_allclose(normal[:, 1].std(), 1.0, rtol=1e-4)


@pytest.mark.parametrize("value", [0.0, 0.1, 1e6])
def test_an_entry_that_never_changes_is_shifted_and_not_blown_up(value):
    statistics = Statistics.of(jnp.full((1000, 1), value))
    np.testing.assert_allclose(statistics.normalise(jnp.asarray([value])), 0.0, atol=0.2)
    np.testing.assert_allclose(statistics.normalise(jnp.asarray([value + 1.0])), 1.0, atol=0.2)


def test_outliers_are_clipped():
    statistics = Statistics.of(jnp.asarray([[-1.0], [1.0]]))
    assert float(statistics.normalise(jnp.asarray([1e9]))[0]) == CLIP


def test_what_older_statistics_make_of_an_observation_follows_from_what_newer_ones_make_of_it():
    rng = np.random.default_rng(3)
    samples = jnp.asarray(rng.normal([5.0, -100.0, 2.0], [2.0, 30.0, 0.0], size=(50, 3)), jnp.float32)
    old = Statistics.of(samples[:20])
    new = old.merge(Statistics.of(3.0 * samples[20:] + 1.0))
    scale, shift = old.seen_from(new)
    expected = old.normalise(samples)
    assert np.abs(expected).max() < CLIP
    np.testing.assert_allclose(scale[None] * new.normalise(samples) + shift[None], expected, rtol=1e-4, atol=1e-4)
    assert np.all(np.abs(scale - 1.0) > 0.1, where=[True, True, False])


def test_as_long_as_there_were_no_samples_an_observation_was_seen_as_it_is():
    samples = jnp.asarray(np.random.default_rng(4).normal([5.0, -3.0], [2.0, 0.5], size=(20, 2)), jnp.float32)
    new = Statistics.of(samples)
    scale, shift = Statistics.empty(2).seen_from(new)
    np.testing.assert_allclose(scale[None] * new.normalise(samples) + shift[None], samples, rtol=1e-5, atol=1e-5)
