"""Shuffled passes over a batch."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from apdo.core.minibatch import sweep


@cache
def recorder(samples, size, passes):
    """A jitted sweep that writes down which rows each of its calls was given."""
    taken = min(size, samples)
    calls = passes * (samples // taken)

    def descend(carry, data):
        log, call = carry
        rows, _ = data
        log = jax.lax.dynamic_update_slice(log, rows[None], (call, 0))
        return (log, call + 1), {"call": call.astype(jnp.float32), "row": rows[0].astype(jnp.float32), "data": data}

    def run(key):
        start = (jnp.full((calls, taken), -1), jnp.asarray(0))
        rows = jnp.arange(samples)
        data = (rows, jnp.stack([10.0 * rows, -1.0 * rows], axis=-1))
        return sweep(descend, start, data, key, size=size, passes=passes)

    return jax.jit(run)


def visits(samples, size, passes, seed=0):
    """The row numbers that each pass hands out, [passes, rows], and the averaged report."""
    (log, calls), report = recorder(samples, size, passes)(jax.random.key(seed))
    assert int(calls) == passes * (samples // min(size, samples))
    return np.asarray(log).reshape(passes, -1), report


@pytest.mark.parametrize(("samples", "size"), [(24, 6), (10, 64)])
def test_each_pass_visits_every_row_exactly_once_when_the_size_divides_the_batch(samples, size):
    for rows in visits(samples, size, 3)[0]:
        np.testing.assert_array_equal(np.sort(rows), np.arange(samples))


def test_each_pass_visits_no_row_twice_and_leaves_out_only_a_remainder_that_changes():
    rows, _ = visits(23, 5, 6)
    left_out = []
    for one_pass in rows:
        assert len(one_pass) == 20
        assert len(set(one_pass.tolist())) == 20
        assert set(one_pass.tolist()) <= set(range(23))
        left_out.append(frozenset(range(23)) - set(one_pass.tolist()))
    assert len(set(left_out)) > 3


def test_passes_differ_in_their_order_and_so_do_keys():
    rows, _ = visits(24, 6, 3)
    other, _ = visits(24, 6, 3, seed=1)
    assert len({tuple(one.tolist()) for one in np.concatenate([rows, other])}) == 6
    np.testing.assert_array_equal(rows, visits(24, 6, 3)[0])


def test_every_row_is_as_likely_in_every_place_of_a_pass():
    draws = 600
    orders = np.array([visits(24, 6, 3, seed)[0][1] for seed in range(draws)])
    for place in range(24):
        counts = np.bincount(orders[:, place], minlength=24)
        assert stats.chisquare(counts).pvalue > 1e-4


def test_the_report_is_the_mean_over_the_last_pass_alone_and_rows_keep_their_data():
    rows, report = visits(24, 6, 3)
    last = rows[-1].reshape(4, 6)
    assert float(report["call"]) == np.mean([8, 9, 10, 11])
    np.testing.assert_allclose(report["row"], last[:, 0].mean())
    np.testing.assert_allclose(report["data"][0], last.mean(axis=0))
    np.testing.assert_allclose(report["data"][1], np.stack([10 * last, -last], axis=-1).mean(axis=0), rtol=1e-6)


@pytest.mark.parametrize(("most", "made"), [(0, 1), (3, 1), (4, 2), (11, 3), (100, 5)])
def test_passes_end_after_the_first_one_that_is_told_to_be_enough(most, made):
    """Four calls in each pass, of five at most; whether to go on is asked after every pass, and the first is made."""
    calls, report = sweep(
        lambda count, rows: (count + 1, {"call": count.astype(jnp.float32)}),
        jnp.asarray(0),
        jnp.arange(24),
        jax.random.key(0),
        size=6,
        passes=5,
        going=lambda count: count <= most,
    )
    assert int(calls) == 4 * made
    assert float(report["call"]) == 4 * (made - 1) + 1.5


def test_passes_that_never_end_early_are_those_of_a_sweep_that_does_not_ask():
    def descend(carry, rows):
        return jnp.sin(1.3 * carry + rows.sum()), rows

    data, key = jnp.arange(24.0), jax.random.key(1)
    asked, told = sweep(descend, jnp.asarray(0.5), data, key, size=5, passes=4, going=lambda _: jnp.asarray(True))
    plain, same = sweep(descend, jnp.asarray(0.5), data, key, size=5, passes=4)
    np.testing.assert_allclose(asked, plain, rtol=1e-6)
    np.testing.assert_allclose(told, same, rtol=1e-6)
