"""APDO, PDO, CPO and TRPO on two tasks of Safety-Gymnasium, next to what OmniSafe published.

    make benchmarks-safety                               all of it, then the tables and figures of docs/benchmarks.md
    python -m benchmarks.safety --tasks halfcheetah --algorithms cpo,trpo --seeds 0,1 --steps 1000000 --jobs 2
    python -m benchmarks.safety --table                  the document alone, from what is there

A run's curves go to results/benchmarks, one small JSON file for each task, algorithm and seed. What is there is not run
again, unless more steps are asked for; a run that was interrupted goes on from its folder in runs/benchmarks. To train,
Python 3.11 and Safety-Gymnasium are needed (docs/environments.md); to draw, they are not.
"""

import argparse
import concurrent.futures
import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import document, provenance

RESULTS, RUNS = Path("results/benchmarks"), Path("runs/benchmarks")
DOCUMENT = Path("docs/benchmarks.md")
LIMIT = 25.0
BATCH = 20_000
LAST = 5
"""Epochs at the end of a run whose mean the table gives: 100 episodes for each seed."""


@dataclasses.dataclass(frozen=True)
class Task:
    """A task, how long it is trained, and what OmniSafe reports of it."""

    title: str
    environment: str
    steps: int
    seeds: tuple[int, ...]
    published: dict[str, str]
    """Algorithm ↦ OmniSafe's return and cost after ten million steps."""


TASKS = {
    "halfcheetah": Task(
        title="HalfCheetah under a speed limit",
        environment="SafetyHalfCheetahVelocity-v1",
        steps=1_000_000,
        seeds=(0, 1),
        published={
            "trpo": "6490.76 / 734.26 (TRPO)",
            "pdo": "2884.68 ± 77.47 / 9.04 ± 11.83 (TRPOLag)",
            "cpo": "2786.48 ± 173.45 / 4.70 ± 6.72 (CPO)",
        },
    ),
    "pointgoal": Task(
        title="Point robot, goal and hazards",
        environment="SafetyPointGoal1-v0",
        steps=400_000,
        seeds=(0, 1),
        published={
            "trpo": "27.20 / 45.88 (TRPO)",
            "pdo": "18.51 ± 3.83 / 22.98 ± 8.45 (TRPOLag)",
            "cpo": "20.46 ± 1.38 / 28.84 ± 7.76 (CPO)",
        },
    ),
}
RUN: dict[str, Any] = {
    "limits": (LIMIT,),
    "constrain": "total",
    "batch": BATCH,
    "environments": 20,
    "normalise": True,
    "policy.hidden": (64, 64),
    "policy.log_std": -0.5,
    "critic.hidden": (64, 64),
    "critic.passes": 10,
    "critic.minibatches": 100,
    "checkpoint_every": 10,
    "keep": 1,
}
"""OmniSafe's networks, batch, normalisation, limit and passes over the batch."""
TRUST_REGION = {"radius": 0.01, "iterations": 15, "damping": 0.1, "fraction": 1.0}
"""OmniSafe's."""
PRIMAL = {f"primal.{name}": value for name, value in TRUST_REGION.items()}
SEARCH = {f"search.{name}": value for name, value in TRUST_REGION.items()}
ALGORITHMS = {"apdo": "APDO", "pdo": "PDO", "cpo": "CPO", "trpo": "TRPO (no limit)"}


def options_of(algorithm: str) -> dict[str, Any]:
    """What a run is given besides its length and seed; what moves the multipliers is the library's own."""
    if algorithm == "cpo":
        return RUN | SEARCH
    if algorithm == "apdo":
        return RUN | PRIMAL | {"off_policy.learner.actor_hidden": RUN["policy.hidden"]}
    return RUN | PRIMAL


def path_of(task: str, algorithm: str, seed: int, out: Path) -> Path:
    return out / f"{task}-{algorithm}-{seed}.json"


def steps_there(path: Path) -> int:
    return json.loads(path.read_text())["steps"] if path.exists() else 0


def train(task: str, algorithm: str, seed: int, steps: int, out: Path) -> None:
    """One run, as far as it is not there, and its curves."""
    import apdo

    case = TASKS[task]
    changes = {name.replace(".", "__"): value for name, value in options_of(algorithm).items()}
    # By the options too: a run with others does not go on from this one.
    mark = hashlib.sha256(json.dumps([changes, steps], sort_keys=True).encode()).hexdigest()[:8]
    folder = RUNS / f"{task}-{algorithm}-{seed}-{mark}"
    epochs = max(1, round(steps / BATCH))
    began = time.perf_counter()
    result = apdo.train(
        algorithm, case.environment, out=folder, seed=seed, epochs=epochs, quiet=True, resume=True, **changes
    )
    description = json.loads((folder / "run.json").read_text())
    found = {
        "task": case.environment,
        "algorithm": algorithm,
        "seed": seed,
        "steps": epochs * BATCH,
        "batch": BATCH,
        "return": rounded(result.metrics["return"][0]),
        "cost": rounded(result.metrics["undiscounted_cost"][0, :, 0]),
        "multiplier": rounded(result.metrics["multiplier"][0, :, 0]) if algorithm != "trpo" else None,
        "adjusted": adjusted(folder),
        "options": {name: value for name, value in changes.items() if name not in ("checkpoint_every", "keep")},
        "versions": description["versions"],
        "seconds": round(time.perf_counter() - began),
    }
    out.mkdir(parents=True, exist_ok=True)
    path_of(task, algorithm, seed, out).write_text(json.dumps(provenance.stamped(found)) + "\n", encoding="utf-8")


def rounded(values: np.ndarray) -> list[float]:
    return [float(f"{value:.5g}") for value in values]


def adjusted(folder: Path) -> float | None:
    """λ^OFF, where there was one."""
    from apdo.report import runs

    jumps = runs.read(folder).metrics.get("adjusted_multiplier")
    if jumps is None:
        return None
    seen = jumps[~np.isnan(jumps)]
    return float(f"{seen[0]:.5g}") if len(seen) else None


def train_apart(task: str, algorithm: str, seed: int, steps: int, out: Path) -> bool:
    """One run in a process of its own; whether it came to its end."""
    began = time.perf_counter()
    words = ["--job", task, algorithm, str(seed), str(steps), "--out", str(out)]
    done = subprocess.run([sys.executable, "-m", "benchmarks.safety", *words], capture_output=True, text=True)
    outcome = "done" if done.returncode == 0 else "FAILED: " + done.stderr.strip().splitlines()[-1]
    print(f"{task} {algorithm} seed {seed}: {outcome} in {time.perf_counter() - began:.0f} s", flush=True)
    return done.returncode == 0


def gather(task: str, out: Path) -> dict[str, list[dict[str, Any]]]:
    """The curves of a task by algorithm; of those, the seeds that went furthest."""
    found: dict[str, list[dict[str, Any]]] = {}
    for algorithm in ALGORITHMS:
        there = [json.loads(path.read_text()) for path in sorted(out.glob(f"{task}-{algorithm}-*.json"))]
        furthest = max((one["steps"] for one in there), default=0)
        if there:
            found[algorithm] = [one for one in there if one["steps"] == furthest]
    return found


def table(task: str, out: Path) -> str:
    lines = [
        "| algorithm | steps | seeds | return | cost (limit 25) | OmniSafe at 10,000,000 steps: return / cost |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for algorithm, runs in gather(task, out).items():
        ends = {name: [float(np.mean(run[name][-LAST:])) for run in runs] for name in ("return", "cost")}
        published = TASKS[task].published.get(algorithm, "not in OmniSafe")
        lines.append(
            f"| {ALGORITHMS[algorithm]} | {runs[0]['steps']:,} | {len(runs)} | {spread(ends['return'])} | "
            f"{spread(ends['cost'])} | {published} |"
        )
    return "\n".join(lines)


def spread(values: list[float]) -> str:
    """The mean, and the range over the seeds."""
    mean = np.mean(values)
    places = 0 if abs(mean) >= 100 else 1 if abs(mean) >= 10 else 2
    if len(values) == 1:
        return f"{mean:.{places}f}"
    return f"{mean:.{places}f} ({min(values):.{places}f} to {max(values):.{places}f})"


def draw(task: str, out: Path, suffix: str = ".svg") -> None:
    """Return, cost and multiplier by steps; every seed as a line, their mean as a thick one."""
    import matplotlib
    from matplotlib.figure import Figure

    from apdo.report import plot

    with matplotlib.rc_context(plot.LOOK):
        figure = Figure(figsize=(11, 3.6), layout="constrained")
        panels = figure.subplots(1, 3)
        found = gather(task, out)
        highest = max(max(run["cost"]) for runs in found.values() for run in runs)
        colours = dict(zip(ALGORITHMS, plot.COLOURS, strict=False))
        for algorithm, runs in found.items():
            for panel, name in zip(panels, ("return", "cost", "multiplier"), strict=True):
                curves = [run[name] for run in runs if run[name] is not None]
                if not curves:
                    continue
                x = runs[0]["batch"] * np.arange(1, len(curves[0]) + 1) / 1e6
                for curve in curves:
                    panel.plot(x, curve, color=colours[algorithm], alpha=0.3, linewidth=0.8)
                panel.plot(
                    x, np.mean(curves, axis=0), color=colours[algorithm], linewidth=1.8, label=ALGORITHMS[algorithm]
                )
        panels[1].axhline(LIMIT, color="#333333", linestyle=(0, (5, 3)), linewidth=1)
        panels[1].set_yscale("symlog", linthresh=50)
        panels[1].set_yticks([0, 10, 25, 50, 100, 200, 400, 800], ["0", "10", "25", "50", "100", "200", "400", "800"])
        panels[1].minorticks_off()
        panels[1].set_ylim(0, 1.15 * max(60.0, highest))
        for panel, title in zip(panels, ("return per episode", "cost per episode", "multiplier"), strict=True):
            panel.set_title(title, loc="left", fontweight="bold")
            panel.set_xlabel("million steps")
        panels[0].legend(frameon=False)
        figure.suptitle(f"{TASKS[task].environment}, limit 25 in an episode", x=0.01, ha="left")
        plot.write(figure, out / f"{task}{suffix}")


def write_document(out: Path, target: Path = DOCUMENT) -> None:
    """Figures, and the tables into the document between their marks."""
    measured = [task for task in TASKS if gather(task, out)]
    for task in measured:
        draw(task, out)
    document.fill(target, {task: table(task, out) for task in measured})


def main() -> None:
    def names(text: str) -> list[str]:
        return [word for word in text.split(",") if word]

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--tasks", type=names, default=list(TASKS), help="of " + ", ".join(TASKS))
    parser.add_argument("--algorithms", type=names, default=list(ALGORITHMS), help="of " + ", ".join(ALGORITHMS))
    parser.add_argument("--seeds", type=names, help="with commas; by default as the task says")
    parser.add_argument("--steps", type=int, help="environment steps of each run; by default as the task says")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the curves go")
    parser.add_argument("--table", action="store_true", help="write the document, run nothing")
    parser.add_argument("--job", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job:
        task, algorithm, seed, steps = given.job
        train(task, algorithm, int(seed), int(steps), given.out)
        return
    for chosen, known in ((given.tasks, TASKS), (given.algorithms, ALGORITHMS)):
        wrong = [name for name in chosen if name not in known]
        if wrong:
            parser.error(f"unknown: {', '.join(wrong)}; known: {', '.join(known)}")
    failed = False
    if not given.table:
        # Seeds first, so that an interrupted benchmark has something of every algorithm.
        wanted = [
            (task, algorithm, int(seed), given.steps or TASKS[task].steps, given.out)
            for task in given.tasks
            for seed in (given.seeds or TASKS[task].seeds)
            for algorithm in given.algorithms
        ]
        wanted = [job for job in wanted if steps_there(path_of(*job[:3], given.out)) < job[3]]
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
            done = list(pool.map(lambda job: train_apart(*job), wanted))
        failed = not all(done)
    if given.out == RESULTS:
        write_document(given.out)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
