"""When the data are said not to support an answer, and how it is told."""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

from apdo.datasets import Dataset
from apdo.experiment.dual_findings import Diagnostics, MultiplierEstimate, reasons
from logged_data import random_log

SOUND = Diagnostics(
    samples=4000,
    episodes=1000,
    logged=np.asarray([10.0, 0.8]),
    logged_error=np.asarray([0.1, 0.01]),
    blocks=np.asarray([[1.0], [0.6]]),
    calibrated=np.asarray([10.2, 0.82]),
    calibration_error=np.asarray([0.1, 0.01]),
    tail=np.zeros(2),
    actor_cost=np.asarray([[0.51], [0.49]]),
    disagreement=np.asarray([0.05]),
    swing=np.asarray([0.2]),
    distance=0.9,
    outside=0.01,
)


def judged(price=5.0, low=4.0, high=6.0, shift=0.0, **changes):
    """The verdict at limit 0.5, of steps that cost so much more than they did."""
    log = random_log(costs=1)
    data = Dataset.of(**log | {"cost": log["cost"] + shift})
    arrays = {name: np.asarray(value) if isinstance(value, list) else value for name, value in changes.items()}
    about = dataclasses.replace(SOUND, **arrays)
    ends = np.asarray([low]), np.asarray([high])
    return list(reasons(data, np.asarray([price]), *ends, about=about, tolerance=0.1, fewest=30))


def test_sound_data_are_not_doubted():
    assert judged() == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"episodes": 29}, "only 29 episodes"),
        ({"low": 2.4, "high": 7.6}, "wider than the estimate"),
        ({"low": 0.0, "high": np.inf}, "a single learner, which has no spread"),
        ({"calibrated": [10.0, 0.92]}, "they say 0.92, and the episodes 0.8"),
        ({"calibrated": [10.0, 0.68]}, "they say 0.68"),
        ({"calibrated": [10.0, np.nan]}, "misjudge"),
        ({"tail": [0.0, 0.6]}, "60% of their cost lies beyond"),
        ({"blocks": [[0.9], [0.7]], "actor_cost": [[0.61], [0.7]]}, "the least cost is 0.61"),
        ({"actor_cost": [[0.61], [0.7]], "blocks": [[0.9], [0.4]]}, "has not settled"),
        ({"actor_cost": [[0.3], [0.35]]}, "has not settled"),
        ({"swing": [1.3]}, "still swings"),
        ({"outside": 0.51}, "actions outside of what was logged"),
        ({"outside": 0.51, "distance": None}, "choices hardly ever logged"),
    ],
)
def test_each_doubt_is_one_sentence(changes, said):
    found = judged(**changes)
    assert len(found) == 1
    assert said in found[0]


def test_a_constraint_that_is_free_needs_no_narrow_interval_and_no_cost_at_the_limit():
    """1 % of the return, 10, over the logged cost, 0.8: a price of 0.125 is next to nothing."""
    assert judged(price=0.0, low=0.0, high=0.1, actor_cost=[[0.2], [0.1]], swing=[0.05]) == []
    assert judged(price=0.0, low=0.0, high=0.2, actor_cost=[[0.2], [0.1]]) != []


def test_a_bias_within_two_standard_errors_is_chance():
    assert judged(calibrated=[10.0, 1.0], calibration_error=[0.1, 0.07]) == []
    assert judged(calibrated=[10.0, 1.0], calibration_error=[0.1, 0.05]) != []


def estimate(**changes):
    parts: dict[str, Any] = {
        "multiplier": np.asarray([5.0]),
        "low": np.asarray([4.0]),
        "high": np.asarray([6.0]),
        "members": np.asarray([[4.5], [5.5]]),
        "iterations": np.asarray([100, 200]),
        "path": np.ones((2, 2, 1)),
        "limits": (0.5,),
        "cost_names": ("bombs",),
        "diagnostics": SOUND,
        "unsupported": (),
    }
    return MultiplierEstimate(**(parts | changes))


def test_an_estimate_says_what_a_unit_of_limit_is_worth():
    words = "\n".join(estimate().describe())
    assert "bombs: limit 0.5, λ = 5 (learners' spread 4 to 6)" in words
    assert "one more unit of limit is worth about 5 in return" in words
    assert "the learners' own: 4.5, 5.5" in words
    assert "0.8 ± 0.01 by its episodes, 0.82 by critics trained on them (off by +0.02 ± 0.01)" in words
    assert words.endswith("supported: no check speaks against this answer")
    assert "worth next to nothing" in "\n".join(estimate(multiplier=np.asarray([0.1])).describe())


def test_the_word_unsupported_and_every_reason_are_said():
    words = estimate(unsupported=("this", "that")).describe()
    assert words[-3:] == ["unsupported: the data cannot support this answer", "  this", "  that"]


def test_what_is_left_beyond_the_end_of_episodes_is_said():
    about = dataclasses.replace(SOUND, tail=np.asarray([0.0, 0.2]))
    assert "of it 20% lies beyond" in "\n".join(estimate(diagnostics=about).describe())


def test_an_estimate_is_plain_values():
    plain = estimate(high=np.asarray([np.inf])).plain()
    back = json.loads(json.dumps(plain, allow_nan=False))
    assert back == plain
    assert back["high"] == [None]
    assert back["supported"] is True
    assert back["diagnostics"]["logged"] == [10.0, 0.8]


def test_of_a_cost_that_can_be_negative_an_actor_may_miss_a_limit_by_a_tenth_of_two_deviations_of_an_episode():
    """0.01 of error in 1,000 episodes is a deviation of 0.316, and so 0.063; of a cost that cannot, a tenth of 0.8."""
    near, far = [[0.44], [0.45]], [[0.43], [0.43]]
    assert judged(actor_cost=far) == judged(actor_cost=near, shift=-10.0) == []
    assert "has not settled" in judged(actor_cost=far, shift=-10.0)[0]
    around_nothing = {"logged": [10.0, 0.001], "calibrated": [10.0, 0.0], "shift": -10.0}
    assert judged(actor_cost=near, **around_nothing) == []
