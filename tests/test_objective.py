"""One owner of what is optimised: sums, their gradients and the multipliers agree with exact evaluation.

The finite problem below has random outcomes that are all multiples of 1/4, so that every possible row of a batch can be
written down as often as it is likely: what is sampled in training is summed up exactly here.
"""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from apdo import exact, finite, objective
from apdo.algorithms import on_policy
from apdo.algorithms.local_model import LocalModel
from apdo.algorithms.surrogate import Surrogate
from apdo.core import categorical, critics, networks
from apdo.core.data import Transition
from apdo.problem import Problem

STATES, ACTIONS, COSTS = 2, 2, 2
REWARD = np.asarray([[1.0, -0.5], [0.25, 2.0]])
COST = np.asarray([[[0.5, 0.0], [1.0, 2.0]], [[0.0, 1.0], [0.5, 0.0]]])
MOVES = np.asarray([[[2, 2], [1, 2]], [[1, 3], [3, 1]]]) / 4
"""Where a step leads, if it does not end the episode: state 0, state 1."""
ENDING = np.asarray([[0.0, 0.25], [0.0, 0.0]])
"""Chosen with MOVES so that the two sum to 1 with multiples of a quarter."""
POLICY = np.asarray([[1, 3], [2, 2]]) / 4


def model(discount, *, ends):
    moves, ending = MOVES.copy(), ENDING.copy()
    if not ends:
        moves[0, 1], ending = [2 / 4, 2 / 4], np.zeros_like(ENDING)
    return finite.FiniteCMDP.of(moves, REWARD, COST, [1.0, 0.0], discount, np.ones(COSTS), ending=ending)


def every_row(cmdp, steps, horizon, *, truncates):
    """All rows of a batch, each as often as it is likely: steps of episodes, one after the other, from state 0."""
    quarters = np.concatenate([cmdp.transition.toarray().reshape(STATES, ACTIONS, STATES), cmdp.ending[..., None]], -1)
    outcomes = [
        [np.repeat(np.arange(STATES + 1), (4 * quarters[s, a]).round().astype(int)) for a in range(2)] for s in range(2)
    ]
    choices = [np.repeat(np.arange(ACTIONS), (4 * POLICY[s]).round().astype(int)) for s in range(STATES)]
    rows = []
    for draws in itertools.product(range(16), repeat=steps):
        state, index, row = 0, 0, []
        for draw in draws:
            action = choices[state][draw // 4]
            after = outcomes[state][action][draw % 4]
            last = index + 1 == horizon
            ended = after == STATES
            terminated = ended or (last and not truncates)
            row.append((state, action, index, after, terminated, last and not terminated))
            state, index = (0, 0) if terminated or last else (after, index + 1)
        rows.append(row)
    return np.asarray(rows).transpose(2, 1, 0)


def batch_of(rows, horizon):
    """The rows as a batch whose observations are one-hot vectors of state and time."""
    state, action, index, after, terminated, truncated = rows

    def seen(state, index):
        eye = np.concatenate([np.eye(STATES * (horizon + 1)), np.zeros((1, STATES * (horizon + 1)))])
        return eye[np.where(state == STATES, -1, state * (horizon + 1) + index)]

    fields = dict(
        observation=seen(state, index),
        action=np.eye(ACTIONS)[action],
        reward=REWARD[state, action],
        cost=np.moveaxis(COST[:, state, action], 0, -1),
        next_observation=seen(after, index + 1),
    )
    return Transition(
        **{name: jnp.asarray(value, jnp.float32) for name, value in fields.items()},
        terminated=jnp.asarray(terminated, bool),
        truncated=jnp.asarray(truncated, bool),
        step=jnp.asarray(index, jnp.int32),
    )


def policy_of(logits, horizon):
    """A linear network whose weights are the logits of each state, repeated over time."""
    weight = jnp.repeat(jnp.asarray(logits, jnp.float32), horizon + 1, axis=0)
    return categorical.Policy(logits=networks.MLP(weights=(weight,), biases=(jnp.zeros(ACTIONS),)))


def sums(cmdp, policy, horizon, *, total):
    """(R, C_1, C_2) exactly, in double precision: of a total by folding the time into the state."""
    if not total:
        found = exact.evaluate(cmdp, policy)
        return np.asarray([found.value, *found.costs])
    folded = finite.fold_time(dataclasses.replace(cmdp, discount=1.0), horizon)
    found = exact.evaluate(folded, np.tile(policy, (folded.states // STATES, 1)))
    return np.asarray([found.value, *found.costs])


def gradient_of(cmdp, logits, horizon, *, total, nudge=1e-5):
    """∇(R, C_1, C_2) in the logits, by central differences."""
    found = np.zeros((1 + COSTS, STATES, ACTIONS))
    for s, a in np.ndindex(STATES, ACTIONS):
        ends = []
        for sign in (1, -1):
            moved = logits.copy()
            moved[s, a] += sign * nudge
            chances = np.exp(moved) / np.exp(moved).sum(axis=1, keepdims=True)
            ends.append(sums(cmdp, chances, horizon, total=total))
        found[:, s, a] = (ends[0] - ends[1]) / (2 * nudge)
    return found


def values_of(cmdp, horizon, *, total):
    """The exact values of POLICY at each state and time, [STATES · (T + 1), 1 + COSTS]."""
    signals = np.concatenate([REWARD[None], COST])
    chain = np.einsum("sa,sat->st", POLICY, cmdp.transition.toarray().reshape(STATES, ACTIONS, STATES))
    now = np.einsum("sa,ksa->sk", POLICY, signals)
    if not total:
        value = np.linalg.solve(np.eye(STATES) - cmdp.discount * chain, now)
        return np.repeat(value, horizon + 1, axis=0)
    table = np.zeros((STATES, horizon + 1, 1 + COSTS))
    for t in reversed(range(horizon)):
        table[:, t] = now + chain @ table[:, t + 1]
    return table.reshape(-1, 1 + COSTS)


def critic_of(values, problem):
    """Value functions that are right: a network whose hidden units are the entries of the observation."""
    size = values.shape[0]
    clock = objective.sees_time(problem)
    first = jnp.concatenate([jnp.eye(size), jnp.zeros((clock, size))])
    weights = (jnp.stack([first] * 3), jnp.asarray(values.T[..., None] / np.tanh(1.0), jnp.float32))
    fresh = critics.init(critics.Config(hidden=(size,)), jax.random.key(0), size, 3, problem.horizon if clock else None)
    own = networks.MLP(weights=weights, biases=(jnp.zeros((3, size)), jnp.zeros((3, 1))))
    return dataclasses.replace(fresh, networks=own, scale=jnp.ones(3))


CASES = {
    "a discounted sum, episodes that end": (0.1, True, False, True),
    "a discounted sum, episodes that are cut off": (0.1, False, False, True),
    "a total, episodes that end early or are cut off": (1.0, True, True, True),
    "a total, episodes that end early or at the horizon": (1.0, True, True, False),
    "a total, episodes that are cut off": (1.0, False, True, True),
}


@pytest.fixture(params=list(CASES.values()), ids=list(CASES), scope="module")
def case(request):
    discount, ends, total, truncates = request.param
    cmdp = model(min(discount, 0.999) if total else discount, ends=ends)
    # Of a discounted sum what lies beyond the batch is γ³ of the whole; of a total there is more than one horizon.
    steps, horizon = (3, 3) if not total else (3, 2)
    problem = Problem(
        observation_size=STATES * (horizon + 1),
        action_size=ACTIONS,
        batch=1,
        limits=(1.0, 1.0),
        discount=1.0 if total else discount,
        cost_discount=1.0 if total else discount,
        horizon=horizon,
        truncates=truncates,
        discrete_actions=True,
    )
    batch = batch_of(every_row(cmdp, steps, horizon, truncates=truncates), horizon)
    return cmdp, problem, batch, horizon, total


def test_a_batch_measures_return_and_costs_without_bias_whatever_the_episodes_lengths(case):
    cmdp, problem, batch, horizon, total = case
    found = objective.measure(problem, batch)
    expected = sums(cmdp, POLICY, horizon, total=total)
    beyond = 0.0 if total else 0.1**horizon * 2.0 / 0.9
    np.testing.assert_allclose([found.objective, *found.cost], expected, rtol=1e-5, atol=beyond)
    assert float(found.episodes) >= batch.reward.shape[1]


def test_counting_only_episodes_that_ended_would_favour_short_ones():
    """The fault that the weights mend: with three steps of episodes of two, those that end early are seen ended."""
    cmdp = model(0.999, ends=True)
    batch = batch_of(every_row(cmdp, 3, 2, truncates=True), 2)
    ended = np.asarray(batch.ended)
    naive = np.asarray(batch.step)[ended].mean() + 1
    exact_length = 1 + (1 - POLICY[0, 1] * ENDING[0, 1])
    problem = Problem(6, 2, 1, (1.0, 1.0), 1.0, 1.0, 2, True, True)
    assert abs(naive - exact_length) > 0.01
    np.testing.assert_allclose(objective.measure(problem, batch).length, exact_length, rtol=1e-6)


def test_the_gradients_that_cpo_and_pdo_use_are_those_of_the_exact_sums_in_direction_and_length(case):
    cmdp, problem, batch, horizon, total = case
    logits = np.log(POLICY)
    expected = gradient_of(cmdp, logits, horizon, total=total)
    policy = policy_of(logits, horizon)
    critic = critic_of(values_of(cmdp, horizon, total=total), problem)
    estimates = on_policy.estimate(problem, critic, batch, 1.0, 1.0)

    def in_logits(gradient):
        weight = categorical.Policy(
            logits=networks.MLP((jnp.zeros((STATES * (horizon + 1), ACTIONS)),), (jnp.zeros(2),))
        )
        unravel = ravel_pytree(weight)[1]
        return np.asarray(unravel(jnp.asarray(gradient)).logits.weights[0]).reshape(STATES, -1, ACTIONS).sum(axis=1)

    # Episodes that are cut off lack what lies beyond: γ³ of the whole.
    slack = 1e-4 if total else 0.01
    model = LocalModel.of(problem, policy, batch, estimates.advantage)
    for ours, theirs in zip(model.gradients(1)[0], expected, strict=True):
        np.testing.assert_allclose(in_logits(ours), theirs, atol=slack * np.abs(theirs).max())

    price = jnp.asarray([0.3, 0.7])
    combined = estimates.advantage @ jnp.concatenate([jnp.ones(1), -price])
    samples = on_policy.samples(problem, batch, combined)
    gradient = jax.grad(Surrogate.at(policy, samples).gain)(policy)
    ours = in_logits(ravel_pytree(gradient)[0]) * float(jnp.sum(objective.step_weights(problem, batch)))
    theirs = expected[0] - np.einsum("k,ksa->sa", np.asarray(price), expected[1:])
    np.testing.assert_allclose(ours, theirs, atol=slack * np.abs(theirs).max())


def from_the_start(batch):
    """The batch with a new episode at its beginning in every environment."""
    index = np.array(batch.step)
    ended = np.asarray(batch.ended)
    index[0] = 0
    for t in range(1, len(index)):
        index[t] = np.where(ended[t - 1], 0, index[t - 1] + 1)
    return dataclasses.replace(batch, step=jnp.asarray(index))


def episodes_of(batch):
    """(first step, environment, steps) of every episode that began in the batch."""
    index, ended = np.asarray(batch.step), np.asarray(batch.ended)
    for first, n in np.argwhere(index == 0):
        last = next((t for t in range(first, len(index)) if ended[t, n]), len(index) - 1)
        yield first, n, last + 1 - first


@pytest.mark.parametrize("seed", range(3))
def test_measuring_equals_a_mean_over_episodes_step_by_step_with_each_cost_apart(random_batch, seed):
    """Each step averaged, one by one, over the episodes that began early enough for it to be seen."""
    batch = from_the_start(random_batch(np.random.default_rng(seed), 21, 6, constraints=3))
    episodes, steps = list(episodes_of(batch)), batch.reward.shape[0]
    assert any(length > 3 for _, _, length in episodes)

    def mean(signal, factor):
        total = 0.0
        for t in range(steps):
            could = [e for e in episodes if e[0] + t < steps]
            seen = [signal[first + t, n] for first, n, length in could if t < length]
            total += factor**t * np.sum(seen, axis=0) / len(could) if could else 0.0
        return total

    reward, cost = np.asarray(batch.reward, np.float64), np.asarray(batch.cost, np.float64)
    problem = Problem(3, 2, 126, (1.0,) * 3, 0.9, 0.7, 30, True)
    found = jax.jit(objective.measure, static_argnums=0)(problem, batch)
    assert float(found.episodes) == len(episodes)
    np.testing.assert_allclose(found.undiscounted_return, mean(reward, 1.0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.discounted_return, mean(reward, 0.9), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.undiscounted_cost, mean(cost, 1.0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.cost, mean(cost, 0.7), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.length, mean(np.ones_like(reward), 1.0), rtol=1e-4)
    np.testing.assert_array_equal(found.objective, found.discounted_return)
    total = dataclasses.replace(problem, cost_discount=1.0)
    summed = jax.jit(objective.measure, static_argnums=0)(total, batch)
    np.testing.assert_array_equal(summed.objective, summed.undiscounted_return)
    np.testing.assert_array_equal(summed.cost, summed.undiscounted_cost)


def test_of_episodes_of_equal_length_the_error_is_the_deviation_of_their_sums_over_the_root_of_their_number():
    rng = np.random.default_rng(0)
    shape = (4, 30)
    fields = {"reward": rng.normal(size=shape), "cost": rng.normal(size=(*shape, 2)), "action": np.zeros((*shape, 1))}
    fields |= {name: np.zeros((*shape, 1)) for name in ("observation", "next_observation")}
    index = np.broadcast_to(np.arange(4)[:, None], shape)
    batch = Transition(
        **{name: jnp.asarray(value, jnp.float32) for name, value in fields.items()},
        terminated=jnp.asarray(index == 3),
        truncated=jnp.zeros(shape, bool),
        step=jnp.asarray(index, jnp.int32),
    )
    found = objective.measure(Problem(1, 1, 120, (1.0, 1.0), 0.9, 0.7, 4, False), batch)
    sums = np.einsum("t,tnk->nk", 0.7 ** np.arange(4), fields["cost"])
    np.testing.assert_allclose(found.cost, sums.mean(axis=0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.cost_error, sums.std(axis=0, ddof=1) / np.sqrt(30), rtol=1e-4)


def test_a_single_episode_says_nothing_of_its_error_which_is_then_as_large_as_what_it_measures():
    cmdp = model(0.999, ends=False)
    rows = every_row(cmdp, 2, 2, truncates=True)[:, :, :1]
    found = objective.measure(Problem(6, 2, 2, (1.0, 1.0), 1.0, 1.0, 2, True, True), batch_of(rows, 2))
    assert float(found.episodes) == 1.0
    np.testing.assert_array_equal(found.cost_error, np.abs(found.cost))


def test_of_what_ends_an_episode_a_total_makes_everything_final_and_a_discounted_sum_what_terminates(random_batch):
    batch = random_batch(np.random.default_rng(0), 19, 5)
    problem = Problem(3, 2, 95, (1.0, 1.0), 0.9, 0.9, 20, True)
    assert batch.truncated.any()
    for changes, final, clock in (
        ({}, batch.terminated, False),
        ({"cost_discount": 1.0}, batch.ended, True),
        ({"truncates": False}, batch.ended, True),
    ):
        each = dataclasses.replace(problem, **changes)
        np.testing.assert_array_equal(objective.ends(each, batch), final)
        assert objective.sees_time(each) == clock
        assert objective.goes_on(each) == (not clock)


def test_sums_and_advantages_have_the_discounts_that_the_limits_mean():
    problem = Problem(3, 2, 1, (5.0, 5.0), 0.9, 0.8, 50, True)
    assert objective.sum_discounts(problem) == objective.advantage_discounts(problem) == (0.9, 0.8, 0.8)
    total = dataclasses.replace(problem, cost_discount=1.0)
    assert objective.sum_discounts(total) == (1.0, 1.0, 1.0)
    assert objective.advantage_discounts(total) == (0.9, 0.9, 0.9)
    assert objective.effective_steps(1.0, 50) == 50.0
    assert objective.effective_steps(0.9, 3) == pytest.approx(1.0 + 0.9 + 0.81)


def test_no_sum_from_any_step_on_amounts_to_more_steps_than_is_said():
    """The last of all steps is that of the horizon, or none where the sum goes on behind it."""
    for truncates, cost_discount in itertools.product((True, False), (0.9, 1.0)):
        problem = Problem(6, 2, 1, (1.0,), 0.9, cost_discount, 50, truncates, True)
        for gamma in objective.sum_discounts(problem):
            steps = 10_000 if objective.goes_on(problem) else problem.horizon
            assert objective.most_steps(problem, gamma) == pytest.approx(sum(gamma**t for t in range(steps)))


def test_the_standard_error_of_a_batch_is_the_spread_of_its_measurements():
    """Batches of 40 rows drawn from all possible ones: their measurements spread as each of them says."""
    cmdp = model(0.999, ends=True)
    rows = every_row(cmdp, 3, 2, truncates=True)
    problem = Problem(6, 2, 1, (1.0, 1.0), 1.0, 1.0, 2, True, True)
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, rows.shape[2], (400, 40))
    measured = jax.vmap(lambda batch: objective.measure(problem, batch))(
        jax.tree.map(lambda *leaves: jnp.stack(leaves), *[batch_of(rows[:, :, index], 2) for index in drawn])
    )
    np.testing.assert_allclose(np.mean(measured.cost_error, axis=0), np.std(measured.cost, axis=0), rtol=0.15)
    np.testing.assert_allclose(np.mean(measured.objective_error), np.std(measured.objective), rtol=0.15)
    np.testing.assert_allclose(np.mean(measured.cost, axis=0), sums(cmdp, POLICY, 2, total=True)[1:], rtol=0.02)


def test_a_total_that_is_read_off_discounted_sums_has_the_same_multiplier():
    """Of a policy that earns and costs the same in every step; the discounted sum goes on behind the horizon."""
    problem = Problem(3, 2, 1, (5.0,), 0.9, 1.0, 50, True, False)
    seen = objective.stationary(problem)
    share = objective.total_share(problem)
    assert share == pytest.approx(sum(0.9**t for t in range(10_000)) / 50)
    assert share == pytest.approx(objective.most_steps(seen, 0.9) / 50)
    assert seen.limits[0] == pytest.approx(share * 5.0)
    assert seen.cost_discount == 0.9
    assert objective.stationary(seen) == seen
    assert objective.total_share(seen) == 1.0
    for same in (
        dataclasses.replace(problem, truncates=False),
        dataclasses.replace(problem, discount=1.0),
        dataclasses.replace(problem, cost_discount=0.9),
    ):
        assert objective.stationary(same) == same


def test_however_early_episodes_terminate_a_constant_cost_keeps_its_limit_in_both_problems_or_in_neither():
    """The share of a total is the mean weight of the steps, next to sums over episodes of each length."""
    problem = Problem(3, 2, 1, (5.0,), 0.9, 1.0, 12, True, False)
    lengths = [3, 12, 7, 12, 1, 5]
    step = jnp.concatenate([jnp.arange(n, dtype=jnp.float32) for n in lengths])
    last = np.cumsum(lengths) - 1
    terminated = np.zeros(sum(lengths), dtype=bool)
    terminated[last] = [True, False, True, True, True, True]  # of the two whole episodes one is cut off
    weight = objective.weight_of_total(problem, step, jnp.asarray(terminated))
    discounted = [
        sum(0.9**t for t in range(10_000 if cut else n)) for n, cut in zip(lengths, [0, 1, 0, 0, 0, 0], strict=True)
    ]
    assert float(weight.mean()) == pytest.approx(np.mean(discounted) / np.mean(lengths), rel=1e-5)
    whole = objective.weight_of_total(problem, jnp.arange(12.0), jnp.zeros(12, dtype=bool))
    assert float(whole.mean()) == pytest.approx(objective.total_share(problem), rel=1e-6)
