"""PCPO: the projection against brute force, and the way back from outside the limits."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from scipy import optimize

from apdo.algorithms import pcpo
from apdo.core import critics, policies, trust_region
from on_policy_steps import advantages, gains, local_model, on_policy_batch
from problems import Reach, problem_of, random_batch

SEARCH = trust_region.LineSearch(radius=1e-4, fraction=1.0, iterations=50, damping=1e-2)
"""So near that what is linearised is so."""


@pytest.mark.parametrize("constraints", [1, 2, 3])
def test_the_projection_is_the_nearest_point_within_the_constraints(constraints):
    rng = np.random.default_rng(constraints)
    for _ in range(10):
        b, root = rng.normal(size=(constraints, 4)), rng.normal(size=(4, 4))
        metric = root @ root.T + np.eye(4)
        start, c = rng.normal(size=4), rng.normal(size=constraints)
        s, excess = b @ np.linalg.solve(metric, b.T), c + b @ start
        amount = np.asarray(pcpo.project(jnp.asarray(s, jnp.float32), jnp.asarray(excess, jnp.float32)))
        found = start - np.linalg.solve(metric, b.T) @ amount
        brute = optimize.minimize(
            lambda x, start=start, metric=metric: 0.5 * (x - start) @ metric @ (x - start),
            start,
            jac=lambda x, start=start, metric=metric: metric @ (x - start),
            constraints={"type": "ineq", "fun": lambda x, c=c, b=b: -(c + b @ x)},
            method="SLSQP",
        )
        assert brute.success
        np.testing.assert_allclose(found, brute.x, atol=2e-3)


@pytest.mark.parametrize("metric", ["kl", "parameters"])
def test_a_step_takes_return_as_far_as_the_slack_goes_and_leads_back_from_outside(metric):
    policy = policies.init(policies.Config(hidden=(8,)), random.key(0), 2, 1, discrete=False)
    batch = on_policy_batch(policy, 1)
    advantage = advantages(batch, 1)
    here, config = local_model(policy, batch, advantage), pcpo.Config(search=SEARCH, metric=metric)
    improve = jax.jit(pcpo.improve, static_argnums=0)
    free, metrics = improve(config, here, jnp.asarray([-1e3]))
    wish = gains(policy, batch, advantage, free)
    assert float(metrics["multiplier"][0]) == 0.0
    assert wish[0] > 0.005 < wish[1]
    bound, metrics = improve(config, here, jnp.asarray([-0.3 * wish[1]]))
    reached = gains(policy, batch, advantage, bound)
    assert float(metrics["multiplier"][0]) > 0.0
    assert 0.0 < reached[0] < wish[0]
    assert reached[1] == pytest.approx(0.3 * wish[1], abs=0.1 * float(wish[1]))
    back, _ = improve(config, here, jnp.asarray([0.3 * wish[1]]))
    assert gains(policy, batch, advantage, back)[1] < -0.2 * wish[1]


def test_steps_are_half_as_long_after_as_many_epochs_as_annealing_is_told():
    """Half the length is a quarter of the KL divergence."""
    networks: dict[str, Any] = {"policy": policies.Config(hidden=(8,)), "critic": critics.Config(hidden=(8,))}
    config = pcpo.Config(anneal=5.0, margin=0.0, search=SEARCH, **networks)
    problem = problem_of(Reach(costs=1), 200, (1e3,))
    batch = random_batch(random.key(1), Reach(costs=1), 10, 20)
    step = jax.jit(pcpo.step, static_argnums=(0, 1))
    fresh = pcpo.init(config, problem, random.key(0))
    found = []
    for epoch in (0, 5):
        late = dataclasses.replace(fresh, epoch=jnp.asarray(epoch))
        after, metrics = step(config, problem, late, batch, random.key(2))
        assert int(after.epoch) == epoch + 1
        found.append(float(metrics["kl"]))
    assert found[1] == pytest.approx(found[0] / 4.0, rel=0.1)
