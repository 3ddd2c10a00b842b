"""Trains a run to its end: compiled chunks of epochs, records, checkpoints, progress, callbacks.

A run is a function of its description, whatever interrupts it. Every epoch's draws come from its number, a checkpoint
holds the whole state, and chunks of any length give the same bits: what is computed again comes out the same.
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

from apdo import files, hosted, loop, own
from apdo.envs import OBJECT
from apdo.errors import EnvironmentFailure, Interrupted, InvalidInput, NumericalFailure, StorageFailure
from apdo.experiment import checkpoint, chosen, compilation, opening, records, remarks, result, standing, warm_start
from apdo.experiment.callbacks import Callback, Epoch
from apdo.experiment.history import Brought, brought, history_of
from apdo.experiment.progress import Progress
from apdo.experiment.result import Result
from apdo.experiment.settings import Experiment
from apdo.experiment.stopping import Stop
from apdo.report import runs

REPORT_EVERY = 0.5
"""Seconds of work between two looks at the progress."""
SAVE_EVERY = 30.0
"""Seconds of work between two checkpoints, if saving takes less than a `SAVE_SHARE` of it."""
SAVE_SHARE = 0.02
TRACE = "environment-error.txt"
"""The file of a run folder that has the traceback of an environment that raised."""
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
    """Go on with an interrupted run; the result is that of the run that was never interrupted.

    A finished run whose files are whole is only read. `epochs` makes a run longer than it was meant to be, and
    `bookkeeping` changes settings that no result depends on. `task` is the class of an environment that was given as a
    Python object.
    """
    found = opening.reopen(folder, _sayer(quiet), epochs, bookkeeping, task)
    return found if isinstance(found, Result) else finish(found, quiet, callbacks)


def train(experiment: Experiment, folder: Path, quiet: bool = False, callbacks: Sequence[Callback] = ()) -> Result:
    """Go on with the experiment in this folder, or begin it if the folder has none yet."""
    found = opening.enter(experiment, folder, _sayer(quiet))
    return found if isinstance(found, Result) else finish(found, quiet, callbacks)


def _sayer(quiet: bool) -> standing.Say:
    """Messages about a run go where errors go: they are not part of its results."""
    return lambda text: None if quiet else print(f"apdo: {text}", file=sys.stderr)


def finish(opened: opening.Opened, quiet: bool, callbacks: Sequence[Callback] = ()) -> Result:
    """Train from where the run stands to its end, and note how it ended."""
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
    """Whatever happens inside, the run's folder tells how it ended, and is let go of."""
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
    """Whether an error says that memory did not suffice."""
    return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)


def how_to_go_on(folder: Path, experiment: Experiment) -> str:
    """The command, or the line of Python, that goes on with a run."""
    names = {"algorithm": experiment.algorithm, "environment": experiment.environment}
    lost = [kind for kind, name in names.items() if name.startswith(OBJECT)]
    if lost:
        # No command can bring a Python object back.
        lost += ["costs"] if getattr(experiment.environment_config, "functions", ()) else []
        return f"Go on with: apdo.resume({str(folder)!r}, {', '.join(f'{kind}=...' for kind in lost)})"
    return f"Go on with: apdo resume {shlex.quote(str(folder))}"


class Runner:
    """One run from where it stands to its last epoch."""

    def __init__(self, opened: opening.Opened, callbacks: Sequence[Callback] = ()) -> None:
        experiment, training, stands = opened.experiment, opened.training, opened.stands
        self.experiment, self.training, self.seeds = experiment, training, opened.seeds
        self.record, self.stands, self.callbacks = opened.record, stands, callbacks
        self.best: list[chosen.Found] = []
        """The best policies as they were last saved."""
        self.stopped = ""
        """Why a callback has stopped the run before its last epoch."""
        self.began, self.closed = time.perf_counter(), False
        self.share, self.beside = 1.0, 1
        """Which part of the program's time is this run's: others may be computed with it. And how many runs take turns
        in this process, itself included."""
        self.advance = hosted.Advance(training) if hosted.is_hosted(training) else compilation.Advance(training)
        self.adjuster = loop.Adjuster(training)
        self.history = history_of(stands)
        self.about = remarks.About(
            limits=training.problem.limits,
            names=tuple(training.environment.cost_names),
            epochs=experiment.settings.epochs,
            batch=training.problem.batch,
        )
        adjusted = [k for k, rows in enumerate(stands.rows) if any(runs.ADJUSTED & row.keys() for row in rows)]
        self.adjusted_at = adjusted[-1] + 1 if adjusted else None
        """After how many epochs the multipliers were last adjusted."""
        planned = range(experiment.settings.epochs) if self.adjuster.adjustment is not None else ()
        self.last_due = max((k for k in planned if self.adjuster.due(k)), default=-1)
        self.epoch_seconds = 0.0
        """What the latest epochs took, each."""
        self.saved_at = time.perf_counter()
        self.save_seconds = 0.0
        """When the last checkpoint was written, and how long that took."""
        self.compiling = True
        """Whether no call has returned yet: the first one compiles, and says nothing about the speed of the rest."""

    def prepare(self, progress: Progress, stop: Stop) -> None:
        """Take up what the folder holds."""
        self.progress, self.stop = progress, stop
        said = [one for one in runs.read_remarks(self.record.folder) if one["epoch"] <= self.stands.epoch]
        self.record.keep_remarks(said)
        self.book = remarks.Book(said, self.record.remark, progress.message)
        if self.stands.state is not None and self.stands.epoch == 0:
            # A start from what was learned before is kept: going on must not need the earlier run again.
            self.save(self.stands.state, 0)
            if source := self.experiment.settings.start_from:
                progress.message(f"starting from {warm_start.words(source)}")
        if self.stands.state is not None:
            self.best = chosen.found(self.training, self.seeds, self.stands.state)

    def close(self, status: str, **facts: object) -> None:
        """Note how the run ended, the first time that this is asked."""
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
        """The rest of the run."""
        try:
            self.prepare(progress, stop)
            return self._train(opening.started(self.training, self.seeds, self.stands))
        finally:
            if isinstance(self.advance, hosted.Advance):
                self.advance.close()

    def _train(self, state: loop.State) -> Result:
        settings, epoch = self.experiment.settings, self.stands.epoch
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
            if self.receive(brought(chunk), epoch, elapsed, partial(_same, state), adjusted):
                self.save(state, epoch)
            if self.stop.asked and epoch < settings.epochs:
                self.interrupt(state, epoch)
        return self._result(state)

    def _result(self, state: loop.State, interrupted: str = "") -> Result:
        return result.of(
            self.record.folder, self.experiment, self.training, self.seeds, self.history, state, interrupted
        )

    def receive(
        self,
        chunk: Brought,
        epoch: int,
        elapsed: float,
        state: Callable[[], loop.State],
        adjusted: dict[str, np.ndarray] | NumericalFailure | None = None,
    ) -> bool:
        """Write down what a chunk brought, up to `epoch`; whether `state()`, the state after it, is to be saved.

        `adjusted` is what came of an adjustment, where there was one.
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
        """Tell the callbacks of each new epoch; the last one's policies are at hand."""
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
        """The next epochs; where an environment fails in the first of them, the state before it is saved."""
        try:
            return jax.block_until_ready(self.advance(state, jnp.asarray(self.count(epoch), dtype=jnp.int32)))
        except (EnvironmentFailure, NumericalFailure) as failure:
            path = checkpoint.path_of(self.record.folder, epoch)
            self.save(state, epoch)
            said = f"{failure}{self._keep_trace(failure)}; the state before that epoch is saved in {path}."
            raise type(failure)(said) from failure

    def _keep_trace(self, failure: Exception) -> str:
        """Write what the environment's own code raised into the run folder, and say where it is."""
        if not isinstance(failure, EnvironmentFailure) or not failure.trace:
            return ""
        path = self.record.folder / TRACE
        with files.replacing(path) as file:
            file.write(failure.trace.encode(errors="replace"))
        return f" (the traceback is in {path})"

    def count(self, epoch: int) -> int:
        """How many epochs to run in one call: about `REPORT_EVERY` seconds of them, none past a place to stop at.

        An epoch that an adjustment follows is run alone, from a checkpoint: the adjustment takes long, and a run that
        is stopped in it repeats that epoch and goes on with the learner it had.
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
        """Whether so much has been computed since the last checkpoint that it would be a pity to lose it."""
        return time.perf_counter() - self.saved_at > max(SAVE_EVERY, self.save_seconds / SAVE_SHARE)

    def save(self, state: loop.State, epoch: int) -> None:
        """A checkpoint, never ahead of the metrics on the disk; then the oldest and the adjustment's learner go."""
        began = time.perf_counter()
        folder = self.record.folder
        self.record.sync()
        checkpoint.save(checkpoint.path_of(folder, epoch), state, epoch)
        self.best = chosen.found(self.training, self.seeds, state)
        checkpoint.prune(folder, self.experiment.settings.keep)
        checkpoint.learner_path(folder, epoch).unlink(missing_ok=True)
        self.saved_at = time.perf_counter()
        self.save_seconds = self.saved_at - began

    def interrupt(self, state: loop.State, epoch: int) -> None:
        """Save, and say how to go on."""
        path = checkpoint.path_of(self.record.folder, epoch)
        if not path.exists():
            self.save(state, epoch)
        how_far = f"stopped after {epoch} of {self.experiment.settings.epochs} epochs, all saved."
        raise self.interrupted(f"{how_far} {how_to_go_on(self.record.folder, self.experiment)}", state)

    def interrupted(self, said: str, state: loop.State) -> Interrupted:
        """The exception that ends the run, with what there is where a person asked at the keyboard."""
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
        left = None if first else (self.experiment.settings.epochs - epoch - done) * each
        means = {name: np.mean(value[-1], axis=0).tolist() for name, value in metrics.items()}
        self.progress.epoch(epoch + done, means, len(self.seeds) * batch / each, left)

    def say(self, text: str, epoch: int) -> None:
        """A sentence for the user after so many epochs, shown and kept in the run folder; once, however often said."""
        self.book.say(text, epoch)

    def _remark(self, epoch: int) -> None:
        """Whatever the metrics of the first so many epochs say is wrong."""
        for remark in remarks.of(self.history.first(epoch), self.about, self._multipliers_since(epoch)):
            self.book.note(remark, epoch)

    def _multipliers_since(self, epoch: int) -> int:
        """The first epoch of the multipliers that hold after so many epochs: none, while the first are waited for."""
        if self.adjusted_at is not None:
            return self.adjusted_at
        return epoch if epoch <= self.last_due else 0

    def fail(self, state: loop.State, quantity: str, seeds: np.ndarray) -> NoReturn:
        """End a run in which something was not finite, with the state before that saved."""
        epoch = int(state.epoch)
        path = checkpoint.path_of(self.record.folder, epoch)
        checkpoint.save(path, state, epoch)
        named = ", ".join(str(seed) for seed, bad in zip(self.seeds, seeds, strict=True) if bad)
        raise NumericalFailure(
            f"epoch {epoch}, seed {named}: the {quantity} is not finite; "
            f"the state before that epoch is saved in {path}."
        )


def _same(state: loop.State) -> loop.State:
    return state


def _samples(training: loop.Training, asked: int) -> str:
    """What a batch really has: whole episodes, in environments side by side."""
    batch, count = training.problem.batch, training.environments
    more = "" if batch == asked else f" instead of {asked:,}, for whole episodes of {training.problem.horizon} steps"
    plural = "s" if count > 1 else ""
    return f"{batch:,} samples in each epoch{more}: {count:,} environment{plural} of {training.steps:,} steps"


def _default_folder(experiment: Experiment) -> Path:
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    algorithm, environment = (own.short(name) for name in (experiment.algorithm, experiment.environment))
    return Path("runs") / re.sub(r"[^\w.-]+", "-", f"{algorithm}-{environment}-{stamp}")
