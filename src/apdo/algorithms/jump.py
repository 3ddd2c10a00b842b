"""The jump of APDO (paper, Algorithm 1, lines 7 to 9): when it is made, on what it depends, and what comes of it.

Line 8 takes long, so that it is cut in pieces between which the caller can report, and lets go of nothing in between.

A jump is made only where the data support it. An estimate that `apdo dual` would call unsupported is refused, and so is
an actor that does no better than the policy before it. A refused adjustment changes nothing, and is tried again when
the data have doubled, at most `RETRIES` times. So is one whose actor is an improvement, but beyond the limits: critics
that saw little cost promise too little of it. What the trial shows that they miss, the next learner adds to what its
critics say (`unseen`). K_adj can also set itself (`k_adj`).
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
"""How often an adjustment that was refused is tried again, each time with twice the data."""


def due(config: Config, epoch: int) -> bool:
    """Line 7."""
    if config.companion:
        return False
    since = epoch - config.k_adj
    again = config.k_adj != k_adj.AUTO and config.again_every > 0 and since > 0 and since % config.again_every == 0
    return again or epoch in epochs(config)


def epochs(config: Config) -> tuple[int, ...]:
    """The epochs after which an adjustment is tried, until one is made."""
    if config.k_adj == k_adj.AUTO:
        return k_adj.CHECKS[config.adjust]
    # One that is repeated anyway need not be tried again.
    tries = 1 + RETRIES if config.check and not config.again_every and not config.companion else 1
    return tuple((config.k_adj + 1) * 2**i - 1 for i in range(tries))


def is_open(config: Config, state: State) -> Bool[Array, ""]:
    """Whether an adjustment is still to be made: until one was that keeps the limits, or again and again."""
    return jnp.ones_like(state.adjusted) if config.again_every else ~state.adjusted | state.again


def start_search(config: Config, problem: Problem) -> k_adj.Search | None:
    """The search for K_adj, where it sets itself; InvalidInput where other options do not allow for that."""
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
    """The learners before line 8: fresh ones, or those of the adjustment before."""
    if state.members is None:
        return dual_estimate.start(config.off_policy, problem, key)
    return dual_estimate.again(state.members, key)


def work(
    config: Config, problem: Problem, state: State, members: contract.OwnState, iterations: Int[Array, ""]
) -> contract.OwnState:
    """Line 8."""
    return dual_estimate.learn(
        config.off_policy, problem, members, state.buffer, iterations, state.statistics, state.unseen
    )


def finish(
    config: Config, problem: Problem, state: State, members: contract.OwnState, supported: Bool[Array, ""]
) -> tuple[State, dual_estimate.Estimate]:
    """Lines 9 and 9', if the data support the estimate; where K_adj sets itself, if it is worth it."""
    found = dual_estimate.estimate(members)
    now = supported & is_open(config, state)
    if state.search is not None:
        search, worth = k_adj.look(config, problem, state.search, state.buffer, found, trial=state.trial is not None)
        now, state = now & worth, dataclasses.replace(state, search=search)
    if state.members is not None:
        state = dataclasses.replace(state, members=members)
    after = jumped(config, problem, state, members, found)
    untaken = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), found)
    return choose(now, after, state), choose(now, found, untaken)


def jumped(
    config: Config, problem: Problem, state: State, members: contract.OwnState, found: dual_estimate.Estimate
) -> State:
    """Lines 9 and 9'."""
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
    """The state after an epoch that the off-policy actor may have played, with the verdict on it, and the metrics."""
    batch, buffer, after, metrics = played
    assert state.trial is not None
    # Where K_adj sets itself, the last actor need only be better.
    strict = True if state.search is None else state.search.checks < len(k_adj.CHECKS[config.adjust])
    onward, trial, taken = state.trial.verdict(config, problem, state.pdo, after, batch, key, strict=strict)
    refused = state.trial.on & ~taken
    unseen, beyond = state.trial.corrected(problem, state.unseen, batch)
    state = dataclasses.replace(
        state,
        pdo=onward,
        # What a refused actor saw stays out of the data: where observations do not tell everything, it makes the next
        # one as reckless (docs/sample-efficiency.md).
        buffer=replay.roll_back(~refused, buffer, state.buffer),
        adjusted=state.adjusted & ~refused,
        careful=None if state.careful is None else state.careful | taken,
        trial=trial,
        # K_adj that sets itself may take its last actor beyond the limits.
        again=((state.again & ~taken) | (taken & beyond)) if state.search is None else state.again,
        unseen=unseen,
    )
    return state, metrics | {"actor_taken": taken.astype(jnp.float32)}


def explored(state: State, after: pdo.State) -> pdo.State:
    """PDO after an epoch: with π_0 and its multipliers, until the first adjustment; what is only observed goes on."""
    before = state.pdo
    policy = on_policy.rebase(before.policy, before.statistics, after.statistics)
    kept = (policy, before.optimiser, before.multiplier)
    unchanged = eqx.tree_at(lambda s: (s.policy, s.optimiser, s.multiplier), after, kept)
    return choose(state.adjusted, after, unchanged)
