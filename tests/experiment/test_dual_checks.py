"""The checks of an estimate speak in the units of the limits, also where a total is read off discounted sums."""

import numpy as np
import pytest

from apdo.datasets import Dataset
from apdo.experiment import multipliers

LENGTH, DISCOUNT, CHANCE = 60, 0.9, 0.5
SMALL = {
    "members": 2,
    "iterations": 2000,
    "check_iterations": 2000,
    "learner.critic_rate": 5e-3,
    "learner.critic_hidden": "16",
    "learner.actor_hidden": "8",
    "learner.minibatch": 32,
}


def coin_log(cost_discount, limit, *, unit=1.0, episodes=400, discount=DISCOUNT):
    """Every step costs one unit or nothing, by a coin that no action moves: 30 of 60 steps, in the mean."""
    rng = np.random.default_rng(0)
    count = episodes * LENGTH
    choice, coin = rng.integers(0, 2, count), rng.uniform(size=count) < CHANCE
    step = np.tile(np.arange(LENGTH), episodes)
    return Dataset.of(
        observation=np.ones((count, 1), np.float32),
        action=choice,
        reward=choice.astype(np.float32),
        cost=(unit * coin[:, None]).astype(np.float32),
        next_observation=np.ones((count, 1), np.float32),
        terminated=np.zeros(count, dtype=bool),
        truncated=step == LENGTH - 1,
        episode=np.repeat(np.arange(episodes), LENGTH),
        step=step,
        discount=discount,
        cost_discount=cost_discount,
        limits=(limit,),
        horizon=LENGTH,
        horizon_terminates=False,
        choices=2,
        cost_names=("tails",),
    )


@pytest.fixture(scope="module")
def total():
    return multipliers.estimate(coin_log(1.0, 40.0), dict(SMALL)).diagnostics


def test_of_a_total_episodes_critics_and_actors_all_speak_in_totals(total):
    """What an actor does has no part in it, so that all three must say 30."""
    assert total.logged[1] == pytest.approx(CHANCE * LENGTH, rel=0.05)
    assert total.calibrated[1] == pytest.approx(total.logged[1], rel=0.05)
    np.testing.assert_allclose(total.actor_cost, total.logged[1], rtol=0.05)
    # Parts of the data are totals too.
    assert total.blocks[:, 0].mean() == pytest.approx(total.logged[1], rel=1e-6)
    # The return is earned by one choice of two.
    assert total.logged[0] == pytest.approx(0.5 * LENGTH, rel=0.05)
    assert total.calibrated[0] == pytest.approx(total.logged[0], rel=0.05)


def test_a_total_is_that_of_the_episodes_also_where_much_of_a_discounted_sum_lies_beyond_them():
    """γ^60 is a third: of a sum that goes on, a total is not the share that the episodes' own steps have."""
    found = multipliers.estimate(coin_log(1.0, 40.0, discount=0.98), dict(SMALL)).diagnostics
    np.testing.assert_allclose(found.tail, 0.98**LENGTH, rtol=0.2)
    assert found.logged[1] == pytest.approx(CHANCE * LENGTH, rel=0.1)
    assert found.logged[0] == pytest.approx(0.5 * LENGTH, rel=0.1)


def test_what_lies_beyond_the_end_of_the_episodes_is_a_share_of_the_total(total):
    """γ^60 of everything lies there, whatever it is counted in."""
    np.testing.assert_allclose(total.tail, DISCOUNT**LENGTH, rtol=0.2)


def test_of_a_discounted_sum_they_speak_in_discounted_sums():
    found = multipliers.estimate(coin_log(DISCOUNT, 7.0), dict(SMALL)).diagnostics
    for said in (found.logged[1], found.calibrated[1], *found.actor_cost[:, 0]):
        assert said == pytest.approx(CHANCE / (1.0 - DISCOUNT), rel=0.06)


def test_a_total_in_other_units_is_as_many_of_them(total):
    other = multipliers.estimate(coin_log(1.0, 40.0 / 8, unit=1 / 8), dict(SMALL)).diagnostics
    for name in ("logged", "calibrated", "calibration_error"):
        np.testing.assert_allclose(getattr(other, name)[1], getattr(total, name)[1] / 8, rtol=1e-4, err_msg=name)
    np.testing.assert_allclose(other.tail, total.tail, rtol=1e-4)
    np.testing.assert_allclose(other.actor_cost, total.actor_cost / 8, rtol=1e-4)


def test_a_limit_between_the_discounted_sum_and_the_total_is_held_against_the_total():
    """A limit of 20 is above the discounted 5 and below the total 30: nobody keeps it."""
    found = multipliers.estimate(coin_log(1.0, 20.0), dict(SMALL))
    assert any("no policy in the data and no learned actor keeps the limit 20 of tails" in s for s in found.unsupported)
    kept = multipliers.estimate(coin_log(1.0, 40.0), dict(SMALL))
    assert not any("tails" in sentence for sentence in kept.unsupported), kept.unsupported
