"""Accelerated primal-dual policy optimisation, APDO (paper, Algorithm 1).

    1  initialise π_0 and an empty replay buffer
    2  for k = 0, 1, 2, ...
    3      sample a batch D_k with π_k
    4      add it to the buffer
    5      primal step on D_k with λ^(k)
    6      λ^(k+1) = [λ^(k) + β (C(π_k) - d)]⁺
    7      if k = K_adj:
    8          train λ^OFF on the buffer by primal-dual DDPG
    9          λ^(k+1) = λ^OFF
    9'         and try μ^OFF as π_{k+1}                        unless adjust = dual

APDO is PDO with one jump. Lines 3, 5 and 6 are `pdo.step`. Lines 8 to 9' run between two epochs, once or every so many
epochs (`jump`), and only if the data support the estimate. K_adj can be found automatically (`k_adj`).

Line 9' is not in the paper, which discards the off-policy actor. Here the next epoch is a `trial` of the actor.

If actions are vectors, the default is a `companion`: a part of line 8 runs in every epoch up to K_adj, and line 9' is
repeated (`accompany`).
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
from jax import random
from jaxtyping import Array, PRNGKeyArray

from apdo.algorithms import accompany, care, companion, jump, k_adj, on_policy, pdo
from apdo.algorithms.apdo_state import Config, Played, State
from apdo.algorithms.contract import Adjustment
from apdo.algorithms.trial import Trial
from apdo.core import replay
from apdo.core.data import Transition, flatten
from apdo.off_policy import dual_estimate
from apdo.off_policy.units import empty_buffer
from apdo.problem import Asked, Problem

memory = on_policy.memory
act = on_policy.act
learned_policy = on_policy.learned_policy
learned_values = on_policy.learned_values


def suited(asked: Asked) -> dict[str, object]:
    """Default options for a task and a run: those of PDO, of a companion and of care."""
    beside = companion.suited(asked, Config().policy.hidden)
    return pdo.suited(asked) | beside | care.suited(asked)


def init(config: Config, problem: Problem, key: PRNGKeyArray) -> State:
    """Line 1. The buffer has room for the data that the adjustments will read, and for no more."""
    if config.adjust == "primal-dual":
        dual_estimate.check_policy(config.off_policy, problem, config.policy)
    inner = pdo.init(config, problem, key)
    needed = config.replay_capacity if config.again_every else (jump.epochs(config)[-1] + 1) * problem.batch
    return State(
        pdo=inner,
        buffer=empty_buffer(problem, max(problem.batch, min(config.replay_capacity, needed))),
        adjusted=jnp.asarray(False),
        trial=Trial.none(inner, problem) if config.adjust == "primal-dual" else None,
        careful=care.start(config),
        again=jnp.asarray(False),
        unseen=jnp.zeros(problem.constraints),
        search=jump.start_search(config, problem),
        members=dual_estimate.start(config.off_policy, problem, random.fold_in(key, 1)) if config.warm else None,
        companion=accompany.start(config, problem, key),
    )


def start_from(state: State, start: on_policy.Start) -> State:
    """A new state with networks from an earlier training."""
    trial = state.trial
    if trial is not None:
        # A copy, because the buffers of the state are donated: two of its fields must not share an array.
        trial = dataclasses.replace(trial, before=jax.tree.map(jnp.array, start.policy))
    return dataclasses.replace(state, pdo=on_policy.start_from(state.pdo, start), trial=trial)


def working_memory(config: Config, problem: Problem) -> int:
    """Bytes that an adjustment needs besides the state."""
    return dual_estimate.working_memory(config.off_policy, problem)


def step(
    config: Config, problem: Problem, state: State, batch: Transition, key: PRNGKeyArray
) -> tuple[State, dict[str, Array]]:
    """Lines 4 to 6; after an epoch that the off-policy actor played, the verdict on it."""
    buffer = replay.insert(state.buffer, flatten(batch))
    after, metrics = pdo.step(config, problem, state.pdo, batch, key, state.careful)
    move = partial(on_policy.rebase, before=state.statistics, after=after.statistics)
    state = dataclasses.replace(state, members=dual_estimate.rebase(state.members, move))
    if config.explore:
        after = jump.explored(state, after)
    played = Played(batch, buffer, after, metrics)
    if state.companion is not None:
        return accompany.step(config, problem, state, played, key)
    if state.trial is not None:
        return jump.judged(config, problem, state, played, key)
    return dataclasses.replace(state, pdo=after, buffer=buffer), metrics


adjustment = Adjustment(
    due=jump.due,  # line 7
    open=jump.is_open,
    iterations=lambda config: config.off_policy.iterations,
    begin=jump.begin,
    work=jump.work,  # line 8
    finish=jump.finish,  # lines 9 and 9'
    checked=lambda config: config.off_policy if config.check else None,
    shown=lambda members: members.path.multiplier,
    timeless=lambda config: config if config.k_adj == k_adj.AUTO else dataclasses.replace(config, k_adj=0),
)
