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

It is PDO but for one jump: lines 3, 5 and 6 are `pdo.step`, and what follows line 7 happens once. Line 8 takes long, so
that it is cut in pieces (`adjustment`) between which the caller can report, and lets go of nothing in between.
"""

import dataclasses

import equinox as eqx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from apdo.algorithms import on_policy, pd_ddpg, pdo
from apdo.algorithms.contract import Adjustment
from apdo.core import dual, policies, replay
from apdo.core.data import Transition, flatten
from apdo.options import PAPER, option
from apdo.problem import Problem

act = on_policy.act
memory = on_policy.memory
learned_policy = on_policy.learned_policy


@dataclasses.dataclass(frozen=True)
class Config(pdo.Config):
    """Settings of APDO: those of PDO, and of its one adjustment."""

    k_adj: int = option(5, "K_adj, the epoch after which the multipliers are adjusted", PAPER, within=(0, 10**9))
    off_policy: pd_ddpg.Learner = option(pd_ddpg.Learner(), "the off-policy learner of λ^OFF", PAPER)
    off_policy_iterations: int = option(500_000, "primal-dual DDPG iterations for λ^OFF", PAPER, above=0)
    replay_capacity: int = option(1_000_000, "most transitions that the buffer holds", PAPER, above=0)


class State(eqx.Module):
    """Everything that the next epoch needs."""

    pdo: pdo.State
    buffer: replay.Replay

    @property
    def policy(self) -> policies.Policy:
        """π_k."""
        return self.pdo.policy


def init(config: Config, problem: Problem, key: PRNGKeyArray) -> State:
    """Line 1. The buffer has room for what the adjustment will read, and for no more."""
    needed = (config.k_adj + 1) * problem.batch
    return State(
        pdo=pdo.init(config, problem, key),
        buffer=pd_ddpg.empty_buffer(problem, min(config.replay_capacity, needed)),
    )


def step(
    config: Config, problem: Problem, state: State, batch: Transition, key: PRNGKeyArray
) -> tuple[State, dict[str, Array]]:
    """Lines 4 to 6."""
    buffer = replay.insert(state.buffer, flatten(batch))
    after, metrics = pdo.step(config, problem, state.pdo, batch, key)
    return State(pdo=after, buffer=buffer), metrics


def _due(config: Config, epoch: int) -> bool:
    """Line 7."""
    return epoch == config.k_adj


def _begin(config: Config, problem: Problem, state: State, key: PRNGKeyArray) -> pd_ddpg.LearnerState:  # noqa: ARG001
    return pd_ddpg.start(config.off_policy, problem, key)


def _work(
    config: Config, problem: Problem, state: State, learner: pd_ddpg.LearnerState, iterations: Int[Array, ""]
) -> pd_ddpg.LearnerState:
    """Line 8."""
    return pd_ddpg.learn(config.off_policy, problem, learner, state.buffer, iterations)


def _finish(state: State, learner: pd_ddpg.LearnerState) -> tuple[State, Float[Array, " M"]]:
    """Line 9."""
    found = learner.multiplier_mean
    return eqx.tree_at(lambda s: s.pdo.multiplier, state, dual.jump(state.pdo.multiplier, found)), found


adjustment = Adjustment(
    due=_due,
    iterations=lambda config: config.off_policy_iterations,
    begin=_begin,
    work=_work,
    finish=_finish,
)
