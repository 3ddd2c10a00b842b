"""Constrained soft actor-critic that learns while its own actor plays: settings, the multipliers' pace, metrics.

Where the multipliers are left to the episodes, they move once a batch, by its own cost alone: with e the relative
excess of C(π_k) and u = max(I, 1),

    I ← [I + β u e]⁺,  λ = [I + K_P u e]⁺

In the learner's units a multiplier of natural size is 1: λ is counted in the ratio of the data's spreads.
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


def suited(asked: Asked) -> dict[str, float]:
    """A rate of the multipliers that suits the length of episodes, where none is given.

    A value is learned step by step from the end of its horizon, in some T / τ iterations. Multipliers that grow faster
    than that charge an actor for costs that its critics cannot see yet; all that it can learn from them is to do
    nothing.
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
) -> State:
    """As many iterations as a batch has samples, times `updates`, once `warm`; else none."""
    count = iterations_of(updates, problem.batch)
    iterations, whole = jnp.where(warm, count, 0), count % BLOCK == 0
    return sac.learn(config, problem, state, buffer, iterations, None, statistics, unseen, whole)


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
    """The multipliers, in the learner's units, after a batch whose cost exceeds the limits so far."""
    unit = jnp.maximum(multiplier.integral, 1.0)
    after = dual.update(rule, multiplier, excess, step, unit)
    return jax.tree.map(lambda new, old: jnp.where(warm, new, old), after, multiplier)
