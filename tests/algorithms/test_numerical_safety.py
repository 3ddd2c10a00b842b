"""Batches at the edges of what numbers can say: every algorithm stays finite, and its multipliers non-negative."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

from apdo.algorithms import apdo, cpo, crpo, cup, focops, gradient_steps, ipo, p3o, pcpo, pd_ddpg, pdo, ppo_steps, trpo
from apdo.core import critics, policies
from apdo.off_policy import ddpg, dual_estimate
from problems import Reach, problem_of, random_batch

SMALL = {"policy": policies.Config(hidden=(4,)), "critic": critics.Config(hidden=(4,), passes=2, minibatches=2)}
LEARNER = ddpg.Learner(critic_hidden=(4,), actor_hidden=(4,), minibatch=8)
PPO, PASSES = ppo_steps.Ppo(passes=2, minibatches=2), gradient_steps.Passes(passes=2, minibatches=2)
ACTOR = dual_estimate.Config(learner=dataclasses.replace(LEARNER, bound=2.0, action_noise=0.25))
TRYING: dict[str, Any] = SMALL | {"policy": policies.Config(hidden=(4,), bound=2.0)}
ALGORITHMS = {
    "trpo": (trpo, trpo.Config(**SMALL)),
    "pdo": (pdo, pdo.Config(**SMALL)),
    "cpo": (cpo, cpo.Config(**SMALL)),
    "pd-ddpg": (pd_ddpg, pd_ddpg.Config(learner=LEARNER, replay_capacity=200)),
    "apdo": (apdo, apdo.Config(primal=PPO, k_adj=0, off_policy=ACTOR, **TRYING)),
    "focops": (focops, focops.Config(primal=PASSES, **SMALL)),
    "cup": (cup, cup.Config(primal=PPO, projection=PASSES, **SMALL)),
    "pcpo": (pcpo, pcpo.Config(**SMALL)),
    "p3o": (p3o, p3o.Config(primal=PPO, **SMALL)),
    "ipo": (ipo, ipo.Config(primal=PPO, **SMALL)),
    "crpo": (crpo, crpo.Config(**SMALL)),
}
STEPS, ENVIRONMENTS, EPOCHS = 5, 8, 3
TASK = Reach(costs=2, horizon=STEPS)
CASES = {
    "rewards of 1e-6": lambda b: dataclasses.replace(b, reward=1e-6 * b.reward),
    "rewards of 1e6": lambda b: dataclasses.replace(b, reward=1e6 * b.reward),
    "rewards of both": lambda b: dataclasses.replace(
        b, reward=b.reward * jnp.where(jnp.arange(b.reward.shape[1]) % 2, 1e6, 1e-6)[None]
    ),
    "costs of 1e6": lambda b: dataclasses.replace(b, cost=1e6 * b.cost),
    "costs of 1e-6": lambda b: dataclasses.replace(b, cost=1e-6 * b.cost),
    "one cost of 1e6, one of 1e-6": lambda b: dataclasses.replace(
        b, cost=b.cost * jnp.asarray([1e6, 1e-6])[None, None]
    ),
    "no cost in the whole batch": lambda b: dataclasses.replace(b, cost=jnp.zeros_like(b.cost)),
    "no reward in the whole batch": lambda b: dataclasses.replace(b, reward=jnp.zeros_like(b.reward)),
    "nothing in the whole batch": lambda b: dataclasses.replace(
        b, reward=jnp.zeros_like(b.reward), cost=jnp.zeros_like(b.cost)
    ),
    "every step alike": lambda b: jax.tree.map(lambda x: jnp.broadcast_to(x[:, :1], x.shape), b),
    "one observation only": lambda b: dataclasses.replace(
        b, observation=jnp.zeros_like(b.observation), next_observation=jnp.zeros_like(b.next_observation)
    ),
    "episodes of one step": lambda b: dataclasses.replace(
        b, terminated=jnp.ones_like(b.terminated), step=jnp.zeros_like(b.step)
    ),
}


def epochs_of(name, batches, limits, environments):
    """The states and metrics of a few epochs on the given batches."""
    step = _compiled(name, limits, environments)
    state = _start(name, limits, environments)
    for epoch, batch in enumerate(batches):
        state, metrics = step(state, batch, random.key(epoch))
        yield state, metrics


@functools.cache
def _start(name, limits, environments):
    algorithm, config = ALGORITHMS[name]
    return algorithm.init(config, problem_of(TASK, STEPS * environments, limits), random.key(1))


@functools.cache
def _batch(epoch, environments):
    return random_batch(random.key(epoch), TASK, STEPS, environments)


@functools.cache
def _compiled(name, limits, environments):
    algorithm, config = ALGORITHMS[name]
    problem = problem_of(TASK, STEPS * environments, limits)
    return jax.jit(lambda s, b, k: algorithm.step(config, problem, s, b, k))


def assert_sound(state, metrics):
    for path, leaf in jax.tree_util.tree_leaves_with_path((state, metrics)):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            assert np.all(np.isfinite(leaf)), jax.tree_util.keystr(path)
    if "multiplier" in metrics:
        assert np.all(metrics["multiplier"] >= 0.0)
    holder = getattr(state, "pdo", getattr(state, "learner", state))
    if hasattr(holder, "multiplier"):
        assert np.all(getattr(holder.multiplier, "value", holder.multiplier) >= 0.0)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_strange_batches_give_finite_updates(name):
    """One program for all cases: the batch is an argument of it."""
    for case, change in CASES.items():
        batches = [change(_batch(epoch, ENVIRONMENTS)) for epoch in range(EPOCHS)]
        for epoch, (state, metrics) in enumerate(epochs_of(name, batches, (0.5, 0.5), ENVIRONMENTS)):
            try:
                assert_sound(state, metrics)
            except AssertionError as error:
                raise AssertionError(f"{case}, epoch {epoch}: {error}") from error


@pytest.mark.parametrize("name", ["pdo", "cpo", "pd-ddpg"])
def test_one_environment_and_limits_of_zero_give_finite_updates(name):
    for change in (lambda b: b, CASES["no cost in the whole batch"], CASES["costs of 1e6"]):
        batches = [change(_batch(epoch, 1)) for epoch in range(EPOCHS)]
        for state, metrics in epochs_of(name, batches, (0.0, 0.0), 1):
            assert_sound(state, metrics)


def test_equal_advantages_leave_a_trust_region_policy_where_it_was():
    """Nothing to learn from: no direction is better than another."""
    problem = problem_of(TASK, STEPS * ENVIRONMENTS)
    batch = CASES["nothing in the whole batch"](random_batch(random.key(0), TASK, STEPS, ENVIRONMENTS))
    config = trpo.Config(**SMALL)
    state = trpo.init(config, problem, random.key(1))
    blank = jax.tree.map(jnp.zeros_like, state.critic.networks)
    state = dataclasses.replace(state, critic=dataclasses.replace(state.critic, networks=blank))
    after, metrics = _compiled("trpo", (0.5, 0.5), ENVIRONMENTS)(state, batch, random.key(2))
    assert float(metrics["step_accepted"]) == 0.0
    for ours, theirs in zip(jax.tree.leaves(after.policy), jax.tree.leaves(state.policy), strict=True):
        np.testing.assert_array_equal(ours, theirs)
