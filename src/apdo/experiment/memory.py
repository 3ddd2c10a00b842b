"""Whether a run fits into memory, asked before any of it is allocated."""

import contextlib
import math
from pathlib import Path

import jax
import jax.numpy as jnp

from apdo import arguments, loop
from apdo.errors import InvalidInput

_COPIES = 3
"""How often a batch is held at once: as sampled, shuffled for the value functions, and in what the networks make."""


def check(training: loop.Training, seeds: list[int]) -> None:
    """Raise InvalidInput if the state and a batch alone need more than there is."""
    needed, there = needs(training, len(seeds)), available()
    if there is not None and needed > there:
        raise InvalidInput(
            f"this run needs at least {needed / 1e9:,.1f} GB of memory, and {there / 1e9:,.1f} GB are free; "
            "try a smaller --batch, --replay-capacity, minibatch or network, or fewer --seeds."
        )


def needs(training: loop.Training, seeds: int) -> int:
    """Bytes of the state and of one batch, from their shapes alone; the least that a run takes."""
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
"""Bytes of a state by what its size depends on: numbers do not change it, and a sweep asks often."""


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
    """Bytes that are free on the device that computes; None where that cannot be told."""
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
