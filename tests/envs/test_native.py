"""The JAX-native environments as Gymnasium's: its checker, the same numbers as the task's own, pictures."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from apdo import envs
from apdo.errors import InvalidInput
from apdo.tasks import drawing
from apdo.tasks.tabular import Gridworld

gymnasium = pytest.importorskip("gymnasium", reason="Gymnasium is not installed")

from gymnasium.utils.env_checker import check_env  # noqa: E402

from apdo.envs import native  # noqa: E402

IDS = [f"apdo/{name}-v0" for name in native.REGISTERED]


@pytest.mark.parametrize("name", IDS)
def test_every_native_environment_passes_gymnasiums_checker(name):
    env = gymnasium.make(f"apdo.envs.native:{name}", render_mode="rgb_array")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Observations are unbounded on purpose: nothing would be gained by bounds that no one may use.
        warnings.filterwarnings("ignore", message=".*infinity.*")
        warnings.filterwarnings("ignore", message=".*different from the unwrapped version.*")
        check_env(env.unwrapped)


@pytest.mark.parametrize("name", IDS)
def test_stable_baselines_checker_is_content(name):
    checker = pytest.importorskip("stable_baselines3.common.env_checker", reason="stable-baselines3 is not installed")
    checker.check_env(gymnasium.make(name).unwrapped)


def test_every_jax_environment_is_registered():
    jax_native = {name for name, (module, *_) in envs.ENVIRONMENTS.items() if module != "velocity"}
    assert set(native.REGISTERED.values()) == jax_native


@pytest.mark.parametrize("name", ["PointGather", "Queueing"])
def test_an_episode_has_the_numbers_of_the_tasks_own_steps(name):
    env = gymnasium.make(f"apdo/{name}-v0").unwrapped
    task = envs.find(native.REGISTERED[name])()
    observation, _ = env.reset(seed=3)
    state = env._state
    np.testing.assert_allclose(observation, task.observe(state), rtol=1e-5, atol=1e-6)
    rng, totals = np.random.default_rng(0), np.zeros(len(task.cost_names))
    env.action_space.seed(0)
    for t in range(task.horizon):
        action = env.action_space.sample() if task.discrete_actions else rng.uniform(-1, 1, 2).astype(np.float32)
        vector = jax.nn.one_hot(action, task.action_size) if task.discrete_actions else jnp.asarray(action)
        expected = task.step(state, vector, jax.random.fold_in(env._key, t))
        observation, reward, terminated, truncated, info = env.step(action)
        np.testing.assert_allclose(observation, expected.observation, rtol=1e-5, atol=1e-6)
        assert reward == pytest.approx(float(expected.reward), rel=1e-6)
        np.testing.assert_allclose(info["costs"], expected.cost, rtol=1e-6)
        assert info["cost"] == pytest.approx(float(np.sum(expected.cost)), rel=1e-6, abs=1e-6)
        totals += info["costs"]
        state = expected.state
        last = t + 1 == task.horizon
        assert terminated == (bool(expected.terminated) or (last and task.horizon_terminates))
        assert truncated == (last and not terminated)
        if terminated:
            break
    np.testing.assert_allclose(env.total_cost, totals)


def test_pictures_show_where_the_robot_is_and_what_is_left():
    env = gymnasium.make("apdo/PointGather-v0", render_mode="rgb_array").unwrapped
    env.reset(seed=0)
    before = env.render()
    assert before.shape == (drawing.HEIGHT + drawing.CAPTION, drawing.WIDTH, 3)
    assert before.dtype == np.uint8
    env.step(np.array([1.0, 0.25], np.float32))
    assert (before != env.render()).any()
    grid = gymnasium.make("apdo/Gridworld-v0", render_mode="rgb_array").unwrapped
    grid.reset(seed=0)
    assert np.array_equal(grid.render()[drawing.CAPTION :], drawing.draw(Gridworld(), 12)[drawing.CAPTION :])


def test_options_of_the_task_are_options_of_the_environment():
    env = gymnasium.make("apdo/PointGather-v0", bomb_penalty=1.0).unwrapped
    assert env.task.bomb_penalty == 1.0
    with pytest.raises(InvalidInput, match="unknown option"):
        gymnasium.make("apdo/PointGather-v0", bombs=1)
    grid = gymnasium.make("apdo/Gridworld-v0").unwrapped
    grid.reset(seed=0)
    with pytest.raises(InvalidInput, match="whole number from 0 to 3"):
        grid.step(7)
