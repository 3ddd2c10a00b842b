"""The safety dial's table answers the bar from made-up runs, its picture can be read, its runs keep out of each other's
way."""

import fcntl
import json
import os
import re

import numpy as np
import pytest
from benchmarks import safety_dial

from apdo.report import plot


def arm(safety, *, seeds=8, **values):
    """A position's result; each measure is a middle, around which the seeds lie within 0.1, or the seeds' values."""
    spread = np.linspace(-0.1, 0.1, seeds)
    middles = {
        "violation": 10 - 5 * safety,
        "early_return": 4 - safety,
        "final_return": 14.0,
        "final_cost": 0.2,
    } | values
    sizes = {"seeds": seeds, "epochs": 150, "batch": 50_000, "safety_half_life": 8.0}
    return {
        "options": sizes | {"safety": safety},
        "limit": 0.2,
        "seeds": {
            name: value if isinstance(value, list) else (value + (seeds > 1) * spread).tolist()
            for name, value in middles.items()
        },
        "seconds": 1.0,
    }


def study(changes=None, **common):
    """All positions, with what is different at some of them."""
    return [arm(safety, **(common | (changes or {}).get(safety, {}))) for safety in safety_dial.POSITIONS]


def verdicts(all, name="pdo"):
    return [line for line in safety_dial.table({name: all}).splitlines() if line.startswith("- ")]


def test_final_policies_alike_are_the_same_within_noise():
    *_, final_return, final_cost = verdicts(study())
    assert re.fullmatch(
        r"- PDO: final return at S = 0\.25, 0\.75, 1 against 0\.5: "
        r"(0\.00 \(-0\.0\d to 0\.0\d\), ){2}0\.00 \(-0\.0\d to 0\.0\d\); the same within noise\.",
        final_return,
    )
    assert final_cost.startswith("- PDO: final cost at S")
    assert final_cost.endswith("; the same within noise.")


def test_final_policies_that_differ_are_named_and_s_0_is_not_asked():
    changed = {0.0: {"final_return": 20.0}, 0.75: {"final_cost": 0.5}, 1.0: {"final_return": 12.0, "final_cost": 0.0}}
    *_, final_return, final_cost = verdicts(study(changed), "cpo")
    assert final_return.startswith("- CPO:")
    assert "-2.00 (-2.0" in final_return
    assert final_return.endswith("; differs at S = 1.")
    assert final_cost.endswith("; differs at S = 0.75, 1.")


def test_one_seed_or_a_broken_one_gives_no_verdict():
    *_, final_return, final_cost = verdicts(study(seeds=1))
    assert final_return.endswith("; cannot be told without an interval.")
    assert final_cost.endswith("; cannot be told without an interval.")
    *_, final_return, final_cost = verdicts(study({0.5: {"final_return": [14.0] * 7 + [np.nan]}}))
    assert final_return.endswith("; cannot be told without an interval.")
    assert final_cost.endswith("; the same within noise.")


def test_an_unfinished_study_has_no_verdicts():
    assert len(verdicts(study())) == 4
    assert verdicts(study()[:-1]) == []


def test_the_seeds_of_two_positions_are_drawn_independently():
    """Of two seeds each the extremes have 1/16 of the draws, more than a tail: all four pairs are within reach.

    Drawn together, seed by seed, 0 - 0 and 1 - 10 would be the ends.
    """
    one, other = arm(1.0, seeds=2, final_return=[0.0, 1.0]), arm(0.5, seeds=2, final_return=[0.0, 10.0])
    assert safety_dial.difference(one, other, "final_return") == (-4.5, -10.0, 1.0)
    assert safety_dial.difference(other, one, "final_return") == (4.5, -1.0, 10.0)


def test_positions_of_different_numbers_of_seeds_can_be_compared():
    value, low, high = safety_dial.difference(arm(1.0, seeds=3), arm(0.5, seeds=8), "final_return")
    assert low < value < high


def test_a_line_cries_wolf_as_often_as_the_document_says():
    """Three positions against a fourth, all of one normal distribution: some differs in 22 % of lines of 8 seeds."""
    rng = np.random.default_rng(1)
    lines = 400
    cries = 0
    for _ in range(lines):
        arms = [arm(safety, final_return=rng.normal(size=8).tolist()) for safety in safety_dial.POSITIONS]
        cries += "differs" in safety_dial.forgotten(arms, "final_return", 2)
    assert 0.16 < cries / lines < 0.28


def test_the_documents_table_is_that_of_the_results():
    text = safety_dial.DOCUMENT.read_text(encoding="utf-8")
    assert safety_dial.table(safety_dial.everything(safety_dial.RESULTS)) in text


# The picture.


def boxes(picture):
    """The extent of every text that is drawn."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    canvas = FigureCanvasAgg(picture)
    canvas.draw()
    texts = [text for text in picture.findobj(Text) if text.get_visible() and text.get_text().strip()]
    # A tick outside the axis' limits has a text, but is not drawn.
    hidden = set()
    for panel in picture.axes:
        for axis in (panel.xaxis, panel.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in axis.get_major_ticks():
                if not low <= tick.get_loc() <= high:
                    hidden |= {tick.label1, tick.label2}
    return {text: text.get_window_extent(canvas.get_renderer()) for text in texts if text not in hidden}


@pytest.mark.parametrize("spread", [1.0, 0.01, 0.0])
def test_no_text_of_the_picture_overlaps_another_however_close_the_points(spread):
    found = {
        name: [
            arm(safety, violation=8 - spread * (5 * safety + i), early_return=4 - spread * (safety + 0.1 * i))
            for safety in safety_dial.POSITIONS
        ]
        for i, name in enumerate(safety_dial.ALGORITHMS)
    }
    picture = safety_dial.picture(found)
    extents = list(boxes(picture).items())
    assert len(extents) > 30
    for i, (text, box) in enumerate(extents):
        assert picture.bbox.x0 <= box.x0 < box.x1 <= picture.bbox.x1, text
        assert picture.bbox.y0 <= box.y0 < box.y1 <= picture.bbox.y1, text
        for other, another in extents[i + 1 :]:
            assert not box.overlaps(another), (text, other)


def test_an_algorithm_keeps_its_colour_whoever_else_is_there():
    def colours(names):
        picture = safety_dial.picture({name: study() for name in names})
        return {line.get_color() for panel in picture.axes for line in panel.lines if np.size(line.get_xdata()) == 5}

    assert colours(["cpo"]) == {plot.COLOURS[1]}
    assert colours(["apdo"]) == {plot.COLOURS[2]}
    assert colours(safety_dial.ALGORITHMS) == set(plot.COLOURS[:3])


# Runs side by side.


@pytest.fixture
def command(monkeypatch):
    """The benchmark's command line, with made-up measurements; `failing` positions break off."""
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

    def run(*arguments, failing=()):
        def measure(algorithm, options):
            if options["safety"] in failing:
                raise RuntimeError("the power went")
            return arm(options["safety"]) | {"algorithm": algorithm, "options": options}

        monkeypatch.setattr(safety_dial, "measure", measure)
        monkeypatch.setattr("sys.argv", ["safety_dial", *map(str, arguments)])
        safety_dial.main()

    return run


def test_what_is_measured_is_written_after_each_arm_and_not_measured_again(command, tmp_path, capsys):
    with pytest.raises(RuntimeError, match="the power went"):
        command("--algorithms", "cpo", "--out", tmp_path, failing=[0.5])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cpo-0.25.json", "cpo-0.json"]
    assert json.loads((tmp_path / "cpo-0.json").read_text())["options"]["safety"] == 0.0
    command("--algorithms", "cpo", "--out", tmp_path, failing=[0.0, 0.25])
    assert len(list(tmp_path.glob("cpo-*.json"))) == 5
    assert "| CPO | 1 |" in capsys.readouterr().out


def test_the_table_is_of_all_algorithms_that_were_run_one_by_one(command, tmp_path, capsys, monkeypatch):
    for algorithm in safety_dial.ALGORITHMS:
        command("--algorithms", algorithm, "--out", tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.glob("*.json")}
    (tmp_path / "safety-dial.svg").unlink()
    document = tmp_path / "dial.md"
    document.write_text("# Head\n<!-- safety-dial -->\nold\n<!-- /safety-dial -->\ntail\n")
    monkeypatch.setattr(safety_dial, "RESULTS", tmp_path)
    monkeypatch.setattr(safety_dial, "DOCUMENT", document)
    command("--table", "--out", tmp_path, failing=safety_dial.POSITIONS)
    text = document.read_text()
    assert "old" not in text
    assert all(f"- {name}: final cost at S = " in text for name in ("PDO", "CPO", "APDO"))
    assert (tmp_path / "safety-dial.svg").exists()
    assert {path: path.read_bytes() for path in tmp_path.glob("*.json")} == before


def test_picture_and_table_are_one_process_work_at_a_time(command, tmp_path, monkeypatch):
    """Else the slower of two that end together would put back what it read before the other's last arm."""
    seen = []

    def draw(found, out):
        other = os.open(out, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(other)
        seen.append(list(found))

    monkeypatch.setattr(safety_dial, "draw", draw)
    command("--algorithms", "pdo", "--out", tmp_path)
    command("--algorithms", "apdo", "--out", tmp_path)
    assert seen == [["pdo"], ["pdo", "apdo"]]
