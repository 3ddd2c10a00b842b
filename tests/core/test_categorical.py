import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from apdo.core import policies, trust_region
from apdo.core.categorical import Categorical, Policy

LOGITS = np.array([0.3, -1.2, 2.0, 0.0], dtype=np.float32)
OTHER = np.array([-0.5, 0.4, 0.1, 1.5], dtype=np.float32)
CHOICES = np.eye(4, dtype=np.float32)


@pytest.fixture
def distribution():
    return Categorical(logits=jnp.asarray(LOGITS))


def probabilities(logits):
    weights = np.exp(logits.astype(np.float64))
    return weights / weights.sum()


def test_log_probabilities_are_those_of_the_softmax_and_sum_to_one(distribution):
    found = np.array([float(distribution.log_prob(jnp.asarray(choice))) for choice in CHOICES])
    np.testing.assert_allclose(found, np.log(probabilities(LOGITS)), rtol=1e-5)
    assert np.exp(found).sum() == pytest.approx(1.0, abs=1e-6)


def test_draws_are_one_hot_and_as_frequent_as_their_probabilities(distribution):
    draws = np.asarray(jax.jit(jax.vmap(distribution.sample))(jax.random.split(jax.random.key(0), 2**14)))
    np.testing.assert_array_equal(np.sort(draws, axis=-1)[:, -1], np.ones(2**14))
    np.testing.assert_array_equal(draws.sum(axis=-1), np.ones(2**14))
    p = probabilities(LOGITS)
    assert (np.abs(draws.mean(axis=0) - p) < 4.5 * np.sqrt(p * (1 - p) / 2**14)).all()


def test_the_mode_is_the_most_likely_choice(distribution):
    np.testing.assert_array_equal(distribution.mode(), CHOICES[2])


def test_kl_and_entropy_are_their_sums_over_choices(distribution):
    p, q = probabilities(LOGITS), probabilities(OTHER)
    other = Categorical(logits=jnp.asarray(OTHER))
    assert float(distribution.kl(other)) == pytest.approx((p * np.log(p / q)).sum(), rel=1e-5)
    assert float(distribution.kl(distribution)) == pytest.approx(0.0, abs=1e-7)
    assert float(distribution.entropy()) == pytest.approx(-(p * np.log(p)).sum(), rel=1e-5)


def test_adding_a_constant_to_the_logits_changes_nothing(distribution):
    shifted = Categorical(logits=jnp.asarray(LOGITS + 7.0))
    assert float(distribution.kl(shifted)) == pytest.approx(0.0, abs=1e-6)
    tangent = Categorical(logits=jnp.ones(4))
    np.testing.assert_allclose(distribution.fisher(tangent).logits, np.zeros(4), atol=1e-6)


def test_fisher_is_the_second_derivative_of_the_divergence(distribution):
    hessian = np.asarray(jax.hessian(lambda x: distribution.kl(Categorical(logits=x)))(jnp.asarray(LOGITS)))
    for direction in CHOICES:
        product = distribution.fisher(Categorical(logits=jnp.asarray(direction))).logits
        np.testing.assert_allclose(product, hessian @ direction, atol=1e-6)


def test_fisher_is_the_covariance_of_the_score(distribution):
    p = probabilities(LOGITS)
    scores = np.stack(
        [
            np.asarray(jax.grad(lambda x, c=c: Categorical(logits=x).log_prob(jnp.asarray(c)))(jnp.asarray(LOGITS)))
            for c in CHOICES
        ]
    )
    covariance = np.einsum("a,ai,aj->ij", p, scores, scores)
    for i, j in itertools.product(range(4), repeat=2):
        product = distribution.fisher(Categorical(logits=jnp.asarray(CHOICES[i]))).logits
        assert float(product[j]) == pytest.approx(covariance[i, j], abs=1e-6)


def test_the_trust_regions_fisher_product_knows_categorical_policies():
    policy = policies.init(policies.Config(hidden=(3,)), jax.random.key(0), 2, 4, discrete=True)
    theta, unravel = ravel_pytree(policy)
    observation = jax.random.normal(jax.random.key(1), (5, 2))
    product = trust_region.fisher_product(lambda t: jax.vmap(unravel(t))(observation), theta, 0.0)

    def divergence(t):
        old, new = jax.vmap(policy)(observation), jax.vmap(unravel(t))(observation)
        return jnp.mean(jax.vmap(lambda a, b: a.kl(b))(old, new))

    direction = jax.random.normal(jax.random.key(2), theta.shape)
    expected = jax.hessian(divergence)(theta) @ direction
    np.testing.assert_allclose(product(direction), expected, rtol=2e-3, atol=1e-5)


def test_a_fresh_policy_is_nearly_uniform_and_differs_between_states():
    policy = policies.init(policies.Config(hidden=(8,)), jax.random.key(0), 3, 4, discrete=True)
    assert isinstance(policy, Policy)
    p = np.asarray(jax.vmap(lambda o: policy(o).probabilities)(jnp.eye(3)))
    np.testing.assert_allclose(p, np.full((3, 4), 0.25), atol=0.01)
    assert len(np.unique(p, axis=0)) == 3
