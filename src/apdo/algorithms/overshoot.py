"""A bound on how far one step of TRPO may move a cost across its limit.

A trust-region step has the same length however near the optimum is. The gradient of L turns with λ, and steps along it
move a cost from one side of its limit to the other (on the queueing network, from +2 to -5, epoch after epoch). So a
step is shortened if it would move a cost across its limit by more than is allowed: by more than a multiple of the
batch's standard error or, if that is larger, of a fifth of the standard deviation of an episode's cost. This is not in
the paper.
"""

from typing import Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from apdo import objective
from apdo.algorithms import care, natural_steps, on_policy, primal_steps
from apdo.algorithms.care import Careful
from apdo.algorithms.surrogate import Surrogate
from apdo.core import relative_units, trust_region
from apdo.core.data import Transition
from apdo.core.policies import Policy
from apdo.problem import Problem

_SHARE = 0.2
"""A cost may always cross its limit by this share of its standard deviation between episodes."""


@runtime_checkable
class Config(Protocol):
    """The part of PDO's settings that the bound depends on."""

    @property
    def primal(self) -> primal_steps.Config:
        """The policy step."""
        ...

    @property
    def values(self) -> str:
        """`separate` or `combined`."""
        ...

    @property
    def overshoot(self) -> float:
        """The multiple by which a step may move a cost across its limit."""
        ...


class Crossing(eqx.Module):
    """The bound on how far a step may move each cost across its limit.

    The change of a cost by a step is estimated from two halves of the environments: the direction of the step from one
    half, and the gradient of the cost from the other. If both came from the same samples, the direction would fit their
    noise, and the predicted change would be far too large.
    """

    advantage: Float[Array, "B M"]
    """The advantage of each cost, times the weight of the step in the cost of an episode."""
    half: Float[Array, "H B"]
    """The weight of each sample in each of two halves (`on_policy.halves`)."""
    excess: Float[Array, " M"]
    """C - d."""
    allowed: Float[Array, " M"]
    """How far each cost may be moved across its limit, in units of the cost."""
    careful: Careful = None
    """Whether the step is also shortened as far as the halves disagree on it (`care`)."""

    @staticmethod
    def of(
        problem: Problem,
        batch: Transition,
        advantage: Float[Array, "T N K"],
        units: relative_units.Relative,
        cost: Float[Array, " M"],
        limit: Float[Array, " M"],
        overshoot: float | Float[Array, ""],
        careful: Careful = None,
    ) -> "Crossing":
        """The bound from the advantages of all signals.

        `overshoot` is in standard errors of the batch, or in fifths of the standard deviation if these are larger.
        """
        costs = advantage[..., 1:]
        centred = costs - jnp.mean(costs, axis=(0, 1), keepdims=True)
        weighted = objective.step_weights(problem, batch)[..., None] * centred
        size = jnp.maximum(jnp.abs(limit), jnp.abs(cost))
        varies = _SHARE * jnp.minimum(size, units.deviation)
        return Crossing(
            advantage=weighted.reshape(-1, costs.shape[-1]),
            half=on_policy.halves(batch),
            excess=cost - limit,
            allowed=overshoot * jnp.maximum(varies, units.error) if overshoot else jnp.full_like(cost, jnp.inf),
            careful=careful,
        )

    def share(self, surrogate: Surrogate, policy: Policy, natural: trust_region.Product) -> Float[Array, ""]:
        """The largest allowed share of the step `natural(g)`, where g is the surrogate's gradient."""

        def by_half(candidate: Policy) -> tuple[Float[Array, " H"], Float[Array, "H M"]]:
            moved = surrogate.ratio(candidate) - 1.0
            weighted = surrogate.samples.weight * surrogate.samples.advantage
            return self.half @ (moved * weighted) / moved.shape[0], self.half @ (moved[:, None] * self.advantage)

        gain, cost = jax.jacrev(by_half)(policy)
        flat = jax.vmap(lambda leaf: ravel_pytree(leaf)[0])
        directions, gradients = jax.vmap(natural)(flat(gain)), jax.vmap(flat)(cost)
        change = jnp.mean(jnp.einsum("hmp,hp->hm", gradients, directions[::-1]), axis=0)
        # The change in the direction of the limit, on whichever side of it the cost is.
        through = jnp.where(self.excess > 0.0, -change, change)
        room = jnp.abs(self.excess) + self.allowed
        share = jnp.min(jnp.where(through > room, room / jnp.where(through > room, through, 1.0), 1.0))
        if self.careful is None:
            return share
        return jnp.where(self.careful, jnp.minimum(share, care.agreement(flat(gain), directions)), share)


def crossing(
    config: Config,
    problem: Problem,
    batch: Transition,
    advantage: Float[Array, "T N K"],
    units: relative_units.Relative,
    cost_and_limit: tuple[Float[Array, " M"], Float[Array, " M"]],
    careful: Careful,
) -> Crossing | None:
    """The bound on a step; None if none is asked for, or if there are no advantages of the costs to compute it from."""
    asked = config.overshoot or careful is not None
    if not asked or not isinstance(config.primal, natural_steps.Trpo) or config.values != "separate":
        return None
    return Crossing.of(problem, batch, advantage, units, *cost_and_limit, config.overshoot, careful)
