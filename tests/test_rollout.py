"""Sampling across episode ends, on an environment that only counts."""

import dataclasses
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from apdo.envs.environment import Outcome
from apdo.rollout import collect, watch
from apdo.tasks.point_gather import PointGather
from apdo.tasks.tabular import Gridworld

STEPS, ENVIRONMENTS, HORIZON, LAST, STARTS = 200, 3, 5, 9, 8


def chance(key):
    return (jax.random.bits(key) >> 8).astype(jnp.float32)


@dataclasses.dataclass(frozen=True)
class Counting:
    """Counts up from a random start below 8 and terminates on reaching 9; the state also holds its own start."""

    horizon_terminates: bool
    observation_size = 2
    action_size = 2
    discrete_actions = False
    cost_names = ("count", "chance")
    limits = (1.0, 1.0)
    discount = 0.9
    horizon = HORIZON

    def reset(self, key):
        start = (jax.random.bits(key) % STARTS).astype(jnp.int32)
        return {"count": start, "start": start}

    def observe(self, state):
        return jnp.stack([state["count"], state["start"]]).astype(jnp.float32)

    def step(self, state, action, key):
        after = {"count": state["count"] + 1, "start": state["start"]}
        count = after["count"].astype(jnp.float32)
        return Outcome(
            state=after,
            observation=self.observe(after),
            reward=10.0 * count + action[0],
            cost=jnp.stack([2.0 * count, chance(key)]),
            terminated=after["count"] == LAST,
        )


def act(memory, observation, key):
    """The number of steps that the memory has seen, and a random number."""
    return jnp.stack([memory, chance(key)]), memory + 1.0


def sampler(horizon_terminates, **options):
    def run(key):
        return collect(
            Counting(horizon_terminates),
            act,
            jnp.asarray(100.0),
            key,
            steps=STEPS,
            environments=ENVIRONMENTS,
            **options,
        )

    return run


@cache
def sampled(horizon_terminates, seed=0):
    return jax.tree.map(np.asarray, jitted(horizon_terminates)(jax.random.key(seed)))


@cache
def jitted(horizon_terminates):
    return jax.jit(sampler(horizon_terminates))


def walk(batch, horizon_terminates):
    """What each step must have been, by counting along from the start that an episode's first observation names."""
    for n in range(ENVIRONMENTS):
        ended, step, count, start = True, 0, 0, 0
        for t in range(STEPS):
            if ended:
                step, count = 0, int(batch.observation[t, n, 1])
                start = count
            reaches, expires = count + 1 == LAST, step + 1 == HORIZON
            yield (
                (t, n),
                {
                    "observation": [count, start],
                    "next_observation": [count + 1, start],
                    "reward": 10 * (count + 1) + 100 + step,
                    "step": step,
                    "terminated": reaches or (expires and horizon_terminates),
                    "truncated": expires and not reaches and not horizon_terminates,
                },
                (reaches, expires),
            )
            ended, step, count = reaches or expires, step + 1, count + 1


@pytest.mark.parametrize("horizon_terminates", [True, False])
def test_every_step_is_what_counting_along_says_across_automatic_resets(horizon_terminates):
    batch = sampled(horizon_terminates)
    assert batch.reward.shape == (STEPS, ENVIRONMENTS)
    fates = set()
    for where, expected, fate in walk(batch, horizon_terminates):
        fates.add(fate)
        for field, value in expected.items():
            np.testing.assert_array_equal(getattr(batch, field)[where], value, err_msg=f"{field} at {where}")
        np.testing.assert_array_equal(batch.cost[where][0], 2.0 * expected["next_observation"][0])
    assert fates == {(False, False), (True, False), (False, True), (True, True)}, "every way to end must occur"


def test_at_the_horizon_an_episode_is_terminated_or_truncated_as_the_environment_says_and_nothing_else_changes():
    terminates, truncates = sampled(True), sampled(False)
    assert not terminates.truncated.any()
    assert truncates.truncated.any()
    assert truncates.terminated.any()
    assert not (truncates.truncated & truncates.terminated).any()
    np.testing.assert_array_equal(terminates.terminated, truncates.terminated | truncates.truncated)
    for field in ("observation", "action", "reward", "cost", "next_observation", "step"):
        np.testing.assert_array_equal(getattr(terminates, field), getattr(truncates, field))


def test_the_next_observation_is_the_one_before_the_reset_and_otherwise_the_one_that_follows():
    batch = sampled(False)
    ended = (batch.terminated | batch.truncated)[:-1]
    np.testing.assert_array_equal(batch.next_observation[:-1][~ended], batch.observation[1:][~ended])
    np.testing.assert_array_equal(batch.observation[1:][ended][:, 0], batch.observation[1:][ended][:, 1])
    assert (batch.next_observation[:-1][ended] != batch.observation[1:][ended]).any(axis=-1).all()


def test_memory_starts_afresh_in_each_episode_and_lasts_through_it():
    batch = sampled(False)
    assert (batch.step == 0).sum() > 20 * ENVIRONMENTS
    np.testing.assert_array_equal(batch.action[..., 0], 100.0 + batch.step)


def test_the_first_step_of_a_batch_begins_an_episode_in_every_environment():
    np.testing.assert_array_equal(sampled(True).step[0], np.zeros(ENVIRONMENTS))


def test_resets_draw_new_starts_each_time():
    batch = sampled(False)
    starts = batch.observation[..., 1][batch.step == 0]
    counts = np.bincount(starts.astype(int), minlength=STARTS)
    expected = len(starts) / STARTS
    assert np.abs(counts - expected).max() < 4.5 * np.sqrt(expected)
    mine = [batch.observation[:, n, 1][batch.step[:, n] == 0] for n in range(ENVIRONMENTS)]
    assert any(first != second for first, second, *_ in mine)


def test_no_two_draws_of_a_batch_share_a_key():
    batch = sampled(False)
    draws = np.concatenate([batch.action[..., 1].ravel(), batch.cost[..., 1].ravel()])
    # Of 1200 draws of 24 bits about 0.04 pairs coincide by chance; a reused key would repeat whole columns.
    assert len(np.unique(draws)) > len(draws) - 3


def test_the_same_key_gives_the_same_batch_and_another_key_another():
    again = jitted(False)(jax.random.key(0))
    for one, other in zip(jax.tree.leaves(sampled(False)), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(one, other)
    assert (sampled(False, seed=1).action[..., 1] != sampled(False).action[..., 1]).all()


def test_each_seed_of_a_vmapped_run_samples_as_it_would_alone():
    keys = jnp.stack([jax.random.key(seed) for seed in range(3)])
    vmapped = jax.jit(jax.vmap(sampler(False, seeds_axis="seeds"), axis_name="seeds"))
    together = jax.tree.map(np.asarray, vmapped(keys))
    resets = (together.terminated | together.truncated).any(axis=2)
    assert (resets.any(axis=0) & ~resets.all(axis=0)).any(), "seeds must differ in when they reset"
    for seed in range(3):
        for one, other in zip(jax.tree.leaves(sampled(False, seed)), jax.tree.leaves(together), strict=True):
            np.testing.assert_allclose(one, other[seed], rtol=1e-6)


@pytest.mark.parametrize("task", [Gridworld(horizon=12), PointGather()])
def test_a_watched_episode_s_states_explain_its_steps(task):
    """Every step observes the state before it, and what it reaches is the next one."""

    def act(memory, observation, key):
        if task.discrete_actions:
            return jax.nn.one_hot(jax.random.randint(key, (), 0, task.action_size), task.action_size), memory + 1
        return jax.random.normal(key, (task.action_size,)), memory + 1

    states, steps = watch(task, act, jnp.zeros(()), jax.random.key(0))
    assert all(leaf.shape[0] == task.horizon + 1 for leaf in jax.tree.leaves(states))
    seen = jax.vmap(task.observe)(states)
    np.testing.assert_allclose(steps.observation, seen[:-1], atol=1e-5)
    np.testing.assert_allclose(steps.next_observation, seen[1:], atol=1e-5)
    np.testing.assert_array_equal(steps.step, np.arange(task.horizon))
    assert bool(steps.terminated[-1]) == task.horizon_terminates or bool(seen[-1].sum() == 0)
    assert bool(steps.truncated[-1]) != bool(steps.terminated[-1])
    assert not np.any(np.asarray(steps.truncated[:-1]))
