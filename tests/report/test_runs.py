import json

import numpy as np
import pytest

from apdo import files
from apdo.errors import InvalidInput
from apdo.report import runs

DESCRIPTION = {
    "format": 1,
    "algorithm": "apdo",
    "environment": "point-gather",
    "config": {},
    "problem": {"limits": [0.2, 0.1], "cost_names": ["bombs", "speeding"], "cost_discount": 0.995},
    "batch": 100,
    "epochs": 5,
    "seeds": [3, 7],
    "adjustment_epoch": 2,
    "status": "finished",
    "note": "",
}


def row(epoch, seed, **more):
    """A row whose numbers tell where it belongs."""
    place = 10.0 * epoch + seed
    return {"epoch": epoch, "seed": seed, "return": place, "cost": [place, -place]} | more


ROWS = [row(epoch, seed) for epoch in range(3) for seed in (3, 7)]


@pytest.fixture
def folder(tmp_path):
    """Writes a run folder; lines that are text are written as they are."""

    def write(rows=ROWS, **changes):
        (tmp_path / "run.json").write_text(json.dumps(DESCRIPTION | changes))
        lines = [line if isinstance(line, str) else json.dumps(line) for line in rows]
        (tmp_path / "metrics.jsonl").write_text("".join(line + "\n" for line in lines))
        return tmp_path

    return write


def test_every_number_is_found_at_its_seed_epoch_and_constraint(folder):
    run = runs.read(folder(reversed(ROWS)))
    assert run.seeds == (3, 7)
    np.testing.assert_array_equal(run.epochs, [0, 1, 2])
    place = np.asarray([[3.0, 13, 23], [7, 17, 27]])
    np.testing.assert_array_equal(run.metrics["return"], place)
    np.testing.assert_array_equal(run.metrics["cost"], np.stack([place, -place], axis=-1))
    assert set(run.metrics) == {"return", "cost"}


def test_the_description_answers_for_the_run(folder):
    run = runs.read(folder(note="demo"))
    assert (run.algorithm, run.environment, run.batch) == ("apdo", "point-gather", 100)
    assert (run.limits, run.cost_names) == ((0.2, 0.1), ("bombs", "speeding"))
    assert (run.adjustment_epoch, run.note) == (2, "demo")
    np.testing.assert_array_equal(run.samples, [100, 200, 300])


def test_costs_without_names_are_numbered(folder):
    assert runs.read(folder(problem={"limits": [1, 2]})).cost_names == ("cost 1", "cost 2")


def test_only_epochs_that_every_seed_has_finished_count(folder):
    run = runs.read(folder([*ROWS, row(3, 3)]))
    np.testing.assert_array_equal(run.epochs, [0, 1, 2])


def test_a_torn_last_line_is_an_epoch_that_was_not_finished(folder):
    whole = [row(0, 3), row(0, 7), row(1, 3), row(1, 7)]
    path = folder(whole)
    text = (path / "metrics.jsonl").read_bytes()
    start = text.rstrip().rindex(b"\n") + 1
    for end in range(start, len(text.rstrip())):
        (path / "metrics.jsonl").write_bytes(text[:end])
        np.testing.assert_array_equal(runs.read(path).epochs, [0])


def test_a_last_line_torn_inside_a_letter_is_tolerated(folder):
    path = folder()
    with (path / "metrics.jsonl").open("ab") as file:
        file.write('{"epoch": 3, "λ'.encode()[:-1])
    np.testing.assert_array_equal(runs.read(path).epochs, [0, 1, 2])


def test_a_torn_line_elsewhere_is_named(folder):
    with pytest.raises(InvalidInput, match=r"metrics\.jsonl, line 3: not valid JSON"):
        runs.read(folder([*ROWS[:2], '{"epoch": 1, "se', *ROWS[2:]]))


@pytest.mark.parametrize("line", ["12", "[1, 2]", "null", '"text"'])
def test_a_line_that_is_no_object_is_named_even_if_it_is_the_last(folder, line):
    with pytest.raises(InvalidInput, match="line 7: not a JSON object"):
        runs.read(folder([*ROWS, line]))


def test_an_epoch_repeated_after_a_crash_counts_as_it_came_out_last(folder):
    again = row(1, 7) | {"return": -1.0}
    assert runs.read(folder([*ROWS, again])).metrics["return"][1, 1] == -1


def test_nan_and_null_are_not_numbers_and_do_not_stop_the_reading(folder):
    rows = [row(0, 3), row(0, 7, kl=float("nan")), row(1, 3, kl=None), row(1, 7, kl=2.0)]
    assert "NaN" in (folder(rows) / "metrics.jsonl").read_text()
    kl = runs.read(folder(rows)).metrics["kl"]
    np.testing.assert_array_equal(kl, [[np.nan, np.nan], [np.nan, 2.0]])


def test_a_metric_that_only_some_epochs_report_is_nan_elsewhere(folder):
    rows = [*ROWS[:4], row(2, 3, off_policy=[1.0, 2.0]), row(2, 7, off_policy=[3.0, 4.0])]
    found = runs.read(folder(rows)).metrics["off_policy"]
    assert found.shape == (2, 3, 2)
    assert np.isnan(found[:, :2]).all()
    np.testing.assert_array_equal(found[:, 2], [[1, 2], [3, 4]])


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([{"seed": 3, "return": 1}], "line 1: 'epoch' must be a whole number"),
        ([row(0, 3), row(0, 8)], r"line 2: seed 8 is not one of the run's \[3, 7\]"),
        ([row(0, 3, kl="high"), row(0, 7)], "line 1: 'kl' is neither a number nor a list of numbers"),
        ([row(0, 3, kl=[1]), row(0, 7, kl=[1, 2])], "line 2: 'kl' has another length than before"),
        ([row(0, 3, cost=[1]), row(0, 7, cost=[1])], "'cost' must be a list of 2, one per constraint"),
        ([row(0, 3, multiplier=1), row(0, 7, multiplier=1)], "'multiplier' must be a list of 2"),
        ([{"epoch": 0, "seed": seed, "cost": [1, 2]} for seed in (3, 7)], "has no 'return'"),
    ],
)
def test_wrong_metrics_are_refused_with_the_place_and_the_reason(folder, rows, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        runs.read(folder(rows))


@pytest.mark.parametrize(
    ("status", "complaint"),
    [
        ("running", "no finished epoch yet; try again"),
        ("failed", "it failed"),
        ("interrupted", "it was interrupted"),
        ("finished", "no finished epoch yet\\."),
    ],
)
@pytest.mark.parametrize("rows", [[], [row(0, 3)], [row(0, 3), row(1, 7)]])
def test_a_run_without_a_finished_epoch_says_so(folder, rows, status, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        runs.read(folder(rows, status=status))


def test_a_run_that_has_not_written_metrics_has_no_finished_epoch(folder):
    path = folder()
    (path / "metrics.jsonl").unlink()
    with pytest.raises(InvalidInput, match="no finished epoch yet"):
        runs.read(path)


def test_a_folder_that_is_none_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="there is no run folder"):
        runs.read(tmp_path / "nothing")
    with pytest.raises(InvalidInput, match=r"it has no run\.json"):
        runs.read(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match="is not a folder"):
        runs.read(tmp_path / "file")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "cannot be read"),
        ("[]", "not a JSON object"),
        ("{}", "format missing, but this version of apdo reads formats 1 to 2"),
        ('{"format": 3}', "format 3, but this version of apdo reads formats 1 to 2"),
        ('{"format": true}', "format True, but"),
        ('{"format": 2}', "damaged or changed"),
        ('{"format": 1, "crc32": "00000000"}', "damaged or changed"),
        ("[" * 100_000, "nested too deeply"),
        ('{"format": ' + "1" * 5000 + "}", "not valid JSON"),
        ('{"format": 1}', "no usable 'algorithm'"),
    ],
)
def test_a_description_that_cannot_be_used_is_refused(tmp_path, text, complaint):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(InvalidInput, match=complaint):
        runs.read(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"config": {"settings": 1.5}},
        {"seeds": [1, 1]},
        {"seeds": [2**60]},
        {"epochs": -1},
        {"note": ["a"]},
        {"versions": {"jax": {}}},
        {"seconds": "long"},
        {"problem": {"limits": [float("inf")]}},
        {"seeds": []},
        {"seeds": [0.5]},
        {"batch": 0},
        {"batch": "big"},
        {"problem": {"limits": []}},
        {"problem": None},
        {"problem": {"limits": [1], "cost_discount": "../../x"}},
        {"problem": {"limits": [1], "discount": float("nan")}},
    ],
)
def test_a_description_names_its_unusable_entry(folder, changes):
    with pytest.raises(InvalidInput, match=f"no usable '{next(iter(changes))}"):
        runs.read(folder(**changes))


def test_what_is_told_of_the_best_policies_is_checked_and_comes_in_the_order_of_the_seeds(folder):
    told = [
        {"seed": s, "epoch": 1, "return": 2.5, "return_error": 0.0, "cost": [0.1, 0.0], "cost_error": [0, 0]}
        for s in (7, 3)
    ]
    told = [one | {"known": True} for one in told]
    assert [one["seed"] for one in runs.read(folder(best=told)).best] == [3, 7]
    assert runs.read(folder()).best == []
    spoilt = ({"known": 1}, {"epoch": -1}, {"cost": [0.1]}, {"cost": "dear"}, {"return": None}, {"seed": 1.5})
    for change in spoilt:
        with pytest.raises(InvalidInput, match="no usable 'best'"):
            runs.read(folder(best=[told[0] | change]))


def test_remarks_are_read_as_far_as_they_are_whole(folder):
    place = folder()
    assert runs.read(place).remarks == ()
    rows = [{"epoch": 3, "kind": "idle 0", "text": "one"}, {"epoch": 4, "kind": "x", "text": "two"}]
    lines = [files.seal_line(row) for row in [*rows, {"epoch": "4", "kind": "x", "text": "three"}]]
    (place / "remarks.jsonl").write_text(lines[0] + lines[1].replace("two", "2") + "[]\n" + lines[2] + lines[1][:20])
    assert runs.read(place).remarks == (rows[0],)
