"""The pieces of a trust-region step against dense linear algebra and exhaustive search."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from jax.flatten_util import ravel_pytree

from apdo.core import policies, trust_region


def positive_definite(rng, size, condition=50.0):
    rotation = np.linalg.qr(rng.normal(size=(size, size)))[0]
    return rotation @ np.diag(np.geomspace(1.0, condition, size)) @ rotation.T


@partial(jax.jit, static_argnums=(2, 3))
def conjugate_gradient(matrix, target, iterations, tolerance):
    return trust_region.conjugate_gradient(lambda v: matrix @ v, target, iterations, tolerance)


def solve(matrix, target, iterations, tolerance=1e-10):
    return np.asarray(conjugate_gradient(jnp.asarray(matrix), jnp.asarray(target), iterations, tolerance))


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("seed", range(3))
def test_conjugate_gradient_solves_a_random_system_in_as_many_iterations_as_unknowns(seed):
    rng = np.random.default_rng(seed)
    matrix, target = positive_definite(rng, 9), rng.normal(size=9)
    solution = solve(matrix, target, 9, tolerance=0.0)
    np.testing.assert_allclose(solution, np.linalg.solve(matrix, target), rtol=1e-7)


def test_conjugate_gradient_solves_in_single_precision_to_its_tolerance():
    rng = np.random.default_rng(4)
    matrix, target = positive_definite(rng, 9).astype(np.float32), rng.normal(size=9).astype(np.float32)
    residual = target - matrix @ solve(matrix, target, 30)
    assert np.linalg.norm(residual) < 1e-4 * np.linalg.norm(target)


def test_conjugate_gradient_of_a_zero_target_is_exactly_zero():
    matrix = positive_definite(np.random.default_rng(0), 5).astype(np.float32)
    np.testing.assert_array_equal(solve(matrix, np.zeros(5, dtype=np.float32), 10), np.zeros(5))
    np.testing.assert_array_equal(solve(np.zeros((5, 5), np.float32), np.zeros(5, np.float32), 10), np.zeros(5))


def test_conjugate_gradient_of_a_target_whose_curvature_underflows_is_finite_and_nan_is_passed_on():
    """The gradient of a policy that is all but deterministic: its square is a float, the damped curvature is none."""
    target = np.full(5, 1e-18, dtype=np.float32)
    assert np.isfinite(solve(1e-9 * np.eye(5, dtype=np.float32), target, 10)).all()
    assert np.isnan(solve(np.full((5, 5), np.nan, dtype=np.float32), np.ones(5, dtype=np.float32), 10)).all()


def test_conjugate_gradient_stays_where_it_converged():
    rng = np.random.default_rng(1)
    matrix, target = positive_definite(rng, 6).astype(np.float32), rng.normal(size=6).astype(np.float32)
    settled = solve(matrix, target, 40)
    np.testing.assert_array_equal(solve(matrix, target, 400), settled)
    np.testing.assert_allclose(settled, np.linalg.solve(matrix, target), rtol=1e-3)
    # A multiple of the identity is solved by the first iteration, whose residual is then zero.
    np.testing.assert_array_equal(solve(4.0 * np.eye(6, dtype=np.float32), target, 10), target / 4.0)


@pytest.mark.usefixtures("double_precision")
def test_conjugate_gradient_stops_at_the_first_iterate_that_meets_the_tolerance():
    rng = np.random.default_rng(2)
    tolerance, matrix, target = 0.03, positive_definite(rng, 7), rng.normal(size=7)
    all_at_once = jax.jit(lambda m, b: [conjugate_gradient(m, b, i, tolerance) for i in range(8)])
    iterates = [np.asarray(x) for x in all_at_once(matrix, target)]
    residuals = [np.sum((target - matrix @ x) ** 2) / np.sum(target**2) for x in iterates]
    first = next(i for i, residual in enumerate(residuals) if residual <= tolerance)
    assert 1 < first < 7
    for i in range(7):
        assert np.array_equal(iterates[i], iterates[i + 1]) == (i >= first)


@pytest.mark.usefixtures("double_precision")
def test_fisher_product_equals_the_exact_hessian_of_the_mean_kl():
    rng = np.random.default_rng(0)
    theta, unravel = ravel_pytree(policies.init(policies.Config(hidden=(4,)), jax.random.key(0), 3, 2, discrete=False))
    theta = jnp.asarray(rng.normal(scale=0.7, size=theta.shape))  # every bias and log standard deviation differs
    observations = jnp.asarray(rng.normal(size=(11, 3)))

    def distributions(parameters):
        return jax.vmap(unravel(parameters))(observations)

    def mean_kl(parameters):
        kl = jax.vmap(lambda old, new: old.kl(new))(distributions(theta), distributions(parameters))
        return jnp.mean(kl)

    hessian = jax.jit(jax.hessian(mean_kl))(theta)
    product = jax.jit(lambda v: trust_region.fisher_product(distributions, theta, 0.125)(v))
    matrix = [product(column) for column in np.eye(len(theta))]
    np.testing.assert_allclose(matrix, np.asarray(hessian) + 0.125 * np.eye(len(theta)), rtol=1e-7, atol=1e-9)


def full_step(matrix, direction, radius, most=np.inf):
    product = lambda v: jnp.asarray(matrix) @ v  # noqa: E731
    return np.asarray(trust_region.factor_to_edge(product, jnp.asarray(direction), radius, most)) * direction


@pytest.mark.usefixtures("double_precision")
def test_the_full_step_lies_on_the_edge_of_the_trust_region_along_the_direction():
    rng = np.random.default_rng(3)
    for radius in (0.01, 2.0):
        matrix, direction = positive_definite(rng, 7), rng.normal(size=7)
        step = full_step(matrix, direction, radius)
        np.testing.assert_allclose(0.5 * step @ matrix @ step, radius, rtol=1e-10)
        scale = step / direction
        assert scale.min() > 0.0
        np.testing.assert_allclose(scale, scale[0], rtol=1e-10)


@pytest.mark.usefixtures("double_precision")
def test_a_rate_shortens_the_step_only_where_the_edge_is_farther():
    rng = np.random.default_rng(4)
    matrix, direction = positive_definite(rng, 5), rng.normal(size=5)

    def step(rate):
        return full_step(matrix, direction, 0.01, rate)

    to_the_edge = (step(np.inf) / direction)[0]
    np.testing.assert_allclose(step(2.0 * to_the_edge), to_the_edge * direction, rtol=1e-12)
    np.testing.assert_allclose(step(0.5 * to_the_edge), 0.5 * to_the_edge * direction, rtol=1e-12)


def test_the_full_step_along_nothing_is_nothing():
    matrix = positive_definite(np.random.default_rng(0), 4)
    np.testing.assert_array_equal(full_step(matrix, np.zeros(4), 0.01), np.zeros(4))


def test_backtracking_takes_the_longest_acceptable_step_for_every_pattern_of_acceptance():
    trials = 5
    parameters, step = jnp.asarray([0.0, 3.0]), jnp.asarray([1.0, 2.0])

    @jax.jit
    @jax.vmap
    def search(pattern):
        def acceptable(candidate):
            trial = jnp.round(-jnp.log2(candidate[0])).astype(jnp.int32)  # the candidate's first entry is 0.5^trial
            return pattern[trial]

        return trust_region.backtrack(acceptable, parameters, step, 0.5, trials)

    patterns = np.array(list(itertools.product([False, True], repeat=trials)))
    found = search(jnp.asarray(patterns))
    for row, pattern in enumerate(patterns):
        if pattern.any():
            least = int(np.argmax(pattern))
            np.testing.assert_array_equal(found.parameters[row], [0.5**least, 3.0 + 2.0 * 0.5**least])
            assert bool(found.accepted[row])
            assert int(found.trials[row]) == least + 1
        else:
            np.testing.assert_array_equal(found.parameters[row], parameters)
            assert not bool(found.accepted[row])
            assert int(found.trials[row]) == trials


def test_backtracking_gives_back_the_very_parameters_that_were_judged():
    parameters, step = jnp.asarray(np.random.default_rng(0).normal(size=(2, 20)), dtype=jnp.float32)
    bound = 0.8**6.5 * float(jnp.linalg.norm(step))

    def acceptable(candidate):
        return jnp.linalg.norm(candidate - parameters) <= bound

    found = trust_region.backtrack(acceptable, parameters, step, 0.8, 15)
    assert int(found.trials) == 8  # 0.8^7 is the first power below 0.8^6.5
    assert bool(acceptable(found.parameters))
    np.testing.assert_allclose(found.parameters, parameters + 0.8**7 * step, rtol=1e-5, atol=1e-6)


def test_backtracking_walks_through_nan_to_a_shorter_step():
    def acceptable(candidate):
        return jnp.sqrt(0.3 - candidate[0]) > 0.0  # NaN for candidates 1 and 0.5

    found = trust_region.backtrack(acceptable, jnp.zeros(1), jnp.ones(1), 0.5, 15)
    assert bool(found.accepted)
    assert int(found.trials) == 3
    np.testing.assert_array_equal(found.parameters, [0.25])


def test_backtracking_keeps_the_old_parameters_where_every_candidate_is_nan():
    parameters = jnp.asarray([1.0, -2.0])
    found = trust_region.backtrack(lambda x: jnp.sqrt(-jnp.square(x[0])) > 0.0, parameters, jnp.ones(2), 0.8, 15)
    np.testing.assert_array_equal(found.parameters, parameters)
    assert not bool(found.accepted)
    assert int(found.trials) == 15


@pytest.mark.parametrize("broken", [jnp.nan, jnp.inf])
def test_a_step_that_is_not_finite_does_not_pass_for_one_that_was_refused(broken):
    step = jnp.asarray([1.0, broken])
    found = trust_region.backtrack(lambda x: x[0] > 0.0, jnp.asarray([1.0, -2.0]), step, 0.8, 15)
    assert np.all(np.isnan(found.parameters))


def test_the_default_step_sizes_are_those_of_the_paper_and_the_published_code():
    config = trust_region.LineSearch()
    assert (config.radius, config.iterations, config.damping, config.fraction) == (0.01, 10, 1e-5, 0.2)
    assert (config.shrink, config.trials) == (0.8, 15)


def test_an_episode_is_allowed_one_nat_and_an_action_two_hundredths_at_least_and_a_tenth_at_most():
    found = [trust_region.radius_for(horizon, epochs=100) for horizon in (1000, 50, 20, 10, 2)]
    assert found == [0.02, 0.02, 0.05, 0.1, 0.1]


def test_the_radius_of_a_run_of_more_than_a_hundred_epochs_falls_like_one_over_their_root():
    found = [trust_region.radius_for(1000, epochs) for epochs in (1, 100, 400, 2500)]
    np.testing.assert_allclose(found, [0.02, 0.02, 0.01, 0.004], rtol=1e-12)


def test_the_fisher_matrix_is_estimated_on_the_configured_share_of_the_observations():
    policy = policies.init(policies.Config(hidden=(8, 8), output_scale=1.0), random.key(0), 3, 2, discrete=False)
    observation = random.normal(random.key(1), (1000, 3))
    vector = jnp.ones_like(ravel_pytree(policy)[0])
    other = observation.at[1::5].set(100.0)
    fifth = trust_region.fisher(trust_region.Curvature(fraction=0.2), policy, observation)(vector)
    untouched = trust_region.fisher(trust_region.Curvature(fraction=0.2), policy, other)(vector)
    whole = trust_region.fisher(trust_region.Curvature(fraction=1.0), policy, other)(vector)
    np.testing.assert_array_equal(fifth, untouched)
    assert not np.allclose(fifth, whole, rtol=1e-2)
