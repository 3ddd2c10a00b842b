"""Diagonal Gaussians against scipy, numerical integration and automatic derivatives."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy import integrate, stats

from apdo.core import gaussian, policies
from apdo.core.gaussian import Gaussian


def draw(rng, size=3):
    return Gaussian(mean=jnp.asarray(rng.normal(size=size)), log_std=jnp.asarray(rng.uniform(-1.0, 0.7, size=size)))


def marginals(distribution) -> list[Any]:
    std = np.exp(np.asarray(distribution.log_std))
    return [stats.norm(m, s) for m, s in zip(np.asarray(distribution.mean), std, strict=True)]


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("seed", range(3))
def test_log_probability_and_entropy_equal_scipys(seed):
    rng = np.random.default_rng(seed)
    distribution, action = draw(rng), rng.normal(size=3) * 2
    covariance = np.diag(np.exp(2 * np.asarray(distribution.log_std)))
    frozen: Any = stats.multivariate_normal  # its annotations say that a covariance is a whole number
    reference = frozen(np.asarray(distribution.mean), covariance)
    np.testing.assert_allclose(distribution.log_prob(jnp.asarray(action)), reference.logpdf(action), rtol=1e-10)
    np.testing.assert_allclose(distribution.entropy(), reference.entropy(), rtol=1e-10)


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("seed", range(3))
def test_kl_equals_the_integral_of_p_log_p_over_q(seed):
    rng = np.random.default_rng(seed)
    first, second = draw(rng), draw(rng)
    expected = 0.0
    for p, q in zip(marginals(first), marginals(second), strict=True):
        low, high = p.mean() - 12 * p.std(), p.mean() + 12 * p.std()
        expected += integrate.quad(
            lambda x, p=p, q=q: p.pdf(x) * (p.logpdf(x) - q.logpdf(x)), low, high, points=[p.mean()]
        )[0]
    np.testing.assert_allclose(first.kl(second), expected, rtol=1e-7)
    assert abs(float(second.kl(first)) - expected) > 1e-3, "the two directions differ"


@pytest.mark.usefixtures("double_precision")
def test_kl_to_itself_is_zero_and_to_any_other_is_positive():
    rng = np.random.default_rng(3)
    ours = draw(rng)
    assert float(ours.kl(ours)) == 0.0
    for entry in range(3):
        for field in ("mean", "log_std"):
            for move in (-1e-3, 1e-3):
                moved = {"mean": ours.mean, "log_std": ours.log_std}
                moved[field] = moved[field].at[entry].add(move)
                assert float(ours.kl(Gaussian(**moved))) > 0.0


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("seed", range(3))
def test_fisher_equals_the_hessian_of_kl_at_the_distribution_itself(seed):
    rng = np.random.default_rng(seed)
    here, tangent = draw(rng), draw(rng)
    flat, unravel = ravel_pytree(here)
    hessian = jax.jit(jax.hessian(lambda there: here.kl(unravel(there))))(flat)
    expected = np.asarray(hessian) @ np.asarray(ravel_pytree(tangent)[0])
    np.testing.assert_allclose(ravel_pytree(here.fisher(tangent))[0], expected, rtol=1e-9, atol=1e-12)


def test_samples_have_the_distributions_mean_spread_and_shape_and_independent_entries():
    distribution = draw(np.random.default_rng(5))
    count = 20_000
    samples = np.asarray(jax.jit(jax.vmap(distribution.sample))(jax.random.split(jax.random.key(0), count)))
    for entry, marginal in enumerate(marginals(distribution)):
        assert stats.kstest(samples[:, entry], marginal.cdf).pvalue > 1e-3
        assert abs(samples[:, entry].mean() - marginal.mean()) < 4 * marginal.std() / np.sqrt(count)
        assert abs(samples[:, entry].std() / marginal.std() - 1.0) < 4 / np.sqrt(2 * count)
    correlation = np.corrcoef(samples.T) - np.eye(3)
    assert np.abs(correlation).max() < 4 / np.sqrt(count)


def test_the_mode_is_where_the_density_is_greatest():
    distribution = draw(np.random.default_rng(6))
    mode = distribution.mode()
    np.testing.assert_allclose(jax.grad(distribution.log_prob)(mode), np.zeros(3), atol=1e-6)
    others = np.asarray(mode) + np.random.default_rng(0).normal(size=(100, 3)).astype(np.float32)
    assert (np.asarray(jax.jit(jax.vmap(distribution.log_prob))(others)) < float(distribution.log_prob(mode))).all()


def test_a_fresh_policys_spread_is_as_configured_and_the_same_in_every_state():
    policy = policies.init(policies.Config(hidden=(5,), log_std=-0.7), jax.random.key(1), 4, 3, discrete=False)
    observations = jnp.asarray(np.random.default_rng(2).normal(size=(6, 4)), dtype=jnp.float32)
    assert isinstance(policy, gaussian.Policy)
    distributions = jax.jit(jax.vmap(policy))(observations)
    np.testing.assert_array_equal(distributions.log_std, np.full((6, 3), -0.7, dtype=np.float32))
    np.testing.assert_allclose(distributions.mean, jax.jit(jax.vmap(policy.mean))(observations), atol=1e-6)
    assert len(np.unique(np.asarray(distributions.mean), axis=0)) == 6


def test_a_policys_default_shape_is_the_papers():
    policy = jax.eval_shape(lambda key: policies.init(policies.Config(), key, 29, 2, discrete=False), jax.random.key(0))
    assert [w.shape for w in policy.mean.weights] == [(29, 64), (64, 32), (32, 2)]
    assert policy.log_std.shape == (2,)
    assert policies.Config().log_std == -0.5
