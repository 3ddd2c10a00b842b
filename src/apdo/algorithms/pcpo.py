"""Projection-based constrained policy optimisation, PCPO (Yang et al. 2020): a step for the return, then a projection.

g is the gradient of R, b_i those of C_i, H the Fisher matrix, c_i = C_i(π_k) - d_i, and δ the radius:

    reward step   x_0 = sqrt(2δ / gᵀH⁻¹g) H⁻¹g
    projection    x = argmin (x - x_0)ᵀ M (x - x_0) / 2   subject to   c_i + b_iᵀx ≤ 0 for every i

M is H, which measures distances by KL, or I. The projection is x = x_0 - M⁻¹B μ, where μ ≥ 0
maximises μᵀ(c + Bᵀx_0) - μᵀSμ/2 with S = BᵀM⁻¹B. For one constraint

    x = x_0 - [ (c + bᵀx_0) / (bᵀM⁻¹b) ]⁺ M⁻¹b.

If π_k exceeds a limit, the same formula leads back to it; no separate recovery step is needed. With M = H the move is a
multiple of H⁻¹(g - B μ/α), where α is the factor of the reward step x_0 = α H⁻¹g. So μ/α is the multiplier of a limit
in return per cost, which is reported as `multiplier`.

Up to ten constraints: the projection is onto all of them at once, by enumerating active sets (`core.constrained_step`).
The paper has one constraint.

Deviations:
1. g and b_i are gradients of the sums of one episode (`local_model`), so both terms of c + bᵀx have the same unit.
2. The paper does not shorten the step. A long projection leaves the region where the linear model is valid, so here the
   step is shortened until KL(π_k ‖ π) is at most 2δ: the KL of the reward step plus a projection of the same length.
3. With `anneal` δ shrinks. Steps of constant length always pass the whole error of each batch's C on to the policy.
4. The gradients of the batch are used unchanged. Only our CPO has remedies for their noise.
"""

import dataclasses
from math import inf

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from apdo.algorithms import epoch, on_policy
from apdo.algorithms.local_model import LocalModel, solver
from apdo.core import annealing, constrained_step, policies, trust_region
from apdo.core.data import Transition
from apdo.options import OURS, one_of, option
from apdo.problem import Problem

act, memory, learned_policy, learned_values, start_from = on_policy.SHARED
State = epoch.CountedState


@dataclasses.dataclass(frozen=True)
class Config(epoch.Config):
    """Settings of PCPO."""

    search: trust_region.LineSearch = option(
        trust_region.LineSearch(), "the step's bounds and search", "the PCPO paper"
    )
    metric: str = option(
        "kl",
        "the distance that the projection minimises: KL divergence, or distance between parameters",
        OURS,
        choices=one_of("kl", "parameters"),
    )
    anneal: float = option(
        0.0,
        f"{annealing.SHORTER}² on the radius; 0: the radius is constant",
        OURS,
        within=(0.0, inf),
    )


def init(config: Config, problem: Problem, key: PRNGKeyArray) -> State:
    """A new policy and new value functions."""
    return State(**vars(epoch.start(config, problem, key)), epoch=annealing.counter(config.anneal))


def step(
    config: Config, problem: Problem, state: State, batch: Transition, key: PRNGKeyArray
) -> tuple[State, dict[str, Array]]:
    """One epoch: reward step, projection, and the fit of the value functions."""
    quantities = epoch.begin(config, problem, state, batch)
    if state.epoch is not None:
        length = annealing.length(config.anneal, state.epoch)
        search = dataclasses.replace(config.search, radius=config.search.radius * length**2)
        config = dataclasses.replace(config, search=search)
        state = dataclasses.replace(state, epoch=state.epoch + 1)
    model = LocalModel.of(problem, quantities.policy, quantities.batch, quantities.estimates.advantage)
    policy, metrics = improve(config, model, quantities.measured["cost"] - quantities.limit)
    return epoch.finish(config, state, quantities, key, policy, state.optimiser, metrics)


def improve(config: Config, model: LocalModel, excess: Float[Array, " M"]) -> tuple[policies.Policy, dict[str, Array]]:
    """The two steps as one move, shortened if it leaves the region where the linear model is valid."""
    gradients = model.gradients(1)
    solved = solver(config.search, model)(gradients)[0]
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
        return model.surrogate.kl(candidate) <= 2.0 * config.search.radius

    new, found = model.search(config.search, move, acceptable)
    metrics = model.measure(new, found) | {
        "constrained": jnp.any(amount > 0.0).astype(jnp.float32),
        "multiplier": jnp.where(length > 0.0, amount / jnp.where(length > 0.0, length, 1.0), 0.0),
    }
    return new, metrics


def project(s: Float[Array, "M M"], c: Float[Array, " M"]) -> Float[Array, " M"]:
    """μ ≥ 0 for the projection from a point with excesses c to the nearest point without any."""
    return constrained_step.nearest(0.5 * (s + s.T), c)[1]
