"""Remarks on made-up histories: each is made where it should be, and nowhere else."""

from typing import Any

import numpy as np
import pytest

from apdo.experiment import remarks
from apdo.experiment.remarks import About, Book, Remark

EPOCHS, SEEDS, LIMIT = 60, 4, 2.0


def about(**changes):
    given = {"limits": (LIMIT,), "names": ("bombs",), "epochs": EPOCHS, "batch": 1000}
    return About(**(given | changes))


def history(cost: Any = LIMIT, multiplier: Any = 1.0, error: Any = 0.01, epochs=EPOCHS, seeds=SEEDS):
    """[E, S, 1] of each: a number, or a number for each epoch, or for each epoch and seed."""

    def spread(values):
        values = np.asarray(values, dtype=np.float32)
        values = values.reshape(values.shape + (1,) * (2 - values.ndim)) if values.ndim else values
        return np.broadcast_to(values, (epochs, seeds))[..., None]

    found = {"cost": spread(cost), "cost_error": spread(error)}
    return found | ({} if multiplier is None else {"multiplier": spread(multiplier)})


def kinds(history, since=0, **changes):
    return {remark.kind.split()[0] for remark in remarks.of(history, about(**changes), since)}


def rising(first, last, epochs=EPOCHS):
    return np.linspace(first, last, epochs)


def test_a_run_at_its_limit_with_a_steady_multiplier_has_nothing_to_say():
    draws = np.random.default_rng(0).normal(size=(EPOCHS, SEEDS))
    for k in range(1, EPOCHS + 1):
        assert kinds(history(cost=(LIMIT + 0.01 * draws)[:k], multiplier=3.0, epochs=k)) == set()


def test_a_multiplier_at_0_is_remarked_upon_after_ten_epochs_over_the_limit():
    over = 1.5 * LIMIT
    assert "idle" in kinds(history(cost=over, multiplier=0.0))
    assert "idle" not in kinds(history(cost=over, multiplier=1e-9))
    assert "idle" not in kinds(history(cost=0.5 * LIMIT, multiplier=0.0))
    # Over the limit, but not with confidence.
    assert "idle" not in kinds(history(cost=over, multiplier=0.0, error=0.5 * LIMIT))
    # One epoch of the last ten was not.
    cost = np.full(EPOCHS, over)
    cost[-remarks.IN_A_ROW] = LIMIT
    assert "idle" not in kinds(history(cost=cost, multiplier=0.0))
    assert "idle" not in kinds(history(cost=over, multiplier=0.0, epochs=remarks.IN_A_ROW - 1))
    # An adjustment has just set it, or will.
    assert "idle" not in kinds(history(cost=over, multiplier=0.0), since=EPOCHS - 5)


def test_a_step_that_only_lowers_costs_needs_no_multiplier():
    made = history(cost=1.5 * LIMIT, multiplier=0.0)
    assert "idle" not in kinds(made | {"recovering": np.ones((EPOCHS, SEEDS))})
    assert "idle" in kinds(made | {"recovering": np.zeros((EPOCHS, SEEDS))})


def test_a_multiplier_that_grows_while_the_cost_does_not_fall_is_remarked_upon():
    grows = 1.05 ** np.arange(EPOCHS)
    assert "in_vain" in kinds(history(cost=1.5 * LIMIT, multiplier=grows))
    assert "in_vain" in kinds(history(cost=rising(1.5 * LIMIT, 2 * LIMIT), multiplier=grows))
    # The cost falls to its limit within the window.
    falls = np.concatenate([np.full(EPOCHS - 20, 2.0), np.linspace(2.0, 1.0, 20)]) * LIMIT
    assert "in_vain" not in kinds(history(cost=falls, multiplier=grows))
    assert "in_vain" not in kinds(history(cost=LIMIT, multiplier=grows))
    assert "in_vain" not in kinds(history(cost=1.5 * LIMIT, multiplier=rising(5.0, 5.5)))
    # Too noisy to say that it does not fall.
    assert "in_vain" not in kinds(history(cost=1.2 * LIMIT, multiplier=grows, error=0.5 * LIMIT))
    assert "in_vain" not in kinds(history(cost=1.5 * LIMIT, multiplier=grows), since=EPOCHS - 10)


def test_a_limit_below_anything_seen_is_remarked_upon_late():
    cost, late = rising(3 * LIMIT, 1.2 * LIMIT), int(remarks.LATE * EPOCHS)
    assert "out_of_reach" in kinds(history(cost=cost))
    assert "out_of_reach" in kinds(history(cost=cost[:late], epochs=late))
    assert "out_of_reach" not in kinds(history(cost=cost[: late - 1], epochs=late - 1))
    cost[5] = 0.9 * LIMIT
    assert "out_of_reach" not in kinds(history(cost=cost))


def test_a_batch_too_small_to_know_its_cost_is_told_the_size_that_would_do():
    made = history(error=0.15)
    [remark] = remarks.of(made, about())
    # Two errors are 0.3, and a tenth of the limit is 0.2: 2.25 times the samples, rounded up to two digits.
    assert "--batch 2300 " in remark.text
    assert "±0.3" in remark.text
    assert kinds(history(error=0.2 * remarks.PRECISION * LIMIT)) == set()
    # Far from its limit, and without a multiplier: nobody needs to know.
    assert "too_few_samples" not in kinds(history(cost=0.1 * LIMIT, multiplier=0.0, error=0.15))
    assert "too_few_samples" in kinds(history(cost=0.1 * LIMIT, multiplier=0.5, error=0.15))
    assert "too_few_samples" in kinds(history(cost=0.9 * LIMIT, multiplier=0.0, error=0.15))


def test_a_limit_that_does_not_bind_is_remarked_upon_at_the_end():
    fades = np.concatenate([np.linspace(3.0, 0.0, 20), np.zeros(EPOCHS - 20)])
    assert kinds(history(cost=0.5 * LIMIT, multiplier=fades)) == {"slack"}
    assert kinds(history(cost=0.5 * LIMIT, multiplier=0.0)) == {"slack"}
    assert kinds(history(cost=0.5 * LIMIT, multiplier=fades[:-1], epochs=EPOCHS - 1)) == set()
    assert "slack" not in kinds(history(cost=0.99 * LIMIT, multiplier=fades, error=0.05))
    assert "slack" not in kinds(history(cost=0.5 * LIMIT, multiplier=1.0))
    assert "slack" not in kinds(history(cost=0.5 * LIMIT, multiplier=fades), since=EPOCHS - 10)


@pytest.mark.parametrize("factor", [2.0**-20, 2.0**15])
def test_no_remark_depends_on_units(factor):
    """Costs and limits in other units, and multipliers in theirs."""
    made = [
        history(cost=1.5 * LIMIT, multiplier=0.0),
        history(cost=1.5 * LIMIT, multiplier=np.arange(EPOCHS, dtype=float)),
        history(cost=0.5 * LIMIT, multiplier=0.0, error=0.2),
    ]
    for one in made:
        costly = {name: values * (1 / factor if name == "multiplier" else factor) for name, values in one.items()}
        assert kinds(costly, limits=(factor * LIMIT,)) == kinds(one) != set()


def test_a_remark_is_of_half_of_the_seeds_at_least_and_says_of_how_many():
    cost = np.full((EPOCHS, SEEDS), 1.5 * LIMIT)
    cost[:, 0] = LIMIT
    [text] = [r.text for r in remarks.of(history(cost=cost, multiplier=0.0), about()) if r.kind == "idle 0"]
    assert "in 3 of 4 seeds" in text
    cost[:, :3] = LIMIT
    assert "idle" not in kinds(history(cost=cost, multiplier=0.0))


def test_each_constraint_has_remarks_of_its_own():
    one, other = history(cost=1.5 * LIMIT, multiplier=0.0), history(cost=LIMIT, multiplier=1.0)
    both = {name: np.concatenate([other[name], one[name]], axis=-1) for name in one}
    found = remarks.of(both, about(limits=(LIMIT, LIMIT), names=("bombs", "noise")))
    assert {remark.kind for remark in found} == {"idle 1", "out_of_reach 1"}
    assert all("noise" in remark.text for remark in found)


def test_metrics_that_an_algorithm_lacks_make_no_remark():
    assert kinds(history(cost=1.5 * LIMIT, multiplier=None)) == set()
    assert kinds({"return": np.zeros((EPOCHS, SEEDS))}) == set()
    assert kinds(history(multiplier=None, error=0.2)) == {"too_few_samples"}


def test_every_remark_is_one_line_and_made_once_also_after_an_interruption():
    written, told = [], []
    book = Book([{"kind": "idle 0"}], written.append, told.append)
    for remark in (Remark("idle 0", "before"), Remark("idle 1", "now"), Remark("idle 1", "again")):
        book.note(remark, 7)
    book.say("an adjustment\nwas refused.", 8)
    book.say("an adjustment was refused.", 9)
    book.say("", 9)
    assert told == ["remark: now", "remark: an adjustment was refused."]
    assert [(one["epoch"], one["text"]) for one in written] == [(7, "now"), (8, "an adjustment was refused.")]
    again = Book(written, written.append, told.append)
    again.say("an adjustment was refused.", 10)
    assert len(written) == 2
