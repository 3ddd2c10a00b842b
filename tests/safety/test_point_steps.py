"""The point tasks in JAX next to Safety-Gymnasium's own, step by step: `make test-safety-gymnasium`."""

import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from apdo.envs import safety
from apdo.tasks import safety_point as sp

if not safety.installed(safety.SAFETY_GYMNASIUM):
    pytest.skip("Safety-Gymnasium is not installed; make test-safety-gymnasium runs these", allow_module_level=True)


def recorder():
    """The module that recorded tests/data/safety_point.npz."""
    spec = importlib.util.spec_from_file_location(
        "make_safety_point", Path(__file__).parents[1] / "data" / "make_safety_point.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def here(record, task, original, action=(0.0, 0.0)):
    """The original's state as one of ours."""
    x, y, heading, u, v, spin = record.state(original)
    robot = sp.Robot(
        position=jnp.asarray([x, y]),
        heading=jnp.asarray(heading),
        velocity=jnp.asarray([u, v]),
        spin=jnp.asarray(spin),
        action=jnp.asarray(action),
    )
    if isinstance(task, sp.PointCircle):
        return robot
    return sp.GoalState(
        robot=robot,
        goal=jnp.asarray(record.place(original, "goal")),
        hazards=jnp.asarray([record.place(original, f"hazard{i}") for i in range(task.hazards)]).reshape(-1, 2),
        vase=jnp.asarray([record.place(original, f"vase{i}") for i in range(task.vases)]).reshape(-1, 2),
        vase_heading=jnp.zeros(task.vases),
    )


@pytest.mark.parametrize(
    "task", [sp.PointGoal0(), sp.PointGoal1(), sp.PointCircle0(), sp.PointCircle1(), sp.PointCircle2()]
)
def test_every_step_of_the_original_is_ours(task, double_precision):
    """From each state that the original reaches; steps in which the vase moves are left out."""
    record = recorder()
    env, original = record.make(type(task).__name__)
    observation, _ = env.reset(seed=5)
    assert (len(observation), env.spec.max_episode_steps) == (task.observation_size, task.horizon)
    step, observe = jax.jit(task.step), jax.jit(task.observe)
    np.testing.assert_allclose(observe(here(record, task, original)), observation, atol=1e-12)
    rng, compared = np.random.default_rng(5), 0
    for t in range(400):
        before, vase = here(record, task, original), record.place(original, "vase0")
        target = record.place(original, "goal") if isinstance(task, sp.PointGoal) else rng.uniform(-2.0, 2.0, 2)
        action = record.steer(record.state(original), target, 1.0) + rng.normal(size=2) * 0.2 * (t % 50 < 25)
        observation, reward, cost, terminated, _, _ = env.step(action)
        assert not terminated
        if isinstance(task, sp.PointGoal1) and np.abs(record.place(original, "vase0") - vase).max() > 1e-7:
            continue
        outcome = step(before, jnp.asarray(action), jax.random.key(t))
        after, there = getattr(outcome.state, "robot", outcome.state), record.state(original)
        np.testing.assert_allclose(after.position, there[:2], rtol=0, atol=1e-10)
        np.testing.assert_allclose(after.velocity, there[3:5], rtol=0, atol=1e-10)
        assert float(after.spin) == pytest.approx(there[5], abs=1e-9)
        assert float(outcome.reward) == pytest.approx(reward, abs=1e-10)
        assert outcome.cost.tolist() == [cost]
        seen = observe(here(record, task, original, np.clip(action, -1.0, 1.0)))
        np.testing.assert_allclose(seen, observation, rtol=0, atol=1e-9)
        compared += 1
    assert compared > 300
