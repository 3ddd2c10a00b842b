"""The jump of APDO (paper, Algorithm 1, lines 7 to 9): its time, its conditions and its effects.

Line 8 takes long, so it is cut into pieces. The caller can report progress between them.

A jump is made only if the data support it. An estimate that `apdo dual` would call unsupported is refused, and so is an
actor that is no better than the previous policy. A refused adjustment changes nothing, and is retried when the data
have doubled, at most `RETRIES` times. An adjustment is also retried if its actor is an improvement but exceeds the
limits: critics that have seen little cost underestimate it. The trial shows by how much, and the next learner adds this
amount to its critics' predictions (`unseen`). K_adj can also be found automatically (`k_adj`).
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from apdo.algorithms import k_adj, on_policy, pdo
from apdo.algorithms.apdo_state import Config, Played, State
from apdo.algorithms.trial import choose
from apdo.core import dual, replay
from apdo.errors import InvalidInput
from apdo.off_policy import contract, dual_estimate
from apdo.problem import Problem

RETRIES = 3
"""How often a refused adjustment is retried, each time with twice the data."""


def due(config: Config, epoch: int) -> bool:
    """Line 7: whether an adjustment follows this epoch."""
    if config.companion:
        return False
    since = epoch - config.k_adj
    again = config.k_adj != k_adj.AUTO and config.again_every > 0 and since > 0 and since % config.again_every == 0
    return again or epoch in epochs(config)


def epochs(config: Config) -> tuple[int, ...]:
    """The epochs after which an adjustment is attempted, until one is made."""
    if config.k_adj == k_adj.AUTO:
        return k_adj.CHECKS[config.adjust]
    # An adjustment that is repeated periodically needs no retries.
    tries = 1 + RETRIES if config.check and not config.again_every and not config.companion else 1
    return tuple((config.k_adj + 1) * 2**i - 1 for i in range(tries))


def is_open(config: Config, state: State) -> Bool[Array, ""]:
    """Whether the state needs an adjustment: always if it is repeated, else until one that keeps the limits is made."""
    return jnp.ones_like(state.adjusted) if config.again_every else ~state.adjusted | state.again


def start_search(config: Config, problem: Problem) -> k_adj.Search | None:
    """The search for K_adj if it is automatic, else None; InvalidInput if other options contradict it."""
    if config.k_adj != k_adj.AUTO:
        return None
    if config.again_every:
        raise InvalidInput("k_adj auto adjusts once; it cannot be combined with again_every.")
    if config.warm:
        raise InvalidInput(
            "k_adj auto compares estimates that have no past in common; it cannot be combined with warm."
        )
    if config.adjust == "dual" and config.off_policy.members < 2:
        raise InvalidInput("k_adj auto with adjust dual needs an interval, and so at least two off_policy.members.")
    return k_adj.Search.start(problem.constraints)


def begin(config: Config, problem: Problem, state: State, key: PRNGKeyArray) -> contract.OwnState:
    """The learners before line 8: new ones, or those of the previous adjustment."""
    if state.members is None:
        return dual_estimate.start(config.off_policy, problem, key)
    return dual_estimate.again(state.members, key)


def work(
    config: Config, problem: Problem, state: State, members: contract.OwnState, iterations: Int[Array, ""]
) -> contract.OwnState:
    """Line 8: the learners after `iterations` further iterations."""
    return dual_estimate.learn(
        config.off_policy, problem, members, state.buffer, iterations, state.statistics, state.unseen
    )


def finish(
    config: Config, problem: Problem, state: State, members: contract.OwnState, supported: Bool[Array, ""]
) -> tuple[State, dual_estimate.Estimate]:
    """Lines 9 and 9', if the data support the estimate and, for an automatic K_adj, if the search accepts it."""
    found = dual_estimate.estimate(members)
    now = supported & is_open(config, state)
    if state.search is not None:
        search, worth = k_adj.check_estimate(
            config, problem, state.search, state.buffer, found, trial=state.trial is not None
        )
        now, state = now & worth, dataclasses.replace(state, search=search)
    if state.members is not None:
        state = dataclasses.replace(state, members=members)
    after = jumped(config, problem, state, members, found)
    untaken = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), found)
    return choose(now, after, state), choose(now, found, untaken)


def jumped(
    config: Config, problem: Problem, state: State, members: contract.OwnState, found: dual_estimate.Estimate
) -> State:
    """Lines 9 and 9': the state with the estimated multipliers and, on trial, the best actor."""
    moved = (dual.jump(state.pdo.multiplier, found.multiplier), state.pdo.units.jump(found.multiplier))
    adjusted = jnp.ones_like(state.adjusted)
    if state.trial is not None:
        actor = dual_estimate.best_actor(
            config.off_policy, problem, members, state.buffer, members.key[0], state.statistics, state.unseen
        )
        trial = state.trial.begin(state.pdo)
        policy = dual_estimate.policy(config.off_policy, actor)
        state = eqx.tree_at(lambda s: (s.pdo.policy, s.trial), state, (policy, trial))
    return eqx.tree_at(lambda s: (s.pdo.multiplier, s.pdo.units, s.adjusted), state, (*moved, adjusted))


def judged(
    config: Config, problem: Problem, state: State, played: Played, key: PRNGKeyArray
) -> tuple[State, dict[str, Array]]:
    """The state and metrics after an epoch. If the off-policy actor was on trial, this includes the verdict."""
    batch, buffer, after, metrics = played
    assert state.trial is not None
    # For an automatic K_adj the last actor need not keep the limits, but only be better.
    strict = True if state.search is None else state.search.checks < len(k_adj.CHECKS[config.adjust])
    onward, trial, taken = state.trial.verdict(config, problem, state.pdo, after, batch, key, strict=strict)
    refused = state.trial.on & ~taken
    unseen, beyond = state.trial.corrected(problem, state.unseen, batch)
    state = dataclasses.replace(
        state,
        pdo=onward,
        # The data of a refused actor are discarded: if observations are incomplete, they make the next actor exceed
        # the limits too (docs/sample-efficiency.md).
        buffer=replay.roll_back(~refused, buffer, state.buffer),
        adjusted=state.adjusted & ~refused,
        careful=None if state.careful is None else state.careful | taken,
        trial=trial,
        # With an automatic K_adj the last actor may exceed the limits, and is not followed by another.
        again=((state.again & ~taken) | (taken & beyond)) if state.search is None else state.again,
        unseen=unseen,
    )
    return state, metrics | {"actor_taken": taken.astype(jnp.float32)}


def explored(state: State, after: pdo.State) -> pdo.State:
    """PDO's state after an epoch that keeps π_0 and its multipliers until the first adjustment.

    Value functions, statistics and units are updated as usual.
    """
    before = state.pdo
    policy = on_policy.rebase(before.policy, before.statistics, after.statistics)
    kept = (policy, before.optimiser, before.multiplier)
    unchanged = eqx.tree_at(lambda s: (s.policy, s.optimiser, s.multiplier), after, kept)
    return choose(state.adjusted, after, unchanged)
