"""The units that make gains of multipliers pure numbers."""

import jax.numpy as jnp
import numpy as np
import pytest

from apdo.core import dual, relative_units
from problems import vector

WIDE = 1e9
"""A deviation of episodes that is no bound on anything."""


def seen(advantages, costs, deviation=WIDE, error=0.0):
    """Relative units after batches with these advantages and costs, and this spread of every cost."""
    units = relative_units.Relative.start(len(costs[0]))
    for advantage, cost in zip(advantages, costs, strict=True):
        units = observed(units, advantage, cost, deviation, error)
    return units


def observed(units, advantage, cost, deviation=WIDE, error=0.0):
    spread = tuple(
        jnp.broadcast_to(jnp.asarray(value, dtype=jnp.float32), (len(cost),)) for value in (deviation, error)
    )
    return units.observe(vector(advantage), vector(cost), spread)


def after_one(cost, deviation, error=0.0):
    """Relative units after one batch with this cost."""
    return seen([np.ones((2, 2, 1 + len(cost)))], [cost], deviation, error)


def advantages_of(rng, batches, deviations):
    return [rng.normal(size=(6, 5, len(deviations))) * deviations + 1.0 for _ in range(batches)]


def test_an_excess_is_relative_to_the_limit_or_the_cost_whichever_is_larger_and_stays_within_one():
    nothing = vector([0.0] * 5)
    cost, limit = [3.0, 0.0, 0.5, 100.0, -4.0], [2.0, 2.0, 0.0, 1.0, -2.0]
    found = relative_units.excess(vector(cost), vector(limit), nothing)
    np.testing.assert_allclose(found, [1 / 3, -1.0, 1.0, 0.99, -0.5], rtol=1e-6)
    rng = np.random.default_rng(0)
    cost, limit = rng.normal(size=(2, 200, 5)) * 10.0 ** rng.integers(-6, 6, (2, 200, 5))
    found = np.stack([relative_units.excess(vector(c), vector(d), nothing) for c, d in zip(cost, limit, strict=True)])
    assert np.abs(found).max() <= 1.0
    np.testing.assert_array_equal(np.sign(found), np.sign(cost - limit))


def test_where_a_cost_hardly_varies_two_deviations_are_a_full_excess_and_a_tenth_of_the_cost_is_one_in_any_case():
    cost, limit = [1.6, 1.6, 1.6, 9.0], vector([1.5, 1.5, 1.5, 3.0])
    found = after_one(cost, [0.1, 0.2, 0.0, 100.0]).excess(vector(cost), limit)
    np.testing.assert_allclose(found, [0.1 / 0.2, 0.1 / 0.4, 0.1 / 0.16, 6.0 / 9.0], rtol=1e-5)


def test_an_excess_within_a_batch_s_own_noise_is_a_small_one_even_at_a_limit_of_zero():
    found = [float(after_one([c], 3.0, 0.5).excess(vector([c]), vector([0.0]))[0]) for c in (0.1, 0.5, 2.0)]
    np.testing.assert_allclose(found, [0.1, 0.5, 1.0], rtol=1e-6)


def test_of_a_cost_that_can_be_negative_two_deviations_are_a_full_excess_whatever_its_size():
    """Drifts around a limit of 0 would else count as ±1, however small."""
    units = observed(after_one([-0.1], 3.0), np.ones((2, 2, 2)), [0.6], 3.0)
    np.testing.assert_allclose(units.excess(vector([0.6]), vector([0.0])), [0.1], rtol=1e-6)
    np.testing.assert_allclose(after_one([0.6], 3.0).excess(vector([0.6]), vector([0.0])), [1.0], rtol=1e-6)
    np.testing.assert_allclose(after_one([0.6], 3.0).excess(vector([0.6]), vector([-0.6])), [0.2], rtol=1e-6)


def test_a_limit_below_zero_that_only_the_dial_enforces_does_not_make_a_cost_one_that_can_be_negative():
    units = after_one([0.6], 3.0)
    found = units.excess(vector([0.6]), vector([-0.06]), vector([0.2]))
    np.testing.assert_allclose(found, [1.0], rtol=1e-6)  # 0.66 above it, relative to 0.6
    np.testing.assert_allclose(units.excess(vector([0.1]), vector([-0.1]), vector([0.2])), [1.0], rtol=1e-6)


def test_a_batch_without_a_rare_event_is_not_as_far_below_its_limit_as_can_be():
    """A cost of 40 ± 40 in one batch of four, of 0 ± 0 in the others, a limit of 10: by their own errors three of four
    excesses would be -1 and the multiplier would vanish, although the mean is at the limit."""
    units, excesses = relative_units.Relative.start(1), []
    for k in range(24):
        cost = 40.0 * (k % 4 == 0)
        units = observed(units, np.ones((2, 2, 2)), [cost], 3.0 * cost, cost)
        excesses.append(float(units.excess(vector([cost]), vector([10.0]))[0]))
    assert min(excesses) > -0.5
    assert np.mean(excesses[4:]) > -0.2


def test_where_cost_and_limit_are_both_small_an_excess_is_relative_to_a_tenth_of_the_largest_cost_so_far():
    """A limit of 0 is approached in ever smaller steps, and not in steps of 1 up to the last one."""
    units = seen([np.ones((2, 2, 2))] * 3, [[1.0], [50.0], [2.0]])
    cost, zero = np.asarray([50.0, 5.0, 0.5, 0.0]), vector([0.0])
    found = [float(units.excess(vector([c]), zero)[0]) for c in cost]
    np.testing.assert_allclose(found, [1.0, 1.0, 0.1, 0.0], rtol=1e-6)
    assert float(relative_units.Relative.start(1).excess(zero, zero)[0]) == 0.0


def test_a_price_is_the_ratio_of_the_advantages_deviations_averaged_over_the_batches():
    rng = np.random.default_rng(1)
    advantages = advantages_of(rng, 4, [3.0, 0.5, 20.0])
    units = seen(advantages, [[1.0, 1.0]] * 4)
    deviations = np.stack([a.reshape(-1, 3).std(axis=0) for a in advantages])
    np.testing.assert_allclose(units.price(), np.mean(deviations[:, :1] / deviations[:, 1:], axis=0), rtol=1e-5)


def test_a_first_policy_that_costs_a_hundred_times_as_much_does_not_hold_the_price_down():
    rng = np.random.default_rng(2)
    advantages = advantages_of(rng, 1, [1.0, 100.0]) + advantages_of(rng, 9, [1.0, 1.0])
    assert 0.5 < float(seen(advantages, [[1.0]] * 10).price()[0]) < 2.0


def test_one_batch_with_hardly_any_cost_raises_the_price_by_no_more_than_three_shares():
    usual = [np.asarray([[-1.0, -1.0], [1.0, 1.0]])[None]] * 100
    units = observed(seen(usual, [[1.0]] * 100), [[[-1.0, -1e-6], [1.0, 1e-6]]], [1.0])
    np.testing.assert_allclose(units.price(), [1.3], rtol=1e-5)


def test_among_many_batches_the_newest_counts_a_tenth():
    units = seen([np.asarray([[-1.0, -1.0], [1.0, 1.0]])[None]] * 100, [[1.0]] * 100)
    units = observed(units, [[[-2.0, -3.0], [2.0, 3.0]]], [1.0])
    np.testing.assert_allclose(units.price(), [0.9 + 0.1 * 2 / 3], rtol=1e-5)


def test_a_multiplier_moves_by_its_price_while_it_is_small_and_by_shares_of_itself_above():
    units = seen(advantages_of(np.random.default_rng(2), 1, [3.0, 1.0]), [[1.0]])
    price = float(units.price()[0])
    found = [float(units.unit(vector([factor * price]))[0]) for factor in (0.0, 0.5, 1.0, 4.0)]
    np.testing.assert_allclose(found, price * np.asarray([1.0, 1.0, 1.0, 4.0]), rtol=1e-6)


def test_a_cost_that_never_varied_has_no_price_and_its_multiplier_does_not_move():
    advantage = np.random.default_rng(4).normal(size=(4, 3, 3)) * [1.0, 0.0, 1.0]
    units = seen([advantage], [[1.0, 1.0]])
    assert float(units.price()[0]) == float(units.unit(vector([5.0, 5.0]))[0]) == 0.0
    assert float(units.price()[1]) > 0.0
    rule = dual.Pid(proportional=1.0)
    zero = vector([0.0, 0.0])
    state = dual.update(rule, dual.start(rule, zero), vector([1.0, 1.0]), 0.5, units.unit(zero))
    assert float(state.value[0]) == 0.0 < float(state.value[1])


def test_where_no_reward_varied_a_multiplier_still_moves():
    units = seen([np.random.default_rng(5).normal(size=(4, 3, 2)) * [0.0, 2.0]], [[1.0]])
    assert 0.0 < float(units.price()[0]) < np.inf


def test_after_a_jump_the_estimate_is_the_unit_and_an_estimate_of_zero_leaves_it_as_it_was():
    units = seen(advantages_of(np.random.default_rng(6), 2, [3.0, 1.0, 2.0]), [[1.0, 1.0]] * 2)
    jumped = units.jump(vector([7.0, 0.0]))
    np.testing.assert_allclose(jumped.price(), [7.0, float(units.price()[1])], rtol=1e-6)
    assert float(jumped.unit(vector([1.0, 0.0]))[0]) == 7.0
    later = observed(jumped, advantages_of(np.random.default_rng(7), 1, [9.0, 1.0, 2.0])[0], [1.0, 1.0])
    assert float(later.price()[0]) == 7.0


@pytest.mark.parametrize("rule", [dual.Ascent(decay=0.5), dual.Pid(proportional=0.6, derivative=0.2), dual.Adam()])
@pytest.mark.parametrize(("reward", "cost"), [(1024.0, 1.0), (1.0, 2.0**-12), (0.125, 32.0)])
def test_other_units_of_reward_and_cost_change_nothing_but_the_units_of_the_multipliers(rule, reward, cost):
    """Rewards times a, costs and limits times b, powers of two: every multiplier is a/b times as large, bit for bit."""

    def path(a, b):
        rng = np.random.default_rng(8)
        units, state, found = relative_units.Relative.start(2), dual.start(rule, vector([0.0, 0.0])), []
        for _ in range(12):
            advantage, costs = rng.normal(size=(6, 5, 3)) * [2.0 * a, b, 9.0 * b], rng.uniform(0.0, 3.0, 2) * b
            units = observed(units, advantage, costs, 0.3 * costs, 0.1 * costs)
            excess = units.excess(vector(costs), vector([1.0 * b, 1.5 * b]))
            state = dual.update(rule, state, excess, 0.5, units.unit(state.integral), units.price())
            found.append(np.asarray(state.value))
        return np.stack(found)

    plain = path(1.0, 1.0)
    assert plain.min() == 0.0 < plain.max()
    np.testing.assert_array_equal(path(reward, cost), plain * np.float32(reward / cost))
