"""Optima against closed forms, brute force and the laws of linear programming."""

import dataclasses
import itertools

import numpy as np
import pytest

from apdo import exact
from apdo.errors import InvalidInput
from apdo.exact import decomposition
from apdo.finite import fold_time
from finite_problems import garnet, random_cmdp, two_states


def every_policy(cmdp):
    """Return [P] and costs [P, M] of all deterministic policies."""
    found = [
        exact.evaluate(cmdp, np.eye(cmdp.actions)[list(chosen)])
        for chosen in itertools.product(range(cmdp.actions), repeat=cmdp.states)
    ]
    return np.asarray([f.value for f in found]), np.asarray([f.costs for f in found])


def best_mixture_of_two(gains, costs, limit):
    """The best return of a mixture of two policies with one cost within the limit: an optimum needs no more."""
    i, j = np.meshgrid(*[np.arange(len(gains))] * 2, indexing="ij")
    kept = costs <= limit
    best = gains[kept].max()
    pairs = kept[i] & ~kept[j]
    share = (limit - costs[i][pairs]) / (costs[j][pairs] - costs[i][pairs])
    return max(best, (gains[i][pairs] + share * (gains[j][pairs] - gains[i][pairs])).max(initial=-np.inf))


@pytest.mark.parametrize("method", exact.METHODS)
@pytest.mark.parametrize("limit", [0.5, 1.0, 2.0])
def test_work_or_rest_comes_out_as_in_closed_form(method, limit):
    most = 1 / (1 - 0.8**2)
    optimum = exact.solve(two_states(limit), method=method)
    assert optimum.value == pytest.approx(min(limit, most))
    np.testing.assert_allclose(optimum.multipliers, [1.0 if limit < most else 0.0], atol=1e-9)
    # x = p / (1 - γ (1 - p) - γ² p) solved for p at x = d, with γ = 0.8.
    np.testing.assert_allclose(optimum.policy[0, 1], limit * 0.2 / (1 - limit * 0.16), rtol=1e-9)
    assert optimum.unique
    assert optimum.certificate.holds


@pytest.mark.parametrize("seed", range(6))
def test_the_optimum_is_the_best_mixture_of_two_deterministic_policies(seed):
    cmdp = random_cmdp(seed, states=4, actions=3, discount=[0.9, 0.99][seed % 2], ends=seed % 3 == 0)
    gains, costs = every_policy(cmdp)
    optimum = exact.solve(cmdp)
    expected = best_mixture_of_two(gains, costs[:, 0], cmdp.limits[0])
    np.testing.assert_allclose(optimum.value, expected, rtol=1e-9)
    assert optimum.certificate.holds
    assert exact.mixed_states(optimum.policy) <= 1


@pytest.mark.parametrize("seed", range(4))
def test_the_three_methods_agree_and_prove_it(seed):
    cmdp = random_cmdp(seed, states=15, actions=4, constraints=3, tightness=0.4)
    ours, simplex, interior = (exact.solve(cmdp, method=method) for method in exact.METHODS)
    for other in (simplex, interior):
        np.testing.assert_allclose(other.value, ours.value, rtol=1e-7)
        np.testing.assert_allclose(other.multipliers, ours.multipliers, atol=1e-5)
        assert other.certificate.holds
    assert ours.certificate.holds
    assert abs(ours.certificate.gap) < 1e-9
    assert exact.mixed_states(ours.policy) <= 3


@pytest.mark.parametrize("seed", range(2))
def test_multipliers_are_the_derivatives_of_the_value_in_the_limits(seed):
    cmdp = random_cmdp(seed, states=8, constraints=2, tightness=0.37)
    optimum = exact.solve(cmdp)
    assert optimum.unique
    for i in range(2):
        step = 1e-4 * np.eye(2)[i]
        above, below = (exact.solve(cmdp.with_limits(cmdp.limits + s)).value for s in (step, -step))
        np.testing.assert_allclose((above - below) / 2e-4, optimum.multipliers[i], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("seed", range(2))
def test_the_least_of_the_dual_function_is_the_optimal_value(seed):
    cmdp = random_cmdp(seed, states=6, constraints=1)
    optimum = exact.solve(cmdp)
    prices = np.linspace(0, 3 * optimum.multipliers[0] + 1, 60)
    points = [exact.lagrangian(cmdp, [price]).value for price in prices]
    assert min(points) >= optimum.value - 1e-9
    assert exact.lagrangian(cmdp, optimum.multipliers).value == pytest.approx(optimum.value, rel=1e-10)


def test_the_dual_function_is_the_best_of_all_policies_and_its_subgradient_is_below_it():
    cmdp = random_cmdp(5, constraints=2)
    gains, costs = every_policy(cmdp)
    rng = np.random.default_rng(0)
    for _ in range(20):
        here, there = rng.exponential(size=(2, 2))
        point, other = exact.lagrangian(cmdp, here), exact.lagrangian(cmdp, there)
        assert point.value == pytest.approx((gains - (costs - cmdp.limits) @ here).max(), rel=1e-10)
        np.testing.assert_allclose(point.subgradient, cmdp.limits - point.costs)
        assert point.gain - here @ (point.costs - cmdp.limits) == pytest.approx(point.value, rel=1e-10)
        assert other.value >= point.value + point.subgradient @ (there - here) - 1e-9


def test_a_slack_constraint_has_no_price_and_changes_nothing():
    cmdp = random_cmdp(2, states=6, constraints=2)
    loose = exact.solve(cmdp.with_limits([cmdp.limits[0], 1e3]))
    assert loose.multipliers[1] == 0
    assert loose.multipliers[0] > 0
    alone = dataclasses.replace(cmdp, cost=cmdp.cost[:1], limits=cmdp.limits[:1], cost_names=("cost",))
    assert loose.value == pytest.approx(exact.solve(alone).value, rel=1e-10)


def test_without_constraints_it_is_a_plain_decision_process():
    cmdp = random_cmdp(2)
    free = dataclasses.replace(cmdp, cost=cmdp.cost[:0], limits=cmdp.limits[:0], cost_names=())
    for method in exact.METHODS:
        assert exact.solve(free, method=method).value == pytest.approx(every_policy(cmdp)[0].max(), rel=1e-9)


def test_where_a_limit_is_exactly_a_policys_cost_the_multiplier_is_an_interval_with_the_one_sided_derivatives_as_ends():
    cmdp = random_cmdp(4, states=5)
    # A corner of the value as a function of the limit: what the optimal policy at some fixed price costs.
    corner = cmdp.with_limits(exact.lagrangian(cmdp, exact.solve(cmdp).multipliers * 1.01).costs)
    optimum = exact.solve(corner)
    assert not optimum.unique
    step = 1e-5
    above, below = (exact.solve(corner.with_limits(corner.limits + s)).value for s in (step, -step))
    np.testing.assert_allclose(optimum.multiplier_low, (above - optimum.value) / step, rtol=1e-4)
    np.testing.assert_allclose(optimum.multiplier_high, (optimum.value - below) / step, rtol=1e-4)
    assert optimum.multiplier_low[0] - 1e-9 <= optimum.multipliers[0] <= optimum.multiplier_high[0] + 1e-9


def test_a_redundant_copy_of_a_constraint_shares_its_price():
    cmdp = random_cmdp(3, states=6)
    price = exact.solve(cmdp).multipliers[0]
    twice = dataclasses.replace(
        cmdp, cost=np.repeat(cmdp.cost, 2, axis=0), limits=np.repeat(cmdp.limits, 2), cost_names=("a", "b")
    )
    optimum = exact.solve(twice)
    assert optimum.multipliers.sum() == pytest.approx(price, rel=1e-6)
    np.testing.assert_allclose(optimum.multiplier_low, 0, atol=1e-6)
    np.testing.assert_allclose(optimum.multiplier_high, price, rtol=1e-6)
    assert not optimum.unique


def test_at_the_least_feasible_limit_the_price_has_no_upper_end():
    cmdp = random_cmdp(6, states=5)
    least = exact.lagrangian(dataclasses.replace(cmdp, reward=-cmdp.cost[0]), [0.0]).gain
    optimum = exact.solve(cmdp.with_limits([-least]))
    assert optimum.certificate.holds
    assert optimum.multiplier_high[0] == np.inf


@pytest.mark.parametrize("seed", range(2))
def test_infeasible_limits_are_answered_with_the_least_costs_and_the_least_relaxation(seed):
    cmdp = random_cmdp(seed, states=4, constraints=2)
    _, costs = every_policy(cmdp)
    least = costs.min(axis=0)
    with pytest.raises(exact.Infeasible) as caught:
        exact.solve(cmdp.with_limits(least - [0.1, 0.2]))
    np.testing.assert_allclose(caught.value.least, least, rtol=1e-9)
    assert "no policy keeps the limits" in str(caught.value)
    raised = least - [0.1, 0.2] + caught.value.excess
    assert exact.solve(cmdp.with_limits(raised + 1e-6)).certificate.holds
    with pytest.raises(exact.Infeasible):
        exact.solve(cmdp.with_limits(raised - 1e-5))


def test_limits_that_are_feasible_one_by_one_may_be_infeasible_together():
    # Either cost can be avoided, not both: each step costs one of the two.
    cmdp = dataclasses.replace(
        two_states(),
        cost=np.asarray([[[1.0, 0.0], [1.0, 0.0]], [[0.0, 1.0], [0.0, 1.0]]]),
        limits=np.asarray([2.0, 2.0]),
        cost_names=("left", "right"),
    )
    with pytest.raises(exact.Infeasible) as caught:
        exact.solve(cmdp)
    np.testing.assert_allclose(caught.value.least, [0, 0], atol=1e-12)
    assert caught.value.excess == pytest.approx(0.5)  # five discounted steps in all, to be shared


def test_a_folded_problem_with_two_discounts_is_solved_and_proved():
    cmdp = random_cmdp(7, states=6, constraints=2, discount=0.9)
    folded = fold_time(cmdp, 12, discount=0.95, cost_discount=1.0)
    cheap = exact.lagrangian(folded, [50.0, 50.0]).costs
    free = exact.lagrangian(folded, [0.0, 0.0]).costs
    optimum = exact.solve(folded.with_limits((cheap + free) / 2))
    assert optimum.certificate.holds
    assert optimum.occupancy.sum() == pytest.approx(12)
    np.testing.assert_allclose(
        exact.solve(folded.with_limits((cheap + free) / 2), method="highs-ds").value, optimum.value, rtol=1e-8
    )


def test_at_states_that_are_never_visited_the_policy_is_greedy():
    cmdp = two_states(0.5)
    away = dataclasses.replace(cmdp, start=np.asarray([1.0, 0.0]), reward=cmdp.reward.copy(), discount=0.0)
    away.reward[1, 1] = 3.0  # state 1 is not visited without a future
    optimum = exact.solve(away)
    np.testing.assert_array_equal(optimum.policy[1], [0, 1])
    np.testing.assert_allclose(optimum.occupancy, [[0.5, 0.5], [0, 0]], atol=1e-12)


def test_an_occupancy_adds_up_to_return_and_costs_and_flows():
    cmdp = random_cmdp(8, states=6, constraints=2, ends=True)
    optimum = exact.solve(cmdp)
    assert np.sum(optimum.occupancy * cmdp.reward) == pytest.approx(optimum.value)
    np.testing.assert_allclose(np.sum(optimum.occupancy * cmdp.cost, axis=(1, 2)), optimum.costs)
    inflow = cmdp.start + cmdp.discount * np.einsum("sa,sat->t", optimum.occupancy, cmdp.dense())
    np.testing.assert_allclose(optimum.occupancy.sum(axis=1), inflow, rtol=1e-10)


def test_a_certificate_fails_for_a_policy_or_a_multiplier_that_is_a_little_off():
    cmdp = random_cmdp(1, states=6, constraints=2)
    best = exact.solve(cmdp)
    assert exact.certify(cmdp, best.policy, best.multipliers, best.state_values).holds
    careless = 0.999 * best.policy + 0.001 * exact.lagrangian(cmdp, [0.0, 0.0]).policy
    broken = exact.certify(cmdp, careless, best.multipliers, best.state_values)
    assert not broken.holds
    assert broken.primal_violation > 1e-5
    careful = 0.999 * best.policy + 0.001 * exact.lagrangian(cmdp, [100.0, 100.0]).policy
    wasteful = exact.certify(cmdp, careful, best.multipliers, best.state_values)
    assert not wasteful.holds
    assert wasteful.primal_violation == 0
    assert wasteful.gap > 1e-5
    for factor in (0.99, 1.01):
        moved = best.multipliers * factor
        point = exact.lagrangian(cmdp, moved)
        assert not exact.certify(cmdp, best.policy, moved, point.state_values).holds
        assert not exact.certify(cmdp, best.policy, moved, best.state_values).holds
    assert not exact.certify(cmdp, best.policy, best.multipliers, best.state_values - 0.01).holds
    assert not exact.certify(cmdp, best.policy, -best.multipliers, best.state_values).holds
    assert not exact.certify(cmdp, best.policy, best.multipliers, np.full(6, np.nan)).holds


def test_a_trade_off_curve_is_concave_and_its_slope_is_the_multiplier():
    cmdp = random_cmdp(9, states=6, constraints=2)
    whole = exact.trade_offs(cmdp, points=15)
    for i, curve in enumerate(whole):
        assert curve.constraint == i
        assert not np.isnan(curve.values).any()
        assert (np.diff(curve.values) >= -1e-9).all()
        slopes = np.diff(curve.values) / np.diff(curve.limits)
        assert (np.diff(slopes) <= 1e-6).all()
        price = curve.multipliers[:, i]
        assert (slopes <= price[:-1] + 1e-6).all()
        assert (slopes >= price[1:] - 1e-6).all()
        assert price[-1] == pytest.approx(0, abs=1e-9)
        here = np.flatnonzero(curve.limits == cmdp.limits[i])[0]
        assert curve.values[here] == pytest.approx(exact.solve(cmdp).value, rel=1e-9)
        below = exact.trade_off(cmdp, i, [curve.limits[0] - 1e-3, curve.limits[0] + 1e-6])
        assert np.isnan(below.values[0])
        assert not np.isnan(below.values[1])


def test_a_thousand_states_are_solved_and_proved():
    cmdp = garnet(0, states=1000)
    optimum = exact.solve(cmdp)
    assert optimum.certificate.holds
    assert abs(optimum.certificate.gap) < 1e-8
    np.testing.assert_allclose(optimum.costs, cmdp.limits, rtol=1e-9)
    assert (optimum.multipliers > 0).all()


def test_large_chains_are_solved_alike_with_and_without_factorisation(monkeypatch):
    cmdp = garnet(1, states=400)
    policy = np.random.default_rng(0).dirichlet(np.ones(10), 400)
    krylov = exact.evaluate(cmdp, policy)
    monkeypatch.setattr("apdo.exact.chain.FACTORISED", 10**9)
    direct = exact.evaluate(cmdp, policy)
    np.testing.assert_allclose(krylov.occupancy, direct.occupancy, rtol=1e-9)
    monkeypatch.setattr("apdo.exact.chain.FACTORISED", 0)
    monkeypatch.setattr("apdo.exact.chain.KRYLOV_STEPS", 1)  # too few to converge: factorisation must step in
    np.testing.assert_allclose(exact.evaluate(cmdp, policy).occupancy, direct.occupancy, rtol=1e-9)


@pytest.mark.parametrize(
    "ask",
    [
        lambda cmdp: exact.solve(cmdp, method="simplex"),
        lambda cmdp: exact.evaluate(cmdp, np.ones((2, 2))),
        lambda cmdp: exact.evaluate(cmdp, np.ones((3, 2)) / 2),
        lambda cmdp: exact.lagrangian(cmdp, [-1.0]),
        lambda cmdp: exact.lagrangian(cmdp, [1.0, 1.0]),
        lambda cmdp: exact.trade_off(cmdp, 1, [1.0]),
        lambda cmdp: cmdp.with_limits([1.0, 2.0]),
    ],
)
def test_what_makes_no_sense_is_refused(ask):
    with pytest.raises(InvalidInput):
        ask(two_states())


def test_the_relaxation_is_negative_by_the_margin_where_limits_are_easily_kept():
    cmdp = two_states(limit=0.4)
    found = decomposition.violation(cmdp, decomposition.Pool(cmdp), to_the_end=True)
    assert found.amount == pytest.approx(-0.4)
