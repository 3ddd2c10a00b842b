"""Runs an experiment: compiled chunks of epochs, records, checkpoints, progress."""

import dataclasses
import datetime
import time
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from apdo import algorithms, loop
from apdo.algorithms.contract import Algorithm
from apdo.errors import NumericalFailure
from apdo.experiment import checkpoint, records
from apdo.experiment.compilation import keep_compiled_programs
from apdo.experiment.progress import Progress
from apdo.experiment.settings import Experiment
from apdo.policy import Policy

REPORT_EVERY = 0.5
"""Seconds of work between two looks at the progress."""


@dataclasses.dataclass(frozen=True)
class Result:
    """What a run leaves behind."""

    path: Path
    seeds: list[int]
    policies: list[Policy]
    """The learned policy of each seed."""
    metrics: dict[str, np.ndarray]
    """By name, [S, E] or [S, E, M]."""

    @property
    def policy(self) -> Policy:
        """The learned policy of the first seed."""
        return self.policies[0]


def training_of(experiment: Experiment) -> loop.Training:
    """The experiment as the loop needs it."""
    steps, environments = experiment.shape()
    return loop.Training(
        algorithm=cast(Algorithm, algorithms.find(experiment.algorithm)),
        config=experiment.algorithm_config,
        problem=experiment.problem(),
        environment=experiment.environment_config,
        steps=steps,
        environments=environments,
        side_by_side=loop.suits_side_by_side(),
    )


def run(experiment: Experiment, folder: Path | None = None, quiet: bool = False) -> Result:
    """Train from the first epoch to the last, in a new run folder."""
    training = training_of(experiment)
    seeds = [experiment.settings.seed + i for i in range(experiment.settings.seeds)]
    folder = folder or _default_folder(experiment)
    record = records.Records(folder, describe(experiment, training, seeds))
    keep_compiled_programs()
    began = time.perf_counter()
    title = f"{experiment.algorithm} on {experiment.environment}"
    with Progress(title, experiment.settings.epochs, training.problem.limits, quiet=quiet) as progress:
        runner = _Runner(experiment, training, seeds, record, progress)
        try:
            result = runner.train()
        except NumericalFailure:
            record.close("failed", finished=_now())
            raise
        except KeyboardInterrupt:
            record.close("interrupted", finished=_now())
            raise
    record.close("finished", finished=_now(), seconds=round(time.perf_counter() - began, 3))
    return result


def describe(experiment: Experiment, training: loop.Training, seeds: list[int]) -> dict[str, Any]:
    """The run as `run.json` tells it."""
    problem, device = training.problem, jax.devices()[0]
    return {
        "algorithm": experiment.algorithm,
        "environment": experiment.environment,
        "config": experiment.describe(),
        "problem": {
            "limits": list(problem.limits),
            "cost_names": list(training.environment.cost_names),
            "discount": problem.discount,
            "cost_discount": problem.cost_discount,
            "horizon": problem.horizon,
        },
        "batch": problem.batch,
        "epochs": experiment.settings.epochs,
        "seeds": seeds,
        "adjustment_epoch": getattr(experiment.algorithm_config, "k_adj", None),
        "versions": records.versions(),
        "device": f"{device.platform}: {device.device_kind}",
        "commit": records.commit(),
        "started": _now(),
        "note": experiment.note,
    }


class _Runner:
    """One run from its first epoch to its last."""

    def __init__(
        self,
        experiment: Experiment,
        training: loop.Training,
        seeds: list[int],
        record: records.Records,
        progress: Progress,
    ) -> None:
        self.experiment, self.training, self.seeds = experiment, training, seeds
        self.record, self.progress = record, progress
        self.advance = loop.make_advance(training)
        self.adjuster = loop.Adjuster(training)
        self.history: list[dict[str, np.ndarray]] = []
        self.epoch_seconds = 0.0
        """What the latest epochs took, each."""

    def train(self) -> Result:
        settings = self.experiment.settings
        state = loop.start(self.training, self.seeds)
        self.progress.message("compiling, or loading what an earlier run compiled")
        epoch = 0
        while epoch < settings.epochs:
            began = time.perf_counter()
            chunk = jax.block_until_ready(self.advance(state, jnp.asarray(self._count(epoch), dtype=jnp.int32)))
            state, done = chunk.state, int(chunk.done)
            elapsed = time.perf_counter() - began
            metrics = {name: np.asarray(value)[:done] for name, value in chunk.metrics.items()}
            rows = [{name: value[i] for name, value in metrics.items()} for i in range(done)]
            epoch += done
            if rows and self.adjuster.due(epoch - 1):
                state, adjusted = self._adjust(state)
                rows[-1]["adjusted_multiplier"] = adjusted
            self._note(epoch - done, rows, elapsed)
            self._stop_on_failure(chunk, state)
            if epoch % settings.checkpoint_every == 0 or epoch == settings.epochs:
                checkpoint.save(checkpoint.path_of(self.record.folder, epoch), state, epoch)
        return self._result(state)

    def _count(self, epoch: int) -> int:
        """How many epochs to run in one call: about `REPORT_EVERY` seconds of them, none past a place to stop at."""
        settings = self.experiment.settings
        stop = min(settings.epochs, (epoch // settings.checkpoint_every + 1) * settings.checkpoint_every)
        due = next((k for k in range(epoch, stop) if self.adjuster.due(k)), stop)
        fitting = int(REPORT_EVERY / self.epoch_seconds) if self.epoch_seconds else 1
        return max(1, min(fitting, loop.CHUNK, stop - epoch, due + 1 - epoch))

    def _note(self, epoch: int, rows: list[dict[str, np.ndarray]], elapsed: float) -> None:
        if not rows:
            return
        # The first call compiles, and says nothing about the speed of the rest.
        first = not self.history
        each = elapsed / len(rows)
        self.epoch_seconds = 0.0 if first else each
        batch = self.training.problem.batch
        for k, row in enumerate(rows, start=epoch):
            self.record.append(records.rows(row, k, self.seeds, (k + 1) * batch, each))
        self.history += rows
        done = epoch + len(rows)
        left = None if first else (self.experiment.settings.epochs - done) * each
        means = {name: np.mean(value, axis=0).tolist() for name, value in rows[-1].items()}
        self.progress.epoch(done, means, len(self.seeds) * batch / each, left)

    def _adjust(self, state: loop.State) -> tuple[loop.State, np.ndarray]:
        """The algorithm's adjustment, in pieces of about `REPORT_EVERY` seconds."""
        learner, total, done, size = self.adjuster.begin(state), self.adjuster.total, 0, 100
        while done < total:
            size = min(size, total - done)
            began = time.perf_counter()
            learner = jax.block_until_ready(self.adjuster.work(state, learner, size))
            elapsed = time.perf_counter() - began
            done += size
            multiplier = np.asarray(learner.multiplier_mean)
            if not np.all(np.isfinite(multiplier)):
                self._fail(state, "off-policy multiplier", np.asarray(~np.isfinite(multiplier).all(axis=-1)))
            shown = ", ".join(f"{value:.3g}" for value in multiplier.mean(axis=0))
            self.progress.phase("training the multiplier off-policy", done, total, f"mean so far {shown}")
            size = max(100, int(size * min(4.0, REPORT_EVERY / elapsed)) // 100 * 100)
        self.progress.end_phase()
        state, adjusted = self.adjuster.finish(state, learner)
        return state, np.asarray(adjusted)

    def _stop_on_failure(self, chunk: loop.Chunk, state: loop.State) -> None:
        if failures := chunk.failures():
            self._fail(state, failures[0], ~np.asarray(chunk.finite[failures[0]]))

    def _fail(self, state: loop.State, quantity: str, seeds: np.ndarray) -> None:
        epoch = int(state.epoch)
        path = checkpoint.path_of(self.record.folder, epoch)
        checkpoint.save(path, state, epoch)
        named = ", ".join(str(seed) for seed, bad in zip(self.seeds, seeds, strict=True) if bad)
        raise NumericalFailure(
            f"epoch {epoch}, seed {named}: the {quantity} is not finite; "
            f"the state before that epoch is saved in {path}."
        )

    def _result(self, state: loop.State) -> Result:
        names = self.history[0].keys()
        metrics = {name: np.stack([row[name] for row in self.history], axis=1) for name in names}
        policies = policies_of(self.training, state.algorithm)
        return Result(path=self.record.folder, seeds=self.seeds, policies=policies, metrics=metrics)


def policies_of(training: loop.Training, algorithm_state: PyTree) -> list[Policy]:
    """The learned policy of each seed."""
    networks = jax.vmap(training.algorithm.learned_policy)(algorithm_state)
    count = jax.tree.leaves(networks)[0].shape[0]
    return [
        Policy(
            jax.tree.map(lambda leaf, i=i: leaf[i], networks),
            training.problem.observation_size,
            seed=i,
            discrete=training.problem.discrete_actions,
        )
        for i in range(count)
    ]


def _default_folder(experiment: Experiment) -> Path:
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{experiment.algorithm}-{experiment.environment}-{stamp}"


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
