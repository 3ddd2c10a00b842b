"""Constrained (safe) reinforcement learning in JAX.

    import apdo
    result = apdo.train("apdo", "point-gather", seeds=8, k_adj=5)
    action = result.policy(observation)

`result.policy` is the best policy that training has found, `result.newest` has the policies after the last epoch, and
`result.metrics` has an array [seeds, epochs] for each metric. `apdo.load(RUN)` loads a policy from a run folder.
`apdo.estimate_multipliers(RUN)` estimates what each limit costs, from a run's buffer or from logged data
(`apdo.datasets`).
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
    from apdo.sweeps.sweep import SweepResult

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
    """Import `Settings` when it is first used, because that imports JAX."""
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
    """Train an algorithm on an environment, and return the learned policies and the metrics.

    `algorithm` is a name, a module or class of your own, or the file that has it ("mine.py:name"). See
    docs/own-algorithm.md.

    `environment` is one of these:

    - a name, or a Gymnasium id;
    - a Gymnasium environment, or a function that makes one;
    - an environment of your own in JAX: its class, an instance, or its file ("mine.py:Tank");
    - a MuJoCo model with its reward and cost (`apdo.envs.mujoco_threads.MujocoTask`).

    `costs` is for environments that are not written in JAX. It is a function of (observation, action, next observation,
    info), an expression such as "abs(obs[2]) > 4", or a list of both. Without it, the costs are those that the
    environment reports in `info["cost"]` or `info["costs"]`. `limits=25` limits the total of an episode.

    Options have the names of the command line, with "_" for "-" and "__" for ".", as in
    `epochs=50, primal="ppo", primal__clip=0.1`. They can also be given as typed objects, which an editor completes and
    a type checker checks:
    `settings=apdo.Settings(epochs=50), config=pdo.Config(primal=ppo_steps.Ppo(clip=0.1))`. The class of `config` is
    in the algorithm's module. A field that a typed object leaves at its default may still be set by the `preset` and by
    what suits the task. Options that are given by name override all of these.

    `out` is the run folder (default: `runs/ALGORITHM-ENVIRONMENT-TIME`). It has the same files as one from the command
    line. With `resume=True`, the run in `out` continues if there is one; otherwise it starts. `quiet` switches the
    display off. `callbacks` are called after each epoch, and may stop the run (`apdo.experiment.callbacks`).
    `start_from` is the folder of an earlier run, or a policy of `apdo.load`: training then starts from this policy
    instead of a random one (docs/policies.md).

    Ctrl-C (in a notebook, the stop button) ends the run after the current epoch, saves it, and returns the result so
    far; `result.interrupted` then says how to continue. SIGTERM also saves the run, and raises `apdo.Interrupted`.
    """
    from apdo import algorithms, envs
    from apdo.experiment import runner, warm_start
    from apdo.experiment import settings as experiments

    name, task, given = envs.of_object(environment, costs)
    given |= {} if start_from is None else {"start_from": warm_start.name_of(start_from)}
    known = algorithms.of_object(algorithm)
    typed = experiments.typed(known, config, settings)
    changes = typed | given | {name.replace("__", "."): value for name, value in options.items()}
    experiment = experiments.make_experiment(known, name, changes, preset, task)
    if resume:
        if out is None:
            raise InvalidInput("resume=True needs `out`, the folder of the run to go on with.")
        return _result_even_if_interrupted(
            lambda: runner.train(experiment, Path(out), quiet=quiet, callbacks=callbacks)
        )
    folder = None if out is None else Path(out)
    return _result_even_if_interrupted(lambda: runner.run(experiment, folder, quiet=quiet, callbacks=callbacks))


def _result_even_if_interrupted(training: "Callable[[], Result]") -> "Result":
    """The result of a training. If Ctrl-C stopped the training, this is the result so far."""
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
    """Continue an interrupted run from its folder, and return its result.

    `epochs` makes the run longer than planned. `callbacks` and Ctrl-C work as in `apdo.train`.

    A run whose algorithm, environment or costs were Python objects, and not in a file, needs these objects again.
    """
    from apdo import algorithms, envs
    from apdo.experiment import runner

    if algorithm is not None:
        algorithms.of_object(algorithm)
    task = None if environment is None else envs.of_object(environment, costs)[1]
    return _result_even_if_interrupted(lambda: runner.resume(Path(run), quiet, epochs, task=task, callbacks=callbacks))


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
) -> "SweepResult":
    """Train many runs: every combination of algorithms, environments, options and seeds that the plan asks for.

        apdo.sweep({"algorithms": ["pdo"], "environments": ["point-gather"], "seeds": 4,
                    "grid": {"limits": [0.1, 0.2]}, "options": {"epochs": 20}}, out="runs/limits")

    `plan` is a TOML file, or a dictionary with the same entries (docs/sweeps.md). `out` is the sweep's folder. Runs
    that are finished there are not run again, and runs that failed only with `retry=True`.

    `jobs` is the number of runs at once (default: what suits the machine). With `together=True`, runs that differ only
    in numbers share one program (default: on an accelerator). `on="ray"` uses Ray, on the cluster at `address` if
    given; `on="slurm"` uses Slurm. `watch` switches TensorBoard or Weights & Biases on, or says when a run stops early
    (`apdo.experiment.mirrors.Watch`).

    `result.rows` is the table of results, with one row for each setting and seed. `result.failures` has the reason for
    each run that failed.
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
    """Play fresh episodes with a policy of a run, and estimate its return and its costs.

    The result has means with 95 % confidence intervals. For each limit it says whether the mean cost is within it: yes
    or no, each with 95 % confidence, or undecided.

    `run` is a run folder, or the result of `apdo.train`. The policy is the one that `apdo.load` returns for the same
    `seed` and `newest`. `deterministic` plays without exploration. `fresh` is the number of a set of episodes: the same
    number gives the same episodes. A run whose environment or costs were Python objects, and not in a file, needs these
    objects again if `run` is a folder.
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
    """Record a few fresh episodes as a video, with the return and the costs written above the picture.

    `out` is a .gif file, or an .mp4 file if ffmpeg is installed. The other arguments are those of `apdo.evaluate`. The
    library's own tasks can be drawn, and so can any Gymnasium environment that renders itself
    (`render_mode="rgb_array"`). The function returns the path of the video.
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
    """Load the best policy from a run folder; `policy.about` says which one it is.

    `seed` is a seed of the run (default: its first). The best policy is the one with the highest return among those
    that are known to keep the limits, judged by the samples of training. With `newest=True`, it is the policy after the
    last epoch.
    """
    from apdo.experiment import evaluation

    return evaluation.load(run, seed, newest=newest)


def estimate_multipliers(
    source: "str | Path | Dataset", *, run_seed: int | None = None, quiet: bool = True, **options: object
) -> "MultiplierEstimate":
    """Estimate the optimal multipliers λ* from logged data alone: what one more unit of each limit is worth in return.

    `source` is one of these:

    - the folder of a run whose algorithm keeps a buffer (apdo, pd-ddpg, sac-lag); `run_seed` chooses one of its seeds;
    - a file of logged transitions;
    - an `apdo.datasets.Dataset`.

    Options have the names of `apdo dual`, with "_" for "-" and "__" for ".":
    `limits=0.2, members=8, iterations=30_000, seed=0, learner__cloning=0.05`.

    The result has the estimates, the range that the learners span, and the outcome of several checks. If the data
    cannot support an answer, `result.supported` is false and `result.unsupported` gives the reasons.
    """
    from apdo.experiment import multipliers

    changes = {name.replace("__", "."): value for name, value in options.items()}
    return multipliers.estimate(source, changes, run_seed=run_seed, quiet=quiet)
