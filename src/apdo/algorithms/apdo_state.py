"""APDO's settings, its state, and the outcome of an epoch."""

import dataclasses
from typing import NamedTuple

import equinox as eqx
from jaxtyping import Array, Bool, Float

from apdo.algorithms import k_adj, pdo
from apdo.algorithms.care import Careful
from apdo.algorithms.companion import Companion
from apdo.algorithms.trial import Trial
from apdo.core import critics, policies, replay
from apdo.core.data import Transition
from apdo.core.statistics import Statistics
from apdo.off_policy import contract, dual_estimate
from apdo.options import OURS, PAPER, one_of, option


@dataclasses.dataclass(frozen=True)
class Config(pdo.Config):
    """Settings of APDO: those of PDO, and those of the adjustment."""

    policy: policies.Config = option(policies.Config(log_std=0.0, bound=2.0), "the policy network", OURS)
    k_adj: int = option(
        4,
        "K_adj, the epoch after which the multipliers are adjusted; auto: once the estimate is reliable",
        OURS,
        within=(0, 10**9),
        named={"auto": k_adj.AUTO},
    )
    adjust: str = option(
        "primal-dual",
        "what is adjusted: the multipliers, or also the policy, if the off-policy actor proves better",
        OURS,
        choices=one_of("dual", "primal-dual"),
    )
    check: bool = option(
        True, "whether an adjustment that the data do not support is refused, and retried with twice the data", OURS
    )
    explore: bool = option(False, "whether π_0 is kept until the first adjustment, for broader data", OURS)
    again_every: int = option(
        0, "the adjustment is repeated every so many epochs, on all data so far; 0: never", PAPER, within=(0, 10**9)
    )
    warm: bool = option(
        False,
        "whether a later adjustment continues with the learners of the previous one, instead of new ones",
        OURS,
    )
    companion: bool = option(
        False,
        "whether the off-policy learner learns in every epoch until K_adj, and its actor is tried repeatedly, instead "
        "of one adjustment after K_adj",
        OURS,
    )
    careful: bool = option(
        False,
        "whether PDO takes careful steps after it has adopted an off-policy actor: multipliers move first, and a TRPO "
        "step is shorter the less two halves of the batch agree on it",
        OURS,
    )
    updates: float = option(
        0.5,
        "with companion: the learner's iterations per sample; an epoch's are rounded to whole hundreds",
        OURS,
        above=0.0,
        most=1e6,
    )
    off_policy: dual_estimate.Config = option(dual_estimate.Config(), "the off-policy estimate of λ^OFF", OURS)
    replay_capacity: int = option(400_000, "most transitions that the buffer holds", OURS, above=0)


class State(eqx.Module):
    """Everything that the next epoch needs."""

    pdo: pdo.State
    buffer: replay.Replay
    """Raw observations are stored."""
    adjusted: Bool[Array, ""]
    """Whether there has been an adjustment that was not refused."""
    trial: Trial | None
    careful: Careful
    """Whether PDO's steps are careful, because it has adopted an off-policy actor; None if they never are."""
    again: Bool[Array, ""]
    """Whether another adjustment is needed because the adopted actor exceeds the limits."""
    unseen: Float[Array, " M"]
    """By how much off-policy critics underestimate an actor's costs, as earlier actors' trials have shown."""
    search: k_adj.Search | None
    members: contract.OwnState | None
    """The learners of the latest adjustment, if the next one continues with them."""
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
        """The statistics that observations are normalised by."""
        return self.pdo.statistics


class Played(NamedTuple):
    """An epoch played by the policy of a state, and its outcome."""

    batch: Transition
    buffer: replay.Replay
    """The buffer that includes the batch."""
    after: pdo.State
    """The state after PDO's steps (lines 5 and 6)."""
    metrics: dict[str, Array]
