"""What the parts of the torture share: tiny runs of every algorithm, how to start them, how to compare them."""

import json
import os
import platform
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks import provenance

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results" / "reliability"

NETWORKS = ["--policy.hidden", "8", "--critic.hidden", "8", "--critic.passes", "1", "--critic.minibatches", "2"]
LEARNER = {"critic-hidden": "8", "actor-hidden": "8", "minibatch": "8"}
EPOCHS = 30
RUN = ["--epochs", str(EPOCHS), "--batch", "60", "--seeds", "2"]
ALGORITHMS = {
    "trpo": NETWORKS,
    "pdo": [*NETWORKS, "--primal", "ppo", "--primal.passes", "2", "--primal.minibatches", "2"],
    "cpo": NETWORKS,
    "pd-ddpg": [
        *(word for name, value in LEARNER.items() for word in (f"--learner.{name}", value)),
        *("--replay-capacity", "1000", "--updates", "1.7"),
    ],
    "apdo": [
        *NETWORKS,
        *(word for name, value in LEARNER.items() for word in (f"--off-policy.learner.{name}", value)),
        *("--k-adj", "8", "--off-policy.iterations", "40050", "--off-policy.members", "2"),
        *("--adjust", "primal-dual", "--policy.bound", "2"),
    ],
}
"""Options of a run of each algorithm that takes a second: every kind of state, as little work as possible."""

LAUNCH = """
import sys
from apdo.experiment import runner
runner.REPORT_EVERY, runner.SAVE_EVERY, runner.SAVE_SHARE = float(sys.argv[1]), float(sys.argv[2]), 1e9
from apdo.cli import main
main(sys.argv[3:])
"""
"""The command line with chunks, pieces and checkpoints of other lengths: the results must not depend on them."""


def environment(cache: Path):
    own = {"JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT / "src")}
    own["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    own["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    return {**os.environ, **own}


def start(arguments, cache: Path, report_every=0.5, save_every=30.0, prepare=None):
    """A process of its own that runs the command line, prepared by a function that runs in it first."""
    command = [sys.executable, "-c", LAUNCH, str(report_every), str(save_every), *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment(cache), stdout=pipe, stderr=pipe, text=True, preexec_fn=prepare)


def train(algorithm: str, out: Path, *more):
    return ["train", algorithm, "point-gather", "--quiet", "--out", out, *RUN, *ALGORITHMS[algorithm], *more]


def rows(folder: Path):
    """The metrics of a run without what may differ; a line that cannot be read is an error."""
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name not in ("seconds", "crc32")} for row in found]


def arrays(path: Path):
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name].tobytes() for name in file.files}


def difference(folder: Path, reference: Path) -> str:
    """What two finished runs do not have in common; empty if they are the same to the last bit."""
    status = json.loads((folder / "run.json").read_text())["status"]
    if status != "finished":
        return f"status {status}"
    ours, theirs = rows(folder), rows(reference)
    if len(ours) != len(theirs):
        return f"{len(ours)} rows instead of {len(theirs)}"
    for one, other in zip(ours, theirs, strict=True):
        if one != other:
            return f"epoch {one['epoch']}, seed {one['seed']} differs"
    last = f"checkpoints/epoch-{EPOCHS:06d}.npz"
    return "" if arrays(folder / last) == arrays(reference / last) else "the final state differs"


class Report:
    """One part's results: a file that is up to date at any moment, and a line of progress now and then."""

    def __init__(self, name: str, wanted: int, out: Path) -> None:
        self.name, self.wanted, self.path = name, wanted, out / f"{name}.json"
        self.found: dict = {"part": name, "wanted": wanted, "done": 0, "problems": []}
        self.found |= {
            "command": re.sub(r" --work[ =]\S+", "", " ".join(["python -m benchmarks.torture", *sys.argv[1:]]))
        }
        self.found |= {
            "machine": f"{os.cpu_count()} CPU cores, {platform.system()}, Python {platform.python_version()}"
        }
        self.began = self.told = time.monotonic()
        self.lock = threading.Lock()
        out.mkdir(parents=True, exist_ok=True)

    def add(self, done=0, problems=(), **counts) -> None:
        """Count what a job brought; jobs run in threads."""
        with self.lock:
            self._add(done, problems, counts)

    def _add(self, done, problems, counts) -> None:
        self.found["done"] += done
        self.found["problems"] += list(problems)
        for name, value in counts.items():
            old = self.found.get(name, 0)
            self.found[name] = old + value if isinstance(value, int) and not isinstance(value, bool) else value
        now = time.monotonic()
        if now - self.told > 5.0:
            self.told = now
            self.write()

    def write(self) -> None:
        self.found["seconds"] = round(time.monotonic() - self.began, 1)
        self.path.write_text(json.dumps(provenance.stamped(self.found), indent=2) + "\n")
        problems = len(self.found["problems"])
        print(f"{self.name}: {self.found['done']} of {self.wanted}, {problems} problems", flush=True)


def spread(part: str, count: int, jobs: int, work: Path, report: "Report", seed: int) -> None:
    """A part's work over so many processes of its own module, which print a JSON object for each thing done."""
    shares = [count // jobs + (i < count % jobs) for i in range(jobs)]

    def one(job):
        i, share = job
        command = [sys.executable, "-m", f"benchmarks.torture.{part}", str(work), str(i), str(share), str(seed)]
        process = subprocess.Popen(
            command, env=environment(work / "cache"), cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        for line in process.stdout:
            report.add(**json.loads(line))
        if process.wait():
            report.add(problems=[f"worker {i} ended with {process.returncode}"])

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, enumerate(shares)))
