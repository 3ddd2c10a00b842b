"""Rules for the Lagrange multipliers λ ≥ 0: what becomes of them when π_k has cost C.

All are projected ascent on the dual function, whose gradient is C(π) - d, and differ in what they add. With e the
excess and u the unit in which a multiplier moves,

    ascent   λ ← [λ + β_k u e]⁺,  β_k = β / (k + 1)^decay              (paper, Algorithm 1, line 6)
    PID      I ← [I + β u e]⁺,    λ = [I + K_P u (e + F e|e|) + K_D u [e - e_before]⁺]⁺     (Stooke et al. 2020, F = 0)
             F is a firmer hand far from the limit, where e is no noise; where a reach is set, the term goes no further;
             in parts of the integral I takes the place of u in λ: a price that has not grown yet is not raised at once
    Adam     λ ← [λ + u Adam(β; e)]⁺

**Units.** In the paper e = C - d and u = 1, so that a gain that suits one problem suits no other. By default gains are
pure numbers (`Relative`):

    e_i = (C_i - d_i) / s_i, within ±1
    s_i = max(min(b_i, 2 σ_i), b_i / 10, 2 ε_i),   b_i = max(|d_i|, |C_i|, C_i's largest so far / 10)
    u_i = max(I_i, p_i),   p_i ≈ σ(A_R) / σ(A_Ci)

σ_i is the deviation of an episode's cost, and ε_i the standard error of the batch's. A step within a trust region moves
a cost by so many σ_i at most: where a cost hardly varies, an excess of a few percent of it is a large one. And an
excess that may be the batch's own noise is a small one, however small the limit. Of a cost that can be negative the
size says nothing, so that 2 σ_i takes the place of b_i there.

A batch without a rare and costly event knows nothing of how much episodes differ: σ_i and ε_i are the batch's own or,
if that is more, their mean square over the batches before, each with half the weight of the next. Else ten batches
without the event would undo what one with it did.

σ(A) is the deviation of a batch's advantages, so that their ratio p is the multiplier at which reward and cost pull a
policy equally hard. Below it a multiplier moves by steps of its size, above it by shares of itself. The ratio is
averaged over the batches, not the deviations: a first policy may cost a hundred times what any later one does. One
batch changes it by a factor of four at most in what it adds.
After a jump to an estimate of λ* the estimate stands in the place of the ratio.

Far above it a policy sees the cost alone, and a larger multiplier changes nothing but how long it takes to come back:
hence PID's upper bound, in the same unit.

Policy and multipliers together swing like a spring: plain ascent has nothing that takes energy out of it. The
proportional term does. An upper bound, where one is set, holds for the integral too, so that it never winds up beyond
what counts.
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

    decay: float = option(0.0, "power of k by which the step falls; 0 keeps it", PAPER, within=(0.0, inf))
    most: float = option(0.0, "upper bound on every multiplier; 0: none", OURS, within=(0.0, inf))


@dataclasses.dataclass(frozen=True)
class Pid:
    """Integral, proportional and derivative control of the cost."""

    proportional: float = option(1.0, "K_P, multiplier per unit of excess", STOOKE, within=(0.0, inf))
    far: float = option(2.0, "F, by which the excess counts more the larger it is", OURS, within=(0.0, inf))
    derivative: float = option(0.0, "K_D, multiplier per unit by which the excess rose", STOOKE, within=(0.0, inf))
    reach: float = option(0.0, "most that the proportional term adds or takes; 0: any", OURS, within=(0.0, inf))
    of_integral: bool = option(
        False, "whether K_P and K_D count in parts of the integral, so that a price that is still small stays so", OURS
    )
    most: float = option(20.0, "upper bound on every multiplier; 0: none", OURS, within=(0.0, inf))


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
    excess: Float[Array, " M"]
    """e of the policy before."""
    updates: Int[Array, ""]
    """k."""
    moments: optax.OptState


def start(config: Config, value: Float[Array, " M"]) -> Multiplier:
    """Before the first update."""
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
    """The multipliers after π_k's excess over the limits; moves are in `unit`, an upper bound in `natural` ones."""
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
    """The same rule, going on from another λ."""
    return eqx.tree_at(lambda m: (m.value, m.integral), multiplier, (value, value))


def _ceiling(
    config: Config, integral: Float[Array, " M"], excess: Float[Array, " M"], natural: float | Float[Array, " M"]
) -> Float[Array, " M"] | float:
    """The upper bound. It takes nothing off a multiplier whose cost is too high, also where the natural size falls.

    A policy in a corner, where the reward no longer varies, would else be charged less and less, and stay there.
    """
    if not config.most:
        return inf
    most = config.most * natural
    return jnp.where(excess > 0.0, jnp.maximum(integral, most), most)


class Relative(eqx.Module):
    """What makes gains pure numbers: the units of excesses and multipliers, from what has been seen."""

    ratio: Float[Array, " M"]
    """σ(A_R) / σ(A_C), averaged over the batches; 0 for a cost whose advantages never varied."""
    largest: Float[Array, " M"]
    """The largest C so far, in size."""
    lowest: Float[Array, " M"]
    """The lowest C so far; 0 where none was negative."""
    noise: Float[Array, "2 M"]
    """Mean squares of an episode's deviation σ and of the standard error ε, over the batches."""
    deviation: Float[Array, " M"]
    """σ."""
    error: Float[Array, " M"]
    """ε."""
    batches: Int[Array, ""]
    jumped: Float[Array, " M"]
    """The estimate of λ* that was jumped to; 0 before."""

    @staticmethod
    def start(constraints: int) -> "Relative":
        """Before the first batch."""
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
        """After a batch with these advantages (the reward's first), whose policy has this cost.

        `spread` is the deviation of an episode's cost, and the standard error of the mean.
        """
        square = jnp.stack(spread) ** 2
        noise, counted = remembered(jnp.where(self.batches > 0, self.noise, square), square)
        deviation, error = jnp.sqrt(counted)
        # A combined value function has no advantages of the costs, and prices none.
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
        """The ratio, with this batch's in the average."""
        deviation = jnp.std(advantage.reshape(-1, advantage.shape[-1]), axis=0)
        # Where there is no reward any price will do.
        reward = jnp.where(deviation[0] > 0.0, deviation[0], 1.0)
        varied = deviation[1:] > 0.0
        ratio = reward / jnp.where(varied, deviation[1:], 1.0)
        share = jnp.maximum(1.0 / (self.batches + 1), _MEMORY)
        within = jnp.clip(ratio, self.ratio / _MOST_CHANGE, self.ratio * _MOST_CHANGE)
        averaged = jnp.where(self.ratio > 0.0, self.ratio + share * (within - self.ratio), ratio)
        return jnp.where(varied, averaged, self.ratio)

    def unit(self, integral: Float[Array, " M"]) -> Float[Array, " M"]:
        """u: what a multiplier of this size moves in."""
        price = self.price()
        return jnp.where(price > 0.0, jnp.maximum(integral, price), 0.0)

    def price(self) -> Float[Array, " M"]:
        """p, a multiplier of natural size. A cost whose advantages never varied cannot be priced; its price is 0."""
        return jnp.where(self.jumped > 0.0, self.jumped, self.ratio)

    def excess(self, cost: Float[Array, " M"], limit: Float[Array, " M"]) -> Float[Array, " M"]:
        """e: how far a cost is above its limit, within ±1."""
        signed = (self.lowest < 0.0) | (limit < 0.0)
        return relative_excess(cost, limit, self.largest, self.deviation, self.error, signed)

    def jump(self, estimate: Float[Array, " M"]) -> "Relative":
        """After a jump to this estimate of λ*."""
        return eqx.tree_at(lambda r: r.jumped, self, estimate)


def remembered(
    before: Float[Array, "*shape"], square: Float[Array, "*shape"]
) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"]]:
    """The mean square over the batches, each with half the weight of the next; and the newest, or the mean if more."""
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
    """How far a cost is above its limit, within ±1, where the largest cost so far, in size, was `largest`.

    `deviation` is that of an episode's cost, and `error` the standard error of the mean, where they are known; `signed`
    says which costs can be negative.
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
    """By how much a cost must exceed its limit for a large excess, before noise is thought of; 0 where nothing says."""
    size = jnp.maximum(jnp.maximum(jnp.abs(limit), jnp.abs(cost)), largest / 10.0)
    if deviation is None:
        return size
    varies = _DEVIATIONS * deviation
    return jnp.maximum(jnp.where(signed, varies, jnp.minimum(size, varies)), size / 10.0)


_DEVIATIONS = 2.0
"""Deviations of an episode's cost that are a large excess."""
_ERRORS = 2.0
"""Standard errors of a batch's mean below which no excess is a large one."""

_MEMORY = 0.1
"""The least that a batch counts among all before."""
_MOST_CHANGE = 4.0
"""By which factor a batch's ratio may differ from the average in what it adds to it."""
