"""λ* from logged data: near the exact one where it is known, one from a run and from its file, honest where not."""

import json
import shutil
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import apdo
from apdo import datasets, loop
from apdo.core import replay
from apdo.core.data import Transition
from apdo.datasets import Dataset
from apdo.errors import InvalidInput
from apdo.experiment import checkpoint, logged, multipliers, opening, records, settings
from command_line import call
from logged_data import random_log, two_state_log

EXACT = 0.2913
SMALL = {
    "members": 3,
    "iterations": 3000,
    "check_iterations": 3000,
    "learner.dual_rate": 1e-3,
    "learner.actor_rate": 1e-2,
    "learner.critic_rate": 5e-3,
    "learner.target_rate": 0.2,
    "learner.cloning": 0.25,
    "learner.critic_hidden": "32",
    "learner.actor_hidden": "16",
    "learner.minibatch": 64,
}
"""An actor that is quick against its multiplier, so that neither swings: settles on two states within seconds."""
TINY = SMALL | {"members": 2, "iterations": 200, "check_iterations": 50, "learner.minibatch": 8}
RUN: dict[str, Any] = {"seeds": 2, "seed": 5, "batch": 240, "horizon": 20, "primal": "reinforce"}
ADJUSTED: dict[str, Any] = {
    "adjust": "dual",
    "check": False,
    "off_policy__iterations": 100,
    "off_policy__members": 1,
    "off_policy__learner__minibatch": 8,
}


def asked(source, changes, **more):
    return multipliers.estimate(source, changes | more)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A short run of APDO on two states, and the buffer's batches as it saw them."""
    folder = tmp_path_factory.mktemp("runs") / "two"
    apdo.train("apdo", "two-state", out=folder, quiet=True, epochs=3, k_adj=1, **RUN, **ADJUSTED)
    return folder


def test_on_two_states_the_estimate_is_near_the_exact_price():
    found = asked(Dataset.of(**two_state_log()), SMALL)
    assert found.multiplier[0] == pytest.approx(EXACT, rel=0.15)
    assert found.low[0] < found.multiplier[0] < found.high[0]
    assert found.supported, found.unsupported
    assert found.members.shape == (3, 1)
    assert found.diagnostics.actor_cost == pytest.approx(2.0, rel=0.1)
    assert (
        abs(found.diagnostics.bias[1]) < 0.1 * found.diagnostics.logged[1] + 2 * found.diagnostics.calibration_error[1]
    )


def test_the_logged_cost_of_episodes_that_terminate_early_is_their_total():
    """It stands next to the limit on totals, whether the horizon is far away or ends the episodes itself."""
    log = random_log(episodes=40, length=10, costs=1)
    whole = {"terminated": log["terminated"] | log["truncated"], "truncated": np.zeros_like(log["truncated"])}
    total = log["cost"].sum() / 40
    for horizon, terminates in ((40, False), (10, True)):
        of: dict[str, Any] = {"horizon": horizon, "horizon_terminates": terminates, "limits": [3.0]}
        of |= {"discount": 0.99, "cost_discount": 1.0}
        found = asked(Dataset.of(**(log | whole | of)), TINY)
        assert found.diagnostics.logged[1] == pytest.approx(total, rel=1e-3)


def test_a_limit_that_no_policy_keeps_is_called_unsupported():
    found = asked(Dataset.of(**two_state_log()), SMALL, limits=-0.5)
    assert any("no learned actor keeps the limit -0.5" in reason for reason in found.unsupported)


def test_three_episodes_are_called_unsupported():
    found = asked(Dataset.of(**two_state_log(episodes=3)), TINY, limits=1.5)
    assert any("only 3 episodes" in reason for reason in found.unsupported)
    assert not found.supported


def test_a_run_its_file_and_its_dataset_give_the_same_estimate(run, tmp_path):
    data = logged.of_run(run)
    datasets.save(data, tmp_path / "log.npz")
    found = [asked(source, TINY, seed=3) for source in (run, tmp_path / "log.npz", data)]
    for other in found[1:]:
        assert other.plain() == found[0].plain()
    different = asked(data, TINY, seed=4)
    assert different.plain()["path"] != found[0].plain()["path"]


def test_the_dataset_of_a_run_is_the_newest_whole_episodes_of_its_buffer(run):
    """The ring has room for two of three epochs; every episode of two states has the horizon's length."""
    data = logged.of_run(run)
    assert data.samples == 2 * 240
    assert data.episodes == 24
    assert data.truncated.sum() == 24
    np.testing.assert_array_equal(np.diff(data.starts), 20)
    assert data.limits == (2.0,)
    assert data.cost_names == ("hot hours",)
    hot, works = data.observation[:, 1] == 1, data.action[:, 1] == 1
    np.testing.assert_array_equal(data.reward, works)
    np.testing.assert_array_equal(data.cost[:, 0], hot & works)


def test_each_seed_of_a_run_has_its_own_buffer(run):
    one, other = logged.of_run(run, 5), logged.of_run(run, 6)
    np.testing.assert_array_equal(one.action, logged.of_run(run).action)
    assert (one.action != other.action).any()
    with pytest.raises(InvalidInput, match="the seeds 5 to 6, not 7"):
        logged.of_run(run, 7)


def test_a_damaged_newest_checkpoint_is_passed_over(run, tmp_path):
    torn = tmp_path / "torn"
    shutil.copytree(run, torn)
    there = sorted((torn / "checkpoints").glob("epoch-*.npz"))
    assert len(there) > 1
    there[-1].write_bytes(there[-1].read_bytes()[:-100])
    assert logged.of_run(torn).episodes == 24
    for path in there:
        path.write_bytes(b"")
    with pytest.raises(InvalidInput, match="not a whole checkpoint"):
        logged.of_run(torn)


def begun(folder, algorithm, **options):
    """A run folder whose run has not trained yet."""
    experiment = settings.make_experiment(algorithm, "two-state", {"batch": 40, "horizon": 20} | options)
    training = opening.training_of(experiment)
    records.Records(folder, opening.describe(experiment, training, [0])).close("interrupted")
    return training


def test_a_buffer_that_has_wrapped_gives_the_episodes_that_are_still_whole(tmp_path):
    training = begun(tmp_path / "run", "pd-ddpg", replay_capacity=100)
    state = loop.start(training, [0])
    with pytest.raises(InvalidInput, match="has no checkpoint yet"):
        logged.of_run(tmp_path / "run")
    checkpoint.save(checkpoint.path_of(tmp_path / "run", 0), state, 0)
    with pytest.raises(InvalidInput, match="it is empty"):
        logged.of_run(tmp_path / "run")
    step = jnp.repeat(jnp.arange(20), 2)
    seen = Transition(
        observation=jnp.zeros((40, 2)),
        action=jnp.eye(2)[step % 2],
        reward=jnp.ones(40),
        cost=jnp.ones((40, 1)),
        next_observation=jnp.zeros((40, 2)),
        terminated=jnp.zeros(40, dtype=bool),
        truncated=step == 19,
        step=step,
    )
    buffer = jax.tree.map(lambda leaf: leaf[0], state.algorithm.buffer)
    for _ in range(3):
        buffer = replay.insert(buffer, seen)
    several = jax.tree.map(lambda leaf: leaf[None], buffer)
    state = eqx.tree_at(lambda s: s.algorithm.buffer, state, several)
    checkpoint.save(checkpoint.path_of(tmp_path / "run", 1), state, 1)
    data = logged.of_run(tmp_path / "run")
    assert (data.reward == 1.0).all()
    assert (data.cost == 1.0).all()
    assert data.limits == (2.0,)
    # Of 120 rows the ring has kept 100: the first batch has lost the first half of both its episodes.
    assert data.episodes == 4
    np.testing.assert_array_equal(np.argmax(data.action, axis=1), data.step % 2)


def test_an_algorithm_without_a_buffer_is_named(tmp_path):
    begun(tmp_path / "run", "pdo")
    with pytest.raises(InvalidInput, match="a run of pdo, which keeps no buffer"):
        logged.of_run(tmp_path / "run")


def test_data_of_order_one_are_left_as_they_are():
    scale = multipliers.scaling(Dataset.of(**two_state_log(episodes=30)), "auto")
    assert not scale.observation[0].any()
    assert (scale.observation[1] == 1.0).all()


def test_the_prices_are_in_the_units_of_the_data_whatever_those_are():
    """Two costs; powers of two, so that nothing is rounded: λ_i is in units of the reward over those of cost i."""
    log = random_log(episodes=60, length=5, costs=2)
    log |= {"reward": log["reward"] * 2**10, "cost": log["cost"] * 2**10, "limits": np.asarray([500.0, 800.0])}
    factors = np.asarray([2.0, 0.5], np.float32)
    other = log | {"reward": log["reward"] * 4, "cost": log["cost"] * factors, "limits": log["limits"] * factors}
    one, same = (asked(Dataset.of(**part), TINY) for part in (log, other))
    assert (one.path[-1] > 0.0).any(axis=0).all()
    np.testing.assert_allclose(same.path, one.path * 4.0 / factors, rtol=1e-5)
    np.testing.assert_allclose(same.multiplier, one.multiplier * 4.0 / factors, rtol=1e-5)
    scale = np.asarray([4.0, *factors])
    for name in ("logged", "calibrated", "calibration_error"):
        found = getattr(same.diagnostics, name), getattr(one.diagnostics, name) * scale
        np.testing.assert_allclose(*found, rtol=1e-4)


def test_without_scaling_nothing_is_changed():
    log = random_log(episodes=60)
    for name in ("observation", "next_observation"):
        log[name] = log[name] * 1000
    assert (multipliers.scaling(Dataset.of(**log), "auto").observation[1] > 10.0).all()
    assert (multipliers.scaling(Dataset.of(**log), "none").observation[1] == 1.0).all()


def arguments(changes):
    return [word for name, value in changes.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def test_the_command_prints_the_answer_and_writes_it(capsys, tmp_path):
    datasets.save(Dataset.of(**two_state_log(episodes=3)), tmp_path / "log.npz")
    words = ["dual", str(tmp_path / "log.npz"), *arguments(TINY), "--limits", "1.5", "--out", str(tmp_path / "found")]
    status, out, err = call(capsys, *words)
    assert (status, err) == (0, "")
    assert "hot hours: limit 1.5, λ = " in out
    assert "training the multiplier off-policy: 0/200" in out
    assert "unsupported: the data cannot support this answer" in out
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["supported"] is False
    assert found["limits"] == [1.5]
    assert (tmp_path / "found.png").stat().st_size > 10_000
    assert (tmp_path / "found.svg").exists()


def test_the_command_exports_a_runs_buffer(capsys, run, tmp_path):
    status, out, _ = call(capsys, "dual", str(run), "--run-seed", "6", "--export", str(tmp_path / "log.npz"))
    assert status == 0
    assert "480 transitions of 24 episodes" in out
    np.testing.assert_array_equal(datasets.load(tmp_path / "log.npz").action, logged.of_run(run, 6).action)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "dual needs a run folder or a file"),
        (["nowhere"], "there is no run folder or file nowhere"),
        (["LOG", "--memberz", "3"], "did you mean 'members'"),
        (["LOG", "--members", "0"], "members must be greater than 0"),
        (["LOG", "--limits", "1,2"], "1 costs and 2 limits"),
        (["LOG", "--limits", "x"], "limits must be numbers"),
        (["LOG", "--run-seed", "1"], "only a run has seeds"),
        (["LOG", "--out"], "--out needs a value"),
        (["LOG", "--out", "nowhere/x"], "the folder nowhere for x does not exist"),
        (["LOG", "--export", "x.csv"], "ends in neither"),
        (["LOG.txt"], "ends in neither"),
    ],
)
def test_mistakes_are_answered_in_one_sentence(capsys, tmp_path, words, said):
    datasets.save(Dataset.of(**two_state_log(episodes=3)), tmp_path / "log.npz")
    (tmp_path / "log.txt").write_text("x")
    names = {"LOG": str(tmp_path / "log.npz"), "LOG.txt": str(tmp_path / "log.txt")}
    status, _, err = call(capsys, "dual", *(names.get(word, word) for word in words))
    assert status == 2
    assert said in err
    assert err.count("\n") == 1


def test_the_command_explains_itself(capsys):
    status, out, _ = call(capsys, "dual", "--help")
    assert status == 0
    for word in ("--limits", "--members", "--learner.cloning", "--fewest", "--export", "unsupported"):
        assert word in out
    assert "apdo dual RUN_OR_FILE" in call(capsys, "--help")[1]


def test_an_interruption_leaves_nothing_behind(capsys, monkeypatch, tmp_path):
    datasets.save(Dataset.of(**two_state_log(episodes=3)), tmp_path / "log.npz")

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(multipliers, "_phase", interrupted)
    status, _, err = call(capsys, "dual", str(tmp_path / "log.npz"), *arguments(TINY), "--out", str(tmp_path / "found"))
    assert status == 130
    assert err == "apdo: interrupted.\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.npz"]
