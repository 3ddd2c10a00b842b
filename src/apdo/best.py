"""The best policy that a training has met, so that nothing found is lost.

The batch of epoch k was drawn by the policy that epoch k began with: its return and its costs, each with a standard
error, are that policy's. Nothing is sampled for it besides. A step changes a policy little, so that the batches before
say something of it, too: `Belief` is what all of them say. By that a policy is known to keep the limits if

    C_i + z · error(C_i) ≤ d_i    for every i,    z = 1.645: 95 %, one-sided.

Of those the best has the greatest R - z · error(R). While none is known, it is the one whose bounds above exceed their
limits least, in the sizes by which multipliers are steered (`core.dual`): parts of the cost or the limit, or deviations
of an episode. All of it is the same, bit for bit, when rewards, costs and limits are multiplied by powers of two.
"""

from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from apdo.core import dual
from apdo.problem import Problem

CONFIDENCE = 1.645
"""Standard errors that a one-sided bound of 95 % keeps from the mean."""
LEAST_EPISODES = 2
"""Fewer say nothing of how much episodes differ, so that nothing is known from them."""
NONE = -1
"""The epoch of a policy that has not been met yet."""


_LEARNS = 0.2
"""The weight of the newest batch in what is known of how far a policy moves from one epoch to the next."""
_LEAST_DRIFT = 0.05
"""The least variance of that move, in parts of a batch's own."""
_SURPRISE = 3.0
"""Standard deviations from what was expected, beyond which a policy is another one and the past says nothing of it."""


class Belief(eqx.Module):
    """Return and costs of the policy that draws the batches, from the newest batch and those before it.

    A Kalman filter of values that drift. From one epoch to the next a value y moves by a step of variance q; a batch
    shows it with the variance e² of its standard error. The filter's surprise, the square of what a batch shows less
    what was expected, is e² + q + the filter's own variance on average: so q is learned. A jump of the policy surprises
    by far more, and the filter begins anew. A batch without a rare and costly event shows no variance at all, and would
    be believed whatever the others said: e² is at least its mean over the batches before, each with half the weight of
    the next.
    """

    mean: Float[Array, " K"]
    """Of the return, then of each cost."""
    variance: Float[Array, " K"]
    drift: Float[Array, " K"]
    """q."""
    noise: Float[Array, " K"]
    """The mean of e²."""
    lowest: Float[Array, " K"]
    """The least that any batch has shown; 0 where none was negative."""

    @staticmethod
    def none(count: int) -> "Belief":
        """Nothing is known yet of so many values."""
        zeros = jnp.zeros(count)
        return Belief(mean=zeros, variance=jnp.full(count, jnp.inf), drift=zeros, noise=zeros, lowest=zeros)

    def observe(self, shown: Float[Array, " K"], error: Float[Array, " K"]) -> "Belief":
        """What is known once a batch has shown the values with these standard errors."""
        own, lowest = error**2, jnp.minimum(self.lowest, shown)
        fresh = Belief(mean=shown, variance=own, drift=own, noise=own, lowest=lowest)
        averaged, noise = dual.remembered(self.noise, own)
        expected = self.variance + self.drift
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
    """A policy, what is known of it, and what is known of the newest one."""

    policy: PyTree
    """As the algorithm's `learned_policy` gives it."""
    returned: Float[Array, ""]
    """The return that the objective speaks of."""
    return_error: Float[Array, ""]
    cost: Float[Array, " M"]
    cost_error: Float[Array, " M"]
    epoch: Int[Array, ""]
    """Whose batch it drew; `NONE` before the first."""
    known: Bool[Array, ""]
    """Whether it is known to keep the limits."""
    excess: Float[Array, ""]
    """By how much the bounds above exceed their limits at worst; 0 if they do not. It has no unit."""
    belief: Belief
    """Of the newest policy."""


def start(policy: PyTree, problem: Problem) -> Best:
    """Before the first epoch: the fresh policy stands there, and anything is better."""
    zero, zeros = jnp.zeros(()), jnp.zeros(problem.constraints)
    return Best(
        # Arrays of its own: the state that holds both policies is given away to be overwritten.
        policy=jax.tree.map(jnp.array, policy),
        returned=zero,
        return_error=zero,
        cost=zeros,
        cost_error=zeros,
        epoch=jnp.asarray(NONE, dtype=jnp.int32),
        known=jnp.asarray(False),
        excess=zero,
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
    """The better of the best so far and the policy that drew this epoch's batch; between equals, this one."""
    returned = metrics["discounted_return" if problem.cost_discount < 1.0 else "return"]
    belief = best.belief.observe(
        jnp.concatenate([returned[None], metrics["cost"]]),
        jnp.concatenate([metrics["return_error"][None], metrics["cost_error"]]),
    )
    error = jnp.sqrt(belief.variance)
    cost, cost_error = belief.mean[1:], error[1:]
    over = jnp.maximum(upper(cost, cost_error) - problem.limit, 0.0)
    deviation = metrics["cost_error"] * jnp.sqrt(jnp.maximum(episodes, 1).astype(over.dtype))
    signed = (belief.lowest[1:] < 0.0) | (problem.limit < 0.0)
    size = dual.relative_size(cost, problem.limit, 0.0, deviation, signed)
    candidate = Best(
        policy=policy,
        returned=belief.mean[0],
        return_error=error[0],
        cost=cost,
        cost_error=cost_error,
        epoch=epoch,
        known=jnp.all(over <= 0.0) & (episodes >= LEAST_EPISODES),
        excess=jnp.max(jnp.where(over > 0.0, over / jnp.where(size > 0.0, size, 1.0), 0.0)),
        belief=belief,
    )
    first = better(candidate, best)
    kept = jax.tree.map(lambda new, old: jnp.where(first, new, old), candidate, best)
    return eqx.tree_at(lambda one: one.belief, kept, belief)


def better(one: Best, other: Best) -> Bool[Array, ""]:
    """Whether one is better than the other; so it is between equals, since of a later policy more batches speak."""
    earns_more = lower(one.returned, one.return_error) >= lower(other.returned, other.return_error)
    alike = jnp.where(one.known, earns_more, one.excess < other.excess)
    return (other.epoch == NONE) | (one.known & ~other.known) | ((one.known == other.known) & alike)


def upper(mean: Array, error: Array) -> Array:
    """The mean is below this with 95 % confidence."""
    return mean + CONFIDENCE * error


def lower(mean: Array, error: Array) -> Array:
    """The mean is above this with 95 % confidence."""
    return mean - CONFIDENCE * error
