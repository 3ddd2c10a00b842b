"""What the on-policy algorithms share: acting by sampling, and what a batch says of the policy that drew it."""

import dataclasses
from typing import Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from apdo.algorithms import primal_steps
from apdo.core import critics, policies
from apdo.core.advantage import EpisodeSummary, summarise
from apdo.core.data import Transition, flatten
from apdo.problem import Problem


@runtime_checkable
class HasPolicy(Protocol):
    """A state that holds a stochastic policy."""

    @property
    def policy(self) -> policies.Policy:
        """π_k."""
        ...


def act(
    config: object,  # noqa: ARG001
    state: HasPolicy,
    memory: tuple[()],
    observation: Float[Array, " O"],
    key: PRNGKeyArray,
) -> tuple[Float[Array, " A"], tuple[()]]:
    """a ~ π_k(·|s)."""
    return state.policy(observation).sample(key), memory


def memory(config: object, problem: Problem) -> tuple[()]:  # noqa: ARG001
    """A stationary policy remembers nothing between steps."""
    return ()


def learned_policy(state: HasPolicy) -> policies.Policy:
    """What the algorithm has learned, as a function from an observation to an action distribution."""
    return state.policy


def fresh_policy(config: policies.Config, problem: Problem, key: PRNGKeyArray) -> policies.Policy:
    """π_0, of the kind that the problem's actions ask for."""
    return policies.init(config, key, problem.observation_size, problem.action_size, discrete=problem.discrete_actions)


def estimate(
    problem: Problem, critic: critics.Critic, batch: Transition, trace: float, cost_trace: float
) -> critics.Estimates:
    """Advantages and value targets of the reward and of each cost, in this order."""
    m = problem.constraints
    signal = jnp.concatenate([batch.reward[..., None], batch.cost], axis=-1)
    discount = jnp.asarray([problem.discount] + [problem.cost_discount] * m)
    traces = jnp.asarray([trace] + [cost_trace] * m)
    return critics.estimate(critic, batch, signal, discount, traces, truncates=problem.truncates)


def samples(batch: Transition, advantage: Float[Array, "..."]) -> primal_steps.Samples:
    """The batch as unordered samples for a primal step."""
    flat = flatten(batch)
    return primal_steps.Samples(observation=flat.observation, action=flat.action, advantage=advantage.reshape(-1))


def summary(problem: Problem, batch: Transition) -> EpisodeSummary:
    """R(π_k) and C(π_k), from this batch alone."""
    return summarise(batch, problem.discount, problem.cost_discount)


def measure(problem: Problem, batch: Transition) -> dict[str, Array]:
    """The summary as metrics."""
    episodes = summary(problem, batch)
    # The reward in the place of a cost has a standard error too: of the return that the objective speaks of.
    discount = problem.discount if problem.cost_discount < 1.0 else 1.0
    returns = summarise(dataclasses.replace(batch, cost=batch.reward[..., None]), problem.discount, discount)
    return {
        "return": episodes.undiscounted_return,
        "discounted_return": episodes.discounted_return,
        "return_error": returns.cost_error[0],
        "cost": episodes.constrained_cost,
        "cost_error": episodes.cost_error,
        "undiscounted_cost": episodes.undiscounted_cost,
        "episode_length": episodes.length,
    }
