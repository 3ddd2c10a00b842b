"""Primal-dual optimisation, PDO (paper, section 3): policy and multipliers updated in turn.

    θ_{k+1}   from a likelihood-ratio step on  L(π, λ^(k)) = R(π) - Σ_i λ_i^(k) (C_i(π) - d_i)
    λ_i^(k+1) = [λ_i^(k) + β (C_i(π_k) - d_i)]⁺

C_i(π_k) is estimated only from the batch that π_k has just sampled. The formula is the paper's dual step, in the
problem's own units (`--preset paper`). By default PID controls λ, with unitless gains (`core.relative_units`).

Not in the paper: a TRPO step is shortened if it would move a cost too far across its limit (`overshoot`), and the dual
step uses the enforced limit d_k instead of d (`core.dial`). If policy steps shrink with the epochs (`primal.anneal`),
the dual step shrinks too; otherwise the oscillation of both would be less damped. As in the paper, a policy step uses
the multipliers of the previous epoch, which makes both oscillate. `--first multipliers` updates the multipliers first.
"""

import dataclasses
from math import inf

import equinox as eqx
import jax.numpy as jnp
import optax
from jax import random
from jaxtyping import Array, PRNGKeyArray

from apdo.algorithms import natural_steps, on_policy, overshoot, primal_steps, value_functions
from apdo.algorithms.care import Careful
from apdo.core import critics, dial, dual, policies, relative_units, steering
from apdo.core.advantage import standardise
from apdo.core.data import Transition
from apdo.core.statistics import Statistics
from apdo.options import OURS, PAPER, PUBLISHED, one_of, option
from apdo.problem import Asked, Problem

act, memory, learned_policy, learned_values, start_from = on_policy.SHARED


@dataclasses.dataclass(frozen=True)
class Config(dial.Config):
    """Settings of PDO."""

    primal: primal_steps.Config = option(
        natural_steps.Trpo(radius=0.02), "the policy step", OURS, choices=primal_steps.CHOICES
    )
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
    rule: dual.Config = option(dual.Pid(), "update rule of the multipliers", OURS, choices=dual.CHOICES)
    dual_step: float = option(0.2, "β, the step of dual ascent; 0 holds the multipliers fixed", OURS, within=(0.0, inf))
    overshoot: float = option(
        1.0,
        "how far a step of TRPO may move a cost across its limit, in standard errors of the batch, or in fifths of the "
        "standard deviation of an episode's cost if these are larger; 0: any distance",
        OURS,
        within=(0.0, inf),
    )
    units: str = option(
        "relative",
        "units of the gains: pure numbers, which suit every problem, or the problem's own units, as in the paper",
        OURS,
        choices=one_of("relative", "own"),
    )
    first: str = option(
        "policy",
        "what is updated first in an epoch: the policy, with the multipliers of the previous epoch, or the "
        "multipliers, so that the policy step responds to the cost of its own batch",
        PAPER,
        choices=one_of("policy", "multipliers"),
    )
    initial_multiplier: float = option(0.0, "λ^(0), the same for every constraint", PUBLISHED, within=(0.0, inf))


class State(eqx.Module):
    """Everything that the next epoch needs."""

    policy: policies.Policy
    optimiser: optax.OptState
    critic: critics.Critic
    multiplier: dual.Multiplier
    units: relative_units.Relative
    dial: dial.Dial | None
    statistics: Statistics | None


def suited(asked: Asked) -> dict[str, object]:
    """Default options for a task and a run."""
    return primal_steps.suited(asked) | dial.suited(asked.epochs)


def init(config: Config, problem: Problem, key: PRNGKeyArray) -> State:
    """A new policy, new value functions, and the configured multipliers."""
    policy_key, critic_key = random.split(key)
    policy = on_policy.fresh_policy(config.policy, problem, policy_key)
    return State(
        policy=policy,
        optimiser=primal_steps.init(config.primal, policy),
        critic=on_policy.fresh_critic(config.critic, problem, critic_key, value_functions.signals(config, problem)),
        multiplier=dual.start(config.rule, jnp.full((problem.constraints,), config.initial_multiplier)),
        units=relative_units.Relative.start(problem.constraints),
        dial=dial.start(config, problem.constraints),
        statistics=on_policy.fresh_statistics(problem),
    )


def step(
    config: Config, problem: Problem, state: State, batch: Transition, key: PRNGKeyArray, careful: Careful = None
) -> tuple[State, dict[str, Array]]:
    """One epoch: primal step with λ^(k), then the dual step by C(π_k); in the opposite order if `careful`."""
    primal_key, critic_key = random.split(key)
    statistics, seen, policy, critic = on_policy.renormalised(state, batch)
    found = value_functions.estimates(config, problem, critic, state.multiplier.value, seen)
    measured = on_policy.measure(problem, batch)
    cost, spread = measured["cost"], (measured["cost_deviation"], measured["cost_error"])
    units = state.units.observe(found.advantage, cost, spread)
    turned, limit = dial.enforce(config, state.dial, cost, units.error, problem.limit)
    counted = units if config.units == "relative" else None
    length = primal_steps.step_length(config.primal, state.optimiser, state.units.batches)
    step = length * config.dual_step
    multiplier = steering.steer(config.rule, state.multiplier, cost, limit, step, counted, problem.limit)
    price = (multiplier if config.first == "multipliers" else state.multiplier).value
    price = price if careful is None else jnp.where(careful, multiplier.value, price)
    # The costs' advantages are multiplied by -λ. A combined value function already includes λ.
    weight = jnp.concatenate([jnp.ones(1), -price])[: found.advantage.shape[-1]]
    samples = on_policy.samples(problem, seen, standardise(found.advantage @ weight))
    crossing = overshoot.crossing(config, problem, seen, found.advantage, units, (cost, limit), careful)
    policy, optimiser, metrics = primal_steps.improve(
        config.primal, policy, state.optimiser, samples, primal_key, crossing, state.units.batches
    )
    critic, error = on_policy.fit(config.critic, critic, critic_key, seen, found)
    metrics |= measured | dial.measure(turned, limit) | {"multiplier": price, "value_error": error}
    return State(policy, optimiser, critic, multiplier, units, turned, statistics), metrics
