"""Files of results say where they come from; those that were written before this was asked of them are listed."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import provenance

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
LIST = Path(__file__).parent / "data" / "results_without_provenance.txt"


def listed():
    return [line for line in LIST.read_text().splitlines() if line and not line.startswith("#")]


def contents(path):
    """The results in a file: one, or one in each line."""
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else [json.loads(text)]


def files():
    return sorted(path for path in RESULTS.rglob("*") if path.suffix in (".json", ".jsonl"))


def lacking(path):
    return sorted({entry for found in contents(path) for entry in provenance.missing(found)})


def test_every_new_file_of_results_names_commit_command_device_versions_and_date():
    known = set(listed())
    nameless = {path.relative_to(RESULTS).as_posix(): lacking(path) for path in files()}
    refused = {name: entries for name, entries in nameless.items() if entries and name not in known}
    assert refused == {}


def test_the_list_of_exceptions_names_only_files_that_need_it():
    paths = {path.relative_to(RESULTS).as_posix(): path for path in files()}
    gone = [name for name in listed() if name not in paths]
    mended = [name for name in listed() if name in paths and not lacking(paths[name])]
    assert gone == [], "take these out of the list: they are no longer there"
    assert mended == [], "take these out of the list: they say where they come from"
    assert listed() == sorted(set(listed()))


@pytest.mark.parametrize("entry", provenance.ENTRIES)
def test_a_result_without_an_entry_is_refused_and_one_whose_seeds_say_it_is_not(entry):
    whole = {"commit": "a" * 40, "command": "c", "device": "d", "versions": {"jax": "1"}, "date": "2026-01-01"}
    assert provenance.missing(whole) == []
    part = {name: value for name, value in whole.items() if name != entry}
    assert provenance.missing(part) == [entry]
    assert provenance.missing(part | {entry: ""}) == [entry]
    assert provenance.missing(part | {"seeds": {"0": {entry: whole[entry]}, "1": {entry: whole[entry]}}}) == []
    assert provenance.missing(part | {"seeds": {"0": {entry: whole[entry]}, "1": {}}}) == [entry]


def test_a_commit_with_changes_in_its_tree_and_a_list_without_a_name_are_refused():
    assert provenance.missing({"commit": "a" * 40 + "-dirty"})[0] == "commit"
    assert provenance.missing([{"commit": "a" * 40}]) == list(provenance.ENTRIES)


def test_the_facts_of_a_page_are_its_provenance():
    facts = {"command": "c", "made": "2026-01-01", "device": "d", "commit": "a" * 40, "python": "3", "jax": "1"}
    assert provenance.missing({"facts": facts}) == []
    assert provenance.missing({"facts": facts | {"commit": f"{'a' * 40}, {'b' * 40}"}}) == ["commit"]
    assert provenance.missing({"facts": {name: facts[name] for name in ("command", "commit")}}) == [
        "device",
        "versions",
        "date",
    ]


@pytest.fixture
def checkout(tmp_path):
    """A small repository with code, results and a commit; its root and the commit."""
    root = tmp_path / "checkout"
    for name in ("src/code.py", "benchmarks/measure.py", "results/found.json", "pyproject.toml"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{name}\n")
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "--quiet"], ["add", "."], [*author, "commit", "--quiet", "--message", "one"]):
        subprocess.run(["git", *words], cwd=root, check=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True)
    return root, head.stdout.strip()


def asked(root):
    """The commit, asked for anew."""
    return provenance.commit.__wrapped__(root)


def test_results_that_are_written_leave_the_commit_as_it_is_and_other_changes_do_not(checkout):
    root, head = checkout
    (root / "results/found.json").write_text("new\n")
    assert asked(root) == head
    (root / "pyproject.toml").write_text("new\n")
    assert asked(root) == head + "-dirty"


def test_a_copy_without_git_has_the_commit_of_its_note_as_long_as_its_code_is_the_same(checkout, tmp_path):
    root, head = checkout
    assert provenance.write_note(root) == head
    copy = tmp_path / "copy"
    shutil.copytree(root, copy, ignore=shutil.ignore_patterns(".git"))
    (copy / "results/found.json").write_text("new\n")
    assert asked(copy) == head
    (copy / "benchmarks/measure.py").write_text("new\n")
    assert asked(copy) == head + "-dirty"
    (copy / provenance.NOTE).unlink()
    assert asked(copy) == ""


def test_no_note_is_written_for_a_tree_with_changes(checkout):
    root, _ = checkout
    (root / "src/code.py").write_text("new\n")
    with pytest.raises(SystemExit, match="without changes"):
        provenance.write_note(root)


def test_what_a_result_says_itself_is_kept():
    found = provenance.stamped({"device": "mine", "value": 1})
    assert (found["device"], found["value"]) == ("mine", 1)
    assert set(provenance.ENTRIES) <= set(found)


def test_the_command_is_the_line_that_one_would_type(tmp_path):
    (tmp_path / "measure.py").write_text("from benchmarks import provenance\nprint(provenance.command())\n")
    line = [sys.executable, "-m", "measure", "--only", "a b"]
    environment = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "python -m measure --only 'a b'"


def test_every_benchmark_that_writes_json_stamps_it():
    writing = [path for path in (ROOT / "benchmarks").rglob("*.py") if "json.dumps" in path.read_text()]
    unstamped = {path.name for path in writing if "provenance" not in path.read_text()}
    # Each of these names commit, device, versions and date for each seed on its own, or prints and keeps no file.
    assert unstamped <= {
        "transfer.py",
        "peers_transfer.py",
        "peers_speed_runs.py",
        "off_policy_speed.py",
        "commands.py",
        "damages.py",
        "endurance.py",
    }
