"""The turbine's physics, against its published numbers and against laws."""

import functools
import itertools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from apdo import rollout
from apdo.errors import InvalidInput
from apdo.tasks import controllers
from apdo.tasks import wind_turbine as wt
from apdo.tasks.wind_turbine import WindTurbine
from tasks.test_fatigue import counted_damage

CALM = WindTurbine(turbulence=0.0)


def scalar(value):
    return jnp.asarray(value, dtype=jnp.float32)


def play(turbine, controller, episodes, seed=0):
    act, memory = controller

    def run(key):
        return rollout.collect(turbine, act, memory, key, steps=turbine.horizon, environments=episodes)

    return jax.jit(run)(jax.random.key(seed))


@functools.cache
def _settling():
    act, memory = controllers.classical(CALM)

    @jax.jit
    def run(wind):
        start = CALM.place(wind, jnp.zeros(()), wt.RATED_SPEED * jnp.minimum(wind / 11.4, 1.0), wt.steady_pitch(wind))

        def tick(carry, key):
            state, memory = carry
            action, memory = act(memory, CALM.observe(state), key)
            outcome = CALM.step(state, action, key)
            return (outcome.state, memory), outcome.reward

        (state, _), reward = jax.lax.scan(tick, (start, memory), jax.random.split(jax.random.key(0), 600))
        return state, reward[-1]

    return run


def settled(wind):
    """Where five minutes of the classical controller bring the turbine in a steady wind, and its power then."""
    state, reward = _settling()(scalar(wind))
    return state, float(reward) * wt.RATED_POWER


@pytest.fixture(scope="module")
def coefficients():
    ratios, pitches = jnp.linspace(0.0, 20.0, 401), jnp.linspace(0.0, wt.MOST_PITCH, 121)
    power = jax.vmap(lambda r: jax.vmap(lambda b: wt.power_coefficient(r, b))(pitches))(ratios)
    return np.asarray(ratios), np.asarray(power)


def test_no_tip_speed_ratio_and_pitch_gives_more_than_betz_allows(coefficients):
    _, power = coefficients
    assert power.max() < wt.BETZ
    assert np.all(np.isfinite(power))


def test_the_power_coefficient_peaks_at_the_published_0482_at_fine_pitch(coefficients):
    ratios, power = coefficients
    best = np.unravel_index(np.argmax(power), power.shape)
    assert power.max() == pytest.approx(0.482, abs=1e-4)
    assert best[1] == 0
    assert ratios[best[0]] == pytest.approx(wt.BEST_RATIO, abs=0.05)


def test_thrust_and_power_obey_momentum_theory():
    for share in np.linspace(0.01, 1.0, 25):
        power = share * wt.BEST_POWER
        thrust = float(wt.thrust_coefficient(scalar(power)))
        a = (1.0 - math.sqrt(1.0 - thrust)) / 2.0
        assert a <= 1.0 / 3.0 + 1e-3
        # C_p = η C_t (1 - a), η chosen so that the best C_p is that of Betz's disc.
        assert power == pytest.approx(wt.BEST_POWER / wt.BETZ * thrust * (1.0 - a), rel=2e-3, abs=2e-4)
    # Never more thrust than the disc of largest thrust here, at a = 1/3.
    assert float(wt.thrust_coefficient(scalar(0.482))) == pytest.approx(8.0 / 9.0, abs=2e-3)


@pytest.mark.parametrize(
    ("wind", "published"), [(12.0, 3.83), (13.0, 6.60), (15.0, 10.45), (17.0, 13.54), (19.0, 16.23)]
)
def test_the_steady_pitch_is_the_published_one_to_two_degrees(wind, published):
    """NREL/TP-500-38060, table 7-1."""
    assert float(wt.steady_pitch(scalar(wind))) == pytest.approx(published, abs=2.0)


def test_at_a_fixed_point_the_wind_s_power_is_what_generator_and_losses_take():
    last, power = settled(15.0)
    aerodynamic, thrust = wt.forces(last.wind - last.velocity, last.speed, last.pitch)
    given = float(aerodynamic * last.speed)
    assert given == pytest.approx(power / wt.EFFICIENCY, rel=2e-3)
    assert float(last.speed) == pytest.approx(wt.RATED_SPEED, rel=2e-3)
    # The tower leans as far as its stiffness lets the thrust push it.
    stiffness = wt.TOWER_MASS * (2.0 * math.pi * wt.TOWER_FREQUENCY) ** 2
    assert float(last.deflection) == pytest.approx(float(thrust) / stiffness, rel=1e-2)


def test_the_classical_controller_gives_rated_power_just_above_rated_wind_and_the_cube_law_below():
    _, power = settled(12.0)
    assert power == pytest.approx(5.0e6, rel=0.01)
    last, power = settled(8.0)
    best = 0.5 * wt.AIR_DENSITY * wt.AREA * 8.0**3 * wt.BEST_POWER * wt.EFFICIENCY
    assert power == pytest.approx(best, rel=0.01)
    assert float(last.speed) * wt.RADIUS / 8.0 == pytest.approx(wt.BEST_RATIO, rel=0.03)


def test_rated_torque_at_rated_speed_is_rated_power():
    """Units: rpm, N m on the fast shaft, gear ratio and efficiency together make 5 MW."""
    power, tip = wt.EFFICIENCY * wt.GEAR * wt.RATED_TORQUE * wt.RATED_SPEED, wt.RATED_SPEED * wt.RADIUS
    assert power == pytest.approx(5.0e6, rel=1e-3)
    assert tip == pytest.approx(80.0, abs=0.5)  # published


def test_a_tower_let_go_swings_at_its_frequency_and_loses_what_its_damping_takes(double_precision):
    """In next to no wind, so that the air damps nothing."""
    state = CALM.place(jnp.asarray(12.0), jnp.asarray(0.0), jnp.asarray(wt.RATED_SPEED), jnp.asarray(2.0))

    def swing(state, _):
        return CALM.integrate(state, jnp.asarray(0.0), 0.01), state.deflection

    # A wind that has no power to speak of, held there by a disc that takes hours to notice another.
    still = eqx.tree_at(
        lambda s: (s.mean_wind, s.wind, s.deflection), state, (jnp.asarray(1e-3), jnp.asarray(0.5), jnp.asarray(1.0))
    )
    _, x = jax.lax.scan(swing, still, None, length=3000)
    x = np.asarray(x)
    crossings = np.flatnonzero((x[:-1] > 0) & (x[1:] <= 0))
    period = 0.01 * np.diff(crossings).mean()
    assert 1.0 / period == pytest.approx(wt.TOWER_FREQUENCY * math.sqrt(1 - wt.TOWER_DAMPING**2), rel=5e-3)
    peaks = [x[a : b + 1].max() for a, b in itertools.pairwise(crossings)]
    decrement = math.log(peaks[0] / peaks[5]) / 5
    assert decrement == pytest.approx(2 * math.pi * wt.TOWER_DAMPING, rel=0.1)


def test_halving_the_integration_step_changes_little_and_the_less_the_smaller_it_is():
    """Four seconds from a state far from balance; the wind is steady, so that only the integrator differs."""

    def after(substeps):
        turbine = WindTurbine(turbulence=0.0, substeps=substeps)
        state = turbine.place(scalar(13.0), scalar(0.0), scalar(1.05 * wt.RATED_SPEED), scalar(3.0))
        step = jax.jit(turbine.step)
        for _ in range(8):
            state = step(state, jnp.asarray([0.3, 0.5]), jax.random.key(0)).state
        return np.array([state.speed / wt.RATED_SPEED, state.pitch / 10.0, state.deflection, state.velocity])

    exact = after(64)
    coarse, fine = np.abs(after(2) - exact), np.abs(after(8) - exact)
    assert coarse.max() < 5e-3
    assert fine.max() < 5e-4
    assert fine.max() < 0.2 * coarse.max()


def test_turbulence_has_the_normal_model_s_deviation_and_kaimal_s_time_scale():
    turbine = WindTurbine(wind=(12.0, 12.0), horizon=600)

    @jax.jit
    def blow(key):
        start_key, key = jax.random.split(key)
        start = turbine.reset(start_key)

        def tick(gust, noise):
            state = eqx.tree_at(lambda s: s.gust, start, gust)
            gust = turbine._gust(state, noise, 0.5)
            return gust, gust

        return jax.lax.scan(tick, start.gust, jax.random.normal(key, (600,)))[1]

    gust = np.asarray(jax.vmap(blow)(jax.random.split(jax.random.key(0), 300))).T
    sigma = 0.14 * (0.75 * 12.0 + 5.6)
    assert gust.std() == pytest.approx(sigma, rel=0.05)
    lag = 20  # ten seconds
    correlation = np.mean(gust[:-lag] * gust[lag:]) / np.mean(gust**2)
    assert correlation == pytest.approx(math.exp(-10.0 * 12.0 / 340.2), abs=0.05)


def test_actuators_stay_within_their_published_rates():
    turbine = WindTurbine(turbulence=0.0)
    state, step = turbine.reset(jax.random.key(0)), jax.jit(turbine.step)
    for action in ([1.0, 1.0], [-1.0, -1.0], [50.0, -50.0]):
        after = step(state, jnp.asarray(action), jax.random.key(1)).state
        assert abs(float(after.pitch - state.pitch)) <= wt.PITCH_RATE * 0.5 + 1e-4
        assert abs(float(after.torque - state.torque)) <= wt.TORQUE_RATE * 0.5 + 0.1
        assert 0.0 <= float(after.demand) <= wt.MOST_PITCH
        state = after


def test_the_cost_is_the_rainflow_count_of_the_moments_and_the_time_above_the_limit():
    """Of episodes with random actions, each counted afterwards as a whole."""
    turbine = WindTurbine(horizon=200, substeps=1)
    run = jax.jit(
        jax.vmap(lambda key: rollout.watch(turbine, lambda m, o, k: (jax.random.normal(k, (2,)), m), (), key))
    )
    states, steps = run(jax.random.split(jax.random.key(3), 16))
    told = np.asarray(steps.cost)[..., 0].sum(axis=1) * turbine.control_step
    loads = np.asarray(states.residue)[..., 0]
    counted = np.array([np.mean([counted_damage(one[:, i].tolist(), 4.0) for i in range(2)]) for one in loads])
    # The residue holds twelve turning points, and forgets the oldest: a little may be missing, nothing is added.
    assert np.all(told <= 1.001 * counted)
    assert np.all(told >= 0.9 * counted)
    assert np.median(told / counted) > 0.99
    assert np.corrcoef(np.log(told), np.log(counted))[0, 1] > 0.99
    fast = 100.0 * (np.asarray(states.speed)[:, 1:] > 1.1 * wt.RATED_SPEED)
    np.testing.assert_allclose(np.asarray(steps.cost)[..., 1], fast)


def test_the_classical_controller_does_about_one_unit_of_damage_and_earns_four_fifths_of_rated_power():
    batch = play(WindTurbine(), controllers.classical(WindTurbine()), 400)
    assert float(batch.cost[..., 0].mean()) == pytest.approx(1.0, abs=0.25)
    assert float(batch.cost[..., 1].mean()) < 0.5
    assert 0.8 < float(batch.reward.mean()) < 0.88


def test_doing_nothing_and_doing_anything_keeps_every_number_finite():
    @jax.jit
    def run(action):
        # What to do is the episode's memory, so that one program plays them all.
        act = lambda memory, observation, key: (memory, memory)  # noqa: E731
        return rollout.collect(WindTurbine(), act, action, jax.random.key(0), steps=600, environments=8)

    for action in ([0.0, 0.0], [-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 1.0]):
        batch = run(jnp.asarray(action))
        assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(batch))
        assert float(jnp.max(batch.reward)) <= 1.0
        assert float(jnp.min(batch.reward)) >= 0.0


@pytest.mark.parametrize(
    "options", [{"wind": (9.0,)}, {"wind": (15.0, 9.0)}, {"wind": (9.0, 26.0)}, {"wohler": (4.0,)}]
)
def test_a_wind_or_exponent_that_the_model_does_not_cover_is_refused(options):
    with pytest.raises(InvalidInput):
        WindTurbine(**options)
