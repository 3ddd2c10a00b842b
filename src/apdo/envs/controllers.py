"""Hand-written controllers to hold learned policies against.

Each is a function (memory, observation, key) ↦ (action, memory) for one environment, with the memory that an episode
starts from: what `apdo.rollout` plays.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from apdo.envs import wind_turbine as wt
from apdo.envs.queueing import QueueingNetwork
from apdo.envs.wind_turbine import WindTurbine

Controller = Callable[[Array, Array, PRNGKeyArray], tuple[Array, Array]]

DAMPING, FREQUENCY = 0.7, 0.6
"""ζ and ω_n (rad/s) of the speed loop, as the reference turbine's controller has them."""
KNOTS = 64
TRANSITION = 0.9
"""Share of rated speed where the K ω² law hands over to a straight line up to rated torque."""


def classical(turbine: WindTurbine) -> tuple[Controller, Array]:
    """The reference turbine's control: torque by the speed squared, pitch by a gain-scheduled PI law.

    Below `TRANSITION` times rated speed τ = K ω², which holds the best tip-speed ratio; from there a line up to rated
    torque at rated speed; above, rated torque. Pitch: β_ref = K_P(β) e + K_I(β) ∫e, e = ω - ω_rated, with gains that
    give the speed loop ζ and ω_n at every pitch (the report's equations 7-13), from this model's own dP/dβ. The memory
    is the integral term, an angle, kept within the actuator's range.
    """
    angles, slopes = _sensitivity()

    def act(
        memory: Float[Array, ""],
        observation: Float[Array, " O"],
        key: PRNGKeyArray,  # noqa: ARG001
    ) -> tuple[Float[Array, "2"], Float[Array, ""]]:
        speed = wt.RATED_SPEED * (1.0 + observation[0] / 10.0)
        pitch = 10.0 * (observation[4] + 1.0)
        demand = pitch + observation[5]
        error = speed - wt.RATED_SPEED
        weight = wt.INERTIA * wt.RATED_SPEED / jnp.interp(pitch, jnp.asarray(angles), jnp.asarray(slopes))
        # The integral starts from the pitch that the episode starts with.
        integral = jnp.where(jnp.isnan(memory), pitch, memory)
        integral = jnp.clip(integral + FREQUENCY**2 * weight * error * turbine.control_step, 0.0, wt.MOST_PITCH)
        wanted = jnp.clip(integral + 2.0 * DAMPING * FREQUENCY * weight * error, 0.0, wt.MOST_PITCH)
        rate = (wanted - demand) / (wt.DEMAND_RATE * turbine.control_step)
        torque = classical_torque(speed)
        return jnp.clip(jnp.stack([rate, 2.0 * torque / wt.MOST_TORQUE - 1.0]), -1.0, 1.0), integral

    return act, jnp.asarray(jnp.nan)


def classical_torque(speed: Float[Array, ""]) -> Float[Array, ""]:
    """The generator torque for a rotor speed, N m on the fast shaft."""
    # ½ ρ A R³ C_p / λ³ on the slow shaft, where C_p is largest.
    gain = 0.5 * wt.AIR_DENSITY * wt.AREA * wt.RADIUS**3 * wt.BEST_POWER / wt.BEST_RATIO**3 / wt.GEAR
    knee = TRANSITION * wt.RATED_SPEED
    share = (speed - knee) / (wt.RATED_SPEED - knee)
    line = gain * knee**2 + share * (wt.RATED_TORQUE - gain * knee**2)
    return jnp.clip(jnp.where(speed < knee, gain * speed**2, line), 0.0, wt.RATED_TORQUE)


@functools.cache
def _sensitivity() -> tuple[np.ndarray, np.ndarray]:
    """-dP/dβ (W per degree) against the steady pitch, at rated speed, from rated wind to 19 m/s."""
    speed = jnp.asarray(wt.RATED_SPEED)
    with jax.ensure_compile_time_eval():
        winds = jnp.linspace(11.5, 19.0, KNOTS)
        angles = jax.vmap(wt.steady_pitch)(winds)
        slopes = jax.vmap(jax.grad(lambda b, w: wt.forces(w, speed, b)[0] * wt.RATED_SPEED))(angles, winds)
        return np.asarray(angles), -np.asarray(slopes)


def max_weight(network: QueueingNetwork, value: float, price: float) -> tuple[Controller, Array]:
    """Max-weight scheduling with drift plus penalty (Tassiulas and Ephremides 1992; Neely 2010).

    Of all actions the one with the largest score (`max_weight_scores`). It has no memory.
    """

    def act(
        memory: Float[Array, ""],
        observation: Float[Array, " O"],
        key: PRNGKeyArray,  # noqa: ARG001
    ) -> tuple[Float[Array, " A"], Float[Array, ""]]:
        scores = max_weight_scores(network, network.lengths(observation), value, price)
        return jax.nn.one_hot(jnp.argmax(scores), network.action_size), memory

    return act, jnp.zeros(())


def max_weight_scores(
    network: QueueingNetwork, length: Float[Array, " n"], value: float | Array, price: float | Array
) -> Float[Array, " A"]:
    """For each action, V·utility admitted - backlog admitted + backlog·service rate - p·power, in expectation.

    The backlog that is served is what a queue holds and is expected to get in the slot: an arrival may be served at
    once. V (`value`) sets at which backlog admission stops, p (`price`) at which it pays to serve, and at which power.
    """
    admits, share, power = (jnp.asarray(part, dtype=jnp.float32) for part in network.choices())
    arrival, utility = jnp.asarray(network.arrival), jnp.asarray(network.utility)
    offered = arrival * (length < network.buffer)
    admitted = admits * jnp.vdot(offered, value * utility - length)
    served = jnp.sum(share * (length[None] + admits[:, None] * offered[None]), axis=1)
    return admitted + served - price * power


def max_weight_policy(network: QueueingNetwork, value: float, price: float) -> Float[np.ndarray, "S A"]:
    """The same as probabilities for each state of the network's model."""
    lengths = jax.vmap(network.lengths)(jnp.asarray(network.observations()))
    scores = jax.vmap(lambda length: max_weight_scores(network, length, value, price))(lengths)
    return np.eye(network.action_size)[np.argmax(np.asarray(scores), axis=1)]
