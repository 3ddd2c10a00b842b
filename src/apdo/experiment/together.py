"""Trains several runs in one program. They differ only in numbers, which become arguments of the program, [run × seed].

Groups that adjust after different epochs are separate programs, but their learners work side by side (`adjusting`).
Each run keeps its own folder, records and checkpoints, as if it ran alone. Up to rounding it also gives the same
results as alone, like seeds side by side. If a run fails, the others continue: copies of another run fill its rows, so
that the program need not change.
"""

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from apdo import algorithms, arguments, hosted, loop
from apdo.errors import Interrupted, NumericalFailure
from apdo.experiment import adjusting, compilation, history, memory, rows, runner
from apdo.experiment.callbacks import Callback
from apdo.experiment.opening import Opened
from apdo.experiment.progress import Progress
from apdo.experiment.runner import Runner
from apdo.experiment.settings import Experiment
from apdo.experiment.stopping import Stop

_SAVING = 8
"""The number of checkpoints that are written at the same time."""
Ends = dict[Path, BaseException | None]
"""How runs ended, by folder: an error, or None for a finished run."""
Turn = Generator[adjusting.Request, adjusting.Answer | None, None]
"""A group's training, which stops at each adjustment until the caller has made it."""


@runtime_checkable
class Planned(Protocol):
    """A run that is to be made."""

    @property
    def name(self) -> str:
        """Its name among the other runs."""
        ...

    @property
    def experiment(self) -> Experiment:
        """What it computes."""
        ...

    @property
    def folder(self) -> Path:
        """Its run folder."""
        ...


P = TypeVar("P", bound=Planned)


def alike(planned: Sequence[P], shared: bool) -> list[list[P]]:
    """Group the runs that may share a program if `shared`; otherwise each run is a group of its own."""
    found: dict[object, list[P]] = {}
    for one in planned:
        found.setdefault((likeness(one.experiment) if shared else None) or one.name, []).append(one)
    return list(found.values())


def likeness(experiment: Experiment) -> object:
    """A key that is equal for runs that may share a program, or their learners' one; None for a run that may not."""
    if hasattr(type(experiment.environment_config), "action_meaning"):
        return None  # of the host
    adjustment = getattr(algorithms.find(experiment.algorithm), "adjustment", None)
    config = experiment.algorithm_config if adjustment is None else adjustment.timeless(experiment.algorithm_config)
    parts = (dataclasses.replace(experiment.settings, seed=0), config, experiment.environment_config)
    return experiment.algorithm, experiment.environment, arguments.structure(parts)


def train(opened: Sequence[Opened], callbacks: Callable[[], Sequence[Callback]] = tuple, title: str = "") -> Ends:
    """Train runs whose folders are locked, in as few programs as possible, and return how each ended.

    `callbacks` makes the callbacks of a run. If there is a title, the progress of a program's first run is shown.
    """
    ends: Ends = {}
    waiting = list(opened)
    try:
        for bundle in bundles(groups(opened)):
            waiting = [one for one in waiting if not any(one is other for members in bundle for other in members)]
            ends |= _train(bundle, callbacks, title)
            if any(isinstance(end, KeyboardInterrupt | OSError) for end in ends.values()):
                break
    finally:
        for one in waiting:
            one.record.close("interrupted")
    return ends | {one.record.folder: Interrupted() for one in waiting}


def groups(opened: Iterable[Opened]) -> list[list[Opened]]:
    """Groups of runs that can share a program. No group is larger than memory allows."""
    alike: dict[object, list[Opened]] = {}
    for i, one in enumerate(opened):
        plan = one.experiment.settings
        what = arguments.structure(one.training), plan.epochs, plan.checkpoint_every, one.resume_point.epoch
        what = *what, one.resume_point.state is None  # a fresh start, or one from what was learned before
        alike.setdefault(("alone", i) if hosted.is_hosted(one.training) else what, []).append(one)
    found = []
    for members in alike.values():
        for part in _sharing(members):
            size = _fitting(part)
            found += [part[start : start + size] for start in range(0, len(part), size)]
    return found


def bundles(found: Sequence[list[Opened]]) -> list[list[list[Opened]]]:
    """Groups whose learners can work side by side, as far as memory allows. Every other group is alone."""
    bundled: list[list[list[Opened]]] = []
    for members in found:
        for bundle in bundled:
            if _joins(members, bundle):
                bundle.append(members)
                break
        else:
            bundled.append([members])
    return bundled


def _joins(members: list[Opened], bundle: list[list[Opened]]) -> bool:
    """Whether a group's learners can work beside those of the bundle."""
    every = [*bundle, members]
    first, other = (group[0].training for group in (bundle[0], members))
    what, there = adjusting.learning(other), memory.available()
    if what is None or hosted.is_hosted(other) or what != adjusting.learning(first):
        return False
    argued = {name for group in every for name in _varied([one.training for one in group])}
    if not _varied([one.training for group in every for one in group]) <= argued:
        return False
    rows = [sum(len(one.seeds) for one in group) for group in every]
    needed = sum(memory.needs(group[0].training, count) for group, count in zip(every, rows, strict=True))
    return there is None or needed <= there


def _sharing(members: list[Opened]) -> list[list[Opened]]:
    """Split runs of one structure by the numbers in which they differ and which cannot be arguments."""
    varied = sorted(_varied([one.training for one in members]))
    fixed = [] if not varied or can_be_arguments(members[0].training, varied) else varied
    if len(fixed) > 1:
        fixed = [name for name in varied if not can_be_arguments(members[0].training, [name])]
    parts: dict[tuple[float, ...], list[Opened]] = {}
    for one in members:
        own = arguments.numbers(one.training)
        parts.setdefault(tuple(own[name] for name in fixed), []).append(one)
    return list(parts.values())


def _fitting(members: Sequence[Opened]) -> int:
    """How many of these runs fit into memory at the same time."""
    count, there = len(members), memory.available()
    rows = max(len(one.seeds) for one in members)
    while count > 1 and there is not None and memory.needs(members[0].training, count * rows) > there:
        count = -(-count // 2)
    return count


def _varied(trainings: Sequence[loop.Training]) -> set[str]:
    """The names of the numbers in which the trainings differ."""
    every = [arguments.numbers(training) for training in trainings]
    return {name for name in every[0] if len({own[name] for own in every}) > 1}


def can_be_arguments(training: loop.Training, names: Sequence[str]) -> bool:
    """Whether a program can take these numbers as arguments, that is, be traced without knowing their values.

    An epoch is traced and, if the algorithm has one, an adjustment.
    """
    alone = dataclasses.replace(training, side_by_side=False)
    adjustment = getattr(training.algorithm, "adjustment", None)

    def trial(values: Mapping[str, Array]) -> PyTree:
        own, key = arguments.put(alone, values), jax.random.key(0)
        number = jnp.asarray(0, dtype=jnp.int32)
        state = own.algorithm.init(own.config, own.problem, key)
        after = loop.epoch(own, state, loop.first_best(own, state), key, number)
        if adjustment is None:
            return after
        learner = adjustment.begin(own.config, own.problem, after[0], key)
        learner = adjustment.work(own.config, own.problem, after[0], learner, number)
        return after, adjustment.finish(own.config, own.problem, after[0], learner, jnp.asarray(True))

    try:
        jax.eval_shape(trial, {name: jax.ShapeDtypeStruct((), jnp.float32) for name in names})
    # Any error means that a function needs the value of a number.
    except Exception:
        return False
    return True


def _train(bundle: Sequence[Sequence[Opened]], callbacks: Callable[[], Sequence[Callback]], title: str) -> Ends:
    compilation.keep_compiled_programs()
    members = [one for group in bundle for one in group]
    if len(members) == 1:
        return _alone(members[0], callbacks(), title)
    works = [[Runner(one, callbacks()) for one in group] for group in bundle]
    every = [work for group in works for work in group]
    ends: Ends = {}
    try:
        with contextlib.ExitStack() as stack:
            for work in every:
                stack.enter_context(runner.ending(work))
            first = members[0]
            limits = first.training.problem.limits
            shown = Progress(title, first.experiment.settings.epochs, limits, quiet=not title)
            progress = [stack.enter_context(shown), *(Progress("", 0, (), quiet=True) for _ in members[1:])]
            stop = stack.enter_context(Stop(shown.message))
            for work, own in zip(every, progress, strict=True):
                work.beside = len(every)
                work.prepare(own, stop)
            _in_turns([_Group(group, stop, ends) for group in works])
    except (Exception, KeyboardInterrupt) as error:
        return {work.record.folder: ends.get(work.record.folder, error) for work in every}
    return {work.record.folder: ends.get(work.record.folder) for work in every}


def _in_turns(groups: Sequence["_Group"]) -> None:
    """Train each group up to its next adjustment, make the adjustments of all groups together, and so on to the end."""
    if len(groups) > 1:
        with ThreadPoolExecutor(len(groups)) as pool:  # the compiler takes long, and one core
            list(pool.map(_Group.prepare, groups))
    with contextlib.ExitStack() as stack:
        turns = [stack.enter_context(contextlib.closing(group.train())) for group in groups]
        answers: list[adjusting.Answer | None] = [None for _ in groups]
        while turns:
            every = [(turn, _go_on(turn, answer)) for turn, answer in zip(turns, answers, strict=True)]
            asked = [(turn, request) for turn, request in every if request is not None]
            turns = [turn for turn, _ in asked]
            answers = list(adjusting.adjust([request for _, request in asked])) if asked else []


def _go_on(turn: Turn, answer: adjusting.Answer | None) -> adjusting.Request | None:
    """Continue a group's training. Returns its next adjustment, or None if the training is over."""
    try:
        return turn.send(answer)
    except StopIteration:
        return None


def _alone(one: Opened, callbacks: Sequence[Callback], title: str) -> Ends:
    try:
        runner.finish(one, quiet=not title, callbacks=callbacks)
    except BaseException as error:
        return {one.record.folder: error}
    return {one.record.folder: None}


class _Group:
    """Runs that share a program, trained from where they stand to their last epoch."""

    def __init__(self, works: Sequence[Runner], stop: Stop, ends: Ends) -> None:
        self.works, self.stop, self.ends = works, stop, ends
        self.live = list(range(len(works)))
        edges = np.cumsum([0, *(len(work.seeds) for work in works)]).tolist()
        self.rows = [slice(first, last) for first, last in itertools.pairwise(edges)]
        self.training = works[0].training
        every = [arguments.numbers(work.training) for work in works]
        counts = [len(work.seeds) for work in works]
        self.numbers = {
            name: jnp.asarray(np.repeat([own[name] for own in every], counts), dtype=jnp.float32)
            for name in _varied([work.training for work in works])
        }
        for work in works:
            work.share = 1.0 / len(works)
        self.advance = compilation.Advance(self.training)
        self.begun: loop.State | None = None
        """The program's first state; None once the program has begun."""
        self.writing = ThreadPoolExecutor(_SAVING)
        self.unwritten: list[Future[None]] = []
        """Checkpoints that are being written while the program continues."""

    def train(self) -> Turn:
        """Train all epochs of all runs. When this ends, every checkpoint has been written."""
        with self.writing:
            yield from self._train()
            self._settle()

    def _train(self) -> Turn:
        epoch, epochs = self.works[0].resume_point.epoch, self.works[0].experiment.settings.epochs
        state, self.begun = self.begun or self._start(), None
        while epoch < epochs and self.live:
            began = time.perf_counter()
            count = jnp.asarray(self.works[self.live[0]].count(epoch), dtype=jnp.int32)
            chunk = jax.block_until_ready(self.advance(state, count, self.numbers))
            elapsed = time.perf_counter() - began
            state, results = chunk.state, history.chunk_results(chunk)
            epoch += results.done
            adjusted: dict[int, adjusting.Adjusted] = {}
            if results.done and (asked := self._waiting(state, epoch)):
                parts = [adjusting.Part(self.works[i], self.rows[i]) for i in asked]
                answer = yield adjusting.Request(parts, state, self.numbers)
                assert answer is not None
                state, adjusted = answer[0], dict(zip(asked, answer[1], strict=True))
            failing = bool(loop.failures_in(results.finite)) or any(
                isinstance(one, NumericalFailure) for one in adjusted.values()
            )
            self._settle(wait=failing)  # a run that fails is saved at once, maybe under the same name
            saving = [i for i in self.live if self._record_chunk(i, results, epoch, elapsed, state, adjusted.get(i))]
            self._save(saving, state, epoch)
            over = [i for i in self.live if self.works[i].stopped or self.works[i].record.folder in self.ends]
            if over:
                self.live = [i for i in self.live if i not in over]
                state = self._replace(state)
            if self.stop.asked and epoch < epochs and self.live:
                self._save(self.live, state, epoch)
                self._settle()
                first = self.live[0]
                self.works[first].interrupt(rows.of(state, self.rows[first]), epoch)

    def prepare(self) -> None:
        """Compile the programs and make the first state."""
        self.begun = self._start()
        self.advance.prepare(self.begun, jnp.asarray(1, dtype=jnp.int32), self.numbers)
        self.works[0].adjuster.begin(self.begun, self.numbers)

    def _start(self) -> loop.State:
        states = [work.resume_point.state for work in self.works]
        if any(state is None for state in states):
            return loop.start(self.training, [seed for work in self.works for seed in work.seeds], self.numbers)
        return rows.joined([state for state in states if state is not None])

    def _waiting(self, state: loop.State, epoch: int) -> list[int]:
        """The runs that wait for an adjustment after so many epochs."""
        adjuster = self.works[0].adjuster
        if not adjuster.due(epoch - 1):
            return []
        waiting = adjuster.open(state)
        return [i for i in self.live if waiting[self.rows[i]].any()]

    def _record_chunk(
        self,
        i: int,
        results: history.ChunkResults,
        epoch: int,
        elapsed: float,
        state: loop.State,
        adjusted: adjusting.Adjusted | None,
    ) -> bool:
        """Record the results in a run's rows. Returns whether to save it. A failure is recorded too."""
        work, own = self.works[i], self.rows[i]
        try:
            return work.record_chunk(results.of(own), epoch, elapsed, partial(rows.of, state, own), adjusted)
        except NumericalFailure as error:
            work.close("failed", error=str(error))
            self.ends[work.record.folder] = error
            return False

    def _save(self, which: Sequence[int], state: loop.State, epoch: int) -> None:
        """Begin to write checkpoints of some runs at the same time, after the earlier ones have been written."""
        if which:
            self._settle()
            here = rows.on_host(state)
            mine = [(self.works[i], rows.of(here, self.rows[i])) for i in which]
            self.unwritten = [self.writing.submit(work.save, own, epoch) for work, own in mine]

    def _settle(self, wait: bool = True) -> None:
        """Raise the errors of checkpoints: of all of them if `wait`, otherwise of those that have been written."""
        for one in [one for one in self.unwritten if wait or one.done()]:
            self.unwritten.remove(one)
            one.result()

    def _replace(self, state: loop.State) -> loop.State:
        """Replace the rows of runs that are over by copies of a run that is not."""
        if not self.live:
            return state
        source = np.arange(self.rows[-1].stop)
        for i, own in enumerate(self.rows):
            if i not in self.live:
                source[own] = self.rows[self.live[0]].start
        self.numbers = {name: values[source] for name, values in self.numbers.items()}
        return rows.of(state, source)
