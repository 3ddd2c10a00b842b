"""The command line as a user meets it."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest

import apdo
from apdo import options
from apdo.cli import train
from apdo.experiment import settings
from apdo.off_policy import ddpg
from command_line import call

TINY = ["--epochs", "2", "--batch", "150", "--critic.passes", "1", "--policy.hidden", "8", "--critic.hidden", "8"]


def test_train_evaluate_and_plot_in_turn(capsys, tmp_path):
    run = str(tmp_path / "run")
    status, out, _ = call(capsys, "train", "pdo", "point-gather", "--out", run, "--seeds", "2", *TINY)
    assert status == 0
    assert re.search(r"epoch 2/2 .*return .*cost .*0\.2.*multiplier .*steps/s", out)
    assert "150 samples in each epoch: 10 environments of 15 steps" in out
    assert (
        len(re.findall(r"best:    seed \d, the policy of epoch \d, .*: discounted return .* ± .*, cost .* ± ", out))
        == 2
    )
    assert run in out
    assert f"{run}/curves.png" in out
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 4
    status, out, _ = call(capsys, "evaluate", run, "--episodes", "50")
    assert status == 0
    assert out.count("stochastic") == out.count("deterministic") == 2
    assert "limit 0.2" in out
    assert out.count("under the limit?") == 2
    line = r"seed \d: the policy of epoch \d, .*; --newest takes the last one\n  training saw: "
    assert len(re.findall(line, out)) == 2
    _, out, _ = call(capsys, "evaluate", run, "--episodes", "20", "--newest", "--stochastic")
    assert out.count(": the newest policy, after 2 epochs\n") == 2
    status, out, _ = call(capsys, "evaluate", run, "--episodes", "20", "--deterministic", "--video", f"{run}/film.gif")
    assert status == 0
    assert "stochastic" not in out
    assert (tmp_path / "run" / "film.gif").read_bytes().startswith(b"GIF89a")
    status, out, err = call(capsys, "evaluate", run, "--video", f"{run}/film.avi")
    assert status == 2
    assert ".gif or an .mp4" in err
    status, out, _ = call(capsys, "export", run, f"{run}/policy.npz", "--seed", "1")
    assert status == 0
    assert re.fullmatch(rf"{run}/policy\.npz: the policy of epoch \d, .*; --newest takes the last one\n", out)
    stored, policy = np.load(tmp_path / "run" / "policy.npz"), apdo.load(run, 1)
    assert str(stored["kind"]) == "gaussian"
    np.testing.assert_array_equal(stored["log_std"], policy.arrays()["log_std"])
    status, out, _ = call(capsys, "export", run, f"{run}/newest.npz", "--newest")
    assert (status, out) == (0, f"{run}/newest.npz: the newest policy, after 2 epochs\n")
    stored = np.load(tmp_path / "run" / "newest.npz")
    np.testing.assert_array_equal(stored["weight_0"], apdo.load(run, newest=True).arrays()["weight_0"])
    status, _, err = call(capsys, "export", run, f"{run}/policy.npz", "--seed", "2")
    assert status == 2
    assert "has the seeds 0 to 1" in err
    status, out, _ = call(capsys, "plot", run, "--out", str(tmp_path / "picture.svg"))
    assert status == 0
    assert (tmp_path / "picture.svg").read_text().startswith("<?xml")
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "finished"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["trian"], "did you mean 'train'"),
        (["train"], "needs an algorithm and an environment"),
        (["train", "apod", "point-gather"], "did you mean 'apdo'"),
        (["train", "pdo", "point-gahter"], "did you mean 'point-gather'"),
        (["train", "pdo", "point-gather", "--k-adj", "3"], "unknown option"),
        (["train", "apdo", "point-gather", "--k-adk", "3"], "did you mean 'k_adj'"),
        (["train", "apdo", "point-gather", "--k-adj", "50"], "at most 49"),
        (["train", "pdo", "point-gather", "--limits", "nan"], "number"),
        (["train", "pdo", "point-gather", "--limits", "inf"], "finite"),
        (["train", "pdo", "point-gather", "--limits", "0.1,0.2"], "1 cost"),
        (["train", "pdo", "point-gather", "--seeds", "0"], "greater than 0"),
        (["train", "pdo", "point-gather", "--epochs", "-1"], "between 0 and"),
        (["train", "pdo", "point-gather", "--samples", "0"], "greater than 0"),
        (["train", "apdo", "point-gather", "--explore", "perhaps"], "options begin with --"),
        (["train", "apdo", "point-gather", "--explore=perhaps"], "true or false"),
        (["train", "pdo", "point-gather", "--epochs"], "whole number"),
        (["train", "pdo", "point-gather", "--batch", "10"], "smaller than one episode"),
        (["train", "pdo", "point-gather", "--out", "."], "exists already"),
        (["train", "pdo", "point-gather", "extra"], "options begin with --"),
        (["evaluate"], "needs a run folder"),
        (["evaluate", "nowhere"], "no run folder"),
        (["evaluate", ".", "--episodes", "many"], "whole number"),
        (["evaluate", ".", "--epsiodes", "3"], "did you mean '--episodes'"),
        (["evaluate", ".", "--video"], "needs a value"),
        (["export"], "needs a run folder and a file"),
        (["export", "nowhere", "policy.npz"], "no run folder"),
        (["export", "nowhere", "policy.npz", "--sede", "3"], "did you mean '--seed'"),
        (["plot"], "at least one run folder"),
        (["plot", "nowhere"], "no run folder"),
        (["list", "everything"], "takes no arguments"),
        (["list", "--everything"], "takes no arguments"),
        (["train", "pdo", "point-gather", "--"], "options begin with --"),
        (["train", "apdo", "point-gather", "--off-policy", "3"], "has options of its own"),
        (["train", "pdo", "point-gather", "--out"], "--out needs a value"),
    ],
)
def test_bad_input_gets_one_sentence_and_exit_status_2(capsys, arguments, said):
    status, out, err = call(capsys, *arguments)
    assert status == 2
    assert out == ""
    assert said in err
    assert err.count("\n") == 1
    assert "Traceback" not in err


def test_help_all_names_every_option_with_its_default_and_source(capsys):
    _, out, _ = call(capsys, "train", "apdo", "point-gather", "--help-all")
    for expected in (
        "--k-adj",
        "--off-policy.learner.dual-rate",
        "--primal.clip",
        "--limits",
        "--clip-actions",
        "30000",
        "the paper",
    ):
        assert expected in out, expected


def test_help_all_shows_the_defaults_that_are_in_force_and_who_chose_them(capsys):
    """Those of the whole configuration, not of its parts: APDO's learner is not the appendix's."""
    _, out, _ = call(capsys, "train", "apdo", "gridworld", "--help-all")
    lines = re.sub(r"\n {6,}", " ", out).splitlines()
    config = settings.make_experiment("apdo", "gridworld").algorithm_config
    for name, value in options.flatten(config).items():
        text = ",".join(str(part) for part in value) if isinstance(value, tuple) else str(value)
        own = [line for line in lines if line.startswith(f"    --{name.replace('_', '-')} ")]
        assert any(f"[{text};" in line for line in own), name

    def source(name):
        return next(line for line in lines if line.startswith(f"    --{name} ")).split("; ")[-1].partition("]")[0]

    assert config.off_policy.learner.minibatch != ddpg.Learner().minibatch
    assert source("off-policy.learner.minibatch") == "our choice"
    assert source("off-policy.learner.actor-hidden") == "the paper"


@pytest.mark.parametrize(
    ("words", "explores"),
    [
        (["--explore"], True),
        (["--explore", "true"], True),
        (["--explore=true"], True),
        (["--explore", "False"], False),
        (["--no-explore"], False),
        (["--explore", "no"], False),
        ([], None),
    ],
)
def test_what_is_so_or_not_may_be_said_with_a_word_after_it(words, explores):
    given = train.COMMAND.read(["apdo", "two-state", *words, "--seeds", "2"])
    assert given.changes == {"seeds": "2"} | ({} if explores is None else {"explore": explores})


def test_list_names_algorithms_environments_and_presets(capsys):
    _, out, _ = call(capsys, "list")
    for expected in ("trpo", "pdo", "cpo", "pd-ddpg", "apdo", "point-gather", "paper", "demo"):
        assert expected in out


def test_help_answers_without_loading_jax():
    code = "import sys; from apdo.cli import main; main(['--help']); sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("command", ["rerun", "solve", "resume", "evaluate", "plot", "dual"])
def test_an_empty_name_is_answered_in_one_sentence(command, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    status, _, said = call(capsys, command, "")
    assert status == 2
    assert said.startswith("apdo: ")
    assert said.count("\n") == 1


def test_more_updates_than_can_be_counted_are_refused(capsys, tmp_path):
    given = ("train", "pd-ddpg", "point-gather", "--batch", "50000", "--out", str(tmp_path / "run"))
    for updates, told in (("99999999999999999999", "at most 1e+06"), ("100000", "more than can be counted")):
        status, _, said = call(capsys, *given, "--updates", updates)
        assert status == 2
        assert told in said
