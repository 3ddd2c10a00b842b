"""Metrics copied, as they come, to where people watch runs: TensorBoard and Weights & Biases; both are extras.

A mirror is a callback. It is told of every epoch, soon; nothing of a run depends on it, and the run folder stays the
place where results are.
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
    """Metrics as single numbers by name: the mean over seeds, and each seed's where there are several.

    Of a metric with an entry for each constraint the names end in the constraint's number, if there are several.
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
    """Event files for TensorBoard, in `tensorboard` of the run folder unless another is named.

    After a run has gone on from an earlier epoch, what came after that epoch is replaced.
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
        """Write what is left."""
        if self._writer is not None:
            self._writer.close()


class WeightsAndBiases:
    """A run of Weights & Biases in a project; WANDB_MODE=offline keeps it in the run folder until `wandb sync`.

    A run that goes on is the same run there too.
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
        """End the run there."""
        if self._run is not None:
            self._run.finish()


@dataclasses.dataclass(frozen=True)
class Watch:
    """How a run is watched, as plain values; nothing that it computes depends on it, but when it stops."""

    tensorboard: bool = False
    wandb: str = ""
    """A project."""
    stop_within: int = 0
    """Stop when within the limits for so many epochs; 0: do not."""

    def callbacks(self) -> list[Callback]:
        """Fresh callbacks for one run; an extra that is not installed is told of."""
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
