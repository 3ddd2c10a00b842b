"""The value functions of a learned policy, from a run or its folder."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import apdo
from apdo.core import critics
from apdo.errors import InvalidInput
from apdo.experiment import evaluation

SMALL: dict[str, Any] = {"policy__hidden": (8,), "critic__hidden": (16,), "quiet": True}


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """Large batches of a policy that hardly moves: value functions have something to settle at."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    options: dict[str, Any] = SMALL | {"primal__radius": 1e-4, "critic__rate": 3e-3}
    return apdo.train("pdo", "two-state", epochs=12, batch=3000, seeds=2, out=folder, **options)


def test_at_an_episodes_start_values_are_what_batches_of_the_policy_returned_and_cost(result):
    start = [1.0, 0.0]
    for i, policy in enumerate(result.newest):
        earned = result.metrics["discounted_return"][i, -5:].mean()
        paid = result.metrics["cost"][i, -5:, 0].mean()
        np.testing.assert_allclose(policy.value(start), earned, rtol=0.05)
        np.testing.assert_allclose(policy.cost_value(start), [paid], rtol=0.25)


def test_from_the_folder_they_are_the_networks_of_the_checkpoint(result):
    _, _, state = evaluation.load_run(result.path)
    observations = jnp.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    for i, seed in enumerate(result.seeds):
        policy = apdo.load(result.path, seed, newest=True)
        critic = of_seed(state.algorithm.critic, i)
        by_hand = np.asarray(critics.values(critic, observations, jnp.array([0, 1, 30])))
        np.testing.assert_allclose(policy.value(observations, [0, 1, 30]), by_hand[:, 0], rtol=1e-5)
        np.testing.assert_allclose(policy.cost_value(observations, [0, 1, 30]), by_hand[:, 1:], rtol=1e-5)
        assert policy.value(observations[0]).shape == ()
        assert policy.cost_value(observations[0]).shape == (1,)
        assert np.ptp(by_hand[:, 0]) > 0.0


def of_seed(tree, i):
    return jax.tree.map(lambda leaf: leaf[i], tree)


def test_normalised_observations_are_given_raw_and_actions_of_the_host_change_nothing(tmp_path):
    pytest.importorskip("gymnasium", reason="Gymnasium is not installed")
    options = {"costs": "abs(obs[2]) > 4", "limits": 25, "batch": 1600, "epochs": 2, "out": tmp_path / "run"}
    result = apdo.train("pdo", "Pendulum-v1", **options, **SMALL)
    _, _, state = evaluation.load_run(result.path, without_environment=True)
    inner = of_seed(state.algorithm.inner, 0)
    observation = jnp.array([[0.5, -0.5, 3.0]])
    by_hand = np.asarray(critics.values(inner.critic, inner.statistics.normalise(observation), jnp.array([7])))[0]
    np.testing.assert_allclose(result.newest[0].value(observation[0], 7), by_hand[0], rtol=1e-5)
    np.testing.assert_allclose(result.newest[0].cost_value(observation[0], 7), by_hand[1:], rtol=1e-5)
    raw = np.asarray(critics.values(inner.critic, observation, jnp.array([7])))[0]
    assert abs(raw[0] - by_hand[0]) > 1e-3 * abs(by_hand[0])


def test_the_best_policy_and_one_without_value_functions_say_that_there_are_none(result, tmp_path):
    with pytest.raises(InvalidInput, match=r"runs? keeps those of its newest policy \(newest=True\)"):
        result.policy.value([1.0, 0.0])
    blind = apdo.train("trpo", "two-state", epochs=1, batch=300, out=tmp_path / "run", **SMALL)
    with pytest.raises(InvalidInput, match="only where its algorithm learns one of the return and one of each cost"):
        blind.newest[0].cost_value([1.0, 0.0])


def test_steps_that_do_not_fit_the_observations_are_refused(result):
    with pytest.raises(InvalidInput, match="one for each of 2 observations"):
        result.newest[0].value([[1.0, 0.0], [0.0, 1.0]], [1, 2, 3])
