"""Jobs as jobs of Slurm, through submitit; the extra is apdo[slurm].

Slurm schedules. As with Ray, all that a job has computed lies in its run folders, so that a job that was lost with its
node or stopped at its time limit is submitted again and goes on from the last checkpoints. Jobs outlive a sweep that
dies; one that is called again waits until they have let go of the run folders.
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
"""How often a job is submitted that ends without an answer."""
MINUTES = 24 * 60
"""The time limit of a job."""
_WAIT = 0.2


class Slurm:
    """A Slurm cluster that does jobs."""

    def __init__(
        self,
        page: Path,
        cpus: float = 1.0,
        gpus: float | None = None,
        partition: str | None = None,
        minutes: int = MINUTES,
        where: str = "slurm",
    ) -> None:
        """Each job has so many CPUs and GPUs; `where` is submitit's name for another place, such as "local"."""
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
        """What jobs compute on."""
        self.count = 1
        """Into how many jobs runs are divided that may share a program: Slurm does not say what it has."""
        self._about = {**cluster.about_here(), "page": str(page.absolute()), "gpus": "yes" if gpus else ""}
        self._jobs: list[tuple[Any, list[Task], int]] = []
        self._stopping = False

    def takes(self) -> bool:
        """Slurm keeps what waits."""
        return not self._stopping

    def submit(self, job: Sequence[Task], tries: int = 1) -> None:
        """Make a job one of Slurm's."""
        plain = [dataclasses.asdict(task) for task in job]
        self._jobs.append((self._executor.submit(cluster.do_on_node, plain, self._about), list(job), tries))

    def poll(self, seconds: float) -> list[list[Outcome]]:
        """Outcomes of jobs that have ended."""
        until = time.monotonic() + seconds
        while not (over := [one for one in self._jobs if one[0].done()]) and time.monotonic() < until:
            time.sleep(_WAIT)
        self._jobs = [one for one in self._jobs if not any(one is other for other in over)]
        return [found for one in over if (found := self._ended(*one))]

    def _ended(self, job: Any, tasks: list[Task], tries: int) -> list[Outcome]:  # noqa: ANN401
        """How the runs of a job ended; nothing if it is submitted again."""
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
        """Cancel every job; the runs go on from their last checkpoints."""
        self._stopping = True
        for job, _, _ in self._jobs:
            with contextlib.suppress(Exception):
                job.cancel(check=False)

    def close(self) -> None:
        """Nothing is kept open."""


def _package() -> Any:  # noqa: ANN401
    try:
        return importlib.import_module("submitit")
    except ImportError:
        raise InvalidInput("submitit is not installed; get it with: pip install 'apdo[slurm]'") from None
