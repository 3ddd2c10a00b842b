"""A process that does a sweep's jobs on this machine, one after the other: `python -m apdo.sweeps.worker`.

It first prints which devices it has. Jobs and their outcomes are lines of JSON. When its input ends, or a signal comes,
it finishes the epoch, saves and ends.
"""

import dataclasses
import json
import os
import queue
import signal
import sys
import threading

from apdo.sweeps import work


def main() -> None:
    """Do jobs until there are no more."""
    # The output of environments must not mix with the outcomes.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    jobs: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_listen, args=(jobs,), daemon=True).start()

    import jax

    hello = {"backend": jax.default_backend(), "devices": jax.device_count()}
    print(json.dumps(hello), file=answers, flush=True)
    while line := jobs.get():
        tasks = [work.Task(**task) for task in json.loads(line)]
        found = work.perform(tasks)
        print(json.dumps([dataclasses.asdict(one) for one in found]), file=answers, flush=True)
        jax.clear_caches()


def _listen(jobs: queue.Queue[str]) -> None:
    for line in sys.stdin:
        jobs.put(line)
    jobs.put("")
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
