"""A companion of PDO: an off-policy learner that learns in every epoch, and whose actor is tried again and again.

    every epoch     the learner takes as many iterations as the batch has samples, times `updates`, on all data so far
    now and then    its actor plays the epoch, on `trial`; if that shows it to be better, it becomes the policy
    else            PDO's own step, from whichever policy that is

While actors are taken, the next is tried at once, so that the learner sees what its own actors do. After one that is
refused PDO has the next epoch; after two in a row, two; then four and eight. So whoever learns faster has the samples.
After epoch K_adj no actor is tried any more: what is handed back is to be known from many batches that hardly differ,
and PDO, whose costs are measured and not guessed, brings them to the limits.

The first actor that is taken has to earn more beyond doubt. One that has only learned to do nothing keeps every limit,
and a policy that it replaces explores no more. Later ones need only not be shown to be worse: else every other one
would be refused for an epoch's noise.

Off-policy critics misjudge what an actor costs. What an actor's own epoch shows in excess of what they said, the next
iterations add to what they say (`unseen`). The learner's multipliers swing; PDO goes on from their mean over the latest
epochs.
"""

import dataclasses

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from apdo.core import replay
from apdo.core.statistics import Statistics
from apdo.off_policy import contract, dual_estimate
from apdo.problem import Asked, Problem

LONGEST = 8
"""The most epochs of PDO between two trials."""
_SHARE, _MOST_SAMPLES = 0.8, 1_000_000
"""The share of a run's epochs, and the most samples, through which there is a companion."""
_OF_ONE_ADJUSTMENT = ("k_adj", "adjust", "check", "explore", "again_every", "warm", "off_policy")
"""Options by which one adjustment is asked for."""
_FIRST = 1
"""Epochs before the first trial, besides the very first."""
_CORRECTION = 0.5
"""The share of one trial in what is known of the critics' error."""
_MEMORY = 0.2
"""The share of one epoch in the mean of the multipliers."""


def options(epochs: int, batch: int, hidden: tuple[int, ...]) -> dict[str, object]:
    """APDO's options with a companion, in a run of so many epochs with a policy of this shape."""
    learner = {
        "critic_hidden": (128, 128),
        "critic_activation": "relu",
        "actor_hidden": hidden,
        "critic_rate": 1e-3,
        "actor_rate": 1e-3,
        "dual_rate": 1e-4,
        "bound": 1.0,
        "cloning": 0.0,
        "last_rate": 1.0,
    }
    last = max(min(round(_SHARE * epochs), _MOST_SAMPLES // batch) - 1, 0)
    whole: dict[str, object] = {"companion": True, "k_adj": last, "policy.bound": 1.0}
    whole |= {"off_policy.members": 1, "off_policy.learner": "sac"}
    return whole | {f"off_policy.learner.{name}": value for name, value in learner.items()}


def suited(asked: Asked, hidden: tuple[int, ...]) -> dict[str, object]:
    """APDO's options that suit a task and a run, where no other are given, with a policy of this shape.

    Where actions are vectors, a companion: soft actor-critic learns from what its own actors do. Where they are
    choices, one adjustment, and so nothing. Whoever sets an option of the one adjustment has it.
    """
    one_is_meant = any(name.split(".")[0] in _OF_ONE_ADJUSTMENT for name in asked.given)
    if asked.discrete_actions or not asked.given.get("companion", not one_is_meant):
        return {}
    return options(asked.epochs, asked.batch, asked.given.get("policy.hidden", hidden))


class Companion(eqx.Module):
    """The learner, and when its actor is tried next."""

    members: contract.OwnState
    price: Float[Array, " M"]
    """The learner's multipliers, averaged over the latest epochs: λ^OFF."""
    unseen: Float[Array, " M"]
    """What its critics miss of its actor's costs."""
    wait: Int[Array, ""]
    """Epochs of PDO until the next trial."""
    pause: Int[Array, ""]
    """Epochs of PDO after the latest trial: 0 if its actor was taken."""
    epoch: Int[Array, ""]
    """How many there have been."""

    @staticmethod
    def start(members: contract.OwnState, constraints: int) -> "Companion":
        """Before the first epoch."""
        nothing, none = jnp.zeros(constraints), jnp.asarray(0)
        return Companion(members, nothing, nothing, wait=jnp.asarray(_FIRST), pause=none, epoch=none)

    def told(self, cost: Float[Array, " M"], tried: Bool[Array, ""], taken: Bool[Array, ""]) -> "Companion":
        """After an epoch with this cost, played by an actor on trial, which was taken or not, or by PDO's policy."""
        said = jnp.median(self.members.path.latest_cost, axis=0)
        unseen = self.unseen + jnp.where(tried, _CORRECTION * (cost - said - self.unseen), 0.0)
        longer = jnp.clip(2 * self.pause, 1, LONGEST)
        pause = jnp.where(tried, jnp.where(taken, 0, longer), self.pause)
        wait = jnp.where(tried, pause, self.wait - 1)
        return dataclasses.replace(self, unseen=unseen, wait=wait, pause=pause, epoch=self.epoch + 1)

    def learn(
        self,
        config: dual_estimate.Config,
        problem: Problem,
        buffer: replay.Replay,
        iterations: Int[Array, ""],
        statistics: Statistics | None,
        below: Float[Array, " M"],
    ) -> "Companion":
        """After so many iterations more, towards costs that lie `below` the limits by so much."""
        first = self.members.iteration[0] == 0
        members = dual_estimate.learn(
            config, problem, self.members, buffer, iterations, statistics, self.unseen + below, rates_fall=False
        )
        now = jnp.median(members.path.latest, axis=0)
        price = jnp.where(first, now, self.price + _MEMORY * (now - self.price))
        return dataclasses.replace(self, members=members, price=jnp.where(iterations > 0, price, self.price))

    def estimate(self) -> dual_estimate.Estimate:
        """λ^OFF; how far a single learner may be off, nothing says."""
        return dual_estimate.Estimate(self.price, jnp.zeros_like(self.price), jnp.full_like(self.price, jnp.inf))
