"""The estimate λ^OFF of λ* from a buffer alone, the spread of its learners, and their best actor.

Several learners of one kind (`kinds`) train side by side on the same buffer. They differ in their initial weights, in
their minibatches, and in how strongly the actor is kept near the buffer's actions (the cloning weight w). The data
cannot determine w, and λ depends on it, because critics misjudge policies that the data cover poorly. The estimate is
the median of the learners' multipliers. Their spread includes the randomness of training and the influence of w. It
does not include errors that all learners share, so it is not a confidence interval.

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
"""APDO's default learner; docs/dual-estimation.md gives the reasons."""
PIECE = paths.BLOCK
"""The number of iterations in the smallest piece: learning can pause and continue after any number of pieces."""
_QUANTILE = 1.645
_EXCESS_WEIGHT = 3.0


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of the estimate."""

    learner: contract.Settings = option(DEPENDABLE, "each member of the ensemble", OURS, choices=kinds.LEARNERS)
    members: int = option(
        4, "learners in the ensemble; with more of them their spread is more exact", OURS, above=0, most=1000
    )
    spread: float = option(2.0, "s: the members' cloning weights are between w/s and w·s", OURS, within=(1.0, 100.0))
    iterations: int = option(30_000, "primal-dual iterations of each member", OURS, above=0)


class Estimate(eqx.Module):
    """The median of the members' multipliers, and their spread."""

    multiplier: Float[Array, " M"]
    """λ^OFF."""
    low: Float[Array, " M"]
    high: Float[Array, " M"]
    """The ends of the members' spread."""


def start(config: Config, problem: Problem, key: PRNGKeyArray) -> contract.OwnState:
    """The members before their first iteration. The first axis of their state, E, is the member's index."""
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
    """The members after `iterations` further iterations, on observations normalised by `statistics`.

    The number of iterations is a multiple of `PIECE`, except for the very last ones. `unseen` is by how much critics
    underestimate an actor's costs. Unless `rates_fall`, rates are constant, because learning has no planned end.
    """
    total = config.iterations if rates_fall else None
    whole = total is None or total % PIECE == 0

    def one(member: contract.OwnState) -> contract.OwnState:
        learner = kinds.of(config.learner)
        return learner.learn(config.learner, problem, member, buffer, iterations, total, statistics, unseen, whole)

    return jax.vmap(one)(members)


def again(members: contract.OwnState, key: PRNGKeyArray) -> contract.OwnState:
    """Members that continue learning: networks and multipliers are kept, and counts and means restart at zero."""
    count = members.iteration.shape[0]
    path, iteration = jax.tree.map(jnp.zeros_like, (members.path, members.iteration))
    return eqx.tree_at(lambda m: (m.path, m.iteration, m.key), members, (path, iteration, random.split(key, count)))


def rebase(members: contract.OwnState | None, move: Callable[[PyTree], PyTree]) -> contract.OwnState | None:
    """The members with their networks transformed by `move`, as when the normalisation of observations changes."""
    if members is None:
        return None
    return eqx.tree_at(lambda m: (m.learned, m.target), members, move((members.learned, members.target)))


def estimate(members: contract.State) -> Estimate:
    """λ^OFF and its spread, from members that have learned."""
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
    """The value of member e's actor by member f's critics, at [e, f], averaged over first observations.

    It is in the members' units.
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
    """The member whose actor has the highest return within the limits, according to all critics, at starts of episodes.

    Every member's critics evaluate every actor, and the lowest evaluation counts, because an actor exploits the errors
    of its own critics. Cost beyond a limit is weighted with a few times its multiplier. With the multiplier itself, an
    actor could exceed a limit without loss.
    """
    problem, units = view(config.learner, problem, buffer)
    price = estimate(members).multiplier / units.price
    place_key, noise_key = random.split(key)
    drawn = replay.sample_starts(buffer, replay.episode_starts(buffer), place_key, (_JUDGED,))
    first = normalised(statistics, drawn).observation
    q = judgements(config, problem, members, first, noise_key)
    limit = units.limit if unseen is None else units.limit - unseen / units.total
    excess = jnp.maximum(q[..., 1:] - jnp.broadcast_to(limit, q[..., 1:].shape), 0.0)
    worth = q[..., 0] - excess @ (_EXCESS_WEIGHT * price)
    best = jnp.argmax(jnp.min(worth, axis=1))
    return jax.tree.map(lambda leaf: leaf[best], members)


def relative(config: Config, problem: Problem, buffer: replay.Replay, found: Estimate) -> Estimate:
    """The estimate in units in which multipliers of different costs are comparable."""
    price = view(config.learner, problem, buffer)[1].price
    return Estimate(multiplier=found.multiplier / price, low=found.low / price, high=found.high / price)


def policy(config: Config, member: contract.OwnState) -> policies.Policy:
    """A member's actor as a policy that on-policy algorithms can improve."""
    return kinds.of(config.learner).policy(config.learner, member)


def check_policy(config: Config, problem: Problem, wanted: policies.Config) -> None:
    """Raise InvalidInput unless `policy` gives a network of the wanted shape."""
    kinds.of(config.learner).check_policy(config.learner, problem, wanted)


def working_memory(config: Config, problem: Problem) -> int:
    """Bytes that the members need besides the buffer."""
    learner = kinds.of(config.learner)
    member = jax.eval_shape(lambda: learner.start(config.learner, problem, random.key(0)))
    own = sum(math.prod(leaf.shape) * 4 for leaf in jax.tree.leaves(member))
    return config.members * (own + learner.working_bytes(config.learner, problem))


_JUDGED = 4000
"""The number of starts of episodes at which actors are compared."""
