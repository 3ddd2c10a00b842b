"""Follows run folders while they are written. Each look reads only what is new since the last one."""

import dataclasses
import fcntl
import json
from pathlib import Path
from typing import Any

import numpy as np

from apdo.errors import InvalidInput
from apdo.report import runs

_MOST_AT_ONCE = 2**26
"""The most bytes of metrics that one look reads; the next look continues from there."""


@dataclasses.dataclass(frozen=True)
class Point:
    """One epoch, with means over the seeds."""

    epoch: int
    """The number of epochs done."""
    returned: float
    cost: tuple[float, ...]
    multiplier: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True)
class Sight:
    """The present state of a run."""

    path: Path
    status: str
    """The status in `run.json`: running, finished, stopped, interrupted or failed.

    It is "waiting" without a file, and "killed" if the file says "running" but no process is at work in the folder.
    """
    algorithm: str = ""
    environment: str = ""
    seeds: int = 0
    epochs: int = 0
    batch: int = 0
    limits: tuple[float, ...] = ()
    last: Point | None = None
    error: str = ""

    @property
    def done(self) -> int:
        """The number of epochs done."""
        return 0 if self.last is None else self.last.epoch


class Follower:
    """Follows one run folder, which need not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.points: list[Point] = []
        """The epochs so far."""
        self._description: dict[str, Any] = {}
        self._stamp = 0.0
        self._offset = 0
        self._pending: list[dict[str, Any]] = []

    def look(self) -> Sight:
        """Read the present state of the run. Anything unreadable is tried again at the next look."""
        try:
            stamp = (self.path / runs.DESCRIPTION).stat().st_mtime_ns
            if stamp != self._stamp:
                self._description, self._stamp = runs.read_description(self.path), stamp
            self._read_on()
        except (OSError, InvalidInput):
            if not self._description:
                return Sight(self.path, "waiting")
        description = self._description
        return Sight(
            path=self.path,
            status=self._status(),
            algorithm=description["algorithm"],
            environment=description["environment"],
            seeds=len(description["seeds"]),
            epochs=int(description.get("epochs", 0)),
            batch=description["batch"],
            limits=tuple(description["problem"]["limits"]),
            last=self.points[-1] if self.points else None,
            error=str(description.get("error", "")),
        )

    def _status(self) -> str:
        said = str(self._description.get("status", "unknown"))
        return "killed" if said == "running" and _is_free(self.path / "lock") else said

    def _read_on(self) -> None:
        with (self.path / runs.METRICS).open("rb") as file:
            if file.seek(0, 2) < self._offset:
                # The run continued from an earlier checkpoint, and computes the later epochs again.
                self._offset, self.points, self._pending = 0, [], []
            file.seek(self._offset)
            data = file.read(_MOST_AT_ONCE)
        whole = data.rfind(b"\n") + 1
        self._offset += whole
        for line in data[:whole].splitlines():
            try:
                self._take(json.loads(line))
            except (ValueError, KeyError, TypeError):
                continue

    def _take(self, row: dict[str, Any]) -> None:
        if self._pending and self._pending[0]["epoch"] != row["epoch"]:
            self._pending = []
        self._pending.append(row)
        if len(self._pending) == len(self._description["seeds"]):
            self.points.append(
                Point(
                    epoch=int(row["epoch"]) + 1,
                    returned=float(np.mean([one["return"] for one in self._pending])),
                    cost=_means([one["cost"] for one in self._pending]),
                    multiplier=_means([one.get("multiplier", []) for one in self._pending]),
                )
            )
            self._pending = []


def _means(lists: list[list[float]]) -> tuple[float, ...]:
    return tuple(float(value) for value in np.mean(np.asarray(lists, dtype=float), axis=0))


def _is_free(lock: Path) -> bool:
    """Whether a lock exists and no process holds it. False if that cannot be told."""
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def below(folder: Path) -> list[Path]:
    """The run folders in a folder, or the folder itself if it is one."""
    if (folder / runs.DESCRIPTION).exists():
        return [folder]
    if not folder.is_dir():
        raise InvalidInput(f"there is no folder {folder}.")
    return sorted(file.parent for file in folder.rglob(runs.DESCRIPTION))
