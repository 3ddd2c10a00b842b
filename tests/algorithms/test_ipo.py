"""IPO: the barrier's gradient, inside and outside the limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from apdo.algorithms import epoch, ipo, ppo_steps
from apdo.algorithms.surrogate import Surrogate
from problems import one_state_policy, one_state_samples

OLD = one_state_policy([0.0, 0.0])
COST = jnp.asarray([[0.5], [-0.5]])
CONFIG = ipo.Config(primal=ppo_steps.Ppo(clip=10.0), sharpness=5.0)


def gradients(excess):
    """∇ of the loss less that of -L_R, and ∇ of C, at π_k."""
    near = epoch.Signals(surrogate=Surrogate.at(OLD, one_state_samples(OLD, [1.5, -1.5])), cost=COST)
    size = jnp.asarray([2.0])

    def total(policy):
        return ipo.loss(CONFIG, policy, near, jnp.asarray([excess]), size)

    def barrier_alone(policy):
        return total(policy) + ppo_steps.clipped_gain(CONFIG.primal, near.surrogate, policy)

    def cost(policy):
        return jnp.mean(near.surrogate.samples.weight * near.surrogate.ratio(policy) * COST[:, 0])

    return [np.asarray(jax.grad(each)(OLD).logits.biases[0]) for each in (barrier_alone, cost)]


@pytest.mark.parametrize("slack", [1.5, 0.3, 0.1])
def test_inside_the_limit_the_barrier_is_a_multiplier_of_one_by_t_times_the_slack(slack):
    """∇(-log(d - C) / t) = ∇C / (t (d - C)), with the slack as a share of the limit, 2."""
    barrier, cost = gradients(-slack)
    np.testing.assert_allclose(barrier, cost * 2.0 / (5.0 * slack), rtol=1e-4)


def test_outside_the_limit_the_multiplier_is_the_largest_and_the_barrier_goes_on_smoothly():
    for excess in (0.0, 0.5, 100.0):
        barrier, cost = gradients(excess)
        np.testing.assert_allclose(barrier, 20.0 * cost, rtol=1e-4)
    least = ipo.least(CONFIG)
    near = jnp.asarray([0.999 * least, 1.001 * least])
    assert np.ptp(np.asarray(ipo.barrier(near, least))) < 0.003
