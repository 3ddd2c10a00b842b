"""Gymnasium environments through the whole of a run: the command line, resuming, evaluating, and faults on the way."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import apdo
from apdo import cli, hosted
from apdo.envs import host
from apdo.errors import EnvironmentFailure, Interrupted, InvalidInput, NumericalFailure
from apdo.experiment import chosen, evaluation, opening, runner, settings
from apdo.report import runs

gymnasium = pytest.importorskip("gymnasium", reason="Gymnasium is not installed")

from host_environments import Broken, Counting, Mixed, Panel  # noqa: E402

SMALL = {
    "primal": "reinforce",
    "policy.hidden": (4,),
    "critic.hidden": (4,),
    "critic.passes": 1,
    "critic.minibatches": 2,
    "epochs": 4,
    "batch": 60,
    "environments": 3,
}
WORDS = [word for name, value in SMALL.items() for word in (f"--{name}", str(value).strip("(),"))]
PENDULUM = ["train", "pdo", "Pendulum-v1", "--cost", "abs(obs[2]) > 4", "--cost", "action[0] ** 2", "--limits", "5,20"]
PENDULUM += [*WORDS, "--max-episode-steps", "10", "--quiet"]


def metrics_of(folder):
    run = runs.read(folder)
    return {name: values for name, values in run.metrics.items() if name != "seconds"}


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def python(**options):
    return {name.replace(".", "__"): value for name, value in (SMALL | options).items()}


@pytest.fixture
def stops_after_two(monkeypatch):
    """A signal that comes in the second epoch."""

    class Stopping(runner.Stop):
        looks = 0

        @property
        def asked(self):
            Stopping.looks += 1
            return Stopping.looks >= 2

    def arm():
        monkeypatch.setattr(runner, "Stop", Stopping)

    def disarm():
        monkeypatch.undo()

    return arm, disarm


def trained_on_panel(folder, epochs):
    """The policy as training hands it over and as it is loaded."""
    small = {"batch": 800, "policy__hidden": (8,), "critic__hidden": (8,)}
    result = apdo.train("pdo", Panel, limits=4.0, max_episode_steps=8, epochs=epochs, out=folder, quiet=True, **small)
    return result.policy, apdo.load(folder)


def test_an_action_of_several_choices_is_handed_back_as_the_environment_takes_it(tmp_path):
    observations, space = np.zeros((2000, 1)), Panel().action_space
    for policy in trained_on_panel(tmp_path / "run", epochs=2):
        drawn = policy(observations)
        assert drawn.shape == (2000, 2)
        assert all(space.contains(action) for action in drawn[:20])
        assert space.contains(policy(observations[0]))


@pytest.mark.slow
def test_an_action_of_several_choices_is_learned(tmp_path):
    """The second dial pays and costs: at a limit of 4 in 8 steps it is turned up in half of them, the first always."""
    for policy in trained_on_panel(tmp_path / "run", epochs=40):
        drawn = policy(np.zeros((2000, 1)))
        assert np.mean(drawn[:, 0] == 2) > 0.9
        assert 0.3 < np.mean(drawn[:, 1] == 6) <= 0.52


def test_a_policy_takes_an_observation_as_its_environment_gives_it(tmp_path):
    """The same action as for its numbers, from the result and from the folder alone."""
    small: dict[str, Any] = {name.replace(".", "__"): value for name, value in SMALL.items()} | {"epochs": 1}
    result = apdo.train("pdo", Mixed, limits=5, max_episode_steps=10, out=tmp_path / "run", quiet=True, **small)
    env = Mixed()
    observation, _ = env.reset(seed=3)
    numbers = gymnasium.spaces.flatten(env.observation_space, observation)
    for policy in (result.policy, apdo.load(tmp_path / "run")):
        wanted = policy(numbers, deterministic=True)
        np.testing.assert_array_equal(policy(observation, deterministic=True), wanted)
        np.testing.assert_array_equal(policy(np.stack([numbers, numbers]), deterministic=True), [wanted, wanted])
        assert policy.distribution(observation)["mean"].shape == (1,)
        with pytest.raises(InvalidInput, match="has no part 'place'"):
            policy({"mode": 1, "other": 0})
        with pytest.raises(InvalidInput, match=r"'mode'\] is 4, which is none of its choices"):
            policy(observation | {"mode": 4})


def test_a_run_from_the_command_line_goes_on_after_an_interruption_with_the_same_bits(tmp_path, stops_after_two):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    arm, disarm = stops_after_two
    cli.main([*PENDULUM, "--out", str(whole)])
    arm()
    with pytest.raises(SystemExit) as stopped:
        cli.main([*PENDULUM, "--out", str(broken)])
    assert stopped.value.code == 0
    assert len(runs.read(broken).epochs) == 2
    disarm()
    cli.main(["resume", str(broken), "--quiet"])
    assert_same(metrics_of(whole), metrics_of(broken))
    description = runs.read_description(whole)
    assert description["best"] == runs.read_description(broken)["best"] != []
    assert description["problem"]["cost_names"] == ["abs(obs[2]) > 4", "action[0] ** 2"]
    assert description["config"]["settings"]["constrain"] == "total"
    assert description["config"]["settings"]["normalise"] is True
    assert description["versions"]["gymnasium"] == gymnasium.__version__

    policy = apdo.load(whole)
    observation = np.array([1.0, 0.0, 0.5])
    assert gymnasium.make("Pendulum-v1").action_space.contains(policy(observation))
    assert np.abs(policy(np.full((200, 3), 1e6))).max() <= 2.0

    # Parameters are those before actions are mapped: of the algorithm's own distribution.
    parameters = policy.distribution(observation)
    inner = policy.network.inner(jnp.asarray(observation, dtype=jnp.float32))
    np.testing.assert_allclose(parameters["mean"], inner.mean, rtol=1e-5)
    np.testing.assert_allclose(parameters["std"], np.exp(inner.log_std), rtol=1e-5)
    assert policy.distribution(np.stack([observation] * 3))["mean"].shape == (3, 1)

    experiment, training, state = evaluation.load_run(whole)
    assert experiment.environment_config.cost == "abs(obs[2]) > 4; action[0] ** 2"
    found = evaluation.evaluate(chosen.policies(training, [0], state)[0], training, 7)
    again = evaluation.evaluate(chosen.policies(training, [0], state)[0], training, 7)
    assert found == again
    assert 0.0 <= found.undiscounted_cost[0].mean <= 10.0
    assert found.undiscounted_return.mean < 0.0


def test_the_off_policy_adjustment_works_on_choices_of_the_host(tmp_path):
    options = {
        "off_policy__learner__critic_hidden": (4,),
        "off_policy__learner__actor_hidden": (4,),
        "off_policy__learner__minibatch": 8,
    }
    result = apdo.train(
        "apdo",
        "CartPole-v1",
        costs="abs(obs[0]) > 0.02",
        limits=3.0,
        out=tmp_path / "run",
        quiet=True,
        k_adj=1,
        off_policy__iterations=100,
        max_episode_steps=20,
        **options,
        **python(epochs=3, seeds=2),
    )
    assert result.metrics["cost"].shape == (2, 3, 1)
    assert (result.metrics["episode_length"] > 5).all()
    assert not np.array_equal(*result.metrics["return"])
    assert set(result.policy(np.zeros((50, 4)))) == {0, 1}


def test_python_objects_train_are_resumed_with_them_and_loaded_without(tmp_path, stops_after_two):
    def late(observation, action, after, info):
        return float(after[1] > 2)

    def train(out):
        return apdo.train("pdo", Counting, costs=[late, "obs[1]"], limits=(1.0, 9.0), out=out, quiet=True, **options)

    options = python(max_episode_steps=5, batch=30)
    arm, disarm = stops_after_two
    whole = train(tmp_path / "whole")
    # By hand: episodes of 3 steps, of which the last is late; 1 + 2 + 3 earned, 0 + 1 + 2 paid.
    np.testing.assert_allclose(whole.metrics["return"], 6.0, rtol=1e-5)
    np.testing.assert_allclose(whole.metrics["undiscounted_cost"], [[[1.0, 3.0]] * 4], rtol=1e-5)
    arm()
    with pytest.raises(Interrupted) as stopped:
        train(tmp_path / "part")
    disarm()
    # No command could bring the objects back.
    assert f"Go on with: apdo.resume('{tmp_path / 'part'}', environment=..., costs=...)" in str(stopped.value)
    with pytest.raises(InvalidInput, match="trained on a Python object, 'Counting'"):
        apdo.resume(tmp_path / "part", quiet=True)
    resumed = apdo.resume(tmp_path / "part", quiet=True, environment=Counting, costs=[late, "obs[1]"])
    assert_same(whole.metrics, resumed.metrics)
    policy = apdo.load(tmp_path / "part")
    np.testing.assert_array_equal(policy(np.ones(2), deterministic=True), whole.policy(np.ones(2), deterministic=True))


@pytest.mark.parametrize(
    ("what", "kind", "says"),
    [
        ("raises", EnvironmentFailure, "it raised RuntimeError: the motor is on fire"),
        ("nan reward", NumericalFailure, "the reward is nan"),
    ],
)
def test_a_fault_is_told_with_epoch_environment_and_step_and_the_state_before_it_is_saved(tmp_path, what, kind, says):
    """Two epochs of two episodes of five steps in each of three copies are sound; the 23rd step is not."""

    def make():
        return Broken(what, after=23)

    options = python(max_episode_steps=5, batch=30)
    with pytest.raises(kind) as raised:
        apdo.train(
            "pdo", make, costs=["obs[0]", "obs[1]"], limits=(1.0, 9.0), out=tmp_path / "run", quiet=True, **options
        )
    path = tmp_path / "run" / "checkpoints" / "epoch-000002.npz"
    trace = tmp_path / "run" / "environment-error.txt"
    where = f" (the traceback is in {trace})" if what == "raises" else ""
    assert str(raised.value) == (
        f"epoch 2, make, environment 0, step 2 of its episode: {says}{where}; "
        f"the state before that epoch is saved in {path}."
    )
    assert trace.exists() == (what == "raises")
    if what == "raises":
        assert "in _burn\n" in trace.read_text()
        assert trace.read_text().endswith("RuntimeError: the motor\nis on fire\n")
    assert path.exists()
    assert runs.read_description(tmp_path / "run")["status"] == "failed"
    assert len(runs.read(tmp_path / "run").epochs) == 2


@pytest.mark.parametrize(("numerical", "status"), [(False, 1), (True, 3)])
def test_the_command_line_tells_a_fault_in_one_line_and_by_its_exit_status(
    numerical, status, tmp_path, monkeypatch, capsys
):
    def collect(*_):
        raise host.Fault(2, 7, "it is broken", numerical=numerical)

    monkeypatch.setattr(hosted, "collect_seeds", collect)
    with pytest.raises(SystemExit) as stopped:
        cli.main([*PENDULUM, "--out", str(tmp_path / "run")])
    assert stopped.value.code == status
    saved = tmp_path / "run" / "checkpoints" / "epoch-000000.npz"
    assert capsys.readouterr().err == (
        "apdo: epoch 0, Pendulum-v1, environment 2, step 7 of its episode: it is broken; "
        f"the state before that epoch is saved in {saved}.\n"
    )
    assert saved.exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["Pendulum-v1"], "gives no info['cost']: say what costs"),
        (["Pendulum-v1", "--cost", "obs[3]", "--limit", "1"], "obs has 3 entries, 0 to 2"),
        (["Pendulum-v1", "--cost", "obs[0", "--limit", "1"], "needs ']' at character 6"),
        (["Pendulum-v1", "--cost", "obs[0]"], "needs as many limits, not 0"),
        (["Pendulum-v1", "--cost", "obs[0]", "--limit", "nan"], "must be a number, not nan"),
        (["Pendulum-v1", "--cost", "obs[0]", "--limits", "1,2"], "has 1 cost (obs[0]) and needs as many limits, not 2"),
        (["Pendulum-v1", "--cost", "obs[0]", "--limit", "1", "--workers", "-3"], "auto or a number"),
        (["Pendulun-v1", "--cost", "obs[0]", "--limit", "1"], "unknown environment 'Pendulun-v1'; did you mean"),
        (["no_such_module:Pendulum-v1", "--cost", "obs[0]", "--limit", "1"], "no_such_module"),
        (["object:Mine"], "trained on a Python object"),
        (["pendulum"], "unknown environment 'pendulum'"),
        (["Blackjack-v1", "--cost", "obs[0]", "--limit", "1"], "--max-episode-steps"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_sentence_before_anything_starts(words, says, capsys, tmp_path):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["train", "pdo", *words, "--out", str(tmp_path / "run"), "--quiet"])
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert says in said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "run").exists()


BESIDE = """
import gymnasium
from host_environments import Counting
gymnasium.register("Beside-v0", Counting, max_episode_steps=5)
"""


def test_an_environment_in_a_module_beside_the_user_is_found_by_the_command_line(tmp_path):
    """The command is a script elsewhere: Python itself looks for modules beside that, and not beside the user."""
    (tmp_path / "beside.py").write_text(BESIDE)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "apdo.script").write_text("import apdo.cli\napdo.cli.main()\n")
    words = ["beside:Beside-v0", "--limit", "1", "--epochs", "1", "--batch", "30", "--out", "run", "--workers", "2"]
    command = [sys.executable, str(tmp_path / "bin" / "apdo.script"), "train", "pdo", *words, "--quiet"]
    places = os.pathsep.join(place for place in sys.path if place and Path(place) != tmp_path)
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": places}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "run" / "metrics.jsonl").exists()


def test_without_gymnasium_the_message_says_how_to_install_it():
    code = "import sys; sys.modules['gymnasium'] = None; from apdo import cli; cli.main(sys.argv[1:])"
    for words in (["Pendulum-v1", "--cost", "obs[0]", "--limit", "1"], ["halfcheetah-velocity"]):
        command = [sys.executable, "-c", code, "train", "pdo", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert done.stderr == ("apdo: this needs Gymnasium, which is not installed: pip install 'apdo[gymnasium]'\n")


def test_a_jax_environment_gives_through_gymnasium_what_its_own_steps_give():
    """The bridge in both directions: point-gather as a Gymnasium environment, collected by the host's loop."""
    changes = SMALL | {"batch": 45, "max_episode_steps": 15, "limits": 0.2, "constrain": "total"}
    training = opening.training_of(settings.make_experiment("pdo", "apdo/PointGather-v0", changes))
    assert (training.problem.observation_size, training.problem.action_size) == (29, 2)
    assert training.environment.cost_names == ("cost",)
    copies = hosted.open_copies(training)
    copies.reset([0, 0, 0, 1])
    assert copies.arrays.observation.shape == (3, 29)
    for t in range(15):
        copies.arrays.action[:] = 0.5
        copies.step(last=t == 14)
    assert copies.arrays.terminated.all()
    assert not copies.arrays.truncated.any()
    copies.close()
