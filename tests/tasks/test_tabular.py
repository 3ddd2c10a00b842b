"""Finite tasks: what the environment plays is what its model says, and the models are what they claim to be."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from apdo import envs, exact, rollout
from apdo.core.advantage import episode_totals
from apdo.errors import InvalidInput
from apdo.tasks.queueing import QueueingNetwork
from apdo.tasks.tabular import Garnet, Gridworld, TwoState, tables

SMALL = [
    TwoState(),
    Gridworld(),
    Garnet(states=6, actions=3, branching=2, tightness=(0.5, -0.5)),
    QueueingNetwork(buffer=2),
]


@pytest.mark.parametrize("task", SMALL, ids=lambda task: type(task).__name__)
def test_each_states_draws_follow_the_models_probabilities(task):
    """From every state and action, 4,000 steps: how often each state follows, mean reward and mean costs."""
    model, count = task.model(), 4000
    places = jnp.arange(model.states, dtype=jnp.int32)
    if isinstance(task, QueueingNetwork):
        places = jnp.stack([places // (task.buffer + 1), places % (task.buffer + 1)], axis=-1)

    def one(state, action, key):
        outcome = task.step(state, jax.nn.one_hot(action, model.actions), key)
        return outcome.state, outcome.reward, outcome.cost, outcome.terminated

    play = jax.jit(jax.vmap(jax.vmap(jax.vmap(one, (None, None, 0)), (None, 0, None)), (0, None, None)))
    keys = jax.random.split(jax.random.key(1), count)
    following, reward, cost, ended = (np.asarray(x) for x in play(places, jnp.arange(model.actions), keys))
    reward, cost = reward.astype(np.float64), cost.astype(np.float64)
    if isinstance(task, QueueingNetwork):
        following = following @ np.array([task.buffer + 1, 1])
    reached = np.where(ended, model.states, following)
    expected = np.concatenate([model.dense(), model.ending[..., None]], axis=-1)
    frequency = np.stack([(reached == s).mean(axis=-1) for s in range(model.states + 1)], axis=-1)
    slack = 5.5 * np.sqrt(expected * (1 - expected) / count) + 1e-6
    assert (np.abs(frequency - expected) <= slack).all()
    np.testing.assert_allclose(reward.mean(axis=-1), model.reward, atol=5.5 * reward.std(axis=-1).max() / 63 + 1e-5)
    spread = 5.5 * cost.std(axis=2).max() / 63 + 1e-5
    np.testing.assert_allclose(np.moveaxis(cost.mean(axis=2), -1, 0), model.cost, atol=spread)


@pytest.mark.parametrize("task", SMALL, ids=lambda task: type(task).__name__)
def test_sampled_returns_and_costs_of_a_policy_are_its_exact_ones(task):
    """A random policy, played: discounted sums agree with the linear solve, but for γ^horizon and noise."""
    model = task.model()
    chances = np.random.default_rng(0).dirichlet(np.ones(model.actions), size=model.states)
    seen = jnp.asarray(task.observations())

    def act(memory, observation, key):
        state = jnp.argmin(jnp.sum(jnp.square(seen - observation[None]), axis=-1))
        chosen = jax.random.categorical(key, jnp.log(jnp.asarray(chances, dtype=jnp.float32))[state])
        return jax.nn.one_hot(chosen, model.actions), memory

    episodes = 2048
    batch = jax.jit(lambda key: rollout.collect(task, act, (), key, steps=task.horizon, environments=episodes))(
        jax.random.key(2)
    )
    signal = jnp.concatenate([batch.reward[..., None], batch.cost], axis=-1)
    totals = np.asarray(episode_totals(signal, batch.ended, jnp.full(signal.shape[-1], task.discount))[0])
    if task.horizon * episodes > batch.terminated.sum() and bool(batch.terminated.any()):
        # Episodes that end early are followed by others: only the first of each environment counts here.
        first = np.cumsum(np.asarray(batch.ended), axis=0) - np.asarray(batch.ended) == 0
        weight = task.discount ** np.arange(task.horizon)[:, None] * first
        totals = np.einsum("tn,tnk->nk", weight, np.asarray(signal))
    exactly = exact.evaluate(model, chances)
    expected = np.array([exactly.value, *exactly.costs])
    most = np.abs(np.asarray(signal)).max() / (1 - task.discount)
    error = 5 * totals.std(axis=0) / np.sqrt(episodes) + most * task.discount**task.horizon
    assert (np.abs(totals.mean(axis=0) - expected) < error).all()


def test_the_two_state_machines_optimum_is_its_closed_form():
    for heating, limit, discount in ((0.3, 2.0, 0.9), (0.8, 0.5, 0.5), (0.05, 0.5, 0.95)):
        task = TwoState(heating=heating, limit=limit, discount=discount)
        assert limit < discount * heating / ((1 - discount) * (1 - discount * (1 - heating)))
        solution = exact.solve(task.model())
        assert isinstance(solution, exact.Solution)
        slope = (1 - discount * (1 - heating)) / (1 + discount * heating)
        assert solution.multipliers[0] == pytest.approx(slope, rel=1e-6)
        assert solution.value == pytest.approx(
            1 / ((1 - discount) * (1 + discount * heating)) + limit * slope, rel=1e-6
        )
        hot = discount * (heating / (1 - discount) + limit) / (1 + discount * heating)
        assert solution.policy[1, 1] == pytest.approx(limit / hot, rel=1e-5)


def test_in_the_gridworld_the_safe_way_is_longer_and_the_limit_makes_it_worth_taking():
    still = Gridworld(slip=0.0)
    model = still.model()
    free = exact.lagrangian(model, [0.0])
    assert free.gain == pytest.approx(10.0 * 0.95**4)
    assert free.costs[0] == pytest.approx(sum(0.95**t for t in range(1, 5)))
    priced = exact.lagrangian(model, [100.0])
    assert priced.gain == pytest.approx(10.0 * 0.95**8)
    assert priced.costs[0] == 0.0
    bound = exact.solve(model)
    assert isinstance(bound, exact.Solution)
    assert priced.gain < bound.value < free.gain
    assert bound.costs[0] == pytest.approx(1.0)


def test_a_garnet_is_the_same_each_time_and_another_instance_is_another_problem():
    first, again, other = Garnet().model(), Garnet(horizon=7).model(), Garnet(instance=1).model()
    np.testing.assert_array_equal(first.dense(), again.dense())
    np.testing.assert_array_equal(first.limits, again.limits)
    assert (first.dense() != other.dense()).any()


def test_a_garnets_branching_and_tightness_are_as_asked():
    for tightness in ((0.3,), (0.5, 0.5), (0.6, -0.5)):
        task = Garnet(instance=3, states=12, actions=3, branching=4, tightness=tightness)
        model = task.model()
        assert set(np.diff(model.transition.indptr)) == {4}
        solution = exact.solve(model)
        free = exact.lagrangian(model, np.zeros(len(tightness)))
        assert isinstance(solution, exact.Solution)
        assert solution.certificate.holds
        for i, t in enumerate(tightness):
            assert (free.costs[i] > model.limits[i]) == (t > 0)
            if t < 0:
                assert solution.multipliers[i] == pytest.approx(0.0, abs=1e-9)


def test_admission_and_service_of_the_queueing_network_by_hand():
    task = QueueingNetwork(buffer=3)
    admits, share, power = task.choices()
    assert task.action_size == len(admits) == 10
    np.testing.assert_array_equal(admits, [0] * 5 + [1] * 5)
    np.testing.assert_allclose(power[:5], [0.0, 0.3, 1.0, 0.3, 1.0])
    np.testing.assert_allclose(share[2], [0.9, 0.0])

    def slot(*parts):
        return [np.asarray(x).tolist() for x in task.slot(*(jnp.asarray(p, dtype=jnp.int32) for p in parts))]

    # Room in the first queue only; the server completes one of the second.
    after, utility, rate = slot([0, 3], [1, 1], [0, 1])
    assert (after, utility, rate) == ([1, 2], 1.0, [1, -1])
    # An empty queue is served: nothing leaves, and the rate still counts as given.
    after, utility, rate = slot([0, 0], [0, 0], [1, 0])
    assert (after, utility, rate) == ([0, 0], 0.0, [-1, 0])
    # A packet may come and be completed in the same slot.
    assert slot([0, 0], [1, 0], [1, 0])[0] == [0, 0]


def test_a_large_network_is_for_learning_and_says_so_when_asked_for_its_table():
    task = QueueingNetwork(buffer=200)
    assert task.observation_size == 4
    state = jnp.asarray([50, 0], dtype=jnp.int32)
    np.testing.assert_allclose(task.observe(state), [0.25, 0.0, 0.0, 1.0])
    with pytest.raises(InvalidInput, match="too large to write down"):
        QueueingNetwork(buffer=200).model()


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("garnet", {"branching": 30}, "branching must be at most"),
        ("garnet", {"tightness": ()}, "tightness"),
        ("queueing", {"arrival": (0.5,)}, "one number for each queue"),
        ("queueing", {"power": (0.5,)}, "one number for each level"),
        ("queueing", {"service": (0.5, 1.5)}, "probabilities"),
    ],
)
def test_options_that_do_not_fit_are_refused_in_a_sentence(kind, options, said):
    with pytest.raises(InvalidInput, match=said):
        envs.find(kind)(**options)


def test_tables_are_made_once_for_each_task():
    assert tables(Gridworld()) is tables(dataclasses.replace(Gridworld()))
