"""The result of a run, for callers in Python."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from apdo import loop, own
from apdo.experiment import chosen, summary
from apdo.experiment.history import History
from apdo.experiment.settings import Experiment
from apdo.policy import Policy


@dataclasses.dataclass(frozen=True, repr=False)
class Result:
    """The result of a run: its policies, its metrics and its folder."""

    path: Path
    seeds: list[int]
    policies: list[Policy]
    """The best policy of each seed; `policy.about` says which it is."""
    newest: list[Policy]
    """The policy of each seed after the last epoch."""
    best: list[chosen.BestPolicy]
    """What training measured of each seed's best policy; empty if the algorithm keeps no best policy."""
    metrics: dict[str, np.ndarray]
    """The metrics by name, [S, E] or [S, E, M]."""
    title: str = ""
    """The algorithm and the environment."""
    limits: tuple[float, ...] = ()
    cost_names: tuple[str, ...] = ()
    interrupted: str = ""
    """If the run was interrupted: after how many epochs, and how to continue it. Otherwise empty."""
    task: type[Any] | None = None
    """The environment's class, which a policy needs to be played again if the environment is in no file."""

    @property
    def policy(self) -> Policy:
        """The best policy of the first seed."""
        return self.policies[0]

    def __repr__(self) -> str:
        return "\n".join(summary.lines(self))

    def _repr_html_(self) -> str:
        """The same as a table for notebooks, by seed."""
        return summary.table(self)


def of(
    folder: Path,
    experiment: Experiment,
    training: loop.Training,
    seeds: list[int],
    history: History,
    state: loop.State,
    interrupted: str = "",
) -> Result:
    """Make a run's result from its metrics and its last state."""
    return Result(
        path=folder,
        seeds=seeds,
        policies=chosen.policies(training, seeds, state),
        newest=chosen.policies(training, seeds, state, newest=True),
        best=chosen.best_policies(training, seeds, state),
        metrics=history.by_seed(),
        title=f"{own.short(experiment.algorithm)} on {own.short(experiment.environment)}",
        limits=tuple(training.problem.limits),
        cost_names=tuple(training.environment.cost_names),
        interrupted=interrupted,
        task=type(experiment.environment_config),
    )
