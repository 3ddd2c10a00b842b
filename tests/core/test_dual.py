"""Projected dual ascent."""

import jax.numpy as jnp
import numpy as np

from apdo.core.dual import ascend


def rise(multiplier, cost, limit, step):
    return np.asarray(ascend(jnp.asarray(multiplier), jnp.asarray(cost), jnp.asarray(limit), step))


def test_ascent_equals_its_formula_entry_by_entry():
    rng = np.random.default_rng(0)
    multiplier, cost, limit = rng.uniform(0, 2, size=(3, 50)).astype(np.float32)
    expected = [max(0.0, old + 0.7 * (c - d)) for old, c, d in zip(multiplier, cost, limit, strict=True)]
    assert min(expected) == 0.0 < max(expected)
    np.testing.assert_allclose(rise(multiplier, cost, limit, 0.7), expected, atol=1e-6)


def test_a_multiplier_never_falls_below_zero_and_leaves_zero_as_soon_as_its_constraint_is_broken():
    np.testing.assert_array_equal(rise([0.0, 0.25], [0.0, 0.0], [1.0, 1.0], 0.5), [0.0, 0.0])
    np.testing.assert_array_equal(rise([0.0], [3.0], [1.0], 0.5), [1.0])


def test_a_cost_at_its_limit_leaves_the_multiplier_as_it_is():
    limit = [0.2, 25.0, 0.0]
    np.testing.assert_array_equal(
        rise([0.0, 1.5, 100.0], limit, limit, 10.0), np.asarray([0.0, 1.5, 100.0], np.float32)
    )


def test_each_constraint_moves_only_its_own_multiplier():
    multiplier, limit, calm = [1.0, 2.0, 3.0], [0.5, 0.5, 0.5], np.asarray([0.5, 0.5, 0.5], np.float32)
    for i in range(3):
        cost = calm.copy()
        cost[i] += 1.0
        np.testing.assert_allclose(
            rise(multiplier, cost, limit, 0.25) - np.asarray(multiplier, np.float32), 0.25 * np.eye(3)[i]
        )
