"""A wind turbine: produce energy while fatigue and over-speed stay under their limits.

The NREL 5 MW reference turbine (Jonkman, Butterfield, Musial and Scott, NREL/TP-500-38060, 2009) as a reduced model.
SI units inside; pitch in degrees, as the power curve has it.

    J ω̇  = ½ ρ A w³ C_p(λ, β) / ω - N τ              rotor and generator on the slow shaft
    β̇    = (β_ref - β) / T_β  within ± 8 °/s           pitch actuator
    τ̇    = (τ_ref - τ) / T_τ  within ± 15 kN m/s       generator torque, on the fast shaft
    M ẍ  = F - 2ζMΩ ẋ - MΩ² x,   F = ½ ρ A w² C_t      first fore-aft mode of the tower, at hub height
    w    = v - ẋ,   λ = ω R / w                        wind relative to the moving rotor
    v̇    = (V + u - v) / T_R                           the rotor disc averages eddies smaller than itself
    du   = -u/T dt + σ √(2/T) dW,   T = L/V            turbulence: Kaimal's variance and long waves

A step holds the demand for `control_step` seconds, and is integrated by the fourth-order Runge-Kutta rule. The reward
is the electrical energy as a share of the energy at rated power. The costs of a step are the fatigue damage of tower
base and blade roots (rainflow, `apdo.tasks.fatigue`) per second, and the percentage of the step above 1.1 times rated
speed. docs/wind-turbine.md lists the sources, and the effects that the model omits.
"""

import dataclasses
import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from apdo.envs.environment import Outcome
from apdo.errors import InvalidInput
from apdo.options import OURS, option
from apdo.tasks import fatigue

REPORT = "NREL/TP-500-38060"
IEC = "IEC 61400-1"

AIR_DENSITY = 1.225
RADIUS = 63.0
AREA = math.pi * RADIUS**2
RATED_POWER = 5.0e6
RATED_SPEED = 12.1 * math.pi / 30.0
RATED_WIND = 11.4
EFFICIENCY = 0.944
GEAR = 97.0
INERTIA = 43_784_725.0
"""The inertia of the rotor, plus that of the generator times the gear ratio squared, kg m²."""
RATED_TORQUE = 43_093.55
MOST_TORQUE = 1.1 * RATED_TORQUE
TORQUE_RATE = 15_000.0
PITCH_RATE = 8.0
MOST_PITCH = 30.0
"""The largest pitch, degrees. It is within the power curve's range; the real turbine feathers at 90°."""
MOST_WIND = 20.0
"""The greatest wind, m/s. Beyond it the power curve wrongly asks for less pitch in more wind."""
HUB_HEIGHT = 90.0
TOWER_FREQUENCY = 0.324
TOWER_DAMPING = 0.01
TOWER_MASS = 240_000.0 + 110_000.0 + 347_460.0 / 4.0
"""The mass of nacelle and rotor, and of the quarter of the tower that moves with the top of a cantilever, kg."""
BETZ = 16.0 / 27.0
BEST_POWER = 0.482
"""The largest value of C_p."""
# At β = 0, C_p has its maximum at 1/Λ = 1/18.4 + 13.2/151, where the bracket is 151/18.4.
_BEST_INVERSE = 1.0 / 18.4 + 13.2 / 151.0
SCALE = BEST_POWER * 18.4 / 151.0 * math.exp(18.4 * _BEST_INVERSE)
BEST_RATIO = 1.0 / (_BEST_INVERSE + 0.003)
"""The tip-speed ratio of the best C_p (the report has 7.55)."""
MOST_DRAG = -0.3
OVER_SPEED = 1.1
PITCH_LAG = 0.3
TORQUE_LAG = 0.1
DEMAND_RATE = 4.0
"""Change of the pitch demand for an action of 1, degrees per second."""
REFERENCE_RANGE = (20.2e6, 2.58e6)
"""The range, in N m, of a cycle with a damage of 1, at tower base and blade root. In the default wind, the classical
controller then causes a damage of 1 per second at both."""
RESIDUE = 12
CALMEST = 3.0
"""The least wind, m/s: the turbine's cut-in speed. The model is not valid below it."""


class State(eqx.Module):
    """Turbine and wind, in SI units, pitch in degrees."""

    speed: Float[Array, ""]
    pitch: Float[Array, ""]
    demand: Float[Array, ""]
    """β_ref, the pitch demand."""
    torque: Float[Array, ""]
    deflection: Float[Array, ""]
    velocity: Float[Array, ""]
    mean_wind: Float[Array, ""]
    gust: Float[Array, ""]
    """u, the turbulence."""
    wind: Float[Array, ""]
    """v, the wind averaged over the rotor disc."""
    residue: Float[Array, "2 K"]
    """Turning points of the tower's and of a blade's moment, as shares of `REFERENCE_RANGE`."""


@dataclasses.dataclass(frozen=True)
class WindTurbine:
    """The 5 MW turbine in a turbulent wind around its rated speed."""

    wind: tuple[float, ...] = option((9.0, 15.0), "least and greatest mean wind of an episode, m/s", OURS, above=0.0)
    turbulence: float = option(0.14, "expected turbulence intensity at 15 m/s (class B: 0.14)", IEC, within=(0.0, 0.5))
    length_scale: float = option(340.2, "L, Kaimal's integral length scale of the wind's component, m", IEC, above=0.0)
    control_step: float = option(0.5, "seconds for which a demand is held", OURS, above=0.0, most=5.0)
    substeps: int = option(2, "integration steps within a control step", OURS, above=0, most=1000)
    wohler: tuple[float, ...] = option(
        (4.0, 4.0), "Wöhler exponents m of tower base and blade root; steel 4, glass fibre 10", OURS, above=0
    )
    damage_budget: float = option(0.3, "limit on damage, as a share of the classical controller's", OURS, above=0.0)
    over_speed_budget: float = option(0.5, "limit on the percentage of time above 1.1 times rated", OURS, above=0.0)
    discount: float = option(0.99, "γ", OURS, within=(0.0, 0.9999))
    horizon: int = option(600, "control steps after which an episode is cut off", OURS, above=0)

    observation_size = 11
    action_size = 2
    discrete_actions = False
    cost_names = ("fatigue", "over-speed")
    horizon_terminates = False

    def __post_init__(self) -> None:
        if len(self.wind) != 2 or not CALMEST <= self.wind[0] <= self.wind[1] <= MOST_WIND:
            raise InvalidInput(
                f"wind must be two speeds, the lesser first, within the model's {CALMEST:g} to {MOST_WIND:g} m/s, "
                f"and is {self.wind}."
            )

        if len(self.wohler) != 2:
            raise InvalidInput(f"wohler needs an exponent for the tower and one for the blades, and has {self.wohler}.")

    @property
    def limits(self) -> tuple[float, ...]:
        """The budgets per step, times the effective number of steps of a discounted episode."""
        steps = (1.0 - self.discount**self.horizon) / (1.0 - self.discount)
        return (self.damage_budget * steps, self.over_speed_budget * steps)

    def reset(self, key: PRNGKeyArray) -> State:
        """A random mean wind, turbulence from its stationary distribution, and the turbine near its steady state."""
        wind_key, gust_key, speed_key = jax.random.split(key, 3)
        mean = jax.random.uniform(wind_key, minval=self.wind[0], maxval=self.wind[1])
        gust = self._spread(mean) * jax.random.normal(gust_key)
        wind = jnp.maximum(mean + gust, CALMEST)
        speed = jnp.minimum(wind / RATED_WIND, 1.0) * RATED_SPEED * (1.0 + 0.03 * jax.random.normal(speed_key))
        return self.place(mean_wind=mean, gust=gust, speed=speed, pitch=steady_pitch(wind))

    def place(
        self, mean_wind: Float[Array, ""], gust: Float[Array, ""], speed: Float[Array, ""], pitch: Float[Array, ""]
    ) -> State:
        """A turbine at a speed and pitch, with torque and tower in balance with the wind, and no load history."""
        wind = jnp.maximum(mean_wind + gust, CALMEST)
        aerodynamic, thrust = forces(wind, speed, pitch)
        deflection = thrust / (TOWER_MASS * _tower_rate() ** 2)
        still = jnp.zeros_like(deflection)
        return State(
            speed=speed,
            pitch=pitch,
            demand=pitch,
            torque=jnp.clip(aerodynamic / GEAR, 0.0, RATED_TORQUE),
            deflection=deflection,
            velocity=still,
            mean_wind=mean_wind,
            gust=gust,
            wind=wind,
            residue=fatigue.begin(_loads(deflection, still, thrust), RESIDUE),
        )

    def observe(self, state: State) -> Float[Array, "11"]:
        """The measurements, scaled to about ±1. The wind is that of the rotor disc, without measurement error."""
        swing = state.residue[:, 0] - state.residue[:, 1]
        return jnp.stack(
            [
                10.0 * (state.speed / RATED_SPEED - 1.0),
                (state.wind - RATED_WIND) / 3.0,
                (state.mean_wind - RATED_WIND) / 3.0,
                state.gust / 2.0,
                state.pitch / 10.0 - 1.0,
                state.demand - state.pitch,
                2.0 * state.torque / RATED_TORQUE - 1.0,
                5.0 * state.deflection - 2.0,
                2.0 * state.velocity,
                swing[0],
                swing[1],
            ]
        )

    def step(self, state: State, action: Float[Array, "2"], key: PRNGKeyArray) -> Outcome:
        """Change the pitch demand, set the torque demand, and hold both for one control step.

        The first entry, from -1 to 1, moves the pitch demand by up to `DEMAND_RATE` times the step. The second sets the
        torque demand, from zero (-1) to `MOST_TORQUE` (1). Actions are clipped to ±1.
        """
        h = self.control_step / self.substeps
        action = jnp.clip(action, -1.0, 1.0)
        demand = jnp.clip(state.demand + DEMAND_RATE * self.control_step * action[0], 0.0, MOST_PITCH)
        state, torque = eqx.tree_at(lambda s: s.demand, state, demand), 0.5 * (1.0 + action[1]) * MOST_TORQUE
        exponent = jnp.asarray(self.wohler)

        def advance(state: State, noise: Float[Array, ""]) -> tuple[State, tuple[Array, Array, Array]]:
            before = _power(state)
            state = self.integrate(state, torque, h)
            state = eqx.tree_at(lambda s: s.gust, state, self._gust(state, noise, h))
            _, thrust = forces(state.wind - state.velocity, state.speed, state.pitch)
            residue, damage = fatigue.add(state.residue, _loads(state.deflection, state.velocity, thrust), exponent)
            state = eqx.tree_at(lambda s: s.residue, state, residue)
            fast = 100.0 * (state.speed > OVER_SPEED * RATED_SPEED).astype(jnp.float32)
            return state, (0.5 * (before + _power(state)), damage, fast)

        noise = jax.random.normal(key, (self.substeps,))
        state, (power, damage, fast) = jax.lax.scan(advance, state, noise)
        wear = jnp.mean(jnp.sum(damage, axis=0)) / self.control_step
        return Outcome(
            state=state,
            observation=self.observe(state),
            reward=jnp.mean(power) / RATED_POWER,
            cost=jnp.stack([wear, jnp.mean(fast)]),
            terminated=jnp.asarray(False),
        )

    def integrate(self, state: State, torque: Float[Array, ""], h: float) -> State:
        """One Runge-Kutta step of everything except turbulence and load history, which stay constant."""
        aim = jnp.maximum(state.mean_wind + state.gust, CALMEST)
        settling = RADIUS / (2.0 * state.mean_wind)
        start = jnp.stack([state.speed, state.pitch, state.torque, state.deflection, state.velocity, state.wind])

        def slope(y: Float[Array, "6"]) -> Float[Array, "6"]:
            speed, pitch, own_torque, deflection, velocity, wind = y
            aerodynamic, thrust = forces(wind - velocity, speed, pitch)
            stiffness, damping = _tower_rate() ** 2, 2.0 * TOWER_DAMPING * _tower_rate()
            return jnp.stack(
                [
                    (aerodynamic - GEAR * own_torque) / INERTIA,
                    jnp.clip((state.demand - pitch) / PITCH_LAG, -PITCH_RATE, PITCH_RATE),
                    jnp.clip((torque - own_torque) / TORQUE_LAG, -TORQUE_RATE, TORQUE_RATE),
                    velocity,
                    thrust / TOWER_MASS - damping * velocity - stiffness * deflection,
                    (aim - wind) / settling,
                ]
            )

        k1 = slope(start)
        k2 = slope(start + 0.5 * h * k1)
        k3 = slope(start + 0.5 * h * k2)
        k4 = slope(start + h * k3)
        speed, pitch, own_torque, deflection, velocity, wind = start + h / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)
        return State(
            # The speed stays above a tenth of rated speed, so that λ stays within the range of the power curve.
            speed=jnp.maximum(speed, 0.1 * RATED_SPEED),
            pitch=pitch,
            demand=state.demand,
            torque=own_torque,
            deflection=deflection,
            velocity=velocity,
            mean_wind=state.mean_wind,
            gust=state.gust,
            wind=wind,
            residue=state.residue,
        )

    def _gust(self, state: State, noise: Float[Array, ""], h: float) -> Float[Array, ""]:
        """u after h seconds, drawn from its exact distribution."""
        keep = jnp.exp(-h * state.mean_wind / self.length_scale)
        return keep * state.gust + self._spread(state.mean_wind) * jnp.sqrt(1.0 - keep**2) * noise

    def _spread(self, mean_wind: Float[Array, ""]) -> Float[Array, ""]:
        """σ of the normal turbulence model."""
        return self.turbulence * (0.75 * mean_wind + 5.6)


def power_coefficient(ratio: Float[Array, ""], pitch: Float[Array, ""]) -> Float[Array, ""]:
    """C_p(λ, β) in the form of Heier with the coefficients of Slootweg et al. (2003), β in degrees.

        C_p = c (151/Λ - 0.58 β - 0.002 β^2.14 - 13.2) exp(-18.4/Λ),     1/Λ = 1/(λ - 0.02 β) - 0.003/(β³ + 1)

    Slootweg's c is 0.73. Here c is `SCALE`, with which the maximum is the reference turbine's 0.482. λ is clipped to 1
    to 13, and C_p is at least `MOST_DRAG`, because the fit is not valid beyond.
    """
    ratio, pitch = jnp.clip(ratio, 1.0, 13.0), jnp.maximum(pitch, 0.0)
    inverse = 1.0 / (ratio - 0.02 * pitch) - 0.003 / (pitch**3 + 1.0)
    fit = SCALE * (151.0 * inverse - 0.58 * pitch - 0.002 * pitch**2.14 - 13.2) * jnp.exp(-18.4 * inverse)
    return jnp.maximum(fit, MOST_DRAG)


def thrust_coefficient(power: Float[Array, ""]) -> Float[Array, ""]:
    """C_t by momentum theory, for a rotor that converts the share η = C_p(max)/Betz of the extracted power.

    C_p = η 4a(1-a)² has one root a ≤ 1/3, and C_t = 4a(1-a).
    """
    share = jnp.clip(power / BEST_POWER, 0.0, 1.0)
    a = 2.0 / 3.0 + 2.0 / 3.0 * jnp.cos((jnp.arccos(2.0 * share - 1.0) - 4.0 * math.pi) / 3.0)
    return 4.0 * a * (1.0 - a)


def forces(
    wind: Float[Array, ""], speed: Float[Array, ""], pitch: Float[Array, ""]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Aerodynamic torque on the slow shaft (N m) and thrust (N), at a wind relative to the rotor."""
    wind = jnp.maximum(wind, 0.5)
    pressure = 0.5 * AIR_DENSITY * AREA * wind**2
    power = power_coefficient(speed * RADIUS / wind, pitch)
    return pressure * wind * power / speed, pressure * thrust_coefficient(power)


def steady_pitch(wind: Float[Array, ""]) -> Float[Array, ""]:
    """The pitch, in degrees, at which rated torque keeps rated speed; 0 below rated wind. It is found by bisection."""
    wanted = GEAR * RATED_TORQUE

    def halve(bounds: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
        low, high = bounds
        middle = 0.5 * (low + high)
        too_much = forces(wind, jnp.full_like(wind, RATED_SPEED), middle)[0] > wanted
        return (jnp.where(too_much, middle, low), jnp.where(too_much, high, middle)), None

    bounds = (jnp.zeros_like(wind), jnp.full_like(wind, MOST_PITCH))
    (low, _), _ = jax.lax.scan(halve, bounds, None, length=16)
    return jnp.where(forces(wind, jnp.full_like(wind, RATED_SPEED), jnp.zeros_like(wind))[0] > wanted, low, 0.0)


def _power(state: State) -> Float[Array, ""]:
    """Electrical power, W, which is bounded by the converter's rating."""
    return jnp.minimum(EFFICIENCY * GEAR * state.torque * state.speed, RATED_POWER)


def _loads(deflection: Array, velocity: Array, thrust: Array) -> Float[Array, "2"]:
    """Bending moments at the tower's base and at a blade's root (a third of the thrust at two thirds of the radius)."""
    tower = TOWER_MASS * HUB_HEIGHT * (_tower_rate() ** 2 * deflection + 2.0 * TOWER_DAMPING * _tower_rate() * velocity)
    blade = thrust / 3.0 * 2.0 / 3.0 * RADIUS
    return jnp.stack([tower / REFERENCE_RANGE[0], blade / REFERENCE_RANGE[1]])


def _tower_rate() -> float:
    return 2.0 * math.pi * TOWER_FREQUENCY
