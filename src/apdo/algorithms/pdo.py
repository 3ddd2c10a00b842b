"""Primal-dual optimisation, PDO (paper, section 3): policy and multipliers updated in turn.

    θ_{k+1}   from a likelihood-ratio step on  L(π, λ^(k)) = R(π) - Σ_i λ_i^(k) (C_i(π) - d_i)
    λ_i^(k+1) = [λ_i^(k) + β (C_i(π_k) - d_i)]⁺

C_i(π_k) comes from the batch that π_k has just sampled, and from no other. With a safety dial that is not in the middle
(`core.dial`) the dual step sees d_k for d.
"""

import dataclasses
from math import inf

import equinox as eqx
import jax.numpy as jnp
import optax
from jax import random
from jaxtyping import Array, Float, PRNGKeyArray

from apdo.algorithms import on_policy, primal_steps
from apdo.core import critics, dial, dual, policies
from apdo.core.advantage import standardise
from apdo.core.data import Transition, flatten
from apdo.options import OURS, PAPER, PUBLISHED, one_of, option
from apdo.problem import Problem

act = on_policy.act
memory = on_policy.memory
learned_policy = on_policy.learned_policy


@dataclasses.dataclass(frozen=True)
class Config(dial.Config):
    """Settings of PDO."""

    primal: primal_steps.Config = option(primal_steps.Trpo(), "the policy step", PAPER, choices=primal_steps.CHOICES)
    policy: policies.Config = option(policies.Config(), "the policy network", PAPER)
    critic: critics.Config = option(critics.Config(), "the value functions", PAPER)
    trace: float = option(0.95, "λ of generalised advantage estimation, reward", PAPER, within=(0.0, 1.0))
    cost_trace: float = option(0.95, "λ of generalised advantage estimation, costs", OURS, within=(0.0, 1.0))
    values: str = option(
        "separate",
        "value functions: one for the reward and one per cost, or a single one of r - Σ λ_i c_i "
        "(what the published code uses for PDO)",
        OURS,
        choices=one_of("separate", "combined"),
    )
    dual_step: float = option(
        0.1, "β, the step of dual ascent; 0 holds the multipliers fixed", PAPER, within=(0.0, inf)
    )
    rule: dual.Config = option(dual.Ascent(), "what moves the multipliers", PAPER, choices=dual.CHOICES)
    initial_multiplier: float = option(0.0, "λ^(0), the same for every constraint", PUBLISHED, within=(0.0, inf))


class State(eqx.Module):
    """Everything that the next epoch needs."""

    policy: policies.Policy
    optimiser: optax.OptState
    critic: critics.Critic
    multiplier: dual.Multiplier
    dial: dial.Dial | None


def init(config: Config, problem: Problem, key: PRNGKeyArray) -> State:
    """A fresh policy and value functions; multipliers as configured."""
    policy_key, critic_key = random.split(key)
    policy = on_policy.fresh_policy(config.policy, problem, policy_key)
    signals = 1 + problem.constraints if config.values == "separate" else 1
    return State(
        policy=policy,
        optimiser=primal_steps.init(config.primal, policy),
        critic=critics.init(config.critic, critic_key, problem.observation_size, signals),
        multiplier=dual.start(config.rule, jnp.full((problem.constraints,), config.initial_multiplier)),
        dial=dial.start(config, problem.constraints),
    )


def step(
    config: Config, problem: Problem, state: State, batch: Transition, key: PRNGKeyArray
) -> tuple[State, dict[str, Array]]:
    """One epoch: primal step with λ^(k), then the dual step from C(π_k)."""
    primal_key, critic_key = random.split(key)
    found = estimates(config, problem, state.critic, state.multiplier.value, batch)
    # With λ of L(π, λ) in front of the costs; a combined value function has them inside already.
    weight = jnp.concatenate([jnp.ones(1), -state.multiplier.value])[: found.advantage.shape[-1]]
    advantage = standardise(found.advantage @ weight)
    samples = on_policy.samples(batch, advantage)
    policy, optimiser, metrics = primal_steps.improve(config.primal, state.policy, state.optimiser, samples, primal_key)
    targets = found.target.reshape(samples.advantage.shape[0], -1)
    fitted, error = critics.fit(config.critic, state.critic, critic_key, flatten(batch).observation, targets)
    cost = on_policy.summary(problem, batch).constrained_cost
    turned, limit = dial.enforce(config, state.dial, cost, problem.limit)
    multiplier = dual.update(config.rule, state.multiplier, cost, limit, config.dual_step)
    metrics |= on_policy.measure(problem, batch) | dial.measure(turned, limit)
    metrics |= {"multiplier": state.multiplier.value, "value_error": error}
    return State(policy=policy, optimiser=optimiser, critic=fitted, multiplier=multiplier, dial=turned), metrics


def estimates(
    config: Config, problem: Problem, critic: critics.Critic, multiplier: Float[Array, " M"], batch: Transition
) -> critics.Estimates:
    """Advantages and value targets: of each signal or, with a combined value function, of r - Σ λ_i c_i."""
    if config.values == "separate":
        return on_policy.estimate(problem, critic, batch, config.trace, config.cost_trace)
    signal = batch.reward - batch.cost @ multiplier
    discount, trace = jnp.asarray([problem.discount]), jnp.asarray([config.trace])
    return critics.estimate(critic, batch, signal[..., None], discount, trace, truncates=problem.truncates)
