"""Runs an experiment: compiled chunks of epochs, records, checkpoints, progress; from its start or from where it was.

A run is a function of its description, whatever interrupts it. Every epoch's draws come from its number, a checkpoint
holds the whole state, and chunks of any length give the same bits: what is computed again comes out the same.
"""

import contextlib
import dataclasses
import datetime
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from apdo import algorithms, files, hosted, loop, options, own
from apdo.algorithms import checks, scaled
from apdo.algorithms.contract import Algorithm
from apdo.envs import OBJECT
from apdo.errors import EnvironmentFailure, Interrupted, InvalidInput, NumericalFailure, StorageFailure
from apdo.experiment import checkpoint, chosen, compilation, memory, records, remarks, standing, summary, warm_start
from apdo.experiment.callbacks import Callback, Epoch
from apdo.experiment.difference import differences
from apdo.experiment.progress import Progress
from apdo.experiment.settings import BOOKKEEPING, Experiment, sized
from apdo.experiment.standing import Standing
from apdo.experiment.stopping import Stop
from apdo.policy import Policy
from apdo.report import runs

REPORT_EVERY = 0.5
"""Seconds of work between two looks at the progress."""
SAVE_EVERY = 30.0
"""Seconds of work between two checkpoints, if saving takes less than a `SAVE_SHARE` of it."""
SAVE_SHARE = 0.02
TRACE = "environment-error.txt"
"""The file of a run folder that has the traceback of an environment that raised."""
TOO_LARGE = "this run does not fit into memory; try a smaller --batch or fewer --seeds."
ENDINGS = ("error", "stopped")
"""What `run.json` says of how a run ended, until it goes on."""
_MOST_ERROR = 1000
_PIECE = 100
"""Iterations of an adjustment that cannot be divided: the off-policy learner draws so many minibatches at once."""


@dataclasses.dataclass(frozen=True, repr=False)
class Result:
    """What a run leaves behind."""

    path: Path
    seeds: list[int]
    policies: list[Policy]
    """The best policy of each seed; `policy.about` says which it is."""
    newest: list[Policy]
    """The policy of each seed after the last epoch."""
    best: list[chosen.Found]
    """What training saw of each seed's best policy; empty where the algorithm's batches say nothing of its policy."""
    metrics: dict[str, np.ndarray]
    """By name, [S, E] or [S, E, M]."""
    title: str = ""
    """The algorithm and the environment."""
    limits: tuple[float, ...] = ()
    cost_names: tuple[str, ...] = ()
    interrupted: str = ""
    """Where the run was interrupted, how far it came and how to go on; else empty."""

    @property
    def policy(self) -> Policy:
        """The best policy of the first seed."""
        return self.policies[0]

    def __repr__(self) -> str:
        return "\n".join(summary.lines(self))

    def _repr_html_(self) -> str:
        """The same for notebooks, as a table by seed."""
        return summary.table(self)


def training_of(experiment: Experiment) -> loop.Training:
    """The experiment as the loop needs it."""
    steps, environments = experiment.shape()
    return loop.Training(
        algorithm=algorithm_of(experiment),
        config=experiment.algorithm_config,
        problem=experiment.problem(),
        environment=experiment.task(),
        steps=steps,
        environments=environments,
        side_by_side=loop.suits_side_by_side(),
    )


def algorithm_of(experiment: Experiment) -> Algorithm:
    """The algorithm, before the mapping of its actions where the environment has one."""
    plain = cast(Algorithm, algorithms.find(experiment.algorithm))
    task = experiment.environment_config
    meaning = getattr(task, "action_meaning", None)
    if meaning is None:
        return plain
    own = None if task.discrete_actions else scaled.ActionMeaning(*(jnp.asarray(part, jnp.float32) for part in meaning))
    return cast(Algorithm, scaled.Scaled(plain, own))


@dataclasses.dataclass(frozen=True)
class Opened:
    """A run whose folder is held, ready to be trained from where it stands."""

    experiment: Experiment
    training: loop.Training
    seeds: list[int]
    record: records.Records
    stands: Standing


def run(
    experiment: Experiment, folder: Path | None = None, quiet: bool = False, callbacks: Sequence[Callback] = ()
) -> Result:
    """Train from the first epoch to the last, in a new run folder."""
    return finish(begin(experiment, folder or _default_folder(experiment)), quiet, callbacks)


def begin(experiment: Experiment, folder: Path) -> Opened:
    """A new run folder."""
    training = training_of(experiment)
    if experiment.algorithm not in algorithms.ALGORITHMS:
        steps, environments = experiment.shape()
        plain = algorithms.find(experiment.algorithm)
        checks.try_out(experiment.algorithm, plain, training.config, training.problem, steps, environments)
    seeds = _seeds(experiment)
    memory.check(training, seeds)
    warm = warm_start.of(experiment, training, seeds)
    description = describe(experiment, training, seeds) | ({} if warm is None else {warm_start.RECORD: warm.about})
    record = records.Records(folder, description)
    state = None if warm is None else warm.state
    return Opened(experiment, training, seeds, record, Standing(state, [], 0, discarded=False))


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
    found = reopen(folder, _sayer(quiet), epochs, bookkeeping, task)
    return found if isinstance(found, Result) else finish(found, quiet, callbacks)


def reopen(
    folder: Path,
    say: standing.Say,
    epochs: int | None = None,
    bookkeeping: Mapping[str, Any] | None = None,
    task: type[Any] | None = None,
) -> Opened | Result:
    """The run of a folder, to go on with, or its result if it is finished; see `resume`."""
    runs.read_description(folder)
    standing.check_own(folder)
    with contextlib.ExitStack() as holding:
        held = holding.enter_context(records.lock(folder))
        description = runs.read_description(folder)
        experiment = Experiment.restore(description.get("config", {}), task)
        if epochs is not None and epochs < experiment.settings.epochs:
            raise InvalidInput(f"the run has {experiment.settings.epochs} epochs, and cannot be shortened to {epochs}.")
        experiment = _change(experiment, dict(bookkeeping or {}) | ({} if epochs is None else {"epochs": epochs}))
        training, seeds = training_of(experiment), _seeds(experiment)
        fresh = describe(experiment, training, seeds)
        if any(description.get(name) != fresh[name] for name in ("algorithm", "environment", "seeds", "batch")):
            raise InvalidInput(f"{folder / 'run.json'} contradicts itself: its configuration makes another run.")
        for name in ("versions", "device"):
            if changed := differences(description.get(name), fresh[name], name):
                say(f"{changed}: the run goes on, but its bits may differ from those of a run without interruption.")
        memory.check(training, seeds)
        stands = standing.find(folder, description, training, say)
        if stands.state is None:
            warm = warm_start.of(experiment, training, seeds, description.get(warm_start.RECORD))
            stands = dataclasses.replace(stands, state=None if warm is None else warm.state)
        if description.get("status") == "finished" and stands.epoch == experiment.settings.epochs:
            if not stands.discarded:
                say(f"{folder} is finished already, and whole.")
                return result_of(folder, experiment, training, history_of(stands), started(training, seeds, stands))
        else:
            say(f"going on after {stands.epoch} of {experiment.settings.epochs} epochs")
        note = {"epoch": stands.epoch, "at": fresh["started"], "versions": fresh["versions"], "device": fresh["device"]}
        earlier = description["resumed"] if isinstance(description.get("resumed"), list) else []
        description |= {"config": fresh["config"], "epochs": fresh["epochs"], "resumed": [*earlier, note]}
        description = {name: value for name, value in description.items() if name not in ENDINGS}
        record = records.Records.resume(folder, held, description, stands.end)
        holding.pop_all()
    return Opened(experiment, training, seeds, record, stands)


def train(experiment: Experiment, folder: Path, quiet: bool = False, callbacks: Sequence[Callback] = ()) -> Result:
    """Go on with the experiment in this folder, or begin it if the folder has none yet."""
    found = enter(experiment, folder, _sayer(quiet))
    return found if isinstance(found, Result) else finish(found, quiet, callbacks)


def enter(experiment: Experiment, folder: Path, say: standing.Say) -> Opened | Result:
    """The run of this experiment in this folder, begun if it is not there; its result if it is finished."""
    if not folder.exists() or records.is_blank(folder):
        return begin(experiment, folder)
    task = type(experiment.environment_config)
    there = Experiment.restore(runs.read_description(folder).get("config", {}), task)
    if differ := differences(there.essence(), experiment.essence()):
        raise InvalidInput(f"{folder} holds another run: {differ}; choose another folder with --out.")
    kept = {name: getattr(experiment.settings, name) for name in BOOKKEEPING}
    return reopen(folder, say, bookkeeping=kept, task=task)


def _change(experiment: Experiment, changes: dict[str, Any]) -> Experiment:
    settings = sized(options.override(experiment.settings, changes), experiment.environment_config)
    changed = dataclasses.replace(experiment, settings=settings)
    changed.check()
    return changed


def _seeds(experiment: Experiment) -> list[int]:
    return [experiment.settings.seed + i for i in range(experiment.settings.seeds)]


def _sayer(quiet: bool) -> standing.Say:
    """Messages about a run go where errors go: they are not part of its results."""
    return lambda text: None if quiet else print(f"apdo: {text}", file=sys.stderr)


def finish(opened: Opened, quiet: bool, callbacks: Sequence[Callback] = ()) -> Result:
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
        raise StorageFailure(f"{error} {_how_to_go_on(work.record.folder, work.experiment)}") from error
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


def _how_to_go_on(folder: Path, experiment: Experiment) -> str:
    names = {"algorithm": experiment.algorithm, "environment": experiment.environment}
    lost = [kind for kind, name in names.items() if name.startswith(OBJECT)]
    if lost:
        # No command can bring a Python object back.
        lost += ["costs"] if getattr(experiment.environment_config, "functions", ()) else []
        return f"Go on with: apdo.resume({str(folder)!r}, {', '.join(f'{kind}=...' for kind in lost)})"
    return f"Go on with: apdo resume {shlex.quote(str(folder))}"


def describe(experiment: Experiment, training: loop.Training, seeds: list[int]) -> dict[str, Any]:
    """The run as `run.json` tells it."""
    problem, device = training.problem, jax.devices()[0]
    choices = getattr(training.environment, "action_choices", None)
    return {
        "algorithm": experiment.algorithm,
        **({"stands_for": alias} if (alias := algorithms.stands_for(experiment.algorithm)) else {}),
        "environment": experiment.environment,
        "config": experiment.describe(),
        "problem": {
            "limits": list(problem.limits),
            "cost_names": list(training.environment.cost_names),
            "discount": problem.discount,
            "cost_discount": problem.cost_discount,
            "horizon": problem.horizon,
            "observation_size": problem.observation_size,
            "action_size": problem.action_size,
            "discrete_actions": problem.discrete_actions,
            **({} if problem.image is None else {"image": list(problem.image)}),
            **({"action_choices": choices.plain()} if choices is not None else {}),
        },
        "batch": problem.batch,
        "epochs": experiment.settings.epochs,
        "seeds": seeds,
        "adjustment_epoch": _adjustment_epoch(experiment),
        "versions": records.versions(getattr(training.environment, "packages", ())),
        "device": f"{device.platform}: {device.device_kind}",
        "commit": records.commit(),
        "started": _now(),
        "note": experiment.note,
    }


def _adjustment_epoch(experiment: Experiment) -> int | None:
    """K_adj, where it is known beforehand."""
    k_adj = getattr(experiment.algorithm_config, "k_adj", None)
    return None if k_adj is None or k_adj < 0 else k_adj


class _History:
    """The metrics of all epochs so far, by name, [E, S, ...]; it grows by doubling, so that long runs stay small."""

    def __init__(self) -> None:
        self._arrays: dict[str, np.ndarray] = {}
        self._epochs = 0

    def add(self, metrics: dict[str, np.ndarray]) -> None:
        """The next epochs."""
        count = len(next(iter(metrics.values())))
        if self._arrays and {n: a.shape[1:] for n, a in self._arrays.items()} != {
            n: a.shape[1:] for n, a in metrics.items()
        }:
            raise InvalidInput("the metrics of the epochs before are not those that this version of the run makes.")
        for name, new in metrics.items():
            room = self._arrays.get(name)
            if room is None:
                room = np.empty((max(64, count), *new.shape[1:]), new.dtype)
            if self._epochs + count > len(room):
                room = np.concatenate(
                    [room[: self._epochs], np.empty_like(room, shape=(len(room) + count, *new.shape[1:]))]
                )
            room[self._epochs : self._epochs + count] = new
            self._arrays[name] = room
        self._epochs += count

    def restore(self, rows: list[list[dict[str, Any]]], skip: set[str]) -> None:
        """The epochs of an earlier part of the run, from its records; JSON gives single precision back exactly."""
        if rows:
            names = [name for name in rows[0][0] if name not in skip]
            self.add({name: _single(np.asarray([[row[name] for row in epoch] for epoch in rows])) for name in names})

    def first(self, epochs: int) -> dict[str, np.ndarray]:
        """The first so many epochs, [E, S, ...]; a view that the next epochs do not change."""
        return {name: room[:epochs] for name, room in self._arrays.items()}

    def by_seed(self) -> dict[str, np.ndarray]:
        """[S, E, ...]."""
        return {name: np.swapaxes(room[: self._epochs], 0, 1).copy() for name, room in self._arrays.items()}


def _single(values: np.ndarray) -> np.ndarray:
    return values.astype({"f": np.float32, "i": np.int32}.get(values.dtype.kind, values.dtype))


@dataclasses.dataclass(frozen=True)
class Brought:
    """What a call of the compiled loop brought, but for the state."""

    metrics: dict[str, np.ndarray]
    """By name, [E, S, ...], for the epochs that are done."""
    finite: dict[str, np.ndarray]
    """By quantity: whether each seed's was finite in the last epoch tried."""
    done: int

    def of(self, rows: slice) -> "Brought":
        """Some of the seeds'."""
        metrics = {name: value[:, rows] for name, value in self.metrics.items()}
        return Brought(metrics, {name: flags[rows] for name, flags in self.finite.items()}, self.done)


def brought(chunk: loop.Chunk) -> Brought:
    """A chunk's numbers, from the device."""
    metrics, finite, done = jax.device_get((chunk.metrics, chunk.finite, chunk.done))
    return Brought({name: value[: int(done)] for name, value in metrics.items()}, finite, int(done))


class Runner:
    """One run from where it stands to its last epoch."""

    def __init__(self, opened: Opened, callbacks: Sequence[Callback] = ()) -> None:
        experiment, training, stands = opened.experiment, opened.training, opened.stands
        self.experiment, self.training, self.seeds = experiment, training, opened.seeds
        self.record, self.stands, self.callbacks = opened.record, stands, callbacks
        self.best: list[chosen.Found] = []
        """The best policies as they were last saved."""
        self.stopped = ""
        """Why a callback has stopped the run before its last epoch."""
        self.began, self.closed = time.perf_counter(), False
        self.share = 1.0
        """Which part of the program's time is this run's: others may be computed with it."""
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
        taken = round(self.record.seconds + (time.perf_counter() - self.began) * self.share, 3)
        best = {"best": [one.plain() for one in self.best]} if self.best else {}
        self.record.close(status, finished=_now(), seconds=taken, **best, **facts)

    def train(self, progress: Progress, stop: Stop) -> Result:
        """The rest of the run."""
        try:
            self.prepare(progress, stop)
            return self._train(started(self.training, self.seeds, self.stands))
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
            if done and self.adjuster.due(epoch - 1) and self.adjuster.open(state):
                state, adjusted = self._adjust(state)
            self.receive(brought(chunk), epoch, elapsed, partial(_same, state), adjusted)
            if self.stop.asked and epoch < settings.epochs:
                self.interrupt(state, epoch)
        return self._result(state)

    def _result(self, state: loop.State, interrupted: str = "") -> Result:
        return result_of(self.record.folder, self.experiment, self.training, self.history, state, interrupted)

    def receive(
        self,
        chunk: Brought,
        epoch: int,
        elapsed: float,
        state: Callable[[], loop.State],
        adjusted: dict[str, np.ndarray] | None = None,
    ) -> None:
        """Write down what a chunk brought, up to `epoch`; save `state()`, the state after it, where that is due."""
        done, metrics = chunk.done, chunk.metrics
        if done:
            self._note(epoch - done, metrics, adjusted, elapsed)
            self._call_back(epoch - done, metrics, state)
        if failures := loop.failures_in(chunk.finite):
            self._fail(state(), failures[0], ~chunk.finite[failures[0]])
        if self._save_due(epoch) or adjusted is not None or self.stopped:
            self.save(state(), epoch)

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
        return planned or self._time_to_save()

    def _time_to_save(self) -> bool:
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
        raise self._interrupted(f"{how_far} {_how_to_go_on(self.record.folder, self.experiment)}", state)

    def _interrupted(self, said: str, state: loop.State) -> Interrupted:
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

    def _adjust(self, state: loop.State) -> tuple[loop.State, dict[str, np.ndarray]]:
        """The algorithm's adjustment, in pieces of about `REPORT_EVERY` seconds; its learner is saved as it goes."""
        total, size = self.adjuster.total, _PIECE
        learner, done = self._learner(state)
        while done < total:
            size = min(size, total - done)
            began = time.perf_counter()
            learner = jax.block_until_ready(self.adjuster.work(state, learner, size))
            elapsed = time.perf_counter() - began
            done += size
            multiplier = np.asarray(self.adjuster.shown(learner))
            multiplier = multiplier.reshape(len(self.seeds), -1, multiplier.shape[-1])
            if not np.all(np.isfinite(multiplier)):
                self._fail(state, "off-policy multiplier", np.asarray(~np.isfinite(multiplier).all(axis=(1, 2))))
            shown = ", ".join(f"{value:.3g}" for value in np.median(multiplier, axis=1).mean(axis=0))
            self.progress.phase("training the multiplier off-policy", done, total, f"so far {shown}")
            size = max(_PIECE, int(size * min(4.0, REPORT_EVERY / elapsed)) // _PIECE * _PIECE)
            if done < total and (self.stop.asked or self._time_to_save()):
                self._save_learner(state, learner, done)
        self.progress.end_phase()
        from apdo.experiment import adjusting

        doubts = adjusting.doubts(self.training, state, learner)
        for seed, reasons in zip(self.seeds, doubts, strict=True):
            if reasons:
                self.say(f"seed {seed}: no jump after {int(state.epoch)} epochs, since {reasons[0]}.", int(state.epoch))
        supported = jnp.asarray([not reasons for reasons in doubts])
        state, found = self.adjuster.finish(state, learner, supported)
        adjusted = {"adjusted_multiplier": found.multiplier, "adjusted_low": found.low, "adjusted_high": found.high}
        adjusted = {name: np.asarray(value) for name, value in adjusted.items()}
        if np.isfinite(adjusted["adjusted_multiplier"]).any():
            self.adjusted_at = int(state.epoch)
        return state, adjusted

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

    def _learner(self, state: loop.State) -> tuple[PyTree, int]:
        """The learner of an adjustment that was interrupted, with its iterations; or a fresh one."""
        path = checkpoint.learner_path(self.record.folder, int(state.epoch))
        if path.exists():
            like = {"done": jnp.asarray(0), "learner": jax.eval_shape(self.adjuster.begin, state)}
            try:
                saved = checkpoint.load(path, like)
                done = int(saved["done"])
                if 0 < done < self.adjuster.total and done % _PIECE == 0:
                    return saved["learner"], done
            except InvalidInput as error:
                self.progress.message(f"{error} The adjustment begins again.")
                checkpoint.set_aside(path)
        return self.adjuster.begin(state), 0

    def _save_learner(self, state: loop.State, learner: PyTree, done: int) -> None:
        epoch = int(state.epoch)
        path = checkpoint.learner_path(self.record.folder, epoch)
        checkpoint.save(path, {"done": jnp.asarray(done), "learner": learner}, epoch)
        self.saved_at, self.save_seconds = time.perf_counter(), 0.0
        if self.stop.asked:
            how_far = (
                f"stopped in the adjustment after {epoch} epochs, at {done:,} of {self.adjuster.total:,} iterations,"
            )
            raise self._interrupted(f"{how_far} all saved. {_how_to_go_on(self.record.folder, self.experiment)}", state)

    def _fail(self, state: loop.State, quantity: str, seeds: np.ndarray) -> None:
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


def history_of(stands: Standing) -> _History:
    """The metrics that a run has so far."""
    history = _History()
    history.restore(stands.rows, skip={"epoch", "seed", "samples", "seconds"} | runs.ADJUSTED)
    return history


def started(training: loop.Training, seeds: list[int], stands: Standing) -> loop.State:
    """The state that a run goes on from."""
    return loop.start(training, seeds) if stands.state is None else stands.state


def result_of(
    folder: Path,
    experiment: Experiment,
    training: loop.Training,
    history: _History,
    state: loop.State,
    interrupted: str = "",
) -> Result:
    """A run's results, from its metrics and its last state."""
    seeds = _seeds(experiment)
    return Result(
        path=folder,
        seeds=seeds,
        policies=chosen.policies(training, seeds, state),
        newest=chosen.policies(training, seeds, state, newest=True),
        best=chosen.found(training, seeds, state),
        metrics=history.by_seed(),
        title=f"{own.short(experiment.algorithm)} on {own.short(experiment.environment)}",
        limits=tuple(training.problem.limits),
        cost_names=tuple(training.environment.cost_names),
        interrupted=interrupted,
    )


def _default_folder(experiment: Experiment) -> Path:
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    algorithm, environment = (own.short(name) for name in (experiment.algorithm, experiment.environment))
    return Path("runs") / re.sub(r"[^\w.-]+", "-", f"{algorithm}-{environment}-{stamp}")


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
