"""Primal-dual DDPG (paper, appendix A) with an environment: it fills its own buffer, and explores with noise.

In each epoch the batch is inserted into the buffer. Then `off_policy.ddpg` learns from the buffer, with as many
iterations as the batch has steps (lines 8 to 16 of Algorithm 2).
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from apdo.algorithms import on_policy
from apdo.core import categorical, deterministic, networks, noise, policies, replay
from apdo.core.data import Transition, flatten
from apdo.core.statistics import Statistics
from apdo.errors import InvalidInput
from apdo.off_policy import ddpg
from apdo.off_policy.path import iterations_of
from apdo.off_policy.units import empty_buffer
from apdo.options import OURS, PAPER, option
from apdo.problem import Problem


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of primal-dual DDPG with an environment."""

    learner: ddpg.Learner = option(ddpg.Learner(), "the off-policy learner", PAPER)
    exploration: noise.Config = option(
        noise.OrnsteinUhlenbeck(), "the exploration noise", "the DDPG paper", choices=noise.CHOICES
    )
    replay_capacity: int = option(1_000_000, "transitions that the buffer holds", PAPER, above=0)
    uniform: float = option(
        0.1, "for discrete actions: probability of a uniformly random one, instead of noise", OURS, within=(0.0, 1.0)
    )
    updates: float = option(1.0, "iterations per environment step", PAPER, above=0.0, most=1e6)


class State(eqx.Module):
    """Everything that the next epoch needs."""

    learner: ddpg.LearnerState
    buffer: replay.Replay
    """Raw observations are stored."""
    statistics: Statistics | None


def init(config: Config, problem: Problem, key: PRNGKeyArray) -> State:
    """Random networks and an empty buffer."""
    if config.learner.units != "own":
        raise InvalidInput("learner.units data is for a buffer that stays as it is; this one grows.")
    iterations_of(config.updates, problem.batch)  # raises InvalidInput if there are too many
    return State(
        learner=ddpg.start(config.learner, problem, key),
        buffer=empty_buffer(problem, config.replay_capacity),
        statistics=on_policy.fresh_statistics(problem),
    )


def working_memory(config: Config, problem: Problem) -> int:
    """Bytes that an epoch needs besides the state and the batch."""
    return ddpg.working_bytes(config.learner, problem)


def memory(config: Config, problem: Problem) -> Float[Array, " A"]:  # noqa: ARG001
    """The exploration noise before an episode's first step (line 5)."""
    return noise.start(problem.action_size)


def act(
    config: Config, state: State, memory: Float[Array, " A"], observation: Float[Array, " O"], key: PRNGKeyArray
) -> tuple[Float[Array, " A"], Float[Array, " A"]]:
    """a = μ(s) + N_t (line 8). A discrete action is drawn from μ(s) or, with probability `uniform`, uniformly."""
    learned = state.learner.learned
    if state.statistics is not None:
        observation = state.statistics.normalise(observation)
    if learned.discrete:
        probabilities = jax.nn.softmax(learned.actor(observation))
        mixed = (1.0 - config.uniform) * probabilities + config.uniform / probabilities.shape[0]
        return categorical.Categorical(logits=jnp.log(mixed)).sample(key), memory
    memory = noise.advance(config.exploration, memory, key)
    return networks.bounded(learned.actor(observation), learned.bound) + memory, memory


samples_its_policy = False
"""Episodes are played with exploration noise, so they do not measure the learned policy."""


def learned_policy(state: State) -> deterministic.Policy | categorical.Policy | policies.Normalised:
    """The actor, without noise, for raw observations."""
    learned = state.learner.learned
    if learned.discrete:
        network = categorical.Policy(logits=learned.actor)
    else:
        network = deterministic.Policy(mean=learned.actor, bound=learned.bound)
    return policies.over_raw(network, state.statistics)


def step(
    config: Config,
    problem: Problem,
    state: State,
    batch: Transition,
    key: PRNGKeyArray,  # noqa: ARG001
) -> tuple[State, dict[str, Array]]:
    """One epoch: insert the noisy actor's batch into the buffer, then learn from the buffer (lines 10 to 16)."""
    buffer = replay.insert(state.buffer, flatten(batch))
    iterations = jnp.asarray(iterations_of(config.updates, problem.batch))
    statistics, learner = on_policy.renormalised_learner(state.learner, state.statistics, batch)
    learner = ddpg.learn(config.learner, problem, learner, buffer, iterations, statistics=statistics)
    metrics = on_policy.measure(problem, batch) | {
        "multiplier": learner.multiplier.value,
        "multiplier_mean": learner.path.multiplier,
        "critic_cost": learner.path.latest_cost,
    }
    return State(learner=learner, buffer=buffer, statistics=statistics), metrics
