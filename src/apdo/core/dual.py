"""Rules for the Lagrange multipliers λ ≥ 0: what becomes of them when π_k has cost C.

All are projected ascent on the dual function, whose gradient is C(π) - d, and differ in what they add:

    ascent   λ ← [λ + β_k (C - d)]⁺,  β_k = β / (k + 1)^decay          (paper, Algorithm 1, line 6)
    PID      I ← [I + β (C - d)]⁺,    λ = [I + K_P (C - d) + K_D [C - C_before]⁺]⁺      (Stooke et al. 2020)
             where a reach is set, K_P (C - d) goes no further: a firm hand near the limit, a light one far off
    Adam     λ ← [λ + Adam(β; C - d)]⁺

Policy and multipliers together swing like a spring: plain ascent has nothing that takes energy out of it. The
proportional term does. An upper bound, where one is set, holds for the integral too, so that it never winds up beyond
what counts.
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

    decay: float = option(0.0, "power of k by which the step falls; 0 keeps it", PAPER, within=(0.0, inf))
    most: float = option(0.0, "upper bound on every multiplier; 0: none", OURS, within=(0.0, inf))


@dataclasses.dataclass(frozen=True)
class Pid:
    """Integral, proportional and derivative control of the cost."""

    proportional: float = option(0.1, "K_P, multiplier per unit of cost above its limit", STOOKE, within=(0.0, inf))
    derivative: float = option(0.0, "K_D, multiplier per unit by which the cost rose", STOOKE, within=(0.0, inf))
    reach: float = option(0.0, "most that the proportional term adds or takes; 0: any", OURS, within=(0.0, inf))
    most: float = option(0.0, "upper bound on every multiplier; 0: none", OURS, within=(0.0, inf))


@dataclasses.dataclass(frozen=True)
class Adam:
    """Adam on the dual function, projected."""

    most: float = option(0.0, "upper bound on every multiplier; 0: none", OURS, within=(0.0, inf))


Config = Ascent | Pid | Adam
CHOICES = {"ascent": Ascent, "pid": Pid, "adam": Adam}


class Multiplier(eqx.Module):
    """The multipliers, and what their rule remembers."""

    value: Float[Array, " M"]
    """λ."""
    integral: Float[Array, " M"]
    """λ without the passing terms; the same but for PID."""
    cost: Float[Array, " M"]
    """C of the policy before."""
    updates: Int[Array, ""]
    """k."""
    moments: optax.OptState


def start(config: Config, value: Float[Array, " M"]) -> Multiplier:
    """Before the first update."""
    moments = descent.init(optax.adam(1.0), value) if isinstance(config, Adam) else ()
    return Multiplier(
        value=value,
        integral=value,
        cost=jnp.zeros_like(value),
        updates=jnp.asarray(0),
        moments=moments,
    )


def update(
    config: Config,
    multiplier: Multiplier,
    cost: Float[Array, " M"],
    limit: Float[Array, " M"],
    step: float | Float[Array, ""],
) -> Multiplier:
    """The multipliers after C(π_k) = cost."""
    excess = cost - limit
    moments = multiplier.moments
    match config:
        case Ascent():
            falling = (multiplier.updates + 1.0) ** config.decay if config.decay else 1.0
            move = step / falling * excess
        case Pid():
            move = step * excess
        case Adam():
            target, moments = descent.step(optax.adam(step), multiplier.integral, -excess, moments)
            move = target - multiplier.integral
    integral = _project(config, multiplier.integral + move)
    value = integral
    if isinstance(config, Pid):
        # Before the first update there is no earlier cost, and no rise.
        rise = jnp.where(multiplier.updates > 0, jnp.maximum(cost - multiplier.cost, 0.0), 0.0)
        reach = config.reach or inf
        proportional = jnp.clip(config.proportional * excess, -reach, reach)
        value = _project(config, integral + proportional + config.derivative * rise)
    return Multiplier(value=value, integral=integral, cost=cost, updates=multiplier.updates + 1, moments=moments)


def jump(multiplier: Multiplier, value: Float[Array, " M"]) -> Multiplier:
    """The same rule, going on from another λ."""
    return eqx.tree_at(lambda m: (m.value, m.integral), multiplier, (value, value))


def _project(config: Config, value: Float[Array, " M"]) -> Float[Array, " M"]:
    return jnp.clip(value, 0.0, config.most or inf)
