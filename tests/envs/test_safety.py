"""Ids of packages that are seldom there: whose they are, what is said when one is missing, and how one is imported."""

import dataclasses
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from apdo.envs import gymnasium_tasks, host, safety
from apdo.errors import InvalidInput

gymnasium = pytest.importorskip("gymnasium", reason="Gymnasium is not installed")

from host_environments import Counting  # noqa: E402


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("SafetyPointGoal1-v0", safety.SAFETY_GYMNASIUM),
        ("SafetyHalfCheetahVelocity-v1", safety.SAFETY_GYMNASIUM),
        ("safety_gymnasium:SafetyPointGoal1-v0", safety.SAFETY_GYMNASIUM),
        ("SafetyCarCircle1-v0", safety.SAFETY_GYMNASIUM),
        ("SafetyCarCircle-v0", safety.BULLET),
        ("SafetyBallGather-v0", safety.BULLET),
        ("SafetyAntGather-v0", safety.BULLET),
        ("bullet_safety_gym:SafetyAntGather-v0", safety.BULLET),
        ("my_tasks:SafetyPointGoal1-v0", None),
        ("Pendulum-v1", None),
        ("apdo/PointGather-v0", None),
    ],
)
def test_every_id_belongs_to_its_package(name, family):
    assert safety.family_of(name) is family


def test_an_id_that_somebody_has_registered_is_theirs():
    gymnasium.register(id="SafetyMine-v0", entry_point="host_environments:Counting", max_episode_steps=4)
    try:
        assert safety.family_of("SafetyMine-v0") is None
        assert gymnasium_tasks.of_id("SafetyMine-v0")().horizon == 4
    finally:
        del gymnasium.registry["SafetyMine-v0"]


@pytest.mark.parametrize(
    ("name", "family"), [("SafetyPointGoal1-v0", safety.SAFETY_GYMNASIUM), ("SafetyBallGather-v0", safety.BULLET)]
)
def test_a_missing_package_is_named_in_one_sentence_with_the_commands_that_bring_it(name, family):
    code = "import sys; from apdo import cli; from apdo.envs import safety; safety.installed = lambda family: False; "
    code += "cli.main(sys.argv[1:])"
    command = [sys.executable, "-c", code, "train", "pdo", name, "--limit", "25"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    where = "" if sys.version_info < (3, 12) else f" (in Python 3.11; this is 3.{sys.version_info.minor})"
    assert done.stderr == f"apdo: {name} needs {family.title}, which is not installed: {family.install}{where}\n"


def test_a_package_that_does_not_import_says_why(monkeypatch, tmp_path):
    (tmp_path / "broken_safety.py").write_text("import gymnasium.wrappers.no_such_part")
    monkeypatch.syspath_prepend(tmp_path)
    broken = dataclasses.replace(safety.SAFETY_GYMNASIUM, module="broken_safety", parts=("broken_safety",))
    with pytest.raises(InvalidInput) as raised:
        safety.load(broken, "SafetyPointGoal1-v0")
    said = str(raised.value)
    assert said.startswith("SafetyPointGoal1-v0 needs Safety-Gymnasium, which is installed but cannot be imported")
    assert "no_such_part" in said
    assert len(said.splitlines()) == 1


def test_arrays_may_be_defaults_of_dataclasses_while_a_package_is_imported_and_not_afterwards():
    def declare():
        class Colour:
            rgba: np.ndarray = np.array([1.0, 0.0, 0.0])
            size: float = 2.0
            names: list = dataclasses.field(default_factory=list)

        return dataclasses.dataclass(order=True)(Colour)

    with safety.array_defaults():
        colour: Any = declare()
        with pytest.raises(ValueError, match="mutable default"):
            dataclasses.dataclass(type("Lists", (), {"__annotations__": {"a": list}, "a": []}))
    one, other = colour(), colour(rgba=np.zeros(3), size=1.0)
    np.testing.assert_array_equal(one.rgba, [1.0, 0.0, 0.0])
    np.testing.assert_array_equal(other.rgba, 0.0)
    assert (one.size, other.size) == (2.0, 1.0)
    assert colour().rgba is one.rgba
    assert colour.rgba is one.rgba
    assert colour().names is not one.names
    with pytest.raises(ValueError, match="mutable default"):
        declare()


class Six:
    """Steps that give the cost after the reward, and an info that says something else."""

    def __init__(self):
        self.inner = Counting()
        self.observation_space, self.action_space = self.inner.observation_space, self.inner.action_space
        self.reset, self.close = self.inner.reset, self.inner.close

    def step(self, action):
        observation, reward, terminated, truncated, info = self.inner.step(action)
        return observation, reward, 3.0 * info["cost"], terminated, truncated, {"cost_of_hazards": info["cost"]}


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_cost_after_the_reward_is_the_environments_own(workers):
    task = gymnasium_tasks.of_object(Six)(max_episode_steps=5, workers=workers)
    assert task.cost_names == ("cost",)
    copies = task.open(2)
    copies.reset([1, 2, 3, 4])
    for t in range(1, 4):
        copies.arrays.action[:] = 0.0
        copies.step(last=t == 3)
        np.testing.assert_array_equal(copies.arrays.cost, 1.5 * t)
        np.testing.assert_array_equal(copies.arrays.reward, t)
        np.testing.assert_array_equal(copies.arrays.terminated, t == 3)
    copies.close()


def test_cost_functions_find_the_sixth_value_in_info():
    def both(observation, action, after, info):
        return info["cost"] + info["cost_of_hazards"]

    copies = gymnasium_tasks.of_object(Six, [both])(max_episode_steps=5, workers="0").open(1)
    copies.reset([1, 2, 3, 4])
    copies.arrays.action[:] = 0.0
    copies.step(last=True)
    np.testing.assert_array_equal(copies.arrays.cost, 2.0)


@pytest.mark.parametrize(
    ("outcome", "says"), [((1, 2, 3, 4), "4 values"), (tuple(range(7)), "7 values"), ([1, 2, 3, 4, 5], "a list")]
)
def test_other_numbers_of_values_are_no_step(outcome, says):
    with pytest.raises(host.NoStep, match=f"step returned {says} where"):
        host.five_values(outcome)


def test_an_info_that_is_no_dictionary_does_not_hide_the_sixth_value():
    assert host.five_values((0, 1.0, 2.0, False, True, None)) == (0, 1.0, False, True, {"cost": 2.0})


def test_an_environment_without_a_world_of_its_own_keeps_it():
    env = SimpleNamespace(unwrapped=SimpleNamespace(), render_mode=None)
    assert safety.without_sky(env) is env
