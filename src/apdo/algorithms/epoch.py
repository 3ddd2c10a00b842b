"""The beginning and end of an epoch, shared by constrained on-policy algorithms. Each algorithm has its own step.

`begin` computes from a batch what a step may use: the policy and value functions with the newest normalisation,
advantages of the reward and of every cost, C(π_k) and the enforced limit d_k. `finish` fits the value functions and
builds the next state.

**Units.** Losses add rewards and costs, so both are in units of the standard deviation of their own advantages
(`Quantities.standard`). Let L = Σ_t w_t, the effective number of steps in the sums of one episode. A step may raise the
mean of w · (ratio - 1) · A_Ci / σ(A_Ci) by (d_i - C_i) / (L σ(A_Ci)) before C_i reaches its limit. `Quantities.excess`
is this number with the opposite sign. A penalty factor κ on it amounts to κ σ(A_R) / σ(A_Ci) in return per cost, the
unit of multipliers in `core.relative_units`.
"""

import dataclasses
from math import inf
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import random
from jaxtyping import Array, Float, Int, PRNGKeyArray

from apdo import objective
from apdo.algorithms import gradient_steps, on_policy, ppo_steps, primal_steps
from apdo.algorithms.surrogate import Samples, Surrogate
from apdo.core import critics, dial, dual, policies, relative_units, steering
from apdo.core.advantage import standardise
from apdo.core.data import Transition
from apdo.core.statistics import Statistics
from apdo.options import OURS, PAPER, option
from apdo.problem import Problem

S = TypeVar("S", bound="State")
C = TypeVar("C", bound="ClippedConfig")


@dataclasses.dataclass(frozen=True)
class Config(dial.Config):
    """Settings of the networks and of the advantages."""

    policy: policies.Config = option(policies.Config(), "the policy network", PAPER)
    critic: critics.Config = option(critics.Config(), "the value functions", PAPER)
    trace: float = option(0.95, "λ of generalised advantage estimation, reward", PAPER, within=(0.0, 1.0))
    cost_trace: float = option(0.95, "λ of generalised advantage estimation, costs", OURS, within=(0.0, 1.0))


@dataclasses.dataclass(frozen=True)
class ClippedConfig(Config):
    """The same for algorithms whose step is PPO's on a loss of their own."""

    primal: ppo_steps.Ppo = option(ppo_steps.Ppo(), "the clipped gradient steps", OURS)


class State(eqx.Module):
    """Everything that the next epoch needs."""

    policy: policies.Policy
    optimiser: optax.OptState
    critic: critics.Critic
    dial: dial.Dial | None
    statistics: Statistics | None


class CountedState(State):
    """The same, and the number of the epoch."""

    epoch: Int[Array, ""] | None
    """k; None if steps do not shrink."""


def init(config: ClippedConfig, problem: Problem, key: PRNGKeyArray) -> State:
    """A new policy and new value functions."""
    return start(config, problem, key, config.primal)


def start(
    config: Config,
    problem: Problem,
    key: PRNGKeyArray,
    primal: primal_steps.Config | gradient_steps.Passes | None = None,
) -> State:
    """A new policy with the optimiser of its primal step, if that has one, and new value functions."""
    policy_key, critic_key = random.split(key)
    policy = on_policy.fresh_policy(config.policy, problem, policy_key)
    return State(
        policy=policy,
        optimiser=() if primal is None else primal_steps.init(primal, policy),
        critic=on_policy.fresh_critic(config.critic, problem, critic_key, 1 + problem.constraints),
        dial=dial.start(config, problem.constraints),
        statistics=on_policy.fresh_statistics(problem),
    )


class Signals(eqx.Module):
    """The samples with the reward's advantage, and the costs' advantages, in units of their standard deviations."""

    surrogate: Surrogate
    cost: Float[Array, "B M"]


class Quantities(eqx.Module):
    """The quantities that a step may use, from a batch that nothing has been learned from yet."""

    policy: policies.Policy
    critic: critics.Critic
    statistics: Statistics | None
    dial: dial.Dial | None
    batch: Transition
    """The batch with normalised observations, as the networks see it."""
    estimates: critics.Estimates
    measured: dict[str, Array]
    limit: Float[Array, " M"]
    """d_k."""
    standard: Float[Array, "T N K"]
    """Each signal's advantages, with mean 0 and deviation 1."""
    excess: Float[Array, " M"]
    """(C_i - d_i) / (L σ(A_Ci)). It is 0 for a cost whose advantages do not vary, which no step can change."""
    size: Float[Array, " M"]
    """max(|d_i|, |C_i|) / (L σ(A_Ci))."""

    def samples(self, problem: Problem, advantage: Float[Array, "T N"]) -> Samples:
        """The batch as unordered samples, with the given advantage."""
        return on_policy.samples(problem, self.batch, advantage)

    def signals(self, problem: Problem) -> Signals:
        """The batch as unordered samples, with the advantages of the reward and of the costs."""
        samples = self.samples(problem, self.standard[..., 0])
        costs = self.standard[..., 1:].reshape(-1, self.standard.shape[-1] - 1)
        return Signals(surrogate=Surrogate.at(self.policy, samples), cost=costs)


def begin(config: Config, problem: Problem, state: State, batch: Transition) -> Quantities:
    """The quantities that a step may use, from the batch of π_k."""
    statistics, seen = on_policy.observe(state.statistics, batch)
    critic = on_policy.rebase(state.critic, state.statistics, statistics)
    estimates = on_policy.estimate(problem, critic, seen, config.trace, config.cost_trace)
    measured = on_policy.measure(problem, batch)
    turned, limit = dial.enforce(config, state.dial, measured["cost"], measured["cost_error"], problem.limit)
    standard = jax.vmap(standardise, in_axes=-1, out_axes=-1)(estimates.advantage)
    unit = jnp.sum(objective.step_weights(problem, batch)) * jnp.std(estimates.advantage[..., 1:], axis=(0, 1))
    moves = jnp.any(standard[..., 1:] != 0.0, axis=(0, 1))
    unit = jnp.where(moves, unit, 1.0)
    return Quantities(
        policy=on_policy.rebase(state.policy, state.statistics, statistics),
        critic=critic,
        statistics=statistics,
        dial=turned,
        batch=seen,
        estimates=estimates,
        measured=measured,
        limit=limit,
        standard=standard,
        excess=jnp.where(moves, (measured["cost"] - limit) / unit, 0.0),
        size=jnp.where(moves, jnp.maximum(jnp.abs(limit), jnp.abs(measured["cost"])) / unit, 0.0),
    )


def begin_clipped(config: C, problem: Problem, state: State, batch: Transition) -> tuple[C, Quantities, Signals]:
    """The settings with this epoch's rates, the quantities, and the batch as samples with all advantages."""
    quantities = begin(config, problem, state, batch)
    primal = gradient_steps.annealed(config.primal, state.optimiser)
    return dataclasses.replace(config, primal=primal), quantities, quantities.signals(problem)


def finish(
    config: Config,
    state: S,
    quantities: Quantities,
    key: PRNGKeyArray,
    policy: policies.Policy,
    optimiser: optax.OptState,
    metrics: dict[str, Array],
) -> tuple[S, dict[str, Array]]:
    """The state with the new policy and value functions fitted to this batch, and all metrics."""
    critic, error = on_policy.fit(config.critic, quantities.critic, key, quantities.batch, quantities.estimates)
    after = dataclasses.replace(
        state, policy=policy, optimiser=optimiser, critic=critic, dial=quantities.dial, statistics=quantities.statistics
    )
    measured = quantities.measured | dial.measure(quantities.dial, quantities.limit)
    return after, metrics | measured | {"value_error": error}


@dataclasses.dataclass(frozen=True)
class PricedConfig(Config):
    """Settings of an algorithm with gradient steps and a multiplier for each cost."""

    rule: dual.Config = option(
        dual.Pid(), "update rule of the multipliers, with gains that are pure numbers", OURS, choices=dual.CHOICES
    )
    dual_step: float = option(0.05, "step of the dual ascent", OURS, within=(0.0, inf))
    primal: gradient_steps.Passes = option(gradient_steps.Passes(), "the gradient steps", OURS)


class PricedState(State):
    """A state with multipliers and their units."""

    multiplier: dual.Multiplier
    units: relative_units.Relative


def init_priced(config: PricedConfig, problem: Problem, key: PRNGKeyArray) -> PricedState:
    """A new policy, new value functions, and multipliers of 0."""
    m = problem.constraints
    multiplier, units = dual.start(config.rule, jnp.zeros(m)), relative_units.Relative.start(m)
    return PricedState(**vars(start(config, problem, key, config.primal)), multiplier=multiplier, units=units)


def ascend(config: PricedConfig, problem: Problem, state: PricedState, quantities: Quantities) -> PricedState:
    """The state after the rule's update of ν by C(π_k), with gains that are pure numbers (`core.relative_units`)."""
    cost = quantities.measured["cost"]
    spread = quantities.measured["cost_deviation"], quantities.measured["cost_error"]
    units = state.units.observe(quantities.estimates.advantage, cost, spread)
    limit, step = quantities.limit, config.dual_step
    multiplier = steering.steer(config.rule, state.multiplier, cost, limit, step, units, problem.limit)
    return dataclasses.replace(state, multiplier=multiplier, units=units)


def relative_influence(state: PricedState, quantities: Quantities) -> Float[Array, " M"]:
    """ν_i σ(A_Ci) / σ(A_R): the influence of each cost on the policy, relative to the reward's."""
    deviation = jnp.std(quantities.estimates.advantage, axis=(0, 1))
    return state.multiplier.value * deviation[1:] / jnp.where(deviation[0] > 0.0, deviation[0], 1.0)
