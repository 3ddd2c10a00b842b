"""Epochs of APDO with a `companion`: its actors are on trial in many epochs, instead of one adjustment."""

import dataclasses
from functools import partial

import equinox as eqx
import jax.numpy as jnp
from jax import random
from jaxtyping import Array, PRNGKeyArray

from apdo.algorithms import jump, k_adj, on_policy
from apdo.algorithms.apdo_state import Config, Played, State
from apdo.algorithms.companion import Companion
from apdo.algorithms.trial import choose
from apdo.core import dial
from apdo.errors import InvalidInput
from apdo.off_policy import dual_estimate
from apdo.problem import Problem


def start(config: Config, problem: Problem, key: PRNGKeyArray) -> Companion | None:
    """The companion before the first epoch, or None without one; InvalidInput for options that do not fit it."""
    if not config.companion:
        return None
    of_one = {"adjust": "primal-dual", "explore": False, "again_every": 0, "warm": False}
    for name, needed in of_one.items():
        if getattr(config, name) != needed:
            raise InvalidInput(f"companion tries its actors in every epoch that suits: {name} has no meaning with it.")
    if config.k_adj == k_adj.AUTO:
        raise InvalidInput("companion needs a number for k_adj, the last epoch after which an actor is tried.")
    members = dual_estimate.start(config.off_policy, problem, random.fold_in(key, 1))
    return Companion.start(members, problem.constraints)


def step(
    config: Config, problem: Problem, state: State, played: Played, key: PRNGKeyArray
) -> tuple[State, dict[str, Array]]:
    """The verdict on an actor that was on trial, the learner's iterations, and perhaps the next trial."""
    batch, buffer, after, metrics = played
    assert state.companion is not None
    assert state.trial is not None
    clear = ~state.adjusted
    onward, trial, taken = state.trial.verdict(
        config, problem, state.pdo, after, batch, key, strict=True, clear=clear, lenient=True
    )
    metrics |= {"actor_on_trial": state.trial.on.astype(jnp.float32), "actor_taken": taken.astype(jnp.float32)}
    move = partial(on_policy.rebase, before=state.statistics, after=after.statistics)
    learner = dataclasses.replace(state.companion, members=dual_estimate.rebase(state.companion.members, move))
    learner = learner.after_epoch(metrics["cost"], state.trial.on, taken)
    goes_on = learner.epoch <= config.k_adj
    _, limit = dial.enforce(config, None, metrics["cost"], after.units.error, problem.limit)
    pieces = max(1, round(config.updates * problem.batch / dual_estimate.PIECE))
    iterations = jnp.where(goes_on, pieces * dual_estimate.PIECE, 0)
    learner = learner.learn(config.off_policy, problem, buffer, iterations, after.statistics, problem.limit - limit)
    adjusted = state.adjusted | taken
    state = dataclasses.replace(state, pdo=onward, buffer=buffer, trial=trial, companion=learner, adjusted=adjusted)
    tried = jump.jumped(config, problem, state, learner.members, learner.estimate())
    # Early in learning, λ^OFF may be far too low to be the unit of PDO's multipliers, so the units do not change.
    tried = eqx.tree_at(lambda s: (s.pdo.units, s.adjusted), tried, (onward.units, adjusted))
    return choose((learner.wait <= 0) & goes_on, tried, state), metrics
