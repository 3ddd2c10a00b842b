"""The metrics of a run so far, in the shapes of the compiled loop and of the result."""

import dataclasses
from typing import Any

import jax
import numpy as np

from apdo import loop
from apdo.errors import InvalidInput
from apdo.experiment.resume_point import ResumePoint
from apdo.report import runs


class History:
    """The metrics of all epochs so far, by name, [E, S, ...]. The arrays grow by doubling."""

    def __init__(self) -> None:
        self._arrays: dict[str, np.ndarray] = {}
        self._epochs = 0

    def add(self, metrics: dict[str, np.ndarray]) -> None:
        """Append the next epochs."""
        count = len(next(iter(metrics.values())))
        if self._arrays and {n: a.shape[1:] for n, a in self._arrays.items()} != {
            n: a.shape[1:] for n, a in metrics.items()
        }:
            raise InvalidInput("the metrics of the epochs before are not those that this version of the run makes.")
        for name, new in metrics.items():
            room = self._arrays.get(name)
            if room is None:
                room = np.empty((max(64, count), *new.shape[1:]), new.dtype)
            if self._epochs + count > len(room):
                room = np.concatenate(
                    [room[: self._epochs], np.empty_like(room, shape=(len(room) + count, *new.shape[1:]))]
                )
            room[self._epochs : self._epochs + count] = new
            self._arrays[name] = room
        self._epochs += count

    def restore(self, rows: list[list[dict[str, Any]]], skip: set[str]) -> None:
        """Append the epochs of an earlier part of the run, from its records. JSON keeps single precision exactly."""
        if rows:
            names = [name for name in rows[0][0] if name not in skip]
            self.add({name: _single(np.asarray([[row[name] for row in epoch] for epoch in rows])) for name in names})

    def first(self, epochs: int) -> dict[str, np.ndarray]:
        """The first so many epochs, [E, S, ...], as a view that later epochs do not change."""
        return {name: room[:epochs] for name, room in self._arrays.items()}

    def by_seed(self) -> dict[str, np.ndarray]:
        """Copies with the seeds first, [S, E, ...]."""
        return {name: np.swapaxes(room[: self._epochs], 0, 1).copy() for name, room in self._arrays.items()}


def _single(values: np.ndarray) -> np.ndarray:
    return values.astype({"f": np.float32, "i": np.int32}.get(values.dtype.kind, values.dtype))


def history_of(point: ResumePoint) -> History:
    """The metrics of a run up to where it can continue."""
    history = History()
    history.restore(point.rows, skip={"epoch", "seed", "samples", "seconds"} | runs.ADJUSTED)
    return history


@dataclasses.dataclass(frozen=True)
class ChunkResults:
    """The results of one call of the compiled loop, without the state."""

    metrics: dict[str, np.ndarray]
    """By name, [E, S, ...], for the epochs that were done."""
    finite: dict[str, np.ndarray]
    """By quantity: whether it was finite for each seed in the last epoch that was tried."""
    done: int

    def of(self, rows: slice) -> "ChunkResults":
        """The results of some of the seeds."""
        metrics = {name: value[:, rows] for name, value in self.metrics.items()}
        return ChunkResults(metrics, {name: flags[rows] for name, flags in self.finite.items()}, self.done)


def chunk_results(chunk: loop.Chunk) -> ChunkResults:
    """Copy a chunk's results from the device."""
    metrics, finite, done = jax.device_get((chunk.metrics, chunk.finite, chunk.done))
    return ChunkResults({name: value[: int(done)] for name, value in metrics.items()}, finite, int(done))
