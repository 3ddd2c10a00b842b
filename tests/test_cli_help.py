"""The screens of --help: what they show, how long they are, and how soon they come."""

import re
import subprocess
import sys

import pytest

from apdo import options
from apdo.algorithms import ALGORITHMS
from apdo.cli import helping
from apdo.cli.program import NAMES, PROGRAM
from apdo.experiment import settings
from command_line import call

ROW = re.compile(r"    --([\w.-]+) (\S*) .*\[(.*)\]$")


def rows(screen):
    """Option ↦ (default, origin), of the lines of --help that have a configuration's options."""
    return {found[1]: (found[2], found[3]) for line in screen.splitlines() if (found := ROW.match(line))}


def helped(capsys, *words):
    status, out, err = call(capsys, *words)
    assert (status, err) == (0, "")
    return out


@pytest.fixture(autouse=True)
def usual_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "118")


@pytest.mark.parametrize("command", NAMES)
def test_the_help_of_every_command_fits_a_screen_and_names_what_the_command_takes(command, capsys):
    out = helped(capsys, command, "--help")
    assert len(out.splitlines()) <= helping.LINES
    assert max(len(line) for line in out.splitlines()) <= 118
    for option in PROGRAM.find(command).options:
        assert option.spelling in out


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("environment", ["point-gather", "garnet", "queueing", "wind-turbine"])
def test_the_help_of_train_fits_a_screen_whatever_is_trained(algorithm, environment, capsys):
    out = helped(capsys, "train", algorithm, environment, "--help")
    assert len(out.splitlines()) <= helping.LINES
    assert {"samples", "seeds"} < set(rows(out))


def test_a_narrow_terminal_gets_no_line_that_is_too_long(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = helped(capsys, "train", "apdo", "point-gather", "--help")
    assert max(len(line) for line in out.splitlines()) <= 80


@pytest.mark.parametrize(
    ("words", "preset", "changes"),
    [
        (["apdo", "point-gather"], None, {}),
        (["apdo", "point-gather"], "paper", {}),
        (["apdo", "point-gather"], "fast", {}),
        (["pdo", "gridworld"], "demo", {}),
        (["ppo-lag", "navigation"], None, {}),
        (["cpo", "wind-turbine"], None, {"samples": "100000", "seeds": "3"}),
    ],
)
@pytest.mark.parametrize("how", ["--help", "--help-all"])
def test_the_defaults_that_help_shows_are_those_of_the_run_that_would_start(words, preset, changes, how, capsys):
    given = [word for name, value in changes.items() for word in (f"--{name}", value)]
    given += ["--preset", preset] if preset else []
    out = helped(capsys, "train", *words, *given, how)
    experiment = settings.make_experiment(words[0], words[1], changes, preset)
    held = options.flatten(experiment.settings) | options.flatten(experiment.algorithm_config)
    limits = ",".join(f"{limit:g}" for limit in experiment.problem().limits)
    held |= options.flatten(experiment.environment_config) | {"limits": limits}
    if how == "--help":
        found = rows(out)
        assert len(found) > 12
        for name, (value, _) in found.items():
            assert value == shown(held[name.replace("-", "_")]), name
    else:
        lines = re.sub(r"\n {6,}", " ", out).splitlines()
        for name, value in held.items():
            # Another line may have the option of the same name of a choice that is not made.
            own = [line for line in lines if line.startswith(f"    --{name.replace('_', '-')} ")]
            assert any(f"[{shown(value)};" in line for line in own), name


def shown(value):
    return ",".join(str(part) for part in value) if isinstance(value, tuple) else str(value)


def test_help_says_who_has_chosen_a_default(capsys):
    found = rows(helped(capsys, "train", "apdo", "point-gather", "--preset", "paper", "--seeds", "3", "--help"))
    assert found["k-adj"] == ("5", "preset paper")
    assert found["epochs"] == ("150", "preset paper")
    assert found["seeds"] == ("3", "as given")
    assert found["seed"] == ("0", "our choice")
    assert found["samples"][1] == "follows from the others"
    assert found["limits"] == ("0.2", "the environment")
    assert rows(helped(capsys, "train", "apdo", "point-gather", "--help"))["k-adj"] == ("39", "suits the task")
    assert rows(helped(capsys, "train", "apdo", "gridworld", "--help"))["k-adj"] == ("4", "our choice")
    assert rows(helped(capsys, "train", "rcpo", "two-state", "--help"))["dual-step"] == ("0.02", "rcpo")


def test_help_all_says_who_has_chosen_an_option_of_a_nested_part(capsys):
    out = helped(capsys, "train", "apdo", "point-gather", "--preset", "paper", "--help-all")
    lines = re.sub(r"\n {6,}", " ", out).splitlines()
    [radius] = [line for line in lines if "--primal.radius" in line and "(with --primal trpo)" in line]
    assert "[0.01; preset paper]" in radius
    assert any("--primal.clip" in line and "[0.2; the PPO paper]" in line for line in lines)


def test_help_says_what_suits_an_environment_even_if_that_cannot_be_looked_at(capsys):
    found = rows(helped(capsys, "train", "pdo", "Nowhere-v0", "--preset", "demo", "--help"))
    assert found["constrain"] == ("total", "suits Nowhere-v0")
    assert found["batch"] == ("10000", "preset demo")


def test_help_answers_for_a_command_line_that_is_not_yet_right(capsys):
    out = helped(capsys, "train", "apdo", "point-gather", "--preset", "paper", "--k-adj", "5000", "--help")
    assert rows(out)["k-adj"] == ("5", "preset paper")
    assert rows(helped(capsys, "train", "apdo", "point-gather", "--k-adk", "3", "--help"))["k-adj"][0] == "39"


def test_a_preset_that_is_none_gets_one_sentence_with_the_nearest_instead_of_help(capsys):
    status, out, err = call(capsys, "train", "apdo", "point-gather", "--preset", "papre", "--help")
    assert (status, out) == (2, "")
    assert err == "apdo: unknown preset 'papre'; did you mean 'paper'?\n"


def test_help_all_shows_the_options_that_the_first_screen_leaves_out(capsys):
    first, whole = helped(capsys, "sweep", "--help"), helped(capsys, "sweep", "--help-all")
    assert "  --partition NAME" not in first
    assert "  --partition NAME         Slurm's partition" in whole
    assert "--learner.critic-hidden" not in helped(capsys, "dual", "--help")
    assert "--learner.critic-hidden" in helped(capsys, "dual", "--help-all")


def test_a_misspelt_option_of_train_that_no_configuration_has_finds_its_nearest_too(capsys):
    status, _, err = call(capsys, "train", "pdo", "two-state", "--prest", "demo")
    assert status == 2
    assert "did you mean 'preset'" in err


def test_an_option_may_come_before_the_name_it_is_about(capsys, tmp_path):
    before = call(capsys, "evaluate", "--episodes", "3", str(tmp_path))
    assert before == call(capsys, "evaluate", str(tmp_path), "--episodes", "3")
    assert before[0] == 2


def test_a_switch_of_a_command_takes_true_or_false_and_nothing_else(capsys, tmp_path):
    status, _, err = call(capsys, "resume", str(tmp_path), "--quiet=perhaps")
    assert (status, err) == (2, "apdo: --quiet must be true or false, not 'perhaps'.\n")


def test_the_overview_comes_within_a_fifth_of_a_second():
    """Of processor time, which other work on the machine does not lengthen much; the best of several."""
    code = "import sys, time; from apdo.cli import main; main(['--help']); sys.stderr.write(str(time.process_time()))"
    took = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr)
        for _ in range(5)
    ]
    assert min(took) < 0.2
