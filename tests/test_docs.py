"""The examples of the documentation run."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"


def test_the_environment_of_docs_environments_trains(tmp_path, monkeypatch, capsys):
    pytest.importorskip("gymnasium", reason="Gymnasium is not installed")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "environments.md").read_text(), re.DOTALL)
    scope = {}
    for block in blocks:
        exec(block, scope)
    capsys.readouterr()
    assert 0.0 <= scope["action"][0] <= 0.2
    assert scope["result"].metrics["return"].shape == (1, 3)
    assert scope["env"].reset(seed=0)[0].shape == (29,)
    assert (tmp_path / "runs" / "tank" / "metrics.jsonl").exists()
