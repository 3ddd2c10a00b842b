"""Batches whose actions come from a policy, and the exact gain of a step from that policy: for CPO and PCPO."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from apdo.algorithms import on_policy
from apdo.algorithms.local_model import LocalModel
from apdo.algorithms.surrogate import Surrogate
from problems import Reach, problem_of, random_batch

LENGTH = 5
"""The steps of every episode; each has weight 1 in the sums of an episode."""


def on_policy_batch(policy, costs, environments=200):
    """A batch of ten steps, two episodes in each environment, with the policy's own actions."""
    batch = random_batch(random.key(1), Reach(costs=costs, horizon=LENGTH), 10, environments)
    keys = random.split(random.key(2), 10 * environments)
    flat = batch.observation.reshape(10 * environments, -1)
    action = jax.vmap(lambda o, k: policy(o).sample(k))(flat, keys).reshape(10, environments, 1)
    return dataclasses.replace(batch, action=action)


def advantages(batch, costs):
    """The advantages of each step: for the reward a, for cost 0 a², for cost 1 (a - 1)²."""
    a = batch.action[..., 0]
    return jnp.stack([a, jnp.square(a), jnp.square(a - 1.0)][: 1 + costs], axis=-1)


def totals(costs):
    """A problem with plain sums."""
    problem = problem_of(Reach(costs=costs, horizon=LENGTH), 2000, (0.3,) * costs)
    return dataclasses.replace(problem, cost_discount=1.0)


def local_model(policy, batch, advantage):
    return LocalModel.of(totals(advantage.shape[-1] - 1), policy, batch, advantage)


def gains(policy, batch, advantage, new):
    """How much the sums of an episode gain: its length times the mean over the steps."""
    samples = on_policy.samples(totals(advantage.shape[-1] - 1), batch, batch.reward)
    ratio = Surrogate.at(policy, samples).ratio(new)
    centred = advantage.reshape(-1, advantage.shape[-1])
    centred = centred - centred.mean(axis=0, keepdims=True)
    return np.asarray(LENGTH * jnp.mean((ratio - 1.0)[:, None] * centred, axis=0))
