"""Does `apdo train apdo ENV --limit d` work, with no other option, on problems for which nobody tuned it?

    make transfer                                             all of it, then the tables and picture of docs/transfer.md
    python -m benchmarks.transfer --only 'navigation.*/apdo'  a part: PROBLEM/ALGORITHM as a pattern
    python -m benchmarks.transfer --jobs 8 --seeds 0,1        several processes at a time, some of the seeds
    python -m benchmarks.transfer --long                      ten times the samples: the best return known in the limits
    python -m benchmarks.transfer --table                     the tables and picture alone, from what was measured

Every algorithm is given the problem and its limits, and nothing else. The policy that it returns then plays 1,000 fresh
episodes; on a finite problem it is evaluated exactly instead. Results go to results/transfer, one JSON file for each
problem and algorithm. A seed that has a result is not run again, unless --again is given.
"""

import argparse
import concurrent.futures
import dataclasses
import datetime
import functools
import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import transfer_problems
from benchmarks.transfer_problems import CASES, Case

RESULTS = Path("results/transfer")
ALGORITHMS = ("apdo", "pdo", "cpo")
SEEDS = (0, 1, 2, 3, 4)
EPISODES = 1000
FRESH = 10_000
"""Added to a run's seed for its evaluation."""
WITHIN = 1.05
"""A cost counts as within its limit up to this share of it."""
CANDIDATES = 3
"""The number of epochs whose policies are evaluated again to find the best."""
POINTS = 60
"""The number of points of a stored training curve."""
LONG_TIMES, LONG_BATCHES, LONG_SEEDS = 10, 100, (0, 1, 2)
"""For long runs: their samples as a multiple of the case's, the number of their batches, and their seeds."""
UNCONSTRAINED = "trpo"
"""It has long runs too, because its return and cost show whether a limit binds."""

Judge = Callable[[Any], dict[str, Any]]
"""policy ↦ its return and costs."""


@dataclasses.dataclass(frozen=True)
class Job:
    """Seeds of a problem and algorithm that one process runs."""

    kind: str
    """One of study, long, reference and peers."""
    case: str
    algorithm: str
    seeds: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.case}/{self.algorithm}, seed{'s' * (len(self.seeds) > 1)} {', '.join(map(str, self.seeds))}"


def specified(case: Case, algorithm: str, seeds: tuple[int, ...], changes: dict[str, Any] | None = None) -> Any:
    """The experiment from the problem, its limits and the seeds; the library chooses everything else."""
    from apdo.experiment import settings

    name, task = transfer_problems.task_of(case)
    options: dict[str, Any] = case.options | ({} if case.limits is None else {"limits": case.limits})
    options |= {"seed": seeds[0], "seeds": len(seeds)} | (changes or {})
    preset = options.pop("preset", None)
    return settings.make_experiment(algorithm, name, options, preset=preset, task=task)


def lengthened(case: Case) -> dict[str, Any]:
    """The options of a long run: many samples in large batches."""
    return {"batch": case.samples * LONG_TIMES // LONG_BATCHES, "epochs": LONG_BATCHES}


def train(job: Job, changes: dict[str, Any]) -> dict[str, Any]:
    """The results of a job's seeds, by seed, and the description of the experiment."""
    from apdo.errors import NumericalFailure
    from apdo.experiment import opening, runner

    case = CASES[job.case]
    experiment = specified(case, job.algorithm, job.seeds, changes)
    training = opening.training_of(experiment)
    began, policies = time.perf_counter(), []
    # The newest policies after each epoch. Those after the last epoch draw no batch.
    keep = [lambda epoch: policies.append(epoch.policies())]
    with tempfile.TemporaryDirectory() as folder:
        try:
            result = runner.run(experiment, Path(folder) / "run", quiet=True, callbacks=keep)
        except NumericalFailure as failure:
            return _with_provenance(experiment, training, {seed: {"failed": str(failure)} for seed in job.seeds})
    seconds = (time.perf_counter() - began) / len(job.seeds)
    seeds, bounds = {}, (np.asarray(training.problem.limits), allowance(case, training))
    for i, (seed, policy) in enumerate(zip(job.seeds, result.policies, strict=True)):
        curve = curve_of(case, {name: values[i] for name, values in result.metrics.items()}, training.problem.batch)
        judge = functools.partial(judged, case, training=training, seed=FRESH + seed)
        drew = {epoch: one[i] for epoch, one in enumerate(policies[:-1], start=1)}
        best = best_of_all(judge, drew, *bounds) if case.finite else best_seen(judge, drew, curve, *bounds)
        seeds[seed] = judge(policy) | {
            "samples": int(curve["samples"][-1]),
            "best_epoch": best,
            "curve": thinned(curve),
            "seconds": round(seconds, 1),
        }
    return _with_provenance(experiment, training, seeds)


def _with_provenance(experiment: Any, training: Any, seeds: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Results by seed, each with its provenance, and the problem as it was given."""
    from apdo.experiment import records
    from benchmarks.ground_truth import device

    packages = getattr(training.environment, "packages", ())
    made = {
        "device": device(),
        "threads": len(os.sched_getaffinity(0)),
        "versions": records.versions(packages),
        "commit": records.commit(),
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    problem = training.problem
    posed = {
        "limits": list(problem.limits),
        "cost_names": list(training.environment.cost_names),
        "cost_discount": problem.cost_discount,
        "discount": problem.discount,
        "horizon": problem.horizon,
    }
    return {"posed": posed, "config": experiment.describe(), "seeds": {str(s): v | made for s, v in seeds.items()}}


def judged(case: Case, policy: Any, training: Any, seed: int) -> dict[str, Any]:
    """Return and costs of a policy: exact if the problem is finite, otherwise on fresh episodes with 95 % intervals."""
    if case.finite:
        from apdo import exact

        task = training.environment
        chances = np.asarray(policy.distribution(task.observations())["probabilities"], dtype=np.float64)
        found = exact.evaluate(task.model(), chances / chances.sum(axis=1, keepdims=True))
        return {"return": _exactly(found.value), "costs": [_exactly(cost) for cost in found.costs]}
    from apdo.experiment import evaluation

    found = evaluation.evaluate(policy, training, EPISODES, seed=seed)
    return {
        "return": _interval(found.undiscounted_return),
        "costs": [_interval(cost) for cost in found.constrained_cost],
        "total_costs": [_interval(cost) for cost in found.undiscounted_cost],
    }


def _exactly(value: float) -> dict[str, float]:
    return {"mean": float(value), "low": float(value), "high": float(value)}


def _interval(estimate: Any) -> dict[str, float]:
    return {"mean": estimate.mean, "low": estimate.low, "high": estimate.high, "deviation": estimate.deviation}


def allowance(case: Case, training: Any) -> np.ndarray:
    """By how much each cost may exceed its limit: a share of the limit or, if that is 0, of the cost's absolute sum."""
    limits = np.asarray(training.problem.limits)
    if not case.finite:
        return (WITHIN - 1.0) * np.abs(limits)
    from benchmarks.ground_truth import scale, solved

    return (WITHIN - 1.0) * scale(*solved(training.environment))


def curve_of(case: Case, metrics: dict[str, np.ndarray], batch: int) -> dict[str, np.ndarray]:
    """One seed's training curve: samples, return and costs of each epoch."""
    returns = metrics["discounted_return" if case.finite else "return"]
    return {"samples": batch * np.arange(1, len(returns) + 1), "return": returns, "costs": metrics["cost"]}


def best_of_all(judge: Judge, drew: dict[int, Any], limits: np.ndarray, allowed: np.ndarray) -> dict[str, Any] | None:
    """Evaluate every policy that drew a batch; the one within the limits with the highest return."""
    measured = {epoch: judge(policy) for epoch, policy in drew.items()}
    costs = np.array([[cost["mean"] for cost in one["costs"]] for one in measured.values()])
    returns = np.array([one["return"]["mean"] for one in measured.values()])
    best = best_epoch({"return": returns, "costs": costs}, limits, allowed)
    return best and best | {"epoch": list(drew)[best["epoch"]], "measured": True}


def best_seen(
    judge: Judge, drew: dict[int, Any], curve: dict[str, np.ndarray], limits: np.ndarray, allowed: np.ndarray
) -> dict[str, Any] | None:
    """The same for only the few policies that looked best by their own batches.

    The batch of the best of fifty epochs flatters it: on a Garnet the best epoch earned more than the optimum.
    """
    within = np.all(curve["costs"] <= limits + allowed, axis=1)
    order = [epoch for epoch in np.argsort(-curve["return"]).tolist() if within[epoch] and epoch in drew]
    few = {epoch: drew[epoch] for epoch in order[:CANDIDATES]}
    return best_of_all(judge, few, limits, allowed) if few else None


def best_epoch(curve: dict[str, np.ndarray], limits: np.ndarray, allowed: np.ndarray) -> dict[str, Any] | None:
    """The epoch within the limits with the highest return, by its own batch; None if there is none."""
    within = np.all(curve["costs"] <= limits + allowed, axis=1)
    if not within.any():
        return None
    best = int(np.argmax(np.where(within, curve["return"], -np.inf)))
    return {
        "epoch": best,
        "return": float(curve["return"][best]),
        "costs": curve["costs"][best].tolist(),
    }


def thinned(curve: dict[str, np.ndarray]) -> dict[str, list[Any]]:
    """At most `POINTS` epochs, including the first and the last."""
    count = len(curve["samples"])
    kept = np.unique(np.linspace(0, count - 1, min(count, POINTS)).round().astype(int))
    return {name: np.asarray(values)[kept].astype(np.float64).round(6).tolist() for name, values in curve.items()}


def refer(job: Job) -> dict[str, Any]:
    """Return and costs of policies with which runs start; and the optimum, if it is known.

    Their actions have a standard deviation of 1, if they are continuous, as APDO's have.
    """
    from apdo import loop
    from apdo.experiment import chosen, opening

    case = CASES[job.case]
    experiment = specified(case, "trpo", job.seeds, {"policy.log_std": 0.0})
    training = opening.training_of(experiment)
    state = loop.start(training, list(job.seeds))
    seeds = {
        seed: judged(case, policy, training, FRESH + seed)
        for seed, policy in zip(job.seeds, chosen.policies(training, job.seeds, state, newest=True), strict=True)
    }
    told = _with_provenance(experiment, training, seeds) | {"allowance": allowance(case, training).tolist()}
    if case.finite:
        from benchmarks.ground_truth import solved

        _, optimum = solved(training.environment)
        told["optimum"] = {"return": optimum.value, "multipliers": optimum.multipliers.tolist()}
    return told


def path_of(job: Job, out: Path = RESULTS) -> Path:
    """The file of a problem and algorithm."""
    name = f"{job.case}-{job.algorithm}.json" if job.kind != "reference" else f"{job.case}.json"
    return out / name if job.kind == "study" else out / job.kind / name


def wanted(given: argparse.Namespace) -> Iterator[Job]:
    """The jobs to do: for each problem and algorithm, the seeds that are missing."""
    for whole in plan(given.long, given.seeds):
        if given.only and not re.fullmatch(given.only, f"{whole.case}/{whole.algorithm}"):
            continue
        there = {} if given.again else read(path_of(whole, given.out)).get("seeds", {})
        missing = tuple(seed for seed in whole.seeds if str(seed) not in there)
        if missing and (whole.kind == "reference" or given.together):
            yield dataclasses.replace(whole, seeds=missing)
        else:
            yield from (dataclasses.replace(whole, seeds=(seed,)) for seed in missing)


def plan(long: bool, seeds: tuple[int, ...]) -> Iterator[Job]:
    """All jobs of the study with these seeds; or the long runs, which finite problems do not need."""
    for name, case in CASES.items():
        if long and not case.finite:
            yield from (Job("long", name, algorithm, LONG_SEEDS) for algorithm in (*ALGORITHMS, UNCONSTRAINED))
        if not long:
            yield Job("reference", name, "start", SEEDS)
            yield from (Job("study", name, algorithm, seeds) for algorithm in ALGORITHMS)


def read(path: Path) -> dict[str, Any]:
    """A file of results; empty if there is none."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def add(job: Job, found: dict[str, Any], out: Path, changes: dict[str, Any] | None = None) -> None:
    """Add the seeds of a job to the file of its problem and algorithm."""
    path, case = path_of(job, out), CASES[job.case]
    seeds = read(path).get("seeds", {}) | found.pop("seeds")
    whole = {
        "problem": job.case,
        "algorithm": job.algorithm,
        "held_out": case.held_out,
        "command": command_of(job, changes),
        **found,
        "seeds": dict(sorted(seeds.items(), key=lambda item: int(item[0]))),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    beside.replace(path)


def command_of(job: Job, changes: dict[str, Any] | None = None) -> str:
    """The command for a job's seeds: the library's own or, for peers and for where runs start, the benchmark's."""
    if job.kind in ("peers", "reference"):
        module = "peers_transfer" if job.kind == "peers" else "transfer"
        return f"python -m benchmarks.{module} --only '{job.case}/{job.algorithm}'"
    return transfer_problems.command(CASES[job.case], job.algorithm, changes)


def work(job: Job, changes: dict[str, Any], result: Path) -> None:
    """Do one job in this process, and write its results to a file."""
    if job.kind == "reference":
        found = refer(job)
    else:
        found = train(job, changes | (lengthened(CASES[job.case]) if job.kind == "long" else {}))
    result.write_text(json.dumps(found), encoding="utf-8")


def work_apart(job: Job, given: argparse.Namespace, cores: list[int]) -> str:
    """Do one job in a process of its own on some cores, and file its results; returns a line that says how it went."""
    began = time.perf_counter()
    told = json.dumps(dataclasses.asdict(job) | {"cores": cores})
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(len(cores)))
    environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} | os.environ | threads
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "found.json"
        module = "benchmarks.peers_transfer" if job.kind == "peers" else "benchmarks.transfer"
        command = [sys.executable, "-m", module, "--job", told, str(result), *given.passed_on]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode:
            return f"{job}: FAILED: {(done.stderr.strip() or 'no word').splitlines()[-1]}"
        found = read(result)
    said = "; ".join(_in_words(found["seeds"][str(seed)]) for seed in job.seeds)
    with _FILING:
        add(job, found, given.out, parsed(given.changes))
    return f"{job}: {said} in {time.perf_counter() - began:.0f} s"


_FILING = threading.Lock()


def taken_up(told: str) -> Job:
    """The job that another process gave to this one. This process keeps to the given cores."""
    found = json.loads(told)
    cores = found.pop("cores")
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    return Job(**found | {"seeds": tuple(found["seeds"])})


def _in_words(seed: dict[str, Any]) -> str:
    if "failed" in seed:
        return seed["failed"]
    return f"{seed['return']['mean']:.4g} at " + ", ".join(f"{cost['mean']:.3g}" for cost in seed["costs"])


def run_all(jobs: list[Job], given: argparse.Namespace) -> None:
    """Do every job, several at a time, with the cores divided among them."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    share = max(len(cores) // given.jobs, 1)
    free: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
    for i in range(given.jobs):
        free.put([cores[(i * share + k) % len(cores)] for k in range(share)])

    def work_somewhere(job: Job) -> str:
        mine = free.get()
        try:
            return work_apart(job, given, mine)
        finally:
            free.put(mine)

    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        running = [pool.submit(work_somewhere, job) for job in jobs]
        for i, done in enumerate(concurrent.futures.as_completed(running), start=1):
            print(f"[{i}/{len(jobs)}] {done.result()}", flush=True)


def parsed(changes: list[str]) -> dict[str, Any]:
    """NAME=VALUE as options; values are parsed as JSON if possible."""
    pairs = (change.partition("=")[::2] for change in changes)
    return {name: _value(text) for name, text in pairs}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--only", help="a pattern for PROBLEM/ALGORITHM")
    parser.add_argument("--seeds", default=SEEDS, type=lambda text: tuple(map(int, text.split(","))), help="e.g. 0,1")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--together", action="store_true", help="all seeds of a problem in one program (accelerators)")
    parser.add_argument("--again", action="store_true", help="also what is there already")
    parser.add_argument("--long", action="store_true", help="the long runs that find the best return known")
    parser.add_argument("--table", action="store_true", help="write tables and picture, run nothing")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument(
        "--with",
        dest="changes",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option, or preset=NAME, for trials in --out",
    )
    parser.add_argument("--job", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job:
        work(taken_up(given.job[0]), parsed(given.changes), Path(given.job[1]))
        return
    if given.changes and given.out == RESULTS:
        parser.error("--with is for trials: give a folder of their own with --out")
    given.passed_on = [f"--with={change}" for change in given.changes]
    if not given.table:
        run_all(list(wanted(given)), given)
    if given.table or given.only is None:
        from benchmarks import transfer_report

        transfer_report.write(given.out)


if __name__ == "__main__":
    main()
