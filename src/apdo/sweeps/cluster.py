"""Runs a sweep's jobs as tasks of Ray, on this machine or on a cluster started with `ray start`. Extra: apdo[ray].

Ray schedules the tasks, and runs a task again if its node dies. A job keeps everything in its run folders, on storage
that all nodes share. So a task that is run again continues from the last checkpoints. If the process of the sweep dies,
its tasks end too; starting the sweep again continues it.
"""

import dataclasses
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from apdo.envs import ray_workers
from apdo.errors import InvalidInput
from apdo.experiment import records
from apdo.sweeps.work import FAILED, INTERRUPTED, Outcome, Task

RETRIES = 20
"""How often a task is run again whose process or node has died."""
_SECONDS_TO_ANSWER = 5.0
_SAME = ("apdo", "jax", "python")


def do_on_node(tasks: Sequence[Mapping[str, Any]], about: Mapping[str, str]) -> list[dict[str, str]]:
    """Do a job on whatever node Ray has chosen; arguments and results are plain values."""
    folders = [str(task["folder"]) for task in tasks]
    if not about["gpus"]:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if why := _unfit(about):
        return [dataclasses.asdict(Outcome(folder, FAILED, why)) for folder in folders]
    import jax

    from apdo.sweeps import work

    found = work.perform([Task(**dict(task)) for task in tasks])
    jax.clear_caches()  # the process stays for other tasks, which have programs of their own
    return [dataclasses.asdict(one) for one in found]


def about_here() -> dict[str, str]:
    """The versions that every node must have in common with the machine that started the sweep."""
    found = records.versions()
    return {name: found[name] for name in _SAME}


def _unfit(about: Mapping[str, str]) -> str:
    """The reason why a node cannot do a job, in one sentence; empty if it can."""
    here, node = about_here(), socket.gethostname()
    for name in _SAME:
        if here[name] != about[name]:
            return f"the node {node} has {name} {here[name]}, and the sweep was started with {about[name]}."
    if not Path(about["page"]).exists():
        return f"the node {node} does not see {about['page']}: the sweep's folder must be shared by all nodes."
    return ""


class Cluster:
    """A Ray cluster as an executor."""

    def __init__(self, page: Path, address: str | None = None, cpus: float = 1.0, gpus: float | None = None) -> None:
        """Join the cluster at an address, or start one on this machine.

        `cpus` and `gpus` are set apart for each job. `gpus=None` means one GPU if the cluster has any.
        """
        self._ray = ray = ray_workers.package()
        if address:
            _check_answers(address)
        try:
            there = {"address": address} if address else {"address": "local", "include_dashboard": False}
            ray.init(**there, log_to_driver=False, logging_level="ERROR", ignore_reinit_error=True)
        except Exception as error:
            raise InvalidInput(f"Ray could not be reached at {address or 'this machine'}: {_first(error)}") from None
        resources = ray.cluster_resources()
        self.gpus = (1.0 if resources.get("GPU") else 0.0) if gpus is None else gpus
        self.backend = "gpu" if self.gpus else "cpu"
        """The platform on which jobs compute."""
        fitting = [resources.get("CPU", 1.0) // cpus] + ([resources.get("GPU", 0.0) // self.gpus] if self.gpus else [])
        self.count = max(1, int(min(fitting)))
        """The number of jobs at once."""
        self._about = {**about_here(), "page": str(page.absolute()), "gpus": "yes" if self.gpus else ""}
        self._do = ray.remote(num_cpus=cpus, num_gpus=self.gpus, max_retries=RETRIES)(do_on_node)
        self._jobs: dict[Any, list[str]] = {}
        self._stopping = False

    def takes(self) -> bool:
        """Whether it takes another job: always until it is stopped, because Ray keeps a queue."""
        return not self._stopping

    def submit(self, job: Sequence[Task]) -> None:
        """Submit a job as a task of Ray."""
        plain = [dataclasses.asdict(task) for task in job]
        self._jobs[self._do.remote(plain, self._about)] = [task.folder for task in job]

    def poll(self, seconds: float) -> list[list[Outcome]]:
        """The outcomes of tasks that have ended."""
        every = list(self._jobs)
        ready, _ = self._ray.wait(every, num_returns=1, timeout=seconds) if every else ([], [])
        if ready:
            ready, _ = self._ray.wait(every, num_returns=len(every), timeout=0)
        return [self._ended(one, self._jobs.pop(one)) for one in ready]

    def _ended(self, task: Any, folders: list[str]) -> list[Outcome]:  # noqa: ANN401
        errors = self._ray.exceptions
        try:
            return [Outcome(**one) for one in self._ray.get(task)]
        except (errors.TaskCancelledError, KeyboardInterrupt):
            return [Outcome(folder, INTERRUPTED) for folder in folders]
        except (errors.RayError, RuntimeError) as error:
            if self._stopping:
                return [Outcome(folder, INTERRUPTED) for folder in folders]
            lost = "ModuleNotFoundError" in str(error)
            why = "a node has not the same apdo installed: " if lost else "Ray lost the task: "
            return [Outcome(folder, FAILED, why + _first(error)) for folder in folders]

    def stop(self) -> None:
        """Cancel waiting tasks, and ask running ones to save and end."""
        self._stopping = True
        for task in self._jobs:
            self._ray.cancel(task, force=False)

    def close(self) -> None:
        """Leave the cluster; a cluster that was started here ends."""
        self._ray.shutdown()


def _check_answers(address: str) -> None:
    """Raise InvalidInput if nothing answers at an address, because Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        if address == "auto":
            return
        raise InvalidInput(f"--address must be HOST:PORT, as `ray start --head` prints it, not {address!r}.")
    try:
        socket.create_connection((host, int(port)), _SECONDS_TO_ANSWER).close()
    except (OSError, OverflowError) as error:
        raise InvalidInput(
            f"no Ray cluster answers at {address}: {getattr(error, 'strerror', None) or error}."
        ) from None


def _first(error: BaseException) -> str:
    """The most informative line of a long error: the last one that is not empty."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:300]
