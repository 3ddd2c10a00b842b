"""An off-policy actor on trial: one epoch of its own decides whether it becomes the policy.

The actor plays the epoch with the noise that it was trained with. It is adopted ("taken") if two conditions hold.

1. R - λ C - λ' [C - d]⁺, with λ = λ^OFF and λ' = 2 λ, is higher in its epoch than in the previous policy's last epoch.
2. Its epoch does not show that it exceeds the limits: its cost is below them, up to 5 % and two standard errors, or
   lower than the previous policy's.

PDO then continues from the actor; otherwise from the previous policy and multipliers. In both cases the epoch's samples
count towards the run. Nothing is learned from them on-policy, except the value functions of an adopted actor.
"""

import dataclasses
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import random
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from apdo import objective
from apdo.algorithms import on_policy, pdo, primal_steps, value_functions
from apdo.core import critics, dual, policies, relative_units
from apdo.core.data import Transition
from apdo.objective import Measurement
from apdo.problem import Problem

T = TypeVar("T")

SLACK = 0.05
"""The share of a limit by which an actor on trial may exceed it."""
ERRORS = 2.0
"""The standard errors of its own epoch's mean by which it may exceed the limit on top of that."""
EXCESS_WEIGHT = 2.0
"""The additional weight of cost beyond a limit, in multiples of the multiplier: λ' / λ."""
_LEAST_SHARE = 0.25
"""One trial can lower the target cost of the next actor to this share at least."""
REFITS = 10
"""The number of successive fits of the value functions to an adopted actor."""


class Trial(eqx.Module):
    """The data needed to compare an actor with the previous policy, and to return to that policy."""

    on: Bool[Array, ""]
    """Whether this epoch is played by the actor."""
    before: policies.Policy
    multiplier: dual.Multiplier
    units: relative_units.Relative
    """The previous policy, its multipliers and their units."""
    objective: Float[Array, ""]
    cost: Float[Array, " M"]
    """R and C of the latest policy that was not refused: PDO's own, or an adopted actor."""

    @staticmethod
    def none(state: pdo.State, problem: Problem) -> "Trial":
        """The state before the first trial."""
        return Trial(
            on=jnp.asarray(False),
            before=state.policy,
            multiplier=state.multiplier,
            units=state.units,
            objective=jnp.zeros(()),
            cost=jnp.zeros(problem.constraints),
        )

    def begin(self, state: pdo.State) -> "Trial":
        """A trial in the next epoch, of an actor that replaces this state's policy."""
        return dataclasses.replace(
            self, on=jnp.ones_like(self.on), before=state.policy, multiplier=state.multiplier, units=state.units
        )

    def verdict(
        self,
        config: pdo.Config,
        problem: Problem,
        state: pdo.State,
        after: pdo.State,
        batch: Transition,
        key: PRNGKeyArray,
        *,
        strict: Bool[Array, ""] | bool,
        clear: Bool[Array, ""] | bool = False,
        lenient: bool = False,
    ) -> tuple[pdo.State, "Trial", Bool[Array, ""]]:
        """The state that PDO continues from, the trial after this epoch, and whether an actor was adopted.

        `state` has played the epoch, and `after` is the state after PDO's step. Unless `strict`, an actor may exceed
        the limits. If `clear`, its return has to be significantly higher. If `lenient`, the actor must only not be
        significantly worse.
        """
        seen = objective.measure(problem, batch)
        price = state.multiplier.value
        gain = self._worth(problem, price, seen.objective, seen.cost) - self._worth(
            problem, price, self.objective, self.cost
        )
        error = jnp.sqrt(2.0 * (seen.objective_error**2 + jnp.sum((price * seen.cost_error) ** 2)))
        better = gain > (-error if lenient else 0.0)
        beyond_doubt = seen.objective - self.objective > ERRORS * jnp.sqrt(2.0) * seen.objective_error
        better = better & (beyond_doubt | ~jnp.asarray(clear))
        keeps = self._keeps(problem, seen, nearly=seen.cost_error if lenient else 0.0)
        taken = self.on & better & (keeps | ~jnp.asarray(strict))

        def judged() -> pdo.State:
            policy = on_policy.rebase(state.policy, state.statistics, after.statistics)
            before = on_policy.rebase(self.before, state.statistics, after.statistics)
            critic = on_policy.rebase(state.critic, state.statistics, after.statistics)
            refitted = _refit(config, problem, critic, price, on_policy.normalised(after.statistics, batch), key)
            chosen = choose(
                taken,
                (policy, refitted, state.multiplier, state.units),
                (before, critic, self.multiplier, self.units),
            )
            return eqx.tree_at(
                lambda s: (s.policy, s.critic, s.multiplier, s.units, s.optimiser),
                after,
                (*chosen, primal_steps.init(config.primal, policy)),
            )

        onward = jax.lax.cond(self.on, judged, lambda: after)
        remember = ~self.on | taken
        trial = dataclasses.replace(
            self,
            on=jnp.zeros_like(self.on),
            before=onward.policy,
            objective=jnp.where(remember, seen.objective, self.objective),
            cost=jnp.where(remember, seen.cost, self.cost),
        )
        return onward, trial, taken

    def corrected(
        self, problem: Problem, unseen: Float[Array, " M"], batch: Transition
    ) -> tuple[Float[Array, " M"], Bool[Array, ""]]:
        """The critics' underestimate of an actor's costs, and whether this epoch shows its actor to exceed the limits.

        An actor is trained towards a cost of d' = d - unseen as its critics estimate it. If the cost is C > d instead,
        the next target is d' d / C, because critics are usually wrong by a factor rather than by an amount. If d ≤ 0, a
        factor makes no sense, and the next target is d' - (C - d).
        """
        seen = objective.measure(problem, batch)
        limit = problem.limit
        over = self.on & (seen.cost > limit + SLACK * jnp.abs(limit) + seen.cost_error)
        factor = jnp.clip(limit / jnp.where(seen.cost > 0.0, seen.cost, 1.0), _LEAST_SHARE, 1.0)
        by_factor = limit - (limit - unseen) * factor
        by_amount = unseen + (seen.cost - limit)
        return jnp.where(over, jnp.where(limit > 0.0, by_factor, by_amount), unseen), jnp.any(over)

    @staticmethod
    def _worth(
        problem: Problem, price: Float[Array, " M"], earned: Float[Array, ""], cost: Float[Array, " M"]
    ) -> Float[Array, ""]:
        return earned - jnp.vdot(price, cost + EXCESS_WEIGHT * jnp.maximum(cost - problem.limit, 0.0))

    def _keeps(self, problem: Problem, seen: Measurement, nearly: float | Float[Array, " M"] = 0.0) -> Bool[Array, ""]:
        """Whether costs are within the limits up to slack and noise, or not above the earlier cost plus `nearly`."""
        # A limit may be 0. The slack is then a share of the distance of the earlier cost from the limit.
        slack = SLACK * jnp.maximum(jnp.abs(problem.limit), 0.2 * jnp.abs(self.cost - problem.limit))
        within = seen.cost <= problem.limit + slack + ERRORS * seen.cost_error
        return jnp.all(within | (seen.cost <= self.cost + nearly))


def _refit(
    config: pdo.Config,
    problem: Problem,
    critic: critics.Critic,
    price: Float[Array, " M"],
    batch: Transition,
    key: PRNGKeyArray,
) -> critics.Critic:
    """The value functions, fitted to the policy that drew the batch."""

    def once(critic: critics.Critic, key: PRNGKeyArray) -> tuple[critics.Critic, None]:
        found = value_functions.estimates(config, problem, critic, price, batch)
        return on_policy.fit(config.critic, critic, key, batch, found)[0], None

    return jax.lax.scan(once, critic, random.split(key, REFITS))[0]


def choose(first: Bool[Array, ""], one: T, other: T) -> T:
    """`one` if `first`, otherwise `other`, for each leaf."""
    return jax.tree.map(lambda a, b: jnp.where(first, a, b), one, other)
