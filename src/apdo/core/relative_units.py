"""The units of excesses and multipliers, in which the gains of the rules in `dual` are pure numbers.

In the paper e = C - d and u = 1, so a gain that suits one problem suits no other. Here

    e_i = (C_i - d_i) / s_i, within ±1
    s_i = max(min(b_i, 2 σ_i), b_i / 10, 2 ε_i),   b_i = max(|d_i|, |C_i|, C_i's largest so far / 10)
    u_i = max(I_i, p_i),   p_i ≈ σ(A_R) / σ(A_Ci)

σ_i is the standard deviation of an episode's cost, ε_i the standard error of the batch's mean cost, and I_i the
multiplier's integral. A step within a trust region changes a cost by a few σ_i at most. If a cost hardly varies, an
excess of a few percent is therefore large. An excess that may be noise of the batch is small, however small the limit.
The magnitude of a cost that can be negative says nothing, so 2 σ_i replaces min(b_i, 2 σ_i) for such a cost.

A batch without a rare and costly event underestimates how much episodes differ. σ_i and ε_i are therefore the larger of
the batch's own value and the root mean square over the batches so far, where each batch has half the weight of the
next. Otherwise ten batches without the event would undo the effect of one batch with it.

σ(A) is the standard deviation of a batch's advantages. At the multiplier p, their ratio, reward and cost have equal
influence on a policy. A multiplier below p moves by steps in units of p, and one above p by steps in units of itself.
The average over batches is taken of the ratio, not of the deviations: the first policy may cost a hundred times as much
as any later one. A batch's ratio enters the average only within a factor of four of it. After a jump to an estimate of
λ*, the estimate replaces the ratio.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

_DEVIATIONS = 2.0
"""An excess of 1 is this many standard deviations of an episode's cost."""
_ERRORS = 2.0
"""An excess of 1 is at least this many standard errors of a batch's mean cost."""
_MEMORY = 0.1
"""The least weight of a new batch in the average."""
_MOST_CHANGE = 4.0
"""A batch's ratio enters the average only within this factor of it."""


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

    def excess(
        self, cost: Float[Array, " M"], limit: Float[Array, " M"], given: Float[Array, " M"] | None = None
    ) -> Float[Array, " M"]:
        """e, how far a cost is above the limit, within ±1. The `given` limit, if another is enforced, says its sign."""
        signed = (self.lowest < 0.0) | ((limit if given is None else given) < 0.0)
        return excess(cost, limit, self.largest, self.deviation, self.error, signed)

    def jump(self, estimate: Float[Array, " M"]) -> "Relative":
        """The state after a jump to this estimate of λ*."""
        return eqx.tree_at(lambda r: r.jumped, self, estimate)


def remembered(
    before: Float[Array, "*shape"], square: Float[Array, "*shape"]
) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"]]:
    """The mean square over the batches, each with half the weight of the next; and the larger of it and `square`."""
    mean = 0.5 * (before + square)
    return mean, jnp.maximum(square, mean)


def excess(
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
    size = scale(cost, limit, largest, deviation, signed)
    if error is not None:
        size = jnp.maximum(size, _ERRORS * error)
    return jnp.clip((cost - limit) / jnp.where(size > 0.0, size, 1.0), -1.0, 1.0)


def scale(
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
