"""Completion, asked for as the shells ask."""

import os
import shutil
import subprocess
import sys

import pytest

from apdo.algorithms import ALGORITHMS
from apdo.cli.program import NAMES
from apdo.envs import ENVIRONMENTS
from command_line import call


@pytest.fixture
def shell(tmp_path):
    """An environment in which `apdo` is this checkout's command."""
    folder = tmp_path / "bin"
    folder.mkdir()
    command = folder / "apdo"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m apdo.cli "$@"\n')
    command.chmod(0o755)
    return os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "JAX_PLATFORMS": "cpu"}


def asked(shell, kind, words, begun):
    """What the shell's script gets for an answer: its lines."""
    if kind == "fish":
        told = {"COMP_WORDS": " ".join([*words, begun]), "COMP_CWORD": begun}
    else:
        told = {"COMP_WORDS": " ".join([*words, begun]), "COMP_CWORD": str(len(words))}
    answer = subprocess.run(
        ["apdo"], env=shell | told | {"_APDO_COMPLETE": f"{kind}_complete"}, capture_output=True, text=True, check=True
    )
    assert answer.stderr == ""
    return answer.stdout.splitlines()


def offered(shell, *words, begun=""):
    """The words that bash is offered; those of files and folders with their kind."""
    lines = asked(shell, "bash", ["apdo", *words], begun)
    return [line.removeprefix("plain,") for line in lines]


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "offers"),
    [
        (["apdo", "re"], ["resume", "rerun", "report", "reproduce"]),
        (["apdo", "train", "trpo-"], ["trpo-lag", "trpo-pid"]),
        (["apdo", "train", "apdo", "point-g"], ["point-gather", "point-goal-0", "point-goal-1"]),
        (["apdo", "train", "apdo", "point-gather", "--preset", ""], ["paper", "fast", "demo"]),
        (["apdo", "evaluate", "runs/demo", "--e"], ["--episodes"]),
    ],
)
def test_bash_completes_by_the_script_that_the_command_prints(shell, words, offers):
    line = " ".join(f"'{word}'" for word in words)
    script = f"""
        eval "$(apdo completion bash)"
        complete -p apdo >/dev/null || exit 1
        COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}
        _apdo_completion apdo
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    answer = subprocess.run(["bash", "-c", script], env=shell, capture_output=True, text=True, check=True)
    assert answer.stdout.split() == offers


def test_commands_algorithms_and_environments_are_all_offered(shell):
    assert offered(shell) == list(NAMES)
    assert offered(shell, "train") == list(ALGORITHMS)
    assert offered(shell, "train", "pdo") == list(ENVIRONMENTS)


def test_the_options_that_are_offered_are_those_of_the_algorithm_and_the_environment(shell):
    assert offered(shell, "train", "apdo", "point-gather", begun="--k") == ["--keep", "--k-adj"]
    assert offered(shell, "train", "pdo", "point-gather", begun="--k") == ["--keep"]
    of_learner = offered(shell, "train", "apdo", "garnet", begun="--off-policy.learner.dual")
    assert of_learner == ["--off-policy.learner.dual-rate", "--off-policy.learner.dual-states"]
    assert "--clip-actions" in offered(shell, "train", "apdo", "point-gather", begun="--c")
    assert "--clip-actions" not in offered(shell, "train", "apdo", "garnet", begun="--c")
    assert "--cost" in offered(shell, "train", "apdo", "Pendulum-v1", begun="--co")


def test_the_values_of_an_option_are_offered_after_it(shell):
    assert offered(shell, "train", "pdo", "garnet", "--preset") == ["paper", "demo"]
    assert offered(shell, "train", "pdo", "garnet", "--primal", begun="r") == ["reinforce"]
    assert offered(shell, "train", "pdo", "garnet", begun="--constrain=t") == ["total"]
    assert offered(shell, "train", "apdo", "garnet", "--explore") == ["true", "false"]
    assert offered(shell, "sweep", "pdo", "garnet", "--on") == ["local", "ray", "slurm"]
    assert offered(shell, "sweep", "pdo,cpo", "garnet", begun="--dual") == ["--dual-step"]


def test_folders_and_files_are_left_to_the_shell(shell):
    assert offered(shell, "evaluate", begun="ru") == ["dir,ru"]
    assert offered(shell, "solve", begun="pro") == ["file,pro"]
    assert offered(shell, "train", begun="mine") == ["file,mine"]


def test_completing_executes_no_file_of_the_user(shell, tmp_path):
    mine, proof = tmp_path / "mine.py", tmp_path / "executed"
    mine.write_text(f"open({str(proof)!r}, 'w')\n")
    assert "--seeds" in offered(shell, "train", str(mine), f"{mine}:Tank", begun="--see")
    assert not proof.exists()


def test_zsh_and_fish_are_told_what_the_words_mean(shell):
    what = ALGORITHMS["trpo-lag"].what
    zsh = asked(shell, "zsh", ["apdo", "train"], "trpo-l")
    assert zsh[:2] == ["plain", "trpo-lag"]
    assert zsh[2].replace("\\", "") == what
    [fish] = asked(shell, "fish", ["apdo", "train"], "trpo-l")
    assert fish.startswith("plain,trpo-lag")


def test_commands_are_completed_without_loading_jax(shell):
    code = "import sys, atexit; atexit.register(lambda: sys.stderr.write(str('jax' in sys.modules)))\n"
    code += "from apdo.cli import main; main()"
    told = {"COMP_WORDS": "apdo train ", "COMP_CWORD": "2", "_APDO_COMPLETE": "bash_complete"}
    done = subprocess.run([sys.executable, "-c", code], env=shell | told, capture_output=True, text=True, check=True)
    assert "plain,apdo" in done.stdout
    assert done.stderr == "False"


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_registers_the_command_and_asks_it(name, capsys):
    status, out, _ = call(capsys, "completion", name)
    assert status == 0
    assert f"_APDO_COMPLETE={name}_complete" in out
    assert {"bash": "complete -o nosort -F", "zsh": "compdef", "fish": "complete --no-files --command apdo"}[
        name
    ] in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["completion"], "apdo: completion needs the name of a shell, as in: apdo completion bash.\n"),
        (["completion", "bsah"], "apdo: unknown shell 'bsah'; did you mean 'bash'?\n"),
    ],
)
def test_a_shell_that_is_none_gets_one_sentence(words, said, capsys):
    assert call(capsys, *words) == (2, "", said)
