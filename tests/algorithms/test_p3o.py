"""P3O: the penalty is exact above the optimal multiplier, and not below it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from apdo.algorithms import epoch, p3o, ppo_steps
from apdo.algorithms.surrogate import Surrogate
from problems import chances_of, one_state_policy, one_state_samples

OLD = one_state_policy([0.0, 0.0])
PRIMAL = ppo_steps.Ppo(clip=10.0)
REWARD, COST, LIMIT = np.asarray([1.5, -1.5]), np.asarray([0.5, -0.5]), 0.2
"""A choice that pays 3 and costs 1 more than the other: R = 3 p, C = p, so that λ* = 3 at any limit within reach."""


def losses(penalty, chances):
    """The loss at policies that make the dear choice with these chances; the limit on C = p is LIMIT."""
    near = epoch.Signals(surrogate=Surrogate.at(OLD, one_state_samples(OLD, REWARD)), cost=jnp.asarray(COST[:, None]))
    excess = jnp.asarray([0.5 - LIMIT])
    config = p3o.Config(primal=PRIMAL, penalty=penalty)
    one = jax.jit(lambda logit: p3o.loss(config, one_state_policy([logit, 0.0]), near, excess))
    return np.asarray([one(logit) for logit in np.log(chances / (1.0 - chances))])


@pytest.mark.parametrize(("penalty", "expected"), [(3.3, LIMIT), (30.0, LIMIT), (2.7, 0.99)])
def test_the_penalised_optimum_is_the_constrained_one_just_above_the_multiplier_and_breaks_the_limit_below(
    penalty, expected
):
    chances = np.linspace(0.01, 0.99, 99)
    assert chances[np.argmin(losses(penalty, chances))] == pytest.approx(expected, abs=0.011)


def test_a_limit_that_is_kept_is_not_felt():
    """Below the limit the loss is -L_R alone, whatever the penalty."""
    chances = np.linspace(0.01, LIMIT - 0.01, 5)
    np.testing.assert_allclose(losses(1e3, chances), losses(1.0, chances), rtol=1e-6)
    assert chances_of(OLD)[0] == 0.5
