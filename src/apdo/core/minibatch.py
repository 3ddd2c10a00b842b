"""Passes over a batch in shuffled minibatches."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray

Carry = TypeVar("Carry")
Data = TypeVar("Data")
Report = TypeVar("Report")


def sweep(
    descend: Callable[[Carry, Data], tuple[Carry, Report]],
    carry: Carry,
    data: Data,
    key: PRNGKeyArray,
    *,
    size: int,
    passes: int,
) -> tuple[Carry, Report]:
    """`descend` on each minibatch of `size` rows, `passes` times over; the reports are averaged over the last pass.

    The rows are shuffled once, and rotated by a random amount before each pass so that its minibatches are new ones: a
    sort is dear, and so is a scattered read. A batch that `size` does not divide leaves some rows out of each pass.
    """
    samples = jax.tree.leaves(data)[0].shape[0]
    size = min(size, samples)
    count = samples // size
    shuffle_key, rotate_key = jax.random.split(key)
    order = jnp.argsort(jax.random.bits(shuffle_key, (samples,)))
    shuffled = jax.tree.map(lambda leaf: leaf[order], data)

    def one_pass(carry: Carry, shift: Int[Array, ""]) -> tuple[Carry, Report]:
        def minibatches(leaf: jax.Array) -> jax.Array:
            return jnp.roll(leaf, shift, axis=0)[: count * size].reshape(count, size, *leaf.shape[1:])

        return jax.lax.scan(descend, carry, jax.tree.map(minibatches, shuffled))

    shifts = jax.random.randint(rotate_key, (passes,), 0, samples)
    carry, reports = jax.lax.scan(one_pass, carry, shifts)
    return carry, jax.tree.map(lambda report: jnp.mean(report[-1], axis=0), reports)
