"""The table of docs/theory.md that benchmarks.theory writes."""

import math

from benchmarks import theory


def test_a_median_over_seeds_of_which_half_never_settle_is_never():
    rows = [{"k_adj": 1, "settled": epoch} for epoch in (3, 4, None, None)] + [{"k_adj": 2, "settled": 9}]
    assert theory.median_epochs({"rows": rows}, 1) == math.inf
    assert theory.median_epochs({"rows": rows[1:] + rows[:2]}, 1) == 4.0
    assert theory.median_epochs({"rows": rows}, 2) == 9.0


def test_the_documents_table_is_that_of_the_results():
    table = theory.adjustments_table(theory.saved("adjustments"))
    assert f"<!-- adjustments -->\n{table}\n<!-- /adjustments -->" in theory.DOCUMENT.read_text(encoding="utf-8")
