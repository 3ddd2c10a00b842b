"""Trainings that begin with what an earlier run has learned."""

import dataclasses
import shutil
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

import apdo
from apdo import algorithms, envs, loop, objective, own, rollout
from apdo.algorithms import on_policy
from apdo.core import categorical, deterministic, gaussian, networks
from apdo.errors import Interrupted, InvalidInput
from apdo.experiment import checkpoint, chosen, evaluation, opening, runner, settings, together, warm_start
from apdo.policy import Policy
from apdo.report import runs
from problems import Reach

HIDDEN: dict[str, Any] = {"policy__hidden": (8,), "critic__hidden": (8,), "critic__passes": 2, "critic__minibatches": 4}
SMALL: dict[str, Any] = HIDDEN | {"epochs": 3, "batch": 200, "quiet": True}
ON_POLICY = [name for name, entry in algorithms.ALGORITHMS.items() if not entry.options]
ON_POLICY = [name for name in ON_POLICY if name not in ("pd-ddpg", "sac-lag")]


@dataclasses.dataclass(frozen=True)
class Line:
    """`Reach` as a user's own environment, without options."""

    horizon = 5
    horizon_terminates = True
    observation_size = 2
    action_size = 1
    discrete_actions = False
    discount = 0.99
    cost_names = ("push",)
    limits = (0.5,)

    def reset(self, key):
        return Reach().reset(key)

    def observe(self, state):
        return Reach().observe(state)

    def step(self, state, action, key):
        return Reach().step(state, action, key)


LINE = own.name_of(Line)


@pytest.fixture(scope="module")
def earlier(tmp_path_factory):
    """A run of two seeds whose policies have moved: a wide trust region, normalised observations."""
    folder = tmp_path_factory.mktemp("earlier") / "run"
    given: dict[str, Any] = SMALL | {
        "normalise": True,
        "seeds": 2,
        "seed": 4,
        "epochs": 6,
        "primal__radius": 0.2,
        "policy__bound": 2.0,  # as APDO has it
        "limits": 100.0,  # that nothing comes near: the best policy is one that earns more than a fresh one
    }
    return apdo.train("pdo", Line, out=folder, **given)


def specified(algorithm="pdo", environment=LINE, **changes):
    given = HIDDEN | {"normalise": True, "policy__bound": 2.0, "epochs": 6, "batch": 200} | changes
    return settings.make_experiment(
        algorithm, environment, {name.replace("__", "."): value for name, value in given.items()}
    )


def begun(experiment):
    training = opening.training_of(experiment)
    seeds = evaluation.seeds_of(experiment)
    found = warm_start.of(experiment, training, seeds)
    assert found is not None
    return training, found


def assert_same_tree(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


def drawn(training, state, seed):
    """The batch of the first epoch, collected by hand with the policy that `apdo.load` would give."""
    key = random.fold_in(random.fold_in(state.key[seed], 0), loop.COLLECT)

    def collect(network):
        def act(memory, observation, key):
            return network(observation).sample(key), memory

        shape = {"steps": training.steps, "environments": training.environments}
        return rollout.collect(training.environment, act, (), key, **shape)

    return collect


@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_every_on_policy_algorithm_acts_like_the_saved_policy(earlier, algorithm):
    more: dict[str, Any] = {"off_policy__learner__actor_hidden": (8,)} if algorithm == "apdo" else {}
    training, found = begun(specified(algorithm, start_from=str(earlier.path), seeds=2, **more))
    observations = random.normal(random.key(0), (20, 2))
    keys = random.split(random.key(1), 20)
    for i, saved in enumerate(earlier.policies):
        state = jax.tree.map(lambda leaf, i=i: leaf[i], found.state.algorithm)
        own = jax.vmap(lambda o, k, s=state: training.algorithm.act(training.config, s, (), o, k)[0])
        before = jax.vmap(lambda o, k, p=saved: p.network(o).sample(k))
        np.testing.assert_array_equal(own(observations, keys), before(observations, keys))
        assert_same_tree(state.statistics, saved.network.statistics)
        assert state.statistics.count > 0
    # The value functions of the newest policy, seen through the normalisation of the best one; TRPO has none of costs.
    assert found.about["values"] == (algorithm != "trpo")


def test_the_first_batch_is_drawn_by_the_saved_policy(earlier, tmp_path):
    given: dict[str, Any] = SMALL | {"normalise": True, "policy__bound": 2.0, "seeds": 2, "seed": 9, "epochs": 2}
    warm = apdo.train("focops", Line, out=tmp_path / "warm", start_from=earlier.path, **given)
    fresh = apdo.train("focops", Line, out=tmp_path / "fresh", **given)
    training, found = begun(specified("focops", seeds=2, seed=9, start_from=str(earlier.path)))
    for i, saved in enumerate(earlier.policies):
        batch = jax.jit(drawn(training, found.state, i))(saved.network)
        measured = objective.measure(training.problem, batch)
        np.testing.assert_allclose(warm.metrics["return"][i, 0], measured.undiscounted_return, rtol=1e-6)
        np.testing.assert_allclose(warm.metrics["cost"][i, 0], measured.cost, rtol=1e-6)
    assert (warm.metrics["return"][:, 0] > fresh.metrics["return"][:, 0] + 0.5).all()
    # The statistics go on: those of the earlier run's best epochs and of these two.
    counts = [policy.network.statistics.count for policy in earlier.policies]
    after = [policy.network.statistics.count for policy in warm.newest]
    np.testing.assert_allclose(after, np.asarray(counts) + 2 * training.problem.batch)


def test_value_functions_are_the_same_functions_of_raw_observations(earlier):
    _, found = begun(specified("cpo", start_from=str(earlier.path), seeds=2))
    observation, step = random.normal(random.key(2), (10, 2)), jnp.full(10, 2)
    for i, newest in enumerate(earlier.newest):
        state = jax.tree.map(lambda leaf, i=i: leaf[i], found.state.algorithm)
        ours = on_policy.learned_values(state)(observation, step)
        np.testing.assert_allclose(ours[:, 0], newest.value(observation, 2), rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(ours[:, 1:], newest.cost_value(observation, 2), rtol=1e-3, atol=1e-4)


def test_seeds_take_the_earlier_ones_in_turn_and_the_run_says_so(earlier, tmp_path):
    given: dict[str, Any] = SMALL | {"normalise": True, "policy__bound": 2.0, "seeds": 3, "epochs": 1}
    result = apdo.train("pdo", Line, out=tmp_path / "run", start_from=earlier.path, **given)
    description = runs.read_description(result.path)
    assert description["config"]["settings"]["start_from"] == str(earlier.path.resolve())
    told = description["started_from"]
    assert (told["source"], told["seeds"], told["values"]) == (str(earlier.path.resolve()), [4, 5, 4], True)
    assert told["policies"] == [earlier.policies[i].about for i in (0, 1, 0)]
    first = checkpoint.load(
        checkpoint.path_of(result.path, 0), begun(specified(seeds=3, start_from=str(earlier.path)))[1].state
    )
    for i, j in enumerate((0, 1, 0)):
        own = jax.tree.map(lambda leaf, i=i: leaf[i], first.algorithm.policy)
        assert_same_tree(own, earlier.policies[j].network.network)


def test_a_loaded_policy_serves_every_seed_and_is_not_used_up(earlier, tmp_path):
    policy = apdo.load(earlier.path, seed=5, newest=True)
    given: dict[str, Any] = SMALL | {"normalise": True, "policy__bound": 2.0, "seeds": 2, "epochs": 1}
    result = apdo.train("cpo", Line, out=tmp_path / "run", start_from=policy, **given)
    told = runs.read_description(result.path)["started_from"]
    assert told["source"] == "a given policy"
    assert told["policies"] == [policy.about] * 2
    assert told["values"] is True
    assert np.isfinite(policy(np.zeros(2))).all()
    # The checkpoint before epoch 0 has everything: nobody asks for the object again.
    warm_start._given.clear()
    assert len(apdo.resume(result.path, epochs=2, quiet=True).metrics["return"][0]) == 2
    with pytest.raises(InvalidInput, match="Python object"):
        opening.begin(settings.Experiment.restore(runs.read_description(result.path)["config"]), tmp_path / "again")


class Stopping(runner.Stop):
    """A signal in the first epoch."""

    @property
    def asked(self):
        return True


@pytest.mark.parametrize("when", ["after an epoch", "before the first"])
def test_a_run_goes_on_bit_for_bit_without_the_earlier_run(earlier, tmp_path, monkeypatch, when):
    source = tmp_path / "source"
    shutil.copytree(earlier.path, source)
    given: dict[str, Any] = SMALL | {"normalise": True, "policy__bound": 2.0}
    whole = apdo.train("pdo", Line, out=tmp_path / "whole", start_from=source, **given)
    with monkeypatch.context() as patched:
        if when == "after an epoch":
            patched.setattr(runner, "Stop", Stopping)
            wanted = Interrupted
        else:
            wanted = KeyboardInterrupt

            def interrupt(*_):
                raise KeyboardInterrupt

            patched.setattr(runner.Runner, "_advance", interrupt)
        with pytest.raises(wanted):
            apdo.train("pdo", Line, out=tmp_path / "cut", start_from=source, **given)
    shutil.rmtree(source)
    result = apdo.resume(tmp_path / "cut", quiet=True)
    for name, values in whole.metrics.items():
        np.testing.assert_array_equal(result.metrics[name], values, err_msg=name)
    with np.load(checkpoint.latest(whole.path)) as ours, np.load(checkpoint.latest(result.path)) as theirs:
        for name in ours.files:
            np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


def test_without_any_checkpoint_it_begins_again_only_from_the_same_policy(earlier, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(earlier.path, source)
    given: dict[str, Any] = SMALL | {"normalise": True, "policy__bound": 2.0, "epochs": 2}
    whole = apdo.train("pdo", Line, out=tmp_path / "run", start_from=source, **given)
    shutil.rmtree(whole.path / "checkpoints")
    again = apdo.resume(whole.path, quiet=True)
    np.testing.assert_array_equal(again.metrics["return"], whole.metrics["return"])
    shutil.rmtree(whole.path / "checkpoints")
    shutil.rmtree(source)
    apdo.train("pdo", Line, out=source, seed=77, **given)
    with pytest.raises(InvalidInput, match="is not what it was"):
        apdo.resume(whole.path, quiet=True)


def test_runs_that_start_fresh_share_no_program_with_those_that_do_not(earlier, tmp_path):
    trained = [specified(seed=seed, start_from=source) for seed, source in ((0, ""), (1, ""), (2, str(earlier.path)))]
    opened = [opening.begin(one, tmp_path / str(i)) for i, one in enumerate(trained)]
    assert sorted(len(group) for group in together.groups(opened)) == [1, 2]
    for one in opened:
        one.record.close("interrupted")
        one.record.release()


@pytest.mark.parametrize(
    ("algorithm", "environment", "changes", "said"),
    [
        ("sac-lag", LINE, {"policy__hidden": None, "critic__hidden": None}, "sac-lag cannot start from"),
        (
            "pdo",
            LINE,
            {"policy__hidden": (8, 4)},
            r"layers of 8, and .* 8,4; give --policy.hidden 8\.",
        ),
        ("pdo", LINE, {"policy__bound": 0.0}, r"bounded by 2, .* by 0 .*give --policy.bound 2\."),
        ("pdo", LINE, {"normalise": False}, r"normalised observations; give --normalise true\."),
        ("pdo", "point-gather", {}, "sees 2 numbers, and this environment shows 29"),
        ("pdo", "gridworld", {}, "sees 2 numbers"),
    ],
)
def test_what_does_not_fit_is_said_in_a_sentence_before_anything_is_written(
    earlier, tmp_path, algorithm, environment, changes, said
):
    given = HIDDEN | {"policy__bound": 2.0, "normalise": True} | changes
    if algorithm == "sac-lag":
        given = {}
    names = {name.replace("__", "."): value for name, value in given.items() if value is not None}
    wanted = settings.make_experiment(algorithm, environment, names | {"epochs": 1, "start_from": str(earlier.path)})
    with pytest.raises(InvalidInput, match=said) as error:
        runner.run(wanted, tmp_path / "run", quiet=True)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("source", "said"),
    [("nowhere", "there is no run folder"), (".", "no run.json"), ("object:policy 0", "Python object")],
)
def test_a_source_that_is_not_there(tmp_path, monkeypatch, source, said):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match=said):
        apdo.train("pdo", "gridworld", epochs=1, quiet=True, start_from=source, out=tmp_path / "run")
    with pytest.raises(InvalidInput, match="not a dict"):
        apdo.train("pdo", "gridworld", epochs=1, quiet=True, start_from={})  # pyright: ignore[reportArgumentType]


LAYERS = networks.mlp(random.key(0), 2, (8,), 1)


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (Policy(deterministic.Policy(mean=LAYERS), 2), "is a deterministic one, and a Gaussian one is needed"),
        (
            Policy(categorical.Policy(logits=LAYERS), 2, discrete=True),
            "are choices, and this environment's are vectors",
        ),
        (
            Policy(gaussian.Policy(mean=networks.mlp(random.key(0), 2, (8,), 3), log_std=jnp.zeros(3)), 2),
            "has 3 numbers in an action, and this environment 1",
        ),
    ],
)
def test_a_policy_of_another_kind_is_refused(tmp_path, policy, said):
    with pytest.raises(InvalidInput, match=f"pdo cannot start from a given policy: .*{said}"):
        apdo.train("pdo", Line, out=tmp_path / "run", start_from=policy, **SMALL)


def test_actions_of_the_host_must_mean_the_same():
    gymnasium = pytest.importorskip("gymnasium", reason="Gymnasium is not installed")
    from host_environments import Counting

    class Other(Counting):
        def __init__(self):
            super().__init__()
            self.action_space = gymnasium.spaces.Box(-5.0, 5.0, (2,), np.float32)

    def specified(environment, **changes):
        name, task, _ = envs.of_object(environment)
        given = {"policy.hidden": (8,), "epochs": 1, "batch": 30, "max_episode_steps": 3, "limits": 1.0} | changes
        return settings.make_experiment("pdo", name, given, task=task)

    training = opening.training_of(specified(Counting))
    saved = chosen.policies(training, [0], loop.start(training, [0]), newest=True)[0]
    source = warm_start.name_of(saved)
    training, found = begun(specified(Counting, start_from=source))
    assert found.about["values"] is True
    assert_same_tree(
        found.state.algorithm.inner.policy.mean.weights[0][0], saved.network.network.network.mean.weights[0]
    )
    with pytest.raises(InvalidInput, match="mapped to -2, 0 to 2, 1, and this environment's mapped to -5, -5 to 5, 5"):
        begun(specified(Other, start_from=source))
