"""λ* from a buffer alone: the estimate λ^OFF, an interval, and a policy that comes with it.

Several primal-dual DDPG learners train side by side on the same buffer. They differ in their first weights, in their
minibatches and in how strongly the actor is held to the buffer's actions (the cloning weight w), since no data can say
what w should be, and λ depends on it: a policy that the data cover less well looks better or worse than it is. The
median of their multipliers is the estimate; their spread is the interval, so that it holds both the chance of one
training and what the choice of w leaves open.

    w_e = w · s^(2 (e + 1/2)/E - 1),  e = 0..E-1           between w/s and w·s
    λ^OFF = median_e λ_e,   interval: the 5 % and 95 % points of a normal distribution with the members' spread
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import random
from jaxtyping import Array, Float, Int, PRNGKeyArray

from apdo.algorithms import on_policy, pd_ddpg
from apdo.core import dual, replay
from apdo.core.statistics import Statistics
from apdo.options import OURS, option
from apdo.problem import Problem

DEPENDABLE = pd_ddpg.Learner(
    critic_hidden=(64, 64),
    critic_rate=2e-3,
    actor_rate=6e-4,
    dual_rate=1e-3,
    rule=dual.Pid(proportional=1.0, far=0.0, most=0.0),
    dual_states="starts",
    units="data",
    target_rate=1e-2,
    minibatch=128,
    clock=True,
    bound=2.0,
    action_noise=0.25,
    cloning=0.0125,
    last_rate=0.05,
    averaged=0.5,
)
"""The learner that APDO uses unless told otherwise; docs/dual-estimation.md says why."""
_QUANTILE = 1.645
_DEAR = 3.0


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of the estimate."""

    learner: pd_ddpg.Learner = option(DEPENDABLE, "each member of the ensemble", OURS)
    members: int = option(4, "learners side by side; more give a better interval", OURS, above=0, most=1000)
    spread: float = option(2.0, "s: the members' cloning weights lie between w/s and w·s", OURS, within=(1.0, 100.0))
    iterations: int = option(30_000, "primal-dual iterations of each member", OURS, above=0)


class Estimate(eqx.Module):
    """What the members agree on, and how far."""

    multiplier: Float[Array, " M"]
    """λ^OFF."""
    low: Float[Array, " M"]
    high: Float[Array, " M"]
    """The ends of the 90 % interval."""


def start(config: Config, problem: Problem, key: PRNGKeyArray) -> pd_ddpg.LearnerState:
    """The members before their first iteration, [E]."""
    e = config.members
    place = (2.0 * jnp.arange(e) + 1.0) / e - 1.0
    weights = config.learner.cloning * config.spread**place
    begin = lambda key, weight: pd_ddpg.start(config.learner, problem, key, weight)  # noqa: E731
    return jax.vmap(begin)(random.split(key, e), weights)


def learn(
    config: Config,
    problem: Problem,
    members: pd_ddpg.LearnerState,
    buffer: replay.Replay,
    iterations: Int[Array, ""],
    statistics: Statistics | None = None,
    reserve: Float[Array, " M"] | None = None,
) -> pd_ddpg.LearnerState:
    """The members after so many iterations more, on observations normalised by `statistics`.

    Of the limits, `reserve` is left unused.
    """

    def one(member: pd_ddpg.LearnerState) -> pd_ddpg.LearnerState:
        return pd_ddpg.learn(
            config.learner, problem, member, buffer, iterations, config.iterations, statistics, reserve
        )

    return jax.vmap(one)(members)


def estimate(members: pd_ddpg.LearnerState) -> Estimate:
    """λ^OFF and its interval, from members that have learned."""
    found = members.multiplier_mean
    middle = jnp.median(found, axis=0)
    reach = _QUANTILE * jnp.std(found, axis=0, ddof=1) if found.shape[0] > 1 else jnp.full_like(middle, jnp.inf)
    return Estimate(multiplier=middle, low=jnp.maximum(middle - reach, 0.0), high=middle + reach)


def judgements(
    learner: pd_ddpg.Learner,
    problem: Problem,
    members: pd_ddpg.LearnerState,
    observation: Float[Array, "B O"],
    key: PRNGKeyArray,
) -> Float[Array, "E E K"]:
    """What member f's critics say of member e's action, at [e, f], on average over first observations."""
    step = jnp.zeros(observation.shape[0], dtype=jnp.int32)
    shape = (observation.shape[0], problem.action_size)
    around = 0.0 if problem.discrete_actions else learner.action_noise * random.normal(key, shape)

    def judge(judged: pd_ddpg.Networks, judging: pd_ddpg.Networks) -> Float[Array, " K"]:
        return jnp.mean(judging.q(observation, judged.mu(observation) + around, step), axis=-1)

    return jax.vmap(jax.vmap(judge, in_axes=(None, 0)), in_axes=(0, None))(members.learned, members.learned)


def best_actor(
    config: Config,
    problem: Problem,
    members: pd_ddpg.LearnerState,
    buffer: replay.Replay,
    key: PRNGKeyArray,
    statistics: Statistics | None = None,
    reserve: Float[Array, " M"] | None = None,
) -> pd_ddpg.Networks:
    """The member whose actor earns most within the limits, in the eyes of all critics, at starts of episodes.

    Every actor is judged by every member's critics, and by the worst of them: an actor flatters its own. What exceeds
    a limit counts a few times its price; at the price itself, any excess would be worth what it earns.
    """
    problem, units = pd_ddpg.view(config.learner, problem, buffer, reserve)
    price = estimate(members).multiplier / units.price
    rows, count = replay.episode_starts(buffer)
    place_key, noise_key = random.split(key)
    drawn = replay.take(buffer, rows[random.randint(place_key, (_JUDGED,), 0, count)])
    first = on_policy.normalised(statistics, drawn).observation
    q = judgements(config.learner, problem, members, first, noise_key)
    excess = jnp.maximum(q[..., 1:] - jnp.broadcast_to(units.limit, q[..., 1:].shape), 0.0)
    worth = q[..., 0] - excess @ (_DEAR * price)
    best = jnp.argmax(jnp.min(worth, axis=1))
    return jax.tree.map(lambda leaf: leaf[best], members.learned)


_JUDGED = 4000
"""Starts of episodes at which actors are compared."""
