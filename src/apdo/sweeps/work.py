"""One job of a sweep, in whatever process it was sent to: runs one after the other, or in one program.

A job and its outcomes are plain values, so that they can be sent through a pipe or to a cluster. Everything that a job
computes is in its run folders. So a job that is done again after a crash continues from there.
"""

import dataclasses
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from apdo.errors import EnvironmentFailure, Interrupted, InvalidInput, NumericalFailure, StorageFailure
from apdo.experiment import mirrors, opening, records, result, together
from apdo.experiment.settings import Experiment

FINISHED, FAILED, INTERRUPTED, STORAGE, AGAIN = "finished", "failed", "interrupted", "storage", "again"
PATIENCE = 60.0
"""Seconds that a job waits for a run folder which an earlier process has not released yet."""


@dataclasses.dataclass(frozen=True)
class Task:
    """A run and its folder."""

    folder: str
    config: Mapping[str, Any]
    """The run as `Experiment.describe` returns it."""
    watch: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The `Watch` as `dataclasses.asdict` returns it."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    folder: str
    status: str
    """One of these: `FINISHED`; `FAILED`; `INTERRUPTED`, which is saved and can be continued; `STORAGE`, if nothing can
    be written; `AGAIN`, if it has not ended but continues elsewhere."""
    error: str = ""


def perform(tasks: Sequence[Task], patience: float = PATIENCE) -> list[Outcome]:
    """Do every run of a job, in as few programs as possible. If a run fails, the others continue."""
    found: list[Outcome] = []
    opened: dict[Path, str] = {}
    held: list[opening.Opened] = []
    for task in tasks:
        try:
            entered = _enter(task, patience)
        except BaseException as error:
            found.append(outcome_of(task.folder, error))
            continue
        if isinstance(entered, result.Result):
            found.append(Outcome(task.folder, FINISHED))
        else:
            opened[entered.record.folder] = task.folder
            held.append(entered)
    watch = mirrors.Watch(**(tasks[0].watch if tasks else {}))
    for folder, error in together.train(held, watch.callbacks).items():
        named = opened[folder]
        found.append(Outcome(named, FINISHED) if error is None else outcome_of(named, error))
    return found


def _enter(task: Task, patience: float) -> opening.Opened | result.Result:
    """Open the run's folder. If an earlier process has not released it yet, wait for that."""
    experiment, until = Experiment.restore(task.config), time.monotonic() + patience
    while True:
        try:
            return opening.enter(experiment, Path(task.folder), lambda _: None)
        except records.Busy:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def outcome_of(folder: str, error: BaseException) -> Outcome:
    """The outcome that an error means, with its message in one sentence."""
    if isinstance(error, Interrupted | KeyboardInterrupt):
        return Outcome(folder, INTERRUPTED)
    if isinstance(error, StorageFailure):
        return Outcome(folder, STORAGE, _sentence(error))
    if isinstance(error, InvalidInput | NumericalFailure | EnvironmentFailure):
        return Outcome(folder, FAILED, _sentence(error))
    if not isinstance(error, Exception):
        raise error
    traceback.print_exception(error, file=sys.stderr)
    return Outcome(folder, FAILED, f"{type(error).__name__}: {_sentence(error)}")


def _sentence(error: BaseException) -> str:
    text = " ".join(str(error).partition(" Go on with:")[0].split())
    return text if len(text) <= 400 else f"{text[:400]}…"
