"""Runs a sweep's jobs as jobs of Slurm, through submitit. Extra: apdo[slurm].

Slurm schedules the jobs. As with Ray, a job keeps everything in its run folders. So a job that was lost with its node,
or stopped at its time limit, is submitted again and continues from the last checkpoints. If the process of the sweep
dies, its jobs continue. A sweep that is started again waits until they have released the run folders.
"""

import contextlib
import dataclasses
import importlib
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from apdo.errors import InvalidInput
from apdo.sweeps import cluster
from apdo.sweeps.work import FAILED, INTERRUPTED, Outcome, Task

TRIES = 5
"""How often a job is submitted if it ends without an answer."""
MINUTES = 24 * 60
"""The default time limit of a job, in minutes."""
_WAIT = 0.2


class Slurm:
    """A Slurm cluster as an executor."""

    def __init__(
        self,
        page: Path,
        cpus: float = 1.0,
        gpus: float | None = None,
        partition: str | None = None,
        minutes: int = MINUTES,
        where: str = "slurm",
    ) -> None:
        """`cpus` and `gpus` are set apart for each job. `where` is submitit's name for the place, such as "local"."""
        submitit = _package()
        if where == "slurm" and shutil.which("srun") is None:
            raise InvalidInput("there is no Slurm here: its command srun is not found.")
        whole = {"cpus": cpus, "gpus": gpus or 0.0}
        for name, value in whole.items():
            if value != int(value):
                raise InvalidInput(f"--{name} must be a whole number for Slurm, not {value:g}.")
        self._executor = submitit.AutoExecutor(folder=str(page.parent / "logs" / "slurm"), cluster=where)
        self._executor.update_parameters(
            name="apdo",
            timeout_min=minutes,
            cpus_per_task=max(1, int(cpus)),
            gpus_per_node=int(gpus or 0),
            **({"slurm_partition": partition} if partition else {}),
        )
        self.backend = "gpu" if gpus else "cpu"
        """The platform on which jobs compute."""
        self.count = 1
        """Into how many jobs the runs that may share a program are divided. Slurm does not say how many it can take."""
        self._about = {**cluster.about_here(), "page": str(page.absolute()), "gpus": "yes" if gpus else ""}
        self._jobs: list[tuple[Any, list[Task], int]] = []
        self._stopping = False

    def takes(self) -> bool:
        """Whether it takes another job: always until it is stopped, because Slurm keeps a queue."""
        return not self._stopping

    def submit(self, job: Sequence[Task], tries: int = 1) -> None:
        """Submit a job to Slurm."""
        plain = [dataclasses.asdict(task) for task in job]
        self._jobs.append((self._executor.submit(cluster.do_on_node, plain, self._about), list(job), tries))

    def poll(self, seconds: float) -> list[list[Outcome]]:
        """The outcomes of jobs that have ended."""
        until = time.monotonic() + seconds
        while not (over := [one for one in self._jobs if one[0].done()]) and time.monotonic() < until:
            time.sleep(_WAIT)
        self._jobs = [one for one in self._jobs if not any(one is other for other in over)]
        return [found for one in over if (found := self._ended(*one))]

    def _ended(self, job: Any, tasks: list[Task], tries: int) -> list[Outcome]:  # noqa: ANN401
        """The outcomes of a job's runs; empty if the job is submitted again."""
        error = job.exception()
        found = [Outcome(**one) for one in job.result()] if error is None else []
        lost = error is not None or any(one.status == INTERRUPTED for one in found)
        if self._stopping:
            return found or [Outcome(task.folder, INTERRUPTED) for task in tasks]
        if not lost:
            return found
        if tries < TRIES:
            self.submit(tasks, tries + 1)
            return []
        why = f"its job ended {tries} times without an answer; {job.paths.stderr} has the last one's messages."
        return [Outcome(task.folder, FAILED, why) for task in tasks]

    def stop(self) -> None:
        """Cancel every job; the runs can continue from their last checkpoints."""
        self._stopping = True
        for job, _, _ in self._jobs:
            with contextlib.suppress(Exception):
                job.cancel(check=False)

    def close(self) -> None:
        """Do nothing: no connection is kept open."""


def _package() -> Any:  # noqa: ANN401
    try:
        return importlib.import_module("submitit")
    except ImportError:
        raise InvalidInput("submitit is not installed; get it with: pip install 'apdo[slurm]'") from None
