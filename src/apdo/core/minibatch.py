"""Passes over a batch in shuffled minibatches."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PRNGKeyArray

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
    going: Callable[[Carry], Bool[Array, ""]] | None = None,
) -> tuple[Carry, Report]:
    """Call `descend` on each minibatch of `size` rows, in `passes` passes. The reports are means over the last pass.

    If `going` is given, it is asked after each pass, and the passes end as soon as it is false.

    The rows are shuffled once. Before each pass they are rotated by a random amount, so that its minibatches are new.
    Shuffling before each pass would be slow: sorting is expensive, and so are scattered reads. If `size` does not
    divide the batch, each pass leaves some rows out.
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
    if going is not None:
        return _while_going(one_pass, carry, shifts, going)
    carry, reports = jax.lax.scan(one_pass, carry, shifts)
    return carry, jax.tree.map(lambda report: jnp.mean(report[-1], axis=0), reports)


def _while_going(
    one_pass: Callable[[Carry, Int[Array, ""]], tuple[Carry, Report]],
    carry: Carry,
    shifts: Int[Array, " P"],
    going: Callable[[Carry], Bool[Array, ""]],
) -> tuple[Carry, Report]:
    carry, reports = one_pass(carry, shifts[0])

    def more(loop: tuple[Int[Array, ""], Carry, Report]) -> Bool[Array, ""]:
        return (loop[0] < shifts.shape[0]) & going(loop[1])

    def again(loop: tuple[Int[Array, ""], Carry, Report]) -> tuple[Int[Array, ""], Carry, Report]:
        number, carry, _ = loop
        return number + 1, *one_pass(carry, shifts[number])

    _, carry, reports = jax.lax.while_loop(more, again, (jnp.asarray(1), carry, reports))
    return carry, jax.tree.map(lambda report: jnp.mean(report, axis=0), reports)
