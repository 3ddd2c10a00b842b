"""Steps along the natural gradient: TRPO's (Schulman et al. 2015), and the same step without a line search.

    θ_{k+1} = θ_k + s H⁻¹g,      s = min(rate, sqrt(2δ / gᵀH⁻¹g))

g is the gradient of the surrogate's gain at π_k, H the Fisher matrix of π_k, and δ the radius: at the second bound the
quadratic model of KL(π_k ‖ π) equals δ. TRPO then tries ever shorter steps, until the gain is positive and the KL
divergence itself is at most δ. If steps shrink with the epochs, to a share l of their length, s becomes l s and δ
becomes l² δ.
"""

import dataclasses
from functools import partial
from math import inf
from typing import Protocol, runtime_checkable

import jax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int

from apdo.algorithms.surrogate import Surrogate
from apdo.core import annealing, trust_region
from apdo.core.policies import Policy
from apdo.options import OURS, PAPER, option

_ANNEAL = f"{annealing.SHORTER} on the rate and by its square on the radius; 0: they stay as they are"
_RATE = "multiple of the natural gradient to go, up to the trust region's edge; 0: always to the edge"


@dataclasses.dataclass(frozen=True)
class Trpo(trust_region.LineSearch):
    """Trust region policy optimisation.

    Every step goes to the edge of the trust region, however small the gradient. With a rate, steps shrink with the
    gradient, so that a policy which has to mix choices can settle. They still follow the noise of each batch; annealing
    averages it.
    """

    rate: float = option(0.0, _RATE, PAPER, within=(0.0, inf))
    anneal: float = option(0.0, _ANNEAL, OURS, within=(0.0, inf))


@dataclasses.dataclass(frozen=True)
class NaturalGradient(trust_region.Curvature):
    """A step along the natural gradient, without a line search."""

    rate: float = option(0.0, _RATE, OURS, within=(0.0, inf))
    anneal: float = option(0.0, _ANNEAL, OURS, within=(0.0, inf))


@runtime_checkable
class Shortening(Protocol):
    """A bound that shortens a step of TRPO (`overshoot.Crossing`)."""

    def share(self, surrogate: Surrogate, policy: Policy, natural: trust_region.Product) -> Float[Array, ""]:
        """The share of the step `natural(g)` that is taken, where g is the surrogate's gradient."""
        ...


def step_length(config: Trpo | NaturalGradient, epochs: Int[Array, ""] | int) -> float | Float[Array, ""]:
    """l, the length of the step in the epoch with the number `epochs`, relative to the first epoch's."""
    return annealing.length(config.anneal, epochs)


def natural_step(
    config: Trpo | NaturalGradient, surrogate: Surrogate, policy: Policy, length: float | Float[Array, ""] = 1.0
) -> tuple[Float[Array, " P"], trust_region.Product]:
    """The share `length` of the step s H⁻¹g, and the map v ↦ s H⁻¹v with the same factor."""
    gradient = ravel_pytree(jax.grad(surrogate.gain)(policy))[0]
    product = trust_region.fisher(config, policy, surrogate.samples.observation)
    solve = partial(trust_region.conjugate_gradient, product, iterations=config.iterations)
    direction = solve(gradient)
    factor = length * trust_region.factor_to_edge(product, direction, config.radius, config.rate or inf)
    return factor * direction, lambda vector: factor * solve(vector)


def natural_gradient_step(
    config: NaturalGradient, surrogate: Surrogate, policy: Policy, epochs: Int[Array, ""] | int
) -> Policy:
    """The policy after the whole natural step."""
    parameters, unravel = ravel_pytree(policy)
    step, _ = natural_step(config, surrogate, policy, step_length(config, epochs))
    return unravel(parameters + step)


def trust_region_step(
    config: Trpo,
    surrogate: Surrogate,
    policy: Policy,
    epochs: Int[Array, ""] | int,
    shortening: Shortening | None,
) -> tuple[Policy, Bool[Array, ""]]:
    """The policy that the line search finds along the natural step, and whether it accepted a step at all."""
    length = step_length(config, epochs)
    parameters, unravel = ravel_pytree(policy)

    def acceptable(theta: Float[Array, " P"]) -> Bool[Array, ""]:
        candidate = unravel(theta)
        return (surrogate.gain(candidate) > 0.0) & (surrogate.kl(candidate) <= length**2 * config.radius)

    step, natural = natural_step(config, surrogate, policy, length)
    if shortening is not None:
        step = shortening.share(surrogate, policy, natural) * step
    found = trust_region.backtrack(acceptable, parameters, step, config.shrink, config.trials)
    return unravel(found.parameters), found.accepted
