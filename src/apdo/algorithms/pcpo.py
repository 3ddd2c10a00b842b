"""Projection-based constrained policy optimisation, PCPO (Yang et al. 2020): a step for the return, then a projection.

With g the gradient of R, b_i those of C_i, H the Fisher matrix, c_i = C_i(π_k) - d_i, δ the radius:

    reward step   x_0 = sqrt(2δ / gᵀH⁻¹g) H⁻¹g
    projection    x = argmin (x - x_0)ᵀ M (x - x_0) / 2   subject to   c_i + b_iᵀx ≤ 0 for every i

with M = H, which measures by KL, or M = I. The projection is x = x_0 - M⁻¹B μ, where μ ≥ 0
maximises μᵀ(c + Bᵀx_0) - μᵀSμ/2, S = BᵀM⁻¹B; with one constraint

    x = x_0 - [ (c + bᵀx_0) / (bᵀM⁻¹b) ]⁺ M⁻¹b.

Where π_k breaks a limit this leads straight back, with no case of its own. With M = H the move is a multiple of
H⁻¹(g - B μ/α), α the reward step's length: the price of a limit in return per cost is μ/α, reported as `multiplier`.

Any number of constraints up to ten, projected onto all at once by enumerating active sets (`core.constrained_step`);
the paper has one.

Deviations:
1. g and b_i are gradients of the sums of one episode (`around`), so that c + bᵀx compares like with like.
2. The paper takes the step as it is. A long projection leaves the region where gradients mean anything, so here it is
   shortened until KL(π_k ‖ π) is at most 2δ, which the reward step and a projection as long as it come to.
3. With `anneal` δ shrinks. Steps of one length carry each batch's error in C into the policy as a whole, for ever.
4. The gradients are the batch's, believed as they are; what CPO does here about their noise is CPO's own.
"""

import dataclasses
from math import inf

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from apdo.algorithms import epoch, on_policy, primal_steps
from apdo.algorithms.around import Around, solver
from apdo.core import constrained_step, policies, trust_region
from apdo.core.data import Transition
from apdo.options import OURS, one_of, option
from apdo.problem import Problem

act = on_policy.act
memory = on_policy.memory
learned_policy = on_policy.learned_policy
learned_values = on_policy.learned_values
start_from = on_policy.start_from


class State(epoch.State):
    """The same with the number of the epoch."""

    epoch: Int[Array, ""] | None
    """k; None where steps keep their length."""


@dataclasses.dataclass(frozen=True)
class Config(epoch.Config):
    """Settings of PCPO."""

    search: trust_region.LineSearch = option(
        trust_region.LineSearch(), "the step's bounds and search", "the PCPO paper"
    )
    metric: str = option(
        "kl", "what the projection measures by: KL divergence or parameters", OURS, choices=one_of("kl", "parameters")
    )
    anneal: float = option(
        0.0,
        "epochs after which steps are half as long, by 1 / (1 + k/anneal)² on the radius; 0: it stays as it is",
        OURS,
        within=(0.0, inf),
    )


def init(config: Config, problem: Problem, key: PRNGKeyArray) -> State:
    """A fresh policy and value functions."""
    started = epoch.start(config, problem, key, primal_steps.Trpo())
    return State(**vars(started), epoch=jnp.asarray(0) if config.anneal else None)


def step(
    config: Config, problem: Problem, state: State, batch: Transition, key: PRNGKeyArray
) -> tuple[State, dict[str, Array]]:
    """One epoch: reward step, projection, value fit."""
    view = epoch.look(config, problem, state, batch)
    if state.epoch is not None:
        length = config.anneal / (config.anneal + state.epoch)
        search = dataclasses.replace(config.search, radius=config.search.radius * length**2)
        config = dataclasses.replace(config, search=search)
        state = dataclasses.replace(state, epoch=state.epoch + 1)
    around = Around.of(problem, view.policy, view.batch, view.estimates.advantage)
    policy, metrics = improve(config, around, view.measured["cost"] - view.limit)
    return epoch.finish(config, state, view, key, policy, state.optimiser, metrics)


def improve(config: Config, around: Around, excess: Float[Array, " M"]) -> tuple[policies.Policy, dict[str, Array]]:
    """The two steps as one move, shortened where it leaves the region that gradients speak of."""
    gradients = around.gradients(1)
    solved = solver(config.search, around)(gradients)[0]
    gradients = gradients[0]
    back = solved[1:] if config.metric == "kl" else gradients[1:]
    curvature = jnp.maximum(gradients[0] @ solved[0], 0.0)
    length = jnp.where(
        curvature > 0.0, jnp.sqrt(2.0 * config.search.radius / jnp.where(curvature > 0.0, curvature, 1.0)), 0.0
    )
    climb = length * solved[0]
    amount = project(gradients[1:] @ back.T, excess + gradients[1:] @ climb)
    move = climb - amount @ back

    def acceptable(candidate: policies.Policy) -> Bool[Array, ""]:
        return around.surrogate.kl(candidate) <= 2.0 * config.search.radius

    new, found = around.search(config.search, move, acceptable)
    metrics = around.measure(new, found) | {
        "constrained": jnp.any(amount > 0.0).astype(jnp.float32),
        "multiplier": jnp.where(length > 0.0, amount / jnp.where(length > 0.0, length, 1.0), 0.0),
    }
    return new, metrics


def project(s: Float[Array, "M M"], c: Float[Array, " M"]) -> Float[Array, " M"]:
    """μ: how far to go back along each M⁻¹b_i from a point with excesses c, for the nearest point that has none."""
    return constrained_step.nearest(0.5 * (s + s.T), c)[1]
