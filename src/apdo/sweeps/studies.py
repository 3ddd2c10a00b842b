"""Runs the paper's studies (`experiment.reproduce`) with several jobs at once, in several processes."""

import os
from collections.abc import Sequence
from functools import partial

from apdo.experiment import reproduce
from apdo.experiment.reproduce import Block, Plan
from apdo.sweeps import driving, local

MOST = 4
"""The default number of jobs that share an accelerator: a program of small steps leaves most of it idle."""


def run(wanted: Plan, command: str, shared: bool | None = None, jobs: int | None = None) -> None:
    """Run what is missing, `jobs` programs at once, and write the figures and the page.

    `jobs=None` means one on a CPU, because a single program fills it, and up to `MOST` on an accelerator.
    """
    if jobs != 1:
        # This process only looks which devices there are. It must leave their memory to the others.
        for name, value in local.SHARING.items():
            os.environ.setdefault(name, value)
    count = _fitting() if jobs is None else jobs
    elsewhere = partial(_in_processes, wanted, command, count) if count > 1 else None
    reproduce.reproduce(wanted, command, shared, count, elsewhere)


def _fitting() -> int:
    import jax

    return 1 if jax.default_backend() == "cpu" else max(MOST, jax.device_count())


def _in_processes(wanted: Plan, command: str, count: int, jobs: Sequence[Sequence[Block]]) -> dict[str, str]:
    pool = local.Pool(wanted.out / "logs", min(count, len(jobs)))
    try:
        return driving.Driver(jobs, pool, f"studies in {wanted.out}", command).drive()
    finally:
        pool.close()
