"""Constrained (safe) reinforcement learning in JAX.

    import apdo
    result = apdo.train("apdo", "point-gather", seeds=8, k_adj=5)
    action = result.policy(observation)

`result.metrics` holds arrays by name, [seeds, epochs]; `apdo.load(RUN)` gives a policy back from a run folder.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from apdo.errors import InvalidInput, NumericalFailure, StorageFailure

if TYPE_CHECKING:
    from apdo.experiment.runner import Result
    from apdo.policy import Policy

__version__ = "0.1.0"
__all__ = ["InvalidInput", "NumericalFailure", "StorageFailure", "__version__", "load", "resume", "train"]


def train(
    algorithm: str,
    environment: str,
    *,
    preset: str | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
    resume: bool = False,
    **options: object,
) -> "Result":
    """Train and return the learned policies and the metrics; the run folder is the same that the command line makes.

    With `resume`, the run that is in `out` goes on, if there is one. Options have the command line's names, with "_"
    for "-" and "__" for ".":
    `epochs=50, primal="ppo", primal__clip=0.1`.
    """
    from apdo.experiment import runner, settings

    changes = {name.replace("__", "."): value for name, value in options.items()}
    experiment = settings.specify(algorithm, environment, changes, preset)
    if resume:
        if out is None:
            raise InvalidInput("resume=True needs `out`, the folder of the run to go on with.")
        return runner.train(experiment, Path(out), quiet=quiet)
    return runner.run(experiment, None if out is None else Path(out), quiet=quiet)


def resume(run: str | Path, *, quiet: bool = False, epochs: int | None = None) -> "Result":
    """Go on with an interrupted run, for more epochs than planned if `epochs` says so."""
    from apdo.experiment import runner

    return runner.resume(Path(run), quiet, epochs)


def load(run: str | Path, seed: int | None = None) -> "Policy":
    """The policy that a run has learned, of its first seed unless another is named."""
    from apdo.experiment import evaluation

    return evaluation.load(run, seed)
