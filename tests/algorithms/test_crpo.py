"""CRPO: which of its two kinds of step it takes."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

from apdo.algorithms import crpo
from apdo.core import critics, policies
from problems import Reach, problem_of, random_batch

SMALL: dict[str, Any] = {"policy": policies.Config(hidden=(8,)), "critic": critics.Config(hidden=(8,), minibatches=2)}


@pytest.mark.parametrize(
    ("excess", "tolerance", "worst", "broken"),
    [
        ([-0.1, -0.2], 0.0, 1, False),
        ([0.1, 0.3], 0.0, 0, True),
        ([0.1, 4.0], 0.0, 1, True),
        ([0.1, 0.3], 0.2, 0, False),
        ([-0.1, 0.3], 0.0, 1, True),
    ],
)
def test_the_limit_that_is_broken_worst_in_proportion_is_chosen(excess, tolerance, worst, broken):
    """Sizes 1 and 10."""
    found = crpo.choose(jnp.asarray(excess), jnp.asarray([1.0, 10.0]), tolerance)
    assert (int(found[0]), bool(found[1])) == (worst, broken)


def test_a_step_is_for_the_return_within_the_limits_and_against_the_cost_outside():
    """The reward is the action, cost 0 its opposite, cost 1 the action itself: where the policy goes tells for whom."""
    batch = random_batch(random.key(1), Reach(costs=2), 10, 20)
    push = batch.action[..., :1]
    config = crpo.Config(margin=0.0, **SMALL)
    problem = problem_of(Reach(costs=2), 200, (0.0, 0.0))
    state = crpo.init(config, problem, random.key(0))
    step = jax.jit(crpo.step, static_argnums=(0, 1))
    for costs, recovering, sign in (((-0.2, -0.2), 0.0, 1), ((0.2, -0.2), 1.0, 1), ((-0.2, 0.2), 1.0, -1)):
        cost = jnp.concatenate([costs[0] - push, costs[1] + push], axis=-1)
        priced = dataclasses.replace(batch, reward=push[..., 0], cost=cost)
        after, metrics = step(config, problem, state, priced, random.key(2))
        flat = batch.observation.reshape(200, -1)
        before, now = (jax.vmap(lambda o, p=p: p(o).mode())(flat) for p in (state.policy, after.policy))
        assert float(metrics["recovering"]) == recovering
        assert np.sign(float(jnp.mean(now - before))) == sign
