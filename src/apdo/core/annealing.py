"""Steps that shrink with the epochs, so that what a batch errs by is averaged over batches.

A step of constant length follows the noise of its batch as a whole, for ever. With 1 / (1 + k / anneal) in front of it
the steps add up to infinity, so that the optimum is in reach from anywhere, and their squares do not, so that what the
noise moves goes to zero: stochastic approximation (Robbins and Monro 1951).
"""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

SHORTER = "epochs after which steps are half as long, by 1 / (1 + k/anneal)"


def length(
    anneal: float | Float[Array, ""], epochs: float | Float[Array, ""] | Int[Array, ""]
) -> float | Float[Array, ""]:
    """How long the steps of epoch k are, the first one's being 1; always 1 where `anneal` is 0."""
    if isinstance(anneal, float | int):
        return anneal / (anneal + epochs) if anneal else 1.0
    # An argument of the program, and 0 for some of the runs that share it.
    shrinks = anneal > 0.0
    return jnp.where(shrinks, anneal / jnp.where(shrinks, anneal + epochs, 1.0), 1.0)


_FEW = 100
"""Epochs of a run that is not long."""


def in_a_long_run(value: float, epochs: int) -> float:
    """What is `value` in a run of up to a hundred epochs; it falls like 1/√K with the epochs K of a longer one.

    A long run has time for shorter steps, which follow less of their batches' noise, and more batches to know a policy
    by.
    """
    return value / math.sqrt(max(epochs / _FEW, 1.0))
