"""Copies metrics to other programs while a run is going on: TensorBoard and Weights & Biases. Both are extras.

A mirror is a callback that sees every epoch, perhaps a little late. The run does not depend on it, and its results are
still in the run folder.
"""

import dataclasses
import importlib
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from apdo.errors import InvalidInput
from apdo.experiment.callbacks import Callback, Epoch, stop_within_limits


def scalars(metrics: Mapping[str, np.ndarray], seeds: list[int]) -> dict[str, float]:
    """Metrics as single numbers by name: the mean over seeds and, if there are several seeds, the value of each.

    If a metric has an entry for each of several constraints, the names end in the constraint's number.
    """
    found: dict[str, float] = {}
    for name, values in metrics.items():
        table = np.asarray(values, dtype=float).reshape(len(seeds), -1)
        for i, column in enumerate(table.T):
            whole = f"{name}/{i}" if table.shape[1] > 1 else name
            found[whole] = float(column.mean())
            if len(seeds) > 1:
                found |= {f"{whole}/seed-{seed}": float(value) for seed, value in zip(seeds, column, strict=True)}
    return found


class TensorBoard:
    """Writes event files for TensorBoard, by default in the folder `tensorboard` of the run.

    If a run continues from an earlier epoch, the events after that epoch are replaced.
    """

    patient = True

    def __init__(self, folder: Path | None = None) -> None:
        self._package = _package("tensorboardX", "tensorboard")
        self._folder, self._writer = folder, None

    def __call__(self, report: Epoch) -> None:
        """Write one epoch."""
        if self._writer is None:
            where = self._folder or report.folder / "tensorboard"
            self._writer = self._package.SummaryWriter(str(where), purge_step=report.epoch, flush_secs=2)
        for name, value in scalars(report.metrics, list(report.seeds)).items():
            self._writer.add_scalar(name, value, report.epoch)

    def close(self) -> None:
        """Write what is left, and close the files."""
        if self._writer is not None:
            self._writer.close()


class WeightsAndBiases:
    """Logs to a project of Weights & Biases. WANDB_MODE=offline keeps the data in the run folder until `wandb sync`.

    A run that is continued stays one run there too.
    """

    patient = True

    def __init__(self, project: str) -> None:
        self._package = _package("wandb", "wandb")
        self._project, self._run = project, None

    def __call__(self, report: Epoch) -> None:
        """Log one epoch."""
        if self._run is None:
            folder = report.folder.resolve()
            self._run = self._package.init(
                project=self._project,
                name=f"{folder.parent.name}/{folder.name}",
                id=f"{zlib.crc32(str(folder).encode()):08x}",
                resume="allow",
                dir=str(folder),
                config={
                    "title": report.title,
                    "epochs": report.epochs,
                    "batch": report.batch,
                    "limits": list(report.limits),
                },
                settings=self._package.Settings(silent=True),
            )
        self._run.log({**scalars(report.metrics, list(report.seeds)), "samples": report.samples}, step=report.epoch)

    def close(self) -> None:
        """End the run in Weights & Biases."""
        if self._run is not None:
            self._run.finish()


@dataclasses.dataclass(frozen=True)
class Watch:
    """How a run is watched, as plain values. Nothing that the run computes depends on it, except when it stops."""

    tensorboard: bool = False
    wandb: str = ""
    """The name of a project; empty: do not log."""
    stop_within: int = 0
    """Stop after so many epochs in a row within the limits; 0: never."""

    def callbacks(self) -> list[Callback]:
        """Fresh callbacks for one run. InvalidInput says so if an extra is not installed."""
        found: list[Callback] = []
        if self.tensorboard:
            found.append(TensorBoard())
        if self.wandb:
            found.append(WeightsAndBiases(self.wandb))
        if self.stop_within:
            found.append(stop_within_limits(self.stop_within))
        return found


def _package(name: str, extra: str) -> ModuleType | Any:  # noqa: ANN401
    try:
        return importlib.import_module(name)
    except ImportError:
        raise InvalidInput(f"{name} is not installed; get it with: pip install 'apdo[{extra}]'") from None
