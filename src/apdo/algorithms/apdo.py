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
    9'         and try μ^OFF as π_{k+1}                        with adjust = primal-dual

It is PDO but for one jump: lines 3, 5 and 6 are `pdo.step`, and what follows line 7 happens once, or every so many
epochs. Line 8 takes long, so that it is cut in pieces (`adjustment`) between which the caller can report, and lets go
of nothing in between.

Line 9' is not in the paper, which throws the off-policy actor away. The epoch after the adjustment is played by that
actor, with the noise that it was trained under. If its Lagrangian at λ^OFF is above that of the policy before, the
on-policy stage goes on from it; else from the policy before. Either way the epoch's samples count, and nothing else is
learned from them but the value functions of an actor that is taken.

K_adj can set itself (k_adj = auto). With adjust = dual, λ^OFF is estimated after epochs 1, 2, 4, 8, 16 and 32, and
taken as soon as it and the estimate before lie in each other's intervals, at the latest after epoch 32. With
primal-dual an actor is tried after epochs 1, 5 and 17, until one is taken: the first that its own epoch does not show
to be beyond the limits, or the last. A trial takes an epoch, and the first is made only where the interval is narrow.
What a refused actor saw stays out of the data: where observations do not tell everything, it makes the next actor as
reckless (docs/sample-efficiency.md). That is at most six, or three, times the work of one adjustment.
"""

import dataclasses
import math
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from apdo.algorithms import dual_estimate, on_policy, pd_ddpg, pdo, primal_steps
from apdo.algorithms.contract import Adjustment
from apdo.core import categorical, critics, dual, gaussian, policies, replay
from apdo.core.advantage import EpisodeSummary
from apdo.core.data import Transition, flatten
from apdo.errors import InvalidInput
from apdo.options import LARGEST, OURS, PAPER, one_of, option
from apdo.problem import Problem

memory = on_policy.memory
act = on_policy.act
learned_policy = on_policy.learned_policy

T = TypeVar("T")

AUTO = -1
"""K_adj that sets itself."""
CHECKS = {"dual": (1, 2, 4, 8, 16, 32), "primal-dual": (1, 5, 17)}
"""After which epochs it is looked for: the data have doubled, or, since a trial takes an epoch of them, trebled."""
NARROW = 0.3
"""Up to which width, as a share of the estimate, an interval is narrow."""
SLACK = 0.05
"""By which share of a limit an actor on trial may exceed it."""
ERRORS = 2.0
"""By how many standard errors of its own epoch's mean, on top of that."""
FIRM = 5.0
"""K_P in units of λ^OFF/d above which the multiplier swings: a cost 20 % above its limit would double it."""
REFITS = 10
"""Fits of the value functions, one after the other, to an actor that is taken."""


@dataclasses.dataclass(frozen=True)
class Config(pdo.Config):
    """Settings of APDO: those of PDO, and of its adjustment."""

    k_adj: int = option(
        5,
        "K_adj, the epoch after which the multipliers are adjusted; auto: as soon as the estimate proves good",
        PAPER,
        within=(0, 10**9),
        named={"auto": AUTO},
    )
    adjust: str = option(
        "dual",
        "what is adjusted: the multipliers, or the policy too, if the off-policy actor proves better",
        PAPER,
        choices=one_of("dual", "primal-dual"),
    )
    explore: bool = option(False, "whether π_0 plays unchanged until the first adjustment, for broader data", PAPER)
    again_every: int = option(
        0, "epochs after which the adjustment is repeated, on all data by then; 0: never", PAPER, within=(0, 10**9)
    )
    off_policy: dual_estimate.Config = option(dual_estimate.Config(), "the off-policy estimate of λ^OFF", OURS)
    replay_capacity: int = option(1_000_000, "most transitions that the buffer holds", PAPER, above=0)


class Trial(eqx.Module):
    """What is needed to tell whether an actor is better than the policy before it, and to go back."""

    on: Bool[Array, ""]
    """Whether this epoch is played by the actor."""
    before: policies.Policy
    discounted_return: Float[Array, ""]
    cost: Float[Array, " M"]
    """R and C of the latest policy that was no trial."""


class Search(eqx.Module):
    """What is known of the multipliers while K_adj is looked for."""

    earlier: dual_estimate.Estimate
    """The estimate of the time before."""
    checks: Int[Array, ""]


class State(eqx.Module):
    """Everything that the next epoch needs."""

    pdo: pdo.State
    buffer: replay.Replay
    adjusted: Bool[Array, ""]
    """Whether there has been an adjustment that was not taken back."""
    trial: Trial | None
    search: Search | None

    @property
    def policy(self) -> policies.Policy:
        """π_k."""
        return self.pdo.policy


def init(config: Config, problem: Problem, key: PRNGKeyArray) -> State:
    """Line 1. The buffer has room for what the adjustment will read, and for no more."""
    last = CHECKS[config.adjust][-1] if config.k_adj == AUTO else config.k_adj
    needed = config.replay_capacity if config.again_every else (last + 1) * problem.batch
    inner = pdo.init(config, problem, key)
    trial = None
    if config.adjust == "primal-dual":
        _check_actor(config, problem)
        costs = jnp.zeros(problem.constraints)
        trial = Trial(on=jnp.asarray(False), before=inner.policy, discounted_return=jnp.asarray(0.0), cost=costs)
    return State(
        pdo=inner,
        buffer=pd_ddpg.empty_buffer(problem, min(config.replay_capacity, needed)),
        adjusted=jnp.asarray(False),
        trial=trial,
        search=_search(config, problem),
    )


def _search(config: Config, problem: Problem) -> Search | None:
    """Before the first estimate: one that none agrees with."""
    if config.k_adj != AUTO:
        return None
    if config.again_every:
        raise InvalidInput("k_adj auto adjusts once; it cannot be combined with again_every.")
    if config.adjust == "dual" and config.off_policy.members < 2:
        raise InvalidInput("k_adj auto with adjust dual needs an interval, and so at least two off_policy.members.")
    never = jnp.full((problem.constraints,), LARGEST)
    return Search(
        earlier=dual_estimate.Estimate(multiplier=jnp.zeros_like(never), low=never, high=-never),
        checks=jnp.asarray(0),
    )


def working_memory(config: Config, problem: Problem) -> int:
    """Bytes that an adjustment needs besides the state."""
    learner = config.off_policy.learner
    member = jax.eval_shape(lambda: pd_ddpg.start(learner, problem, random.key(0)))
    own = sum(math.prod(leaf.shape) * 4 for leaf in jax.tree.leaves(member))
    return config.off_policy.members * (own + pd_ddpg.working_bytes(learner, problem))


def _check_actor(config: Config, problem: Problem) -> None:
    """An actor becomes the policy only if it has its shape."""
    learner, policy = config.off_policy.learner, config.policy
    if learner.actor_hidden != policy.hidden:
        raise InvalidInput(
            f"--adjust primal-dual needs an off-policy actor of the policy's shape, but policy.hidden is "
            f"{policy.hidden} and off_policy.learner.actor_hidden is {learner.actor_hidden}."
        )
    if not problem.discrete_actions and learner.bound != policy.bound:
        raise InvalidInput(
            f"--adjust primal-dual needs policy.bound ({policy.bound:g}) and off_policy.learner.bound "
            f"({learner.bound:g}) to be the same."
        )
    if not problem.discrete_actions and not learner.action_noise:
        raise InvalidInput("--adjust primal-dual needs off_policy.learner.action_noise above 0, to explore with.")


def step(
    config: Config, problem: Problem, state: State, batch: Transition, key: PRNGKeyArray
) -> tuple[State, dict[str, Array]]:
    """Lines 4 to 6; or, in an epoch played by the off-policy actor, the verdict on it."""
    buffer = replay.insert(state.buffer, flatten(batch))
    after, metrics = pdo.step(config, problem, state.pdo, batch, key)
    if config.explore:
        # Epochs pass for the dial, whoever plays them.
        after = dataclasses.replace(_choose(state.adjusted, after, state.pdo), dial=after.dial)
    if state.trial is None:
        return State(after, buffer, state.adjusted, None, state.search), metrics
    seen = on_policy.summary(problem, batch)
    price, trial = state.pdo.multiplier.value, state.trial

    def lagrangian(discounted_return: Float[Array, ""], cost: Float[Array, " M"]) -> Float[Array, ""]:
        return discounted_return - jnp.vdot(price, cost)

    better = lagrangian(seen.discounted_return, seen.constrained_cost) > lagrangian(trial.discounted_return, trial.cost)
    last = state.search is None or state.search.checks == len(CHECKS[config.adjust])
    taken = trial.on & better & (_keeps(problem, seen, trial.cost) | last)

    def judged() -> pdo.State:
        refitted = _refit(config, problem, state.pdo.critic, batch, key)
        policy, critic = _choose(taken, (state.pdo.policy, refitted), (trial.before, state.pdo.critic))
        optimiser = primal_steps.init(config.primal, policy)
        return dataclasses.replace(
            after, policy=policy, optimiser=optimiser, critic=critic, multiplier=state.pdo.multiplier
        )

    onward = jax.lax.cond(trial.on, judged, lambda: after)
    remember = ~trial.on | taken
    trial = Trial(
        on=jnp.zeros_like(trial.on),
        before=onward.policy,
        discounted_return=jnp.where(remember, seen.discounted_return, trial.discounted_return),
        cost=jnp.where(remember, seen.constrained_cost, trial.cost),
    )
    metrics["actor_taken"] = taken.astype(jnp.float32)
    stands = remember | last
    buffer = replay.roll_back(stands, buffer, state.buffer)
    return State(onward, buffer, state.adjusted & stands, trial, state.search), metrics


def _keeps(problem: Problem, seen: EpisodeSummary, before: Float[Array, " M"]) -> Bool[Array, ""]:
    """Whether costs are within the limits, by what an epoch can tell."""
    # A limit may be 0; what is to be taken off a cost says what counts then.
    slack = SLACK * jnp.maximum(jnp.abs(problem.limit), 0.2 * jnp.abs(before - problem.limit))
    return jnp.all(seen.constrained_cost <= problem.limit + slack + ERRORS * seen.cost_error)


def _refit(
    config: Config, problem: Problem, critic: critics.Critic, batch: Transition, key: PRNGKeyArray
) -> critics.Critic:
    """The value functions of the policy that drew the batch."""
    observation = flatten(batch).observation

    def once(critic: critics.Critic, key: PRNGKeyArray) -> tuple[critics.Critic, None]:
        target = pdo.estimates(config, problem, critic, jnp.zeros(problem.constraints), batch).target
        return critics.fit(config.critic, critic, key, observation, target.reshape(observation.shape[0], -1))[0], None

    return jax.lax.scan(once, critic, random.split(key, REFITS))[0]


def _choose(first: Bool[Array, ""], one: T, other: T) -> T:
    return jax.tree.map(lambda a, b: jnp.where(first, a, b), one, other)


def _due(config: Config, epoch: int) -> bool:
    """Line 7."""
    if config.k_adj == AUTO:
        return epoch in CHECKS[config.adjust]
    since = epoch - config.k_adj
    return since == 0 or (since > 0 and config.again_every > 0 and since % config.again_every == 0)


def _begin(config: Config, problem: Problem, state: State, key: PRNGKeyArray) -> pd_ddpg.LearnerState:  # noqa: ARG001
    return dual_estimate.start(config.off_policy, problem, key)


def _work(
    config: Config, problem: Problem, state: State, members: pd_ddpg.LearnerState, iterations: Int[Array, ""]
) -> pd_ddpg.LearnerState:
    """Line 8."""
    return dual_estimate.learn(config.off_policy, problem, members, state.buffer, iterations)


def _finish(
    config: Config, problem: Problem, state: State, members: pd_ddpg.LearnerState
) -> tuple[State, dual_estimate.Estimate]:
    """Lines 9 and 9'; where K_adj sets itself, only if the estimate is worth it."""
    found = dual_estimate.estimate(members)
    after = _jump(config, problem, state, members, found)
    if state.search is None:
        return after, found
    search = Search(earlier=found, checks=state.search.checks + 1)
    if state.trial is None:
        worth = _within(found, state.search.earlier) & _within(state.search.earlier, found)
    else:
        worth = _narrow(config, problem, state.buffer, found) | (search.checks > 1)
    now = ~state.adjusted & (worth | (search.checks == len(CHECKS[config.adjust])))
    after, state = (dataclasses.replace(each, search=search) for each in (after, state))
    untaken = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), found)
    return _choose(now, after, state), _choose(now, found, untaken)


def _within(one: dual_estimate.Estimate, other: dual_estimate.Estimate) -> Bool[Array, ""]:
    """Whether one estimate lies in the other's interval."""
    return jnp.all((other.low <= one.multiplier) & (one.multiplier <= other.high))


def _narrow(config: Config, problem: Problem, buffer: replay.Replay, found: dual_estimate.Estimate) -> Bool[Array, ""]:
    """Whether the widest interval is narrow against the largest multiplier, all in units that can be compared."""
    _, units = pd_ddpg.view(config.off_policy.learner, problem, buffer)
    width, size = (found.high - found.low) / units.price, found.multiplier / units.price
    return jnp.max(width) <= NARROW * jnp.max(size)


def _jump(
    config: Config, problem: Problem, state: State, members: pd_ddpg.LearnerState, found: dual_estimate.Estimate
) -> State:
    multiplier = dual.jump(state.pdo.multiplier, found.multiplier)
    state = eqx.tree_at(lambda s: (s.pdo.multiplier, s.adjusted), state, (multiplier, jnp.ones_like(state.adjusted)))
    if state.trial is None:
        return state
    key = members.key[0]
    actor = _as_policy(config, dual_estimate.best_actor(config.off_policy, problem, members, state.buffer, key))
    trial = dataclasses.replace(state.trial, on=jnp.ones_like(state.trial.on), before=state.pdo.policy)
    return eqx.tree_at(lambda s: (s.pdo.policy, s.trial), state, (actor, trial))


def _open(config: Config, state: State) -> Bool[Array, ""]:
    """With K_adj fixed every adjustment is made; where it sets itself, until one was."""
    return ~state.adjusted if config.k_adj == AUTO else jnp.ones_like(state.adjusted)


def _remark(config: Config, problem: Problem, multipliers: Float[Array, "S M"]) -> str:
    """Gains are in the problem's own units; against λ^OFF it shows when they are those of another problem."""
    limit, found = np.abs(problem.limits), np.asarray(multipliers)
    taken = found[np.isfinite(found).all(axis=-1)]
    if not isinstance(config.rule, dual.Pid) or config.rule.reach or not len(taken):
        return ""
    multiplier = np.median(taken, axis=0)
    binding = (multiplier > 0.0) & (limit > 0.0)
    natural = np.min((multiplier / np.where(binding, limit, 1.0))[binding], initial=np.inf)
    if config.rule.proportional <= FIRM * natural:
        return ""
    shown = ", ".join(f"{value:.3g}" for value in multiplier)
    return (
        f"--rule.proportional {config.rule.proportional:g} is much for multipliers of {shown}: they will swing. "
        f"Try about --rule.proportional {0.5 * natural:.1g} --dual-step {0.05 * natural:.1g}."
    )


def _as_policy(config: Config, learned: pd_ddpg.Networks) -> policies.Policy:
    """The actor as it was trained: a softmax, or a mean with its noise around it."""
    if learned.discrete:
        return categorical.Policy(logits=learned.actor)
    actions = learned.actor.biases[-1].shape[-1]
    noise = jnp.log(jnp.full((actions,), config.off_policy.learner.action_noise))
    return gaussian.Policy(mean=learned.actor, log_std=noise, bound=learned.bound)


adjustment = Adjustment(
    due=_due,
    open=_open,
    iterations=lambda config: config.off_policy.iterations,
    begin=_begin,
    work=_work,
    finish=_finish,
    remark=_remark,
)
