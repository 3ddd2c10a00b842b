"""The notebooks of `examples/` run from their first cell to their last, and what they come to is so.

No Jupyter is needed. The cells are executed in one namespace, in a folder of their own, and what a cell ends with is
shown as a notebook would show it. Where a cell is tagged `parameters`, as papermill has it, smaller numbers than its
own are put in their place: that is the only difference from what a reader runs.
"""

import ast
import csv
import dataclasses
import json
import re
import shlex
import sys
import tomllib
import types
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apdo.cli.program import NAMES
from apdo.report import runs
from command_line import call

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
SMALL: dict[str, dict[str, Any]] = {
    "first_policy": {"SAMPLES": 2_100, "BATCH": 300, "ITERATIONS": 200, "EPISODES": 20},
    "own_environment": {"SAMPLES": 960, "MORE_EPOCHS": 1, "BATCH": 480, "HIDDEN": (8, 8)},
    "compare_and_sweep": {"SAMPLES": 6_000, "BATCH": 600, "SEEDS": 1, "HIDDEN": [8]},
}
"""By notebook: what stands in for its parameters."""
NOTEBOOKS = pytest.mark.parametrize("name", sorted(SMALL))
MADE = re.compile(r"[\w./-]+\.(?:npz|onnx|png|csv)")


def notebook(name):
    return json.loads((EXAMPLES / f"{name}.ipynb").read_text(encoding="utf-8"))


def cells(name, kind):
    """The text of each cell of a kind, and its tags."""
    return [
        ("".join(cell["source"]), cell["metadata"].get("tags", []))
        for cell in notebook(name)["cells"]
        if cell["cell_type"] == kind
    ]


class Image:
    """What a notebook uses of IPython's."""

    def __init__(self, filename):
        self.data = Path(filename).read_bytes()

    def _repr_png_(self):
        return self.data


def shown(value):
    """What a notebook shows of a value: the richest form that it offers."""
    for form in ("_repr_html_", "_repr_png_"):
        if hasattr(value, form):
            return getattr(value, form)()
    return repr(value)


@dataclasses.dataclass
class Played:
    """A notebook after its last cell."""

    names: dict[str, Any]
    """Its namespace."""
    shown: list[Any]
    """What cells ended with, as it was shown."""
    said: str
    """What they printed."""


@pytest.fixture
def play(tmp_path, monkeypatch, capsys):
    """A function that runs a notebook in a fresh folder."""

    def played(name):
        monkeypatch.chdir(tmp_path)
        stand_in = types.ModuleType("IPython.display")
        stand_in.__dict__["Image"] = Image
        monkeypatch.setitem(sys.modules, "IPython.display", stand_in)
        done = Played({"__name__": "__main__"}, [], "")
        for number, (source, tags) in enumerate(cells(name, "code")):
            run_cell(source, f"{name}, code cell {number}", done)
            if "parameters" in tags:
                assert SMALL[name].keys() == done.names.keys() - {"__name__", "__builtins__"}
                done.names |= SMALL[name]
        done.said = capsys.readouterr().out
        return done

    return played


def run_cell(source, where, done):
    """Execute a cell, and show its last line where that is an expression."""
    tree = ast.parse(source, where)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, where, "exec"), done.names)
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), where, "eval"), done.names)
        done.shown += [] if value is None else [shown(value)]


def is_a_picture(data):
    return isinstance(data, bytes) and data.startswith(b"\x89PNG") and len(data) > 10_000


def test_the_first_policy_is_trained_looked_at_evaluated_and_comes_back_from_its_files(play, tmp_path):
    done = play("first_policy")
    climbed, jumped = done.names["climbed"], done.names["jumped"]
    assert climbed.metrics["return"].shape == jumped.metrics["return"].shape == (1, 7)
    # APDO plays its first policy until it jumps, after the fifth epoch.
    assert (jumped.metrics["multiplier"][0, :5] == 0.0).all()
    adjusted = runs.read(jumped.path).metrics["adjusted_multiplier"][0, :, 0]
    assert np.flatnonzero(np.isfinite(adjusted)).tolist() == [4]

    tables = [text for text in done.shown if isinstance(text, str) and "<table>" in text]
    for run, table in zip((climbed, jumped), tables[:2], strict=True):
        assert run.policy.about in table
        assert re.search(rf"bombs {run.best[0].cost[0]:.4g} ± \S+ (≤|&gt;) 0\.2", table)
    assert sum(is_a_picture(data) for data in done.shown) == 1

    bombs, verdict = done.names["evaluated"].constrained_cost[0], done.names["evaluated"].verdicts[0]
    assert verdict.holds == ("yes" if bombs.high <= 0.2 else "no" if bombs.low > 0.2 else "undecided")
    assert "20 fresh episodes, stochastic" in tables[2]
    assert f"<td>bombs (limit 0.2)</td><td>{bombs.mean:.3f} [{bombs.low:.3f}, {bombs.high:.3f}]</td>" in tables[2]

    observations, actions = done.names["observations"], done.names["actions"]
    np.testing.assert_array_equal(actions, jumped.policy(observations, deterministic=True))
    scope: dict[str, Any] = {}
    text = (ROOT / "docs" / "policies.md").read_text(encoding="utf-8")
    [reader] = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "class Policy:" in block]
    exec(reader, scope)
    np.testing.assert_allclose(scope["Policy"]("gatherer.npz")(observations, deterministic=True), actions, atol=1e-5)
    check_files_that_are_named("first_policy", tmp_path)


def test_the_environment_of_ones_own_trains_goes_on_and_its_files_act_as_the_policy_does(play, tmp_path):
    pytest.importorskip("gymnasium", reason="Gymnasium is not installed")
    done = play("own_environment")
    first, result = done.names["first"], done.names["result"]
    assert result.path == first.path
    assert (result.cost_names, result.limits) == (("moved", "low"), (15.0, 4.0))
    assert first.metrics["cost"].shape == (1, 2, 2)
    assert result.metrics["cost"].shape == (1, 3, 2)
    for name in ("return", "cost", "multiplier"):
        np.testing.assert_array_equal(result.metrics[name][:, :2], first.metrics[name])
    # Of three epochs the last third is the last; a multiplier is the price of a limit, and never negative.
    np.testing.assert_array_equal(done.names["multipliers"], result.metrics["multiplier"][0, -1])
    assert (done.names["multipliers"] >= 0.0).all()
    assert len(re.findall(r"^(?:moved|low): \d+\.\d\d of \d+ in a day", done.said, re.MULTILINE)) == 2

    policy, rng = result.policy, np.random.default_rng(0)
    observations = rng.normal([5.0, 0.3, 0.0, 0.0], [3.0, 0.1, 0.7, 0.7], size=(50, 4)).astype(np.float32)
    expected = policy(observations, deterministic=True)
    assert np.ptp(expected) > 0.0
    np.testing.assert_allclose(done.names["act"](observations), expected, atol=1e-5)
    assert "the same action as the policy's: True" in done.said
    assert len(done.names["day"]) == 24
    assert all(0.0 <= charge <= 10.0 for charge in done.names["day"])
    assert (tmp_path / "battery.onnx").exists() == (find_spec("onnx") is not None)
    if find_spec("onnx") and find_spec("onnxruntime"):
        import onnxruntime

        session = onnxruntime.InferenceSession("battery.onnx")
        [action] = session.run(["action"], {"observation": observations})
        np.testing.assert_allclose(np.asarray(action), expected, atol=1e-5)
    check_files_that_are_named("own_environment", tmp_path)


def test_no_run_of_the_sweep_earns_more_than_the_exact_optimum_allows(play, tmp_path):
    done = play("compare_and_sweep")
    found, optima = done.names["found"], done.names["optima"]
    assert not found.failures
    # The best is told as the limits speak, beside the plain returns of the last epochs.
    assert all({"return", "best discounted return"} <= row.keys() for row in found.rows)
    settings = [(row["algorithm"], row["limits"]) for row in found.rows]
    assert sorted(settings) == [(one, limit) for one in ("crpo", "focops", "pdo") for limit in (2.0, 3.0)]
    with (tmp_path / "runs" / "garnet" / "results.csv").open() as file:
        assert [float(row["return"]) for row in csv.DictReader(file)] == [row["return"] for row in found.rows]

    assert all(optimum.certificate.holds for optimum in optima.values())
    # A unit more of the limit brings at most its price before, and at least its price after.
    gained = optima[3.0].value - optima[2.0].value
    assert optima[3.0].multipliers[0] <= gained <= optima[2.0].multipliers[0]
    with np.load(tmp_path / "garnet-optimum.npz") as stored:
        assert float(stored["value"]) == pytest.approx(optima[2.0].value, rel=1e-9)

    # What a policy earns beyond the optimum it pays for with cost beyond the limit, at the optimal price.
    for row, (algorithm, limit, learned) in zip(found.rows, done.names["table"], strict=True):
        assert (row["algorithm"], row["cost limit"]) == (algorithm, limit)
        allowed = optima[limit].value + float(optima[limit].multipliers @ (learned.costs - limit))
        assert learned.value <= allowed + 1e-9
        assert f"{learned.value:6.3f}  {optima[limit].value:7.3f}" in done.said
    assert len({learned.value for _, _, learned in done.names["table"]}) > 1  # not all the untrained policy
    assert sum(is_a_picture(data) for data in done.shown) == 2
    check_files_that_are_named("compare_and_sweep", tmp_path)


def check_files_that_are_named(name, folder):
    """Every file that a notebook says it makes, and every run folder, is there after its last cell."""
    text = "\n".join(source for kind in ("markdown", "code") for source, _ in cells(name, kind))
    named = set(MADE.findall(text)) | set(re.findall(r"runs/\w+", text))
    there = {path.name for path in folder.rglob("*")}
    optional = set() if find_spec("onnx") else {"battery.onnx"}
    assert {Path(one).name for one in named} - there <= optional


@NOTEBOOKS
def test_a_notebook_stores_neither_outputs_nor_execution_counts(name):
    page = notebook(name)
    assert page["nbformat"] == 4
    assert page["metadata"].keys() == {"kernelspec", "language_info"}
    assert len({cell["id"] for cell in page["cells"]}) == len(page["cells"])
    for cell in page["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
        assert cell["metadata"].keys() <= {"tags"}


@NOTEBOOKS
def test_a_notebook_begins_with_its_parameters_which_are_plain_values(name):
    tagged = [place for place, (_, tags) in enumerate(cells(name, "code")) if "parameters" in tags]
    assert tagged == [0]
    for line in ast.parse(cells(name, "code")[0][0]).body:
        assert isinstance(line, ast.Assign)
        ast.literal_eval(line.value)


@NOTEBOOKS
def test_links_commands_and_extras_that_a_notebook_names_exist(name, capsys):
    text = "\n".join(source for source, _ in cells(name, "markdown"))
    links = re.findall(r"\]\(([^)#]+)", text)
    assert links
    for link in links:
        assert (EXAMPLES / link).resolve().is_file(), link
    for command in re.findall(r"`apdo ([^`]+)`", text):
        first, *rest = shlex.split(command)
        assert first in NAMES
        status, known, _ = call(capsys, first, "--help-all")
        assert status == 0
        for option in (word for word in rest if word.startswith("--")):
            assert re.search(rf"{option}\b", known), command
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra in re.findall(r"'\.\[(\w+)\]'", text):
        assert extra in extras


def test_every_notebook_is_run_here_and_is_linked_from_the_first_pages():
    assert {path.stem for path in EXAMPLES.glob("*.ipynb")} == SMALL.keys()
    for page, folder in (("README.md", "examples"), ("docs/start.md", "../examples")):
        text = (ROOT / page).read_text(encoding="utf-8")
        for name in SMALL:
            assert f"]({folder}/{name}.ipynb)" in text, (page, name)
