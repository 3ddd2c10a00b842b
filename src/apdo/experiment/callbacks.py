"""Functions that a run calls after each epoch.

    def watch(epoch):
        if epoch.metrics["return"].mean() > 12.0:
            return "good enough"

    apdo.train("pdo", "point-gather", callbacks=[watch])

A callback that returns a text stops the run, with the text as the reason. With any other result the run continues. A
run that is stopped is saved first, with status "stopped", and `apdo resume` continues it. A callback should look at
past epochs in `history` instead of remembering them. Then a run that was interrupted and continued stops at the same
epoch as it would have without the interruption.

A callback with `patient = True` may be called some epochs later, so that one call of the compiled program can compute
several epochs. If a callback has a method `close`, it is called when the run ends.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from apdo import loop
from apdo.errors import InvalidInput
from apdo.experiment import chosen
from apdo.policy import Policy

if TYPE_CHECKING:
    from apdo.experiment.evaluation import Evaluation


@dataclasses.dataclass(frozen=True, eq=False)
class Epoch:
    """The state of a run after one of its epochs, for S seeds."""

    epoch: int
    """How many epochs are done."""
    epochs: int
    """How many epochs are planned."""
    seeds: Sequence[int]
    metrics: Mapping[str, np.ndarray]
    """The metrics of this epoch, by name, [S] or [S, M]."""
    history: Mapping[str, np.ndarray]
    """The metrics of all epochs so far, [E, S] or [E, S, M]."""
    limits: Sequence[float]
    batch: int
    folder: Path
    """The run's folder."""
    title: str
    training: loop.Training
    state: Callable[[], loop.State] | None
    """Returns the run's state; None for the epochs of which a patient callback hears late."""

    @property
    def samples(self) -> int:
        """Environment samples that each seed has taken."""
        return self.epoch * self.batch

    def policies(self) -> list[Policy]:
        """The newest policy of each seed."""
        if self.state is None:
            raise InvalidInput("a callback with patient = True has no policies: some epochs are over when it hears.")
        return chosen.policies(self.training, list(self.seeds), self.state(), newest=True)

    def evaluate(self, episodes: int = 100, deterministic: bool = False) -> "list[Evaluation]":
        """Evaluate each seed's newest policy on fresh episodes."""
        from apdo.experiment import evaluation

        found = self.policies()
        return [evaluation.evaluate(policy, self.training, episodes, deterministic, self.epoch) for policy in found]


Callback = Callable[[Epoch], Any]


def stop_within_limits(epochs: int) -> Callback:
    """Stop when every cost of every seed has been within its limit for this many epochs in a row."""
    if epochs < 1:
        raise InvalidInput(f"a run cannot be within its limits for {epochs} epochs; say at least 1.")

    def look(report: Epoch) -> str | None:
        cost = report.history["cost"][-epochs:]
        if len(cost) == epochs and (cost <= np.asarray(report.limits)).all():
            return f"within the limits for {epochs} epochs"
        return None

    return look


def stop_without_progress(epochs: int, by: float = 0.0) -> Callback:
    """Stop when the mean return over seeds has not exceeded its best by more than `by` for this many epochs."""
    if epochs < 1:
        raise InvalidInput(f"progress cannot be waited for during {epochs} epochs; say at least 1.")

    def look(report: Epoch) -> str | None:
        returned = report.history["return"].mean(axis=1)
        if len(returned) > epochs and returned[-epochs:].max() <= returned[:-epochs].max() + by:
            return f"no better return for {epochs} epochs"
        return None

    return look


def evaluate_every(
    epochs: int, tell: "Callable[[Epoch, list[Evaluation]], Any]", episodes: int = 100, deterministic: bool = False
) -> Callback:
    """Evaluate the newest policies on fresh episodes after every so many epochs, and call `tell` with the results.

    What `tell` returns is what the callback returns, so a text stops the run.
    """

    def look(report: Epoch) -> object:
        return tell(report, report.evaluate(episodes, deterministic)) if report.epoch % epochs == 0 else None

    return look
