"""Functions that a run calls after each epoch, and what they are told.

    def watch(epoch):
        if epoch.metrics["return"].mean() > 12.0:
            return "good enough"

    apdo.train("pdo", "point-gather", callbacks=[watch])

A callback that returns a text stops the run, with that text as the reason; anything else lets it go on. The run is
saved first, with status "stopped", and `apdo resume` goes on with it. What is asked of the past stands in `history`, so
that a run that was interrupted and goes on stops where it would have stopped.

A callback with `patient = True` may hear of an epoch some epochs later, which leaves several epochs to one call of the
compiled program; one with a method `close` is closed with the run.
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
    """A run after one of its epochs, for S seeds."""

    epoch: int
    """How many epochs are done."""
    epochs: int
    """How many there are to be."""
    seeds: Sequence[int]
    metrics: Mapping[str, np.ndarray]
    """Of this epoch, by name, [S] or [S, M]."""
    history: Mapping[str, np.ndarray]
    """Of all epochs so far, [E, S] or [E, S, M]."""
    limits: Sequence[float]
    batch: int
    folder: Path
    """The run's."""
    title: str
    training: loop.Training
    state: Callable[[], loop.State] | None
    """The run's state, where it is at hand: not for every epoch of a patient callback."""

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
        """Fresh episodes of each seed's newest policy."""
        from apdo.experiment import evaluation

        found = self.policies()
        return [evaluation.evaluate(policy, self.training, episodes, deterministic, self.epoch) for policy in found]


Callback = Callable[[Epoch], Any]


def stop_within_limits(epochs: int) -> Callback:
    """Stop when every cost of every seed has been within its limit for so many epochs on end."""
    if epochs < 1:
        raise InvalidInput(f"a run cannot be within its limits for {epochs} epochs; say at least 1.")

    def look(report: Epoch) -> str | None:
        cost = report.history["cost"][-epochs:]
        if len(cost) == epochs and (cost <= np.asarray(report.limits)).all():
            return f"within the limits for {epochs} epochs"
        return None

    return look


def stop_without_progress(epochs: int, by: float = 0.0) -> Callback:
    """Stop when the mean return over seeds has not risen above its best, by more than `by`, for so many epochs."""
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
    """Play fresh episodes with the newest policies after every so many epochs, and hand what came out to `tell`.

    What `tell` returns is the callback's answer: a text stops the run.
    """

    def look(report: Epoch) -> object:
        return tell(report, report.evaluate(episodes, deterministic)) if report.epoch % epochs == 0 else None

    return look
