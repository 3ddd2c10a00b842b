"""The states of several runs as rows of one state: the first axis of every leaf has the seeds of all runs."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from apdo import loop

Tree = TypeVar("Tree")


def of(state: loop.State, rows: slice | np.ndarray) -> loop.State:
    """The state of some rows."""
    return _over_rows(lambda leaf: leaf[rows], state)


def joined(states: Sequence[loop.State]) -> loop.State:
    """States concatenated along their rows; all have done the same number of epochs."""
    return _over_rows(lambda *leaves: jnp.concatenate(leaves), *states)


def on_host(state: Tree) -> Tree:
    """A state in the host's memory, with random keys as plain numbers, as files store them. Slicing it is cheap."""

    def plain(leaf: Array) -> Array:
        return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf

    return jax.device_get(jax.tree.map(plain, state))


def _over_rows(function: Callable[..., Array], *states: loop.State) -> loop.State:
    """Apply a function to every leaf whose first axis are the seeds, which is every leaf but the epoch."""
    return jax.tree.map(lambda *leaves: function(*leaves) if leaves[0].ndim else leaves[0].copy(), *states)
