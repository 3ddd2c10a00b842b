"""Options: names, values, bounds, presets, and that each of them is read by somebody."""

import ast
import dataclasses
from pathlib import Path

import pytest

import apdo
from apdo import algorithms, envs, options
from apdo.algorithms import natural_steps
from apdo.core import dual
from apdo.experiment import multipliers, settings
from apdo.experiment.presets import PRESETS
from apdo.off_policy import ddpg

SOURCE = Path(apdo.__file__).parent


def configurations():
    yield settings.Settings()
    yield multipliers.Config()
    yield from (algorithms.find(name).Config() for name in algorithms.ALGORITHMS)
    yield from (envs.find(name)() for name in envs.ENVIRONMENTS)


def nested(config):
    yield config
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            for choice in (field.metadata["choices"] or {"": type(value)}).values():
                yield from nested(choice())


def test_every_option_says_what_it_means_and_where_its_default_comes_from():
    for config in configurations():
        for part in nested(config):
            for field in dataclasses.fields(part):
                assert field.metadata["help"], (part, field.name)
                assert field.metadata["source"], (part, field.name)


def test_every_option_is_read_by_somebody():
    """A field that nobody reads is a setting that does nothing."""
    read = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                read.add(node.attr)
    for config in configurations():
        for part in nested(config):
            for field in dataclasses.fields(part):
                assert field.name in read, f"{type(part).__module__}.{type(part).__name__}.{field.name}"


def test_flattened_options_restore_the_configuration():
    changes = {"primal": "ppo", "primal.clip": 0.1, "k_adj": 7, "off_policy.learner.minibatch": 32, "bomb_penalty": 1.0}
    experiment = settings.make_experiment("apdo", "point-gather", changes)
    again = settings.Experiment.restore(experiment.describe())
    assert again == experiment
    assert again.algorithm_config.primal.clip == 0.1
    assert again.environment_config.bomb_penalty == 1.0


def test_values_may_come_as_text_from_the_command_line():
    changes = {
        "batch": "3e3",
        "limits": "0.25",
        "policy.hidden": "16,8",
        "clip_actions": "true",
        "primal.radius": "0.02",
    }
    experiment = settings.make_experiment("pdo", "point-gather", changes)
    assert experiment.settings.batch == 3000
    assert experiment.settings.limits == (0.25,)
    assert experiment.algorithm_config.policy.hidden == (16, 8)
    assert experiment.environment_config.clip_actions is True
    assert experiment.algorithm_config.primal.radius == 0.02


@pytest.mark.parametrize(
    ("algorithm", "environment", "changes", "preset", "said"),
    [
        ("apod", "point-gather", {}, None, "did you mean 'apdo'"),
        ("apdo", "point-gahter", {}, None, "did you mean 'point-gather'"),
        ("apdo", "point-gather", {"k_adk": 3}, None, "did you mean 'k_adj'"),
        ("apdo", "point-gather", {"primal.radios": 3}, None, "did you mean 'primal.radius'"),
        ("apdo", "point-gather", {"dual_step.x": 3}, None, "unknown option"),
        ("apdo", "point-gather", {}, "papr", "did you mean 'paper'"),
        ("pdo", "point-gather", {"primal": "pop"}, None, "did you mean 'ppo'"),
        ("pdo", "point-gather", {"values": "both"}, None, "separate"),
        ("pdo", "point-gather", {"limits": "inf"}, None, "finite"),
        ("pdo", "point-gather", {"limits": "nan"}, None, "number"),
        ("pdo", "point-gather", {"limits": "0.2,0.3"}, None, "1 cost"),
        ("pdo", "point-gather", {"limits": "much"}, None, "numbers with commas"),
        ("pdo", "point-gather", {"seeds": 0}, None, "greater than 0"),
        ("pdo", "point-gather", {"seeds": -3}, None, "greater than 0"),
        ("pdo", "point-gather", {"epochs": "-1"}, None, "between 0 and"),
        ("pdo", "point-gather", {"samples": 0}, None, "greater than 0"),
        ("pdo", "point-gather", {"epochs": "2.5"}, None, "whole number"),
        ("pdo", "point-gather", {"epochs": None}, None, "whole number"),
        ("pdo", "point-gather", {"batch": 14}, None, "smaller than one episode"),
        ("pdo", "point-gather", {"primal.radius": -1}, None, "greater than 0"),
        ("pdo", "point-gather", {"trace": 1.5}, None, "between 0.0 and 1.0"),
        ("cpo", "point-gather", {"safety": 1.5}, None, "between 0.0 and 1.0"),
        ("cpo", "point-gather", {"safety_half_life": 0}, None, "greater than 0"),
        ("trpo", "point-gather", {"safety": 0.9}, None, "unknown option"),
        ("apdo", "point-gather", {"epochs": 5, "k_adj": 5}, None, "at most 4"),
        ("apdo", "point-gather", {"off_policy": "ppo"}, None, "options of its own"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_sentence(algorithm, environment, changes, preset, said):
    with pytest.raises(apdo.InvalidInput, match=said) as caught:
        settings.make_experiment(algorithm, environment, changes, preset)
    message = str(caught.value)
    assert "\n" not in message
    assert message[-1] in ".?"


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("algorithm", algorithms.ALGORITHMS)
def test_every_preset_fits_every_algorithm_that_it_speaks_of_and_is_refused_for_others(algorithm, preset):
    if not PRESETS[preset].options(algorithm):
        with pytest.raises(
            apdo.InvalidInput, match=f"'{preset}' has nothing for {algorithm}; it is for .*apdo"
        ) as caught:
            settings.make_experiment(algorithm, "point-gather", {}, preset)
        assert "\n" not in str(caught.value)
        return
    experiment = settings.make_experiment(algorithm, "point-gather", {}, preset)
    chosen = {**options.flatten(experiment.settings), **options.flatten(experiment.algorithm_config)}
    given = dict(PRESETS[preset].options(algorithm))
    asked = given.pop("samples", None)
    for name, value in given.items():
        assert chosen[name] == value, name
    if asked is not None and "epochs" not in given:
        assert asked <= chosen["samples"] < asked + experiment.problem().batch


def test_the_preset_of_the_paper_has_the_numbers_of_its_supplement():
    experiment = settings.make_experiment("apdo", "point-gather", {}, "paper")
    config, learner = experiment.algorithm_config, experiment.algorithm_config.off_policy.learner
    assert (experiment.settings.batch, experiment.problem().limits) == (50_000, (0.2,))
    assert (experiment.problem().discount, experiment.problem().cost_discount) == (0.995, 0.995)
    assert experiment.problem().horizon == 15
    assert (config.policy.hidden, config.critic.hidden) == ((64, 32), (64, 32))
    assert (config.primal.radius, config.trace, config.dual_step, config.k_adj) == (0.01, 0.95, 0.1, 5)
    assert (learner.critic_hidden, learner.actor_hidden) == ((100, 100), (64, 32))
    assert (learner.critic_rate, learner.actor_rate, learner.dual_rate) == (1e-3, 1e-3, 1e-2)
    assert (learner.minibatch, learner.target_rate, learner.dual_states) == (64, 0.001, "batch")
    assert (config.off_policy.iterations, config.replay_capacity) == (500_000, 1_000_000)
    assert (config.off_policy.members, config.off_policy.spread) == (1, 1.0)
    assert (config.adjust, config.explore, config.again_every) == ("dual", False, 0)
    # The dual step is the paper's: plain ascent on C - d, with nothing refused.
    assert (config.units, config.rule, config.margin, config.check) == ("own", dual.Ascent(), 0.0, False)
    # Nothing of what makes the learner dependable: those parts' class defaults are the appendix's.
    appendix = ddpg.Learner()
    for name in ("clock", "bound", "action_noise", "cloning", "last_rate", "averaged", "dual_states", "rule"):
        assert getattr(learner, name) == getattr(appendix, name), name


def test_a_batch_is_rounded_up_to_whole_episodes_and_split_over_the_environments_asked_for():
    assert settings.make_experiment("pdo", "point-gather", {"batch": 50_000}).shape() == (15, 3334)
    assert settings.make_experiment("pdo", "point-gather", {"batch": 100, "environments": 4}).shape() == (30, 4)
    assert settings.make_experiment("pdo", "point-gather", {"batch": 15, "environments": 64}).shape() == (15, 1)


def sized(horizon, **changes):
    return settings.make_experiment("pdo", "two-state", {"horizon": horizon} | changes).settings


@pytest.mark.parametrize(
    ("horizon", "batch", "episodes"),
    [(15, 5000, 334), (250, 5000, 20), (500, 5000, 10), (1000, 10_000, 10), (2500, 20_000, 8), (30_000, 30_000, 1)],
)
def test_a_batch_has_10_episodes_within_5000_and_20000_samples_and_never_less_than_one_episode(
    horizon, batch, episodes
):
    found = settings.make_experiment("pdo", "two-state", {"horizon": horizon})
    assert found.settings.batch == batch
    assert found.shape() == (horizon, episodes)


def test_samples_are_turned_into_the_fewest_whole_epochs_that_have_them():
    for samples in (1, 5010, 5011, 250_000, 10**6):
        found = sized(15, samples=samples)
        assert (found.epochs - 1) * 5010 < samples <= found.epochs * 5010 == found.samples
    # What environments side by side play besides counts too.
    found = sized(15, samples=1000, batch=100, environments=4)
    assert (found.epochs, found.samples) == (9, 9 * 120)


def test_explicit_epochs_win_over_samples_and_samples_over_the_epochs_of_a_preset():
    found = sized(15, samples=10**6, epochs=3)
    assert (found.epochs, found.samples) == (3, 3 * 5010)
    preset = settings.make_experiment("apdo", "point-gather", {"samples": 100_000}, "demo").settings
    assert (preset.epochs, preset.batch) == (10, 10_000)
    assert settings.make_experiment("apdo", "point-gather", {"epochs": 7}, "fast").settings.epochs == 7


@pytest.mark.parametrize(
    ("algorithm", "name", "kind"),
    [("sac-lag", "learner", "normalised-relu"), ("apdo", "off_policy.learner", "relu")],
)
def test_a_run_from_before_cost_critics_had_an_activation_of_their_own_keeps_that_of_the_rewards(algorithm, name, kind):
    described = settings.make_experiment(algorithm, "point-gather", {}).describe()
    assert described["algorithm_config"].pop(f"{name}.cost_activation") == "relu"
    found = settings.Experiment.restore(described).describe()["algorithm_config"]
    assert found[f"{name}.cost_activation"] == found[f"{name}.critic_activation"] == kind


def test_what_was_resolved_is_described_and_restored_as_it_is():
    experiment = settings.make_experiment("pdo", "point-gather", {"epochs": 10**9, "batch": 15_000})
    assert settings.Experiment.restore(experiment.describe()) == experiment


def test_a_choice_that_is_there_already_keeps_what_was_chosen_for_it():
    """PDO's trust region is wider than TRPO's own; to name the primal step must not narrow it."""
    plain = algorithms.find("pdo").Config()
    assert options.override(plain, {"primal": "trpo"}) == plain
    there = options.override(plain, {"primal": "ppo", "primal.clip": 0.1})
    assert options.override(there, {"primal": "ppo"}) == there
    assert options.override(there, {"primal": "trpo"}).primal == natural_steps.Trpo()


def test_the_number_of_environments_keeps_the_batch_that_was_asked_for_where_whole_episodes_allow_it():
    """By brute force over all numbers from 8 to 32."""
    for episodes in range(1, 400):
        n = settings.copies_near(16, episodes)
        assert min(8, episodes) <= n <= min(32, episodes)
        least = min(-(-episodes // k) * k for k in range(min(8, episodes), min(32, episodes) + 1))
        assert -(-episodes // n) * n == least
    assert [settings.copies_near(16, episodes) for episodes in (20, 32, 100, 160)] == [20, 16, 20, 16]


def test_a_gymnasium_batch_is_not_made_larger_by_the_number_of_copies():
    pytest.importorskip("gymnasium", reason="Gymnasium is not installed")
    costs = {"cost": "obs[0]", "limits": 1.0}
    assert settings.make_experiment("pdo", "Pendulum-v1", costs | {"batch": 4000}).shape() == (200, 20)
    assert settings.make_experiment("pdo", "Pendulum-v1", costs | {"batch": 3300}).problem().batch == 3400
    # What is asked for is done.
    wide = settings.make_experiment("pdo", "Pendulum-v1", costs | {"batch": 4000, "environments": 16})
    assert wide.shape() == (400, 16)


@pytest.mark.parametrize("environment", ["two-state", "gridworld"])
def test_a_finite_task_takes_a_limit_of_0_and_none_below(environment):
    assert settings.make_experiment("pdo", environment, {"limit": 0.0}).problem().limits == (0.0,)
    with pytest.raises(apdo.InvalidInput, match="limit must"):
        settings.make_experiment("pdo", environment, {"limit": -0.5})


def test_the_constrained_cost_is_discounted_unless_the_total_is_asked_for():
    assert settings.make_experiment("pdo", "point-gather").problem().cost_discount == 0.995
    assert settings.make_experiment("pdo", "point-gather", {"constrain": "total"}).problem().cost_discount == 1.0


def test_describe_names_the_kind_of_each_choice():
    config = options.override(algorithms.find("pdo").Config(), {"primal": "natural"})
    assert options.describe(config)["primal"]["kind"] == "natural"


def test_short_episodes_have_a_wider_trust_region_unless_someone_says_otherwise():
    """One nat for an episode of 15 steps; aliases and the paper's preset stand for what was published."""

    def radius(algorithm, preset=None, **changes):
        config = settings.make_experiment(algorithm, "point-gather", changes, preset=preset).algorithm_config
        return (config.search if algorithm == "cpo" else config.primal).radius

    assert radius("pdo") == radius("apdo") == radius("cpo") == pytest.approx(1.0 / 15.0)
    assert radius("pdo", **{"primal.radius": 0.03}) == 0.03
    assert radius("apdo", preset="paper") == radius("trpo-lag") == 0.01
    long = settings.make_experiment("pdo", "gridworld").algorithm_config
    assert long.primal.radius == 0.02
