"""The record of what came of each test target: nothing in it that was not run, and no target that it leaves out."""

import json
import re

import pytest

import targets

ELSEWHERE = {"test-all"}
"""The target that writes the record."""


def test_every_test_target_of_the_makefile_is_in_the_record():
    makefile = (targets.ROOT / "Makefile").read_text(encoding="utf-8")
    found = set(re.findall(r"^(test[a-z0-9-]*):", makefile, flags=re.MULTILINE))
    assert found - ELSEWHERE == set(targets.TARGETS) - {"check"}


def test_what_was_not_run_is_kept_as_known_or_as_not_run():
    known = {"test": {"outcome": "failed"}, "check": {"outcome": "passed"}, "gone": {"outcome": "passed"}}
    rows = targets.merged(known, {"test": {"outcome": "passed"}})
    assert list(rows) == list(targets.TARGETS)
    assert rows["test"]["outcome"] == rows["check"]["outcome"] == "passed"
    assert rows["test-slow"] == {"outcome": "not run"}


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ("...\n2 passed, 1 skipped in 3.1s\n== AVX2\n1 failed, 1 passed in 9s\n", 2),
        ("All checks passed!\n0 errors, 0 warnings\n", 0),
    ],
)
def test_the_counts_are_the_last_lines_of_each_run_of_pytest(printed, expected):
    assert len(targets.counts(printed)) == expected


def test_the_committed_table_is_that_of_the_committed_record():
    if not targets.KEPT.exists():
        pytest.skip("nothing has been recorded: `make test-all`")
    kept = json.loads(targets.KEPT.read_text(encoding="utf-8"))
    assert targets.KEPT.with_suffix(".md").read_text(encoding="utf-8") == targets.table(kept)
    for name, row in kept["targets"].items():
        assert row["outcome"] == "not run" or {"commit", "date", "seconds"} <= row.keys(), name
