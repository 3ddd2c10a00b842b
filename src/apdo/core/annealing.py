"""Steps that shrink with the epochs, so that the noise of single batches averages out.

A step of constant length always follows the whole noise of its batch. With a factor 1 / (1 + k / anneal) the lengths
still have an infinite sum, so the optimum can be reached from anywhere. The squares of the lengths have a finite sum,
so the effect of the noise goes to zero. This is stochastic approximation (Robbins and Monro 1951).
"""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

SHORTER = "epochs after which steps are half as long, by 1 / (1 + k/anneal)"


def length(
    anneal: float | Float[Array, ""], epochs: float | Float[Array, ""] | Int[Array, ""]
) -> float | Float[Array, ""]:
    """The length of the steps of epoch k, relative to the first epoch's. It is always 1 if `anneal` is 0."""
    if isinstance(anneal, float | int):
        return anneal / (anneal + epochs) if anneal else 1.0
    # `anneal` is an argument of the compiled program here, and may be 0 for some of the runs that share the program.
    shrinks = anneal > 0.0
    return jnp.where(shrinks, anneal / jnp.where(shrinks, anneal + epochs, 1.0), 1.0)


def counter(anneal: float) -> Int[Array, ""] | None:
    """The counter of epochs k before the first one, for steps that shrink; None if they do not."""
    return jnp.asarray(0) if anneal else None


_FEW = 100
"""A run of more epochs than this is long."""


def in_a_long_run(value: float, epochs: int) -> float:
    """`value` for a run of up to a hundred epochs. In a run of K > 100 epochs it is smaller, in proportion to 1/√K.

    A long run has time for shorter steps, which follow less of the noise of their batches. It also has more batches to
    estimate a policy's return and cost from.
    """
    return value / math.sqrt(max(epochs / _FEW, 1.0))
