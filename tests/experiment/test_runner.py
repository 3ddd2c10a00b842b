"""Runs as a user makes them: folders, checkpoints, repeatability, failures, policies."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import apdo
from apdo import loop
from apdo.errors import InvalidInput
from apdo.experiment import checkpoint, chosen, evaluation, memory, opening, records, runner, settings
from apdo.report import runs
from problems import Reach
from test_best import believed

TINY = {
    "epochs": 4,
    "batch": 300,
    "k_adj": 1,
    "adjust": "dual",
    "check": False,
    "off_policy__iterations": 150,
    "off_policy__learner__critic_hidden": (8,),
    "off_policy__learner__actor_hidden": (8,),
    "off_policy__learner__minibatch": 8,
    "checkpoint_every": 3,
}


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return apdo.train(
        "apdo", "point-gather", seeds=2, seed=5, out=tmp_path_factory.mktemp("a") / "run", quiet=True, **TINY
    )


def rows(result):
    return [json.loads(line) for line in (result.path / "metrics.jsonl").read_text().splitlines()]


def test_a_run_folder_tells_the_whole_run(result):
    description = runs.read_description(result.path)
    assert description["status"] == "finished"
    assert (description["seeds"], description["epochs"], description["batch"]) == ([5, 6], 4, 300)
    assert description["problem"]["limits"] == [0.2]
    assert {"jax", "python", "apdo"} <= description["versions"].keys()
    assert settings.Experiment.restore(description["config"]).algorithm_config.k_adj == 1
    assert [(row["epoch"], row["seed"]) for row in rows(result)] == [(e, s) for e in range(4) for s in (5, 6)]
    # After the adjustment, after three epochs as asked for, and at the end; before the adjustment there was one more.
    assert [path.name for path in sorted((result.path / "checkpoints").iterdir())] == [
        f"epoch-00000{epoch}.npz" for epoch in (2, 3, 4)
    ]


def test_metrics_come_as_arrays_and_equal_the_records(result):
    assert result.metrics["return"].shape == (2, 4)
    assert result.metrics["cost"].shape == (2, 4, 1)
    for row in rows(result):
        i = result.seeds.index(row["seed"])
        assert row["return"] == pytest.approx(float(result.metrics["return"][i, row["epoch"]]))


def test_the_adjustment_is_recorded_in_its_epoch_and_used_in_the_next(result):
    adjusted = {
        (row["epoch"], row["seed"]): row["adjusted_multiplier"] for row in rows(result) if "adjusted_multiplier" in row
    }
    assert set(adjusted) == {(1, 5), (1, 6)}
    for row in rows(result):
        if row["epoch"] == 2:
            assert row["multiplier"] == pytest.approx(adjusted[(1, row["seed"])])


def test_the_same_command_gives_the_same_numbers_and_the_same_state(result, tmp_path):
    again = apdo.train("apdo", "point-gather", seeds=2, seed=5, out=tmp_path / "run", quiet=True, **TINY)
    for name, values in result.metrics.items():
        np.testing.assert_array_equal(again.metrics[name], values, err_msg=name)
    with np.load(checkpoint.latest(result.path)) as ours, np.load(checkpoint.latest(again.path)) as theirs:
        assert ours.files == theirs.files
        for name in ours.files:
            np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


def test_the_checkpoint_holds_everything_that_the_next_epoch_needs(result):
    """From the checkpoint after three epochs, the fourth comes out bit for bit."""
    experiment = settings.Experiment.restore(runs.read_description(result.path)["config"])
    training = opening.training_of(experiment)
    like = jax.eval_shape(lambda: loop.start(training, [5, 6]))
    state = checkpoint.load(checkpoint.path_of(result.path, 3), like)
    assert int(state.epoch) == 3
    chunk = loop.make_advance(training)(state, jnp.asarray(1, dtype=jnp.int32))
    np.testing.assert_array_equal(np.asarray(chunk.metrics["return"][0]), result.metrics["return"][:, 3])
    final = checkpoint.load(checkpoint.path_of(result.path, 4), like)
    for ours, theirs in zip(jax.tree.leaves(chunk.state.algorithm), jax.tree.leaves(final.algorithm), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_the_loaded_policy_is_the_learned_one_and_takes_one_observation_or_many(result):
    observations = np.random.default_rng(0).normal(size=(5, 29))
    loaded = apdo.load(result.path, seed=6)
    many = loaded(observations, deterministic=True)
    np.testing.assert_allclose(many, result.policies[1](observations, deterministic=True), rtol=1e-6)
    np.testing.assert_allclose(loaded(observations[2], deterministic=True), many[2], rtol=1e-4, atol=1e-5)
    assert many.shape == (5, 2)
    assert not np.allclose(loaded(observations[0]), loaded(observations[0]))
    with pytest.raises(apdo.InvalidInput, match="29 numbers"):
        loaded(np.zeros(28))
    with pytest.raises(apdo.InvalidInput, match="seeds 5 to 6"):
        apdo.load(result.path, seed=7)


def test_the_best_policy_is_told_in_the_description_and_is_the_one_that_drew_its_epochs_batch(result):
    told = runs.read_description(result.path)["best"]
    assert [one["seed"] for one in told] == [5, 6]
    for i, one in enumerate(told):
        names = ("discounted_return", "return_error", "cost", "cost_error")
        rows = [{name: result.metrics[name][i, k] for name in names} for k in range(one["epoch"] + 1)]
        known = believed(rows, "discounted_return")[-1]
        for name, key in (("discounted_return", "return"), ("return_error",) * 2, ("cost",) * 2, ("cost_error",) * 2):
            np.testing.assert_allclose(one[key], known[name], rtol=1e-4)
        assert result.policies[i].about == result.best[i].words()
        bound = np.add(one["cost"], np.multiply(1.645, one["cost_error"]))
        assert one["known"] == bool((bound <= 0.2).all())
    observation = np.zeros((1, 29))
    # After its last epoch a run has learned from that epoch too: no batch speaks of its newest policy.
    assert not np.array_equal(result.newest[0](observation, True), result.policies[0](observation, True))
    newest = apdo.load(result.path, newest=True)
    np.testing.assert_array_equal(newest(observation, True), result.newest[0](observation, True))
    assert newest.about == "the newest policy, after 4 epochs"


def test_evaluation_is_on_fresh_episodes_and_its_interval_covers_what_training_saw(result):
    """The policy of a run that hardly learns is close to the one that sampled the last batches."""
    _, training, state = evaluation.load_run(result.path)
    policy = chosen.policies(training, [5, 6], state, newest=True)[0]
    found = evaluation.evaluate(policy, training, episodes=4000, seed=1)
    seen = result.metrics["undiscounted_cost"][0, :, 0].mean()
    assert found.undiscounted_cost[0].low - 0.25 < seen < found.undiscounted_cost[0].high + 0.25
    assert found.constrained_cost[0].mean < found.undiscounted_cost[0].mean
    other = evaluation.evaluate(policy, training, episodes=4000, seed=2)
    assert other.undiscounted_return.mean != found.undiscounted_return.mean
    assert other.undiscounted_return.low < found.undiscounted_return.high


def test_what_a_batch_really_has_is_said_at_the_start(tmp_path, capsys):
    apdo.train("pdo", "point-gather", out=tmp_path / "run", epochs=1, batch=100, environments=4, policy__hidden=(8,))
    assert (
        "120 samples in each epoch instead of 100, for whole episodes of 15 steps: 4 environments of 30 steps\n"
        in capsys.readouterr().out
    )


def test_a_policy_whose_batches_are_noisy_is_the_newest_and_says_why(tmp_path):
    sizes = {"replay_capacity": 100, "learner.minibatch": 8}
    experiment = settings.make_experiment("pd-ddpg", "point-gather", {"epochs": 1, "batch": 30} | sizes)
    result = runner.run(experiment, tmp_path / "run", quiet=True)
    assert result.best == []
    assert "best" not in runs.read_description(result.path)
    assert result.policy.about == (
        "the newest policy, after 1 epoch; batches drawn with noise say nothing of which is best"
    )


def test_an_existing_folder_is_refused_and_left_alone(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "precious").write_text("mine")
    with pytest.raises(apdo.InvalidInput, match="exists already"):
        apdo.train("pdo", "point-gather", out=tmp_path / "run", quiet=True, epochs=1, batch=15)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["precious"]


def test_a_nan_stops_the_run_with_the_last_good_state_saved_and_the_quantity_named(tmp_path):
    """A task whose reward breaks in the third step, put in the place of point-gather."""
    experiment = settings.make_experiment("pdo", "point-gather", {"epochs": 3, "batch": 300})
    broken = settings.Experiment(
        "pdo", "reach", experiment.settings, experiment.algorithm_config, Reach(reward_after=2)
    )
    with pytest.raises(apdo.NumericalFailure, match="epoch 0, seed 0: the sampled reward is not finite") as caught:
        runner.run(broken, tmp_path / "run", quiet=True)
    saved = checkpoint.path_of(tmp_path / "run", 0)
    assert str(saved) in str(caught.value)
    like = jax.eval_shape(lambda: loop.start(opening.training_of(broken), [0]))
    assert int(checkpoint.load(saved, like).epoch) == 0
    assert runs.read_description(tmp_path / "run")["status"] == "failed"


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "garbage"])
def test_a_damaged_checkpoint_is_refused_in_one_sentence(result, tmp_path, damage):
    whole = checkpoint.latest(result.path).read_bytes()
    middle = len(whole) // 2
    broken = {
        "flip": whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :],
        "truncate": whole[:middle],
        "empty": b"",
        "garbage": b"not a checkpoint" * 100,
    }[damage]
    path = tmp_path / "epoch-000004.npz"
    path.write_bytes(broken)
    training = opening.training_of(settings.Experiment.restore(runs.read_description(result.path)["config"]))
    like = jax.eval_shape(lambda: loop.start(training, [5, 6]))
    with pytest.raises(apdo.InvalidInput, match=r"epoch-000004\.npz"):
        checkpoint.load(path, like)


def test_a_checkpoint_of_other_shapes_is_refused(result):
    experiment = settings.make_experiment(
        "apdo",
        "point-gather",
        {"policy.hidden": (4,), "off_policy.learner.actor_hidden": (4,), "batch": 300, "epochs": 4, "k_adj": 1},
    )
    like = jax.eval_shape(lambda: loop.start(opening.training_of(experiment), [5, 6]))
    with pytest.raises(apdo.InvalidInput, match=r"this run's settings make it|not a whole checkpoint"):
        checkpoint.load(checkpoint.latest(result.path), like)


def test_the_newest_checkpoint_is_the_one_with_the_highest_epoch(tmp_path):
    """Not the last in alphabetical order: 1000000 comes after 999999."""
    (tmp_path / "checkpoints").mkdir()
    for epoch in (999_999, 1_000_000, 5):
        (tmp_path / "checkpoints" / f"epoch-{epoch:06d}.npz").touch()
    assert checkpoint.latest(tmp_path).name == "epoch-1000000.npz"


def test_writer_and_reader_agree_on_the_format():
    assert records.FORMAT == runs.FORMAT


@pytest.mark.parametrize(
    ("algorithm", "changes"),
    [
        ("apdo", {"off_policy.learner.minibatch": 2**31 - 1}),
        ("apdo", {"off_policy.members": 1000, "off_policy.learner.minibatch": 10**6}),
        ("pd-ddpg", {"learner.minibatch": 2**31 - 1}),
    ],
)
def test_what_an_off_policy_learner_would_draw_at_once_counts_as_memory(algorithm, changes):
    """Found by random command lines: such a run was killed by the system."""
    experiment = settings.make_experiment(algorithm, "point-gather", {"batch": 30} | changes)
    with pytest.raises(InvalidInput, match="GB of memory"):
        memory.check(opening.training_of(experiment), [0])
