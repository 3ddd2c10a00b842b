"""PDO's epoch: the order of its parts, and what each sees."""

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from jax.flatten_util import ravel_pytree

from apdo.algorithms import (
    cpo,
    gradient_steps,
    natural_steps,
    on_policy,
    pdo,
    ppo_steps,
    primal_steps,
    trpo,
    value_functions,
)
from apdo.core import critics, dial, dual, policies
from apdo.errors import InvalidInput
from problems import Reach, problem_of, random_batch

SMALL: dict[str, Any] = {"policy": policies.Config(hidden=(8,)), "critic": critics.Config(hidden=(8,), minibatches=2)}


OWN: dict[str, Any] = SMALL | {"rule": dual.Ascent(), "units": "own", "margin": 0.0}
"""The paper's dual step, in the problem's own units and against the limit itself."""


def priced(config, state, multiplier):
    """The state with another λ^(k)."""
    return dataclasses.replace(state, multiplier=dual.start(config.rule, jnp.asarray(multiplier)))


def one_epoch(config, task, limits, multiplier):
    problem = problem_of(task, 200, limits)
    state = pdo.init(config, problem, random.key(0))
    state = priced(config, state, multiplier)
    batch = random_batch(random.key(1), task, 10, 20)
    after, metrics = jax.jit(pdo.step, static_argnums=(0, 1))(config, problem, state, batch, random.key(2))
    return problem, batch, state, after, metrics


def discounted_costs(problem, batch):
    """C_i by hand: the mean over the batch's episodes of Σ γ^t c_t."""
    cost = np.asarray(batch.cost, np.float64)
    horizon, totals = problem.horizon, []
    for start in range(0, cost.shape[0], horizon):
        for n in range(cost.shape[1]):
            totals.append(sum(problem.cost_discount**t * cost[start + t, n] for t in range(horizon)))
    return np.mean(totals, axis=0)


def test_the_dual_step_uses_the_discounted_cost_of_the_batch_just_sampled():
    config = pdo.Config(dual_step=0.3, **OWN)
    problem, batch, _, after, metrics = one_epoch(config, Reach(costs=2), (1.0, 2.0), [0.5, 0.7])
    expected = discounted_costs(problem, batch)
    np.testing.assert_allclose(metrics["cost"], expected, rtol=1e-5)
    np.testing.assert_allclose(after.multiplier.value, [0.5, 0.7] + 0.3 * (expected - np.array([1.0, 2.0])), rtol=1e-5)


def test_with_annealing_the_dual_step_falls_as_the_policys_step_does():
    """Else the swing of the two would lose its damping; and without annealing an epoch's number changes nothing."""
    task = Reach(costs=2)
    problem, batch = problem_of(task, 200, (1.0, 2.0)), random_batch(random.key(1), task, 10, 20)
    for anneal, length in ((0.0, 1.0), (5.0, 0.25)):
        config = pdo.Config(primal=natural_steps.Trpo(anneal=anneal), dual_step=0.3, **OWN)
        fresh = priced(config, pdo.init(config, problem, random.key(0)), [0.5, 0.7])
        late = dataclasses.replace(fresh, units=dataclasses.replace(fresh.units, batches=jnp.asarray(15)))
        step = jax.jit(pdo.step, static_argnums=(0, 1))
        (first, met), (after, late_met) = (
            step(config, problem, state, batch, random.key(2)) for state in (fresh, late)
        )
        moves = [state.multiplier.value - fresh.multiplier.value for state in (first, after)]
        np.testing.assert_allclose(moves[1], length * moves[0], rtol=1e-4)
        np.testing.assert_allclose(late_met["kl"], length**2 * met["kl"], rtol=0.2)


def test_the_policy_step_sees_the_multipliers_before_this_batchs_dual_step_or_after_it():
    """So its policy is that of an epoch with those multipliers held, up to rounding."""

    def policy_and_prices(multiplier, **options):
        config = pdo.Config(primal=gradient_steps.LikelihoodRatio(), **options, **OWN)
        _, _, _, after, metrics = one_epoch(config, Reach(costs=2), (1.0, 20.0), multiplier)
        return ravel_pytree(after.policy)[0], metrics["multiplier"], after.multiplier.value

    before = np.asarray([0.5, 0.7], np.float32)
    for first in ("policy", "multipliers"):
        policy, seen, after = policy_and_prices(before, dual_step=30.0, first=first)
        assert after[0] > 10.0 * before[0]
        np.testing.assert_array_equal(seen, before if first == "policy" else after)
        for prices in (before, np.asarray(after)):
            held = policy_and_prices(prices, dual_step=0.0)[0]
            near = np.allclose(policy, held, atol=1e-5)
            assert near == np.array_equal(prices, seen)


@pytest.mark.parametrize("initial", [[0.5, 0.7], [40.0, 900.0]])
def test_in_relative_units_gains_count_shares_of_what_a_cost_varies_by_and_prices_of_the_advantages(initial):
    """I + β u e, and K_P u e on top of it, with u the price or the multiplier, e the relative excess."""
    rule = dual.Pid(proportional=0.5, far=0.0, most=0.0)
    config = pdo.Config(dual_step=0.3, rule=rule, margin=0.0, **SMALL)
    problem, batch, before, after, metrics = one_epoch(config, Reach(costs=2), (1.0, 20.0), initial)
    found = value_functions.estimates(config, problem, before.critic, before.multiplier.value, batch)
    deviation = np.std(np.asarray(found.advantage, np.float64), axis=(0, 1))
    unit = np.maximum(initial, deviation[0] / deviation[1:])
    cost, limit = np.asarray(metrics["cost"]), np.asarray([1.0, 20.0])
    size = np.maximum(cost, limit)
    size = np.maximum(
        np.maximum(np.minimum(size, 2.0 * metrics["cost_deviation"]), size / 10.0), 2.0 * metrics["cost_error"]
    )
    excess = np.clip((cost - limit) / size, -1.0, 1.0)
    assert excess[0] > 0.0 > excess[1]
    integral = np.maximum(initial + 0.3 * unit * excess, 0.0)
    np.testing.assert_allclose(after.multiplier.integral, integral, rtol=1e-4, atol=1e-5)
    expected = np.maximum(integral + 0.5 * unit * excess, 0.0)
    np.testing.assert_allclose(after.multiplier.value, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(after.units.price(), deviation[0] / deviation[1:], rtol=1e-4)


@pytest.mark.parametrize("options", [SMALL, OWN], ids=["relative", "own"])
def test_a_multiplier_never_falls_below_zero_and_a_step_of_zero_holds_it(options):
    _, _, _, after, _ = one_epoch(pdo.Config(dual_step=5.0, **options), Reach(costs=2), (1e3, 1e3), [0.1, 0.0])
    np.testing.assert_array_equal(after.multiplier.value, [0.0, 0.0])
    _, _, _, after, _ = one_epoch(pdo.Config(dual_step=0.0, **options), Reach(costs=2), (0.1, 0.1), [0.1, 3.0])
    np.testing.assert_array_equal(after.multiplier.value, np.asarray([0.1, 3.0], np.float32))


def test_the_dual_step_is_taken_against_the_limit_less_its_margin():
    options: dict[str, Any] = OWN | {"margin": 1.0}
    config = pdo.Config(dual_step=0.3, **options)
    _, _, _, after, metrics = one_epoch(config, Reach(costs=2), (0.5, 200.0), [5.0, 400.0])
    cost, error = np.asarray(metrics["cost"]), np.asarray(metrics["cost_error"])
    enforced = np.asarray([0.5, 200.0]) - np.minimum(error, [0.1, 40.0])
    assert error[0] > 0.1
    assert error[1] < 40.0
    np.testing.assert_allclose(after.multiplier.value, [5.0, 400.0] + 0.3 * (cost - enforced), rtol=1e-5)


def test_with_multipliers_of_zero_the_primal_step_is_trpo_on_the_reward():
    task = Reach(costs=2)
    step = natural_steps.Trpo(damping=1e-2)
    wide: dict[str, Any] = SMALL | {"policy": policies.Config(hidden=(8,), log_std=0.0)}
    config = pdo.Config(primal=step, overshoot=0.0, **wide)
    problem, batch, before, after, _ = one_epoch(config, task, (1.0, 1.0), [0.0, 0.0])
    first = jax.tree.map(lambda leaf: leaf[:1], before.critic.networks)
    reward_critic = dataclasses.replace(
        before.critic, networks=first, mean=before.critic.mean[:1], scale=before.critic.scale[:1]
    )
    advantage = on_policy.estimate_one(problem, reward_critic, batch, batch.reward, 0.95).advantage[..., 0]
    samples = on_policy.samples(problem, batch, (advantage - advantage.mean()) / advantage.std())
    improve = jax.jit(primal_steps.improve, static_argnums=0)
    expected, _, _ = improve(step, before.policy, (), samples, random.key(9))
    for ours, theirs in zip(jax.tree.leaves(after.policy), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0.0, atol=2e-3)


def test_a_step_of_an_episode_counts_in_the_gradient_as_it_counts_in_the_sum():
    """γ^t of a discounted sum, 1 of a total; on average 1."""
    task = Reach(costs=1)
    batch = random_batch(random.key(1), task, 10, 20)
    discounted = dataclasses.replace(problem_of(task, 200), discount=0.5, cost_discount=0.5)
    weight = on_policy.samples(discounted, batch, batch.reward).weight
    expected = 0.5 ** np.asarray(batch.step).reshape(-1)
    np.testing.assert_allclose(weight, expected / expected.mean(), rtol=1e-5)
    total = dataclasses.replace(discounted, cost_discount=1.0)
    np.testing.assert_allclose(on_policy.samples(total, batch, batch.reward).weight, np.ones(200), rtol=1e-5)


def test_large_multipliers_turn_the_primal_step_against_the_cost():
    """The surrogate of the return falls and that of the cost too, where the two conflict."""
    task = Reach(costs=1)
    for multiplier, sign in (([0.0], 1), ([1e4], -1)):
        config = pdo.Config(**SMALL)
        problem = problem_of(task, 200, (1.0,))
        state = pdo.init(config, problem, random.key(0))
        state = priced(config, state, multiplier)
        batch = random_batch(random.key(1), task, 10, 20)
        # reward and cost are the same thing
        batch = jax.tree.map(lambda x: x, batch)
        batch = type(batch)(**{**vars(batch), "reward": batch.action[..., 0], "cost": batch.action[..., :1]})
        after, _ = jax.jit(pdo.step, static_argnums=(0, 1))(config, problem, state, batch, random.key(2))
        o = batch.observation.reshape(200, -1)
        before, now = (jax.vmap(lambda x, p=p: p(x).mode())(o) for p in (state.policy, after.policy))
        moved = jnp.mean(now - before)
        assert np.sign(float(moved)) == sign


@pytest.mark.parametrize(
    ("primal", "values"),
    [
        (natural_steps.Trpo(), "combined"),
        (natural_steps.NaturalGradient(), "separate"),
        (gradient_steps.LikelihoodRatio(), "separate"),
        (ppo_steps.Ppo(minibatches=4), "separate"),
    ],
)
def test_every_primal_step_and_value_mode_changes_the_policy_and_stays_finite(primal, values):
    options = SMALL if values == "separate" else OWN
    config = pdo.Config(primal=primal, values=values, **options)
    _, _, before, after, metrics = one_epoch(config, Reach(costs=2), (0.1, 0.1), [0.5, 0.5])
    changed = [
        bool(jnp.any(a != b))
        for a, b in zip(jax.tree.leaves(before.policy), jax.tree.leaves(after.policy), strict=True)
    ]
    assert any(changed)
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves((after, metrics)))
    assert after.critic.networks.biases[0].shape[0] == (3 if values == "separate" else 1)


def test_a_combined_value_function_is_fitted_to_reward_less_priced_costs():
    """r - Σ λ c = 2 - 0.5 · 1 - 2 · 0.25 = 1 at each step, so that the value is what is left of the episode."""
    task = Reach(costs=2)
    fitting = critics.Config(hidden=(8,), passes=300, minibatches=1, rate=0.01)
    options: dict[str, Any] = OWN | {"critic": fitting}
    config = pdo.Config(values="combined", trace=1.0, **options)
    problem, batch, state, _, _ = one_epoch(config, task, (0.1, 0.1), [0.5, 2.0])
    constant = dataclasses.replace(
        batch, reward=jnp.full((10, 20), 2.0), cost=jnp.tile(jnp.asarray([1.0, 0.25]), (10, 20, 1))
    )
    after, _ = jax.jit(pdo.step, static_argnums=(0, 1))(config, problem, state, constant, random.key(2))
    fitted = critics.values(after.critic, constant.observation, constant.step)[..., 0]
    left = (1.0 - 0.99 ** (5 - np.asarray(constant.step))) / 0.01
    assert np.ptp(left) > 3.5
    assert np.sqrt(np.mean((np.asarray(fitted) - left) ** 2)) < 0.2


def test_a_combined_value_function_has_no_advantages_of_costs_to_count_gains_in():
    with pytest.raises(InvalidInput, match="needs units own"):
        pdo.init(pdo.Config(values="combined", units="relative", **SMALL), problem_of(Reach(), 200), random.key(0))


def test_trpo_ignores_the_costs():
    task = Reach(costs=1)
    problem = problem_of(task, 200, (0.1,))
    config = trpo.Config(**SMALL)
    state = trpo.init(config, problem, random.key(0))
    batch = random_batch(random.key(1), task, 10, 20)
    dear = type(batch)(**{**vars(batch), "cost": 100.0 * batch.cost})
    step = jax.jit(trpo.step, static_argnums=(0, 1))
    ours, _ = step(config, problem, state, batch, random.key(2))
    theirs, metrics = step(config, problem, state, dear, random.key(2))
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(a, b)
    assert "multiplier" not in metrics


def test_the_dual_step_is_taken_against_the_limit_that_the_dial_enforces():
    """One limit is broken by the first policy, the other kept; only the first is moved."""
    for safety in (0.0, 1.0):
        config = pdo.Config(dual_step=0.3, safety=safety, **OWN)
        _, _, _, after, metrics = one_epoch(config, Reach(costs=2), (1.0, 1e3), [5.0, 400.0])
        cost = np.asarray(metrics["cost"])
        enforced = np.asarray([cost[0] if safety == 0.0 else 2.0 - cost[0], 1e3])
        np.testing.assert_allclose(metrics["enforced_limit"], enforced, rtol=1e-5)
        np.testing.assert_allclose(after.multiplier.value, [5.0, 400.0] + 0.3 * (cost - enforced), rtol=1e-5)


@pytest.mark.parametrize("options", [SMALL, OWN], ids=["relative", "own"])
def test_with_the_dual_step_first_the_policy_moves_as_with_the_multipliers_that_it_leads_to(options):
    """The primal step is the one that the other order makes when it already has those multipliers, and holds them."""
    task, limits = Reach(costs=2), (1.0, 20.0)
    # Damped, for two programs round a step in their own ways; the two orders lie 0.04 apart here.
    options = options | {"primal": natural_steps.Trpo(damping=0.1)}
    *_, after, metrics = one_epoch(pdo.Config(dual_step=0.3, first="multipliers", **options), task, limits, [0.5, 0.7])
    assert not np.allclose(after.multiplier.value, [0.5, 0.7])
    np.testing.assert_array_equal(metrics["multiplier"], after.multiplier.value)
    held = pdo.Config(dual_step=0.0, **options)
    *_, twin, shown = one_epoch(held, task, limits, np.asarray(after.multiplier.value))
    np.testing.assert_array_equal(shown["multiplier"], metrics["multiplier"])
    for ours, theirs in zip(jax.tree.leaves(after.policy), jax.tree.leaves(twin.policy), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0.0, atol=2e-3)


def test_a_combined_value_function_cannot_have_the_dual_step_first():
    config = pdo.Config(values="combined", first="multipliers", **OWN)
    with pytest.raises(InvalidInput, match="first policy"):
        pdo.init(config, problem_of(Reach(), 200), random.key(0))


def test_a_step_is_shortened_on_the_side_of_the_limit_from_which_it_would_cross_it():
    """With a cost all but on its limit, a step that lowers it is one through the limit from above, not from below."""
    task, rule = Reach(), {"margin": 0.0, "dual_step": 0.0, **SMALL}
    cost = float(one_epoch(pdo.Config(**rule), task, (1.0,), [0.5])[4]["cost"][0])

    def length(limit, overshoot):
        return float(one_epoch(pdo.Config(overshoot=overshoot, **rule), task, (limit,), [0.5])[4]["kl"])

    free = length(cost, 0.0)
    above, below = (length(cost * share, 1e-5) for share in (1.0 - 1e-5, 1.0 + 1e-5))
    assert min(above, below) < 1e-3 * free
    # Three programs, for three limits: each rounds the search along the step in its own way.
    np.testing.assert_allclose(max(above, below), free, rtol=0.05)


@pytest.mark.parametrize("algorithm", [pdo, cpo])
def test_with_the_dial_in_the_middle_the_program_is_the_one_without_a_dial(algorithm, monkeypatch):
    """Operation by operation, so that no compiler can round it otherwise; and off the middle it is another."""
    task = Reach(costs=2)
    problem, batch = problem_of(task, 200, (1.0, 2.0)), random_batch(random.key(1), task, 10, 20)

    def program(**options):
        config = algorithm.Config(margin=0.0, **SMALL, **options)
        state = algorithm.init(config, problem, random.key(0))
        traced = jax.make_jaxpr(lambda state: algorithm.step(config, problem, state, batch, random.key(2)))(state)
        return re.sub("0x[0-9a-f]+", "", str(traced))

    plain, moved = program(safety=0.5, safety_half_life=3.0), program(safety=0.75)
    monkeypatch.setattr(dial, "enforce", lambda config, state, cost, error, limit: (None, limit))
    without = program()
    assert plain == without
    assert moved != without
