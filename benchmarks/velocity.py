"""How fast the velocity robots step: on threads, and by Gymnasium's own classes one by one; one JSON line each.

`python -m benchmarks.velocity`, which needs `apdo[mujoco]`. Both ways take turns, so that noise on a shared machine
affects both. Reported are medians and their ratio, the best, and the steps per second of processor time, which noise
changes least. Then PDO is timed end to end on HalfCheetah, one epoch of each way in turn, with the share of collecting.
"""

import argparse
import dataclasses
import importlib
import json
import os
import platform
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from apdo import hosted, loop
from apdo.envs import host
from apdo.experiment import opening, settings
from apdo.tasks import velocity
from benchmarks import provenance

mujoco = importlib.import_module("mujoco")
"""An optional package, which a type checker need not find."""


def stepped(copies: host.Copies, steps: int, seed: int) -> tuple[float, float]:
    """The seconds for so many steps of each copy with prepared actions, by wall clock and by processor time."""
    copies.reset([0, 0, 0, seed])
    actions = np.random.default_rng(seed).uniform(-1.0, 1.0, (32, *copies.arrays.action.shape))
    began, worked = time.perf_counter(), time.process_time()
    for t in range(steps):
        copies.arrays.action[:] = actions[t % 32]
        copies.step(last=False)
    return time.perf_counter() - began, time.process_time() - worked


def told(figure: str, samples: int, taken: np.ndarray) -> dict:
    """Steps per second: median, best, and per second of processor time, from (clock, processor) of repetitions."""
    clock, work = samples / taken.T
    return {
        "figure": figure,
        "median": round(float(np.median(clock))),
        "best": round(float(clock.max())),
        "processor_time": round(float(work.max())),
        "unit": "steps/s",
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "mujoco": mujoco.__version__,
        "load": round(os.getloadavg()[0], 1),
    }


def alone(robot: str, copies: int, steps: int, repetitions: int) -> list[dict]:
    """Time the copies without a policy."""
    task = settings.make_experiment("pdo", robot, {"batch": 1000 * copies}).environment_config
    ways = {
        f"{copies} copies on threads": task.open(copies),
        "16 copies of Gymnasium's class": velocity.reference(dataclasses.replace(task, workers="0")).open(16),
    }
    taken = {name: [] for name in ways}
    for k in range(repetitions + 1):
        for name, opened in ways.items():
            taken[name].append(stepped(opened, steps * copies // opened.arrays.count, k))
    for opened in ways.values():
        opened.close()
    rows = [told(f"{robot}, {name}", steps * copies, np.asarray(times[1:])) for name, times in taken.items()]
    for kind in ("median", "processor_time"):
        rows[0][f"ratio_{kind}"] = round(rows[0][kind] / rows[1][kind], 2)
    return rows


class Epochs:
    """PDO's epochs on HalfCheetah, timed."""

    def __init__(self, name: str, reference: bool, **options) -> None:
        self.name, self.taken, self.collecting = name, [], []
        experiment = settings.make_experiment("pdo", "halfcheetah-velocity", options)
        if reference:
            task = velocity.reference(experiment.environment_config)
            experiment = dataclasses.replace(experiment, environment_config=task)
        training = opening.training_of(experiment)
        self.samples = training.problem.batch
        self.state, self.advance = loop.start(training, [0]), hosted.Advance(training)

    def run(self) -> None:
        """One more epoch."""
        with _Timed(self.collecting):
            began, worked = time.perf_counter(), time.process_time()
            chunk = jax.block_until_ready(self.advance(self.state, jnp.int32(1)))
            self.taken.append((time.perf_counter() - began, time.process_time() - worked))
        self.state = chunk.state


class _Timed:
    """A context that adds the seconds of collecting to a list."""

    def __init__(self, seconds: list[float]) -> None:
        self.seconds, self.collect = seconds, hosted.collect_seeds

    def __enter__(self) -> None:
        def timed(*given):
            began = time.perf_counter()
            batches = jax.block_until_ready(self.collect(*given))
            self.seconds.append(time.perf_counter() - began)
            return batches

        hosted.collect_seeds = timed

    def __exit__(self, *_: object) -> None:
        hosted.collect_seeds = self.collect


def end_to_end(repetitions: int) -> list[dict]:
    """Time a whole epoch: the policy, the copies, learning."""
    ways = [
        Epochs("20 copies on threads, batches of 20,000", reference=False),
        Epochs("64 copies on threads, batches of 64,000", reference=False, batch=64_000),
        Epochs("16 copies of Gymnasium's class, batches of 32,000", reference=True, environments=16, workers="0"),
    ]
    for _ in range(repetitions + 1):
        for way in ways:
            way.run()
    rows = []
    for way in ways:
        way.advance.close()
        row = told(f"PDO on halfcheetah-velocity, {way.name}", way.samples, np.asarray(way.taken[1:]))
        shares = np.asarray(way.collecting[1:]) / np.asarray(way.taken[1:])[:, 0]
        rows.append(row | {"collecting": round(float(np.median(shares)), 2)})
    for kind in ("median", "processor_time"):
        rows[0][f"ratio_{kind}"] = round(rows[0][kind] / rows[2][kind], 2)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--copies", type=int, default=64)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--repetitions", type=int, default=9)
    given = parser.parse_args()
    measures = [partial(alone, robot, given.copies, given.steps, given.repetitions) for robot in velocity.ROBOTS]
    for measure in (*measures, partial(end_to_end, given.repetitions)):
        for row in measure():
            print(json.dumps(provenance.stamped(row, ("mujoco", "gymnasium"))), flush=True)


if __name__ == "__main__":
    main()
