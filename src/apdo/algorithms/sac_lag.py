"""SAC-Lagrangian: soft actor-critic with cautious cost critics, and multipliers that follow the costs of its episodes.

    sample a batch with π_k, add it to the buffer
    b ← b + share · (C(π_k) - the critics' prediction for π_k - b)
    as many iterations of `off_policy.sac` on the buffer as the batch has steps, times the update ratio; in each λ moves
    with the relative excess of  Q̂_C(s_0) + b  over d, less so if batches measure C badly (`sac_online`)

Off-policy critics respond to a change of the actor at once, but their estimate of its cost is biased. Episodes measure
the cost without bias, but late. A multiplier that waits for episodes oscillates: between two batches the actor can move
from one side of the limit to the other. So the critics' cost moves the multipliers in every iteration, corrected by the
episodes' costs (`multipliers corrected`). `critics` omits the correction. With `episodes` the multipliers move once a
batch, by the batch's cost alone (`off_policy.sac_online`). Gains are pure numbers: λ is in units of the data's spreads.
The first policy is nearly uniform, and nothing is learned during the first `warm_up` samples: their actions are random.
"""

import dataclasses
from math import inf

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from apdo.algorithms import on_policy
from apdo.core import categorical, dial, dual, policies, relative_units, replay, squashed
from apdo.core.data import Transition, by_environment
from apdo.core.statistics import Statistics
from apdo.off_policy import sac, sac_online
from apdo.off_policy.path import iterations_of
from apdo.off_policy.units import empty_buffer
from apdo.options import OURS, one_of, option
from apdo.problem import Problem

memory = on_policy.memory
suited = sac_online.suited
batches = (2, 2_000, 20_000)
"""The default batch: its number of episodes, and the fewest and most samples."""


@dataclasses.dataclass(frozen=True)
class Config(dial.Config):
    """Settings of SAC-Lagrangian."""

    learner: sac.Learner = option(sac_online.ONLINE, "the off-policy learner", OURS)
    multipliers: str = option(
        "corrected",
        "what moves the multipliers: the critics' estimate of the actor's cost, corrected by the cost of episodes or "
        "uncorrected, or the cost of the latest episodes alone",
        OURS,
        choices=one_of("corrected", "critics", "episodes"),
    )
    correction: float = option(0.1, "weight of one batch in the critics' correction", OURS, within=(0.0, 1.0))
    rule: dual.Config = option(
        dual.Pid(proportional=0.3, far=0.0), "with multipliers episodes: update rule", OURS, choices=dual.CHOICES
    )
    dual_step: float = option(
        0.05, "with multipliers episodes: β, the step for a batch; 0 holds them fixed", OURS, within=(0.0, inf)
    )
    replay_capacity: int = option(1_000_000, "transitions that the buffer holds", OURS, above=0)
    warm_up: int = option(5_000, "samples of random actions before anything is learned", OURS, within=(0, 10**9))
    updates: float = option(1.0, "iterations per environment step", OURS, above=0.0, most=1e6)


class State(eqx.Module):
    """Everything that the next epoch needs."""

    learner: sac.State
    buffer: replay.Replay
    """Raw observations are stored."""
    largest: Float[Array, " M"]
    """The largest |C| so far."""
    unseen: Float[Array, " M"]
    """b, by how much the critics underestimate the actor's costs."""
    noise: Float[Array, " M"]
    """The mean ν² of `sac_online`."""
    dial: dial.Dial | None
    statistics: Statistics | None


def init(config: Config, problem: Problem, key: PRNGKeyArray) -> State:
    """Random networks and an empty buffer."""
    iterations_of(config.updates, problem.batch)  # raises InvalidInput if there are too many
    return State(
        learner=sac.start(_learner(config), problem, key),
        buffer=empty_buffer(problem, config.replay_capacity),
        largest=jnp.zeros(problem.constraints),
        unseen=jnp.zeros(problem.constraints),
        noise=jnp.zeros(problem.constraints),
        dial=dial.start(config, problem.constraints),
        statistics=on_policy.fresh_statistics(problem),
    )


def _learner(config: Config) -> sac.Learner:
    """The learner's settings. With multipliers `episodes`, the learner itself does not move the multipliers."""
    own = config.multipliers != "episodes"
    rule, rate = (config.learner.rule, config.learner.dual_rate) if own else (config.rule, 0.0)
    return dataclasses.replace(config.learner, rule=rule, dual_rate=rate)


def working_memory(config: Config, problem: Problem) -> int:
    """Bytes that an epoch needs besides the state and the batch."""
    return sac.working_bytes(config.learner, problem)


def learned_policy(state: State) -> squashed.Policy | categorical.Policy | policies.Normalised:
    """The actor, for raw observations."""
    return policies.over_raw(sac.acting(state.learner), state.statistics)


act = on_policy.acting_by(learned_policy)


def step(
    config: Config, problem: Problem, state: State, batch: Transition, key: PRNGKeyArray
) -> tuple[State, dict[str, Array]]:
    """One epoch: insert the batch into the buffer, move the multipliers by its cost, then learn."""
    del key  # The learner has one of its own.
    settings, buffer = _learner(config), replay.insert(state.buffer, by_environment(batch))
    statistics, learner = on_policy.renormalised_learner(state.learner, state.statistics, batch)
    learner = sac.prepare(settings, problem, learner, buffer)
    metrics = sac_online.measure(settings, problem, learner, buffer)
    measured = on_policy.measure(problem, batch)
    cost, error = measured["cost"], measured["cost_error"]
    warm = buffer.inserted >= config.warm_up
    largest = jnp.maximum(state.largest, jnp.abs(cost))
    turned, limit = dial.enforce(config, state.dial, cost, error, problem.limit)
    if config.multipliers == "episodes" and config.dual_step:
        excess = relative_units.excess(cost, limit, largest, measured["cost_deviation"], error)
        moved = sac_online.steer(config.rule, learner.multiplier, excess, config.dual_step, warm)
        learner = dataclasses.replace(learner, multiplier=moved)
    # Critics know nothing before their first iteration. A limit below the given one acts like an underestimated cost.
    share = config.correction * (learner.iteration > 0)
    unseen = state.unseen + share * (cost - learner.path.latest_cost - state.unseen)
    noise = sac_online.mean_noise(state.noise, cost, problem.limit, error, buffer.inserted // problem.batch)
    q = sac_online.certainty(noise)
    missed = problem.limit - limit + (unseen if config.multipliers == "corrected" else 0.0)
    learner = sac_online.learn(settings, problem, learner, buffer, config.updates, warm, statistics, missed, q)
    metrics |= measured | {"critic_cost": learner.path.latest_cost, "critic_error": unseen, "certainty": q}
    metrics |= dial.measure(turned, limit)
    return State(learner, buffer, largest, unseen, noise, turned, statistics), metrics
