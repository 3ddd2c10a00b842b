"""An off-policy actor on trial: one epoch of its own decides whether it becomes the policy.

The actor plays the epoch with the noise that it was trained under. It is taken if

    R - λ C - λ' [C - d]⁺        with λ = λ^OFF, and λ' twice as much

is higher in its epoch than in the last epoch of the policy before, and if that epoch does not show it beyond the
limits: its cost is within 5 % of them and two standard errors, or nearer to them than before. Then the on-policy stage
goes on from it, else from the policy and the multipliers before. Either way the epoch's samples count, and nothing else
is learned from them but the value functions of an actor that is taken.
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
from apdo.core import critics, dual, policies
from apdo.core.data import Transition
from apdo.objective import Measurement
from apdo.problem import Problem

T = TypeVar("T")

SLACK = 0.05
"""By which share of a limit an actor on trial may exceed it."""
ERRORS = 2.0
"""By how many standard errors of its own epoch's mean, on top of that."""
DEAR = 2.0
"""What cost beyond a limit counts besides its price, in prices."""
_LEAST_SHARE = 0.25
"""To which share of itself one trial can lower what the next actor aims at."""
REFITS = 10
"""Fits of the value functions, one after the other, to an actor that is taken."""


class Trial(eqx.Module):
    """What is needed to tell whether an actor is better than the policy before it, and to go back."""

    on: Bool[Array, ""]
    """Whether this epoch is played by the actor."""
    before: policies.Policy
    multiplier: dual.Multiplier
    units: dual.Relative
    """Where to go back to."""
    objective: Float[Array, ""]
    cost: Float[Array, " M"]
    """R and C of the latest policy that was no trial."""

    @staticmethod
    def none(state: pdo.State, problem: Problem) -> "Trial":
        """Before the first one."""
        return Trial(
            on=jnp.asarray(False),
            before=state.policy,
            multiplier=state.multiplier,
            units=state.units,
            objective=jnp.zeros(()),
            cost=jnp.zeros(problem.constraints),
        )

    def begin(self, state: pdo.State) -> "Trial":
        """A trial in the next epoch, of an actor that takes the place of this state's policy."""
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
        """Where PDO goes on, the trial after this epoch, and whether an actor was taken.

        `state` has played the epoch and `after` is what PDO made of it. Unless `strict`, an actor may break the limits;
        if `clear`, its return has to be higher beyond doubt. If `lenient`, it need only not be shown to be worse.
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
        """What critics miss of an actor's costs, and whether this epoch shows its actor beyond the limits.

        In its critics' eyes an actor costs d' = d - unseen. If it came to C > d instead, the next aims at d' d / C:
        critics misjudge a cost by a factor rather than by an amount. Where that has no sense (d ≤ 0), at d' - (C - d).
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
        return earned - jnp.vdot(price, cost + DEAR * jnp.maximum(cost - problem.limit, 0.0))

    def _keeps(self, problem: Problem, seen: Measurement, nearly: float | Float[Array, " M"] = 0.0) -> Bool[Array, ""]:
        """Whether costs are within the limits, by what an epoch can tell, or (nearly) nearer to them than before."""
        # A limit may be 0; what is to be taken off a cost says what counts then.
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
    """The value functions of the policy that drew the batch."""

    def once(critic: critics.Critic, key: PRNGKeyArray) -> tuple[critics.Critic, None]:
        found = value_functions.estimates(config, problem, critic, price, batch)
        return on_policy.fit(config.critic, critic, key, batch, found)[0], None

    return jax.lax.scan(once, critic, random.split(key, REFITS))[0]


def choose(first: Bool[Array, ""], one: T, other: T) -> T:
    """The one or the other, leaf by leaf."""
    return jax.tree.map(lambda a, b: jnp.where(first, a, b), one, other)
