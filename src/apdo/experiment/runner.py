"""Trains a run to its end: compiled chunks of epochs, records, checkpoints, progress, callbacks.

A run is a function of its description, and interruptions do not change it: the random numbers of an epoch depend on the
epoch's number, a checkpoint holds the whole state, and chunks of any length give the same bits. So epochs that are
computed again give the same results.
"""

import contextlib
import datetime
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from apdo import files, hosted, loop, objective, own
from apdo.envs import OBJECT
from apdo.errors import EnvironmentFailure, Interrupted, InvalidInput, NumericalFailure, StorageFailure
from apdo.experiment import checkpoint, chosen, compilation, opening, records, remarks, result, resume_point, warm_start
from apdo.experiment.callbacks import Callback, Epoch
from apdo.experiment.history import ChunkResults, chunk_results, history_of
from apdo.experiment.progress import Progress
from apdo.experiment.result import Result
from apdo.experiment.settings import Experiment
from apdo.experiment.stopping import Stop
from apdo.report import runs

REPORT_EVERY = 0.5
"""Seconds of work between two updates of the display."""
SAVE_EVERY = 30.0
"""Seconds of work between two checkpoints, or more if saving would take more than a `SAVE_SHARE` of them."""
SAVE_SHARE = 0.02
TRACE = "environment-error.txt"
"""The file in a run folder with the traceback of an environment that raised an error."""
TOO_LARGE = "this run does not fit into memory; try a smaller --batch or fewer --seeds."
_MOST_ERROR = 1000


def run(
    experiment: Experiment, folder: Path | None = None, quiet: bool = False, callbacks: Sequence[Callback] = ()
) -> Result:
    """Train from the first epoch to the last, in a new run folder."""
    return finish(opening.begin(experiment, folder or _default_folder(experiment)), quiet, callbacks)


def resume(
    folder: Path,
    quiet: bool = False,
    epochs: int | None = None,
    bookkeeping: Mapping[str, Any] | None = None,
    task: type[Any] | None = None,
    callbacks: Sequence[Callback] = (),
) -> Result:
    """Continue an interrupted run. The result is the same as without the interruption.

    A finished run whose files are whole is only read. `epochs` makes a run longer than planned, and `bookkeeping`
    changes settings that affect no result. `task` is the class of an environment that was given as a Python object.
    """
    found = opening.reopen(folder, _sayer(quiet), epochs, bookkeeping, task)
    return found if isinstance(found, Result) else finish(found, quiet, callbacks)


def train(experiment: Experiment, folder: Path, quiet: bool = False, callbacks: Sequence[Callback] = ()) -> Result:
    """Continue the run of this experiment in this folder, or begin it if the folder has none yet."""
    found = opening.enter(experiment, folder, _sayer(quiet))
    return found if isinstance(found, Result) else finish(found, quiet, callbacks)


def _sayer(quiet: bool) -> resume_point.Say:
    """A function that prints messages about a run to stderr, because they are not part of its results."""
    return lambda text: None if quiet else print(f"apdo: {text}", file=sys.stderr)


def finish(opened: opening.Opened, quiet: bool, callbacks: Sequence[Callback] = ()) -> Result:
    """Train a run from its resume point to its end, and record how it ended."""
    compilation.keep_compiled_programs()
    work, experiment = Runner(opened, callbacks), opened.experiment
    title = f"{own.short(experiment.algorithm)} on {own.short(experiment.environment)}"
    limits = opened.training.problem.limits
    with (
        ending(work),
        Progress(title, experiment.settings.epochs, limits, quiet=quiet) as progress,
        Stop(progress.message) as stop,
    ):
        return work.train(progress, stop)


@contextlib.contextmanager
def ending(work: "Runner") -> Iterator[None]:
    """Record in the run's folder how the work inside the context ended, and release the folder, whatever happens."""
    try:
        yield
        work.close("stopped" if work.stopped else "finished", **({"stopped": work.stopped} if work.stopped else {}))
    except (NumericalFailure, EnvironmentFailure) as error:
        work.close("failed", error=str(error))
        raise
    except KeyboardInterrupt:
        work.close("interrupted")
        raise
    except StorageFailure as error:
        with contextlib.suppress(StorageFailure):
            work.close("interrupted")
        raise StorageFailure(f"{error} {how_to_go_on(work.record.folder, work.experiment)}") from error
    except (jax.errors.JaxRuntimeError, MemoryError) as error:
        if is_too_large(error):
            work.close("failed", error=TOO_LARGE)
            raise InvalidInput(TOO_LARGE) from None
        work.close("failed", error=str(error)[:_MOST_ERROR])
        raise
    finally:
        work.record.release()


def is_too_large(error: BaseException) -> bool:
    """Whether an error means that there was not enough memory."""
    return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)


def how_to_go_on(folder: Path, experiment: Experiment) -> str:
    """The command, or the line of Python, that continues a run."""
    names = {"algorithm": experiment.algorithm, "environment": experiment.environment}
    lost = [kind for kind, name in names.items() if name.startswith(OBJECT)]
    if lost:
        # No command can bring a Python object back.
        lost += ["costs"] if getattr(experiment.environment_config, "functions", ()) else []
        return f"Go on with: apdo.resume({str(folder)!r}, {', '.join(f'{kind}=...' for kind in lost)})"
    return f"Go on with: apdo resume {shlex.quote(str(folder))}"


class Runner:
    """One run, trained from its resume point to its last epoch."""

    def __init__(self, opened: opening.Opened, callbacks: Sequence[Callback] = ()) -> None:
        experiment, training, point = opened.experiment, opened.training, opened.resume_point
        self.experiment, self.training, self.seeds = experiment, training, opened.seeds
        self.record, self.resume_point, self.callbacks = opened.record, point, callbacks
        self.best: list[chosen.BestPolicy] = []
        """The best policies as they were last saved."""
        self.stopped = ""
        """Why a callback stopped the run before its last epoch; empty if none did."""
        self.began, self.closed = time.perf_counter(), False
        self.share, self.beside = 1.0, 1
        """`share` is this run's part of the program's time, because other runs may be computed with it. `beside` is the
        number of runs that take turns in this process, including this one."""
        self.advance = hosted.Advance(training) if hosted.is_hosted(training) else compilation.Advance(training)
        self.adjuster = loop.make_adjuster(training)
        self.history = history_of(point)
        self.about = remarks.About(
            limits=training.problem.limits,
            names=tuple(training.environment.cost_names),
            epochs=experiment.settings.epochs,
            batch=training.problem.batch,
            returned="return" if objective.is_total(training.problem) else "discounted_return",
        )
        adjusted = [k for k, rows in enumerate(point.rows) if any(runs.ADJUSTED & row.keys() for row in rows)]
        self.adjusted_at = adjusted[-1] + 1 if adjusted else None
        """The number of epochs after which the multipliers were last adjusted; None if they never were."""
        self.jump: tuple[int, remarks.Flags] | None = None
        """The same number as soon as it is recorded, and which seeds jumped then."""
        if adjusted:
            self.jump = adjusted[-1] + 1, _jumped(point.rows[adjusted[-1]])
        planned = range(experiment.settings.epochs) if self.adjuster.adjustment is not None else ()
        self.last_due = max((k for k in planned if self.adjuster.due(k)), default=-1)
        self.epoch_seconds = 0.0
        """The seconds of each of the latest epochs."""
        self.saved_at = time.perf_counter()
        self.save_seconds = 0.0
        """The time of the last checkpoint, and the seconds that it took."""
        self.compiling = True
        """Whether no call has returned yet. The first call compiles, so its time says nothing about the later ones."""

    def prepare(self, progress: Progress, stop: Stop) -> None:
        """Restore remarks, the start and the best policies from the run folder."""
        self.progress, self.stop = progress, stop
        said = [one for one in runs.read_remarks(self.record.folder) if one["epoch"] <= self.resume_point.epoch]
        self.record.keep_remarks(said)
        self.book = remarks.Book(said, self.record.remark, progress.message)
        if self.resume_point.state is not None and self.resume_point.epoch == 0:
            # Save the state of a warm start, so that resuming does not need the earlier run again.
            self.save(self.resume_point.state, 0)
            if source := self.experiment.settings.start_from:
                progress.message(f"starting from {warm_start.words(source)}")
        if self.resume_point.state is not None:
            self.best = chosen.best_policies(self.training, self.seeds, self.resume_point.state)

    def close(self, status: str, **facts: object) -> None:
        """Record how the run ended; only the first call has an effect."""
        if self.closed:
            return
        self.closed = True
        for callback in self.callbacks:
            if close := getattr(callback, "close", None):
                close()
        taken = round(self.record.seconds + (time.perf_counter() - self.began) / self.beside, 3)
        best = {"best": [one.plain() for one in self.best]} if self.best else {}
        self.record.close(status, finished=records.now(), seconds=taken, **best, **facts)

    def train(self, progress: Progress, stop: Stop) -> Result:
        """Train the remaining epochs."""
        try:
            self.prepare(progress, stop)
            return self._train(opening.started(self.training, self.seeds, self.resume_point))
        finally:
            if isinstance(self.advance, hosted.Advance):
                self.advance.close()

    def _train(self, state: loop.State) -> Result:
        settings, epoch = self.experiment.settings, self.resume_point.epoch
        self.progress.message(_samples(self.training, settings.batch))
        if epoch < settings.epochs:
            self.progress.message("compiling, or loading what an earlier run compiled")
        while epoch < settings.epochs and not self.stopped:
            began = time.perf_counter()
            chunk = self._advance(state, epoch)
            state, done = chunk.state, int(chunk.done)
            elapsed = time.perf_counter() - began
            epoch += done
            adjusted = None
            if done and self.adjuster.due(epoch - 1) and self.adjuster.open(state).any():
                from apdo.experiment import adjusting

                request = adjusting.Request([adjusting.Part(self, slice(0, len(self.seeds)))], state)
                [(state, [adjusted])] = adjusting.adjust([request])
            if self.record_chunk(chunk_results(chunk), epoch, elapsed, partial(_same, state), adjusted):
                self.save(state, epoch)
            if self.stop.asked and epoch < settings.epochs:
                self.interrupt(state, epoch)
        return self._result(state)

    def _result(self, state: loop.State, interrupted: str = "") -> Result:
        return result.of(
            self.record.folder, self.experiment, self.training, self.seeds, self.history, state, interrupted
        )

    def record_chunk(
        self,
        chunk: ChunkResults,
        epoch: int,
        elapsed: float,
        state: Callable[[], loop.State],
        adjusted: dict[str, np.ndarray] | NumericalFailure | None = None,
    ) -> bool:
        """Record the results of a chunk that ends at `epoch`. Returns whether `state()`, the state after it, is to be
        saved.

        `adjusted` is the outcome of an adjustment, if there was one.
        """
        if isinstance(adjusted, NumericalFailure):
            raise adjusted
        done, metrics = chunk.done, chunk.metrics
        if done:
            self._note(epoch - done, metrics, adjusted, elapsed)
            self._call_back(epoch - done, metrics, state)
        if failures := loop.failures_in(chunk.finite):
            self.fail(state(), failures[0], ~chunk.finite[failures[0]])
        return self._save_due(epoch) or adjusted is not None or bool(self.stopped)

    def _call_back(self, epoch: int, metrics: dict[str, np.ndarray], state: Callable[[], loop.State]) -> None:
        """Call the callbacks for each new epoch. The state, and so the policies, exist only for the last one."""
        done = len(next(iter(metrics.values())))
        for i in range(done if self.callbacks else 0):
            report = Epoch(
                epoch=epoch + i + 1,
                epochs=self.experiment.settings.epochs,
                seeds=self.seeds,
                metrics={name: value[i] for name, value in metrics.items()},
                history=self.history.first(epoch + i + 1),
                limits=self.training.problem.limits,
                batch=self.training.problem.batch,
                folder=self.record.folder,
                title=f"{self.experiment.algorithm} on {self.experiment.environment}",
                training=self.training,
                state=state if i == done - 1 else None,
            )
            for callback in self.callbacks:
                said = callback(report)
                if said and not self.stopped:
                    self.stopped = said if isinstance(said, str) else "a callback said so"
        if self.stopped:
            self.progress.message(f"stopped after {epoch + done} epochs: {self.stopped}")

    def _advance(self, state: loop.State, epoch: int) -> loop.Chunk:
        """Compute the next epochs. If an environment fails, save the state before them."""
        try:
            return jax.block_until_ready(self.advance(state, jnp.asarray(self.count(epoch), dtype=jnp.int32)))
        except (EnvironmentFailure, NumericalFailure) as failure:
            path = checkpoint.path_of(self.record.folder, epoch)
            self.save(state, epoch)
            said = f"{failure}{self._keep_trace(failure)}; the state before that epoch is saved in {path}."
            raise type(failure)(said) from failure

    def _keep_trace(self, failure: Exception) -> str:
        """Write the traceback of the environment's error into the run folder, and return words that name the file."""
        if not isinstance(failure, EnvironmentFailure) or not failure.trace:
            return ""
        path = self.record.folder / TRACE
        with files.replacing(path) as file:
            file.write(failure.trace.encode(errors="replace"))
        return f" (the traceback is in {path})"

    def count(self, epoch: int) -> int:
        """How many epochs to compute in one call: about `REPORT_EVERY` seconds of them, but none past the next
        checkpoint.

        An epoch that is followed by an adjustment is computed alone, after a checkpoint. The adjustment takes long. A
        run that is stopped in it repeats that epoch, and then continues with the saved learner.
        """
        settings = self.experiment.settings
        stop = min(settings.epochs, (epoch // settings.checkpoint_every + 1) * settings.checkpoint_every)
        due = next((k for k in range(epoch, stop) if self.adjuster.due(k)), stop)
        if due == epoch or any(not getattr(callback, "patient", False) for callback in self.callbacks):
            return 1
        fitting = int(REPORT_EVERY / self.epoch_seconds) if self.epoch_seconds else 1
        return max(1, min(fitting, loop.CHUNK, stop - epoch, due - epoch))

    def _save_due(self, epoch: int) -> bool:
        settings = self.experiment.settings
        planned = epoch % settings.checkpoint_every == 0 or epoch == settings.epochs or self.adjuster.due(epoch)
        return planned or self.time_to_save()

    def time_to_save(self) -> bool:
        """Whether the work since the last checkpoint is too much to lose."""
        return time.perf_counter() - self.saved_at > max(SAVE_EVERY, self.save_seconds / SAVE_SHARE)

    def save(self, state: loop.State, epoch: int) -> None:
        """Write a checkpoint after the metrics are on the disk. Then delete old ones, and the adjustment's learner."""
        began = time.perf_counter()
        folder = self.record.folder
        self.record.sync()
        checkpoint.save(checkpoint.path_of(folder, epoch), state, epoch)
        self.best = chosen.best_policies(self.training, self.seeds, state)
        checkpoint.prune(folder, self.experiment.settings.keep)
        checkpoint.learner_path(folder, epoch).unlink(missing_ok=True)
        self.saved_at = time.perf_counter()
        self.save_seconds = self.saved_at - began

    def interrupt(self, state: loop.State, epoch: int) -> None:
        """Save the run, and raise `Interrupted` with words on how to continue."""
        path = checkpoint.path_of(self.record.folder, epoch)
        if not path.exists():
            self.save(state, epoch)
        how_far = f"stopped after {epoch} of {self.experiment.settings.epochs} epochs, all saved."
        raise self.interrupted(f"{how_far} {how_to_go_on(self.record.folder, self.experiment)}", state)

    def interrupted(self, said: str, state: loop.State) -> Interrupted:
        """The exception that ends the run. It has the result so far if a person stopped the run at the keyboard."""
        stopped = Interrupted(said)
        stopped.result = self._result(state, said) if self.stop.at_the_keyboard else None
        return stopped

    def _note(
        self, epoch: int, metrics: dict[str, np.ndarray], adjusted: dict[str, np.ndarray] | None, elapsed: float
    ) -> None:
        done = len(next(iter(metrics.values())))
        each, first = elapsed / done, self.compiling
        self.epoch_seconds, self.compiling = 0.0 if first else each, False
        if first:
            self.saved_at = time.perf_counter()
        batch = self.training.problem.batch
        for i in range(done):
            row = {name: value[i] for name, value in metrics.items()}
            if adjusted is not None and i == done - 1:
                row |= adjusted
            self.record.append(records.rows(row, epoch + i, self.seeds, (epoch + i + 1) * batch, each * self.share))
        self.history.add(metrics)
        for i in range(done):
            self._remark(epoch + i + 1)
        if adjusted is not None:
            self.jump = epoch + done, np.asarray(np.isfinite(adjusted["adjusted_multiplier"]).all(axis=-1))
        left = None if first else (self.experiment.settings.epochs - epoch - done) * each
        means = {name: np.mean(value[-1], axis=0).tolist() for name, value in metrics.items()}
        self.progress.epoch(epoch + done, means, len(self.seeds) * batch / each, left)

    def say(self, text: str, epoch: int) -> None:
        """Show a sentence after so many epochs and keep it in the run folder, but only once."""
        self.book.say(text, epoch)

    def _remark(self, epoch: int) -> None:
        """Make the remarks that follow from the metrics of the first `epoch` epochs."""
        history = self.history.first(epoch)
        for remark in remarks.of(history, self.about, self._multipliers_since(epoch)):
            self.book.note(remark, epoch)
        if self.jump is not None and self.jump[0] == epoch - 1:
            for text in remarks.refused(history, self.about, self.jump[1], self.seeds):
                self.say(text, epoch)

    def _multipliers_since(self, epoch: int) -> int:
        """The first epoch of the current multipliers; `epoch` itself if the first adjustment is still to come."""
        if self.adjusted_at is not None:
            return self.adjusted_at
        return epoch if epoch <= self.last_due else 0

    def fail(self, state: loop.State, quantity: str, seeds: np.ndarray) -> NoReturn:
        """End a run in which something was not finite, and save the state before that."""
        epoch = int(state.epoch)
        path = checkpoint.path_of(self.record.folder, epoch)
        checkpoint.save(path, state, epoch)
        named = ", ".join(str(seed) for seed, bad in zip(self.seeds, seeds, strict=True) if bad)
        raise NumericalFailure(
            f"epoch {epoch}, seed {named}: the {quantity} is not finite; "
            f"the state before that epoch is saved in {path}."
        )


def _jumped(rows: list[dict[str, Any]]) -> remarks.Flags:
    """Which seeds jumped after an epoch, from the records of that epoch."""
    return np.asarray([bool(runs.ADJUSTED & row.keys()) for row in rows])


def _same(state: loop.State) -> loop.State:
    return state


def _samples(training: loop.Training, asked: int) -> str:
    """The actual size of a batch, in words: whole episodes, in environments side by side."""
    batch, count = training.problem.batch, training.environments
    more = "" if batch == asked else f" instead of {asked:,}, for whole episodes of {training.problem.horizon} steps"
    plural = "s" if count > 1 else ""
    return f"{batch:,} samples in each epoch{more}: {count:,} environment{plural} of {training.steps:,} steps"


def _default_folder(experiment: Experiment) -> Path:
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    algorithm, environment = (own.short(name) for name in (experiment.algorithm, experiment.environment))
    return Path("runs") / re.sub(r"[^\w.-]+", "-", f"{algorithm}-{environment}-{stamp}")
