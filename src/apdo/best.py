"""The best policy of a training so far.

The batch of epoch k was drawn by the policy at the beginning of epoch k, so its return and costs, with their standard
errors, are estimates for that policy. No further episodes are sampled. A step changes a policy only a little, so
earlier batches are informative too. `Belief` combines the estimates of all batches. By these estimates, a policy is
known to keep the limits if

    C_i + z · error(C_i) ≤ d_i    for every i,    z = 1.645: 95 %, one-sided.

Of these policies the best has the greatest R - z · error(R). While no policy is known to keep the limits, the better of
two is the one whose upper bounds exceed the limits less. With several costs, each excess is a multiple of the larger of
the two policies' relative sizes (`core.relative_units`), so that the same amount counts the same for both. With one
cost, the lower upper bound is better. If rewards, costs and limits are multiplied by powers of two, the results are the
same bits.
"""

from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from apdo import objective
from apdo.core import relative_units
from apdo.problem import Problem

CONFIDENCE = 1.645
"""The distance of a one-sided 95 % bound from the mean, in standard errors."""
LEAST_EPISODES = 2
"""A batch with fewer episodes gives no standard error, so no policy is known to keep the limits from it."""
NONE = -1
"""The epoch of the best policy before the first epoch."""


_LEARNS = 0.2
"""The weight of the newest batch in the estimate of the drift q."""
_LEAST_DRIFT = 0.05
"""The least q, as a share of a batch's own variance."""
_LEAST_DOUBT = 0.25
"""The least variance of an expectation, as a share of a batch's own. The filter comes to it with the least q."""
_SURPRISE = 3.0
"""If a batch deviates from the expectation by more standard deviations than this, earlier batches are discarded."""


class Belief(eqx.Module):
    """Estimates of the current policy's return and costs, from the newest batch and earlier ones.

    This is a Kalman filter of drifting values. From one epoch to the next a value y changes by a step of variance q. A
    batch measures it with the variance e², the square of its standard error. The mean of the squared difference between
    measurement and expectation is e² + q + the filter's own variance, from which q is learned. If the policy jumps, the
    difference is much larger, and the filter starts again. A batch without a rare and costly event has no variance, and
    would outweigh all others. So e² is at least its mean over the batches, where each has half the weight of the next.
    Batches that all showed the same, such as the most that can be earned, would never be doubted by one that varies. So
    the filter's variance before a batch is at least a share of that batch's e².
    """

    mean: Float[Array, " K"]
    """The estimates of the return, then of each cost."""
    variance: Float[Array, " K"]
    """The squared standard errors of these estimates."""
    drift: Float[Array, " K"]
    """q, the variance of a value's change from one epoch to the next."""
    noise: Float[Array, " K"]
    """The mean of e² over the batches."""
    lowest: Float[Array, " K"]
    """The least measurement of any batch; 0 if none was negative."""

    @staticmethod
    def none(count: int) -> "Belief":
        """The state before the first batch, for `count` values."""
        zeros = jnp.zeros(count)
        return Belief(mean=zeros, variance=jnp.full(count, jnp.inf), drift=zeros, noise=zeros, lowest=zeros)

    def observe(self, shown: Float[Array, " K"], error: Float[Array, " K"]) -> "Belief":
        """The estimates after a batch with these measurements and standard errors."""
        own, lowest = error**2, jnp.minimum(self.lowest, shown)
        fresh = Belief(mean=shown, variance=own, drift=own, noise=own, lowest=lowest)
        averaged, noise = relative_units.remembered(self.noise, own)
        expected = jnp.maximum(self.variance + self.drift, _LEAST_DOUBT * noise)
        total = expected + noise
        surprise = (shown - self.mean) ** 2
        known = total > 0.0
        gain = jnp.where(known, expected / jnp.where(known, total, 1.0), 1.0)
        drift = self.drift + _LEARNS * (surprise - self.variance - noise - self.drift)
        updated = Belief(
            mean=self.mean + gain * (shown - self.mean),
            variance=gain * noise,
            drift=jnp.maximum(drift, _LEAST_DRIFT * noise),
            noise=averaged,
            lowest=lowest,
        )
        another = jnp.any(surprise > _SURPRISE**2 * total) | ~jnp.all(jnp.isfinite(self.variance))
        return jax.tree.map(lambda new, old: jnp.where(another, new, old), fresh, updated)


class Best(eqx.Module):
    """The best policy with its estimates, and the estimates for the newest policy."""

    policy: PyTree
    """The result of the algorithm's `learned_policy`."""
    returned: Float[Array, ""]
    """The return, as the objective defines it (discounted or total)."""
    return_error: Float[Array, ""]
    cost: Float[Array, " M"]
    cost_error: Float[Array, " M"]
    epoch: Int[Array, ""]
    """The epoch whose batch this policy drew; `NONE` before the first epoch."""
    known: Bool[Array, ""]
    """Whether the policy is known to keep the limits."""
    belief: Belief
    """The estimates for the newest policy."""


def start(policy: PyTree, problem: Problem) -> Best:
    """The state before the first epoch. It holds the new policy, and every other policy counts as better."""
    zero, zeros = jnp.zeros(()), jnp.zeros(problem.constraints)
    return Best(
        # A copy, because the buffers of the state are donated: two of its fields must not share an array.
        policy=jax.tree.map(jnp.array, policy),
        returned=zero,
        return_error=zero,
        cost=zeros,
        cost_error=zeros,
        epoch=jnp.asarray(NONE, dtype=jnp.int32),
        known=jnp.asarray(False),
        belief=Belief.none(1 + problem.constraints),
    )


def update(
    best: Best,
    problem: Problem,
    policy: PyTree,
    metrics: Mapping[str, Array],
    episodes: Int[Array, ""],
    epoch: Int[Array, ""],
) -> Best:
    """The better of the best policy so far and the policy that drew this epoch's batch. If equal, it is the latter."""
    returned = metrics["return" if objective.is_total(problem) else "discounted_return"]
    belief = best.belief.observe(
        jnp.concatenate([returned[None], metrics["cost"]]),
        jnp.concatenate([metrics["return_error"][None], metrics["cost_error"]]),
    )
    error = jnp.sqrt(belief.variance)
    cost, cost_error = belief.mean[1:], error[1:]
    candidate = Best(
        policy=policy,
        returned=belief.mean[0],
        return_error=error[0],
        cost=cost,
        cost_error=cost_error,
        epoch=epoch,
        known=jnp.all(beyond(problem, cost, cost_error) <= 0.0) & (episodes >= LEAST_EPISODES),
        belief=belief,
    )
    deviation = metrics["cost_error"] * jnp.sqrt(jnp.maximum(episodes, 1).astype(cost.dtype))
    signed = (belief.lowest[1:] < 0.0) | (problem.limit < 0.0)
    sizes = (relative_units.scale(one.cost, problem.limit, 0.0, deviation, signed) for one in (candidate, best))
    first = better(problem, candidate, best, jnp.maximum(*sizes))
    kept = jax.tree.map(lambda new, old: jnp.where(first, new, old), candidate, best)
    return eqx.tree_at(lambda one: one.belief, kept, belief)


def better(problem: Problem, one: Best, other: Best, size: Float[Array, " M"]) -> Bool[Array, ""]:
    """Whether `one` is better than `other`. If equal, it is, because more batches inform about a later policy.

    Excesses are counted in multiples of `size`.
    """
    earns_more = lower(one.returned, one.return_error) >= lower(other.returned, other.return_error)
    mine, its = (
        jnp.max(beyond(problem, each.cost, each.cost_error) / jnp.where(size > 0.0, size, 1.0)) for each in (one, other)
    )
    alike = jnp.where(one.known, earns_more, mine < its)
    return (other.epoch == NONE) | (one.known & ~other.known) | ((one.known == other.known) & alike)


def beyond(problem: Problem, cost: Float[Array, " M"], error: Float[Array, " M"]) -> Float[Array, " M"]:
    """By how much the upper bounds of costs exceed their limits; 0 of those that do not."""
    return jnp.maximum(upper(cost, error) - problem.limit, 0.0)


def upper(mean: Array, error: Array) -> Array:
    """An upper bound on the mean, with 95 % confidence."""
    return mean + CONFIDENCE * error


def lower(mean: Array, error: Array) -> Array:
    """A lower bound on the mean, with 95 % confidence."""
    return mean - CONFIDENCE * error
