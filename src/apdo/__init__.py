"""Constrained (safe) reinforcement learning in JAX.

    import apdo
    result = apdo.train("apdo", "point-gather", seeds=8, k_adj=5)
    action = result.policy(observation)

`result.policy` is the best policy that training has met, `result.newest` holds the last ones, and `result.metrics`
arrays by name, [seeds, epochs]; `apdo.load(RUN)` gives a policy back from a run folder.
`apdo.estimate_multipliers(RUN)` says what each limit costs, from a run's buffer or from logged data (`apdo.datasets`).
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apdo.errors import EnvironmentFailure, Interrupted, InvalidInput, NumericalFailure, StorageFailure

if TYPE_CHECKING:
    from apdo.datasets import Dataset
    from apdo.experiment.callbacks import Callback
    from apdo.experiment.dual_findings import MultiplierEstimate
    from apdo.experiment.evaluation import Evaluation
    from apdo.experiment.mirrors import Watch
    from apdo.experiment.result import Result
    from apdo.experiment.settings import Settings
    from apdo.options import Configuration
    from apdo.policy import Policy
    from apdo.sweeps.sweep import Found

__version__ = "0.1.0"
__all__ = [
    "EnvironmentFailure",
    "Interrupted",
    "InvalidInput",
    "NumericalFailure",
    "Settings",
    "StorageFailure",
    "__version__",
    "estimate_multipliers",
    "evaluate",
    "film",
    "load",
    "resume",
    "sweep",
    "train",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    """`Settings`, when it is asked for: it brings JAX along."""
    if name == "Settings":
        from apdo.experiment.settings import Settings

        return Settings
    raise AttributeError(f"module 'apdo' has no attribute {name!r}")


def train(
    algorithm: object,
    environment: object,
    *,
    costs: object = None,
    config: "Configuration | None" = None,
    settings: "Settings | None" = None,
    preset: str | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
    resume: bool = False,
    callbacks: "Sequence[Callback]" = (),
    start_from: "str | Path | Policy | None" = None,
    **options: object,
) -> "Result":
    """Train and return the learned policies and the metrics; the run folder is the same that the command line makes.

    `algorithm` is a name, or a module or class of your own, or its file ("mine.py:name"); docs/own-algorithm.md builds
    one. `environment` is a name, a Gymnasium id, a Gymnasium environment, a function that makes one, an environment of
    your own in JAX (its class, an instance, or "mine.py:Tank"), or a MuJoCo model with its reward and cost
    (`apdo.envs.mujoco_threads.MujocoTask`); `costs` are functions of (observation, action,
    next observation, info), expressions such as "abs(obs[2]) > 4", or both in a list; without any, `info["cost"]` or
    `info["costs"]` count. `limits=25` limits the total of an episode.

    With `resume`, the run that is in `out` goes on, if there is one. `callbacks` are called after each epoch, and may
    stop the run (`apdo.experiment.callbacks`). `start_from` is the folder of an earlier run, or a policy of
    `apdo.load`: training starts from it instead of a fresh policy (docs/policies.md).
    Options have the command line's names, with "_" for "-" and "__" for ".":
    `epochs=50, primal="ppo", primal__clip=0.1`. The same as typed objects, which an editor completes and a type checker
    checks: `settings=apdo.Settings(epochs=50), config=pdo.Config(primal=primal_steps.Ppo(clip=0.1))`, where `config` is
    the algorithm module's. What they leave at its default is left to the preset and to what suits the task; options
    that are named count before them.

    Ctrl-C (in a notebook, the stop button) ends the run after its epoch, saves it, and returns what there is:
    `result.interrupted` then says how to go on. SIGTERM saves, too, and raises `apdo.Interrupted`.
    """
    from apdo import algorithms, envs
    from apdo.experiment import runner, warm_start
    from apdo.experiment import settings as experiments

    name, task, given = envs.of_object(environment, costs)
    given |= {} if start_from is None else {"start_from": warm_start.name_of(start_from)}
    known = algorithms.of_object(algorithm)
    typed = experiments.typed(known, config, settings)
    changes = typed | given | {name.replace("__", "."): value for name, value in options.items()}
    experiment = experiments.specify(known, name, changes, preset, task)
    if resume:
        if out is None:
            raise InvalidInput("resume=True needs `out`, the folder of the run to go on with.")
        return _or_what_there_is(lambda: runner.train(experiment, Path(out), quiet=quiet, callbacks=callbacks))
    folder = None if out is None else Path(out)
    return _or_what_there_is(lambda: runner.run(experiment, folder, quiet=quiet, callbacks=callbacks))


def _or_what_there_is(training: "Callable[[], Result]") -> "Result":
    """The result of a training, also of one that Ctrl-C has stopped."""
    try:
        return training()
    except Interrupted as stopped:
        if stopped.result is None:
            raise
        print(f"apdo: {stopped}", file=sys.stderr)
        return stopped.result


def resume(
    run: str | Path,
    *,
    quiet: bool = False,
    epochs: int | None = None,
    algorithm: object = None,
    environment: object = None,
    costs: object = None,
    callbacks: "Sequence[Callback]" = (),
) -> "Result":
    """Go on with an interrupted run, for more epochs than planned if `epochs` says so; Ctrl-C as in `apdo.train`.

    A run whose algorithm, environment or costs were Python objects that no file has needs them again.
    """
    from apdo import algorithms, envs
    from apdo.experiment import runner

    if algorithm is not None:
        algorithms.of_object(algorithm)
    task = None if environment is None else envs.of_object(environment, costs)[1]
    return _or_what_there_is(lambda: runner.resume(Path(run), quiet, epochs, task=task, callbacks=callbacks))


def sweep(
    plan: "str | Path | Mapping[str, Any]",
    *,
    out: str | Path | None = None,
    jobs: int | None = None,
    together: bool | None = None,
    retry: bool = False,
    quiet: bool = False,
    watch: "Watch | None" = None,
    on: str = "local",
    address: str | None = None,
) -> "Found":
    """Many runs as one: what a TOML file, or a dictionary like one, asks for (docs/sweeps.md).

        apdo.sweep({"algorithms": ["pdo"], "environments": ["point-gather"], "seeds": 4,
                    "grid": {"limits": [0.1, 0.2]}, "options": {"epochs": 20}}, out="runs/limits")

    What is finished in `out` is not run again. `jobs` runs are at work at once; with `together`, those that differ in
    numbers only share a program. `on="ray"` has Ray do it, on the cluster at `address` if one is named, and
    `on="slurm"` Slurm. `watch` names TensorBoard, Weights & Biases or when to stop. `result.rows` is the table with a
    line for each setting and seed, `result.failures` says of each run that failed why.
    """
    from apdo.experiment.mirrors import Watch
    from apdo.sweeps import plan as plans
    from apdo.sweeps import sweep as sweeps

    file = None if isinstance(plan, Mapping) else Path(plan)
    wanted = plans.parse(plan) if isinstance(plan, Mapping) else plans.read(Path(plan))
    where = out or wanted.out
    if where is None and file is None:
        raise InvalidInput("a sweep needs `out`, the folder that it goes into.")
    folder = Path(where) if where else sweeps.default_out(file)
    again = f"apdo.sweep(..., out={str(folder)!r})" if file is None else f"apdo sweep {file} --out {folder}"
    options = sweeps.Options(folder, jobs, together, retry, quiet, again, watch or Watch())
    return sweeps.run(wanted, options, sweeps.executor(folder, on, address=address))


def evaluate(
    run: "str | Path | Result",
    seed: int | None = None,
    *,
    episodes: int = 1000,
    deterministic: bool = False,
    newest: bool = False,
    fresh: int = 0,
    environment: object = None,
    costs: object = None,
) -> "Evaluation":
    """What a policy of a run earns and costs on fresh episodes, with 95 % intervals and a verdict for each limit.

    `run` is a run folder or what `apdo.train` returned, and the policy is the one that `apdo.load` gives. `fresh`
    numbers the episodes: the same number, the same episodes. The folder of a run whose environment or costs were Python
    objects that no file has needs them again.
    """
    from apdo import envs
    from apdo.experiment import evaluation

    task = getattr(run, "task", None) if environment is None else envs.of_object(environment, costs)[1]
    policy, training = evaluation.load_to_play(_folder(run), seed, newest=newest, task=task)
    return evaluation.evaluate(policy, training, episodes, deterministic, fresh)


def film(
    run: "str | Path | Result",
    out: str | Path,
    seed: int | None = None,
    *,
    deterministic: bool = False,
    newest: bool = False,
    fresh: int = 0,
    environment: object = None,
    costs: object = None,
) -> Path:
    """A film of a few fresh episodes, a .gif, or an .mp4 where ffmpeg is there, with return and costs written above.

    Arguments are those of `apdo.evaluate`. The library's own tasks are drawn, and so is any Gymnasium environment that
    draws itself (`render_mode="rgb_array"`).
    """
    from apdo import envs
    from apdo.experiment import evaluation
    from apdo.experiment import film as films

    task = getattr(run, "task", None) if environment is None else envs.of_object(environment, costs)[1]
    policy, training = evaluation.load_to_play(_folder(run), seed, newest=newest, task=task)
    films.film(policy, training, Path(out), deterministic, fresh)
    return Path(out)


def _folder(run: "str | Path | Result") -> Path:
    return Path(run) if isinstance(run, str | Path) else run.path


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
    """The optimal multipliers λ* as far as logged data tell, with the learners' spread, diagnostics and a verdict.

    `source` is the folder of a run whose algorithm keeps a buffer (apdo, pd-ddpg, sac-lag; `run_seed` says of which of
    its seeds), a file of logged transitions, or an `apdo.datasets.Dataset`. Options have the names of `apdo dual`, with
    "_" for "-" and "__" for ".": `limits=0.2, members=8, iterations=30_000, seed=0, learner__cloning=0.05`.

    Where the data cannot support an answer, `result.supported` is false and `result.unsupported` says why.
    """
    from apdo.experiment import multipliers

    changes = {name.replace("__", "."): value for name, value in options.items()}
    return multipliers.estimate(source, changes, run_seed=run_seed, quiet=quiet)
