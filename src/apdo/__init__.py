"""Constrained (safe) reinforcement learning in JAX.

    import apdo
    result = apdo.train("apdo", "point-gather", seeds=8, k_adj=5)
    action = result.policy(observation)

`result.metrics` holds arrays by name, [seeds, epochs]; `apdo.load(RUN)` gives a policy back from a run folder.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from apdo.errors import InvalidInput, NumericalFailure

if TYPE_CHECKING:
    from apdo.experiment.runner import Result
    from apdo.policy import Policy

__version__ = "0.1.0"
__all__ = ["InvalidInput", "NumericalFailure", "__version__", "load", "train"]


def train(
    algorithm: str,
    environment: str,
    *,
    preset: str | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
    **options: object,
) -> "Result":
    """Train and return the learned policies and the metrics; the run folder is the same that the command line makes.

    Options have the command line's names, with "_" for "-" and "__" for ".":
    `epochs=50, primal="ppo", primal__clip=0.1`.
    """
    from apdo.experiment import runner, settings

    changes = {name.replace("__", "."): value for name, value in options.items()}
    experiment = settings.specify(algorithm, environment, changes, preset)
    return runner.run(experiment, None if out is None else Path(out), quiet=quiet)


def load(run: str | Path, seed: int | None = None) -> "Policy":
    """The policy that a run has learned, of its first seed unless another is named."""
    from apdo.experiment import evaluation

    return evaluation.load(run, seed)
