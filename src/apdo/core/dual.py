"""Update rules for the Lagrange multipliers λ ≥ 0, given the cost C of π_k.

All rules are projected ascent on the dual function, whose gradient is C(π) - d. They differ in the terms that they add.
Let e be the excess and u the unit of a multiplier's steps.

    ascent   λ ← [λ + β_k u e]⁺,  β_k = β / (k + 1)^decay              (paper, Algorithm 1, line 6)
    PID      I ← [I + β u e]⁺,    λ = [I + K_P u (e + F e|e|) + K_D u [e - e_before]⁺]⁺     (Stooke et al. 2020, F = 0)
             F strengthens the response to a large e, which is not noise; `reach` bounds the term K_P (e + F e|e|);
             with `of_integral`, I replaces u in the formula of λ, so that a multiplier that is still small stays small
    Adam     λ ← [λ + u Adam(β; e)]⁺

**Units.** In the paper e = C - d and u = 1, so a gain that suits one problem suits no other. By default gains are pure
numbers (`Relative`):

    e_i = (C_i - d_i) / s_i, within ±1
    s_i = max(min(b_i, 2 σ_i), b_i / 10, 2 ε_i),   b_i = max(|d_i|, |C_i|, C_i's largest so far / 10)
    u_i = max(I_i, p_i),   p_i ≈ σ(A_R) / σ(A_Ci)

σ_i is the standard deviation of an episode's cost, and ε_i the standard error of the batch's mean cost. A step within a
trust region changes a cost by a few σ_i at most. If a cost hardly varies, an excess of a few percent is therefore
large. An excess that may be noise of the batch is small, however small the limit. The magnitude of a cost that can be
negative says nothing, so 2 σ_i replaces min(b_i, 2 σ_i) for such a cost.

A batch without a rare and costly event underestimates how much episodes differ. σ_i and ε_i are therefore the larger of
the batch's own value and the root mean square over the batches so far, where each batch has half the weight of the
next. Otherwise ten batches without the event would undo the effect of one batch with it.

σ(A) is the standard deviation of a batch's advantages. At the multiplier p, their ratio, reward and cost have equal
influence on a policy. A multiplier below p moves by steps in units of p, and one above p by steps in units of itself.
The average over batches is taken of the ratio, not of the deviations: the first policy may cost a hundred times as much
as any later one. A batch's ratio enters the average only within a factor of four of it. After a jump to an estimate of
λ*, the estimate replaces the ratio.

A policy with a multiplier far above p responds to the cost alone. A still larger multiplier changes nothing, but takes
longer to come down again. This is why PID has an upper bound, in units of p.

Policy and multipliers together oscillate like a spring. Plain ascent does not damp the oscillation; the proportional
term does. If there is an upper bound, it holds for the integral too, so that the integral never grows far beyond it.
"""

import dataclasses
from math import inf

import equinox as eqx
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

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
    step: float | Float[Array, ""],
    unit: float | Float[Array, " M"] = 1.0,
    natural: float | Float[Array, " M"] = 1.0,
) -> Multiplier:
    """The multipliers after an update for π_k's excess. `unit` scales the steps, and `natural` the upper bound."""
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
        felt = excess * (1.0 + config.far * jnp.abs(excess))
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


class Relative(eqx.Module):
    """The units of excesses and multipliers, estimated from the batches so far. They make gains pure numbers."""

    ratio: Float[Array, " M"]
    """σ(A_R) / σ(A_C), averaged over the batches; 0 for a cost whose advantages never varied."""
    largest: Float[Array, " M"]
    """The largest |C| so far."""
    lowest: Float[Array, " M"]
    """The lowest C so far; 0 if none was negative."""
    noise: Float[Array, "2 M"]
    """Mean squares over the batches: first of the standard deviation σ of an episode's cost, then of ε."""
    deviation: Float[Array, " M"]
    """σ, the standard deviation of an episode's cost."""
    error: Float[Array, " M"]
    """ε, the standard error of a batch's mean cost."""
    batches: Int[Array, ""]
    """The number of batches so far."""
    jumped: Float[Array, " M"]
    """The estimate of λ* that the multipliers jumped to; 0 before a jump."""

    @staticmethod
    def start(constraints: int) -> "Relative":
        """The state before the first batch."""
        nothing = jnp.zeros(constraints)
        return Relative(
            ratio=nothing,
            largest=nothing,
            lowest=nothing,
            noise=jnp.zeros((2, constraints)),
            deviation=nothing,
            error=nothing,
            batches=jnp.asarray(0),
            jumped=nothing,
        )

    def observe(
        self,
        advantage: Float[Array, "*batch K"],
        cost: Float[Array, " M"],
        spread: tuple[Float[Array, " M"], Float[Array, " M"]],
    ) -> "Relative":
        """The state after a batch with these advantages (the reward's come first) and this cost.

        `spread` is the standard deviation of an episode's cost, and the standard error of the batch's mean cost.
        """
        square = jnp.stack(spread) ** 2
        noise, counted = remembered(jnp.where(self.batches > 0, self.noise, square), square)
        deviation, error = jnp.sqrt(counted)
        # A combined value function gives no advantages of single costs, so their ratios are unknown.
        apart = advantage.shape[-1] == 1 + cost.shape[0]
        return Relative(
            ratio=self._averaged(advantage) if apart else self.ratio,
            largest=jnp.maximum(self.largest, jnp.abs(cost)),
            lowest=jnp.minimum(self.lowest, cost),
            noise=noise,
            deviation=deviation,
            error=error,
            batches=self.batches + 1,
            jumped=self.jumped,
        )

    def _averaged(self, advantage: Float[Array, "*batch K"]) -> Float[Array, " M"]:
        """The average of the ratio, including this batch's."""
        deviation = jnp.std(advantage.reshape(-1, advantage.shape[-1]), axis=0)
        # If the reward does not vary, any positive ratio will do.
        reward = jnp.where(deviation[0] > 0.0, deviation[0], 1.0)
        varied = deviation[1:] > 0.0
        ratio = reward / jnp.where(varied, deviation[1:], 1.0)
        share = jnp.maximum(1.0 / (self.batches + 1), _MEMORY)
        within = jnp.clip(ratio, self.ratio / _MOST_CHANGE, self.ratio * _MOST_CHANGE)
        averaged = jnp.where(self.ratio > 0.0, self.ratio + share * (within - self.ratio), ratio)
        return jnp.where(varied, averaged, self.ratio)

    def unit(self, integral: Float[Array, " M"]) -> Float[Array, " M"]:
        """u, the unit of a multiplier's steps."""
        price = self.price()
        return jnp.where(price > 0.0, jnp.maximum(integral, price), 0.0)

    def price(self) -> Float[Array, " M"]:
        """p, the natural size of a multiplier. It is 0 for a cost whose advantages never varied."""
        return jnp.where(self.jumped > 0.0, self.jumped, self.ratio)

    def excess(self, cost: Float[Array, " M"], limit: Float[Array, " M"]) -> Float[Array, " M"]:
        """e, how far a cost is above its limit, within ±1."""
        signed = (self.lowest < 0.0) | (limit < 0.0)
        return relative_excess(cost, limit, self.largest, self.deviation, self.error, signed)

    def jump(self, estimate: Float[Array, " M"]) -> "Relative":
        """The state after a jump to this estimate of λ*."""
        return eqx.tree_at(lambda r: r.jumped, self, estimate)


def remembered(
    before: Float[Array, "*shape"], square: Float[Array, "*shape"]
) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"]]:
    """The mean square over the batches, each with half the weight of the next; and the larger of it and `square`."""
    mean = 0.5 * (before + square)
    return mean, jnp.maximum(square, mean)


def relative_excess(
    cost: Float[Array, " M"],
    limit: Float[Array, " M"],
    largest: Float[Array, " M"],
    deviation: Float[Array, " M"] | None = None,
    error: Float[Array, " M"] | None = None,
    signed: bool | Bool[Array, " M"] = False,
) -> Float[Array, " M"]:
    """How far a cost is above its limit, within ±1. `largest` is the largest magnitude of the cost so far.

    `deviation` is the standard deviation of an episode's cost, and `error` the standard error of the mean, if they are
    known. `signed` says which costs can be negative.
    """
    size = relative_size(cost, limit, largest, deviation, signed)
    if error is not None:
        size = jnp.maximum(size, _ERRORS * error)
    return jnp.clip((cost - limit) / jnp.where(size > 0.0, size, 1.0), -1.0, 1.0)


def relative_size(
    cost: Float[Array, " M"],
    limit: Float[Array, " M"],
    largest: float | Float[Array, " M"],
    deviation: Float[Array, " M"] | None,
    signed: bool | Bool[Array, " M"],
) -> Float[Array, " M"]:
    """The amount above the limit that counts as an excess of 1, regardless of noise. It is 0 if all arguments are."""
    size = jnp.maximum(jnp.maximum(jnp.abs(limit), jnp.abs(cost)), largest / 10.0)
    if deviation is None:
        return size
    varies = _DEVIATIONS * deviation
    return jnp.maximum(jnp.where(signed, varies, jnp.minimum(size, varies)), size / 10.0)


_DEVIATIONS = 2.0
"""An excess of 1 is this many standard deviations of an episode's cost."""
_ERRORS = 2.0
"""An excess of 1 is at least this many standard errors of a batch's mean cost."""

_MEMORY = 0.1
"""The least weight of a new batch in the average."""
_MOST_CHANGE = 4.0
"""A batch's ratio enters the average only within this factor of it."""
