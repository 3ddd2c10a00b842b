"""Learning outcomes on point-gather."""

import numpy as np
import pytest

import apdo

pytestmark = pytest.mark.slow


def test_trpo_more_than_doubles_the_return_in_ten_epochs(tmp_path):
    result = apdo.train("trpo", "point-gather", epochs=11, batch=10_000, out=tmp_path / "run", quiet=True)
    returns = result.metrics["return"][0]
    assert returns[-1] > 2.0 * returns[0]


def test_a_fixed_multiplier_of_twenty_halves_the_cost(tmp_path):
    result = apdo.train(
        "pdo",
        "point-gather",
        epochs=15,
        batch=10_000,
        dual_step=0,
        initial_multiplier=20,
        out=tmp_path / "run",
        quiet=True,
    )
    costs = result.metrics["cost"][0, :, 0]
    assert np.all(result.metrics["multiplier"] == 20.0)
    assert costs[-1] < 0.5 * costs[0]


def test_cpo_earns_eleven_within_the_limit_by_epoch_65(tmp_path):
    result = apdo.train("cpo", "point-gather", preset="paper", epochs=65, seeds=3, out=tmp_path / "run", quiet=True)
    returns, costs = result.metrics["return"][:, -5:].mean(axis=1), result.metrics["cost"][:, -5:, 0].mean(axis=1)
    assert np.median(returns) >= 11.0
    assert np.all(costs <= 0.23)


def test_pdo_misses_the_limit_for_as_long_as_the_paper_says(tmp_path):
    result = apdo.train("pdo", "point-gather", preset="paper", seeds=2, out=tmp_path / "run", quiet=True)
    assert np.all(result.metrics["cost"][:, 20:, 0] > 0.2)
    assert np.all(result.metrics["return"][:, -1] > 12.0)
