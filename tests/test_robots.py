"""When a target counts as met in the study of long tasks."""

import numpy as np
import pytest
from benchmarks import robots


def curve(returns, costs):
    return {"samples": [20_000 * (i + 1) for i in range(len(returns))], "return": returns, "cost": costs}


@pytest.mark.parametrize(
    ("returns", "costs", "expected"),
    [
        ([9, 9, 9], [0, 0, 0], 20_000),
        ([1, 9, 9, 9], [0, 26.25, 0, 26.25], 40_000),
        ([9, 9, 1, 9, 9, 9], [0] * 6, 80_000),
        ([9, 9, 9, 9, 9], [0, 0, 26.3, 0, 0], np.inf),
        ([9, 9], [0, 0], np.inf),
        ([], [], np.inf),
    ],
)
def test_a_target_is_met_from_the_first_of_three_evaluations_in_a_row_within_the_limit(returns, costs, expected):
    assert robots.samples_to(curve(returns, costs), 9.0) == expected


def test_a_seed_that_never_meets_its_target_counts_in_the_median():
    found = {"samples": 60_000, "curves": {str(i): curve([3000] * 3, [cost] * 3) for i, cost in enumerate((0, 99, 99))}}
    cells = robots.row("halfcheetah-velocity", "sac-lag", found)
    assert cells[3] == "more than 60,000 (worst never; 1 of 3)"
