"""Functions shared by the on-policy algorithms: acting by sampling, advantages, and measurements from a batch.

If the problem asks for it, networks see observations normalised by their running mean and variance. When a batch
changes these statistics, the first layers of the networks are adjusted. Policies and value functions then remain the
same functions of the raw observations.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from apdo import objective
from apdo.algorithms.surrogate import Samples
from apdo.core import critics, networks, policies
from apdo.core.data import Transition, flatten
from apdo.core.statistics import Statistics, normalised
from apdo.problem import Problem

N = TypeVar("N")
L = TypeVar("L", bound="HasTarget")
S = TypeVar("S", bound="HasPolicy")


@runtime_checkable
class HasPolicy(Protocol):
    """A state with a stochastic policy and the statistics that its observations are normalised by."""

    @property
    def policy(self) -> policies.Policy:
        """π_k."""
        ...

    @property
    def statistics(self) -> Statistics | None:
        """The statistics of the observations so far; None if observations are not normalised."""
        ...


@runtime_checkable
class HasValues(HasPolicy, Protocol):
    """A state with a policy and value functions."""

    @property
    def critic(self) -> critics.Critic:
        """The value functions: of the return and of each cost, or a single one."""
        ...


@runtime_checkable
class HasTarget(Protocol):
    """A learner with networks, and target networks that follow some of them."""

    @property
    def learned(self) -> PyTree:
        """The networks that learn."""
        ...

    @property
    def target(self) -> PyTree:
        """The target networks."""
        ...


def memory(config: object, problem: Problem) -> tuple[()]:  # noqa: ARG001
    """The memory of `act`, which is empty: a stationary policy needs none."""
    return ()


def learned_policy(state: HasPolicy) -> policies.Policy | policies.Normalised:
    """The learned policy, as a function from a raw observation to an action distribution."""
    return policies.over_raw(state.policy, state.statistics)


def acting_by(learned: Callable[[PyTree], PyTree]) -> Callable[..., tuple[Float[Array, " A"], tuple[()]]]:
    """The `act` of an algorithm that samples its learned policy: a ~ π_k(·|s)."""

    def act(
        config: object,  # noqa: ARG001
        state: PyTree,
        memory: tuple[()],
        observation: Float[Array, " O"],
        key: PRNGKeyArray,
    ) -> tuple[Float[Array, " A"], tuple[()]]:
        return learned(state)(observation).sample(key), memory

    return act


act = acting_by(learned_policy)


class LearnedValues(eqx.Module):
    """Value functions of the return and of each cost, over raw observations."""

    critic: critics.Critic
    statistics: Statistics | None

    def __call__(self, observation: Float[Array, "B O"], step: Int[Array, " B"]) -> Float[Array, "B K"]:
        """The expected sums over the rest of an episode, after `step` steps: of the reward, then of each cost."""
        seen = observation if self.statistics is None else self.statistics.normalise(observation)
        return critics.values(self.critic, seen, step)


def learned_values(state: HasValues) -> LearnedValues:
    """The value functions, fitted to the batches up to the latest epoch."""
    return LearnedValues(critic=state.critic, statistics=state.statistics)


class Start(eqx.Module):
    """The networks that a training starts with, instead of new ones."""

    policy: policies.Policy
    statistics: Statistics | None
    """The statistics that the policy's observations are normalised by."""
    critic: critics.Critic | None
    """Value functions over the same observations; None if the training starts with new ones."""


def start_from(state: S, start: Start) -> S:
    """A new state with networks from an earlier training, which must have the shapes of the state's own."""
    learned = (start.policy, start.statistics)
    state = eqx.tree_at(lambda s: (s.policy, s.statistics), state, learned, is_leaf=lambda part: part is None)
    return state if start.critic is None else eqx.tree_at(lambda s: s.critic, state, start.critic)


SHARED = (act, memory, learned_policy, learned_values, start_from)
"""The functions of the contract that are the same for every on-policy algorithm."""


def fresh_policy(config: policies.Config, problem: Problem, key: PRNGKeyArray) -> policies.Policy:
    """π_0, of the kind that suits the problem's actions."""
    sizes, discrete = (problem.observation_size, problem.action_size), problem.discrete_actions
    return policies.init(config, key, *sizes, discrete=discrete, image=problem.image)


def fresh_critic(config: critics.Config, problem: Problem, key: PRNGKeyArray, signals: int) -> critics.Critic:
    """New value functions. They see the time if the problem's sums depend on it."""
    horizon = problem.horizon if objective.sees_time(problem) else None
    return critics.init(config, key, problem.observation_size, signals, horizon, problem.image)


def fresh_statistics(problem: Problem) -> Statistics | None:
    """The statistics before the first observation; None if observations are not normalised."""
    return Statistics.empty(problem.observation_size) if problem.normalise else None


def observe(statistics: Statistics | None, batch: Transition) -> tuple[Statistics | None, Transition]:
    """The statistics including a batch's observations, and the batch normalised by them."""
    if statistics is None:
        return None, batch
    after = statistics.merge(Statistics.of(batch.observation))
    return after, normalised(after, batch)


def rebase(holder: N, before: Statistics | None, after: Statistics | None) -> N:
    """A policy or value functions adjusted to new statistics. They remain the same functions of raw observations.

    The very first statistics are an exception: a new network has learned nothing yet, so it simply sees the normalised
    observations.
    """
    if before is None or after is None:
        return holder
    scale, shift = before.seen_from(after)
    first = before.count == 0
    scale, shift = jnp.where(first, 1.0, scale), jnp.where(first, 0.0, shift)

    def moved(node: object) -> object:
        return networks.rebase(node, scale, shift) if isinstance(node, networks.MLP) else node

    if isinstance(holder, critics.Critic):
        return eqx.tree_at(lambda c: c.networks, holder, moved(holder.networks))
    return jax.tree.map(moved, holder, is_leaf=lambda node: isinstance(node, networks.MLP))


def renormalised(
    state: HasValues, batch: Transition
) -> tuple[Statistics | None, Transition, policies.Policy, critics.Critic]:
    """The results of `observe`, and the policy and value functions adjusted to them."""
    statistics, seen = observe(state.statistics, batch)
    policy = rebase(state.policy, state.statistics, statistics)
    return statistics, seen, policy, rebase(state.critic, state.statistics, statistics)


def renormalised_learner(learner: L, before: Statistics | None, batch: Transition) -> tuple[Statistics | None, L]:
    """The statistics of `observe`, and an off-policy learner whose networks are adjusted to them."""
    statistics, _ = observe(before, batch)
    moved = rebase((learner.learned, learner.target), before, statistics)
    return statistics, eqx.tree_at(lambda each: (each.learned, each.target), learner, moved)


def estimate(
    problem: Problem, critic: critics.Critic, batch: Transition, trace: float, cost_trace: float
) -> critics.Estimates:
    """Advantages and value targets of the reward and of each cost, in this order."""
    traces = jnp.asarray([trace] + [cost_trace] * problem.constraints)
    discounts, final = jnp.asarray(objective.advantage_discounts(problem)), objective.ends(problem, batch)
    return critics.estimate(critic, batch, objective.signals(batch), discounts, traces, final)


def estimate_one(
    problem: Problem, critic: critics.Critic, batch: Transition, signal: Float[Array, "T N"], trace: float
) -> critics.Estimates:
    """Advantages and value targets of a single signal that is discounted like the reward."""
    discount, final = jnp.asarray(objective.advantage_discounts(problem)[:1]), objective.ends(problem, batch)
    return critics.estimate(critic, batch, signal[..., None], discount, jnp.asarray([trace]), final)


def fit(
    config: critics.Config, critic: critics.Critic, key: PRNGKeyArray, batch: Transition, estimates: critics.Estimates
) -> tuple[critics.Critic, Float[Array, " K"]]:
    """The value functions fitted to the targets, and their error."""
    observed = critics.inputs(critic, batch.observation, batch.step)
    return critics.fit(config, critic, key, observed, estimates.target.reshape(observed.shape[0], -1))


def samples(problem: Problem, batch: Transition, advantage: Float[Array, "T N"]) -> Samples:
    """The batch as unordered samples for a primal step, each with its weight in the gradient."""
    flat = flatten(batch)
    weight = objective.step_weights(problem, batch)
    return Samples(
        observation=flat.observation,
        action=flat.action,
        advantage=advantage.reshape(-1),
        weight=(weight / jnp.mean(weight)).reshape(-1),
    )


def halves(batch: Transition) -> Float[Array, "H B"]:
    """The weight of each sample in each of two halves of the environments, with mean 1 over all samples.

    A sample of the other half has weight 0. A single environment is in both halves.
    """
    environments = batch.step.shape[1]
    row = jnp.broadcast_to(jnp.arange(environments), batch.step.shape).reshape(-1)
    mine = (row[None] % 2 == jnp.arange(2)[:, None]) | (environments == 1)
    return mine / jnp.mean(mine, axis=1, keepdims=True)


def measure(problem: Problem, batch: Transition) -> dict[str, Array]:
    """R(π_k) and C(π_k), estimated from this batch alone, as metrics."""
    found = objective.measure(problem, batch)
    plain = {} if batch.plain_reward is None else {"plain_return": objective.plain_return(batch)}
    return plain | {
        "return": found.undiscounted_return,
        "discounted_return": found.discounted_return,
        "return_error": found.objective_error,
        "cost": found.cost,
        "cost_error": found.cost_error,
        "cost_deviation": found.cost_deviation,
        "undiscounted_cost": found.undiscounted_cost,
        "episode_length": found.length,
    }
