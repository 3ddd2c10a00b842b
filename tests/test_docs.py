"""The examples of the documentation run."""

import re
from pathlib import Path

import pytest

from apdo import cli, datasets

DOCS = Path(__file__).parent.parent / "docs"


def blocks_of_environments():
    return re.findall(r"```python\n(.*?)```", (DOCS / "environments.md").read_text(), re.DOTALL)


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
    assert "8 settings, 8 runs: 0 over, 8 to do." in capsys.readouterr().out
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(block, {})
    assert {path.name for path in Path("runs").iterdir()} == {"traces", "watched"}
    assert (tmp_path / "runs" / "traces" / "results.csv").exists()


def test_the_arrays_that_docs_dual_estimation_names_are_those_of_a_file():
    text = (DOCS / "dual-estimation.md").read_text()
    table = text[text.index("| Array |") : text.index("Rows may be in any order")]
    named = {name for row in table.strip().splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert named == set(datasets.ENTRIES)
