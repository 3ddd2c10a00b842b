"""Constrained (safe) reinforcement learning in JAX.

    import apdo
    result = apdo.train("apdo", "point-gather", seeds=8, k_adj=5)
    action = result.policy(observation)

`result.policy` is the best policy that training has met, `result.newest` holds the last ones, and `result.metrics`
arrays by name, [seeds, epochs]; `apdo.load(RUN)` gives a policy back from a run folder.
`apdo.estimate_multipliers(RUN)` says what each limit costs, from a run's buffer or from logged data (`apdo.datasets`).
"""

from pathlib import Path
from typing import TYPE_CHECKING

from apdo.errors import EnvironmentFailure, InvalidInput, NumericalFailure, StorageFailure

if TYPE_CHECKING:
    from apdo.datasets import Dataset
    from apdo.experiment.dual_findings import MultiplierEstimate
    from apdo.experiment.runner import Result
    from apdo.policy import Policy

__version__ = "0.1.0"
__all__ = [
    "EnvironmentFailure",
    "InvalidInput",
    "NumericalFailure",
    "StorageFailure",
    "__version__",
    "estimate_multipliers",
    "load",
    "resume",
    "train",
]


def train(
    algorithm: str,
    environment: object,
    *,
    costs: object = None,
    preset: str | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
    resume: bool = False,
    **options: object,
) -> "Result":
    """Train and return the learned policies and the metrics; the run folder is the same that the command line makes.

    `environment` is a name, a Gymnasium id, a Gymnasium environment, a function that makes one, or a MuJoCo model
    with its reward and cost (`apdo.envs.mujoco_threads.MujocoTask`); `costs` are functions of (observation, action,
    next observation, info), expressions such as "abs(obs[2]) > 4", or both in a list; without any, `info["cost"]` or
    `info["costs"]` count. `limits=25` limits the total of an episode.

    With `resume`, the run that is in `out` goes on, if there is one. Options have the command line's names, with "_"
    for "-" and "__" for ".":
    `epochs=50, primal="ppo", primal__clip=0.1`.
    """
    from apdo import envs
    from apdo.experiment import runner, settings

    name, task, given = envs.of_object(environment, costs)
    changes = given | {name.replace("__", "."): value for name, value in options.items()}
    experiment = settings.specify(algorithm, name, changes, preset, task)
    if resume:
        if out is None:
            raise InvalidInput("resume=True needs `out`, the folder of the run to go on with.")
        return runner.train(experiment, Path(out), quiet=quiet)
    return runner.run(experiment, None if out is None else Path(out), quiet=quiet)


def resume(
    run: str | Path,
    *,
    quiet: bool = False,
    epochs: int | None = None,
    environment: object = None,
    costs: object = None,
) -> "Result":
    """Go on with an interrupted run, for more epochs than planned if `epochs` says so.

    A run whose environment or costs were Python objects needs them again.
    """
    from apdo import envs
    from apdo.experiment import runner

    task = None if environment is None else envs.of_object(environment, costs)[1]
    return runner.resume(Path(run), quiet, epochs, task=task)


def load(run: str | Path, seed: int | None = None, *, newest: bool = False) -> "Policy":
    """The best policy that a run has met, of its first seed unless another is named; `policy.about` says which it is.

    The best has the highest return of those that are known to keep the limits, from training's own samples. With
    `newest` it is the last one.
    """
    from apdo.experiment import evaluation

    return evaluation.load(run, seed, newest=newest)


def estimate_multipliers(
    source: "str | Path | Dataset", *, run_seed: int | None = None, quiet: bool = True, **options: object
) -> "MultiplierEstimate":
    """The optimal multipliers λ* as far as logged data tell, with an interval, diagnostics and a verdict.

    `source` is the folder of a run whose algorithm keeps a buffer (apdo, pd-ddpg, sac-lag; `run_seed` says of which of
    its seeds), a file of logged transitions, or an `apdo.datasets.Dataset`. Options have the names of `apdo dual`, with
    "_" for "-" and "__" for ".": `limits=0.2, members=8, iterations=30_000, seed=0, learner__cloning=0.05`.

    Where the data cannot support an answer, `result.supported` is false and `result.unsupported` says why.
    """
    from apdo.experiment import multipliers

    changes = {name.replace("__", "."): value for name, value in options.items()}
    return multipliers.estimate(source, changes, run_seed=run_seed, quiet=quiet)
