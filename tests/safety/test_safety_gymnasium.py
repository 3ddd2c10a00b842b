"""Safety-Gymnasium's tasks through the bridge, in an environment of their own: `make test-safety-gymnasium`."""

import functools
import math

import numpy as np
import pytest

import apdo
from apdo import cli, envs
from apdo.envs import gymnasium_tasks, safety
from apdo.errors import InvalidInput
from apdo.experiment import chosen, evaluation

if not safety.installed(safety.SAFETY_GYMNASIUM):
    pytest.skip("Safety-Gymnasium is not installed; make test-safety-gymnasium runs these", allow_module_level=True)

VELOCITY = {
    "HalfCheetah": (17, 6, 3.2096),
    "Ant": (27, 8, 2.6222),
    "Hopper": (11, 3, 0.7402),
    "Walker2d": (17, 6, 2.3415),
    "Swimmer": (8, 2, 0.2282),
    "Humanoid": (376, 17, 1.4149),
}
"""Robot ↦ (entries of an observation, of an action, published threshold of Velocity-v1)."""
NAVIGATION = {
    "PointGoal1": (60, 1000),
    "CarGoal1": (72, 1000),
    "PointCircle1": (28, 500),
    "PointButton1": (76, 1000),
    "PointPush1": (76, 1000),
}
"""Task ↦ (entries of an observation, steps of an episode); all take two numbers."""
IDS = [f"Safety{robot}Velocity-v1" for robot in VELOCITY] + [f"Safety{task}-v0" for task in NAVIGATION]
SMALL = {"policy__hidden": (8,), "critic__hidden": (8,), "critic__passes": 1, "critic__minibatches": 4, "quiet": True}


def copies_of(name, count=2, **options):
    return envs.find(name)(workers="0", **options).open(count)


@pytest.mark.parametrize("name", IDS)
def test_every_task_has_the_published_spaces_and_steps(name):
    task = envs.find(name)()
    robot = name.removeprefix("Safety").partition("Velocity")[0]
    navigation = NAVIGATION.get(name.removeprefix("Safety").removesuffix("-v0"))
    sizes = (navigation[0], 2) if navigation else VELOCITY[robot][:2]
    assert (task.observation_size, task.action_size) == sizes
    assert task.horizon == (navigation[1] if navigation else 1000)
    assert task.cost_names == ("cost",)
    assert not task.discrete_actions
    copies = copies_of(name)
    copies.reset([1, 2, 3, 4])
    first = copies.arrays.observation.copy()
    assert not np.array_equal(first[0], first[1])
    rng = np.random.default_rng(0)
    for _ in range(30):
        copies.arrays.action[:] = rng.uniform(-1.0, 1.0, copies.arrays.action.shape)
        copies.step(last=False)
        assert set(copies.arrays.cost.ravel().tolist()) <= {0.0, 1.0}
    assert not np.array_equal(first, copies.arrays.observation)
    copies.reset([1, 2, 3, 4])
    np.testing.assert_array_equal(copies.arrays.observation, first)
    copies.close()


def recording(family, name, seen):
    """The environment, noting what its steps gave."""
    env = safety.make(family, name)
    step = env.step

    def noting(action):
        outcome = step(action)
        seen.append(outcome)
        return outcome

    env.step = noting
    return env


@pytest.mark.parametrize("robot", VELOCITY)
def test_a_velocity_tasks_cost_is_the_sixth_value_and_is_one_above_the_published_speed(robot):
    seen = []
    make = functools.partial(recording, safety.SAFETY_GYMNASIUM, f"Safety{robot}Velocity-v1", seen)
    task = gymnasium_tasks.of_object(make)(workers="0")
    copies = task.open(1)
    seen.clear()
    copies.reset([0, 0, 0, 5])
    rng = np.random.default_rng(1)
    for _ in range(120):
        copies.arrays.action[:] = rng.choice([-1.0, 1.0], copies.arrays.action.shape)
        copies.step(last=False)
        observation, reward, cost, terminated, truncated, info = seen[-1]
        assert copies.arrays.cost[0, 0] == cost
        assert copies.arrays.reward[0] == np.float32(reward)
        assert (bool(copies.arrays.terminated[0]), bool(copies.arrays.truncated[0])) == (terminated, truncated)
        np.testing.assert_array_equal(copies.arrays.next_observation[0], observation.astype(np.float32))
        planar = robot in ("Ant", "Humanoid")
        speed = math.hypot(info["x_velocity"], info["y_velocity"]) if planar else info["x_velocity"]
        assert cost == float(speed > VELOCITY[robot][2])
    copies.close()


def test_a_goal_task_costs_one_inside_a_hazard_and_nothing_outside():
    copies = copies_of("SafetyPointGoal1-v0", 1)
    rng, costs = np.random.default_rng(0), []
    for episode in range(6):
        copies.reset([0, 0, 0, episode])
        task = copies._slice.envs[0].unwrapped.task
        for _ in range(400):
            copies.arrays.action[:] = (1.0, rng.normal(0.0, 0.5))
            copies.step(last=True)
            nearest = min(np.linalg.norm(hazard[:2] - task.agent.pos[:2]) for hazard in task.hazards.pos)
            assert copies.arrays.cost[0, 0] == float(nearest <= task.hazards.size)
            costs.append(copies.arrays.cost[0, 0])
    copies.close()
    assert 0.0 < np.mean(costs) < 1.0


@pytest.mark.parametrize(
    ("name", "terminates", "length"),
    [
        ("SafetyHopperVelocity-v1", True, None),
        ("SafetySwimmerVelocity-v1", False, 1000),
        ("SafetyPointCircle1-v0", False, 500),
    ],
)
def test_a_fall_terminates_and_the_last_step_truncates(name, terminates, length):
    copies = copies_of(name, 1)
    copies.reset([0, 0, 0, 9])
    rng, steps = np.random.default_rng(0), 0
    while not (copies.arrays.terminated[0] or copies.arrays.truncated[0]):
        copies.arrays.action[:] = rng.uniform(-1.0, 1.0, copies.arrays.action.shape)
        copies.step(last=False)
        steps += 1
    assert copies.arrays.terminated[0] == terminates
    assert copies.arrays.truncated[0] != terminates
    assert steps == length if length else steps < 1000
    # The next episode has begun, and the last observation of this one is still there to bootstrap from.
    assert copies.arrays.step[0] == 0
    assert not np.array_equal(copies.arrays.next_observation, copies.arrays.observation)
    copies.close()


@pytest.mark.parametrize("name", ["SafetyPointGoal1-v0", "SafetyCarGoal1-v0", "SafetyPointPush1-v0"])
def test_without_the_pictures_of_the_sky_everything_is_bit_for_bit_the_same(name):
    package = safety.load(safety.SAFETY_GYMNASIUM)
    runs = []
    for env in (package.make(name), safety.make(safety.SAFETY_GYMNASIUM, name)):
        rng = np.random.default_rng(0)
        seen = [env.reset(seed=4)[0], env.reset(seed=5)[0]]
        for _ in range(150):
            observation, reward, cost, *_ = env.step(rng.uniform(-1.0, 1.0, 2))
            seen += [observation, [reward, cost]]
        runs.append(np.concatenate(seen))
        env.close()
    np.testing.assert_array_equal(*runs)


def test_an_environment_that_is_looked_at_keeps_its_sky():
    env = safety.load(safety.SAFETY_GYMNASIUM).make("SafetyPointGoal1Vision-v0")
    build = env.unwrapped.task._build
    assert safety.without_sky(env).unwrapped.task._build == build


def python(**options):
    return SMALL | {"limits": 25.0, "epochs": 2, "batch": 1000, "environments": 2} | options


@pytest.mark.parametrize("algorithm", ["pdo", "cpo"])
@pytest.mark.parametrize("name", ["SafetyHalfCheetahVelocity-v1", "SafetyPointGoal1-v0"])
def test_two_epochs_of_training_an_evaluation_and_a_policy_without_an_environment(algorithm, name, tmp_path):
    found = apdo.train(algorithm, name, out=tmp_path / "run", **python(max_episode_steps=250))
    assert found.metrics["return"].shape == (1, 2)
    assert np.isfinite(found.metrics["return"]).all()
    assert (found.metrics["episode_length"] == 250).all()
    described = (tmp_path / "run" / "run.json").read_text()
    assert '"safety-gymnasium": "1.0.0"' in described
    assert '"gymnasium": "0.28.1"' in described
    policy = apdo.load(tmp_path / "run")
    task = envs.find(name)()
    action = policy(np.zeros((5, task.observation_size)))
    assert action.shape == (5, task.action_size)
    assert np.abs(action).max() <= 1.0
    _, training, state = evaluation.load_run(tmp_path / "run")
    played = evaluation.evaluate(chosen.policies(training, [0], state)[0], training, 3)
    assert 0.0 <= played.undiscounted_cost[0].mean <= 250.0


def test_worker_processes_give_the_same_bits(tmp_path):
    options = python(max_episode_steps=100, batch=400)
    both = [apdo.train("pdo", "SafetyPointGoal1-v0", out=tmp_path / w, **options, workers=w) for w in ("0", "2")]
    for name in ("return", "undiscounted_cost", "value_error"):
        np.testing.assert_array_equal(both[0].metrics[name], both[1].metrics[name])


def test_the_command_line_trains_and_evaluates(tmp_path, capsys):
    run = str(tmp_path / "run")
    words = ["--epochs", "1", "--batch", "200", "--environments", "2", "--max-episode-steps", "100"]
    cli.main(["train", "pdo", "SafetyPointGoal1-v0", "--limit", "25", "--out", run, "--quiet", *words])
    capsys.readouterr()
    cli.main(["evaluate", run, "--episodes", "4"])
    assert "cost" in capsys.readouterr().out


def test_an_environment_object_and_the_gymnasium_twin_give_the_same_as_the_id(tmp_path):
    made = safety.load(safety.SAFETY_GYMNASIUM).make("SafetyHalfCheetahVelocity-v1")
    options = python(max_episode_steps=100, batch=200)
    results = [
        apdo.train("pdo", given, out=tmp_path / str(i), **options)
        for i, given in enumerate(
            ["SafetyHalfCheetahVelocity-v1", made, "safety_gymnasium:SafetyHalfCheetahVelocity-v1"]
        )
    ]
    results.append(apdo.train("pdo", "SafetyHalfCheetahVelocityGymnasium-v1", out=tmp_path / "twin", **options))
    for other in results[1:]:
        np.testing.assert_array_equal(results[0].metrics["return"], other.metrics["return"])
        np.testing.assert_array_equal(results[0].metrics["undiscounted_cost"], other.metrics["undiscounted_cost"])


def test_a_misspelt_id_gets_the_nearest_one():
    with pytest.raises(InvalidInput, match="did you mean 'SafetyPointGoal1-v0'"):
        envs.find("SafetyPointGaol1-v0")().horizon  # noqa: B018
