"""Hand-written controllers to compare learned policies with.

Each is a function (memory, observation, key) ↦ (action, memory) for one environment, and the memory at the start of an
episode. `apdo.rollout` can play them.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from apdo.tasks import wind_turbine as wt
from apdo.tasks.queueing import QueueingNetwork
from apdo.tasks.wind_turbine import WindTurbine

Controller = Callable[[Array, Array, PRNGKeyArray], tuple[Array, Array]]

DAMPING, FREQUENCY = 0.7, 0.6
"""ζ and ω_n (rad/s) of the speed loop, as in the reference turbine's controller."""
KNOTS = 64
TRANSITION = 0.9
"""The share of rated speed at which the K ω² law ends and a straight line up to rated torque begins."""


def classical(turbine: WindTurbine) -> tuple[Controller, Array]:
    """The reference turbine's control: torque by the speed squared, pitch by a gain-scheduled PI law.

    Below `TRANSITION` times rated speed, the torque is τ = K ω², which keeps the best tip-speed ratio. From there it
    rises linearly to rated torque at rated speed, and is constant above. The pitch demand is
    β_ref = K_P(β) e + K_I(β) ∫e with e = ω - ω_rated. Its gains give the speed loop ζ and ω_n at every pitch (the
    report's equations 7-13), and are computed from this model's own dP/dβ. The memory is the integral term, an angle in
    degrees, kept within the actuator's range.
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


@dataclasses.dataclass(frozen=True)
class MaxWeight:
    """Max-weight scheduling with drift plus penalty (Tassiulas and Ephremides 1992; Neely 2010).

    In each slot the action with the largest score, in expectation over arrivals and service:

        Σ_i admitted_i (V u_i - b_i) + b_i (rate at which i is served) - p · power,      b_i = Q_i + s_i

    In the service term b_i includes the expected arrivals of the slot, because they may be served at once.
    """

    value: float | Array
    """V, which determines the backlog at which admission no longer pays."""
    price: float | Array
    """p, which determines the backlog from which service pays, and the power."""
    debt: tuple[float, ...] | Float[Array, " n"]
    """s_i, one for each queue: the content of a virtual queue for its rate constraint.

    Without it an empty queue would never be served. Service comes after arrivals, so with discounting it is worth less
    than they are."""

    def scores(self, network: QueueingNetwork, length: Float[Array, " n"]) -> Float[Array, " A"]:
        """The score of each action, for queues of these lengths."""
        admits, share, power = (jnp.asarray(part, dtype=jnp.float32) for part in network.choices())
        offered = jnp.asarray(network.arrival) * (length < network.buffer)
        backlog = length + jnp.asarray(self.debt)
        admitted = admits * jnp.vdot(offered, self.value * jnp.asarray(network.utility) - backlog)
        served = jnp.sum(share * (backlog[None] + admits[:, None] * offered[None]), axis=1)
        return admitted + served - self.price * power

    def controller(self, network: QueueingNetwork) -> tuple[Controller, Array]:
        """The rule as a controller. It has no memory."""

        def act(
            memory: Float[Array, ""],
            observation: Float[Array, " O"],
            key: PRNGKeyArray,  # noqa: ARG001
        ) -> tuple[Float[Array, " A"], Float[Array, ""]]:
            scores = self.scores(network, network.lengths(observation))
            return jax.nn.one_hot(jnp.argmax(scores), network.action_size), memory

        return act, jnp.zeros(())

    def policy(self, network: QueueingNetwork) -> Float[np.ndarray, "S A"]:
        """The rule as probabilities of actions in each state of the network's model."""
        lengths = jax.vmap(network.lengths)(jnp.asarray(network.observations()))
        scores = jax.vmap(lambda length: self.scores(network, length))(lengths)
        return np.eye(network.action_size)[np.argmax(np.asarray(scores), axis=1)]
