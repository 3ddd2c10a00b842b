"""The enforced limit d_k: its formula, and what the formula promises."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from apdo.core import dial

LIMIT = np.asarray([0.2, 3.0, -1.0], np.float32)
COSTS = np.asarray([[0.7, 1.0, 4.0], [0.1, 9.0, 9.0], [0.5, 0.5, 0.5]], np.float32)
POSITIONS = (0.0, 0.25, 0.4, 0.6, 0.75, 1.0)
ERROR = np.asarray([0.015, 0.2, 5.0], np.float32)


def enforce(config, state, cost, error=ERROR, limit=LIMIT):
    return dial.enforce(config, state, *(jnp.asarray(each) for each in (cost, error, limit)))


def path(safety, half_life=5.0, epochs=12, costs=COSTS, margin=0.0):
    """d_k of each epoch, while the costs go round."""
    config = dial.Config(safety=safety, safety_half_life=half_life, margin=margin)
    state, limits = dial.start(config, LIMIT.size), []
    for epoch in range(epochs):
        state, limit = enforce(config, state, costs[epoch % len(costs)])
        limits.append(np.asarray(limit))
    return np.stack(limits)


@pytest.mark.parametrize("safety", POSITIONS)
def test_the_enforced_limit_equals_its_formula_for_each_constraint_and_knows_no_cost_but_the_first(safety):
    expected = [
        [d + (1 - 2 * safety) * max(c - d, 0.0) * 2 ** (-k / 5.0) for c, d in zip(COSTS[0], LIMIT, strict=True)]
        for k in range(12)
    ]
    np.testing.assert_allclose(path(safety), expected, rtol=1e-5)


def test_safety_first_begins_as_far_below_the_limit_as_return_first_begins_above():
    np.testing.assert_allclose(path(0.0)[0], np.maximum(COSTS[0], LIMIT), rtol=1e-6)
    np.testing.assert_allclose(path(1.0)[0] - LIMIT, -(path(0.0)[0] - LIMIT), rtol=1e-5)


def test_more_safety_is_a_lower_limit_in_every_epoch_where_the_first_policy_broke_it():
    limits = np.stack([path(safety) for safety in POSITIONS])
    assert np.all(np.diff(limits[..., [0, 2]], axis=0) < 0)


def test_a_constraint_that_the_first_policy_keeps_is_left_alone_whatever_comes_later():
    for safety in POSITIONS:
        np.testing.assert_array_equal(path(safety)[:, 1], np.full(12, LIMIT[1]))


def test_what_the_dial_changes_halves_in_its_half_life_and_is_gone_in_the_end():
    change = path(1.0, half_life=4.0, epochs=9)[:, 0] - LIMIT[0]
    np.testing.assert_allclose(change[4::4] / change[:-4:4], 0.5, rtol=1e-5)
    state = dial.Dial(first=jnp.asarray(COSTS[0]), epoch=jnp.asarray(2000))
    for safety in (0.0, 1.0):
        _, limit = enforce(dial.Config(safety=safety, margin=0.0), state, COSTS[1])
        np.testing.assert_array_equal(limit, LIMIT)


def test_in_the_middle_there_is_nothing_to_remember_and_the_limit_is_handed_through():
    config = dial.Config(margin=0.0)
    limit = jnp.asarray(LIMIT)
    assert dial.start(config, 3) is None
    state, found = dial.enforce(config, None, jnp.asarray(COSTS[0]), jnp.asarray(ERROR), limit)
    assert state is None
    assert found is limit
    assert dial.measure(None, limit) == {}


def test_the_dial_says_which_limit_was_enforced_where_it_moves_one():
    config = dataclasses.replace(dial.Config(), safety=0.75)
    state, limit = enforce(config, dial.start(config, 3), COSTS[0])
    assert dial.measure(state, limit) == {"enforced_limit": limit}


@pytest.mark.parametrize("safety", POSITIONS)
def test_what_the_dial_takes_off_the_total_is_a_geometric_series(safety):
    """Σ_k (d - d_k) = (2 S - 1) [C(π_0) - d]⁺ / (1 - 2^(-1/h)); docs/safety-dial.md builds on it."""
    taken = np.sum(LIMIT.astype(np.float64) - path(safety, half_life=5.0, epochs=200), axis=0)
    expected = (2 * safety - 1) * np.maximum(COSTS[0] - LIMIT, 0.0) / (1 - 2 ** (-1 / 5.0))
    np.testing.assert_allclose(taken, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("margin", [0.5, 1.0, 2.0])
def test_the_margin_is_so_many_standard_errors_below_the_limit_and_at_most_a_fifth_of_it(margin):
    _, limit = enforce(dial.Config(margin=margin), None, COSTS[0])
    np.testing.assert_allclose(limit, LIMIT - np.minimum(margin * ERROR, np.abs(LIMIT) / 5.0), rtol=1e-6)


@pytest.mark.parametrize("most", [0.0, 0.05, 1.0])
def test_the_margin_takes_no_more_than_its_share_of_the_limit(most):
    _, limit = enforce(dial.Config(margin=2.0, margin_most=most), None, COSTS[0])
    np.testing.assert_allclose(limit, LIMIT - np.minimum(2.0 * ERROR, most * np.abs(LIMIT)), rtol=1e-6)


def test_in_a_run_of_up_to_a_hundred_epochs_the_margin_has_its_whole_share():
    assert dial.suited(1) == dial.suited(100) == {"margin_most": dial.Config().margin_most}


def test_the_margin_share_of_a_long_run_falls_like_the_error_of_a_mean_over_its_epochs():
    shares = [dial.suited(epochs)["margin_most"] for epochs in (101, 400, 1600)]
    assert shares[0] < dial.Config().margin_most
    np.testing.assert_allclose(shares[1:], [0.1, 0.05], rtol=1e-12)


def test_at_a_limit_of_zero_the_margin_is_all_of_the_error_and_without_error_there_is_none():
    config = dial.Config(margin=1.0)
    np.testing.assert_array_equal(enforce(config, None, COSTS[0], limit=np.zeros(3, np.float32))[1], -ERROR)
    np.testing.assert_array_equal(enforce(config, None, COSTS[0], error=np.zeros(3, np.float32))[1], LIMIT)


@pytest.mark.parametrize("safety", POSITIONS)
def test_the_dial_moves_the_limit_less_its_margin_by_as_much_as_the_limit_itself(safety):
    below = LIMIT - enforce(dial.Config(margin=1.0), None, COSTS[0])[1]
    np.testing.assert_allclose(path(safety, margin=1.0), path(safety) - np.asarray(below), rtol=1e-5, atol=1e-6)
