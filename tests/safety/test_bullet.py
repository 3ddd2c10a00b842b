"""Bullet-Safety-Gym's tasks through the bridge, in an environment of their own: `make test-bullet`."""

import numpy as np
import pytest

import apdo
from apdo import envs
from apdo.envs import safety
from apdo.experiment import chosen, evaluation

if not safety.installed(safety.BULLET):
    pytest.skip("Bullet-Safety-Gym is not installed; make test-bullet runs these", allow_module_level=True)

TASKS = {
    "BallGather": (2, 250),
    "AntGather": (8, 1000),
    "CarGather": (2, 500),
    "BallCircle": (2, 200),
    "CarCircle": (2, 300),
    "BallRun": (2, 100),
    "DroneCircle": (4, 300),
    "BallReach": (2, 250),
}
"""Task ↦ (entries of an action, steps of an episode)."""


def open_copies(name, count=2):
    return envs.find(f"Safety{name}-v0")(workers="0").open(count)


@pytest.mark.parametrize("name", TASKS)
def test_every_task_steps_with_the_cost_that_it_reports(name):
    task = envs.find(f"Safety{name}-v0")()
    assert (task.action_size, task.horizon) == TASKS[name]
    assert task.cost_names == ("cost",)
    copies = open_copies(name)
    copies.reset([1, 2, 3, 4])
    rng = np.random.default_rng(0)
    for _ in range(40):
        copies.arrays.action[:] = rng.uniform(-1.0, 1.0, copies.arrays.action.shape)
        copies.step(last=False)
        assert np.isfinite(copies.arrays.observation).all()
        assert (copies.arrays.cost >= 0.0).all()
    copies.close()


def test_bombs_cost_one_and_apples_earn_and_the_last_step_truncates():
    copies = open_copies("BallGather", 4)
    copies.reset([0, 0, 0, 7])
    rng, costs, truncated = np.random.default_rng(0), [], []
    heading = rng.uniform(-1.0, 1.0, (4, 2))
    for t in range(250):
        if t % 40 == 0:
            heading = rng.uniform(-1.0, 1.0, (4, 2))
        copies.arrays.action[:] = heading
        copies.step(last=True)
        costs.append(copies.arrays.cost[:, 0].copy())
        truncated.append(copies.arrays.truncated.copy())
    copies.close()
    assert set(np.unique(costs)) <= {0.0, 1.0}
    assert np.sum(costs) > 0.0
    assert not np.any(truncated[:-1])
    assert np.all(truncated[-1])


@pytest.mark.parametrize("algorithm", ["pdo", "cpo"])
def test_two_epochs_of_training_with_workers_evaluation_and_loading(algorithm, tmp_path):
    options = {"policy__hidden": (8,), "critic__hidden": (8,), "quiet": True, "limits": 0.5, "epochs": 2}
    options |= {"batch": 200, "environments": 2, "max_episode_steps": 100, "workers": "2"}
    found = apdo.train(algorithm, "SafetyBallGather-v0", out=tmp_path / "run", **options)
    assert found.metrics["return"].shape == (1, 2)
    assert '"bullet-safety-gym": "1.4.0"' in (tmp_path / "run" / "run.json").read_text()
    policy = apdo.load(tmp_path / "run")
    size = envs.find("SafetyBallGather-v0")().observation_size
    assert policy(np.zeros(size)).shape == (2,)
    _, training, state = evaluation.load_run(tmp_path / "run")
    played = evaluation.evaluate(chosen.policies(training, [0], state)[0], training, 2)
    assert played.undiscounted_cost[0].mean >= 0.0
