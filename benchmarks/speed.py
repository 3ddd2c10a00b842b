"""Speed of the paper's setting, one JSON line per figure.

`make bench`, or `python -m benchmarks.speed --seeds 8` on a GPU. Any other task of this library, with PDO's defaults:

    python -m benchmarks.speed --task point-goal-1 --batch 20000 --seeds 8

Every figure is the best and the median of several repetitions after compilation, because noise on a shared machine can
only add time.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import cast

import jax
import jax.numpy as jnp
from jax import random

from apdo import loop, rollout
from apdo.algorithms import on_policy, pdo, primal_steps
from apdo.core import replay
from apdo.core.data import flatten
from apdo.envs.environment import Environment
from apdo.experiment import opening, settings
from apdo.off_policy import ddpg
from apdo.off_policy.units import empty_buffer
from benchmarks import provenance


def report(figure: str, value: float, unit: str, **facts) -> None:
    device = jax.devices()[0]
    where = {"device": device.device_kind, "cores": os.cpu_count(), "jax": jax.__version__}
    found = {"figure": figure, "value": round(value, 6), "unit": unit} | facts | where
    print(json.dumps(provenance.stamped(found)), flush=True)


def timed(function, *arguments, repetitions: int):
    """Seconds of each repetition after one warm-up, and the last output."""
    output = jax.block_until_ready(function(*arguments))
    seconds = []
    for _ in range(repetitions):
        began = time.perf_counter()
        output = jax.block_until_ready(function(*arguments))
        seconds.append(time.perf_counter() - began)
    return seconds, output


def epoch_speed(training: loop.Training, seeds: int, repetitions: int) -> loop.State:
    """PDO end to end: sampling, advantages, value fit, TRPO, dual step."""
    advance = loop.make_advance(training)
    state = loop.start(training, list(range(seeds)))
    began = time.perf_counter()
    compiled = cast(jax.stages.Wrapped, advance).lower(state, jnp.asarray(1, dtype=jnp.int32)).compile()
    report("compilation of one PDO epoch", time.perf_counter() - began, "s", seeds=seeds)
    seconds = []
    for _ in range(repetitions + 2):
        began = time.perf_counter()
        state = jax.block_until_ready(compiled(state, jnp.asarray(1, dtype=jnp.int32))).state
        seconds.append(time.perf_counter() - began)
    samples = seeds * training.problem.batch
    best, median = min(seconds[2:]), statistics.median(seconds[2:])
    facts = {"seeds": seeds, "batch": training.problem.batch, "epoch_seconds": median}
    report("PDO end to end", samples / median, "steps/s", best=round(samples / best), **facts)
    return state


def task_speed(task: str, batch: int, seeds: int, repetitions: int) -> None:
    """PDO with its defaults end to end on a task, and how much of that is sampling."""
    training = opening.training_of(settings.make_experiment("pdo", task, {"batch": batch} if batch else {}))
    state = epoch_speed(training, seeds, repetitions)
    seconds, _ = timed(_sampling(training), state.algorithm, state.key, repetitions=repetitions)
    report_part("sampling", seconds, seeds)


def _sampling(training: loop.Training):
    """A compiled function (states, keys) ↦ the batches of all seeds."""

    def collect(algorithm, key):
        act = partial(training.algorithm.act, training.config, algorithm)
        memory = training.algorithm.memory(training.config, training.problem)
        axis = "seeds" if training.side_by_side else None
        shape = {"steps": training.steps, "environments": training.environments}
        return rollout.collect(cast(Environment, training.environment), act, memory, key, **shape, seeds_axis=axis)

    return jax.jit(lambda *arguments: loop.over_seeds(training, collect, arguments))


def report_part(name: str, seconds: list[float], seeds: int) -> None:
    """The time of a part of an epoch, for all seeds."""
    report(f"part of an epoch: {name}", 1e3 * statistics.median(seconds), "ms", best=1e3 * min(seconds), seeds=seeds)


def epoch_parts(training: loop.Training, state: loop.State, repetitions: int) -> None:
    """The time of each part of an epoch, compiled separately."""
    config, problem = training.config, training.problem

    def each(function):
        return jax.jit(lambda *arguments: loop.over_seeds(training, function, arguments))

    def estimate(algorithm, batch):
        return on_policy.estimate(problem, algorithm.critic, batch, config.trace, config.cost_trace)

    def fit(algorithm, batch, estimates, key):
        return on_policy.fit(config.critic, algorithm.critic, key, batch, estimates)

    def improve(algorithm, batch, estimates, key):
        samples = on_policy.samples(problem, batch, estimates.advantage[..., 0])
        return primal_steps.improve(config.primal, algorithm.policy, (), samples, key)

    algorithm, key = state.algorithm, state.key
    seconds, batch = timed(_sampling(training), algorithm, key, repetitions=repetitions)
    parts = {"sampling": seconds}
    parts["advantages"], estimates = timed(each(estimate), algorithm, batch, repetitions=repetitions)
    parts["value fit"], _ = timed(each(fit), algorithm, batch, estimates, key, repetitions=repetitions)
    parts["TRPO step"], _ = timed(each(improve), algorithm, batch, estimates, key, repetitions=repetitions)
    for name, seconds in parts.items():
        report_part(name, seconds, key.shape[0])


def off_policy_speed(training: loop.Training, learners: int, repetitions: int, iterations: int) -> None:
    """Primal-dual DDPG on a filled buffer, for several learners at once."""
    config, problem = ddpg.Learner(), training.problem

    def prepare(key):
        policy = pdo.init(pdo.Config(), problem, key).policy
        buffer = empty_buffer(problem, 2 * problem.batch)
        batch = rollout.collect(
            cast(Environment, training.environment),
            lambda memory, o, k: (policy(o).sample(k), memory),
            (),
            key,
            steps=training.steps,
            environments=training.environments,
        )
        return ddpg.start(config, problem, key), replay.insert(buffer, flatten(batch))

    keys = random.split(random.key(0), learners)
    learner, buffer = jax.jit(lambda keys: loop.over_seeds(training, prepare, (keys,)))(keys)
    work = partial(ddpg.learn, config, problem)
    learn = jax.jit(lambda state, buffer, n: loop.over_seeds(training, work, (state, buffer), (n,)))
    count = jnp.asarray(iterations, dtype=jnp.int32)
    seconds, _ = timed(learn, learner, buffer, count, repetitions=repetitions)
    each = [1e6 * s / iterations for s in seconds]
    report("primal-dual DDPG iteration", statistics.median(each), "µs", best=min(each), learners=learners)


def start_up() -> None:
    """The time from the command to the first line of metrics, if an earlier run has compiled everything."""
    command = [sys.executable, "-c", "from apdo.cli import main; main()"]
    options = ["train", "pdo", "point-gather", "--epochs", "1", "--quiet", "--out"]
    with tempfile.TemporaryDirectory() as folder:
        seconds = []
        for i in range(5):
            began = time.perf_counter()
            process = subprocess.Popen([*command, *options, f"{folder}/{i}"])
            metrics = Path(folder) / str(i) / "metrics.jsonl"
            while not (metrics.exists() and metrics.stat().st_size):
                time.sleep(0.01)
            seconds.append(time.perf_counter() - began)
            process.wait()
    report("second run, command to the first epoch's metrics", min(seconds[1:]), "s", first=seconds[0])
    began = time.perf_counter()
    subprocess.run([*command, "--help"], check=True, capture_output=True)
    report("apdo --help", time.perf_counter() - began, "s")
    imports = {}
    for module in ("jax", "apdo, apdo.experiment.runner"):
        timer = f"import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"
        runs = [subprocess.run([sys.executable, "-c", timer], check=True, capture_output=True) for _ in range(5)]
        imports[module] = min(float(run.stdout) for run in runs)
    added = imports["apdo, apdo.experiment.runner"] - imports["jax"]
    report("importing the whole library, above importing jax", added, "s", jax_alone=imports["jax"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--learners", type=int, nargs="*", default=[1])
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--iterations", type=int, default=2000)
    parser.add_argument("--no-start-up", action="store_true")
    parser.add_argument("--task", help="another task of this library, instead of the paper's setting")
    parser.add_argument("--batch", type=int, default=0, help="with --task: the batch; 0 is the default")
    given = parser.parse_args()
    if given.task:
        task_speed(given.task, given.batch, given.seeds, given.repetitions)
        return
    training = opening.training_of(settings.make_experiment("pdo", "point-gather", preset="paper"))
    state = epoch_speed(training, given.seeds, given.repetitions)
    epoch_parts(training, state, given.repetitions)
    for learners in given.learners:
        off_policy_speed(training, learners, given.repetitions, given.iterations)
    if not given.no_start_up:
        start_up()


if __name__ == "__main__":
    main()
