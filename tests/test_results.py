"""Files of results say where they come from; those that were written before this was asked of them are listed."""

import json
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
