"""The field's benchmark at full length: eight of Safety-Gymnasium's tasks in this library, compared with OmniSafe.

    make benchmarks-safety                                         all of it, then what docs/benchmarks.md shows
    python -m benchmarks.safety --only 'hopper.*/(pdo|cpo)'        a part: TASK/ALGORITHM as a pattern
    python -m benchmarks.safety --algorithms focops,cup --jobs 2   other algorithms, two runs at a time
    python -m benchmarks.safety --seeds 0,1 --seconds 3000         some of the seeds, as far as they come in that time
    python -m benchmarks.safety --together                         all seeds of a task and algorithm in one program
    python -m benchmarks.safety --file                             file runs that were made by hand, train nothing
    python -m benchmarks.safety --table                            tables and pictures alone, from what was filed
    python -m benchmarks.safety --lines                            the commands of what is missing, to be run elsewhere

Every run is a process of its own, with the library's defaults and the same batch for all:

    apdo train ALGORITHM TASK --samples N --batch 20000 --seed S --out runs/benchmarks/TASK-ALGORITHM-S --resume --quiet

With --together, which is for accelerators, a run has several seeds side by side. Its folder is named after the first
and the last of them: TASK-ALGORITHM-0to2. Up to rounding, a seed gives the same results as alone.

A run that was stopped can continue, here or by hand, on any machine that has its folder. Results go to
results/benchmarks, one JSON file for each task and algorithm. A seed that is filed at full length is not run again,
unless --again is given. `benchmarks.comparison` is another study with the same runs and files, so each of the two uses
what the other has run.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import os
import queue
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from apdo.algorithms import ALGORITHMS
from benchmarks import provenance

RESULTS, RUNS = Path("results/benchmarks"), Path("runs/benchmarks")
LIMIT = 25.0
BATCH = 20_000
"""OmniSafe's batch."""
FULL, EARLY = 10_000_000, 1_000_000
"""The samples of a whole run, and those after which a first result is reported."""
LAST = 0.05
"""A result is the mean over this share of the samples, at the end of the run."""
POINTS = 100
"""The most points of a stored curve."""
EPISODES = 100
"""The fresh episodes that the policy plays which a run returns."""
METRICS = ("return", "cost", "multiplier")
FORMERLY = {
    "margin_most": 0.2,
    "first": "policy",
    "learner.cost_activation": "normalised-relu",
    "off_policy.learner.cost_activation": "relu",
    "off_policy.learner.cost_steps": 1,
}
"""Options that did not exist in all runs, and the values that do what was done before."""


@dataclasses.dataclass(frozen=True)
class Task:
    """A task: how long it is trained, with which seeds, and its limit."""

    samples: int = FULL
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    limit: float = LIMIT
    cost_discount: float = 1.0
    """1 if the limit is on an episode's plain total."""


TASKS = {
    "point-goal-1": Task(),
    "point-circle-1": Task(),
    "halfcheetah-velocity": Task(),
    "ant-velocity": Task(seeds=(0, 1, 2)),
    "hopper-velocity": Task(),
    "walker2d-velocity": Task(),
    "humanoid-velocity": Task(seeds=(0, 1, 2)),
    "swimmer-velocity": Task(),
    "point-gather": Task(limit=0.2, cost_discount=0.995),
}


class Entry(NamedTuple):
    """What is run under a name: an algorithm, and options that override its defaults."""

    algorithm: str
    options: Mapping[str, Any] = {}
    samples: int = FULL
    """The most samples; fewer than the task's for algorithms that learn from few."""
    own_batch: bool = False
    """Whether the algorithm has its own batch, instead of the common one."""


def _wrapped(primal: str, wrapper: str) -> Entry:
    """An unconstrained algorithm that sees its remaining budgets."""
    return Entry("trpo", ({"primal": primal} if primal != "trpo" else {}) | {"wrap": wrapper})


ENTRIES = {
    **{name: Entry(name) for name in ALGORITHMS},
    **{f"{name}-1m": Entry(name, samples=EARLY, own_batch=True) for name in ("apdo", "sac-lag")},
    **{
        f"{primal}-{wrapper}": _wrapped(primal, wrapper)
        for wrapper in ("saute", "early-termination")
        for primal in ("ppo", "trpo")
    },
}
"""Name ↦ entry: every algorithm; off-policy ones with their own batches; PPO and TRPO under each wrapper."""


class Study(NamedTuple):
    """What a study runs by default."""

    tasks: tuple[str, ...]
    algorithms: tuple[str, ...]
    seeds: tuple[int, ...] = ()
    """The seeds, if they are not each task's own."""


BENCHMARK = Study(
    tasks=tuple(name for name in TASKS if name != "point-gather"),
    algorithms=("trpo", "pdo", "ppo-lag", "cpo", "apdo"),
)


class Refused(Exception):
    """A run folder that is not filed, with the reason."""


@dataclasses.dataclass(frozen=True)
class Job:
    """One run: a process and a folder."""

    task: str
    algorithm: str
    seed: int
    samples: int
    together: tuple[int, ...] = ()
    """The seeds of the program that this seed is part of; empty if it runs alone."""

    @property
    def seeds(self) -> tuple[int, ...]:
        """All seeds of its run."""
        return self.together or (self.seed,)

    @property
    def name(self) -> str:
        """The name of its folder."""
        seeds = f"{self.together[0]}to{self.together[-1]}" if self.together else str(self.seed)
        return f"{self.task}-{self.algorithm}-{seeds}"

    @property
    def entry(self) -> Entry:
        """The entry of its name."""
        return ENTRIES[self.algorithm]

    @property
    def options(self) -> dict[str, Any]:
        """All options that are not the library's defaults."""
        batch = {} if self.entry.own_batch else {"batch": BATCH}
        several = {"seeds": len(self.together)} if self.together else {}
        return {"samples": self.samples} | batch | dict(self.entry.options) | {"seed": self.seeds[0]} | several

    def words(self, runs: Path = RUNS) -> list[str]:
        """The command that makes or continues it."""
        told = self.options | {"out": runs / self.name}
        given = [word for name, value in told.items() for word in (f"--{name}", str(value))]
        return ["apdo", "train", self.entry.algorithm, self.task, *given, "--resume", "--quiet"]

    def described(self) -> dict[str, Any]:
        """The run as its folder would describe it now, with samples and batch rounded up to whole episodes."""
        from apdo.experiment import settings

        experiment = settings.make_experiment(self.entry.algorithm, self.task, self.options)
        return json.loads(json.dumps(experiment.describe()))

    def __str__(self) -> str:
        return f"{self.task}/{self.algorithm}, seed{'s' * bool(self.together)} {', '.join(map(str, self.seeds))}"


# What a run folder says.


def read_seed(job: Job, folder: Path, cores: int | None = None) -> dict[str, Any]:
    """The filed result of one run: its means, its thinned curve, and its provenance from the run folder.

    A run that has failed is filed as failed. A run that is still going on, or was killed, is refused, because its
    folder does not say when it ended.
    """
    from apdo.errors import InvalidInput
    from apdo.report import runs

    try:
        run = runs.read(folder)
    except InvalidInput as error:
        raise Refused(str(error)) from error
    told = run.description
    _check(job, told)
    if told.get("status") not in ("finished", "interrupted", "stopped", "failed"):
        raise Refused(f"it is not over: {run.samples[-1]:,} of {job.samples:,} samples")
    row = run.seeds.index(job.seed)
    curve = _curve({name: values[row] for name, values in run.metrics.items()}, run.samples)
    marks = sorted({EARLY, length(job.task, job.algorithm)})
    found = {
        "samples": int(run.samples[-1]),
        "status": told["status"],
        **({"failed": told.get("error", "no word")} if told["status"] == "failed" else {}),
        "ends": {str(mark): ending(curve, mark) for mark in marks if mark <= run.samples[-1]},
        "seconds": round(max(float(told["seconds"]), float(run.metrics["seconds"][0].sum())) / len(run.seeds)),
        "cores": cores or _cores_noted(folder),
        "differs": differing(job, options := options_of(told["config"])),
        "options": options,
        **_provenance(job, told),
        "curve": thinned(curve),
    }
    if lacking := provenance.missing(found):
        raise Refused(f"it does not say where it comes from: {', '.join(lacking)} (a tree with changes has no commit)")
    return found


def returned(job: Job, folder: Path, samples: int) -> dict[str, Any]:
    """Return and cost of the policy that a run returns, on fresh episodes.

    Empty for a run that was stopped before its end, and for wrapped environments: a wrapper pays rewards of its own, so
    its return is not the environment's.
    """
    import apdo

    if samples < length(job.task, job.algorithm) or "wrap" in job.entry.options:
        return {}
    found = apdo.evaluate(folder, job.seed, episodes=EPISODES)
    told = {"return": found.undiscounted_return.mean, "cost": found.constrained_cost[0].mean, "episodes": EPISODES}
    return {"returned": told}


def length(task: str, algorithm: str) -> int:
    """The number of samples of a whole run of the algorithm on the task."""
    return min(TASKS[task].samples, ENTRIES[algorithm].samples)


def _check(job: Job, told: dict[str, Any]) -> None:
    """Refuse a folder whose run does not match its name."""
    task = TASKS[job.task]
    named = {"samples", "batch"} | {name for entry in ENTRIES.values() for name in entry.options}
    wanted = {
        "algorithm": job.entry.algorithm,
        "environment": job.task,
        "seeds": list(job.seeds),
        "limits": [task.limit],
        "cost_discount": task.cost_discount,
        **_chosen(job.described(), named),
    }
    there = told["problem"] | told | _chosen(told["config"], named)
    wrong = [f"{name} {there.get(name)}, not {value}" for name, value in wanted.items() if there.get(name) != value]
    if wrong:
        raise Refused("it is another run: " + "; ".join(wrong))


def _chosen(config: dict[str, Any], names: set[str]) -> dict[str, Any]:
    """Some of a run's options, as far as its algorithm has them."""
    options = config["settings"] | config["algorithm_config"]
    return {name: options[name] for name in sorted(names) if name in options}


def _provenance(job: Job, told: dict[str, Any]) -> dict[str, Any]:
    """The provenance of a run; it has several devices if the run was continued elsewhere."""
    devices = [told["device"], *(one["device"] for one in told.get("resumed", []))]
    return {
        "commit": told["commit"],
        "command": shlex.join(job.words()),
        "device": ", then ".join(dict.fromkeys(devices)),
        "versions": told["versions"],
        "date": told["finished"],
    }


def options_of(config: dict[str, Any]) -> dict[str, Any]:
    """The options of a described run by name, except its seeds and those that affect no result."""
    from apdo.experiment import settings

    left_out = {*settings.BOOKKEEPING, "seed", "seeds"}
    parts = ("settings", "algorithm_config", "environment_config")
    return {name: value for part in parts for name, value in config[part].items() if name not in left_out}


def differing(job: Job, theirs: dict[str, Any]) -> dict[str, Any]:
    """The options of a run that differ from those of its command today; empty unless defaults have changed since.

    An option that did not exist at the time, and that is off by default, does not count.
    """
    ours, theirs = options_of(job.described()), FORMERLY | theirs
    new_and_off = {name for name in ours if name not in theirs and not ours[name]}
    names = sorted((ours.keys() | theirs.keys() - FORMERLY.keys()) - new_and_off)
    return {name: theirs.get(name) for name in names if ours.get(name) != theirs.get(name)}


def compare_with_today(out: Path) -> None:
    """Let each file say which options of its runs are not the defaults any more.

    Runs that were filed without their options keep what was said of them then.
    """
    from apdo.errors import InvalidInput

    for path in sorted(out.glob("*.json")):
        told = read(path)
        for seed, found in told["seeds"].items():
            if "options" not in found:
                continue
            job = Job(told["task"], told["algorithm"], int(seed), found["options"]["samples"])
            try:
                differs = differing(job, found["options"])
            except InvalidInput as error:
                print(f"{job}: not compared with today's defaults: {error}", flush=True)
                continue
            if differs != found["differs"]:
                add(job, found | {"differs": differs}, out)


def _curve(metrics: dict[str, np.ndarray], samples: np.ndarray) -> dict[str, np.ndarray]:
    """Return, cost and multiplier of each epoch, if there are any, and the samples at its end.

    The cost is the one that the limit applies to. The return is the environment's own, with or without a wrapper.
    """
    paid = "plain_return" if "plain_return" in metrics else "return"
    told = {"return": paid, "cost": "cost", "multiplier": "multiplier"}
    there = {name: metrics[key].reshape(len(samples)) for name, key in told.items() if key in metrics}
    return {"samples": np.asarray(samples), **there}


def ending(curve: dict[str, np.ndarray], samples: int) -> dict[str, float | None]:
    """The means over the batches in the last twentieth of this many samples; over the last batch at least."""
    at = curve["samples"]
    last = (at > (1.0 - LAST) * samples) & (at <= samples)
    if not last.any():
        last = at == at[at <= samples].max()
    return {name: _mean(curve[name][last]) for name in METRICS if name in curve}


def thinned(curve: dict[str, np.ndarray]) -> dict[str, list[Any]]:
    """At most `POINTS` points; each is the mean over several epochs, and is placed at their end."""
    stretches = np.array_split(np.arange(len(curve["samples"])), min(POINTS, len(curve["samples"])))
    told: dict[str, list[Any]] = {"samples": [int(curve["samples"][stretch[-1]]) for stretch in stretches]}
    for name in METRICS:
        if name in curve:
            told[name] = [_mean(curve[name][stretch]) for stretch in stretches]
    return told


def _mean(values: np.ndarray) -> float | None:
    """The mean to six digits over epochs that have a value; None if there are none."""
    known = values[np.isfinite(values)]
    return float(f"{known.mean():.6g}") if len(known) else None


# Files of results.


def path_of(task: str, algorithm: str, out: Path = RESULTS) -> Path:
    """The file of a task and algorithm."""
    return out / f"{task}-{algorithm}.json"


def read(path: Path) -> dict[str, Any]:
    """A file of results; empty if there is none."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


_FILING = threading.Lock()


def add(job: Job, found: dict[str, Any], out: Path) -> None:
    """Add a seed to the file of its task and algorithm, with a line for each seed."""
    path = path_of(job.task, job.algorithm, out)
    with _FILING:
        seeds = read(path).get("seeds", {}) | {str(job.seed): found}
        batch = None if job.entry.own_batch else BATCH
        head = {"task": job.task, "algorithm": job.algorithm, "limit": TASKS[job.task].limit, "batch": batch}
        lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
        told = [f"  {json.dumps(seed)}: {json.dumps(seeds[seed])}" for seed in sorted(seeds, key=int)]
        lines.append(' "seeds": {\n' + ",\n".join(told) + "\n }")
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(".part")
        beside.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
        beside.replace(path)


def file_all(given: argparse.Namespace, study: Study = BENCHMARK) -> None:
    """File the results of run folders, whoever made them."""
    from apdo.errors import InvalidInput
    from apdo.report import runs

    everything = study._replace(algorithms=tuple(ENTRIES), seeds=seeds_in(given.runs))
    alone = list(plan(given, everything))
    several = [dataclasses.replace(one, together=seeds) for one in alone for seeds in programs_of(one, given)]
    for job in alone + several:
        folder = given.runs / job.name
        if not folder.exists():
            continue
        try:
            samples = runs.read_description(folder)["config"]["settings"]["samples"]
            if samples != job.described()["settings"]["samples"]:
                job = dataclasses.replace(job, samples=samples)
            found = read_seed(job, folder, given.cores)
            found |= returned(job, folder, found["samples"])
        except (Refused, InvalidInput) as error:
            print(f"{job}: not filed: {error}", flush=True)
            continue
        add(job, found, given.out)
        print(f"{job.task}/{job.algorithm}, seed {job.seed}: {in_words(found)}", flush=True)


_SEVERAL = re.compile(r"(\d+)to(\d+)")


def seeds_in(folder: Path) -> tuple[int, ...]:
    """The seeds of the run folders in a folder."""
    names = [path.name.rpartition("-")[2] for path in folder.glob("*-*") if path.is_dir()]
    alone = {int(name) for name in names if name.isdigit()}
    return tuple(sorted(alone.union(*(_several(name) for name in names))))


def _several(name: str) -> tuple[int, ...]:
    """The seeds of a folder with several seeds, from the end of its name."""
    found = _SEVERAL.fullmatch(name)
    return tuple(range(int(found[1]), int(found[2]) + 1)) if found else ()


def programs_of(job: Job, given: argparse.Namespace) -> Iterator[tuple[int, ...]]:
    """The seeds of each run folder that has several seeds, this one among them."""
    start = f"{job.task}-{job.algorithm}-"
    for path in sorted(given.runs.glob(start + "*to*")):
        if job.seed in (seeds := _several(path.name.removeprefix(start))):
            yield seeds


def in_words(found: dict[str, Any]) -> str:
    """The result of a run, as a line of progress."""
    said = f"{found['status']} after {found['samples']:,} samples and {found['seconds']:,} s"
    if found["ends"]:
        mark, last = list(found["ends"].items())[-1]
        said += f"; {last['return']:.4g} at {last['cost']:.3g} after {int(mark):,}"
    said += f"; {found['failed']}" if "failed" in found else ""
    return said + (f"; other options than now: {found['differs']}" if found["differs"] else "")


# Runs.


def plan(given: argparse.Namespace, study: Study = BENCHMARK) -> Iterator[Job]:
    """All jobs that were asked for, ordered by seed first, so that a stopped study has some results of each."""
    for name in study.tasks:
        for seed in given.seeds or study.seeds or TASKS[name].seeds:
            for algorithm in given.algorithms or study.algorithms:
                if re.fullmatch(given.only, f"{name}/{algorithm}"):
                    yield Job(name, algorithm, seed, given.samples or length(name, algorithm))


def wanted(given: argparse.Namespace, study: Study = BENCHMARK) -> list[Job]:
    """The jobs that are not filed at full length."""

    def there(job: Job) -> bool:
        seed = read(path_of(job.task, job.algorithm, given.out)).get("seeds", {}).get(str(job.seed), {})
        return seed.get("samples", 0) >= job.samples

    missing = [job for job in plan(given, study) if given.again or not there(job)]
    return side_by_side(missing) if given.together else missing


def side_by_side(jobs: list[Job]) -> list[Job]:
    """The same seeds, with consecutive seeds of a task and algorithm in one program; one job for each program."""
    groups: dict[tuple[str, str, int], list[int]] = {}
    for job in jobs:
        groups.setdefault((job.task, job.algorithm, job.samples), []).append(job.seed)
    found = []
    for (task, algorithm, samples), seeds in groups.items():
        runs: list[list[int]] = []
        for seed in sorted(seeds):
            if runs and seed == runs[-1][-1] + 1:
                runs[-1].append(seed)
            else:
                runs.append([seed])
        found += [Job(task, algorithm, run[0], samples, tuple(run) if len(run) > 1 else ()) for run in runs]
    return found


def train_apart(job: Job, given: argparse.Namespace, cores: list[int], over: threading.Event) -> tuple[bool, str]:
    """Run one job in a process of its own on some cores, until it ends or the time is over; then file it.

    Returns whether it went well, with a line that says how.
    """
    if over.is_set():
        return True, f"{job}: not begun, the time is over"
    began, folder = time.monotonic(), given.runs / job.name
    folder.parent.mkdir(parents=True, exist_ok=True)
    _note_cores(folder, len(cores))
    said = _watched(_started([str(Path(sys.executable).with_name("apdo")), *job.words(given.runs)[1:]], cores), over)
    try:
        each = [(one, read_seed(one, folder)) for one in (dataclasses.replace(job, seed=seed) for seed in job.seeds)]
        for one, found in each:
            found |= returned(one, folder, found["samples"])
    except Refused as error:
        if over.is_set():
            return True, f"{job}: stopped with nothing to file yet: {error}"
        return False, f"{job}: FAILED: {(said.strip() or str(error)).splitlines()[-1]}"
    for one, found in each:
        add(one, found, given.out)
    found = each[0][1]
    return "failed" not in found, f"{job}: {in_words(found)}; here for {time.monotonic() - began:,.0f} s"


def _started(words: list[str], cores: list[int]) -> subprocess.Popen[str]:
    """Start a process in a group of its own, so that Ctrl-C reaches it only once, through this process."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(len(cores)))
    environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} | os.environ | threads
    process = subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment, process_group=0
    )
    if hasattr(os, "sched_setaffinity"):
        # Before it has threads, because they inherit this.
        os.sched_setaffinity(process.pid, cores)
    return process


def _watched(process: subprocess.Popen[str], over: threading.Event) -> str:
    """Wait for a process, and return its output. When the time is over, it is asked once to save and stop."""
    asked = False
    while True:
        try:
            return process.communicate(timeout=1.0)[1]
        except subprocess.TimeoutExpired:
            if over.is_set() and not asked:
                process.terminate()  # not SIGINT, which a process ignores that a script started in the background
                asked = True


def _noted(folder: Path) -> Path:
    return folder.with_name(folder.name + ".cores")


def _note_cores(folder: Path, cores: int) -> None:
    """Store the number of cores beside the run folder, because the folder does not have it."""
    _noted(folder).write_text(f"{cores}\n", encoding="utf-8")


def _cores_noted(folder: Path) -> int | None:
    return int(_noted(folder).read_text(encoding="utf-8")) if _noted(folder).exists() else None


def run_all(jobs: list[Job], given: argparse.Namespace) -> bool:
    """Run every job, several at a time, with the cores divided among them; returns whether all went well."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    share = max(len(cores) // given.jobs, 1)
    free: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
    for i in range(given.jobs):
        free.put([cores[(i * share + k) % len(cores)] for k in range(share)])
    over = threading.Event()
    clock = threading.Timer(given.seconds, over.set) if given.seconds else threading.Timer(0, lambda: None)
    clock.daemon = True
    clock.start()

    def work_somewhere(job: Job) -> tuple[bool, str]:
        mine = free.get()
        try:
            return train_apart(job, given, mine, over)
        finally:
            free.put(mine)

    well = True
    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        running = [pool.submit(work_somewhere, job) for job in jobs]
        try:
            for i, done in enumerate(concurrent.futures.as_completed(running), start=1):
                fine, line = done.result()
                well = well and fine
                print(f"[{i}/{len(jobs)}] {line}", flush=True)
        finally:
            over.set()  # after Ctrl-C, running jobs save and stop, and no other begins
    return well


def _stop(*_: object) -> None:
    raise KeyboardInterrupt


def arguments(
    words: list[str] | None = None, study: Study = BENCHMARK, description: str | None = __doc__
) -> argparse.Namespace:
    """The command line."""

    def names(text: str) -> list[str]:
        found = [word for word in text.split(",") if word]
        if wrong := [word for word in found if word not in ENTRIES]:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(wrong)}; known: {', '.join(ENTRIES)}")
        return found

    def numbers(text: str) -> tuple[int, ...]:
        return tuple(map(int, text.split(",")))

    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=".*", help="TASK/ALGORITHM as a pattern")
    parser.add_argument(
        "--algorithms", type=names, default=[], help=f"with commas; by default {','.join(study.algorithms)}"
    )
    own = ",".join(map(str, study.seeds)) or "as the task says"
    parser.add_argument("--seeds", type=numbers, default=(), help=f"with commas; by default {own}")
    parser.add_argument("--samples", type=int, help="instead of the task's own; wants another --runs and --out")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--seconds", type=float, help="after so many, what runs saves and stops, and nothing begins")
    parser.add_argument("--together", action="store_true", help="all seeds of a task and algorithm in one program")
    parser.add_argument("--again", action="store_true", help="also what is filed already; wants another --runs")
    parser.add_argument("--file", action="store_true", help="file what is in the run folders, run nothing")
    parser.add_argument("--cores", type=int, help="with --file: how many cores each run had, if it does not say")
    parser.add_argument("--table", action="store_true", help="write tables and pictures, run nothing")
    parser.add_argument("--lines", action="store_true", help="print the commands of what is missing, run nothing")
    parser.add_argument("--runs", type=Path, default=RUNS, help="where the run folders are")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the results go")
    return parser.parse_args(words)


def run(given: argparse.Namespace, study: Study, write: Callable[[Path], None]) -> None:
    """Do what was asked for of a study, and write the results."""
    from apdo.experiment import records

    well = True
    if given.lines:
        print("\n".join(shlex.join(job.words(given.runs)) for job in wanted(given, study)))
        return
    if given.file:
        file_all(given, study)
    elif not given.table:
        if "commit" in provenance.missing({"commit": records.commit()}):
            sys.exit("the source tree has changes that are not committed: nothing of its runs could be filed")
        signal.signal(signal.SIGTERM, _stop)
        try:
            well = run_all(wanted(given, study), given)
        except KeyboardInterrupt:
            sys.exit("stopped; the same command goes on")
    compare_with_today(given.out)
    write(given.out)
    sys.exit(0 if well else 1)


def main(words: list[str] | None = None) -> None:
    from benchmarks import safety_report

    run(arguments(words), BENCHMARK, safety_report.write)


if __name__ == "__main__":
    main()
