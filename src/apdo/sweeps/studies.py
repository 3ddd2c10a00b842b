"""The paper's studies (`experiment.reproduce`) with their jobs in several processes at once."""

import os
from collections.abc import Sequence
from functools import partial

from apdo.experiment import reproduce
from apdo.experiment.reproduce import Block, Plan
from apdo.sweeps import driving, local

MOST = 4
"""Jobs that share an accelerator unless told otherwise: a program of small steps leaves much of it idle."""


def run(wanted: Plan, command: str, shared: bool | None = None, jobs: int | None = None) -> None:
    """Run what is missing, `jobs` programs at once, and write the pictures and the page.

    None: one on a CPU, which a single program fills, and up to `MOST` on an accelerator.
    """
    if jobs != 1:
        # This process asks what there is to compute on, and must leave it to the others.
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
