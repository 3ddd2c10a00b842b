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


def test_at_a_limit_of_0_the_error_of_a_drift_is_compared_with_how_episodes_differ():
    """A batch of episodes whose drift varies by 1: two errors are 0.3, and a tenth of two deviations is 0.2."""
    made = history(cost=rising(-0.3, 0.1), error=0.15) | {"cost_deviation": history(cost=1.0)["cost"]}
    [remark] = [r for r in remarks.of(made, about(limits=(0.0,))) if r.kind == "too_few_samples 0"]
    assert "--batch 2300 would know it to a tenth of how episodes differ." in remark.text
    [remark] = [r for r in remarks.of(made, about(limits=(0.0,), epochs=20)) if r.kind == "too_few_samples 0"]
    assert "would take batches of 2,300, too many for this run; each fourfold --batch halves it" in remark.text
    enough = made | {"cost_error": 0.5 * made["cost_error"]}
    assert "too_few_samples" not in kinds(enough, limits=(0.0,))
    # Of a cost that is never negative any excess is known as such.
    assert "too_few_samples" not in kinds(made | {"cost": np.abs(made["cost"])}, limits=(0.0,))


def test_a_limit_below_anything_seen_is_remarked_upon_without_multipliers_too_where_limits_are_obeyed():
    over = history(cost=1.5 * LIMIT, multiplier=None)
    assert kinds(over) == set()
    for name in ("recovering", "penalised"):
        [remark] = remarks.of(over | {name: np.ones((EPOCHS, SEEDS))}, about())
        assert remark.kind == "out_of_reach 0"
        assert "multiplier" not in remark.text


def on_trial(taken, at=5):
    """A run with a trial in one epoch, by seed adopted or not; the epoch before it earned 7 and cost 1."""
    made = history(cost=np.where(np.arange(EPOCHS) == at, 3.0, 1.0))
    made["return"] = np.broadcast_to(np.where(np.arange(EPOCHS) == at, 9.0, 7.0)[:, None], (EPOCHS, SEEDS))
    epochs = (np.arange(EPOCHS) == at)[:, None]
    return made | {"actor_on_trial": epochs * np.ones(SEEDS), "actor_taken": epochs * np.asarray(taken, float)}


def test_an_actor_that_was_refused_is_told_with_what_its_epoch_showed_and_the_one_before():
    made = {name: values[:6] for name, values in on_trial([1, 0, 0, 1]).items()}
    tried = np.asarray([True, True, False, False])
    assert remarks.refused(made, about(), tried, [10, 11, 12, 13]) == [
        "seed 11: the off-policy actor of the adjustment after 5 epochs was refused: its epoch showed a return of 9 "
        "with bombs of 3 (limit 2), and the epoch before it a return of 7 with bombs of 1 (limit 2)."
    ]
    del made["actor_taken"]
    assert remarks.refused(made, about(), tried, [10, 11, 12, 13]) == []


def test_actors_that_were_tried_beside_pdo_and_never_adopted_are_remarked_upon_at_the_end():
    made = on_trial([0, 0, 0, 0])
    [remark] = [r for r in remarks.of(made, about()) if r.kind == "never_adopted"]
    assert "none of the 4 actors" in remark.text
    assert "showed a return of 9 with bombs of 3 (limit 2), and the epochs before them a return of 7" in remark.text
    assert "never_adopted" not in kinds({name: values[:-1] for name, values in made.items()})
    [remark] = [r for r in remarks.of(on_trial([1, 0, 0, 1]), about()) if r.kind == "never_adopted"]
    assert "none of the 2 actors of the off-policy learner that were tried was adopted in 2 of 4 seeds" in remark.text
    assert "never_adopted" not in kinds(on_trial([1, 1, 0, 1]))
    assert "never_adopted" not in kinds(made | {"actor_on_trial": np.zeros((EPOCHS, SEEDS))})


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


def earning(returned, error=0.01, **costs):
    """A history with returns: a number for each epoch."""
    values = np.broadcast_to(np.asarray(returned, dtype=np.float32)[:, None], (EPOCHS, SEEDS))
    return history(**costs) | {"return": values, "return_error": np.full_like(values, error)}


def test_policies_that_earn_far_less_than_earlier_ones_at_no_lower_cost_are_remarked_upon():
    lost = np.concatenate([np.linspace(0.0, 12.0, 20), np.full(EPOCHS - 20, 1.0)])
    assert "forgotten" in kinds(earning(lost))
    # What is lost is not half of what was gained.
    assert "forgotten" not in kinds(earning(np.where(np.arange(EPOCHS) < 20, lost, 8.0)))
    assert "forgotten" not in kinds(earning(np.linspace(0.0, 12.0, EPOCHS)))
    # It bought a lower cost. But where the limit was kept before, a lower cost buys nothing.
    falls = np.concatenate([np.full(20, 1.0), np.full(EPOCHS - 20, 0.5)])
    assert "forgotten" not in kinds(earning(lost, cost=2.0 * LIMIT * falls))
    assert "forgotten" in kinds(earning(lost, cost=LIMIT * falls))
    # Too noisy to say.
    assert "forgotten" not in kinds(earning(lost, error=30.0))
    # Only in one seed of four.
    one = earning(lost)
    one["return"] = np.where(np.arange(SEEDS) == 0, one["return"], 12.0)
    assert "forgotten" not in kinds(one)


def test_the_remark_on_what_was_forgotten_names_both_outcomes_and_adopted_actors():
    lost = np.concatenate([np.full(20, 12.0), np.full(EPOCHS - 20, 1.0)])
    lost[0] = 0.0
    made = earning(lost)
    (found,) = (one.text for one in remarks.of(made, about()) if one.kind == "forgotten")
    assert "a return of 12 with bombs of 2 (limit 2)" in found
    assert "the latest ten a return of 1 with" in found
    assert "Larger batches" in found
    actors = np.zeros((EPOCHS, SEEDS))
    actors[25] = 1.0
    (found,) = (
        one.text
        for one in remarks.of(made | {"actor_taken": actors, "actor_on_trial": actors}, about())
        if one.kind == "forgotten"
    )
    assert "--no-companion" in found
