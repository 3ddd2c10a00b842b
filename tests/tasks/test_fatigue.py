"""Damage told step by step is the standard's rainflow count of the whole history."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from apdo.tasks import fatigue


def rainflow(series):
    """Ranges and counts of ASTM E1049-85, 5.4.4, written from the standard's rules: three points at a time."""
    turning = [series[0]]
    for here, after in zip(series[1:], [*series[2:], None], strict=True):
        if after is None or (here - turning[-1]) * (after - here) < 0:
            turning.append(here)
    points, counted = [], []
    for point in turning:
        points.append(point)
        while len(points) >= 3:
            x, y = abs(points[-1] - points[-2]), abs(points[-2] - points[-3])
            if x < y:
                break
            if len(points) == 3:
                counted.append((y, 0.5))
                points.pop(0)
            else:
                counted.append((y, 1.0))
                del points[-3:-1]
    counted += [(abs(a - b), 0.5) for a, b in itertools.pairwise(points)]
    return counted


def damage(series, m, length=12):
    residue = fatigue.begin(jnp.asarray(series[:1]), length)
    _, done = jax.lax.scan(lambda r, x: fatigue.add(r, x[None], jnp.asarray([m])), residue, jnp.asarray(series))
    return np.asarray(done)[:, 0]


def counted_damage(series, m):
    return sum(count * span**m for span, count in rainflow(series))


def test_the_standard_s_own_example_is_counted_as_in_its_table():
    """ASTM E1049-85, figure 6: -2, 1, -3, 5, -1, 3, -4, 4, -2 gives 4: 1.5, 3: 0.5, 6: 0.5, 8: 1, 9: 0.5."""
    series = [-2.0, 1.0, -3.0, 5.0, -1.0, 3.0, -4.0, 4.0, -2.0]
    table = {3: 0.5, 4: 1.5, 6: 0.5, 8: 1.0, 9: 0.5}
    seen: dict[float, float] = {}
    for span, count in rainflow(series):
        seen[span] = seen.get(span, 0.0) + count
    assert seen == table
    for m in (1.0, 3.0):
        assert damage(series, m).sum() == pytest.approx(sum(n * r**m for r, n in table.items()), rel=1e-5)


@pytest.mark.parametrize("m", [1.0, 4.0, 10.0])
def test_on_random_walks_and_noise_the_sum_is_the_standard_s_count(m):
    rng = np.random.default_rng(0)
    for series in (
        rng.normal(size=300),
        np.cumsum(rng.normal(size=300)) / 5,
        np.sin(np.arange(300) / 3.0) * rng.random(300),
    ):
        series = series.astype(np.float32)
        # Long enough for every turning point that can be open at once.
        assert damage(series, m, 64).sum() == pytest.approx(counted_damage(series.tolist(), m), rel=2e-4)


def test_a_short_residue_misses_little_and_never_counts_more():
    rng = np.random.default_rng(1)
    for _ in range(5):
        series = np.cumsum(rng.normal(size=400)).astype(np.float32) / 5
        whole, short = counted_damage(series.tolist(), 4.0), damage(series, 4.0, 12).sum()
        assert 0.9 * whole <= short <= 1.0002 * whole


def test_a_load_that_does_not_change_does_no_damage_and_one_that_only_grows_does_half_a_cycle():
    assert np.all(damage([3.0] * 20, 4.0) == 0.0)
    assert damage(list(np.linspace(0.0, 2.0, 20)), 4.0).sum() == pytest.approx(0.5 * 2.0**4, rel=1e-5)


def test_a_cycle_of_twice_the_range_does_two_to_the_m_times_the_damage():
    wave = np.sin(np.arange(200) / 4.0)
    assert damage(2 * wave, 3.0).sum() == pytest.approx(8.0 * damage(wave, 3.0).sum(), rel=1e-4)
