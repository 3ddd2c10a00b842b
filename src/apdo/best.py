"""The best policy that a training has met, so that nothing found is lost.

The batch of epoch k was drawn by the policy that epoch k began with: its return and its costs, each with a standard
error, are that policy's. Nothing is sampled for it besides. A policy is known to keep the limits if

    C_i + z · error(C_i) ≤ d_i    for every i,    z = 1.645: 95 %, one-sided.

Of those the best has the greatest R - z · error(R). While none is known, it is the one whose bounds above exceed their
limits least, as a part of the cost or of the limit, whichever is larger. All of it is the same, bit for bit, when
rewards, costs and limits are multiplied by powers of two.
"""

from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from apdo.problem import Problem

CONFIDENCE = 1.645
"""Standard errors that a one-sided bound of 95 % keeps from the mean."""
LEAST_EPISODES = 2
"""Fewer say nothing of how much episodes differ, so that nothing is known from them."""
NONE = -1
"""The epoch of a policy that has not been met yet."""


class Best(eqx.Module):
    """A policy and what its own batch says of it."""

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
    )


def update(
    best: Best,
    problem: Problem,
    policy: PyTree,
    metrics: Mapping[str, Array],
    episodes: Int[Array, ""],
    epoch: Int[Array, ""],
) -> Best:
    """The better of the best so far and the policy that drew this epoch's batch; between equals, the earlier."""
    cost, error = metrics["cost"], metrics["cost_error"]
    candidate = Best(
        policy=policy,
        returned=metrics["discounted_return" if problem.cost_discount < 1.0 else "return"],
        return_error=metrics["return_error"],
        cost=cost,
        cost_error=error,
        epoch=epoch,
        known=jnp.all(upper(cost, error) <= problem.limit) & (episodes >= LEAST_EPISODES),
    )
    first = better(problem, candidate, best)
    return jax.tree.map(lambda new, old: jnp.where(first, new, old), candidate, best)


def better(problem: Problem, one: Best, other: Best) -> Bool[Array, ""]:
    """Whether one is better than the other."""
    earns_more = lower(one.returned, one.return_error) > lower(other.returned, other.return_error)
    exceeds_less = excess(problem, one) < excess(problem, other)
    alike = jnp.where(one.known, earns_more, exceeds_less)
    return (other.epoch == NONE) | (one.known & ~other.known) | ((one.known == other.known) & alike)


def excess(problem: Problem, best: Best) -> Float[Array, ""]:
    """By how much the bounds above exceed their limits at worst, in parts of the cost or the limit; 0 if they do not.

    It has no unit, and a limit of 0 is one like any other.
    """
    over = upper(best.cost, best.cost_error) - problem.limit
    size = jnp.maximum(jnp.abs(best.cost), jnp.abs(problem.limit))
    return jnp.max(jnp.where(over > 0.0, over / size, 0.0))


def upper(mean: Array, error: Array) -> Array:
    """The mean is below this with 95 % confidence."""
    return mean + CONFIDENCE * error


def lower(mean: Array, error: Array) -> Array:
    """The mean is above this with 95 % confidence."""
    return mean - CONFIDENCE * error
