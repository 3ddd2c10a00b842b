"""Algorithms and environments of the user's own: the tutorial runs, faults are told, runs go on."""

import re
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import apdo
from apdo import algorithms, cli, own
from apdo.algorithms import crpo, trpo
from apdo.experiment import runner
from apdo.report import runs
from problems import Reach

DOCUMENT = Path(__file__).parent.parent / "docs" / "own-algorithm.md"
SMALL: dict[str, Any] = {"policy.hidden": (4,), "critic.hidden": (4,), "critic.passes": 1, "critic.minibatches": 2}
SMALL |= {"epochs": 3, "batch": 120, "seeds": 1}
WORDS = [word for name, value in SMALL.items() for word in (f"--{name}", str(value).strip("(),"))]


@pytest.fixture
def written(tmp_path, monkeypatch):
    """The tutorial's two files, in the folder that one stands in."""
    monkeypatch.chdir(tmp_path)
    for block in re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL):
        name = re.match(r'"""(\w+\.py):', block)
        assert name is not None
        (tmp_path / name[1]).write_text(block, encoding="utf-8")
    return tmp_path


def test_the_tutorials_files_are_as_short_as_it_says(written):
    assert len((written / "focops2.py").read_text().splitlines()) < 120
    assert len((written / "tank.py").read_text().splitlines()) < 60


def test_the_tutorials_algorithm_and_environment_train_from_the_command_line_and_resume_bit_for_bit(
    written, monkeypatch
):
    command = ["train", "focops2.py", "tank.py:Tank", *WORDS, "--temperature", "1", "--quiet", "--out"]
    cli.main([*command, "whole"])

    class Stopping(runner.Stop):
        looks = 0

        @property
        def asked(self):
            Stopping.looks += 1
            return Stopping.looks >= 2

    with monkeypatch.context() as patch:
        patch.setattr(runner, "Stop", Stopping)
        patch.setattr(runner, "REPORT_EVERY", 1e-9)
        with pytest.raises(SystemExit):
            cli.main([*command, "broken"])
    monkeypatch.chdir(written.parent)  # the files are found from anywhere
    cli.main(["resume", str(written / "broken"), "--quiet"])
    one, other = (runs.read(written / name) for name in ("whole", "broken"))
    assert one.description["algorithm"] == str(written / "focops2.py")
    assert one.metrics["multiplier"].shape == (1, 3, 1)
    for name in set(one.metrics) - {"seconds"}:
        np.testing.assert_array_equal(one.metrics[name], other.metrics[name], err_msg=name)
    assert apdo.load(written / "broken", newest=True)(np.zeros(1)).shape == (1,)


def given(algorithm, environment, folder, **options) -> Any:
    small = {name.replace(".", "__"): value for name, value in (SMALL | options).items()}
    return apdo.train(algorithm, environment, out=folder, quiet=True, **small)


def test_the_tutorials_files_go_into_a_sweep_and_come_to_what_they_come_to_alone(written):
    options = {name: list(value) if isinstance(value, tuple) else value for name, value in SMALL.items()}
    asked = {"algorithms": ["focops2.py"], "environments": ["tank.py:Tank"], "seeds": options.pop("seeds")}
    asked |= {"options": options, "for": {"focops2.py": {"grid": {"temperature": [1.0, 2.0]}}}}
    found = apdo.sweep(asked, out="swept", jobs=1, quiet=True)
    assert [row["temperature"] for row in found.rows] == [1.0, 2.0]
    for row in found.rows:
        alone = given("focops2.py", "tank.py:Tank", written / str(row["temperature"]), temperature=row["temperature"])
        assert row["return"] == pytest.approx(float(alone.metrics["return"].mean()), rel=1e-6)
    with pytest.raises(apdo.InvalidInput, match="unknown option 'temprature'; did you mean 'temperature'"):
        apdo.sweep(asked | {"for": {"focops2.py": {"grid": {"temprature": [1.0]}}}}, out="other", quiet=True)


def test_objects_that_no_file_has_train_too_and_are_asked_for_to_go_on(tmp_path, monkeypatch):
    class Mine:
        """Another name for TRPO."""

        Config, init, memory, act = trpo.Config, trpo.init, trpo.memory, trpo.act
        step, learned_policy = trpo.step, trpo.learned_policy

    one = given(Mine, "two-state", tmp_path / "mine", batch=200)
    assert runs.read_description(tmp_path / "mine")["algorithm"].startswith("object:")
    monkeypatch.setattr(own, "_given", {})
    with pytest.raises(apdo.InvalidInput, match=r"give it again: apdo.resume\(RUN, algorithm=...\)"):
        apdo.resume(tmp_path / "mine", epochs=4, quiet=True)
    longer = apdo.resume(tmp_path / "mine", epochs=4, quiet=True, algorithm=Mine)
    np.testing.assert_array_equal(longer.metrics["return"][:, :3], one.metrics["return"])


FAULTS = {
    "nothing": ("", "no function init"),
    "arguments": ("def step(config, state): ...", r"step must take \(config, problem, state, batch, key\)"),
    "thawed": ("class Config: ...", "frozen dataclass"),
    "unexplained": (
        """
        import dataclasses
        @dataclasses.dataclass(frozen=True)
        class Config:
            rate: float = 0.1
        """,
        "Config.rate must be an option",
    ),
    "broken": ("import nowhere_at_all", "cannot be imported: ModuleNotFoundError"),
    "state": (
        """
        def step(config, problem, state, batch, key):
            from apdo.algorithms import on_policy
            return (state, 1), on_policy.measure(problem, batch)
        """,
        "same structure, shapes and types as init's",
    ),
    "metrics": ("def step(config, problem, state, batch, key):\n    return state, {}", "metrics lack return"),
    "raises": ("def act(config, state, memory, observation, key):\n    return 1 / 0", "act raised ZeroDivisionError"),
    "action": (
        "def act(config, state, memory, observation, key):\n    return observation, memory",
        r"action of shape \(2,\)",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_with_an_algorithm_is_said_before_anything_is_computed(tmp_path, fault):
    code, said = FAULTS[fault]
    whole = fault in ("state", "metrics", "raises", "action")
    text = "from apdo.algorithms.trpo import *\n" if whole else ""
    (tmp_path / f"{fault}.py").write_text(text + textwrap.dedent(code))
    with pytest.raises(apdo.InvalidInput, match=said) as caught:
        given(str(tmp_path / f"{fault}.py"), "garnet", tmp_path / "run", batch=2000, states=5, actions=2)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_what_is_wrong_with_an_environment_is_said_too(tmp_path):
    with pytest.raises(apdo.InvalidInput, match=r"Reach is no environment: the class.costs must be an option"):
        given("trpo", Reach, tmp_path / "run")
    code = DOCUMENT.read_text(encoding="utf-8")
    code = re.findall(r"```python\n(.*?)```", code, re.DOTALL)[1]
    for number, (before, after, said) in enumerate(
        (
            ("cost=spilt[None]", "cost=spilt", r"the cost must have shape \(1,\), not \(\)"),
            ("state=after", "state=(after, after)", "same structure, shapes and types as reset's"),
            ("    horizon = 30\n", "", "does not say its horizon"),
        )
    ):
        (tmp_path / f"tank{number}.py").write_text(code.replace(before, after))
        with pytest.raises(apdo.InvalidInput, match=said):
            given("trpo", str(tmp_path / f"tank{number}.py") + ":Tank", tmp_path / "run")


def test_a_run_folder_cannot_bring_code_along():
    """What it says of a file counts only with the whole path."""
    with pytest.raises(apdo.InvalidInput, match="whole path is needed"):
        own.load("mine.py:focops", "algorithm")
    with pytest.raises(apdo.InvalidInput, match="no such file"):
        own.load("/nowhere/mine.py:focops", "algorithm")
    with pytest.raises(apdo.InvalidInput, match="unknown algorithm 'focop'; did you mean 'focops'"):
        algorithms.check_name("focop")
    assert own.name_of(crpo).endswith("crpo.py")


ROVER = """
import gymnasium
import numpy as np


class Rover(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-9.0, 9.0, (1,))
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = np.zeros(1)
        return self.place.astype(np.float32), {}

    def step(self, action):
        self.place = np.clip(self.place + action, -9.0, 9.0)
        return self.place.astype(np.float32), float(action[0]), False, False, {"cost": float(self.place[0] > 1.0)}
"""


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_gymnasium_class_in_a_file_trains_by_its_name_goes_on_and_is_evaluated(workers, tmp_path, monkeypatch):
    pytest.importorskip("gymnasium", reason="Gymnasium is not installed")
    monkeypatch.chdir(tmp_path)
    Path("rover.py").write_text(ROVER)
    command = ["train", "pdo", "rover.py:Rover", "--limit", "2", "--max-episode-steps", "5", "--workers", workers]
    command += [*WORDS, "--environments", "4", "--quiet", "--out"]
    cli.main([*command, "whole"])
    cli.main([*command, "part", "--epochs", "2"])
    cli.main(["resume", "part", "--epochs", "3", "--quiet"])
    whole, part = (runs.read(tmp_path / name).metrics for name in ("whole", "part"))
    np.testing.assert_array_equal(whole["return"], part["return"])
    assert apdo.load("whole")([0.0]).shape == (1,)
    assert apdo.evaluate("whole", episodes=10).episodes == 10


VARIED = '''"""PDO that reports its multiplier under another name."""

from apdo.algorithms import pdo
from apdo.algorithms.pdo import Config, act, init, learned_policy, memory, suited


def step(config, problem, state, batch, key):
    """PDO's epoch."""
    after, metrics = pdo.step(config, problem, state, batch, key)
    return after, metrics | {"price": metrics["multiplier"]}
'''


def test_a_module_that_varies_a_built_in_one_has_its_defaults_for_the_task_and_its_results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("varied.py").write_text(VARIED, encoding="utf-8")
    mine, theirs = given("varied.py", "two-state", "mine", seed=1), given("pdo", "two-state", "theirs", seed=1)
    assert mine.metrics["price"].shape == (1, 3, 1)
    for name in set(theirs.metrics) - {"seconds"}:
        np.testing.assert_array_equal(mine.metrics[name], theirs.metrics[name], err_msg=name)


def test_an_algorithm_that_cannot_normalise_observations_is_not_said_to_have_done_so(written):
    with pytest.raises(apdo.InvalidInput, match=r"focops2.py sees observations as they come.*--normalise false"):
        given("focops2.py", "tank.py:Tank", "refused", normalise=True)
    given("focops2.py", "tank.py:Tank", "taken", normalise=False)


def test_a_file_without_the_name_of_its_environment_is_told_which_it_has(written, capsys):
    """The tank in JAX, and a Gymnasium environment: both are classes in a file."""
    for file, name in (("tank.py", "Tank"), ("cells.py", "Cells")):
        if file == "cells.py":
            Path(file).write_text("class Cells:\n    def reset(self): ...\n    def step(self, action): ...\n")
        with pytest.raises(apdo.InvalidInput, match=rf"{file} is a file; .* meant: {file}:{name}\."):
            given("pdo", file, "nothing")
