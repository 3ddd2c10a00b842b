"""Gives jobs to an executor until all are over, and shows their progress, which it reads from the run folders."""

import dataclasses
import time
from collections import deque
from collections.abc import Sequence

from apdo.errors import Interrupted, StorageFailure
from apdo.experiment.mirrors import Watch
from apdo.experiment.stopping import Stop
from apdo.experiment.together import Planned
from apdo.report.following import Follower, Sight
from apdo.sweeps import display
from apdo.sweeps.local import Executor
from apdo.sweeps.work import AGAIN, FAILED, FINISHED, INTERRUPTED, STORAGE, Outcome, Task

LOOK_EVERY = 0.5
"""Seconds between two readings of the run folders."""


def samples(run: Planned) -> int:
    """The environment steps of a run, over all seeds."""
    return run.experiment.settings.samples * run.experiment.settings.seeds


class Driver:
    """Gives jobs to an executor until all are over, and shows their progress."""

    def __init__(
        self,
        jobs: Sequence[Sequence[Planned]],
        executor: Executor,
        title: str,
        command: str,
        ended: int = 0,
        failed: int = 0,
        quiet: bool = False,
        watch: Watch | None = None,
    ) -> None:
        """`ended` and `failed` runs were over before. `command` is what the user types to continue."""
        self.executor, self.title, self.command, self.quiet = executor, title, command, quiet
        self.watch = dataclasses.asdict(watch or Watch())
        self.queue = deque(jobs)
        self.by_folder = {_folder(run): run for job in jobs for run in job}
        self.followers = {folder: Follower(run.folder) for folder, run in self.by_folder.items()}
        self.sights: dict[str, Sight] = {}
        self.running: set[str] = set()
        self.before, self.total, self.failed_before = ended, len(self.by_folder) + ended + failed, failed
        self.done: set[str] = set()
        self.failed: dict[str, str] = {}
        self.storage = ""
        self.interrupted = False
        self.began, self.found_there = time.monotonic(), 0.0

    def drive(self) -> dict[str, str]:
        """Do all jobs, and return the reasons of the runs that failed, by name."""
        with display.Display(self.title, self.quiet) as shown, Stop(shown.message) as stop:
            self.shown = shown
            self.found_there, stopping = self._computed(), False
            while self.queue or self.running:
                while self.queue and self.executor.takes():
                    self._begin(self.queue.popleft())
                for outcomes in self.executor.poll(LOOK_EVERY):
                    for outcome in outcomes:
                        self._note(outcome)
                self._show()
                self.interrupted |= stop.asked or bool(self.storage)
                if self.interrupted and not stopping:
                    stopping = True
                    self.queue.clear()
                    self.executor.stop()
        if self.storage:
            raise StorageFailure(f"{self.storage} Go on with: {self.command}")
        if self.interrupted:
            done = self.before + len(self.done)
            raise Interrupted(
                f"stopped with {done} of {self.total} runs done, and the others saved. Go on with: {self.command}"
            )
        return {self.by_folder[folder].name: why for folder, why in self.failed.items()}

    def _begin(self, job: Sequence[Planned]) -> None:
        tasks = [Task(_folder(run), run.experiment.describe(), self.watch) for run in job]
        self.running |= {task.folder for task in tasks}
        self.executor.submit(tasks)

    def _note(self, outcome: Outcome) -> None:
        folder = outcome.folder
        name = self.by_folder[folder].name
        if outcome.status == AGAIN:
            self.shown.message(f"{name}: {outcome.error}")
            return
        self.running.discard(folder)
        if outcome.status == FINISHED:
            self.done.add(folder)
            self.shown.message(display.line(name, self._look(folder)))
        elif outcome.status == FAILED:
            self.failed[folder] = outcome.error
            self.shown.message(f"{name}: failed: {outcome.error}")
        elif outcome.status == STORAGE:
            self.storage = outcome.error
        elif outcome.status == INTERRUPTED:
            self.interrupted = True

    def _look(self, folder: str) -> Sight:
        self.sights[folder] = self.followers[folder].look()
        return self.sights[folder]

    def _show(self) -> None:
        given = [(self.by_folder[folder].name, self._look(folder)) for folder in sorted(self.running)]
        # An executor may keep jobs waiting that it has accepted.
        working = [(name, sight) for name, sight in given if sight.status == "running"]
        others = [(self.by_folder[f].name, s) for f, s in self.sights.items() if f not in self.running]
        head = display.summary(
            self.before + len(self.done),
            len(working),
            self.failed_before + len(self.failed),
            self.total,
            self._left(),
        )
        self.shown.show(head, [*working, *reversed(others)])

    def _computed(self) -> float:
        """The samples that are computed so far, of all runs that were to do."""
        total = 0.0
        for folder, run in self.by_folder.items():
            if folder in self.done or folder in self.failed:
                total += samples(run)
            elif (sight := self.sights.get(folder)) is not None:
                total += samples(run) * sight.done / max(1, run.experiment.settings.epochs)
        return total

    def _left(self) -> float | None:
        done = self._computed()
        elapsed, since = time.monotonic() - self.began, done - self.found_there
        if since <= 0:
            return None
        return elapsed / since * (sum(samples(run) for run in self.by_folder.values()) - done)


def _folder(run: Planned) -> str:
    """The name of a run in jobs and outcomes."""
    return str(run.folder.absolute())
