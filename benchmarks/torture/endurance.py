"""Memory over many epochs, a disk that fills up, and two processes on one run folder."""

import contextlib
import json
import resource
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.torture import common

SETTLED = 100
"""Epochs after which memory may not grow any more."""

MEASURE = """
import json, sys
from apdo.experiment import records
sizes, append = [], records.Records.append
def measured(self, rows):
    append(self, rows)
    with open("/proc/self/statm") as file:
        sizes.append(int(file.read().split()[1]) * 4096)
records.Records.append = measured
from apdo.cli import main
main(sys.argv[1:])
print(json.dumps(sizes))
"""


def memory(epochs: int, jobs: int, work: Path, report: common.Report) -> None:
    def one(algorithm):
        out = work / "memory" / algorithm
        shutil.rmtree(out, ignore_errors=True)
        arguments = [*map(str, common.train(algorithm, out, "--epochs", epochs, "--checkpoint-every", 100))]
        command = [sys.executable, "-c", MEASURE, *arguments]
        done = subprocess.run(command, env=common.environment(work / "cache"), capture_output=True, text=True)
        if done.returncode:
            return report.add(problems=[f"{algorithm}: exit {done.returncode}: {done.stderr[-300:]}"])
        sizes = json.loads(done.stdout.splitlines()[-1])
        start = min(SETTLED, len(sizes) // 2)
        growth = 100 * (max(sizes[-len(sizes) // 10 :]) / max(sizes[start : start + 20]) - 1)
        told = {"megabytes": round(sizes[-1] / 1e6), "growth in percent": round(growth, 2), "epochs": len(sizes)}
        problems = [f"{algorithm} grew by {growth:.2f} %"] if growth >= 1.0 or len(sizes) != epochs else []
        return report.add(done=1, problems=problems, **{algorithm: told})

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, common.ALGORITHMS))


def disk(jobs: int, work: Path, report: common.Report, known) -> None:
    """Every checkpoint is kept, on a file system that cannot hold them; then it grows, and the run goes on."""

    def one(algorithm):
        with small_disk(work / "disk" / algorithm) as (place, grow):
            out, folder = place / "run", known[algorithm][0]
            options = ("--resume", "--checkpoint-every", 1, "--keep", 1000)
            # Where no small disk can be made, no file may have more than a few bytes: the first checkpoint fails.
            limit = None if grow else lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))
            process = common.start(common.train(algorithm, out, *options), work / "cache", prepare=limit)
            _, error = process.communicate()
            problems = []
            sentence = "no space left" if grow else "file too large"
            if process.returncode != 1 or error.count("\n") != 1 or sentence not in error:
                problems.append(f"{algorithm}: exit {process.returncode}, said {error[-300:]!r}")
            if any(out.glob("**/*.partial")):
                problems.append(f"{algorithm}: a partial file is left")
            saved = sorted(out.glob("checkpoints/epoch-*.npz"))
            for path in saved:
                if common.arrays(path) != common.arrays(folder / "checkpoints" / path.name):
                    problems.append(f"{algorithm}: {path.name} is not what it should be")
            if grow:
                grow()
            else:
                report.add(reason="no tmpfs can be mounted here, so that the size of files was limited instead")
            process = common.start(common.train(algorithm, out, *options), work / "cache")
            _, error = process.communicate()
            differs = f"exit {process.returncode}: {error}" if process.returncode else common.difference(out, folder)
            problems += [f"{algorithm}, with space again: {differs}"] if differs else []
            return report.add(
                done=1, problems=problems, **{f"checkpoints of {algorithm} before it was full": len(saved)}
            )

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, common.ALGORITHMS))


SIZES = {"trpo": 256, "pdo": 512, "cpo": 512, "pd-ddpg": 6144, "apdo": 3072}
"""Kilobytes that hold some of the checkpoints of a tiny run, and not all."""


@contextlib.contextmanager
def small_disk(place: Path):
    """A file system of a few hundred kilobytes, and a function that makes it larger; None where none can be made."""
    place.mkdir(parents=True, exist_ok=True)
    size = SIZES[place.name]
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(place)]
    try:
        made = subprocess.run(mount, capture_output=True).returncode == 0
    except OSError:
        made = False
    if not made:
        yield place, None
        return
    try:
        yield place, lambda: subprocess.run(["mount", "-o", "remount,size=512m", str(place)], check=True)
    finally:
        subprocess.run(["umount", str(place)], check=False)


def two(work: Path, report: common.Report) -> None:
    """A second process on the folder of a run that is going: by every command that would write there."""
    out = work / "two" / "run"
    shutil.rmtree(out, ignore_errors=True)
    first = common.start(common.train("pdo", out, "--epochs", 1_000_000), work / "cache")
    while first.poll() is None and not (out / "metrics.jsonl").exists():
        time.sleep(0.05)
    goes_on = common.train("pdo", out, "--epochs", 1_000_000, "--resume")
    for name, arguments in {"resume": ["resume", out], "train --resume": goes_on}.items():
        second = common.start(arguments, work / "cache")
        _, error = second.communicate()
        refused = second.returncode == 2 and "another process" in error and error.count("\n") == 1
        problems = [] if refused else [f"{name}: exit {second.returncode}: {error[-300:]}"]
        report.add(done=1, problems=problems)
    first.terminate()
    _, error = first.communicate()
    stopped = first.returncode == 0 and "Go on with: apdo resume" in error
    report.add(done=1, problems=[] if stopped else [f"SIGTERM: exit {first.returncode}: {error[-300:]}"])
