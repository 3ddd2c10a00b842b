"""The parts of a trust-region step: Fisher products, conjugate gradient, backtracking.

Parameters are one flat vector θ. The Fisher matrix H of a policy at θ is the Hessian of θ' ↦ mean_s KL(π_θ ‖ π_θ') at
θ' = θ; as π_θ(s) = p(f_θ(s)) it equals the mean over s of Jᵀ F J, with J the Jacobian of f and F the Fisher matrix of
p.
"""

import dataclasses
from collections.abc import Callable
from math import inf
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int

from apdo.core import annealing
from apdo.core.policies import Policy
from apdo.options import PAPER, PUBLISHED, option

Vector = Float[Array, " P"]
Product = Callable[[Vector], Vector]


@dataclasses.dataclass(frozen=True)
class Curvature:
    """How far a step may go, and how linear systems with the Fisher matrix are solved."""

    radius: float = option(0.01, "largest KL divergence of one step", PAPER, above=0.0)
    iterations: int = option(10, "conjugate-gradient iterations", PUBLISHED, above=0)
    damping: float = option(1e-5, "added to the diagonal of the Fisher matrix", PUBLISHED, within=(0.0, 1.0))
    fraction: float = option(
        0.2, "share of the batch that the Fisher matrix is estimated on", PUBLISHED, within=(0.001, 1.0)
    )


@dataclasses.dataclass(frozen=True)
class LineSearch(Curvature):
    """A trust-region step: the natural direction, then backtracking."""

    shrink: float = option(0.8, "factor by which a refused step is shortened", PUBLISHED, within=(0.01, 0.99))
    trials: int = option(15, "step lengths tried before the old policy is kept", PUBLISHED, above=0)


_USUAL_RADIUS, _EPISODE_RADIUS, _WIDEST_RADIUS = 0.02, 1.0, 0.1


def radius_for(horizon: int, epochs: int) -> float:
    """A radius, in nats, that suits episodes of `horizon` steps and a run of `epochs` epochs; 0.02 in most cases.

    The radius bounds the mean KL divergence of one action. The divergence of a whole episode is `horizon` times that:
    20 nats for 1,000 steps, but only 0.3 for 15. Short episodes would then learn slowly for no gain. So the radius
    allows at least one nat for an episode, but never more than 0.1 for an action.

    A run of more than a hundred epochs has time for shorter steps, which follow less of the noise of their batches.
    """
    widest = max(_USUAL_RADIUS, min(_EPISODE_RADIUS / horizon, _WIDEST_RADIUS))
    return annealing.in_a_long_run(widest, epochs)


def fisher_product(distributions: Callable[[Vector], Any], parameters: Vector, damping: float) -> Product:
    """v ↦ (H + damping·I) v.

    `distributions` maps parameters to the action distributions at B observations. It is linearised once; each product
    is one pass forward along v and one pass back.
    """
    distribution, forward = jax.linearize(distributions, parameters)
    backward = jax.linear_transpose(forward, parameters)
    samples = jax.tree.leaves(distribution)[0].shape[0]

    def product(vector: Vector) -> Vector:
        tangent = jax.vmap(lambda at, along: at.fisher(along))(distribution, forward(vector))
        (pulled,) = backward(tangent)
        return pulled / samples + damping * vector

    return product


def fisher(config: Curvature, policy: Policy, observation: Float[Array, "B O"]) -> Product:
    """The Fisher product at `policy`, estimated on every n-th observation, with n from the configured fraction."""
    parameters, unravel = ravel_pytree(policy)
    stride = max(1, round(1.0 / config.fraction))
    subset = observation[::stride]
    return fisher_product(lambda theta: jax.vmap(unravel(theta))(subset), parameters, config.damping)


def conjugate_gradient(product: Product, target: Vector, iterations: int, tolerance: float = 1e-10) -> Vector:
    """x with product(x) ≈ target, by conjugate gradient from zero.

    The result no longer changes once the squared norm of the residual is `tolerance` times that of the target. It also
    stops changing if the curvature along the direction is zero up to rounding, as for a nearly deterministic policy.
    A target of zero gives zero.
    """
    floor = tolerance * jnp.vdot(target, target)

    def iterate(
        _: Int[Array, ""], carry: tuple[Vector, Vector, Vector, Float[Array, ""]]
    ) -> tuple[Vector, Vector, Vector, Float[Array, ""]]:
        x, residual, direction, squared = carry
        image = product(direction)
        curvature = jnp.vdot(direction, image)
        # The comparison is written so that a NaN in the curvature is passed on, and noticed later.
        going = (squared > floor) & ~(curvature <= 0.0)
        length = jnp.where(going, squared / jnp.where(going, curvature, 1.0), 0.0)
        x = x + length * direction
        residual = residual - length * image
        squared_next = jnp.vdot(residual, residual)
        direction = jnp.where(going, residual + (squared_next / jnp.where(going, squared, 1.0)) * direction, direction)
        return x, residual, direction, jnp.where(going, squared_next, squared)

    start = (jnp.zeros_like(target), target, target, jnp.vdot(target, target))
    return jax.lax.fori_loop(0, iterations, iterate, start)[0]


def factor_to_edge(product: Product, direction: Vector, radius: float, most: float = inf) -> Float[Array, ""]:
    """The factor that scales the direction so that the quadratic model of KL equals the radius; at most `most`."""
    curvature = jnp.vdot(direction, product(direction))
    positive = curvature > 0.0
    scale = jnp.sqrt(2.0 * radius / jnp.where(positive, curvature, 1.0))
    return jnp.where(positive, jnp.minimum(scale, most), 0.0)


class Backtrack(eqx.Module):
    """The result of a line search."""

    parameters: Vector
    accepted: Bool[Array, ""]
    trials: Int[Array, ""]


def backtrack(
    acceptable: Callable[[Vector], Bool[Array, ""]], parameters: Vector, step: Vector, shrink: float, trials: int
) -> Backtrack:
    """θ + shrink^j·step for the least j < trials that is acceptable; θ itself if none is.

    A candidate whose quantities are NaN is not acceptable, and a shorter one is tried. If the step itself is not
    finite, shorter ones are not either. The parameters then become NaN, so that the fault is not taken for a step that
    the line search refused.
    """

    def searching(carry: tuple[Int[Array, ""], Bool[Array, ""]]) -> Bool[Array, ""]:
        trial, accepted = carry
        return ~accepted & (trial < trials)

    def attempt(carry: tuple[Int[Array, ""], Bool[Array, ""]]) -> tuple[Int[Array, ""], Bool[Array, ""]]:
        trial, _ = carry
        return trial + 1, acceptable(parameters + shrink**trial * step)

    tried, accepted = jax.lax.while_loop(searching, attempt, (jnp.asarray(0), jnp.asarray(False)))
    chosen = jnp.where(accepted, parameters + shrink ** (tried - 1) * step, parameters)
    chosen = jnp.where(jnp.all(jnp.isfinite(step)), chosen, jnp.nan)
    return Backtrack(parameters=chosen, accepted=accepted, trials=tried)
