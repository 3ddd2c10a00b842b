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

It is PDO but for one jump: lines 3, 5 and 6 are `pdo.step`, and what follows line 7 happens once, or every so many
epochs. Line 8 takes long, so that it is cut in pieces (`adjustment`) between which the caller can report, and lets go
of nothing in between.

Line 9' is not in the paper, which throws the off-policy actor away: the epoch after the adjustment is a `trial` of it.

A jump is made only where the data support it. An estimate that `apdo dual` would call unsupported is refused, and so is
an actor that does no better than the policy before it. A refused adjustment changes nothing, and is tried again when
the data have doubled, at most `RETRIES` times. So is one whose actor is an improvement, but beyond the limits: critics
that saw little cost promise too little of it. What the trial shows that they miss, the next learner adds to what its
critics say (`unseen`). K_adj can also set itself (`k_adj`).

Where actions are vectors the default is a `companion`: line 8 is done a little in every epoch up to K_adj, and line 9'
again and again.
"""

import dataclasses
from functools import partial
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import random
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from apdo.algorithms import companion, k_adj, on_policy, pdo
from apdo.algorithms.companion import Companion
from apdo.algorithms.contract import Adjustment
from apdo.algorithms.trial import Trial
from apdo.core import critics, dial, dual, policies, replay
from apdo.core.data import Transition, flatten
from apdo.core.statistics import Statistics
from apdo.errors import InvalidInput
from apdo.off_policy import contract, dual_estimate
from apdo.off_policy.units import empty_buffer
from apdo.options import OURS, PAPER, one_of, option
from apdo.problem import Asked, Problem

memory = on_policy.memory
act = on_policy.act
learned_policy = on_policy.learned_policy
learned_values = on_policy.learned_values

T = TypeVar("T")

RETRIES = 3
"""How often an adjustment that was refused is tried again, each time with twice the data."""
_OF_ONE_ADJUSTMENT = ("k_adj", "adjust", "check", "explore", "again_every", "warm", "off_policy")
"""Options by which one adjustment is asked for."""


@dataclasses.dataclass(frozen=True)
class Config(pdo.Config):
    """Settings of APDO: those of PDO, and of its adjustment."""

    policy: policies.Config = option(policies.Config(log_std=0.0, bound=2.0), "the policy network", OURS)
    k_adj: int = option(
        4,
        "K_adj, the epoch after which the multipliers are adjusted; auto: as soon as the estimate proves good",
        OURS,
        within=(0, 10**9),
        named={"auto": k_adj.AUTO},
    )
    adjust: str = option(
        "primal-dual",
        "what is adjusted: the multipliers, or the policy too, if the off-policy actor proves better",
        OURS,
        choices=one_of("dual", "primal-dual"),
    )
    check: bool = option(
        True, "whether an adjustment that the data do not support is refused, and tried again with twice the data", OURS
    )
    explore: bool = option(False, "whether π_0 plays unchanged until the first adjustment, for broader data", OURS)
    again_every: int = option(
        0, "epochs after which the adjustment is repeated, on all data by then; 0: never", PAPER, within=(0, 10**9)
    )
    warm: bool = option(
        False,
        "whether a later adjustment goes on with the learners of the one before, rather than with fresh ones",
        OURS,
    )
    companion: bool = option(
        False,
        "whether the off-policy learner learns in every epoch until K_adj, and its actor is tried again and again, in "
        "the place of one adjustment after K_adj",
        OURS,
    )
    updates: float = option(
        0.5, "with companion: the learner's iterations per sample, in hundreds an epoch", OURS, above=0.0, most=1e6
    )
    off_policy: dual_estimate.Config = option(dual_estimate.Config(), "the off-policy estimate of λ^OFF", OURS)
    replay_capacity: int = option(400_000, "most transitions that the buffer holds", OURS, above=0)


class State(eqx.Module):
    """Everything that the next epoch needs."""

    pdo: pdo.State
    buffer: replay.Replay
    """Observations as they came."""
    adjusted: Bool[Array, ""]
    """Whether there has been an adjustment that was not refused."""
    trial: Trial | None
    again: Bool[Array, ""]
    """Whether another is wanted all the same: the actor that was taken is beyond the limits."""
    unseen: Float[Array, " M"]
    """What off-policy critics are known to miss of an actor's costs, since actors before have exceeded the limits."""
    search: k_adj.Search | None
    members: contract.OwnState | None
    """The learners of the latest adjustment, where the next is to go on with them."""
    companion: Companion | None

    @property
    def critic(self) -> critics.Critic:
        """The value functions."""
        return self.pdo.critic

    @property
    def policy(self) -> policies.Policy:
        """π_k."""
        return self.pdo.policy

    @property
    def statistics(self) -> Statistics | None:
        """What observations are normalised by."""
        return self.pdo.statistics


def suited(asked: Asked) -> dict[str, object]:
    """Options that suit a task and a run, where no other are given.

    Where actions are vectors, a companion: soft actor-critic learns from what its own actors do. Where they are
    choices, one adjustment. Whoever sets an option of the one adjustment has it.
    """
    found: dict[str, object] = dict(pdo.suited(asked))
    one_is_meant = any(name.split(".")[0] in _OF_ONE_ADJUSTMENT for name in asked.given)
    if asked.discrete_actions or not asked.given.get("companion", not one_is_meant):
        return found
    hidden = asked.given.get("policy.hidden", Config().policy.hidden)
    return found | companion.options(asked.epochs, asked.batch, hidden)


def init(config: Config, problem: Problem, key: PRNGKeyArray) -> State:
    """Line 1. The buffer has room for what the adjustments will read, and for no more."""
    if config.adjust == "primal-dual":
        dual_estimate.check_policy(config.off_policy, problem, config.policy)
    inner = pdo.init(config, problem, key)
    needed = config.replay_capacity if config.again_every else (_epochs(config)[-1] + 1) * problem.batch
    return State(
        pdo=inner,
        buffer=empty_buffer(problem, max(problem.batch, min(config.replay_capacity, needed))),
        adjusted=jnp.asarray(False),
        trial=Trial.none(inner, problem) if config.adjust == "primal-dual" else None,
        again=jnp.asarray(False),
        unseen=jnp.zeros(problem.constraints),
        search=_search(config, problem),
        members=dual_estimate.start(config.off_policy, problem, random.fold_in(key, 1)) if config.warm else None,
        companion=_companion(config, problem, key),
    )


def _companion(config: Config, problem: Problem, key: PRNGKeyArray) -> Companion | None:
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


def start_from(state: State, start: on_policy.Start) -> State:
    """A fresh state with networks that were learned before."""
    trial = state.trial
    if trial is not None:
        # Arrays of its own: the state that holds both policies is given away to be overwritten.
        trial = dataclasses.replace(trial, before=jax.tree.map(jnp.array, start.policy))
    return dataclasses.replace(state, pdo=on_policy.start_from(state.pdo, start), trial=trial)


def _search(config: Config, problem: Problem) -> k_adj.Search | None:
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


def _epochs(config: Config) -> tuple[int, ...]:
    """The epochs after which an adjustment is tried, until one is made."""
    if config.k_adj == k_adj.AUTO:
        return k_adj.CHECKS[config.adjust]
    # One that is repeated anyway need not be tried again.
    tries = 1 + RETRIES if config.check and not config.again_every and not config.companion else 1
    return tuple((config.k_adj + 1) * 2**i - 1 for i in range(tries))


def working_memory(config: Config, problem: Problem) -> int:
    """Bytes that an adjustment needs besides the state."""
    return dual_estimate.working_memory(config.off_policy, problem)


def step(
    config: Config, problem: Problem, state: State, batch: Transition, key: PRNGKeyArray
) -> tuple[State, dict[str, Array]]:
    """Lines 4 to 6; or, in an epoch played by the off-policy actor, the verdict on it."""
    buffer = replay.insert(state.buffer, flatten(batch))
    after, metrics = pdo.step(config, problem, state.pdo, batch, key)
    members = dual_estimate.rebase(
        state.members, partial(on_policy.rebase, before=state.statistics, after=after.statistics)
    )
    if config.explore:
        after = _choose(state.adjusted, after, _unchanged(state.pdo, after))
    if state.companion is not None:
        return _accompanied(config, problem, state, after, batch, buffer, metrics, key)
    if state.trial is None:
        return dataclasses.replace(state, pdo=after, buffer=buffer, members=members), metrics
    # Where K_adj sets itself, the last actor need only be better.
    strict = True if state.search is None else state.search.checks < len(k_adj.CHECKS[config.adjust])
    onward, trial, taken = state.trial.verdict(config, problem, state.pdo, after, batch, key, strict=strict)
    refused = state.trial.on & ~taken
    unseen, beyond = state.trial.corrected(problem, state.unseen, batch)
    metrics["actor_taken"] = taken.astype(jnp.float32)
    # What a refused actor saw stays out of the data: where observations do not tell everything, it makes the next one
    # as reckless (docs/sample-efficiency.md).
    buffer = replay.roll_back(~refused, buffer, state.buffer)
    after = State(
        pdo=onward,
        buffer=buffer,
        adjusted=state.adjusted & ~refused,
        trial=trial,
        # K_adj that sets itself may take its last actor beyond the limits.
        again=((state.again & ~taken) | (taken & beyond)) if state.search is None else state.again,
        unseen=unseen,
        search=state.search,
        members=members,
        companion=None,
    )
    return after, metrics


def _accompanied(
    config: Config,
    problem: Problem,
    state: State,
    after: pdo.State,
    batch: Transition,
    buffer: replay.Replay,
    metrics: dict[str, Array],
    key: PRNGKeyArray,
) -> tuple[State, dict[str, Array]]:
    """The verdict on an actor that was on trial, the learner's iterations, and perhaps the next trial."""
    assert state.companion is not None
    assert state.trial is not None
    clear = ~state.adjusted
    onward, trial, taken = state.trial.verdict(
        config, problem, state.pdo, after, batch, key, strict=True, clear=clear, lenient=True
    )
    metrics |= {"actor_on_trial": state.trial.on.astype(jnp.float32), "actor_taken": taken.astype(jnp.float32)}
    move = partial(on_policy.rebase, before=state.statistics, after=after.statistics)
    learner = dataclasses.replace(state.companion, members=dual_estimate.rebase(state.companion.members, move))
    learner = learner.told(metrics["cost"], state.trial.on, taken)
    goes_on = learner.epoch <= config.k_adj
    _, limit = dial.enforce(config, None, metrics["cost"], after.units.error, problem.limit)
    pieces = max(1, round(config.updates * problem.batch / dual_estimate.PIECE))
    iterations = jnp.where(goes_on, pieces * dual_estimate.PIECE, 0)
    learner = learner.learn(config.off_policy, problem, buffer, iterations, after.statistics, problem.limit - limit)
    adjusted = state.adjusted | taken
    state = dataclasses.replace(state, pdo=onward, buffer=buffer, trial=trial, companion=learner, adjusted=adjusted)
    tried = _jump(config, problem, state, learner.members, learner.estimate())
    # While the learner still learns, its price may be far too low for a unit that PDO's multipliers move in.
    tried = eqx.tree_at(lambda s: (s.pdo.units, s.adjusted), tried, (onward.units, adjusted))
    return _choose((learner.wait <= 0) & goes_on, tried, state), metrics


def _unchanged(before: pdo.State, after: pdo.State) -> pdo.State:
    """The epoch with π_0 and its multipliers as they were; what is only observed goes on."""
    policy = on_policy.rebase(before.policy, before.statistics, after.statistics)
    kept = (policy, before.optimiser, before.multiplier)
    return eqx.tree_at(lambda s: (s.policy, s.optimiser, s.multiplier), after, kept)


def _choose(first: Bool[Array, ""], one: T, other: T) -> T:
    return jax.tree.map(lambda a, b: jnp.where(first, a, b), one, other)


def _due(config: Config, epoch: int) -> bool:
    """Line 7."""
    if config.companion:
        return False
    since = epoch - config.k_adj
    again = config.k_adj != k_adj.AUTO and config.again_every > 0 and since > 0 and since % config.again_every == 0
    return again or epoch in _epochs(config)


def _begin(config: Config, problem: Problem, state: State, key: PRNGKeyArray) -> contract.OwnState:
    if state.members is None:
        return dual_estimate.start(config.off_policy, problem, key)
    return dual_estimate.again(state.members, key)


def _work(
    config: Config, problem: Problem, state: State, members: contract.OwnState, iterations: Int[Array, ""]
) -> contract.OwnState:
    """Line 8."""
    return dual_estimate.learn(
        config.off_policy, problem, members, state.buffer, iterations, state.statistics, state.unseen
    )


def _finish(
    config: Config, problem: Problem, state: State, members: contract.OwnState, supported: Bool[Array, ""]
) -> tuple[State, dual_estimate.Estimate]:
    """Lines 9 and 9', if the data support the estimate; where K_adj sets itself, if it is worth it."""
    found = dual_estimate.estimate(members)
    now = supported & _open(config, state)
    if state.search is not None:
        search, worth = k_adj.look(config, problem, state.search, state.buffer, found, trial=state.trial is not None)
        now, state = now & worth, dataclasses.replace(state, search=search)
    if state.members is not None:
        state = dataclasses.replace(state, members=members)
    after = _jump(config, problem, state, members, found)
    untaken = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), found)
    return _choose(now, after, state), _choose(now, found, untaken)


def _jump(
    config: Config, problem: Problem, state: State, members: contract.OwnState, found: dual_estimate.Estimate
) -> State:
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


def _open(config: Config, state: State) -> Bool[Array, ""]:
    """Whether an adjustment is still to be made: until one was that keeps the limits, or again and again."""
    return jnp.ones_like(state.adjusted) if config.again_every else ~state.adjusted | state.again


adjustment = Adjustment(
    due=_due,
    open=_open,
    iterations=lambda config: config.off_policy.iterations,
    begin=_begin,
    work=_work,
    finish=_finish,
    checked=lambda config: config.off_policy if config.check else None,
    shown=lambda members: members.path.multiplier,
    timeless=lambda config: config if config.k_adj == k_adj.AUTO else dataclasses.replace(config, k_adj=0),
)
