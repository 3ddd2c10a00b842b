"""Steps that shrink with the epochs."""

import jax
import numpy as np

from apdo.core import annealing


def test_the_length_of_a_step_may_be_an_argument_of_the_program_and_nothing_for_some_of_its_runs():
    length = jax.jit(annealing.length)
    assert length(0.0, 30) == annealing.length(0.0, 30) == 1.0
    np.testing.assert_allclose(length(10.0, 30), annealing.length(10.0, 30), rtol=1e-6)
    np.testing.assert_allclose(length(10.0, 30), 0.25, rtol=1e-6)
