"""TRPO (Schulman et al. 2015): maximise R(π), ignoring the constraints.

It is the reference that shows the return of a task without limits. Costs are measured and reported, but never used.
"""

import dataclasses

import equinox as eqx
import optax
from jax import random
from jaxtyping import Array, Int, PRNGKeyArray

from apdo.algorithms import natural_steps, on_policy, primal_steps
from apdo.core import critics, policies
from apdo.core.advantage import standardise
from apdo.core.data import Transition
from apdo.core.statistics import Statistics
from apdo.options import PAPER, option
from apdo.problem import Problem

act, memory, learned_policy, learned_values, start_from = on_policy.SHARED


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of TRPO."""

    primal: primal_steps.Config = option(natural_steps.Trpo(), "the policy step", PAPER, choices=primal_steps.CHOICES)
    policy: policies.Config = option(policies.Config(), "the policy network", PAPER)
    critic: critics.Config = option(critics.Config(), "the value function", PAPER)
    trace: float = option(0.95, "λ of generalised advantage estimation", PAPER, within=(0.0, 1.0))


class State(eqx.Module):
    """Everything that the next epoch needs."""

    policy: policies.Policy
    optimiser: optax.OptState
    critic: critics.Critic
    statistics: Statistics | None
    epoch: Int[Array, ""] | None
    """k; None if steps do not shrink."""


def init(config: Config, problem: Problem, key: PRNGKeyArray) -> State:
    """A new policy and value function."""
    policy_key, critic_key = random.split(key)
    policy = on_policy.fresh_policy(config.policy, problem, policy_key)
    optimiser, epoch = primal_steps.init(config.primal, policy), primal_steps.counter(config.primal)
    critic = on_policy.fresh_critic(config.critic, problem, critic_key, signals=1)
    return State(policy, optimiser, critic, on_policy.fresh_statistics(problem), epoch)


def step(
    config: Config, problem: Problem, state: State, batch: Transition, key: PRNGKeyArray
) -> tuple[State, dict[str, Array]]:
    """One epoch: advantages, policy step, and the fit of the value function."""
    primal_key, critic_key = random.split(key)
    statistics, seen, policy, critic = on_policy.renormalised(state, batch)
    estimates = on_policy.estimate_one(problem, critic, seen, batch.reward, config.trace)
    samples = on_policy.samples(problem, seen, standardise(estimates.advantage[..., 0]))
    policy, optimiser, metrics = primal_steps.improve(
        config.primal, policy, state.optimiser, samples, primal_key, epochs=0 if state.epoch is None else state.epoch
    )
    critic, error = on_policy.fit(config.critic, critic, critic_key, seen, estimates)
    metrics |= on_policy.measure(problem, batch) | {"value_error": error[0]}
    epoch = None if state.epoch is None else state.epoch + 1
    return State(policy, optimiser, critic, statistics, epoch), metrics
