"""How far one step of TRPO may carry a cost through its limit.

A trust-region step has the same length however near the optimum is. Along the gradient of L, which turns with λ, such
steps throw a cost from one side of its limit to the other (on the queueing network, from +2 to -5, epoch after epoch).
So a step is shortened where it would carry a cost through its limit by more than the batch can tell: by a multiple of
its standard error or, where that is more, of a fifth of what an episode's cost varies by. None of this is in the paper.
"""

from typing import Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from apdo import objective
from apdo.algorithms import care, on_policy, primal_steps
from apdo.algorithms.care import Careful
from apdo.core import dual, trust_region
from apdo.core.data import Transition
from apdo.core.policies import Policy
from apdo.problem import Problem

_SHARE = 0.2
"""The share of an episode's variation by which a cost may always cross its limit."""


@runtime_checkable
class Config(Protocol):
    """What of PDO's settings it depends on."""

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
        """How far a step may carry a cost through its limit."""
        ...


class Crossing(eqx.Module):
    """How far a step may carry each cost through its limit.

    What a step changes in a cost is read off by halves of the environments: the direction from the one, the gradient
    of the cost from the other. From the same samples a direction would please its own noise, and promise far more than
    it does.
    """

    advantage: Float[Array, "B M"]
    """Of each cost, times what the step counts in the cost of an episode."""
    half: Float[Array, "H B"]
    """What each sample counts in each of two halves, 1 on average; with a single environment, all of it in one."""
    excess: Float[Array, " M"]
    """C - d."""
    allowed: Float[Array, " M"]
    careful: Careful = None
    """Whether the halves must also agree on the step."""

    @staticmethod
    def of(
        problem: Problem,
        batch: Transition,
        advantage: Float[Array, "T N K"],
        units: dual.Relative,
        cost: Float[Array, " M"],
        limit: Float[Array, " M"],
        overshoot: float | Float[Array, ""],
        careful: Careful = None,
    ) -> "Crossing":
        """From the advantages of all signals, by so many standard errors of the batch or fifths of the variation."""
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

    def share(
        self, surrogate: primal_steps.Surrogate, policy: Policy, natural: trust_region.Product
    ) -> Float[Array, ""]:
        """The share of the step `natural(g)`, g the surrogate's gradient, that goes no further than is allowed."""

        def by_half(candidate: Policy) -> tuple[Float[Array, " H"], Float[Array, "H M"]]:
            moved = surrogate.ratio(candidate) - 1.0
            weighted = surrogate.samples.weight * surrogate.samples.advantage
            return self.half @ (moved * weighted) / moved.shape[0], self.half @ (moved[:, None] * self.advantage)

        gain, cost = jax.jacrev(by_half)(policy)
        flat = jax.vmap(lambda leaf: ravel_pytree(leaf)[0])
        directions, gradients = jax.vmap(natural)(flat(gain)), jax.vmap(flat)(cost)
        change = jnp.mean(jnp.einsum("hmp,hp->hm", gradients, directions[::-1]), axis=0)
        # Towards the limit and beyond it, on whichever side the cost is.
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
    units: dual.Relative,
    cost_and_limit: tuple[Float[Array, " M"], Float[Array, " M"]],
    careful: Careful,
) -> Crossing | None:
    """What a step is held back by; None where nothing is asked for, or nothing can tell."""
    asked = config.overshoot or careful is not None
    if not asked or not isinstance(config.primal, primal_steps.Trpo) or config.values != "separate":
        return None
    return Crossing.of(problem, batch, advantage, units, *cost_and_limit, config.overshoot, careful)
