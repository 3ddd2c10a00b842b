"""Update rules for the Lagrange multipliers λ ≥ 0, given the cost C of π_k.

All rules are projected ascent on the dual function, whose gradient is C(π) - d. They differ in the terms that they add.
Let e be the excess and u the unit of a multiplier's steps. In the paper e = C - d and u = 1; by default both are
relative, so that gains are pure numbers (`relative_units`).

    ascent   λ ← [λ + β_k u e]⁺,  β_k = β / (k + 1)^decay              (paper, Algorithm 1, line 6)
    PID      I ← [I + β u e]⁺,    λ = [I + K_P u (e + F e|e|) + K_D u [e - e_before]⁺]⁺     (Stooke et al. 2020, F = 0)
             F strengthens the response to a large e, which is not noise; `reach` bounds the term K_P (e + F e|e|);
             with `of_integral`, I replaces u in the formula of λ, so that a multiplier that is still small stays small
    Adam     λ ← [λ + u Adam(β; e)]⁺

A policy with a multiplier far above its natural size p (`relative_units`) responds to the cost alone. A still larger
multiplier changes nothing, but takes longer to come down again. This is why PID has an upper bound, in units of p.

Policy and multipliers together oscillate like a spring. Plain ascent does not damp the oscillation; the proportional
term does. If there is an upper bound, it holds for the integral too, so that the integral never grows far beyond it.
"""

import dataclasses
from math import inf

import equinox as eqx
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from apdo.core import descent
from apdo.options import OURS, PAPER, option

STOOKE = "Stooke et al. 2020"


@dataclasses.dataclass(frozen=True)
class Ascent:
    """Projected dual ascent."""

    decay: float = option(0.0, "power of k by which the step falls; 0: the step is constant", PAPER, within=(0.0, inf))
    most: float = option(0.0, "upper bound on every multiplier; 0: none", OURS, within=(0.0, inf))


@dataclasses.dataclass(frozen=True)
class Pid:
    """Integral, proportional and derivative control of the cost."""

    proportional: float = option(1.0, "K_P, multiplier per unit of excess", STOOKE, within=(0.0, inf))
    far: float = option(2.0, "F, strength of the extra response to a large excess: e + F e|e|", OURS, within=(0.0, inf))
    derivative: float = option(0.0, "K_D, multiplier per unit by which the excess rose", STOOKE, within=(0.0, inf))
    reach: float = option(0.0, "largest size of the proportional term; 0: no bound", OURS, within=(0.0, inf))
    of_integral: bool = option(
        False,
        "whether K_P and K_D are relative to the integral, so that a multiplier that is still small stays small",
        OURS,
    )
    most: float = option(20.0, "upper bound on every multiplier; 0: none", OURS, within=(0.0, inf))


@dataclasses.dataclass(frozen=True)
class Adam:
    """Adam on the dual function, projected."""

    most: float = option(0.0, "upper bound on every multiplier; 0: none", OURS, within=(0.0, inf))


Config = Ascent | Pid | Adam
CHOICES = {"ascent": Ascent, "pid": Pid, "adam": Adam}


class Multiplier(eqx.Module):
    """The multipliers, and the state of their rule."""

    value: Float[Array, " M"]
    """λ."""
    integral: Float[Array, " M"]
    """PID's integral I, λ without the proportional and derivative terms. For other rules it is λ."""
    excess: Float[Array, " M"]
    """e of the previous policy."""
    updates: Int[Array, ""]
    """k, the number of updates so far."""
    moments: optax.OptState
    """The state of the rule Adam; otherwise empty."""


def start(config: Config, value: Float[Array, " M"]) -> Multiplier:
    """The state before the first update, with λ = `value`."""
    moments = descent.init(optax.adam(1.0), value) if isinstance(config, Adam) else ()
    return Multiplier(
        value=value,
        integral=value,
        excess=jnp.zeros_like(value),
        updates=jnp.asarray(0),
        moments=moments,
    )


def update(
    config: Config,
    multiplier: Multiplier,
    excess: Float[Array, " M"],
    step: float | Float[Array, ""] | Float[Array, " M"],
    unit: float | Float[Array, " M"] = 1.0,
    natural: float | Float[Array, " M"] = 1.0,
    certain: float | Float[Array, " M"] = 1.0,
) -> Multiplier:
    """The multipliers after an update for π_k's excess. `unit` scales the steps, and `natural` the upper bound.

    PID's proportional term responds only to the share `certain` of the excess.
    """
    moments = multiplier.moments
    match config:
        case Ascent():
            falling = (multiplier.updates + 1.0) ** config.decay if config.decay else 1.0
            move = step / falling * excess
        case Pid():
            move = step * excess
        case Adam():
            move, moments = descent.step(optax.adam(step), jnp.zeros_like(excess), -excess, moments)
    ceiling = _ceiling(config, multiplier.integral, excess, natural)
    integral = jnp.clip(multiplier.integral + unit * move, 0.0, ceiling)
    value = integral
    if isinstance(config, Pid):
        # Before the first update there is no earlier excess, and no rise.
        rise = jnp.where(multiplier.updates > 0, jnp.maximum(excess - multiplier.excess, 0.0), 0.0)
        reach = config.reach or inf
        felt = certain * excess * (1.0 + config.far * jnp.abs(excess))
        proportional = jnp.clip(config.proportional * felt, -reach, reach)
        passing = integral if config.of_integral else unit
        value = jnp.clip(integral + passing * (proportional + config.derivative * rise), 0.0, ceiling)
    return Multiplier(value=value, integral=integral, excess=excess, updates=multiplier.updates + 1, moments=moments)


def jump(multiplier: Multiplier, value: Float[Array, " M"]) -> Multiplier:
    """The same rule and state with another λ."""
    return eqx.tree_at(lambda m: (m.value, m.integral), multiplier, (value, value))


def _ceiling(
    config: Config, integral: Float[Array, " M"], excess: Float[Array, " M"], natural: float | Float[Array, " M"]
) -> Float[Array, " M"] | float:
    """The upper bound. It never lowers a multiplier whose cost is too high, even if `natural` falls.

    Otherwise the multiplier would fall for a policy whose reward no longer varies, and the policy would not recover.
    """
    if not config.most:
        return inf
    most = config.most * natural
    return jnp.where(excess > 0.0, jnp.maximum(integral, most), most)
