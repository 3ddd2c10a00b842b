"""Hand-written controllers do what their laws say."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from apdo import exact
from apdo.experiment import settings
from apdo.tasks import controllers
from apdo.tasks import wind_turbine as wt
from apdo.tasks.controllers import MaxWeight
from apdo.tasks.queueing import QueueingNetwork
from apdo.tasks.wind_turbine import WindTurbine


def test_torque_goes_with_the_speed_squared_and_then_up_to_rated():
    speeds = np.linspace(0.3, 0.89, 20) * wt.RATED_SPEED
    torque = np.asarray(jax.vmap(controllers.classical_torque)(jnp.asarray(speeds, dtype=jnp.float32)))
    np.testing.assert_allclose(torque / speeds**2, torque[0] / speeds[0] ** 2, rtol=1e-4)
    # The published gain is 0.0255764 N m/rpm² on the fast shaft, for a curve that peaks at 7.55 rather than 6.91.
    gain = torque[0] / (speeds[0] * wt.GEAR * 30 / np.pi) ** 2
    assert gain == pytest.approx(0.0255764 * (7.55 / wt.BEST_RATIO) ** 3, rel=0.02)
    for share, wanted in ((1.0, wt.RATED_TORQUE), (1.2, wt.RATED_TORQUE)):
        assert float(controllers.classical_torque(jnp.asarray(share * wt.RATED_SPEED))) == pytest.approx(
            wanted, rel=1e-4
        )


def test_the_pitch_law_answers_a_fast_rotor_with_the_gains_of_its_second_order_loop():
    """β = K_P e + K_I ∫e, with K_P = 2ζω_n JΩ/(-dP/dβ) and K_I = ω_n² JΩ/(-dP/dβ), as the report designs them."""
    turbine = WindTurbine(turbulence=0.0, control_step=0.01, substeps=1)
    act, memory = controllers.classical(turbine)
    pitch, error = 10.0, 1e-4
    state = turbine.place(jnp.asarray(14.5), jnp.zeros(()), jnp.asarray(wt.RATED_SPEED + error), jnp.asarray(pitch))
    action, after = act(memory, turbine.observe(state), jax.random.key(0))
    winds = jnp.linspace(12.0, 19.0, 200)
    wind = jnp.asarray(np.interp(pitch, np.asarray(jax.vmap(wt.steady_pitch)(winds)), np.asarray(winds)), jnp.float32)
    h = 0.05
    power = [float(wt.forces(wind, jnp.asarray(wt.RATED_SPEED), jnp.asarray(pitch + d))[0]) for d in (-h, h)]
    slope = (power[0] - power[1]) / (2 * h) * wt.RATED_SPEED
    weight = wt.INERTIA * wt.RATED_SPEED / slope
    moved = float(action[0]) * wt.DEMAND_RATE * 0.01
    assert moved == pytest.approx(error * weight * (2 * 0.7 * 0.6 + 0.36 * 0.01), rel=0.05)
    assert float(after) - pitch == pytest.approx(error * weight * 0.36 * 0.01, rel=0.2)


NETWORK = QueueingNetwork()


def lengths(network):
    return list(itertools.product(range(network.buffer + 1), repeat=network.queues))


@pytest.mark.parametrize("network", [NETWORK, QueueingNetwork(buffer=60)])
def test_an_observation_shows_the_queues_lengths(network):
    for state in ([0, 0], [3, 1], [4, 4]):
        seen = network.lengths(network.observe(jnp.asarray(state, dtype=jnp.int32)))
        np.testing.assert_array_equal(np.asarray(seen), state)


def test_max_weight_takes_the_action_of_the_largest_drift_by_brute_force():
    """Every action's score written out queue by queue."""
    rule = MaxWeight(4.0, 2.0, (0.5, 1.0))
    policy = rule.policy(NETWORK)
    admits, share, power = NETWORK.choices()
    for row, state in enumerate(lengths(NETWORK)):
        best = []
        for a in range(NETWORK.action_size):
            score = -2.0 * power[a]
            for i, (arrival, utility, debt) in enumerate(zip(NETWORK.arrival, NETWORK.utility, rule.debt, strict=True)):
                room = state[i] < NETWORK.buffer
                backlog = state[i] + debt
                score += admits[a] * room * arrival * (4.0 * utility - backlog)
                score += share[a, i] * (backlog + admits[a] * room * arrival)
            best.append(score)
        assert best[int(np.argmax(policy[row]))] == pytest.approx(max(best), abs=1e-5)


def test_max_weight_serves_the_longer_of_two_queues_that_are_alike():
    network = QueueingNetwork(arrival=(0.4, 0.4), utility=(1.0, 1.0))
    policy = MaxWeight(4.0, 0.5, (0.0, 0.0)).policy(network)
    _, share, _ = network.choices()
    for row, (first, second) in enumerate(lengths(network)):
        if abs(first - second) >= 1 and max(first, second) < network.buffer:
            served = share[int(np.argmax(policy[row]))]
            assert np.argmax(served) == (0 if first > second else 1)


def test_a_higher_price_of_power_never_draws_more_and_a_higher_value_never_admits_less():
    model = NETWORK.model()
    power = [exact.evaluate(model, MaxWeight(4.0, p, (0.5, 0.5)).policy(NETWORK)).costs[-1] for p in (0.5, 2.0, 8.0)]
    assert power[0] >= power[1] >= power[2]
    assert power[0] > power[2]
    gain = [exact.evaluate(model, MaxWeight(v, 1.0, (0.0, 0.0)).policy(NETWORK)).value for v in (1.0, 3.0, 9.0)]
    assert gain[0] < gain[2]


def test_no_max_weight_rule_beats_the_optimum_s_lagrangian():
    """R - λ*·(C - d) of any policy is at most the optimal return."""
    model = NETWORK.model()
    optimum = exact.solve(model)
    for v, p, debt in itertools.product((2.0, 6.0), (1.0, 4.0), ((0.0, 0.0), (1.0, 2.0))):
        found = exact.evaluate(model, MaxWeight(v, p, debt).policy(NETWORK))
        assert found.value - optimum.multiplier_low @ (found.costs - model.limits) <= optimum.value + 1e-6


def test_a_network_of_three_queues_can_be_asked_for_in_any_order_of_its_options():
    three = {"arrival": "0.3,0.25,0.2", "utility": "1,0.8,0.6", "buffer": 100}
    for changes in (three, dict(reversed(three.items()))):
        assert settings.make_experiment("pdo", "queueing", changes).environment_config.queues == 3
