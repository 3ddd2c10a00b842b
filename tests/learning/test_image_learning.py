"""PDO learns from images alone."""

import pytest

import apdo

pytest.importorskip("gymnasium", reason="Gymnasium is not installed")

from image_environment import Dots

pytestmark = pytest.mark.slow


def test_pdo_leads_a_dot_to_its_target_and_off_the_stripe(tmp_path):
    """A random walk gets nowhere; the target is 9 steps away on average, and the way through the stripe costs."""
    result = apdo.train(
        "pdo",
        Dots,
        out=tmp_path / "run",
        limits=0.3,
        max_episode_steps=14,
        epochs=20,
        batch=1400,
        environments=50,
        critic__passes=2,
        quiet=True,
    )
    earned, cost = result.metrics["return"][0], result.metrics["cost"][0, :, 0]
    assert abs(earned[0]) < 1.0
    assert earned[-5:].mean() > earned[0] + 3.0
    assert cost[-5:].mean() < 0.6
