"""What the bridge to Gymnasium costs in addition to the environments' own steps, one JSON line each.

`make bench`, or `python -m benchmarks.bridge`. An epoch's collection (policy, bookkeeping, costs, checks, resets) is
timed against a bare loop that steps the same number of environments with prepared actions. Both are the best of several
repetitions, because noise on a shared machine can only add time.
"""

import argparse
import json
import os
import platform
import time
from functools import partial

import gymnasium
import jax
import numpy as np
from jax import random

from apdo import hosted, loop
from apdo.envs import of_object
from apdo.experiment import opening, settings
from benchmarks import provenance

STEPS = 400


class Trivial(gymnasium.Env):
    """Does nothing, as fast as Python can."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (8,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self):
        self.seen = np.zeros(8, np.float32)

    def reset(self, *, seed=None, options=None):  # noqa: ARG002
        return self.seen, {}

    def step(self, action):  # noqa: ARG002
        return self.seen, 0.0, False, False, {"cost": 0.0}


def bare(make, environments: int, steps: int) -> tuple[float, float]:
    """The seconds that the environments alone take for a step of each, by wall clock and by processor time."""
    envs = [make() for _ in range(environments)]
    for i, env in enumerate(envs):
        env.action_space.seed(i)
        env.reset(seed=i)
    actions = [env.action_space.sample() for env in envs]
    began, worked = time.perf_counter(), time.process_time()
    for _ in range(steps):
        for env, action in zip(envs, actions, strict=True):
            env.step(action)
    return (time.perf_counter() - began) / steps, (time.process_time() - worked) / steps


def bridged(environment, environments: int, steps: int, repetitions: int, **options) -> list[tuple[float, float]]:
    """The same for an epoch's collection, by repetition."""
    name, task, changes = of_object(environment)
    batch = environments * steps
    changes |= {"batch": batch, "environments": environments, "max_episode_steps": steps, "limits": 25.0} | options
    training = opening.training_of(settings.make_experiment("pdo", name, changes, task=task))
    copies = hosted.open_copies(training)
    actor = hosted.Actor(partial(training.algorithm.act, training.config), training)
    act = actor.of(jax.tree.map(lambda leaf: leaf[0], loop.start(training, [0]).algorithm), ())
    seconds = []
    for k in range(repetitions + 1):
        began, worked = time.perf_counter(), time.process_time()
        hosted.collect(copies, act, (), random.key(k), training.steps)
        took, used = time.perf_counter() - began, time.process_time() - worked
        seconds.append((took / training.steps, used / training.steps))
    copies.close()
    return seconds[1:]


def measure(name: str, environment, make, environments: int, repetitions: int, **options) -> dict:
    own = np.array([bare(make, environments, STEPS) for _ in range(repetitions)])
    ours = np.array(bridged(environment, environments, STEPS, repetitions, **options))
    clock, work = (1e6 / environments * (ours - own.min(axis=0))).T
    return {
        "figure": f"bridge overhead, {name}",
        "value": round(float(clock.min()), 2),
        "median": round(float(np.median(clock)), 2),
        # Workers' own processor time is not this process's.
        "processor_time": round(float(work.min()), 2) if options["workers"] == "0" else None,
        "own_step": round(1e6 / environments * float(own[:, 0].min()), 2),
        "unit": "µs per step and environment",
        "environments": environments,
        "cores": os.cpu_count(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "gymnasium": gymnasium.__version__,
        "load": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--environments", type=int, default=16)
    parser.add_argument("--repetitions", type=int, default=7)
    given = parser.parse_args()
    pendulum = partial(gymnasium.make, "Pendulum-v1", max_episode_steps=STEPS, disable_env_checker=True)
    cases = [
        ("a trivial environment, in this process", Trivial, Trivial, {"workers": "0"}),
        ("Pendulum-v1 with one cost, in this process", pendulum, pendulum, {"workers": "0", "cost": "abs(obs[2]) > 4"}),
        ("Pendulum-v1 with one cost, 2 workers", pendulum, pendulum, {"workers": "2", "cost": "abs(obs[2]) > 4"}),
    ]
    for name, environment, make, options in cases:
        found = measure(name, environment, make, given.environments, given.repetitions, **options)
        print(json.dumps(provenance.stamped(found, ("gymnasium",))), flush=True)


if __name__ == "__main__":
    main()
