"""CPO's epoch: units, safety of the line search, several constraints, and how much noise is believed."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from jax.flatten_util import ravel_pytree

from apdo import objective
from apdo.algorithms import believed_step, cpo, natural_steps, on_policy, primal_steps
from apdo.algorithms.local_model import LocalModel, solver
from apdo.core import constrained_step, critics, policies, trust_region
from on_policy_steps import LENGTH, advantages, gains, local_model, on_policy_batch, totals
from problems import Reach, problem_of, run, training_of

SEARCH = trust_region.LineSearch(fraction=1.0, iterations=50, damping=1e-2)
improve = jax.jit(cpo.improve, static_argnums=0)
gradients = jax.jit(LocalModel.gradients, static_argnums=1)


@jax.jit
def solved(here, own):
    """H⁻¹ times gradients."""
    return solver(SEARCH, here)(own)


def step_from(here, own, excess):
    return improve(SEARCH, here, own, solved(here, own), jnp.asarray(excess))


@pytest.fixture(scope="module")
def policy():
    return policies.init(policies.Config(hidden=(8,)), random.key(0), 2, 1, discrete=False)


def without_doubt(policy, batch, advantage, excess):
    """CPO's own step: the gradients of the whole batch, believed as they are."""
    here = local_model(policy, batch, advantage)
    return step_from(here, gradients(here, 1), excess)


def test_a_slack_constraint_leaves_the_trpo_step(policy):
    batch = on_policy_batch(policy, 1)
    advantage = advantages(batch, 1)
    new, _, metrics = without_doubt(policy, batch, advantage, [-1e3])
    centred = advantage[..., 0] - advantage[..., 0].mean()
    samples = on_policy.samples(totals(1), batch, centred)
    trpo = jax.jit(primal_steps.improve, static_argnums=0)
    expected, _, _ = trpo(natural_steps.Trpo(**vars(SEARCH)), policy, (), samples, random.key(0))
    np.testing.assert_allclose(ravel_pytree(new)[0], ravel_pytree(expected)[0], rtol=1e-3, atol=1e-5)
    assert float(metrics["constrained"]) == 0.0
    assert float(metrics["multiplier"][0]) == 0.0


def test_a_violated_constraint_that_cannot_be_met_in_one_step_is_reduced(policy):
    batch = on_policy_batch(policy, 1)
    advantage = advantages(batch, 1)
    new, _, metrics = without_doubt(policy, batch, advantage, [1e3])
    assert float(metrics["recovering"]) == 1.0
    assert gains(policy, batch, advantage, new)[1] < -0.01


def test_a_binding_constraint_gives_a_step_that_uses_up_its_slack_and_no_more(policy):
    batch = on_policy_batch(policy, 1)
    advantage = advantages(batch, 1)
    free, _, _ = without_doubt(policy, batch, advantage, [-1e3])
    wish = gains(policy, batch, advantage, free)[1]
    assert wish > 0.05
    slack = 0.3 * wish
    new, _, metrics = without_doubt(policy, batch, advantage, [-slack])
    reached = gains(policy, batch, advantage, new)
    assert float(metrics["constrained"]) == 1.0
    assert float(metrics["multiplier"][0]) > 0.0
    assert reached[0] > 0.0
    assert reached[1] <= slack


def test_from_outside_the_limits_a_step_may_give_up_return_to_come_back(policy):
    """Fails when the line search asks for return also from outside: CPO then stands still there."""
    batch = on_policy_batch(policy, 1)
    # The cost is the reward itself, so that every step back costs return; half of what one step can take off is asked.
    gain = advantages(batch, 1)[..., :1]
    advantage = jnp.concatenate([gain, gain], axis=-1)
    away, _, _ = without_doubt(policy, batch, advantage, [1e3])
    excess = -0.5 * gains(policy, batch, advantage, away)[1:]
    new, _, metrics = without_doubt(policy, batch, advantage, excess)
    assert float(metrics["recovering"]) == 0.0
    assert float(metrics["step_accepted"]) == 1.0
    reached = gains(policy, batch, advantage, new)
    assert reached[1] == pytest.approx(-excess[0], rel=0.1)
    assert reached[0] < 0.0


def test_every_constraint_is_honoured_not_only_the_worst(policy):
    """Cost 0 wants smaller actions, cost 1 larger ones: the step must respect both slacks at once."""
    batch = on_policy_batch(policy, 2)
    advantage = advantages(batch, 2)
    for slack in ((0.02, 0.02), (0.02, 1e3), (1e3, 0.02)):
        new, _, metrics = without_doubt(policy, batch, advantage, -np.asarray(slack, np.float32))
        reached = gains(policy, batch, advantage, new)[1:]
        assert np.all(reached <= np.asarray(slack)), (slack, reached)
        assert float(metrics["step_accepted"]) == 1.0


def test_the_cost_gradient_is_scaled_to_episodes(policy):
    """The step in c + bᵀx ≤ 0 is right only if b is per episode, as c is: fails when the episode length is dropped."""
    batch = on_policy_batch(policy, 1)
    advantage = advantages(batch, 1)
    here = local_model(policy, batch, advantage)
    per_episode = gradients(here, 1)
    # Half of the cost that one recovering step can take off, by the right count.
    away, _, _ = step_from(here, per_episode, [1e3])
    excess = jnp.asarray(-0.5 * gains(policy, batch, advantage, away)[1:])
    right, _, with_length = step_from(here, per_episode, excess)
    _, _, without_length = step_from(here, per_episode / LENGTH, excess)
    # An excess that one step can mend when costs are counted per episode looks out of reach when counted per step.
    assert float(with_length["recovering"]) == 0.0
    assert float(without_length["recovering"]) == 1.0
    assert gains(policy, batch, advantage, right)[1] <= 0.0


def test_gains_are_what_the_sums_of_an_episode_gain_and_the_gradients_are_theirs(policy):
    batch = on_policy_batch(policy, 2)
    advantage = advantages(batch, 2)
    here = local_model(policy, batch, advantage)
    parameters, unravel = ravel_pytree(policy)
    direction = random.normal(random.key(3), parameters.shape)
    near = unravel(parameters + 0.05 * direction)
    np.testing.assert_allclose(here.gains(near), gains(policy, batch, advantage, near), rtol=1e-3, atol=1e-4)
    slope = jax.jvp(lambda x: here.gains(unravel(x)), (parameters,), (direction,))[1]
    np.testing.assert_allclose(gradients(here, 1)[0] @ direction, slope, rtol=1e-3, atol=1e-4)


def test_the_parts_gradients_are_of_their_own_environments_and_their_mean_is_that_of_all(policy):
    batch = on_policy_batch(policy, 1)
    here = local_model(policy, batch, advantages(batch, 1))
    whole, halves = gradients(here, 1), gradients(here, 2)
    np.testing.assert_allclose(halves.mean(axis=0), whole[0], rtol=1e-3, atol=1e-5)
    odd = (here.row % 2 == 1)[:, None]
    moved = gradients(dataclasses.replace(here, advantage=jnp.where(odd, 7.0, here.advantage)), 2)
    np.testing.assert_array_equal(moved[0], halves[0])
    assert not np.allclose(moved[1], halves[1])


def test_a_single_environment_is_both_halves(policy):
    batch = on_policy_batch(policy, 1, environments=1)
    here = local_model(policy, batch, advantages(batch, 1))
    halves = gradients(here, 2)
    assert halves.shape[0] == 2
    for half in halves:
        np.testing.assert_allclose(half, gradients(here, 1)[0], rtol=1e-5, atol=1e-7)


def test_the_epoch_hands_over_its_sums_gradients_averaged_over_epochs_and_the_excess(monkeypatch, policy):
    """The laws above are about `improve`; this one ties `step` to it."""
    seen = []

    def spy(search, model, gradients, solved, excess, *_):
        seen.append((model, gradients, solved, excess))
        return model.policy, jnp.asarray([0.125]), {}

    monkeypatch.setattr(cpo, "improve", spy)
    batch = on_policy_batch(policy, 1)
    problem = problem_of(Reach(costs=1, horizon=LENGTH), 2000, (0.3,))
    config = cpo.Config(history=0.5, margin=0.0, search=SEARCH, policy=policies.Config(hidden=(8,)))
    first = cpo.init(config, problem, random.key(0))
    second, told = cpo.step(config, problem, first, batch, random.key(1))
    _, after = cpo.step(config, problem, second, batch, random.key(2))

    plain = on_policy.estimate(problem, first.critic, batch, config.trace, config.cost_trace).advantage
    weight = objective.step_weights(problem, batch)
    expected = weight[..., None] * (plain - plain.mean(axis=(0, 1), keepdims=True))
    np.testing.assert_allclose(seen[0][0].advantage, expected.reshape(-1, 2), rtol=1e-4, atol=1e-7)
    one, other = (here.gradients(2) for here, *_ in seen)
    np.testing.assert_allclose(seen[0][1], one, rtol=1e-3, atol=1e-5)
    mixed, _, kept = believed_step.averaged(
        other, solved(seen[1][0], other), one, solved(seen[1][0], one), jnp.asarray(0.5)
    )
    np.testing.assert_allclose(seen[1][1], mixed, rtol=1e-2, atol=1e-4)
    np.testing.assert_allclose(after["history"], kept[1:], rtol=1e-2)
    assert float(told["history"][0]) == 0.0
    for here, own, directions, _ in seen:
        np.testing.assert_allclose(directions, solved(here, own), rtol=1e-2, atol=1e-2 * np.abs(directions).max())

    cost = objective.measure(problem, batch).cost
    for *_, excess in seen:
        np.testing.assert_allclose(excess, cost - 0.3, rtol=1e-5)
    # What a step predicts is told in the epoch that it leads to; of the first policy there is no prediction.
    np.testing.assert_array_equal(told["predicted_cost"], cost)
    np.testing.assert_allclose(after["predicted_cost"], cost + 0.125, rtol=1e-6)


@pytest.mark.parametrize("safe", [True, False])
def test_a_step_predicts_the_change_of_the_costs_that_the_gradients_promise(policy, safe):
    batch = on_policy_batch(policy, 2)
    here = local_model(policy, batch, advantages(batch, 2))
    own = gradients(here, 1)
    new, change, _ = step_from(here, own, [-0.02, -0.03] if safe else [1e3, 1e3])
    step = ravel_pytree(new)[0] - ravel_pytree(policy)[0]
    assert np.abs(change).max() > 0.01
    np.testing.assert_allclose(change, own[0, 1:] @ step, rtol=0.02, atol=1e-4)


def test_a_later_epochs_step_back_is_the_first_ones_times_the_length_told(policy):
    """Far outside, where all of the step is a way back; and its predicted change is that of the step taken."""
    batch = on_policy_batch(policy, 1)
    here = local_model(policy, batch, advantages(batch, 1))
    own = gradients(here, 1)
    whole, change, _ = step_from(here, own, [1e3])
    for length in (0.5, 0.125):
        new, less, _ = improve(SEARCH, here, own, solved(here, own), jnp.asarray([1e3]), length, True)
        move = ravel_pytree(new)[0] - ravel_pytree(policy)[0]
        np.testing.assert_allclose(
            move, length * (ravel_pytree(whole)[0] - ravel_pytree(policy)[0]), rtol=1e-3, atol=1e-6
        )
        np.testing.assert_allclose(less, length * change, rtol=1e-4)


def test_a_step_that_is_refused_predicts_no_change(policy):
    """No step gains any return where it is the same whatever is done; from inside the limits none is taken."""
    batch = on_policy_batch(policy, 1)
    advantage = advantages(batch, 1)
    here = local_model(policy, batch, advantage)
    wrong = dataclasses.replace(here, advantage=here.advantage * jnp.asarray([[-1.0, 1.0]]))
    new, change, metrics = step_from(wrong, gradients(here, 1), [-1e3])
    assert float(metrics["step_accepted"]) == 0.0
    np.testing.assert_array_equal(change, [0.0])
    np.testing.assert_array_equal(ravel_pytree(new)[0], ravel_pytree(policy)[0])


def test_a_step_that_settles_goes_the_share_told_of_the_way_back_and_less_of_the_way_along():
    """From either side, to the constraint: the share of it. Along it: the share times what is left of the gradient."""
    gram = jnp.asarray([[2.0, 1.5], [1.5, 3.0]])
    for excess in (0.02, -0.02):
        whole = constrained_step.solve(gram[0, 0], gram[0, 1:], gram[1:, 1:], jnp.asarray([excess]), 0.1)
        assert whole.constrained
        assert not whole.recovering
        np.testing.assert_allclose(whole.left, np.sqrt((2.0 - 1.5**2 / 3.0) / 2.0), rtol=1e-4)
        for length in (1.0, 0.25):
            move = whole.shortened(length, True)
            change = gram[1, 0] * move.along_objective + gram[1, 1] * move.along_constraint[0]
            np.testing.assert_allclose(change, -length * excess, rtol=1e-3)
            np.testing.assert_allclose(move.along_objective, length * whole.left * whole.along_objective, rtol=1e-5)
            plain = whole.shortened(length, False)
            np.testing.assert_allclose(plain.along_constraint, length * whole.along_constraint, rtol=1e-5)


def test_nothing_is_left_of_a_gradient_along_a_constraint_that_it_is_parallel_to():
    parallel = jnp.asarray([[2.0, 4.0], [4.0, 8.0]])
    move = constrained_step.solve(parallel[0, 0], parallel[0, 1:], parallel[1:, 1:], jnp.asarray([0.1]), 1.0)
    np.testing.assert_allclose(move.left, 0.0, atol=2e-3)
    free = constrained_step.solve(parallel[0, 0], parallel[0, 1:], parallel[1:, 1:], jnp.asarray([-1e3]), 1.0)
    assert not free.constrained
    np.testing.assert_allclose(free.left, 1.0, rtol=1e-6)


@pytest.mark.parametrize("beyond", [0.0, 1e-7, 1e-6, 1e-5, 1e-4])
def test_gradients_that_come_out_as_more_than_parallel_still_give_a_step(beyond):
    """Conjugate gradient stops before its end, and products of the same direction need not agree."""
    length = jnp.asarray([[2.0, 4.0 * (1.0 + beyond)], [4.0 * (1.0 + beyond), 8.0]])
    move, amounts = believed_step.small_step(length, length, jnp.asarray([0.1]), 0.02)
    assert np.all(np.isfinite(amounts))
    assert np.all(np.isfinite(move.multiplier))


def gram_of(rng, signals, size=50):
    vectors = rng.normal(size=(signals, size)) * np.asarray([3.0, 0.1, 20.0])[:signals, None]
    return jnp.asarray(vectors @ vectors.T, jnp.float32)


@pytest.mark.parametrize("excess", [[-1e6, -1e6], [-0.2, -1e6], [0.1, -0.5], [1e6, 0.5]])
@pytest.mark.parametrize("constraints", [1, 2])
def test_where_effects_are_what_gradients_say_the_step_is_cpos_own(constraints, excess):
    rng = np.random.default_rng(constraints)
    length, c = gram_of(rng, 1 + constraints), jnp.asarray(excess[:constraints])
    move, amounts = believed_step.small_step(length, length, c, 0.02)
    twin = constrained_step.solve(length[0, 0], length[0, 1:], length[1:, 1:], c, 0.02)
    expected = np.asarray([twin.along_objective, *twin.along_constraint])
    np.testing.assert_allclose(amounts, expected, rtol=2e-3, atol=2e-3 * np.abs(expected).max())
    assert bool(move.recovering) == bool(twin.recovering)
    np.testing.assert_allclose(move.multiplier, twin.multiplier, rtol=2e-3, atol=1e-4)


def halves_of(rng, signal, noise, size, draws=1):
    """Gradients of two halves: the same signal, and noise of their own."""
    truth = np.zeros((2, 2, size))
    truth[:, 0, 0], truth[:, 1, 1] = signal
    return [jnp.asarray(truth + noise * rng.normal(size=truth.shape), jnp.float32) for _ in range(draws)]


def test_halves_that_agree_are_believed_and_so_is_a_single_part():
    (same,) = halves_of(np.random.default_rng(0), (3.0, 2.0), 0.0, 10)
    for parts in (same, same[:1]):
        length, effect = believed_step.products(parts, parts)
        np.testing.assert_allclose(length, np.diag([9.0, 4.0]), rtol=1e-6)
        np.testing.assert_allclose(effect, length, rtol=1e-6)


def test_gradients_that_are_noise_are_hardly_believed():
    (noise,) = halves_of(np.random.default_rng(1), (0.0, 0.0), 1.0, 20_000)
    length, effect = believed_step.products(noise, noise)
    believed = np.diagonal(effect) / np.diagonal(length)
    assert np.all((believed >= 0.0099) & (believed < 0.06))
    # A step along them promises as little of what they would promise of themselves.
    _, bold = believed_step.small_step(length, length, jnp.asarray([1e6]), 0.02)
    _, doubtful = believed_step.small_step(length, effect, jnp.asarray([1e6]), 0.02)
    assert -float((effect @ doubtful)[1]) < 0.1 * -float((length @ bold)[1])


def test_what_is_believed_of_a_noisy_gradient_is_its_signal_on_average_while_its_length_is_mostly_noise():
    found = [
        believed_step.products(each, each) for each in halves_of(np.random.default_rng(2), (30.0, 20.0), 1.0, 2000, 100)
    ]
    length, effect = (np.mean(part, axis=0) for part in zip(*found, strict=True))
    np.testing.assert_allclose(np.diagonal(effect), [900.0, 400.0], rtol=0.05)
    np.testing.assert_allclose(np.diagonal(length), [900.0 + 1000.0, 400.0 + 1000.0], rtol=0.05)


def kept_of(rng, noise, moved, most=0.9):
    """How much gradients before count: those of the truth itself, from which the new ones have moved away."""
    (fresh,) = halves_of(rng, (3.0, 2.0), noise, 2000)
    (before,) = halves_of(rng, (3.0 + moved, 2.0 + moved), 0.0, 2000)
    return fresh, before, believed_step.averaged(fresh, 0.5 * fresh, before, 0.5 * before, jnp.asarray(most))


def test_gradients_before_count_as_much_as_they_may_where_nothing_but_noise_is_new():
    _, _, (_, _, kept) = kept_of(np.random.default_rng(4), noise=1.0, moved=0.0)
    np.testing.assert_allclose(kept, 0.9, rtol=0.05)


@pytest.mark.parametrize("distance", [1.0, 3.0])
def test_gradients_before_that_are_off_count_by_the_noise_of_the_new_ones_against_all_of_their_distance(distance):
    """With noise n² in the new mean and a gradient that moved by D - n²: n² / D, which is the best such average."""
    noise = 2000 / 2
    shares = []
    for seed in range(10):
        fresh, before, (mixed, directions, kept) = kept_of(
            np.random.default_rng(seed), noise=1.0, moved=distance * np.sqrt(noise)
        )
        expected = (1.0 - kept)[None, :, None] * fresh + kept[None, :, None] * before
        np.testing.assert_allclose(mixed, expected, rtol=1e-5, atol=1e-4)
        np.testing.assert_allclose(directions, 0.5 * expected, rtol=1e-5, atol=1e-4)
        shares.append(kept)
    np.testing.assert_allclose(np.mean(shares, axis=0), 1.0 / (1.0 + distance**2), rtol=0.1)


@pytest.mark.parametrize(("noise", "most"), [(0.0, 0.9), (1.0, 0.0)])
def test_gradients_without_noise_or_with_no_history_are_the_new_ones(noise, most):
    fresh, _, (mixed, _, kept) = kept_of(np.random.default_rng(5), noise=noise, moved=1.0, most=most)
    np.testing.assert_array_equal(mixed, fresh)
    np.testing.assert_array_equal(kept, [0.0, 0.0])


@pytest.mark.parametrize("excess", [-1e6, -1.0, 0.5, 1e6])
def test_a_doubtful_step_keeps_within_the_trust_region_and_plans_to_meet_its_constraint_where_it_can(excess):
    (noisy,) = halves_of(np.random.default_rng(3), (30.0, 20.0), 1.0, 2000)
    length, effect = believed_step.products(noisy, noisy)
    move, amounts = believed_step.small_step(length, effect, jnp.asarray([excess]), 0.02)
    assert 0.5 * float(amounts @ length @ amounts) <= 0.02 * 1.01
    planned = float((effect @ amounts)[1])
    if bool(move.recovering):
        assert planned < -1.0
    else:
        assert excess + planned <= 1e-2


def test_all_costs_zero_and_all_advantages_equal_keep_the_policy_finite(policy):
    batch = on_policy_batch(policy, 1)
    for advantage in (jnp.zeros((10, 200, 2)), advantages(batch, 1) * jnp.asarray([[[1.0, 0.0]]])):
        here = local_model(policy, batch, advantage)
        for parts in (1, 2):
            for excess in (-0.2, 0.0, 0.2):
                new, change, _ = step_from(here, gradients(here, parts), [excess])
                assert bool(jnp.all(jnp.isfinite(ravel_pytree((new, change))[0])))


def test_the_first_step_takes_more_off_the_cost_with_safety_first_than_with_the_return_first():
    """From a policy far over its limit: S = 1 recovers, S = 0 may keep the cost and does, since it pays."""
    small: dict[str, Any] = {
        "policy": policies.Config(hidden=(8,)),
        "critic": critics.Config(hidden=(8,), minibatches=2),
    }
    after = {}
    for safety in (0.0, 1.0):
        training = training_of(cpo, cpo.Config(safety=safety, margin=0.0, **small), Reach(), environments=400)
        _, history = run(training, [0], 3)
        first, third = history[0]["cost"][0, 0], history[2]["cost"][0, 0]
        np.testing.assert_allclose(history[0]["enforced_limit"], [[0.5 + (1 - 2 * safety) * (first - 0.5)]], rtol=1e-5)
        after[safety] = third - first
    assert after[1.0] < -0.2
    assert after[0.0] > after[1.0] + 0.2
