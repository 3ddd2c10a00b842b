"""APDO's settings, its state, and an epoch as it leaves it."""

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
    careful: bool = option(
        False,
        "whether PDO goes on with care once an actor has been taken: multipliers move first, and a step of TRPO is as "
        "much shorter as two halves of the batch disagree on it",
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
    careful: Careful
    """Whether an actor has been taken, from which PDO goes on with care; None: never."""
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


class Played(NamedTuple):
    """An epoch that was played by the policy of a state."""

    batch: Transition
    buffer: replay.Replay
    """With the batch."""
    after: pdo.State
    """What PDO made of it (lines 5 and 6)."""
    metrics: dict[str, Array]
