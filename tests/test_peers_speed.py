"""What is made of the speeds that were measured next to peers."""

import json
import sys
from pathlib import Path

import pytest
from benchmarks import peers_speed

ROOT = Path(__file__).parent.parent
FILE = ROOT / peers_speed.RESULT


def row(system, algorithm, median=None, **rest):
    speed = {} if median is None else {"median": median, "best": median}
    return {"system": system, "algorithm": algorithm, "batch": 20_000} | speed | rest


ROWS = [
    row("apdo", "pdo", 60_000),
    row("apdo", "pdo", 99_000, batch=200_000),
    row("apdo", "cpo", 30_000),
    row("omnisafe", "pdo", 1_000),
    row("omnisafe", "cpo", 2_000),
    row("fsrl", "pdo", 5_000),
    row("fsrl", "cpo", 12_000),
    row("sb3", "ppo", 4_000),
]


def test_ratios_are_to_the_fastest_row_of_any_peer_and_of_ours_with_the_peers_batch():
    assert peers_speed.ratios(ROWS) == {
        "pdo": {"omnisafe": 30.0, "omnisafe_is": "OmniSafe CPO", "fastest": 5.0, "fastest_is": "FSRL CPO"},
        "cpo": {"omnisafe": 15.0, "omnisafe_is": "OmniSafe CPO", "fastest": 2.5, "fastest_is": "FSRL CPO"},
    }


@pytest.mark.parametrize("hindrance", [{"failed": "x is not finite"}, {"absent": "not installed"}])
def test_a_peer_that_failed_or_is_absent_is_neither_slow_nor_fast(hindrance):
    without = [r for r in ROWS if r["system"] != "fsrl"]
    measured = {"samples": [20_000], "seconds": [0.001]}
    broken = peers_speed.summarised(row("fsrl", "cpo", **measured) | hindrance)
    assert "median" not in broken
    assert "best" not in broken
    assert peers_speed.ratios([*without, broken]) == peers_speed.ratios(without)
    told = peers_speed.speed_table({"point-goal-1": {"rows": [broken]}})
    [(kind, said)] = hindrance.items()
    assert f"| {kind} | {said} |" in told


def test_a_bar_that_nothing_can_be_compared_with_is_not_met():
    alone = peers_speed.bars("point-goal-1", ROWS[:3])
    assert alone == {"60,000 steps/s": True, "10 times OmniSafe": False, "3 times the fastest peer": False}
    assert all(peers_speed.bars("point-goal-1", ROWS).values())
    assert not peers_speed.bars("point-goal-1", [row("apdo", "pdo", 59_999), *ROWS[1:]])["60,000 steps/s"]


def test_the_median_and_the_best_are_of_steps_per_second():
    found = peers_speed.summarised(row("fsrl", "pdo") | {"samples": [100, 100, 300], "seconds": [1.0, 4.0, 2.0]})
    assert (found["median"], found["best"]) == (100, 150)


def test_the_fastest_trial_is_taken_and_one_that_failed_never_is():
    slow, fast = ({"envs": n, "threads": 1, "vector": "shmem", "system": "fsrl"} for n in (2, 4))
    trials = [slow | {"steps_per_second": 5}, fast | {"steps_per_second": 9}, slow | {"envs": 9, "failed": "why"}]
    assert peers_speed.best(trials) == fast
    assert peers_speed.best(trials[2:]) is None


def test_a_system_without_its_python_is_absent_in_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setitem(peers_speed.PYTHONS, "fsrl", str(tmp_path / "python"))
    monkeypatch.setattr(peers_speed, "ROWS", [{"system": "fsrl", "algorithm": "cpo"}])
    [found] = peers_speed.measured("point-goal-1", {}, rounds=1)
    assert found["absent"].startswith("FSRL is not installed: ")
    assert found["absent"].count(". ") == 0
    assert "median" not in found


def test_a_training_that_breaks_down_is_reported_with_its_last_words_and_the_others_go_on(monkeypatch, tmp_path):
    monkeypatch.setattr(peers_speed, "ROWS", [{"system": name, "algorithm": "cpo"} for name in ("fsrl", "sb3")])
    monkeypatch.setattr(peers_speed, "TURN", 1.0)
    for name in ("fsrl", "sb3"):
        monkeypatch.setitem(peers_speed.PYTHONS, name, sys.executable)
    monkeypatch.setattr(peers_speed, "SCRIPT", tmp_path / "script.py")
    (tmp_path / "script.py").write_text(SCRIPT)
    way = {"vector": "dummy", "envs": 2, "threads": 1, "steps_per_second": 1}
    trials = {name: [way | {"system": name}] for name in ("fsrl", "sb3")}
    broken, whole = peers_speed.measured("point-goal-1", trials, rounds=3)
    assert broken["failed"] == "ArithmeticError: no number"
    assert "median" not in broken
    assert (whole["median"], len(whole["seconds"])) == (50, 3)


SCRIPT = """
import json, socket, sys
given = json.loads(sys.argv[2])
link = socket.socket(socket.AF_UNIX)
link.connect(sys.argv[1])
line = link.makefile("rw")
said = {"batch": 100, "networks": [1]}
for i in range(9):
    line.write(json.dumps(said) + "\\n")
    line.flush()
    assert line.readline() == "go\\n"
    if i == 2 and given["system"] == "fsrl":
        raise ArithmeticError("no number")
    said = {"samples": 100, "seconds": 2.0 if i else 99.0}
"""


def test_the_tables_of_the_document_are_those_of_the_file():
    found = json.loads(FILE.read_text(encoding="utf-8"))
    text = (ROOT / peers_speed.DOCUMENT).read_text(encoding="utf-8")
    for name, table in peers_speed.tables(found).items():
        assert f"<!-- {name} -->\n{table}\n<!-- /{name} -->" in text


def test_the_files_ratios_and_bars_follow_from_its_rows():
    for task, found in json.loads(FILE.read_text(encoding="utf-8"))["tasks"].items():
        assert found["ratios"] == peers_speed.ratios(found["rows"])
        assert found["bars"] == peers_speed.bars(task, found["rows"])


def test_the_readme_claims_no_more_than_the_file():
    found = json.loads(FILE.read_text(encoding="utf-8"))
    cheetah, point = (found["tasks"][task]["ratios"]["pdo"]["fastest"] for task in peers_speed.TASKS)
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"{cheetah} times the fastest of them on HalfCheetah-velocity, more than 100 times on PointGoal1" in text
    trials = [trial for ways in found["settings"]["trials"]["point-goal-1"].values() for trial in ways]
    ours = next(row["median"] for row in found["tasks"]["point-goal-1"]["rows"] if row["system"] == "apdo")
    assert min(point, ours / max(trial["steps_per_second"] for trial in trials)) > 100
