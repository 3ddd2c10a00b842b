"""The files of a run folder: `run.json`, which describes the run, and `metrics.jsonl`, one line per epoch and seed."""

import json
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from apdo.errors import InvalidInput

FORMAT = 1
_PACKAGES = ("apdo", "jax", "jaxlib", "equinox", "optax", "numpy")


class Records:
    """Writes a run's files as it goes; nothing is ever read back from here."""

    def __init__(self, folder: Path, description: dict[str, Any]) -> None:
        if folder.exists():
            raise InvalidInput(f"the run folder {folder} exists already; choose another with --out or remove it.")
        folder.mkdir(parents=True)
        self.folder = folder
        self._description = {"format": FORMAT, **description, "status": "running"}
        self._write_description()
        self._metrics: TextIO = (folder / "metrics.jsonl").open("a", encoding="utf-8")

    def append(self, rows: list[dict[str, Any]]) -> None:
        """Add lines to `metrics.jsonl`, and hand them to the system at once."""
        self._metrics.writelines(json.dumps(row) + "\n" for row in rows)
        self._metrics.flush()

    def close(self, status: str, **facts: object) -> None:
        """Note how the run ended."""
        self._metrics.close()
        self._description |= {"status": status, **facts}
        self._write_description()

    def _write_description(self) -> None:
        path = self.folder / "run.json"
        temporary = path.with_name("run.json.partial")
        temporary.write_text(json.dumps(self._description, indent=2) + "\n", encoding="utf-8")
        temporary.replace(path)


def rows(
    metrics: dict[str, np.ndarray], epoch: int, seeds: list[int], samples: int, seconds: float
) -> list[dict[str, Any]]:
    """One row per seed from metrics [S, ...]."""
    return [
        {"epoch": epoch, "seed": seed, "samples": samples, "seconds": round(seconds, 4)}
        | {name: value[i].tolist() for name, value in metrics.items()}
        for i, seed in enumerate(seeds)
    ]


def versions() -> dict[str, str]:
    """The versions that results depend on."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = getattr(sys.modules.get(package), "__version__", "unknown")
    return found


def commit() -> str:
    """The git commit of the source tree that this package runs from, with a mark where it has changed; or empty."""
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
