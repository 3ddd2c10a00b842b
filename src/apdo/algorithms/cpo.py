"""Constrained policy optimisation, CPO (Achiam et al. 2017): every step solves for its multipliers.

g is the gradient of R, b_i those of C_i, H the Fisher matrix, c_i = C_i(π_k) - d_i, and δ the radius:

    θ_{k+1} = θ_k + x,   x = argmax gᵀx   subject to   c_i + b_iᵀx ≤ 0 for every i,   xᵀHx/2 ≤ δ

x maximises the linearised return within the linearised constraints and a KL trust region (`core.constrained_step`). If
no step satisfies these, x is a recovery step, which only reduces cost. A line search then checks the sampled
surrogates. The step uses the enforced limit d_k of `core.dial` instead of d.

Gradients are of the sums of one episode (`local_model`), so the multiplier ν of a limit is in reward per cost. They are
noisy. The predicted effect of a step is believed only as far as two halves of the batch agree on it, and gradients are
averaged over epochs (`believed_step`; both are ours, and off in `--preset paper`). With `anneal` steps shrink, so that
a policy which has to mix choices settles (`cpo_step`; also ours, and off by default).
"""

import dataclasses
from math import inf

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PRNGKeyArray

from apdo.algorithms import believed_step, on_policy
from apdo.algorithms.cpo_step import improve
from apdo.algorithms.local_model import LocalModel, solver
from apdo.core import annealing, critics, dial, policies, trust_region
from apdo.core.data import Transition
from apdo.core.statistics import Statistics
from apdo.options import OURS, PAPER, option
from apdo.problem import Asked, Problem

act, memory, learned_policy, learned_values, start_from = on_policy.SHARED


@dataclasses.dataclass(frozen=True)
class Config(dial.Config):
    """Settings of CPO."""

    search: trust_region.LineSearch = option(trust_region.LineSearch(radius=0.02), "the step's bounds and search", OURS)
    policy: policies.Config = option(policies.Config(), "the policy network", PAPER)
    critic: critics.Config = option(critics.Config(), "the value functions", PAPER)
    trace: float = option(0.95, "λ of generalised advantage estimation, reward", PAPER, within=(0.0, 1.0))
    cost_trace: float = option(0.95, "λ of generalised advantage estimation, costs", OURS, within=(0.0, 1.0))
    doubt: bool = option(
        True, "whether a step's predicted effect is believed only as far as two halves of the batch agree on it", OURS
    )
    history: float = option(0.9, "largest weight of earlier epochs' gradients; 0: none", OURS, within=(0.0, 1.0))
    anneal: float = option(
        0.0, f"{annealing.SHORTER} on the whole step; 0: their length is constant", OURS, within=(0.0, inf)
    )


class State(eqx.Module):
    """Everything that the next epoch needs."""

    policy: policies.Policy
    critic: critics.Critic
    dial: dial.Dial | None
    statistics: Statistics | None
    gradients: Float[Array, "H K P"]
    """Gradients of the sums of one episode, for each half of the episodes, averaged over the epochs."""
    predicted: Float[Array, " M"]
    """The C(π_k) that the step to π_k predicted."""
    epoch: Int[Array, ""]


def suited(asked: Asked) -> dict[str, object]:
    """Default options for the length of episodes and the number of epochs."""
    return {"search.radius": trust_region.radius_for(asked.horizon, asked.epochs)}


def init(config: Config, problem: Problem, key: PRNGKeyArray) -> State:
    """A new policy and new value functions."""
    policy_key, critic_key = jax.random.split(key)
    policy = on_policy.fresh_policy(config.policy, problem, policy_key)
    signals = 1 + problem.constraints
    return State(
        policy=policy,
        critic=on_policy.fresh_critic(config.critic, problem, critic_key, signals),
        dial=dial.start(config, problem.constraints),
        statistics=on_policy.fresh_statistics(problem),
        gradients=jnp.zeros((2 if config.doubt else 1, signals, ravel_pytree(policy)[0].shape[0])),
        predicted=jnp.zeros(problem.constraints),
        epoch=jnp.asarray(0),
    )


def step(
    config: Config, problem: Problem, state: State, batch: Transition, key: PRNGKeyArray
) -> tuple[State, dict[str, Array]]:
    """One epoch: advantages, the constrained step, and the fit of the value functions."""
    statistics, seen, policy, critic = on_policy.renormalised(state, batch)
    estimates = on_policy.estimate(problem, critic, seen, config.trace, config.cost_trace)
    measured = on_policy.measure(problem, batch)
    turned, limit = dial.enforce(config, state.dial, measured["cost"], measured["cost_error"], problem.limit)
    model = LocalModel.of(problem, policy, seen, estimates.advantage)
    most = jnp.where(state.epoch == 0, 0.0, config.history if config.doubt else 0.0)
    fresh = model.gradients(state.gradients.shape[0])
    solve = solver(config.search, model)
    gradients, solved, kept = believed_step.averaged(fresh, solve(fresh), state.gradients, solve(state.gradients), most)
    length = annealing.length(config.anneal, state.epoch)
    excess = measured["cost"] - limit
    policy, change, metrics = improve(config.search, model, gradients, solved, excess, length, config.anneal > 0.0)
    metrics["history"] = kept[1:]
    critic, error = on_policy.fit(config.critic, critic, key, seen, estimates)
    metrics |= measured | dial.measure(turned, limit) | {"value_error": error}
    metrics["predicted_cost"] = jnp.where(state.epoch == 0, measured["cost"], state.predicted)
    predicted = measured["cost"] + change
    return State(policy, critic, turned, statistics, gradients, predicted, state.epoch + 1), metrics
