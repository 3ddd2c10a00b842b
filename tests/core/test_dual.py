"""Multiplier rules: each with its law."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from apdo.core import dual
from problems import vector


def begun(config, multiplier):
    return dual.start(config, vector(multiplier))


def rise(multiplier, cost, limit, step, config=None):
    config = config or dual.Ascent()
    return np.asarray(dual.update(config, begun(config, multiplier), vector(cost) - vector(limit), step).value)


def follow(config, multiplier, costs, limit, step, unit: Any = 1.0, natural: Any = 1.0):
    """The multipliers after each of a sequence of costs."""
    state, path = begun(config, multiplier), []
    for cost in costs:
        state = dual.update(config, state, vector(cost) - vector(limit), step, unit, natural)
        path.append(np.asarray(state.value))
    return np.stack(path)


RULES = [
    dual.Ascent(),
    dual.Ascent(decay=0.5),
    dual.Pid(proportional=0.5, far=1.0, derivative=0.3, most=0.0),
    dual.Adam(),
]


def test_ascent_equals_its_formula_entry_by_entry():
    rng = np.random.default_rng(0)
    multiplier, cost, limit = rng.uniform(0, 2, size=(3, 50)).astype(np.float32)
    expected = [max(0.0, old + 0.7 * (c - d)) for old, c, d in zip(multiplier, cost, limit, strict=True)]
    assert min(expected) == 0.0 < max(expected)
    np.testing.assert_allclose(rise(multiplier, cost, limit, 0.7), expected, atol=1e-6)


@pytest.mark.parametrize("rule", RULES)
def test_a_multiplier_never_falls_below_zero_and_leaves_zero_as_soon_as_its_constraint_is_broken(rule):
    np.testing.assert_array_equal(rise([0.0, 0.25], [0.0, 0.0], [1.0, 1.0], 0.5, rule), [0.0, 0.0])
    assert rise([0.0], [3.0], [1.0], 0.5, rule)[0] > 0.4


@pytest.mark.parametrize("rule", RULES)
def test_a_cost_that_stays_at_its_limit_leaves_the_multiplier_as_it_is(rule):
    limit, start = [0.2, 25.0, 0.0], np.asarray([0.0, 1.5, 100.0], np.float32)
    np.testing.assert_array_equal(follow(rule, start, [limit] * 3, limit, 10.0), np.stack([start] * 3))


@pytest.mark.parametrize("rule", RULES)
def test_each_constraint_moves_only_its_own_multiplier(rule):
    multiplier, limit, calm = [1.0, 2.0, 3.0], [0.5, 0.5, 0.5], np.asarray([0.5, 0.5, 0.5], np.float32)
    for i in range(3):
        cost = calm.copy()
        cost[i] += 1.0
        moved = rise(multiplier, cost, limit, 0.25, rule) - np.asarray(multiplier, np.float32)
        assert moved[i] > 0.2
        np.testing.assert_array_equal(np.delete(moved, i), [0.0, 0.0])


BOUNDED = [(dual.Ascent(most=2.0), 1), (dual.Pid(proportional=0.5, most=2.0), 1), (dual.Adam(most=2.0), 30)]


@pytest.mark.parametrize(("rule", "memory"), BOUNDED)
def test_a_bounded_multiplier_stays_at_its_bound_and_does_not_wind_up(rule, memory):
    """However long the cost was above its limit, costs below it bring the multiplier down at once; Adam's momentum,
    which is all that it remembers, lasts for some thirty steps."""
    path = follow(rule, [0.0], [[5.0]] * 500 + [[0.0]] * memory, [1.0], 0.5)[:, 0]
    assert path.max() == path[499] == 2.0
    assert path[-1] < 2.0


@pytest.mark.parametrize(("rule", "memory"), [(RULES[0], 1), (RULES[1], 1), (RULES[2], 1), (RULES[3], 30)])
def test_a_multiplier_does_not_wind_up_below_zero_either(rule, memory):
    """However long a constraint was slack, its multiplier rises at once when it breaks, but for Adam's momentum."""
    path = follow(rule, [0.0], [[0.0]] * 500 + [[3.0]] * memory, [1.0], 0.5)[:, 0]
    assert path[:500].max() == 0.0
    assert path[-1] > 0.0


def test_the_bound_holds_for_the_passing_terms_of_pid_too():
    rule = dual.Pid(proportional=5.0, derivative=5.0, most=2.0)
    path = follow(rule, [0.0], [[1.5], [9.0], [0.0], [9.0]], [1.0], 0.1)[:, 0]
    assert path.max() == 2.0
    assert path[2] == 0.0


@pytest.mark.parametrize("rule", [dual.Ascent(), dual.Pid(proportional=0.4, derivative=0.2)])
def test_where_nothing_is_projected_all_excess_ever_seen_is_in_the_integral(rule):
    """λ_end - λ_0 = β Σ (C - d): the total excess until a multiplier settles is set by β and by nothing else."""
    costs = np.random.default_rng(2).uniform(0.8, 2.0, size=(50, 1))
    state = begun(rule, [3.0])
    for cost in costs:
        state = dual.update(rule, state, vector(cost) - 1.0, 0.2)
    assert float(state.integral[0]) == pytest.approx(3.0 + 0.2 * np.sum(costs - 1.0), rel=1e-5)


def test_decaying_steps_add_up_to_their_series():
    path = follow(dual.Ascent(decay=1.0), [0.0], [[3.0]] * 6, [1.0], 0.5)[:, 0]
    np.testing.assert_allclose(path, np.cumsum(0.5 * 2.0 / np.arange(1, 7)), rtol=1e-6)


@pytest.mark.parametrize("far", [0.0, 2.0])
def test_pid_equals_its_formula_and_forgets_the_passing_terms(far):
    costs, limit, beta, kp, kd = np.array([2.0, 3.0, 1.5, 1.0, 0.2]), 1.0, 0.1, 0.4, 0.25
    path = follow(dual.Pid(proportional=kp, far=far, derivative=kd), [0.3], costs[:, None], [limit], beta)[:, 0]
    integral, before = 0.3, costs[0]
    for cost, found in zip(costs, path, strict=True):
        integral = max(0.0, integral + beta * (cost - limit))
        excess = cost - limit
        expected = max(0.0, integral + kp * (excess + far * excess * abs(excess)) + kd * max(cost - before, 0.0))
        assert found == pytest.approx(expected, rel=1e-5)
        before = cost


def test_an_uncertain_excess_moves_the_integral_whole_and_the_proportional_term_by_its_certain_share():
    rule = dual.Pid(proportional=2.0, far=0.0)
    before = dual.start(rule, jnp.asarray([1.0, 1.0, 1.0]))
    found = dual.update(rule, before, jnp.full(3, 0.4), 0.1, certain=jnp.asarray([1.0, 0.25, 0.0]))
    np.testing.assert_allclose(found.integral, 1.04, rtol=1e-6)
    np.testing.assert_allclose(found.value, [1.84, 1.24, 1.04], rtol=1e-6)


def test_in_parts_of_the_integral_the_proportional_term_scales_a_price_and_begins_none():
    costs, limit, beta, kp = np.array([2.0, 3.0, 0.5, 1.0, 0.2]), 1.0, 0.1, 0.4
    rule = dual.Pid(proportional=kp, far=0.0, of_integral=True)
    path = follow(rule, [0.0], costs[:, None], [limit], beta)[:, 0]
    integral = np.cumsum(beta * (costs - limit))
    assert np.all(integral > 0.0)
    np.testing.assert_allclose(path, integral * (1.0 + kp * (costs - limit)), rtol=1e-5)


def test_pid_without_its_terms_is_ascent():
    costs = np.random.default_rng(1).uniform(0, 2, size=(20, 2))
    plain = follow(dual.Ascent(), [0.1, 0.2], costs, [0.7, 1.2], 0.3)
    np.testing.assert_array_equal(follow(dual.Pid(proportional=0.0), [0.1, 0.2], costs, [0.7, 1.2], 0.3), plain)


def test_adam_equals_optax_ascent_until_it_meets_zero():
    costs, limit = np.array([[2.0], [1.5], [0.2], [3.0]]), [1.0]
    path = follow(dual.Adam(), [1.0], costs, limit, 0.1)[:, 0]
    optimiser = optax.adam(0.1)
    value = vector([1.0])
    state = optimiser.init(value)
    for cost, found in zip(costs, path, strict=True):
        update, state = optimiser.update(vector(limit) - vector(cost), state)
        value = optax.apply_updates(value, update)
        assert found == pytest.approx(float(np.asarray(value)[0]), rel=1e-6)


def test_damping_settles_what_plain_ascent_keeps_swinging():
    """A policy that follows the sign of λ - λ* at constant speed, as a trust-region step does."""

    def last_swing(rule):
        state, cost = begun(rule, [0.0]), 2.0
        path = []
        for _ in range(400):
            state = dual.update(rule, state, vector([cost - 1.0]), 0.02)
            cost = float(np.clip(cost - 0.05 * np.tanh(20.0 * (float(state.value[0]) - 0.5)), 0.0, 2.0))
            path.append(float(state.value[0]))
        return np.ptp(path[-100:])

    assert last_swing(dual.Ascent()) > 0.1
    assert last_swing(dual.Pid(proportional=0.2, far=0.0)) < 0.01


def test_a_jump_moves_the_multipliers_and_keeps_what_the_rule_remembers():
    rule = dual.Pid(proportional=0.5)
    state = dual.update(rule, begun(rule, [0.0]), vector([1.5]), 0.1)
    jumped = dual.jump(state, vector([7.0]))
    assert float(jumped.value[0]) == float(jumped.integral[0]) == 7.0
    assert float(jumped.excess[0]) == 1.5
    assert int(jumped.updates) == 1


def test_the_proportional_term_goes_no_further_than_its_reach():
    """Costs 0.1 and 5 above the limit at a gain of 2: the first adds 0.2, the second its reach of 0.5."""
    rule = dual.Pid(proportional=2.0, far=0.0, reach=0.5)
    near = follow(rule, [1.0], np.array([[0.1], [0.1]]), [0.0], 0.0)[:, 0]
    far = follow(rule, [1.0], np.array([[5.0], [5.0]]), [0.0], 0.0)[:, 0]
    below = follow(rule, [1.0], np.array([[-5.0], [-5.0]]), [0.0], 0.0)[:, 0]
    np.testing.assert_allclose([near[-1], far[-1], below[-1]], [1.2, 1.5, 0.5], rtol=1e-6)


@pytest.mark.parametrize("rule", RULES)
def test_moves_are_counted_in_the_unit(rule):
    """In units of u, multipliers are u times those in units of 1, entry by entry."""
    costs, limit, unit = np.random.default_rng(3).uniform(0, 2, size=(20, 2)), [0.7, 1.9], np.asarray([8.0, 0.25])
    plain = follow(rule, [0.5, 0.75], costs, limit, 0.3)
    assert plain.min() == 0.0 < plain.max()
    found = follow(rule, unit * [0.5, 0.75], costs, limit, 0.3, vector(unit))
    np.testing.assert_array_equal(found, plain * unit.astype(np.float32))


@pytest.mark.parametrize("rule", [bounded for bounded, _ in BOUNDED])
def test_an_upper_bound_is_counted_in_natural_units_whatever_a_multiplier_moves_in(rule):
    natural = np.asarray([3.0, 0.5])
    for unit in (1.0, vector([7.0, 0.1])):
        path = follow(rule, [0.0, 0.0], [[5.0, 5.0]] * 500, [1.0, 1.0], 0.5, unit, vector(natural))
        np.testing.assert_array_equal(path[-1], 2.0 * natural.astype(np.float32))


def test_pid_goes_no_further_than_its_bound_also_in_its_integral_so_that_it_comes_back_at_once():
    rule, natural = dual.Pid(proportional=1.0, most=20.0), vector([0.1])
    state = begun(rule, [0.0])
    for _ in range(50):
        state = dual.update(rule, state, vector([1.0]), 0.5, vector([1.0]), natural)
    np.testing.assert_allclose([state.value[0], state.integral[0]], 2.0, rtol=1e-6)
    state = dual.update(rule, state, vector([-1.0]), 0.5, vector([1.0]), natural)
    np.testing.assert_allclose(state.integral, [1.5], rtol=1e-6)


def test_a_bound_that_falls_takes_nothing_off_a_multiplier_whose_cost_is_too_high():
    """Where the reward no longer varies the natural size falls to nothing, and the limit is still broken."""
    rules = (dual.Ascent(most=2.0), dual.Pid(proportional=0.5, most=2.0), dual.Adam(most=2.0))
    for rule in rules:
        state, natural = begun(rule, [0.0]), 1.0
        for _ in range(60):
            state = dual.update(rule, state, vector([0.8]), 0.3, vector([natural]), vector([natural]))
        before = float(state.integral[0])
        np.testing.assert_allclose(before, 2.0, rtol=1e-5)
        for _ in range(60):
            natural *= 0.9
            state = dual.update(rule, state, vector([0.8]), 0.3, vector([natural]), vector([natural]))
        assert float(state.value[0]) >= before
        state = dual.update(rule, state, vector([-0.8]), 0.3, vector([natural]), vector([natural]))
        np.testing.assert_allclose(state.integral, [2.0 * natural], rtol=1e-5)
