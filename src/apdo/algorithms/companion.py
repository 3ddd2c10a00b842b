"""A companion of PDO: an off-policy learner that learns in every epoch, and whose actor is tried again and again.

    every epoch     the learner makes `updates` iterations per sample of the batch, on all data so far
    some epochs     the actor plays the epoch, on `trial`; if the epoch shows that it is better, it becomes the policy
    other epochs    PDO makes its own step, from the current policy

After an actor was adopted, the next is tried at once, so that the learner sees data of its own actors. After a refused
actor PDO has the next epoch; after two in a row it has two, then four, then eight. So the faster learner gets the
samples. After epoch K_adj no actor is tried. The policy in the end should be known from many batches of nearly the same
policy, and PDO, which measures costs instead of predicting them, brings them to the limits.

The first actor is adopted only if its return is significantly higher. An actor that has merely learned to do nothing
keeps every limit, and after its adoption nothing would explore. Later actors must only not be significantly worse;
otherwise the noise of an epoch would refuse every other one.

Off-policy critics misjudge an actor's cost. The difference between the cost of the actor's own epoch and the critics'
prediction is added to their predictions in the next iterations (`unseen`). The learner's multipliers oscillate, so PDO
uses their mean over the latest epochs.
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
"""The companion ends after this share of a run's epochs, or after this many samples if that is earlier."""
_OF_ONE_ADJUSTMENT = ("k_adj", "adjust", "check", "explore", "again_every", "warm", "off_policy")
"""Options that configure a single adjustment. Giving one of them switches the default companion off."""
_FIRST = 1
"""Epochs before the first trial, not counting the very first."""
_CORRECTION = 0.5
"""The weight of one trial in the running estimate of the critics' error."""
_MEMORY = 0.2
"""The weight of one epoch in the running mean of the multipliers."""


def options(epochs: int, batch: int, hidden: tuple[int, ...]) -> dict[str, object]:
    """APDO's options with a companion, for a run of this length and a policy with these hidden layers."""
    learner = {
        "critic_hidden": (128, 128),
        "critic_activation": "relu",
        "cost_activation": "relu",
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
    """APDO's default options for a task and a run, and a policy with these hidden layers.

    If actions are vectors, the default is a companion: soft actor-critic learns from the data of its own actors. If
    actions are choices, or an option of a single adjustment is given, the default is a single adjustment.
    """
    one_is_meant = any(name.split(".")[0] in _OF_ONE_ADJUSTMENT for name in asked.given)
    if asked.discrete_actions or not asked.given.get("companion", not one_is_meant):
        return {}
    return options(asked.epochs, asked.batch, asked.given.get("policy.hidden", hidden))


class Companion(eqx.Module):
    """The learner, and the time of its actor's next trial."""

    members: contract.OwnState
    price: Float[Array, " M"]
    """The learner's multipliers, averaged over the latest epochs: λ^OFF."""
    unseen: Float[Array, " M"]
    """By how much its critics underestimate its actor's costs."""
    wait: Int[Array, ""]
    """Epochs of PDO until the next trial."""
    pause: Int[Array, ""]
    """Epochs of PDO after the latest trial: 0 if its actor was adopted."""
    epoch: Int[Array, ""]
    """The number of epochs so far."""

    @staticmethod
    def start(members: contract.OwnState, constraints: int) -> "Companion":
        """The state before the first epoch."""
        nothing, none = jnp.zeros(constraints), jnp.asarray(0)
        return Companion(members, nothing, nothing, wait=jnp.asarray(_FIRST), pause=none, epoch=none)

    def after_epoch(self, cost: Float[Array, " M"], tried: Bool[Array, ""], taken: Bool[Array, ""]) -> "Companion":
        """The state after an epoch with this cost.

        `tried`: an actor on trial played the epoch, rather than PDO's policy. `taken`: it was adopted.
        """
        predicted = jnp.median(self.members.path.latest_cost, axis=0)
        unseen = self.unseen + jnp.where(tried, _CORRECTION * (cost - predicted - self.unseen), 0.0)
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
        """The state after `iterations` further iterations, towards costs that are lower than the limits by `below`."""
        first = self.members.iteration[0] == 0
        members = dual_estimate.learn(
            config, problem, self.members, buffer, iterations, statistics, self.unseen + below, rates_fall=False
        )
        now = jnp.median(members.path.latest, axis=0)
        price = jnp.where(first, now, self.price + _MEMORY * (now - self.price))
        return dataclasses.replace(self, members=members, price=jnp.where(iterations > 0, price, self.price))

    def estimate(self) -> dual_estimate.Estimate:
        """λ^OFF. A single learner gives no estimate of its error, so the interval is infinite."""
        return dual_estimate.Estimate(self.price, jnp.zeros_like(self.price), jnp.full_like(self.price, jnp.inf))
