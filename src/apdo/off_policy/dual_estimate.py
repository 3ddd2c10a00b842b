"""λ* from a buffer alone: the estimate λ^OFF, how far learners differ in it, and a policy that comes with it.

Several learners of one kind (`kinds`) train side by side on the same buffer. They differ in their first weights, in
their minibatches and in how strongly the actor is held to the buffer's actions (the cloning weight w), since no data
can say what w should be, and λ depends on it: a policy that the data cover less well looks better or worse than it is.
The median of their multipliers is the estimate. Their spread has both the chance of one training and what the choice of
w leaves open; it knows nothing of errors that all of them share, and is no confidence interval.

    w_e = w · s^(2 (e + 1/2)/E - 1),  e = 0..E-1           between w/s and w·s
    λ^OFF = median_e λ_e,   spread: λ^OFF ± 1.645 standard deviations of the λ_e
"""

import dataclasses
import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import random
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from apdo.core import dual, policies, replay
from apdo.core.statistics import Statistics, normalised
from apdo.errors import InvalidInput
from apdo.off_policy import contract, ddpg, kinds
from apdo.off_policy import path as paths
from apdo.off_policy.units import view
from apdo.options import OURS, option
from apdo.problem import Problem

DEPENDABLE = ddpg.Learner(
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
PIECE = paths.BLOCK
"""Iterations that cannot be divided: a learner can be left, and gone on with, after any number of these."""
_QUANTILE = 1.645
_DEAR = 3.0


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of the estimate."""

    learner: contract.Settings = option(DEPENDABLE, "each member of the ensemble", OURS, choices=kinds.LEARNERS)
    members: int = option(4, "learners side by side; more show better how far they differ", OURS, above=0, most=1000)
    spread: float = option(2.0, "s: the members' cloning weights lie between w/s and w·s", OURS, within=(1.0, 100.0))
    iterations: int = option(30_000, "primal-dual iterations of each member", OURS, above=0)


class Estimate(eqx.Module):
    """What the members agree on, and how far."""

    multiplier: Float[Array, " M"]
    """λ^OFF."""
    low: Float[Array, " M"]
    high: Float[Array, " M"]
    """The ends of the members' spread."""


def start(config: Config, problem: Problem, key: PRNGKeyArray) -> contract.OwnState:
    """The members before their first iteration, [E]."""
    if getattr(config.learner, "cost_steps", 1) > 1:
        raise InvalidInput(
            "off_policy.learner.cost_steps must be 1 here: only sac-lag keeps the steps of an episode in a row."
        )
    e = config.members
    place = (2.0 * jnp.arange(e) + 1.0) / e - 1.0
    begin = lambda key, caution: kinds.of(config.learner).start(config.learner, problem, key, caution)  # noqa: E731
    return jax.vmap(begin)(random.split(key, e), config.spread**place)


def learn(
    config: Config,
    problem: Problem,
    members: contract.OwnState,
    buffer: replay.Replay,
    iterations: Int[Array, ""],
    statistics: Statistics | None = None,
    unseen: Float[Array, " M"] | None = None,
    *,
    rates_fall: bool = True,
) -> contract.OwnState:
    """The members after so many iterations more, on observations normalised by `statistics`.

    They are a number of `PIECE`s, but for the last ones of all. `unseen` is what their critics are known to miss of an
    actor's costs. Unless `rates_fall`, there is no last iteration towards which rates would fall.
    """
    total = config.iterations if rates_fall else None
    whole = total is None or total % PIECE == 0

    def one(member: contract.OwnState) -> contract.OwnState:
        learner = kinds.of(config.learner)
        return learner.learn(config.learner, problem, member, buffer, iterations, total, statistics, unseen, whole)

    return jax.vmap(one)(members)


def again(members: contract.OwnState, key: PRNGKeyArray) -> contract.OwnState:
    """Members that have learned, before more of it: networks and multipliers stay, counts and means begin anew."""
    count = members.iteration.shape[0]
    path, iteration = jax.tree.map(jnp.zeros_like, (members.path, members.iteration))
    return eqx.tree_at(lambda m: (m.path, m.iteration, m.key), members, (path, iteration, random.split(key, count)))


def rebase(members: contract.OwnState | None, move: Callable[[PyTree], PyTree]) -> contract.OwnState | None:
    """Members whose networks are moved, as when observations are normalised otherwise than before."""
    if members is None:
        return None
    return eqx.tree_at(lambda m: (m.learned, m.target), members, move((members.learned, members.target)))


def estimate(members: contract.State) -> Estimate:
    """λ^OFF and its interval, from members that have learned."""
    found = members.path.multiplier
    middle = jnp.median(found, axis=0)
    reach = _QUANTILE * jnp.std(found, axis=0, ddof=1) if found.shape[0] > 1 else jnp.full_like(middle, jnp.inf)
    return Estimate(multiplier=middle, low=jnp.maximum(middle - reach, 0.0), high=middle + reach)


def judgements(
    config: Config,
    problem: Problem,
    members: contract.OwnState,
    observation: Float[Array, "B O"],
    key: PRNGKeyArray,
) -> Float[Array, "E E K"]:
    """What member f's critics say of member e's actor, at [e, f], on average over first observations.

    In the units that the members count in.
    """

    def judge(actor: contract.OwnState, judging: contract.OwnState) -> Float[Array, " K"]:
        return kinds.of(config.learner).value(config.learner, problem, judging, actor, observation, key)

    return jax.vmap(jax.vmap(judge, in_axes=(None, 0)), in_axes=(0, None))(members, members)


def best_actor(
    config: Config,
    problem: Problem,
    members: contract.OwnState,
    buffer: replay.Replay,
    key: PRNGKeyArray,
    statistics: Statistics | None = None,
    unseen: Float[Array, " M"] | None = None,
) -> contract.OwnState:
    """The member whose actor earns most within the limits, in the eyes of all critics, at starts of episodes.

    Every actor is judged by every member's critics, and by the worst of them: an actor flatters its own. What exceeds
    a limit counts a few times its price; at the price itself, any excess would be worth what it earns.
    """
    problem, units = view(config.learner, problem, buffer)
    price = estimate(members).multiplier / units.price
    place_key, noise_key = random.split(key)
    drawn = replay.sample_starts(buffer, replay.episode_starts(buffer), place_key, (_JUDGED,))
    first = normalised(statistics, drawn).observation
    q = judgements(config, problem, members, first, noise_key)
    limit = units.limit if unseen is None else units.limit - unseen / units.total
    excess = jnp.maximum(q[..., 1:] - jnp.broadcast_to(limit, q[..., 1:].shape), 0.0)
    worth = q[..., 0] - excess @ (_DEAR * price)
    best = jnp.argmax(jnp.min(worth, axis=1))
    return jax.tree.map(lambda leaf: leaf[best], members)


def relative(config: Config, problem: Problem, buffer: replay.Replay, found: Estimate) -> Estimate:
    """An estimate in units in which multipliers of different costs can be compared."""
    price = view(config.learner, problem, buffer)[1].price
    return Estimate(multiplier=found.multiplier / price, low=found.low / price, high=found.high / price)


def policy(config: Config, member: contract.OwnState) -> policies.Policy:
    """A member's actor as a policy that on-policy algorithms can step."""
    return kinds.of(config.learner).policy(config.learner, member)


def check_policy(config: Config, problem: Problem, wanted: policies.Config) -> None:
    """Raise InvalidInput unless `policy` gives one of the shape that is wanted."""
    kinds.of(config.learner).check_policy(config.learner, problem, wanted)


def working_memory(config: Config, problem: Problem) -> int:
    """Bytes that the members need besides the buffer."""
    learner = kinds.of(config.learner)
    member = jax.eval_shape(lambda: learner.start(config.learner, problem, random.key(0)))
    own = sum(math.prod(leaf.shape) * 4 for leaf in jax.tree.leaves(member))
    return config.members * (own + learner.working_bytes(config.learner, problem))


_JUDGED = 4000
"""Starts of episodes at which actors are compared."""
