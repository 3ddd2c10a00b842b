"""The examples of the documentation run."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from apdo import cli, datasets
from command_line import call

DOCS = Path(__file__).parent.parent / "docs"
GUIDES = ["start.md", "tutorial.md", "choosing.md"]
GUIDES += [f"how-to/{page.name}" for page in sorted((DOCS / "how-to").glob("*.md"))]


def python_blocks(page):
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def blocks_of_environments():
    return python_blocks("environments.md")


def test_the_mujoco_model_of_docs_environments_trains(tmp_path, monkeypatch, capsys):
    pytest.importorskip("mujoco", reason="MuJoCo is not installed")
    monkeypatch.chdir(tmp_path)
    [block] = [block for block in blocks_of_environments() if "mujoco" in block]
    scope = {}
    exec(block, scope)
    capsys.readouterr()
    assert scope["result"].metrics["undiscounted_cost"].shape == (1, 2, 1)
    assert (scope["result"].metrics["episode_length"] == 200).all()


def test_the_environment_of_docs_environments_trains(tmp_path, monkeypatch, capsys):
    pytest.importorskip("gymnasium", reason="Gymnasium is not installed")
    monkeypatch.chdir(tmp_path)
    scope = {}
    for block in blocks_of_environments():
        if "mujoco" not in block:
            exec(block, scope)
    capsys.readouterr()
    assert 0.0 <= scope["action"][0] <= 0.2
    assert scope["result"].metrics["return"].shape == (1, 3)
    assert scope["env"].reset(seed=0)[0].shape == (29,)
    assert (tmp_path / "runs" / "tank" / "metrics.jsonl").exists()


def test_the_log_of_docs_dual_estimation_is_a_dataset(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (DOCS / "dual-estimation.md").read_text()
    [block] = re.findall(r"```python\n(.*?)```", text[text.index("## File format") :], re.DOTALL)
    exec(block, {})
    data = datasets.load("log.npz")
    assert (data.samples, data.episodes, data.limits) == (400, 40, (5.0,))


def test_the_sweep_file_of_docs_sweeps_is_one_and_its_examples_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = (DOCS / "sweeps.md").read_text()
    [file] = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    Path("study.toml").write_text(file)
    cli.main(["sweep", "study.toml", "--dry-run"])
    assert "8 settings, 8 runs: 0 done, 8 to do." in capsys.readouterr().out
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(block, {})
    assert {path.name for path in Path("runs").iterdir()} == {"traces", "watched"}
    assert (tmp_path / "runs" / "traces" / "results.csv").exists()


def test_the_arrays_that_docs_dual_estimation_names_are_those_of_a_file():
    text = (DOCS / "dual-estimation.md").read_text()
    table = text[text.index("| Array |") : text.index("Rows may be in any order")]
    named = {name for row in table.strip().splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert named == set(datasets.ENTRIES)


def test_the_tutorial_goes_from_a_blank_file_to_an_exported_policy(tmp_path, monkeypatch, capsys):
    pytest.importorskip("gymnasium", reason="Gymnasium is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    file, look, train, compare, export = python_blocks("tutorial.md")
    Path("cold_store.py").write_text(file)
    assert "samples=250_000" in train  # a minute; the test takes less
    assert "count=50" in compare
    for block in (look, train.replace("samples=250_000", "batch=960, epochs=2"), compare.replace("50", "1"), export):
        exec(block, {})
    said = capsys.readouterr().out
    assert re.search(r"thermostat \(\d+\.\d, 0\.0\)", said)
    with np.load("cold-store.npz", allow_pickle=False) as stored:
        assert (stored["action_low"], stored["action_high"]) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("page", "leaves"),
    [
        ("start.md", "runs/second/run.json"),
        ("how-to/resume.md", "runs/b/run.json"),
        ("how-to/watch.md", "runs/stopped/run.json"),
        ("how-to/several-costs.md", "runs/named/run.json"),
        ("how-to/multipliers.md", "problem.npz"),
    ],
)
def test_the_python_of_the_guides_runs(page, leaves, tmp_path, monkeypatch, capsys):
    if "Pendulum" in (DOCS / page).read_text():
        pytest.importorskip("gymnasium", reason="Gymnasium is not installed")
    monkeypatch.chdir(tmp_path)
    for block in python_blocks(page):
        exec(block, {})
    capsys.readouterr()
    assert Path(leaves).exists()


def test_the_python_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    """With one epoch of PDO, which is what APDO does before it jumps."""
    pytest.importorskip("gymnasium", reason="Gymnasium is not installed")
    monkeypatch.chdir(tmp_path)
    [block] = python_blocks("../README.md")
    shorter = block.replace('train("apdo"', 'train("pdo"').replace("samples=60_000", "samples=5_000")
    assert len(shorter) == len(block) - 2
    scope = {}
    exec(shorter, scope)
    assert "runs/pendulum" in capsys.readouterr().out
    assert np.load(tmp_path / "pendulum.npz")
    assert scope["env"].action_space.contains(scope["policy"](scope["observation"]).astype(np.float32))


def test_the_commands_of_the_readme_run_in_their_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = (DOCS.parent / "README.md").read_text()
    lines = re.findall(r"^\.venv/bin/apdo (.*?)\s*(?:#.*)?$", text, re.MULTILINE)
    assert {line.split()[0] for line in lines} == {"train", "evaluate", "report", "export", "resume", "list"}
    for line in lines:
        status, _, said = call(capsys, *shlex.split(line))
        assert not status, (line, said)
    assert (tmp_path / "first.html").exists()
    assert (tmp_path / "first.npz").exists()


def commands(page):
    """The command lines of a page that are apdo's, as arguments."""
    text = re.sub(r"\\\n", " ", (DOCS / page).read_text())
    shells = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    return [shlex.split(line, comments=True)[1:] for shell in shells for line in shell.splitlines() if "apdo " in line]


@pytest.mark.parametrize("page", GUIDES)
def test_every_option_that_a_guide_names_is_one(page, capsys):
    checked = 0
    for command, *rest in commands(page):
        names = rest[:2] if command == "train" and ":" not in rest[1] else rest[:1] if command == "train" else []
        status, text, _ = call(capsys, command, *names, "--help-all")
        assert status == 0
        for option in (word for word in rest if word.startswith("--") and command != "sweep"):
            assert re.search(rf"{option}\b", text), f"{page}: apdo {command} has no {option}"
            checked += 1
    assert checked > 0
