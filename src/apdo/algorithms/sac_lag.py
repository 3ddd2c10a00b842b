"""SAC-Lagrangian: soft actor-critic with cautious cost critics, and multipliers that follow the episodes it plays.

    sample a batch with π_k, add it to the buffer
    b ← b + share · (C(π_k) - what the critics said of π_k - b)
    as many iterations of `off_policy.sac` on the buffer as the batch has steps, times the update ratio,
    in each of which λ moves with the relative excess of  Q̂_C(s_0) + b  over d

Off-policy critics say at once what has become of the actor, and err in what it costs in all; episodes say that without
bias, but late. A multiplier that waits for episodes swings: in the iterations between two batches an actor can go all
the way from one side of the limit to the other. So critics move the multipliers, in every iteration, and episodes say
how far the critics are off (`multipliers corrected`). `critics` leaves the correction out. `episodes` has the
multipliers move once a batch, by its own cost alone: e = relative excess of C(π_k), u = max(I, 1),

    I ← [I + β u e]⁺,  λ = [I + K_P u e]⁺

The gains are pure numbers in every case: λ is counted in the ratio of the data's spreads.

The first policy is all but uniform. For the first `warm_up` samples nothing is learned, so that those are random
actions, and every batch is one of the policy that the state holds.
"""

import dataclasses
from math import inf

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from apdo.algorithms import on_policy
from apdo.core import categorical, dial, dual, policies, replay, squashed
from apdo.core.data import Transition, by_environment
from apdo.core.statistics import Statistics
from apdo.errors import InvalidInput
from apdo.off_policy import sac
from apdo.off_policy.path import BLOCK
from apdo.off_policy.units import empty_buffer, view
from apdo.options import LARGEST_WHOLE, OURS, one_of, option
from apdo.problem import Asked, Problem

memory = on_policy.memory
batches = (2, 2_000, 20_000)
"""What a batch has unless told otherwise: episodes, and the fewest and most samples."""

ONLINE = sac.Learner(
    critic_hidden=(256, 256),
    actor_hidden=(256, 256),
    activation="relu",
    critic_activation="normalised-relu",
    critic_rate=1e-3,
    actor_rate=3e-4,
    target_rate=0.005,
    minibatch=256,
    dual_rate=1e-4,
    bound=1.0,
    cloning=0.0,
    last_rate=1.0,
)
"""The learner on a buffer that grows with what its own actor does."""
_PACE = 0.3
"""The speed of the multipliers, in parts of that at which critics come to rest."""
_LONGEST = 100
"""Steps over which a value is learned, at most: the horizon of the usual discount."""


@dataclasses.dataclass(frozen=True)
class Config(dial.Config):
    """Settings of SAC-Lagrangian."""

    learner: sac.Learner = option(ONLINE, "the off-policy learner", OURS)
    multipliers: str = option(
        "corrected",
        "what moves the multipliers: what the critics say of the actor, the same corrected by what episodes cost, "
        "or the cost of the episodes just played alone",
        OURS,
        choices=one_of("corrected", "critics", "episodes"),
    )
    correction: float = option(0.1, "share of a batch in what critics are corrected by", OURS, within=(0.0, 1.0))
    rule: dual.Config = option(
        dual.Pid(proportional=0.3, far=0.0), "how the episodes' cost alone moves them", OURS, choices=dual.CHOICES
    )
    dual_step: float = option(
        0.05, "β, the multipliers' step for a batch, by episodes alone; 0 holds them", OURS, within=(0.0, inf)
    )
    replay_capacity: int = option(1_000_000, "transitions that the buffer holds", OURS, above=0)
    warm_up: int = option(5_000, "samples of random actions before anything is learned", OURS, within=(0, 10**9))
    updates: float = option(1.0, "iterations per environment step", OURS, above=0.0, most=1e6)


class State(eqx.Module):
    """Everything that the next epoch needs."""

    learner: sac.State
    buffer: replay.Replay
    """Observations as they came."""
    largest: Float[Array, " M"]
    """The largest C so far, in size."""
    unseen: Float[Array, " M"]
    """b: what the critics miss of the actor's costs."""
    dial: dial.Dial | None
    statistics: Statistics | None


def suited(asked: Asked) -> dict[str, float]:
    """A rate of the multipliers that suits the length of episodes, where none is given.

    A value is learned step by step from the end of its horizon, in some T / τ iterations. Multipliers that grow faster
    than that charge an actor for costs that its critics cannot see yet; all that it can learn from them is to do
    nothing.
    """
    return {"learner.dual_rate": _PACE * ONLINE.target_rate / min(asked.horizon, _LONGEST)}


def init(config: Config, problem: Problem, key: PRNGKeyArray) -> State:
    """Random networks and an empty buffer."""
    if config.updates * problem.batch > LARGEST_WHOLE:
        raise InvalidInput(
            f"{config.updates:g} updates for each of {problem.batch} samples are more than can be counted."
        )
    return State(
        learner=sac.start(_learner(config), problem, key),
        buffer=empty_buffer(problem, config.replay_capacity),
        largest=jnp.zeros(problem.constraints),
        unseen=jnp.zeros(problem.constraints),
        dial=dial.start(config, problem.constraints),
        statistics=on_policy.fresh_statistics(problem),
    )


def _learner(config: Config) -> sac.Learner:
    """The learner, which leaves the multipliers alone where episodes move them."""
    own = config.multipliers != "episodes"
    rule, rate = (config.learner.rule, config.learner.dual_rate) if own else (config.rule, 0.0)
    return dataclasses.replace(config.learner, rule=rule, dual_rate=rate)


def working_memory(config: Config, problem: Problem) -> int:
    """Bytes that an epoch needs besides the state and the batch."""
    return sac.working_bytes(config.learner, problem)


def learned_policy(state: State) -> squashed.Policy | categorical.Policy | policies.Normalised:
    """The actor, for raw observations."""
    network = sac.acting(state.learner)
    return network if state.statistics is None else policies.Normalised(network=network, statistics=state.statistics)


def act(
    config: Config,  # noqa: ARG001
    state: State,
    memory: tuple[()],
    observation: Float[Array, " O"],
    key: PRNGKeyArray,
) -> tuple[Float[Array, " A"], tuple[()]]:
    """a ~ π_k(·|s)."""
    return learned_policy(state)(observation).sample(key), memory


def step(
    config: Config,
    problem: Problem,
    state: State,
    batch: Transition,
    key: PRNGKeyArray,  # noqa: ARG001
) -> tuple[State, dict[str, Array]]:
    """One epoch: store the batch, move the multipliers by its cost, then learn."""
    settings, buffer = _learner(config), replay.insert(state.buffer, by_environment(batch))
    statistics, _ = on_policy.observe(state.statistics, batch)
    moved = on_policy.rebase((state.learner.learned, state.learner.target), state.statistics, statistics)
    learner = eqx.tree_at(lambda s: (s.learned, s.target), state.learner, moved)
    learner = sac.prepare(settings, problem, learner, buffer)
    price = view(settings, problem, buffer)[1].price
    measured = on_policy.measure(problem, batch)
    metrics = measured | {
        "multiplier": learner.multiplier.value * price,
        "temperature": jnp.exp(learner.log_temperature) * learner.size[0],
    }
    warm = buffer.inserted >= config.warm_up
    largest = jnp.maximum(state.largest, jnp.abs(measured["cost"]))
    turned, limit = dial.enforce(config, state.dial, measured["cost"], measured["cost_error"], problem.limit)
    if config.multipliers == "episodes" and config.dual_step:
        excess = dual.relative_excess(
            measured["cost"], limit, largest, measured["cost_deviation"], measured["cost_error"]
        )
        learner = eqx.tree_at(lambda s: s.multiplier, learner, steer(config, learner.multiplier, excess, warm))
    # The critics know nothing of an actor before their first iteration, and a limit below the given one is missed cost.
    known = config.correction * (learner.iteration > 0)
    unseen = state.unseen + known * (measured["cost"] - learner.path.latest_cost - state.unseen)
    missed = problem.limit - limit + (unseen if config.multipliers == "corrected" else 0.0)
    count = max(1, round(config.updates * problem.batch))
    learner = sac.learn(
        settings,
        problem,
        learner,
        buffer,
        jnp.where(warm, count, 0),
        statistics=statistics,
        unseen=missed,
        whole=count % BLOCK == 0,
    )
    metrics |= {"critic_cost": learner.path.latest_cost, "critic_error": unseen} | dial.measure(turned, limit)
    after = State(learner=learner, buffer=buffer, largest=largest, unseen=unseen, dial=turned, statistics=statistics)
    return after, metrics


def steer(
    config: Config, multiplier: dual.Multiplier, excess: Float[Array, " M"], warm: Bool[Array, ""]
) -> dual.Multiplier:
    """The multipliers, in the learner's units, after a batch whose cost exceeds the limits so far."""
    unit = jnp.maximum(multiplier.integral, 1.0)
    after = dual.update(config.rule, multiplier, excess, config.dual_step, unit)
    return jax.tree.map(lambda new, old: jnp.where(warm, new, old), after, multiplier)
