"""Primal-dual optimisation, PDO (paper, section 3): policy and multipliers updated in turn.

    θ_{k+1}   from a likelihood-ratio step on  L(π, λ^(k)) = R(π) - Σ_i λ_i^(k) (C_i(π) - d_i)
    λ_i^(k+1) = [λ_i^(k) + β (C_i(π_k) - d_i)]⁺

C_i(π_k) comes from the batch that π_k has just sampled, and from no other. That is the paper's dual step, in the
problem's own units (`--preset paper`); by default the multipliers are steered by PID with gains that have no unit
(`core.dual`).

A trust-region step has the same length however near the optimum is. Along the gradient of L, which turns with λ, such
steps throw a cost from one side of its limit to the other (on the queueing network, from +2 to -5, epoch after epoch).
So a step of TRPO is shortened where it would carry a cost through its limit by more than the batch can tell
(`overshoot`; not in the paper).

The multipliers that a policy step sees are those of the epoch before, as in the paper: the cost of π_k moves λ^(k+1),
which moves π_{k+2}. That delay makes policy and multipliers swing, most of all near the optimum, where L is flat and a
small change of λ moves costs far. With `first` multipliers they move first, as in the code of Ray et al. and of Stooke
et al., and a policy's step answers to its own batch.

With a safety dial that is not in the middle (`core.dial`) the dual step sees d_k for d.
"""

import dataclasses
from math import inf

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import random
from jaxtyping import Array, Float, PRNGKeyArray

from apdo import objective
from apdo.algorithms import on_policy, primal_steps
from apdo.core import critics, dial, dual, policies, trust_region
from apdo.core.advantage import standardise
from apdo.core.data import Transition
from apdo.core.statistics import Statistics
from apdo.errors import InvalidInput
from apdo.options import OURS, PAPER, PUBLISHED, one_of, option
from apdo.problem import Asked, Problem

act = on_policy.act
memory = on_policy.memory
learned_policy = on_policy.learned_policy
learned_values = on_policy.learned_values
start_from = on_policy.start_from


@dataclasses.dataclass(frozen=True)
class Config(dial.Config):
    """Settings of PDO."""

    primal: primal_steps.Config = option(
        primal_steps.Trpo(radius=0.02), "the policy step", OURS, choices=primal_steps.CHOICES
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
    rule: dual.Config = option(dual.Pid(), "what moves the multipliers", OURS, choices=dual.CHOICES)
    dual_step: float = option(0.2, "β, the step of dual ascent; 0 holds the multipliers fixed", OURS, within=(0.0, inf))
    overshoot: float = option(
        1.0,
        "how far a step of TRPO may carry a cost through its limit, in standard errors of the batch, or in fifths of "
        "what an episode's cost varies by where those are larger; 0: any distance",
        OURS,
        within=(0.0, inf),
    )
    units: str = option(
        "relative",
        "what gains are counted in: pure numbers, which suit every problem, or the problem's own units, as the paper's",
        OURS,
        choices=one_of("relative", "own"),
    )
    first: str = option(
        "policy",
        "what moves first in an epoch: the policy, by the multipliers of the epoch before, or the multipliers, so that "
        "the policy step sees what the batch has just cost",
        PAPER,
        choices=one_of("policy", "multipliers"),
    )
    initial_multiplier: float = option(0.0, "λ^(0), the same for every constraint", PUBLISHED, within=(0.0, inf))


_SHARE = 0.2
"""The share of an episode's variation by which a cost may always cross its limit."""


class State(eqx.Module):
    """Everything that the next epoch needs."""

    policy: policies.Policy
    optimiser: optax.OptState
    critic: critics.Critic
    multiplier: dual.Multiplier
    units: dual.Relative
    dial: dial.Dial | None
    statistics: Statistics | None


def suited(asked: Asked) -> dict[str, float]:
    """Options that suit episodes of so many steps, where no other are given."""
    return {"primal.radius": trust_region.radius_for(asked.horizon)}


def init(config: Config, problem: Problem, key: PRNGKeyArray) -> State:
    """A fresh policy and value functions; multipliers as configured."""
    if config.values == "combined" and config.units == "relative":
        raise InvalidInput("values combined has no advantages of the costs to count gains in; it needs units own.")
    if config.values == "combined" and config.first == "multipliers":
        raise InvalidInput("values combined has the multipliers inside before they move; it needs first policy.")
    policy_key, critic_key = random.split(key)
    policy = on_policy.fresh_policy(config.policy, problem, policy_key)
    signals = 1 + problem.constraints if config.values == "separate" else 1
    return State(
        policy=policy,
        optimiser=primal_steps.init(config.primal, policy),
        critic=on_policy.fresh_critic(config.critic, problem, critic_key, signals),
        multiplier=dual.start(config.rule, jnp.full((problem.constraints,), config.initial_multiplier)),
        units=dual.Relative.start(problem.constraints),
        dial=dial.start(config, problem.constraints),
        statistics=on_policy.fresh_statistics(problem),
    )


def step(
    config: Config, problem: Problem, state: State, batch: Transition, key: PRNGKeyArray
) -> tuple[State, dict[str, Array]]:
    """One epoch: primal step with λ^(k), then the dual step from C(π_k); or the two in the other order."""
    primal_key, critic_key = random.split(key)
    statistics, seen = on_policy.observe(state.statistics, batch)
    policy = on_policy.rebase(state.policy, state.statistics, statistics)
    critic = on_policy.rebase(state.critic, state.statistics, statistics)
    found = estimates(config, problem, critic, state.multiplier.value, seen)
    measured = on_policy.measure(problem, batch)
    cost = measured["cost"]
    units = state.units.observe(found.advantage, cost, (measured["cost_deviation"], measured["cost_error"]))
    turned, limit = dial.enforce(config, state.dial, cost, units.error, problem.limit)
    multiplier = steer(config, state.multiplier, units, cost, limit)
    price = (multiplier if config.first == "multipliers" else state.multiplier).value
    # With λ of L(π, λ) in front of the costs; a combined value function has them inside already.
    weight = jnp.concatenate([jnp.ones(1), -price])[: found.advantage.shape[-1]]
    samples = on_policy.samples(problem, seen, standardise(found.advantage @ weight))
    crossing = crossing_of(config, problem, seen, found.advantage, units, cost, limit)
    policy, optimiser, metrics = primal_steps.improve(
        config.primal, policy, state.optimiser, samples, primal_key, crossing
    )
    critic, error = on_policy.fit(config.critic, critic, critic_key, seen, found)
    metrics |= measured | dial.measure(turned, limit)
    metrics |= {"multiplier": price, "value_error": error}
    after = State(
        policy=policy,
        optimiser=optimiser,
        critic=critic,
        multiplier=multiplier,
        units=units,
        dial=turned,
        statistics=statistics,
    )
    return after, metrics


def crossing_of(
    config: Config,
    problem: Problem,
    batch: Transition,
    advantage: Float[Array, "T N K"],
    units: dual.Relative,
    cost: Float[Array, " M"],
    limit: Float[Array, " M"],
) -> primal_steps.Crossing | None:
    """How far the step may carry costs through their limits, given all advantages; None where it may at will."""
    if not config.overshoot or not isinstance(config.primal, primal_steps.Trpo) or config.values == "combined":
        return None
    costs = advantage[..., 1:]
    centred = costs - jnp.mean(costs, axis=(0, 1), keepdims=True)
    weighted = objective.step_weights(problem, batch)[..., None] * centred
    size = jnp.maximum(jnp.abs(limit), jnp.abs(cost))
    varies = _SHARE * jnp.minimum(size, units.deviation)
    return primal_steps.Crossing(
        advantage=weighted.reshape(-1, costs.shape[-1]),
        half=on_policy.halves(batch),
        excess=cost - limit,
        allowed=config.overshoot * jnp.maximum(varies, units.error),
    )


def steer(
    config: Config,
    multiplier: dual.Multiplier,
    units: dual.Relative,
    cost: Float[Array, " M"],
    limit: Float[Array, " M"],
) -> dual.Multiplier:
    """The dual step, in the units that the gains are counted in; none with a step of 0, whatever the rule adds."""
    if config.units == "own":
        moved = dual.update(config.rule, multiplier, cost - limit, config.dual_step)
    else:
        unit = units.unit(multiplier.integral)
        moved = dual.update(config.rule, multiplier, units.excess(cost, limit), config.dual_step, unit, units.price())
    # The step may be an argument of the program, and 0 for some of the runs that share it.
    held = config.dual_step == 0.0
    return jax.tree.map(lambda old, new: jnp.where(held, old, new), multiplier, moved)


def estimates(
    config: Config, problem: Problem, critic: critics.Critic, multiplier: Float[Array, " M"], batch: Transition
) -> critics.Estimates:
    """Advantages and value targets: of each signal or, with a combined value function, of r - Σ λ_i c_i."""
    if config.values == "separate":
        return on_policy.estimate(problem, critic, batch, config.trace, config.cost_trace)
    return on_policy.estimate_one(problem, critic, batch, batch.reward - batch.cost @ multiplier, config.trace)
