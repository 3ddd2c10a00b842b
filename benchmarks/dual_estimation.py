"""λ^OFF against λ*, by what the learner is made of, how much data it has, and how long it learns.

python -m benchmarks.dual_estimation point-gather --variants all --k 1,2,5,10 --seeds 16
"""

import argparse
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from apdo import loop, rollout
from apdo.algorithms import dual_estimate, pd_ddpg
from apdo.core import networks
from apdo.core.advantage import summarise
from apdo.experiment import runner, settings


def collected(environment: str, batches: int, seeds: int, options: dict[str, Any]) -> tuple[Any, Any]:
    """A PDO run's buffers, [seeds], and its problem."""
    experiment = settings.specify("apdo", environment, {"k_adj": batches - 1, "seeds": seeds} | options)
    training = runner.training_of(experiment)
    advance = loop.make_advance(training)
    state = loop.start(training, list(range(seeds)))
    for _ in range(batches):
        state = advance(state, jnp.asarray(1, dtype=jnp.int32)).state
    return state.algorithm.buffer, training


def learners(config: pd_ddpg.Learner, problem: Any, buffers: Any, rows: int, members: int, iterations: int):
    """Trained learners, [seeds, members]."""
    buffers = eqx.tree_at(lambda b: b.inserted, buffers, jnp.full_like(buffers.inserted, rows))
    keys = random.split(random.key(7), (buffers.inserted.shape[0], members))

    def one(buffer, key):
        state = pd_ddpg.start(config, problem, key)
        return pd_ddpg.learn(config, problem, state, buffer, jnp.asarray(iterations), total=iterations)

    return jax.vmap(jax.vmap(one, in_axes=(None, 0)))(buffers, keys)


def judged(training: Any, learner: Any, noise: float, episodes: int) -> tuple[np.ndarray, np.ndarray]:
    """True return and cost of each noisy actor."""
    problem = training.problem

    def one(networks_, key):
        def act(memory, observation, key):
            mean = networks.bounded(networks_.actor(observation), networks_.bound)
            return mean + noise * random.normal(key, mean.shape), memory

        batch = rollout.collect(
            training.environment, act, (), key, steps=problem.horizon, environments=episodes, seeds_axis=None
        )
        found = summarise(batch, problem.discount, problem.cost_discount)
        return found.undiscounted_return, found.constrained_cost[0]

    keys = random.split(random.key(3), learner.iteration.shape)
    returns, costs = jax.jit(jax.vmap(jax.vmap(one)))(learner.learned, keys)
    return np.asarray(returns), np.asarray(costs)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--spec", help="JSON list of {name, k, members, iterations, learner}")
    parser.add_argument("--environment", default="point-gather")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--batches", type=int, default=11)
    parser.add_argument("--options", default="{}")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    began = time.perf_counter()
    buffers, training = collected(given.environment, given.batches, given.seeds, json.loads(given.options))
    print("collected", round(time.perf_counter() - began, 1), flush=True)
    for spec in json.loads(Path(given.spec).read_text()):
        if spec.get("learner", {}).get("rule") == "PID":
            from apdo.core import dual

            spec["learner"]["rule"] = dual.Pid(proportional=20.0)
        changes = {k: tuple(v) if isinstance(v, list) else v for k, v in spec.get("learner", {}).items()}
        learner = dataclasses.replace(dual_estimate.DEPENDABLE, **changes)
        problem = training.problem
        began = time.perf_counter()
        run = jax.jit(
            lambda buffers, learner=learner, spec=spec, problem=problem: learners(
                learner, problem, buffers, (spec["k"] + 1) * problem.batch, spec["members"], spec["iterations"]
            )
        )
        compiled = run.lower(buffers).compile()
        compiling, began = time.perf_counter() - began, time.perf_counter()
        state = jax.block_until_ready(compiled(buffers))
        seconds = time.perf_counter() - began
        found = np.asarray(state.multiplier_mean)[..., 0]
        returns, costs = judged(training, state, learner.action_noise, 2000)
        median = np.median(found, axis=1)
        spec["learner"] = {k: str(v) for k, v in spec.get("learner", {}).items()}
        row = {
            **spec,
            "seconds": round(seconds, 1),
            "compiling": round(compiling, 1),
            "median": [round(float(x), 2) for x in median],
            "spread": round(float(found.std(axis=1).mean()), 2),
            "return": [round(float(x), 2) for x in np.median(returns, axis=1)],
            "cost": [round(float(x), 3) for x in np.median(costs, axis=1)],
            "said": [round(float(x), 3) for x in np.median(np.asarray(state.critic_cost)[..., 0], axis=1)],
        }
        print(json.dumps(row), flush=True)
        if given.out:
            given.out.parent.mkdir(parents=True, exist_ok=True)
            with given.out.open("a") as f:
                full = {"found": found.tolist(), "returns": returns.tolist(), "costs": costs.tolist()}
                f.write(json.dumps({**row, **full}) + "\n")


if __name__ == "__main__":
    main()
