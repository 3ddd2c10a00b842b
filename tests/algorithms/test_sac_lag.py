"""SAC-Lagrangian: warm-up, its multipliers, its bits."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks import ground_truth
from jax import random

import apdo as library
from apdo import loop
from apdo.algorithms import sac_lag
from apdo.core import dual, replay
from apdo.experiment import settings
from apdo.off_policy import sac_iteration, sac_online
from apdo.off_policy.units import view
from apdo.tasks.tabular import TwoState
from problems import Reach, advance_of, run, training_of

LEARNER = dataclasses.replace(
    sac_online.ONLINE, critic_hidden=(8,), actor_hidden=(8,), minibatch=16, costs=2, bound=2.0
)
CONFIG = sac_lag.Config(learner=LEARNER, replay_capacity=2000, warm_up=300, updates=0.5)


@pytest.fixture(scope="module")
def trained():
    """Two seeds, with the horizon of 5, 200 samples an epoch: the first epoch is warm-up."""
    training = training_of(sac_lag, CONFIG, Reach(costs=2), limits=(0.5, 0.01))
    return training, *run(training, [0, 1], 4)


def leaves(tree):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree) if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)]


def test_while_it_warms_up_actions_are_random_and_nothing_is_learned(trained):
    training, state, history = trained
    fresh = loop.start(training, [0, 1])
    after = advance_of(training)(loop.start(training, [0, 1]), jnp.asarray(1, dtype=jnp.int32)).state
    for ours, theirs in zip(
        leaves(after.algorithm.learner.learned), leaves(fresh.algorithm.learner.learned), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)  # but for the data's units
    assert np.all(np.asarray(after.algorithm.learner.iteration) == 0)
    np.testing.assert_array_equal(state.algorithm.learner.iteration, 3 * 100)
    assert np.all(np.asarray(history[1]["multiplier"]) == 0.0)


def test_a_multiplier_rises_where_the_cost_is_above_its_limit(trained):
    _, _, history = trained
    assert np.all(np.asarray(history[-1]["cost"])[:, 1] > 0.01)
    assert np.all(np.asarray(history[-1]["multiplier"])[:, 1] > 0.0)


def test_epochs_one_by_one_or_together_give_the_same_bits(trained):
    training, state, _ = trained
    whole = advance_of(training)(loop.start(training, [0, 1]), jnp.asarray(4, dtype=jnp.int32)).state
    for ours, theirs in zip(leaves(whole.algorithm), leaves(state.algorithm), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_the_multiplier_moves_by_shares_of_itself_above_its_natural_size_and_by_that_below():
    config = dataclasses.replace(CONFIG, rule=dual.Pid(proportional=0.0, far=0.0), dual_step=0.1)
    for start, moved in ((0.0, 0.05), (0.5, 0.55), (4.0, 4.2)):
        before = dual.start(config.rule, jnp.asarray([start]))
        after = sac_online.steer(config.rule, before, jnp.asarray([0.5]), config.dual_step, jnp.asarray(True))
        np.testing.assert_allclose(after.value, [moved], rtol=1e-6)
        held = sac_online.steer(config.rule, before, jnp.asarray([0.5]), config.dual_step, jnp.asarray(False))
        np.testing.assert_array_equal(held.value, before.value)


def test_where_batches_measure_a_cost_badly_its_multiplier_and_the_actor_go_more_slowly():
    """The same state and data, with half the certainty: half the integral's step, a quarter of the actor's."""
    training = training_of(sac_lag, CONFIG, Reach(costs=2), limits=(0.5, 0.01))
    state, _ = run(training, [0], 3)
    held = jax.tree.map(lambda leaf: leaf[0], state.algorithm)
    learner = eqx.tree_at(lambda s: s.multiplier.integral, held.learner, jnp.asarray([0.2, 0.2]))

    def after(certainty):
        draws = sac_iteration.draw(
            LEARNER, training.problem, held.buffer, replay.episode_starts(held.buffer), random.key(0), None, units
        )
        first = jax.tree.map(lambda leaf: leaf[0], draws)
        return sac_iteration.iterate(
            LEARNER, problem, learner, first, units, certainty=jnp.full(2, certainty), unseen=jnp.full(2, 100.0)
        )[0]

    problem, units = view(LEARNER, training.problem, held.buffer)
    full, half = after(1.0), after(0.5)
    np.testing.assert_allclose(
        half.multiplier.integral - 0.2, 0.5 * (full.multiplier.integral - 0.2), rtol=1e-3, atol=1e-7
    )
    np.testing.assert_allclose(
        half.multiplier.value - half.multiplier.integral,
        0.25 * (full.multiplier.value - full.multiplier.integral),
        rtol=1e-3,
    )
    for before, one, other in zip(
        jax.tree.leaves(learner.learned.actor),
        jax.tree.leaves(full.learned.actor),
        jax.tree.leaves(half.learned.actor),
        strict=True,
    ):
        np.testing.assert_allclose(other - before, 0.25 * (one - before), rtol=0.05, atol=2e-7)


def test_on_a_gymnasium_environment_it_trains_keeps_its_best_policy_and_exports_it(tmp_path):
    pytest.importorskip("gymnasium", reason="Gymnasium is not installed")
    from host_environments import Line

    result = library.train(
        "sac-lag",
        Line,
        costs="obs[0] > 0.5",
        limits=1.0,
        max_episode_steps=6,
        out=tmp_path / "run",
        quiet=True,
        batch=60,
        epochs=3,
        warm_up=60,
        replay_capacity=200,
        updates=0.2,
        **{
            f"learner__{name}": getattr(LEARNER, name)
            for name in ("critic_hidden", "actor_hidden", "minibatch", "costs")
        },
    )
    assert result.best[0].epoch >= 0
    seen = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
    assert np.abs(result.policy(seen)).max() <= 1.0
    result.policy.save(tmp_path / "policy.npz")
    with np.load(tmp_path / "policy.npz") as stored:
        assert (str(stored["kind"]), str(stored["activation"])) == ("squashed", "relu")


@pytest.mark.slow
def test_on_two_states_the_multiplier_comes_near_the_exact_price():
    """One-hot states and no hidden layers: what is learned is a table. λ* is from the linear program."""
    learner = dataclasses.replace(
        sac_online.ONLINE,
        critic_hidden=(),
        actor_hidden=(),
        critic_rate=1e-2,
        actor_rate=1e-2,
        dual_rate=1e-3,
        minibatch=64,
        costs=2,
    )
    config = sac_lag.Config(learner=learner, replay_capacity=20_000, warm_up=1000, updates=0.2, margin=0.0)
    task = TwoState()
    _, optimum = ground_truth.solved(task)
    _, history = run(training_of(sac_lag, config, task, environments=20), [0], 80)
    multiplier, cost = (np.asarray([row[name][0, 0] for row in history[40:]]) for name in ("multiplier", "cost"))
    assert multiplier.mean() == pytest.approx(optimum.multipliers[0], rel=0.25)
    assert cost.mean() == pytest.approx(task.limits[0], rel=0.1)


def test_multipliers_are_slower_than_the_critics_of_long_episodes_come_to_rest():
    def rate(environment, **given):
        return settings.make_experiment("sac-lag", environment, given).algorithm_config.learner.dual_rate

    learner = sac_online.ONLINE
    short, long = rate("point-gather"), rate("point-goal-1")
    assert short == pytest.approx(0.3 * learner.target_rate / 15)
    assert long == pytest.approx(0.3 * learner.target_rate / 100)
    assert rate("point-goal-1", **{"learner.dual_rate": 0.5}) == 0.5


def test_rows_of_the_buffer_follow_each_other_as_steps_of_an_episode_do():
    """What targets over several steps rely on, in environments side by side."""
    training = training_of(sac_lag, CONFIG, Reach(), environments=4)
    state, _ = run(training, [0], 2)
    buffer = jax.tree.map(lambda leaf: leaf[0], state.algorithm).buffer
    filled = int(buffer.filled)
    rows = np.asarray(buffer.rows)[:filled]
    o, step = buffer.observation_size, rows[:, -1]
    goes_on = (step[1:] == step[:-1] + 1) & (rows[:-1, -2] == 0.0)
    after = rows[:-1, -2 - o : -2]
    np.testing.assert_array_equal(after[goes_on], rows[1:, :o][goes_on])
    assert goes_on.sum() >= 0.8 * filled
