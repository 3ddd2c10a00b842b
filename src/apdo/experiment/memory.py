"""Checks whether a run fits into memory before anything is allocated."""

import contextlib
import math
from pathlib import Path

import jax
import jax.numpy as jnp

from apdo import arguments, loop
from apdo.errors import InvalidInput

_COPIES = 3
"""How many copies of a batch exist at once: sampled, shuffled for the value functions, and inside the networks."""


def check(training: loop.Training, seeds: list[int]) -> None:
    """Raise InvalidInput if the state and one batch need more memory than is free."""
    needed, there = needs(training, len(seeds)), available()
    if there is not None and needed > there:
        raise InvalidInput(
            f"this run needs at least {needed / 1e9:,.1f} GB of memory, and {there / 1e9:,.1f} GB are free; "
            "try a smaller --batch, --replay-capacity, minibatch or network, or fewer --seeds."
        )


def needs(training: loop.Training, seeds: int) -> int:
    """The bytes of the state and of one batch, computed from their shapes: a lower bound on what a run needs."""
    state = _state_of(training)
    problem = training.problem
    sample = 4 * (2 * problem.observation_size + problem.action_size + problem.constraints + 4)
    if jax.default_backend() != "cpu":
        seeds //= loop.devices_for(seeds)  # each device has memory of its own
    at_once = seeds if training.side_by_side else 1
    working = getattr(training.algorithm, "working_memory", None)
    more = 0 if working is None else working(training.config, problem)
    return seeds * state + at_once * (_COPIES * sample * problem.batch + more)


_known: dict[object, int] = {}
"""The bytes of a state, by everything that its size depends on. A sweep asks often, and numbers do not matter."""


def _state_of(training: loop.Training) -> int:
    """Bytes of one seed's state."""
    structure = training.algorithm, arguments.structure((training.config, training.problem))
    if structure not in _known:
        try:
            one = jax.eval_shape(lambda: loop.start(training, [0]))
        except (OverflowError, ValueError, TypeError) as error:
            if isinstance(error, InvalidInput):
                raise
            said = "this run's arrays are larger than any machine can address; make them smaller."
            raise InvalidInput(said) from None
        _known[structure] = sum(_bytes(leaf) for leaf in jax.tree.leaves((one.algorithm, one.best)))
    return _known[structure]


def _bytes(leaf: jax.ShapeDtypeStruct) -> int:
    size = 8 if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf.dtype.itemsize
    return math.prod(leaf.shape) * size


def available() -> int | None:
    """The free bytes on the device that computes; None if they are unknown."""
    device = jax.devices()[0]
    if device.platform != "cpu":
        stats = device.memory_stats() or {}
        limit = stats.get("bytes_limit")
        return None if limit is None else int(limit) - int(stats.get("bytes_in_use", 0))
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None
