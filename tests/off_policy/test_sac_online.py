"""Soft actor-critic online: how well batches measure a cost."""

import jax.numpy as jnp
import numpy as np

from apdo.off_policy import sac_online


def vector(values):
    return jnp.asarray(values, dtype=jnp.float32)


def test_a_cost_or_limit_of_six_standard_errors_is_measured_well_and_a_smaller_one_less_well_in_proportion():
    cost, limit = vector([24.0, 48.0, 48.0, 1.0, 0.0]), vector([24.0, 24.0, 24.0, -24.0, 0.0])
    noise = sac_online.noise_of_batch(cost, limit, vector([4.0, 8.0, 16.0, 40.0, 0.0]))
    np.testing.assert_allclose(sac_online.certainty(noise), [1.0, 1.0, 0.5, 0.1, 1.0], rtol=1e-6)


def test_four_times_as_many_episodes_make_a_cost_twice_as_certain():
    cost, limit = vector([30.0]), vector([25.0])
    noise = [sac_online.noise_of_batch(cost, limit, vector([60.0 / episodes**0.5])) for episodes in (1, 4)]
    one, four = map(sac_online.certainty, noise)
    np.testing.assert_allclose(four, 2.0 * one, rtol=1e-6)


def test_batches_without_any_cost_leave_the_noise_as_it_is_and_the_first_with_one_counts_whole():
    def after(before, cost, error, batches=20):
        limit = vector([0.5, 0.01])
        return sac_online.mean_noise(vector(before), vector(cost), limit, vector(error), jnp.asarray(batches))

    np.testing.assert_array_equal(after([0.0, 0.3], [0.0, 0.0], [0.0, 0.0]), vector([0.0, 0.3]))
    np.testing.assert_allclose(after([0.0, 0.3], [1.0, 0.02], [0.5, 0.02]), [0.25, 0.3 + 0.1 * (1.0 - 0.3)], rtol=1e-6)
    np.testing.assert_allclose(after([0.2, 0.2], [1.0, 0.0], [0.0, 0.005]), [0.18, 0.18 + 0.1 * 0.25], rtol=1e-6)
    np.testing.assert_allclose(after([0.2, 0.2], [1.0, 1.0], [0.0, 0.0], 2), [0.1, 0.1], rtol=1e-6)
