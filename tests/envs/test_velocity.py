"""The velocity tasks: the published thresholds on the robots' own speed."""

import math

import numpy as np
import pytest

from apdo import envs
from apdo.envs import gymnasium_tasks
from apdo.experiment import settings

pytest.importorskip("gymnasium", reason="Gymnasium is not installed")

PUBLISHED = {"halfcheetah": 3.2096, "ant": 2.6222, "hopper": 0.7402, "walker2d": 2.3415, "swimmer": 0.2282}
PUBLISHED |= {"humanoid": 1.4149}
"""Safety-Gymnasium 1.0, Velocity-v1."""
PLANAR = {"ant", "humanoid"}


@pytest.mark.parametrize("robot", PUBLISHED)
def test_a_step_costs_one_above_the_published_speed_and_nothing_below(robot):
    (cost,), (name,) = envs.find(f"{robot}-velocity")().own_costs()
    assert not isinstance(cost, str)
    limit = PUBLISHED[robot]
    assert name == f"speed above {limit:g}"
    for share in (0.5, 0.999, 1.001, 2.0):
        for angle in (0.0, 0.3):
            info = {"x_velocity": share * limit * math.cos(angle), "y_velocity": share * limit * math.sin(angle)}
            speed = share * limit if robot in PLANAR else info["x_velocity"]
            assert cost(None, None, None, info) == float(speed > limit)
    assert cost(None, None, None, {"x_velocity": -2.0 * limit, "y_velocity": 0.0}) == float(robot in PLANAR)


def test_the_threshold_can_be_changed_or_replaced():
    task = envs.find("ant-velocity")
    assert task(threshold=1.5).own_costs()[1] == ("speed above 1.5",)
    assert task(cost="abs(obs[0]) > 1").own_costs()[0] == ("abs(obs[0]) > 1",)


@pytest.mark.parametrize("name", ["halfcheetah-velocity", "hopper-velocity", "swimmer-velocity"])
def test_the_robots_run_and_cost_what_their_speed_says(name, tmp_path, monkeypatch):
    pytest.importorskip("mujoco", reason="MuJoCo is not installed")
    pytest.importorskip("imageio", reason="imageio is not installed")
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its log where it runs
    experiment = settings.specify("pdo", name, {"batch": 1000})
    problem = experiment.problem()
    assert (problem.limits, problem.cost_discount, problem.horizon) == ((25.0,), 1.0, 1000)
    copies = experiment.environment_config.open(2)
    copies.reset([1, 1, 1, 1])
    rng = np.random.default_rng(0)
    speeds, costs = [], []
    for _ in range(60):
        copies.arrays.action[:] = rng.choice([-1.0, 1.0], size=copies.arrays.action.shape)
        before = [env.unwrapped.data.qpos[0] for env in copies._slice.envs]
        copies.step(last=True)
        after = [env.unwrapped.data.qpos[0] for env in copies._slice.envs]
        speeds += [(b - a) / copies._slice.envs[0].unwrapped.dt for a, b in zip(before, after, strict=True)]
        costs += copies.arrays.cost[:, 0].tolist()
    copies.close()
    threshold = gymnasium_tasks.VELOCITY[name][1]
    assert costs == [float(speed > threshold) for speed in speeds]
