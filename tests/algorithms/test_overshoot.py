"""How far a step of TRPO may carry a cost across its limit."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jax.flatten_util import ravel_pytree

from apdo.algorithms import natural_steps, overshoot, primal_steps
from apdo.algorithms.surrogate import Samples, Surrogate
from apdo.core import trust_region
from problems import improved


def test_trpo_carries_a_cost_through_its_limit_no_further_than_is_allowed_and_otherwise_goes_to_the_edge(
    policy, samples
):
    """The cost falls (or rises) where the advantage rises, so that a full step changes it much."""
    step = jax.jit(primal_steps.improve, static_argnums=0)
    surrogate, config = Surrogate.at(policy, samples), natural_steps.Trpo(radius=0.005)
    half = jnp.ones((2, 1000))
    full = float(improved(config, policy, samples)[2]["surrogate_gain"])
    for side in (1.0, -1.0):
        cost = (-side * samples.advantage * samples.weight / 1000.0)[:, None]

        def moved(allowed, side=side, cost=cost):
            excess = jnp.asarray([side * 0.3 * full])
            crossing = overshoot.Crossing(cost, half, excess, jnp.asarray([allowed * full]))
            new, _, metrics = step(config, policy, (), samples, random.key(4), crossing)
            change = float(((surrogate.ratio(new) - 1.0) @ cost)[0])
            return 0.3 + side * change / full, float(metrics["kl"])

        free, farthest = moved(100.0)
        np.testing.assert_allclose(free, 0.3 - 1.0, rtol=1e-3)
        kept, nearer = moved(0.2)
        np.testing.assert_allclose(kept, -0.2, atol=0.05)
        np.testing.assert_allclose(nearer / farthest, 0.5**2, rtol=0.2)


def test_a_step_that_only_pleases_the_samples_noise_is_not_believed_to_change_a_cost(policy, samples):
    """Rewards and costs of pure noise: the whole batch promises a large change, and one half says the other errs."""
    noise = random.normal(random.key(9), (1000,))
    idle = Samples(samples.observation, samples.action, noise, jnp.ones(1000))
    surrogate, cost = Surrogate.at(policy, idle), (-noise / 1000.0)[:, None]
    apart = jnp.stack([jnp.arange(1000) % 2 == 0, jnp.arange(1000) % 2 == 1]) * 2.0
    config = natural_steps.NaturalGradient(radius=0.02)
    product = trust_region.fisher(config, policy, idle.observation)
    gradient = ravel_pytree(jax.grad(surrogate.gain)(policy))[0]
    factor = trust_region.factor_to_edge(product, trust_region.conjugate_gradient(product, gradient, 10), 0.02)
    natural = lambda v: factor * trust_region.conjugate_gradient(product, v, 10)  # noqa: E731
    promised = float(jnp.vdot(natural(gradient), gradient))

    def share(half):
        crossing = overshoot.Crossing(cost, half, jnp.asarray([0.1 * promised]), jnp.asarray([0.1 * promised]))
        return float(crossing.share(surrogate, policy, natural))

    np.testing.assert_allclose(share(jnp.ones((2, 1000))), 0.2, rtol=1e-3)
    assert share(apart) > 0.5
