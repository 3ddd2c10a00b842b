"""The velocity tasks: Safety-Gymnasium's own steps to rounding, Gymnasium's own classes to the bit."""

import dataclasses
import sys

import numpy as np
import pytest

import apdo
from apdo import envs, hosted, loop
from apdo.envs import host, mujoco_threads, simulations
from apdo.errors import InvalidInput
from apdo.experiment import opening, settings
from apdo.tasks import velocity
from velocity_steps import SEED, recorded

for package in ("gymnasium", "mujoco", "imageio"):
    pytest.importorskip(package, reason=f"{package} is not installed")

PUBLISHED = {"halfcheetah": 3.2096, "ant": 2.6222, "hopper": 0.7402, "walker2d": 2.3415, "swimmer": 0.2282}
PUBLISHED |= {"humanoid": 1.4149}
"""Safety-Gymnasium 1.0, Velocity-v1."""
OBSERVED = {"halfcheetah": (17, 17), "ant": (27, 105), "hopper": (11, 11), "walker2d": (17, 17), "swimmer": (8, 8)}
OBSERVED |= {"humanoid": (376, 348)}
"""Entries of an observation in v4 and v5."""
EVERY = [(robot, version) for robot in PUBLISHED for version in ("v4", "v5")]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """MuJoCo writes its log where it runs."""
    monkeypatch.chdir(tmp_path)


def played(copies, steps, seed=0, scale=1.0):
    """Every array before and after every step, as hosted.collect would read it; actions as wild as can be."""
    copies.reset([1, 2, 3, 4])
    rng = np.random.default_rng(seed)
    rows = []
    for t in range(steps):
        before = copies.arrays.observation.copy(), copies.arrays.step.copy()
        copies.arrays.action[:] = scale * rng.uniform(-1.5, 1.5, copies.arrays.action.shape)
        copies.step(last=t + 1 == steps)
        names = ("next_observation", "reward", "cost", "terminated", "truncated")
        rows.append((*before, *(getattr(copies.arrays, name).copy() for name in names)))
    return [np.stack(column) for column in zip(*rows, strict=True)]


@pytest.mark.parametrize(("robot", "version"), EVERY)
def test_threads_give_gymnasiums_own_bits(robot, version):
    """Through resets by falls and by the time limit; 3 threads for 7 copies, so that they do not share evenly."""
    length = 40 if robot == "ant" else 16
    task = envs.find(f"{robot}-velocity")(version=version, max_episode_steps=length, workers="3", threshold=0.3)
    theirs = velocity.reference(dataclasses.replace(task, workers="0"))
    threads, one_by_one = task.open(7), theirs.open(7)
    assert isinstance(threads, mujoco_threads.Threads)
    assert isinstance(one_by_one, host.InProcess)
    found, expected = played(threads, 90), played(one_by_one, 90)
    for ours, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, other)
    cost, terminated, truncated = found[4:]
    assert 0.0 < cost.mean() < 1.0
    assert truncated.any()
    assert terminated.any() == (robot in ("ant", "hopper", "walker2d", "humanoid"))
    assert found[0].shape[2] == OBSERVED[robot][version == "v5"]


@pytest.mark.parametrize(("robot", "version"), EVERY)
@pytest.mark.parametrize("kind", [simulations.Batched, simulations.Looped])
def test_rewards_observations_and_velocities_are_gymnasiums_in_double_precision(robot, version, kind, monkeypatch):
    """Both ways of simulating, without the arrays of single precision in between."""
    own = velocity.ROBOTS[f"{robot}-velocity"]
    described = own.task(version, own.threshold)
    if kind is simulations.Batched:
        pytest.importorskip("mujoco.batch", reason="this MuJoCo has no batches")
        if set(described.fields) & set(simulations.FORCES):
            pytest.skip("a batch does not compute these forces")
    else:
        monkeypatch.setattr(simulations, "Batched", kind)
    found = mujoco_threads.look(envs.find(f"{robot}-velocity")(version=version))
    sight = mujoco_threads.Sight(described, found.model, 2, 2)
    assert isinstance(sight._simulations, kind)
    robots = [velocity._make(f"{own.title}-{version}").unwrapped for _ in range(2)]
    first = np.stack([one.reset(seed=5 + i)[0] for i, one in enumerate(robots)])
    sight.begin(np.arange(2), [np.random.Generator(np.random.PCG64(5 + i)) for i in range(2)])
    np.testing.assert_array_equal(own.observation(version, sight.now), first)
    rng = np.random.default_rng(0)
    for _ in range(25):
        action = rng.uniform(found.actions.low, found.actions.high, (2, found.actions.size)).astype(np.float32)
        step = sight.advance(action)
        outcomes = [one.step(given) for one, given in zip(robots, action, strict=True)]
        observed, earned, ended, _, info = zip(*outcomes, strict=True)
        np.testing.assert_array_equal(own.observation(version, step.after), observed)
        np.testing.assert_array_equal(own.reward(version, step), earned)
        np.testing.assert_array_equal(own.velocity(step)[:, 0], [said["x_velocity"] for said in info])
        if own.velocity(step).shape[1] == 2:
            np.testing.assert_array_equal(own.velocity(step)[:, 1], [said["y_velocity"] for said in info])
        if own.healthy is not None:
            np.testing.assert_array_equal(~own.healthy(step.after), ended)
    sight.close()


@pytest.mark.parametrize("robot", PUBLISHED)
def test_the_robots_are_safety_gymnasiums_to_rounding(robot, monkeypatch):
    """Its own steps, recorded with MuJoCo 2.3.3: contacts, falls and speeds above the threshold are among them."""
    monkeypatch.setattr(host, "seed_of", lambda *_: SEED)
    task = envs.find(f"{robot}-velocity")()
    steps = recorded()[robot]
    copies, (shift, scale, _, _) = task.open(1), task.action_meaning
    copies.reset([0, 0, 0, 0])
    for t, action in enumerate(steps["action"]):
        copies.arrays.action[:] = (np.asarray(action) - shift) / scale
        copies.step(last=True)
        if str(t) in steps["observation"]:
            expected = np.asarray(steps["observation"][str(t)])
            np.testing.assert_allclose(copies.arrays.next_observation[0], expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(copies.arrays.reward, steps["reward"][t], rtol=1e-5, atol=1e-5)
        assert copies.arrays.cost[0, 0] == steps["cost"][t]
        assert copies.arrays.terminated[0] == steps["terminated"][t]
    copies.close()


@pytest.mark.parametrize("robot", PUBLISHED)
def test_a_step_costs_one_above_the_published_speed(robot):
    experiment = settings.make_experiment("pdo", f"{robot}-velocity", {"batch": 1000})
    problem = experiment.problem()
    assert (problem.limits, problem.cost_discount, problem.horizon) == ((25.0,), 1.0, 1000)
    assert experiment.environment_config.cost_names == (f"speed above {PUBLISHED[robot]:g}",)
    assert velocity.ROBOTS[f"{robot}-velocity"].threshold == PUBLISHED[robot]


def test_the_threshold_can_be_changed_or_replaced_by_expressions():
    task = envs.find("hopper-velocity")
    assert task(threshold=1.5).cost_names == ("speed above 1.5",)
    replaced = task(cost="abs(obs[1]) > 0.01; action[0] ** 2", workers="1")
    assert replaced.cost_names == ("abs(obs[1]) > 0.01", "action[0] ** 2")
    mine, theirs = played(replaced.open(3), 30), played(velocity.reference(replaced).open(3), 30)
    np.testing.assert_array_equal(mine[4], theirs[4])
    assert 0.0 < mine[4][..., 0].mean() < 1.0


@pytest.mark.parametrize("workers", ["0", "1", "2", "5"])
def test_nothing_depends_on_the_number_of_threads(workers):
    task = envs.find("walker2d-velocity")
    for ours, other in zip(
        played(task(workers=workers).open(4), 40), played(task(workers="auto").open(4), 40), strict=True
    ):
        np.testing.assert_array_equal(ours, other)


@pytest.mark.parametrize("robot", ["ant", "humanoid"])
def test_an_epoch_depends_on_nothing_before_it(robot):
    """Warm starts, derived fields and warnings of an earlier collection leave no trace."""
    copies = envs.find(f"{robot}-velocity")(max_episode_steps=15).open(3)
    rounds = [played(copies, 20, seed) for seed in (1, 2, 1)]
    copies.close()
    for first, again in zip(rounds[0], rounds[2], strict=True):
        np.testing.assert_array_equal(first, again)
    assert not np.array_equal(rounds[0][2], rounds[1][2])


def test_a_run_is_lengthened_with_the_same_bits_and_its_policy_loaded_without_mujoco(tmp_path, monkeypatch):
    small = {"policy__hidden": (4,), "critic__hidden": (4,), "critic__passes": 1, "critic__minibatches": 2}
    small |= {"primal": "reinforce", "batch": 30, "max_episode_steps": 10, "quiet": True}
    whole = apdo.train("pdo", "swimmer-velocity", epochs=4, out=tmp_path / "whole", **small)
    apdo.train("pdo", "swimmer-velocity", epochs=2, out=tmp_path / "part", **small)
    resumed = apdo.resume(tmp_path / "part", epochs=4, quiet=True)
    for name, values in whole.metrics.items():
        if name != "seconds":
            np.testing.assert_array_equal(values, resumed.metrics[name], err_msg=name)
    monkeypatch.setitem(sys.modules, "mujoco", None)
    mujoco_threads.look.cache_clear()
    policy = apdo.load(tmp_path / "part")
    np.testing.assert_array_equal(policy(np.ones(8), deterministic=True), whole.policy(np.ones(8), deterministic=True))
    with pytest.raises(InvalidInput, match="swimmer-velocity needs MuJoCo, which is not installed: pip install"):
        apdo.train("pdo", "swimmer-velocity", out=tmp_path / "none", **small)
    assert not (tmp_path / "none").exists()


def test_seeds_that_are_collected_together_have_the_batches_that_each_has_alone():
    given = {"batch": 90, "environments": 3, "max_episode_steps": 30, "samples": 180}
    training = opening.training_of(settings.make_experiment("pdo", "hopper-velocity", given))
    assert hosted.steps_seeds_together(training)

    def batches(seeds):
        advance = hosted.Advance(training)
        try:
            return advance._collect(loop.start(training, seeds))
        finally:
            advance.close()

    together = batches([3, 7])
    for i, seed in enumerate([3, 7]):
        alone = batches([seed])
        for name in ("observation", "action", "reward", "cost", "next_observation", "terminated", "truncated", "step"):
            np.testing.assert_array_equal(getattr(together, name)[i], getattr(alone, name)[0], err_msg=name)
    assert bool(together.terminated.any())  # falls, so that episodes begin anew within the batch
