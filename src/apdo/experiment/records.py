"""The files of a run folder: `run.json` describes the run, `metrics.jsonl` has a line for each epoch and seed, and
`remarks.jsonl` has a line for each remark, if there are any.

Lines are only added, except when a run is resumed. Then the lines that its checkpoint does not cover are cut off, and
are computed again. Only the process that writes holds `lock`.
"""

import contextlib
import datetime
import fcntl
import functools
import os
import platform
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from apdo import files
from apdo.errors import InvalidInput, StorageFailure
from apdo.report.runs import ADJUSTED, REMARKS

FORMAT = 2
_PACKAGES = ("apdo", "jax", "jaxlib", "equinox", "optax", "numpy")
_OURS = ("lock", "run.json.partial")
"""The files that a run leaves if it is killed at its very start."""
_TRIALS, _PAUSE = 3, 0.02
"""How often a lock is asked for, and the seconds between: who follows a run holds its lock for an instant."""


class Busy(InvalidInput):
    """Another process is working in the folder."""


def lock(folder: Path) -> BinaryIO:
    """Lock the folder. The lock is held until it is closed or the process ends, in whatever way."""
    try:
        held = (folder / "lock").open("ab")
    except OSError as error:
        raise InvalidInput(f"the run folder {folder} cannot be written to: {error.strerror}.") from None
    for _ in range(_TRIALS):
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_PAUSE)
        except OSError:
            return held  # a file system without locks: better an unguarded run than none
        else:
            return held
    held.close()
    raise Busy(f"another process is at work in {folder}; wait for it, or stop it first.")


def is_blank(folder: Path) -> bool:
    """Whether a folder is empty, or has no more than a run leaves that was killed at its very start."""
    return folder.is_dir() and all(path.name in _OURS for path in folder.iterdir())


class Records:
    """Writes a run's files while it runs, and never reads them."""

    def __init__(self, folder: Path, description: dict[str, Any]) -> None:
        """Begin a new run folder."""
        if folder.exists() and not is_blank(folder):
            raise InvalidInput(f"the run folder {folder} exists already; choose another with --out or remove it.")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InvalidInput(f"the run folder {folder} cannot be made: {reason}.") from None
        self._begin(folder, lock(folder), {"format": FORMAT, **description}, 0)

    @classmethod
    def resume(cls, folder: Path, held: BinaryIO, description: dict[str, Any], end: int) -> "Records":
        """Continue a run folder whose lock is held, after the first `end` bytes of its metrics."""
        self = cls.__new__(cls)
        self._begin(folder, held, description, end)
        return self

    def _begin(self, folder: Path, held: BinaryIO, description: dict[str, Any], end: int) -> None:
        self.folder, self._lock = folder, held
        self._description = {**description, "status": "running"}
        self._metrics: BinaryIO | None = None
        try:
            self._write_description()
            # Unbuffered, so that data that cannot be written are not written again when the file is closed.
            self._metrics = (folder / "metrics.jsonl").open("ab", buffering=0)
            self._metrics.truncate(end)
        except OSError as error:
            self.release()
            if isinstance(error, StorageFailure):
                raise
            raise files.storage_failure(folder / "metrics.jsonl", error) from error

    @property
    def seconds(self) -> float:
        """The seconds that the run had taken when it was last stopped."""
        return float(self._description.get("seconds") or 0.0)

    def append(self, rows: list[dict[str, Any]]) -> None:
        """Add lines with checksums to `metrics.jsonl`, all or none, and pass them to the operating system at once."""
        assert self._metrics is not None
        data = "".join(files.seal_line(row) for row in rows).encode()
        end = os.fstat(self._metrics.fileno()).st_size
        try:
            while data:
                data = data[self._metrics.write(data) or 0 :]
        except OSError as error:
            with contextlib.suppress(OSError):
                self._metrics.truncate(end)
            raise files.storage_failure(self.folder / "metrics.jsonl", error) from error

    def remark(self, row: dict[str, Any]) -> None:
        """Add a line with a checksum to `remarks.jsonl`, and wait until it is on the disk; remarks are few."""
        try:
            with (self.folder / REMARKS).open("ab", buffering=0) as file:
                file.write(files.seal_line(row).encode())
                os.fsync(file.fileno())
        except OSError as error:
            raise files.storage_failure(self.folder / REMARKS, error) from error

    def keep_remarks(self, rows: list[dict[str, Any]]) -> None:
        """Keep only these remarks."""
        text = "".join(files.seal_line(row) for row in rows).encode()
        path = self.folder / REMARKS
        if path.exists() and path.read_bytes() != text:
            with files.replacing(path) as file:
                file.write(text)

    def sync(self) -> None:
        """Wait until the lines are on the disk: a checkpoint must never be ahead of them."""
        assert self._metrics is not None
        try:
            os.fsync(self._metrics.fileno())
        except OSError as error:
            raise files.storage_failure(self.folder / "metrics.jsonl", error) from error

    def close(self, status: str, **facts: object) -> None:
        """Write to `run.json` how the run ended, and release the folder."""
        try:
            self._description |= {"status": status, **facts}
            self._write_description()
        finally:
            self.release()

    def release(self) -> None:
        """Close the files, and release the lock last."""
        if self._metrics is not None:
            self._metrics.close()
        self._lock.close()

    def _write_description(self) -> None:
        with files.replacing(self.folder / "run.json") as file:
            file.write(files.seal_page(self._description).encode())


def rows(
    metrics: dict[str, np.ndarray], epoch: int, seeds: list[int], samples: int, seconds: float
) -> list[dict[str, Any]]:
    """One row per seed from metrics [S, ...]. Without the values that an adjustment did not set for a seed."""
    return [
        {"epoch": epoch, "seed": seed, "samples": samples, "seconds": round(seconds, 4)}
        | {
            name: value[i].tolist()
            for name, value in metrics.items()
            if name not in ADJUSTED or np.isfinite(value[i]).all()
        }
        for i, seed in enumerate(seeds)
    ]


def now() -> str:
    """The current time, as written in run folders."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def versions(others: tuple[str, ...] = ()) -> dict[str, str]:
    """The versions of the packages that results depend on, with those of `others`."""
    found = {"python": platform.python_version()}
    for package in (*_PACKAGES, *others):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = getattr(sys.modules.get(package), "__version__", "unknown")
    return found


@functools.cache
def commit() -> str:
    """The git commit of the source tree of this package, with "-dirty" if files have changed; empty without git."""
    here = Path(__file__).parent
    try:
        head = _git(here, "rev-parse", "HEAD")
        tracked = _git(here, "ls-files", "--error-unmatch", Path(__file__).name)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head + ("-dirty" if tracked and _git(here, "status", "--porcelain", "--untracked-files=no") else "")


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()
