"""kill -9 at random moments of a run's life, then go on; what comes out is compared with the run left alone."""

import itertools
import random
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.torture import common

PER_RUN = 4


def references(work: Path, jobs: int):
    """A run of each algorithm that nothing disturbs, every checkpoint kept; how long the second, warm one takes."""

    def one(algorithm):
        folder = work / "reference" / algorithm
        cache = work / "cache"
        for place in (work / "warm-up" / algorithm, folder):
            shutil.rmtree(place, ignore_errors=True)
            began = time.monotonic()
            process = common.start(common.train(algorithm, place, "--checkpoint-every", 1, "--keep", 1000), cache)
            _, error = process.communicate()
            if process.returncode:
                raise RuntimeError(f"{algorithm} fails by itself: {error}")
        return algorithm, (folder, time.monotonic() - began)

    with ThreadPoolExecutor(jobs) as pool:
        return dict(pool.map(one, common.ALGORITHMS))


def torture(count: int, jobs: int, work: Path, report: common.Report, seed: int, known) -> None:
    tasks = []
    for i, algorithm in zip(range(-(-count // PER_RUN)), itertools.cycle(common.ALGORITHMS), strict=False):
        tasks.append((algorithm, min(PER_RUN, count - i * PER_RUN), work / "kills" / str(i), seed + i))

    def one(task):
        algorithm, quota, place, own = task
        report.add(**_lives(algorithm, quota, place, random.Random(own), work / "cache", known[algorithm]))

    with ThreadPoolExecutor(jobs) as pool:
        for _ in pool.map(one, tasks):
            pass


def _lives(algorithm, quota, place: Path, rng, cache, reference) -> dict[str, Any]:
    """Runs that are killed `quota` times in all, each taken to its end and compared."""
    folder, seconds = reference
    problems, kills, moments = [], 0, {}
    for life in itertools.count():
        out, here = place / str(life), 0
        every = rng.choice([1, 2, 5, 50])
        while True:
            last = kills >= quota
            arguments = common.train(algorithm, out, "--resume", "--checkpoint-every", every, "--keep", 2)
            process = common.start(arguments, cache, 10 ** rng.uniform(-2.5, -0.3), 10 ** rng.uniform(-2, 0.3))
            killed = "" if last else _kill(process, algorithm, out, rng, seconds)
            _, error = process.communicate()
            if not killed:
                break
            kills, here = kills + 1, here + 1
            moments[killed] = moments.get(killed, 0) + 1
        if process.returncode:
            problems.append(f"{algorithm}, {out}: exit {process.returncode}: {error.strip()[-300:]}")
        elif differs := common.difference(out, folder):
            problems.append(f"{algorithm}, {out}: {differs}")
        else:
            shutil.rmtree(out)
            moments["identical"] = moments.get("identical", 0) + here
        if kills >= quota:
            break
    return {"done": kills, "problems": problems, f"kills of {algorithm}": kills, **moments}


def _kill(process, algorithm, out: Path, rng, seconds) -> str:
    """Kill the process at a moment drawn by the clock or by what it has written: where that hit; empty if it ended."""
    kind = rng.choice(["clock", "row", "row", "checkpoint"] + ["learner"] * (algorithm == "apdo"))
    deadline = time.monotonic() + (rng.uniform(0.0, seconds) if kind == "clock" else 120.0)
    wanted = rng.randrange(0, 2 * common.EPOCHS)
    pause = rng.uniform(0.0, 0.03)
    while process.poll() is None and time.monotonic() < deadline:
        if kind == "row" and _lines(out) > wanted:
            time.sleep(pause)
            break
        if kind == "checkpoint" and _lines(out) >= wanted // 2 and any(out.glob("checkpoints/*.partial")):
            break
        if kind == "learner" and any(out.glob("checkpoints/learner-*.npz")):
            time.sleep(pause)
            break
        time.sleep(0.0005 if kind == "checkpoint" else 0.003)
    if process.poll() is not None:
        return ""
    process.kill()
    process.wait()
    if process.returncode != -9:
        return ""
    if any(out.glob("**/*.partial")):
        return "while a file was being written"
    if any(out.glob("checkpoints/learner-*.npz")):
        return "in the adjustment"
    return "between files, epochs done" if _lines(out) else "before the first epoch"


def _lines(out: Path) -> int:
    try:
        return (out / "metrics.jsonl").read_bytes().count(b"\n")
    except OSError:
        return 0
