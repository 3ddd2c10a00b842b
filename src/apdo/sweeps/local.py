"""Runs a sweep's jobs on this machine: a few processes, each of which does one job after the other.

If a process dies, its job is given once to another process, and its runs continue from their checkpoints. If there are
more processes than accelerators, some of them share one: small programs that take turns use it better.
"""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from apdo.errors import InvalidInput
from apdo.sweeps.work import AGAIN, FAILED, INTERRUPTED, Outcome, Task

_TRIES = 2
_SECONDS_TO_SAVE = 600.0
SHARING = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
"""Environment variables for processes that share an accelerator: none takes memory before it needs it."""


@runtime_checkable
class Executor(Protocol):
    """What does a sweep's jobs."""

    def takes(self) -> bool:
        """Whether it takes another job now."""
        ...

    def submit(self, job: Sequence[Task]) -> None:
        """Begin a job."""
        ...

    def poll(self, seconds: float) -> list[list[Outcome]]:
        """The outcomes of jobs that have ended since the last call. Waits at most so many seconds for one."""
        ...

    def stop(self) -> None:
        """Ask every job to save and end."""
        ...

    def close(self) -> None:
        """End everything, and release its resources."""
        ...


def fitting(backend: str, devices: int) -> int:
    """How many jobs suit this machine at the same time: one for each accelerator, or one for every two cores."""
    return devices if backend != "cpu" else max(1, (os.cpu_count() or 1) // 2)


class Pool:
    """Processes of this machine as an executor."""

    def __init__(self, logs: Path, count: int | None = None) -> None:
        """Start with `count` processes; None: one for each accelerator, or one for every two cores."""
        logs.mkdir(parents=True, exist_ok=True)
        self._logs, self._selector, self._stopping = logs, selectors.DefaultSelector(), False
        self._waiting: list[tuple[list[Task], int]] = []
        self.workers: list[_Worker] = []
        self._started = 0
        self._sharing, self._devices, self.pinned = (count or 1) > 1, 1, False
        first = self._start()
        hello = first.hello()
        self.backend = str(hello["backend"])
        """The platform on which JAX computes."""
        self.count = count or fitting(self.backend, int(hello["devices"]))
        """The number of jobs at once."""
        self._devices = int(hello["devices"])
        self._sharing = self.count > self._devices
        self.pinned = self.backend != "cpu" and self.count > 1 and self._devices > 1
        if self.pinned:
            # The first process sees all accelerators. Each process is to see only its own, as far as there are enough.
            self._end(first)
            self._start()

    def _start(self) -> "_Worker":
        device = None
        if self.pinned:
            taken = [worker.device for worker in self.workers]
            device = min(range(self._devices), key=taken.count)
        worker = _Worker(self._started, self._logs, device, SHARING if self._sharing else {})
        self._started += 1
        self.workers.append(worker)
        self._selector.register(worker.answers, selectors.EVENT_READ, worker)
        return worker

    def _end(self, worker: "_Worker") -> None:
        self._selector.unregister(worker.answers)
        self.workers.remove(worker)
        worker.end()

    def takes(self) -> bool:
        """Whether a process is free, or another one may be started."""
        return not self._stopping and sum(worker.job is not None for worker in self.workers) < self.count

    def submit(self, job: Sequence[Task], tries: int = 0) -> None:
        """Give a job to a free process."""
        free = next((worker for worker in self.workers if worker.job is None), None) or self._start()
        free.give(list(job), tries)

    def poll(self, seconds: float) -> list[list[Outcome]]:
        """The outcomes of jobs that have ended."""
        ended: list[list[Outcome]] = []
        for key, _ in self._selector.select(seconds):
            worker: _Worker = key.data
            line = worker.answers.readline()
            if not line:
                ended += self._bury(worker)
            elif worker.ready:
                ended.append([Outcome(**one) for one in json.loads(line)])
                worker.job = None
            else:
                worker.ready = True
        return ended

    def _bury(self, worker: "_Worker") -> list[list[Outcome]]:
        """Handle a process that ended by itself: its job is tried again, or reported as failed."""
        job, tries = worker.job, worker.tries + 1
        self._end(worker)
        if job is None:
            return []
        if self._stopping:
            return [[Outcome(task.folder, INTERRUPTED) for task in job]]
        why = f"the process that ran it ended with {worker.ended()}; its messages are in {worker.log}."
        if tries < _TRIES and worker.ready:
            self.submit(job, tries)
            return [[Outcome(job[0].folder, AGAIN, f"{why} It goes on in another.")]]
        return [[Outcome(task.folder, FAILED, why) for task in job]]

    def stop(self) -> None:
        """Send every process a signal; a process with a job saves it first."""
        self._stopping = True
        for worker in self.workers:
            worker.process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """End the processes, each after its job if it has one."""
        for worker in list(self.workers):
            self._end(worker)
        self._selector.close()


class _Worker:
    """One process of the pool."""

    def __init__(self, number: int, logs: Path, device: int | None, settings: Mapping[str, str]) -> None:
        self.log, self.device = logs / f"worker-{number}.log", device
        environment = {**settings, **os.environ}  # what the user has chosen stands
        if device is not None:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
            environment["CUDA_VISIBLE_DEVICES"] = (
                visible[device] if device < len(visible) and all(visible) else str(device)
            )
        with self.log.open("ab") as messages:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "apdo.sweeps.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=messages,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the sweep, which passes it on
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.jobs, self.answers = self.process.stdin, self.process.stdout
        self.job: list[Task] | None = None
        self.tries, self.ready = 0, False

    def hello(self) -> dict[str, str | int]:
        """What the process says first: its platform and its number of devices."""
        line = self.answers.readline()
        if not line:
            raise InvalidInput(f"a process for the runs could not be started ({self.ended()}); see {self.log}.")
        self.ready = True
        return json.loads(line)

    def give(self, job: list[Task], tries: int) -> None:
        """Begin a job."""
        self.job, self.tries = job, tries
        with contextlib.suppress(BrokenPipeError):  # if it has just died, its answers will tell
            self.jobs.write((json.dumps([vars(task) for task in job]) + "\n").encode())
            self.jobs.flush()

    def end(self) -> None:
        """Let the process end, and wait for it."""
        with contextlib.suppress(OSError):
            self.jobs.close()
        try:
            self.process.wait(_SECONDS_TO_SAVE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.answers.close()

    def ended(self) -> str:
        """How the process ended, in words."""
        code = self.process.wait()
        return f"signal {-code}" if code < 0 else f"status {code}"
