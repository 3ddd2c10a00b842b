"""How many samples a policy within the limit takes on the field's long tasks: off-policy and on-policy algorithms.

    python -m benchmarks.robots                                  all of it, then the table of docs/sample-efficiency.md
    python -m benchmarks.robots --only 'halfcheetah-velocity/.*' a part: TASK/ARM as a pattern
    python -m benchmarks.robots --only hopper-velocity/sac-lag --samples 300000 --seconds 500
    python -m benchmarks.robots --table                          the table alone, from what was measured

Every algorithm has the library's defaults, and is given only the number of samples. An arm with options has the same
options on every task. After every 20,000 samples the newest policy, stochastic, plays fresh episodes that are not
counted. A target is met from the first of three evaluations in a row with at least that return and a cost of at most
1.05 times the limit. Results go to results/robots, a file for each task and arm. A file that exists is not made again,
unless --again is given.
"""

import argparse
import json
import re
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
from jax import random

from apdo import hosted, loop, objective, rollout
from apdo.envs.environment import Environment
from benchmarks import document, provenance

RESULTS = Path("results/robots")
DOCUMENT = Path("docs/sample-efficiency.md")
TASKS = {
    "halfcheetah-velocity": (2800.0, 500_000, "SACLag 2800 by about 200,000"),
    "point-goal-1": (17.0, 1_500_000, "within the limit at 1.0 to 1.4 million, with 12 to 18"),
    "hopper-velocity": (1600.0, 1_000_000, "–"),
    "walker2d-velocity": (2700.0, 1_000_000, "TD3Lag 2996 at 1,000,000"),
    "ant-velocity": (2400.0, 1_000_000, "TD3PID 2410 at 1,000,000, beyond the limit"),
}
"""The target return, the samples, and what peers have published for off-policy algorithms (shared limit of 25)."""
SLOW = {
    "learner.actor_rate": 3e-5,
    "learner.dual_rate": 5e-6,
    "learner.cost_steps": 10,
    "learner.rule.of_integral": True,
}
"""Slow steps of actor and multipliers, which give the critics time, and costs counted as paid over ten steps."""
ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    "sac-lag": ("sac-lag", {}),
    "sac-lag-slow": ("sac-lag", SLOW),
    "apdo": ("apdo", {}),
    "pdo": ("pdo", {}),
    "cpo": ("cpo", {}),
}
"""Algorithm and options, by the arm's name."""
SEEDS = 5
EVERY = 20_000
"""The number of samples between evaluations."""
EPISODES = 20
_NEVER = 1_000_000
"""The number of epochs between planned checkpoints: none, because the run folder is not kept."""
WITHIN = 1.05
IN_A_ROW = 3


class Evaluator:
    """Plays fresh episodes of a state's policy. Environments and programs are made once."""

    def __init__(self, training: loop.Training, seeds: int) -> None:
        self.training = training
        self.on_host = hosted.is_hosted(training)
        act = partial(training.algorithm.act, training.config)
        if self.on_host:
            self.copies = hosted.open_copies(training, seeds * EPISODES)
            self.actor = hosted.Actor(act, training, EPISODES)
        else:
            self.environment = cast(Environment, training.environment)
            self.play = jax.jit(jax.vmap(self._on_device, in_axes=(0, 0)))

    def _on_device(self, algorithm: Any, key: Any) -> Any:
        own = self.training
        act, memory = partial(own.algorithm.act, own.config, algorithm), own.algorithm.memory(own.config, own.problem)
        batch = rollout.collect(self.environment, act, memory, key, steps=own.problem.horizon, environments=EPISODES)
        return objective.measure(own.problem, batch)

    def __call__(self, state: loop.State, number: int) -> list[tuple[float, float]]:
        """Return and cost of each seed's policy; `number` is the number of the set of episodes."""
        count = state.key.shape[0]
        keys = jax.vmap(lambda s: random.fold_in(random.fold_in(random.key(2**30), number), s))(np.arange(count))
        if not self.on_host:
            found = self.play(state.algorithm, keys)
            return list(zip(np.asarray(found.undiscounted_return), np.asarray(found.cost)[:, 0], strict=True))
        own = self.training
        memory = own.algorithm.memory(own.config, own.problem)
        act = self.actor.of_seeds(state.algorithm, memory, range(count))
        batches = hosted.collect_seeds(self.copies, act, memory, list(keys), own.problem.horizon)
        found = [objective.measure(own.problem, batch) for batch in batches]
        return [(float(each.undiscounted_return), float(each.cost[0])) for each in found]


def train(task: str, arm: str, seeds: int, samples: int, seconds: float, keep: Callable[[dict], None]) -> None:
    """Train one arm on one task. The results so far are stored after every evaluation."""
    from apdo.experiment import opening, runner, settings

    algorithm, options = ARMS[arm]
    given = {"samples": samples, "seeds": seeds, "checkpoint_every": _NEVER} | options
    experiment = settings.make_experiment(algorithm, task, given)
    training = opening.training_of(experiment)
    evaluator, began = Evaluator(training, seeds), time.perf_counter()
    curves: dict[str, dict[str, list[float]]] = {
        str(seed): {"samples": [], "return": [], "cost": [], "multiplier": []} for seed in range(seeds)
    }
    packages = getattr(training.environment, "packages", ())
    every = max(1, EVERY // training.problem.batch)
    about = provenance.of(packages) | {"options": experiment.describe(), "episodes": EPISODES}

    def look(epoch: Any) -> str | None:
        taken = time.perf_counter() - began
        if epoch.epoch % every == 0 or epoch.epoch == epoch.epochs:
            price = epoch.metrics["multiplier"].reshape(seeds, -1)[:, 0]
            for seed, (earned, cost) in enumerate(evaluator(epoch.state(), epoch.epoch)):
                row = {"samples": epoch.samples, "return": earned, "cost": cost, "multiplier": price[seed]}
                for name, value in row.items():
                    curves[str(seed)][name].append(round(float(value), 4))
            keep(about | {"samples": epoch.samples, "seconds": round(taken, 1), "curves": curves})
        return "its time is over" if taken > seconds else None

    with tempfile.TemporaryDirectory() as folder:
        runner.run(experiment, Path(folder) / "run", quiet=True, callbacks=[look])


def samples_to(curve: dict[str, list[float]], target: float, limit: float = 25.0) -> float:
    """The number of samples after which a target is met; infinity if never."""
    good = (np.asarray(curve["return"]) >= target) & (np.asarray(curve["cost"]) <= WITHIN * limit)
    runs = np.convolve(good, np.ones(IN_A_ROW), "valid") == IN_A_ROW if len(good) >= IN_A_ROW else np.zeros(0)
    return float(np.asarray(curve["samples"])[np.argmax(runs)]) if runs.any() else float("inf")


def row(task: str, arm: str, found: dict[str, Any]) -> list[str]:
    """A line of the table."""
    target, _, published = TASKS[task]
    curves = list(found["curves"].values())
    met = np.array([samples_to(curve, target) for curve in curves])
    count, median = int(np.isfinite(met).sum()), float(np.median(met))
    middle = f"{median:,.0f}" if np.isfinite(median) else f"more than {found['samples']:,}"
    worst = f"{met.max():,.0f}" if np.isfinite(met).all() else "never"
    last = np.mean([[np.mean(curve[name][-5:]) for name in ("return", "cost")] for curve in curves], axis=0)
    return [
        task,
        arm,
        f"{target:,.0f}",
        f"{middle} (worst {worst}; {count} of {len(curves)})",
        f"{found['samples']:,}",
        f"{last[0]:,.4g} / {last[1]:.3g}",
        published,
    ]


HEADINGS = [
    "task",
    "arm",
    "return to earn",
    "samples to it within the limit: median",
    "samples in all",
    "last five evaluations: return / cost",
    "published, off-policy",
]


def table() -> list[list[str]]:
    """The rows of the table."""
    files = {(task, arm): path for task in TASKS for arm in ARMS if (path := path_of(task, arm)).exists()}
    return [row(task, arm, json.loads(path.read_text())) for (task, arm), path in files.items()]


def path_of(task: str, arm: str) -> Path:
    """The file of a task and arm."""
    return RESULTS / f"{task}-{arm}.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=".*", help="TASK/ARM as a pattern")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--samples", type=int, help="instead of the task's own")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="stop a run, with what it has, after so many"
    )
    parser.add_argument("--again", action="store_true", help="also what is there already")
    parser.add_argument("--table", action="store_true", help="write the table, run nothing")
    given = parser.parse_args()
    for task, (_, samples, _) in TASKS.items():
        for arm in ARMS:
            path = path_of(task, arm)
            chosen = re.fullmatch(given.only, f"{task}/{arm}") and (given.again or not path.exists())
            if given.table or not chosen:
                continue
            path.parent.mkdir(parents=True, exist_ok=True)

            def keep(found: dict, path: Path = path) -> None:
                path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

            train(task, arm, given.seeds, given.samples or samples, given.seconds, keep)
            print(" | ".join(row(task, arm, json.loads(path.read_text()))), flush=True)
    if given.table or given.only == ".*":
        document.fill(DOCUMENT, {"robots": document.table(HEADINGS, *table())})


if __name__ == "__main__":
    main()
