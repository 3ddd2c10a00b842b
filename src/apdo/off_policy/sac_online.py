"""Constrained soft actor-critic that learns from its own actor's episodes: settings, rates of the multipliers, metrics.

With `--multipliers episodes` the multipliers move once a batch, by the batch's cost alone. With e the relative excess
of C(π_k) and u = max(I, 1),

    I ← [I + β u e]⁺,  λ = [I + K_P u e]⁺

In the learner's units a multiplier has a natural size of 1: λ is in units of the ratio of the data's spreads.

**Certainty.** Multipliers and actor go as fast as batches measure the costs, q = min(1, 1/(6 ν)). ν is a batch's
standard error relative to max(|d|, |C|), and ν² is averaged over the batches; one without any cost says nothing of it.
If q < 1, q² is the number of a batch's episodes, relative to the number that would suffice.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from apdo.core import dual, replay
from apdo.core.statistics import Statistics
from apdo.off_policy import sac
from apdo.off_policy.path import BLOCK, iterations_of
from apdo.off_policy.sac import Learner, State
from apdo.off_policy.units import view
from apdo.problem import Asked, Problem

ONLINE = Learner(
    critic_hidden=(256, 256),
    actor_hidden=(256, 256),
    activation="relu",
    critic_activation="normalised-relu",
    cost_activation="relu",
    critic_rate=1e-3,
    actor_rate=3e-4,
    target_rate=0.005,
    minibatch=256,
    dual_rate=1e-4,
    bound=1.0,
    cloning=0.0,
    last_rate=1.0,
)
"""The learner for a buffer that grows with its own actor's episodes."""
_PACE = 0.3
"""The speed of the multipliers, relative to the speed at which critics converge."""
_LONGEST = 100
"""The most steps over which a value is propagated: the effective horizon of the usual discount."""
_ENOUGH = 6.0
"""A batch measures a cost well enough if the cost, or the limit, is this many standard errors."""
_SHARE = 0.1
"""The least weight of a new batch in the mean of ν²."""


def suited(asked: Asked) -> dict[str, float]:
    """The default rate of the multipliers, which depends on the length of episodes.

    A value is propagated step by step from the end of its horizon, in about T / τ iterations. If multipliers grow
    faster than that, they penalise the actor for costs that its critics do not attribute to actions yet. The actor then
    only learns to do nothing.
    """
    return {"learner.dual_rate": _PACE * ONLINE.target_rate / min(asked.horizon, _LONGEST)}


def learn(
    config: Learner,
    problem: Problem,
    state: State,
    buffer: replay.Replay,
    updates: float,
    warm: Bool[Array, ""],
    statistics: Statistics | None,
    unseen: Float[Array, " M"],
    certainty: Float[Array, " M"],
) -> State:
    """The state after `updates` iterations per sample of a batch if `warm`, otherwise after none."""
    count = iterations_of(updates, problem.batch)
    iterations, whole = jnp.where(warm, count, 0), count % BLOCK == 0
    return sac.learn(config, problem, state, buffer, iterations, None, statistics, unseen, whole, certainty)


def measure(config: Learner, problem: Problem, state: State, buffer: replay.Replay) -> dict[str, Array]:
    """λ and α in the problem's own units, as metrics."""
    price = view(config, problem, buffer)[1].price
    return {
        "multiplier": state.multiplier.value * price,
        "temperature": jnp.exp(state.log_temperature) * state.size[0],
    }


def steer(
    rule: dual.Config,
    multiplier: dual.Multiplier,
    excess: Float[Array, " M"],
    step: float | Array,
    warm: Bool[Array, ""],
) -> dual.Multiplier:
    """The multipliers, in the learner's units, after a batch with this relative excess. They move only if `warm`."""
    unit = jnp.maximum(multiplier.integral, 1.0)
    after = dual.update(rule, multiplier, excess, step, unit)
    return jax.tree.map(lambda new, old: jnp.where(warm, new, old), after, multiplier)


def noise_of_batch(
    cost: Float[Array, " M"], limit: Float[Array, " M"], error: Float[Array, " M"]
) -> Float[Array, " M"]:
    """ν² of a batch with these costs and standard errors."""
    size = jnp.maximum(jnp.abs(limit), jnp.abs(cost))
    return jnp.where(size > 0.0, jnp.square(error / jnp.where(size > 0.0, size, 1.0)), 0.0)


def mean_noise(
    before: Float[Array, " M"],
    cost: Float[Array, " M"],
    limit: Float[Array, " M"],
    error: Float[Array, " M"],
    batches: Array,
) -> Float[Array, " M"]:
    """The mean ν² after a batch, of so many `batches` in all. The first one with a cost counts whole."""
    latest, share = noise_of_batch(cost, limit, error), jnp.maximum(1.0 / batches, _SHARE)
    mean = jnp.where(before > 0.0, before + share * (latest - before), latest)
    return jnp.where((cost == 0.0) & (error == 0.0), before, mean)


def certainty(noise: Float[Array, " M"]) -> Float[Array, " M"]:
    """q, for a mean ν²."""
    return 1.0 / jnp.maximum(_ENOUGH * jnp.sqrt(noise), 1.0)
