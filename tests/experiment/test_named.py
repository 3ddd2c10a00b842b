"""Every algorithm that has a name in the field: aliases say what they stand for, all train everywhere and resume."""

import json
from typing import Any

import numpy as np
import pytest

import apdo
from apdo import algorithms, cli, options
from apdo.experiment import settings
from apdo.report import runs

NEW = ("focops", "cup", "pcpo", "p3o", "ipo", "crpo")
ALIASES = ("ppo-lag", "trpo-lag", "cppo-pid", "trpo-pid", "rcpo")
TINY: dict[str, Any] = {"policy__hidden": (4,), "critic__hidden": (4,), "critic__passes": 1, "critic__minibatches": 2}
QUICK: dict[str, Any] = {"primal__passes": 2, "primal__minibatches": 2}


def tiny(name: str) -> dict[str, Any]:
    return TINY | (QUICK if name not in ("pcpo", "crpo") else {})


SHRINKING = {"pcpo": {"anneal": 2.0}, "crpo": {}}
"""Steps that depend on how many there were before."""


@pytest.mark.parametrize("name", NEW)
def test_each_trains_on_choices_and_goes_on_as_if_it_had_not_stopped(name, tmp_path):
    shrinking = SHRINKING.get(name, {"primal__anneal": 2.0})
    given: dict[str, Any] = {"batch": 200, "seeds": 2, "quiet": True, **tiny(name), **shrinking}
    whole = apdo.train(name, "two-state", epochs=3, out=tmp_path / "whole", **given)
    apdo.train(name, "two-state", epochs=2, out=tmp_path / "parts", **given)
    parts = apdo.resume(tmp_path / "parts", epochs=3, quiet=True)
    for key, values in whole.metrics.items():
        np.testing.assert_array_equal(parts.metrics[key], values, err_msg=key)
    assert whole.metrics["cost"].shape == (2, 3, 1)


@pytest.mark.parametrize("name", NEW)
def test_each_trains_on_a_gymnasium_task_with_normalised_observations_and_two_limits(name, tmp_path):
    pytest.importorskip("gymnasium", reason="Gymnasium is not installed")
    from host_environments import Line

    result = apdo.train(
        name,
        Line,
        costs=["abs(next_obs[0])", "action[0] ** 2"],
        limits=(0.5, 0.3),
        max_episode_steps=6,
        batch=60,
        epochs=2,
        out=tmp_path / "run",
        quiet=True,
        **tiny(name),
    )
    assert result.metrics["cost"].shape == (1, 2, 2)
    assert all(np.isfinite(values).all() for values in result.metrics.values())


@pytest.mark.parametrize("name", ALIASES)
def test_an_alias_is_its_algorithm_with_its_options_which_the_users_override(name):
    alias = settings.make_experiment(name, "two-state")
    entry = algorithms.ALGORITHMS[name]
    spelt = settings.make_experiment("pdo", "two-state", entry.options)
    assert alias.algorithm_config == spelt.algorithm_config
    other = settings.make_experiment(name, "two-state", {"dual_step": 0.7, "margin": 0.25})
    assert (other.algorithm_config.dual_step, other.algorithm_config.margin) == (0.7, 0.25)
    chosen = options.flatten(other.algorithm_config)
    assert all(chosen[key] == value for key, value in entry.options.items() if key not in ("dual_step", "margin"))
    assert settings.Experiment.restore(json.loads(json.dumps(alias.describe()))) == alias


def test_help_lists_and_run_folders_say_what_an_alias_stands_for(tmp_path, capsys):
    said = "pdo --primal ppo --rule ascent --rule.most 20.0 --dual-step 0.02 --margin 0.0 --overshoot 0.0"
    assert algorithms.stands_for("rcpo") == said
    assert algorithms.stands_for("pdo") == ""
    for words in (["list"], ["train", "--help"], ["train", "rcpo", "--help"]):
        cli.main(words)
        assert said in " ".join(capsys.readouterr().out.split())
    apdo.train("rcpo", "two-state", batch=200, epochs=1, out=tmp_path / "run", quiet=True, **tiny("rcpo"))
    assert runs.read_description(tmp_path / "run")["stands_for"] == said
