"""Samples that algorithms need to earn R within the limit, every sample counted, on fresh episodes."""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from apdo import loop, rollout
from apdo.core.advantage import summarise
from apdo.experiment import presets, runner, settings

EPISODES = 1000
CONSECUTIVE = 3
COST = 0.21


def curves(algorithm: str, environment: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return and cost of the stochastic policy on fresh episodes after every epoch, [epochs, seeds]."""
    experiment = settings.specify(algorithm, environment, options)
    training = runner.training_of(experiment)
    problem = training.problem
    advance, adjuster = loop.make_advance(training), loop.Adjuster(training)

    def evaluate(algorithm_state, key):
        policy = training.algorithm.learned_policy(algorithm_state)
        batch = rollout.collect(
            training.environment,
            lambda memory, o, k: (policy(o).sample(k), memory),
            (),
            key,
            steps=problem.horizon,
            environments=EPISODES,
            seeds_axis=None,
        )
        found = summarise(batch, problem.discount, problem.cost_discount)
        return found.undiscounted_return, found.constrained_cost[0]

    evaluate_all = jax.jit(lambda state, keys: loop.over_seeds(training, evaluate, (state, keys)))
    seeds = list(range(experiment.settings.seeds))
    state = loop.start(training, seeds)
    returns, costs, multipliers, taken, samples, estimates = [], [], [], [], [], []
    began = time.perf_counter()
    adjusting = 0.0
    for epoch in range(experiment.settings.epochs):
        chunk = advance(state, jnp.asarray(1, dtype=jnp.int32))
        state = chunk.state
        multipliers.append(np.asarray(chunk.metrics["multiplier"][0])[:, 0] if "multiplier" in chunk.metrics else None)
        taken.append(np.asarray(chunk.metrics["actor_taken"][0]) if "actor_taken" in chunk.metrics else None)
        if adjuster.due(epoch):
            at = time.perf_counter()
            learner = adjuster.work(state, adjuster.begin(state), adjuster.total)
            state, found = adjuster.finish(state, learner)
            estimates.append(np.asarray(found.multiplier)[:, 0].tolist())
            adjusting += time.perf_counter() - at
        keys = random.split(random.fold_in(random.key(99), epoch), len(seeds))
        r, c = evaluate_all(state.algorithm, keys)
        returns.append(np.asarray(r))
        costs.append(np.asarray(c))
        samples.append((epoch + 1) * problem.batch)
    return {
        "algorithm": algorithm,
        "environment": environment,
        "options": {name: str(value) for name, value in options.items()},
        "samples": samples,
        "return": np.array(returns).round(3).tolist(),
        "cost": np.array(costs).round(4).tolist(),
        "multiplier": None if multipliers[0] is None else np.array(multipliers).round(3).tolist(),
        "taken": None if taken[0] is None else np.array(taken).tolist(),
        "estimates": estimates,
        "seconds": round(time.perf_counter() - began, 1),
        "adjusting": round(adjusting, 1),
    }


def samples_to(found: dict[str, Any], target: float) -> np.ndarray:
    """By seed: the first sample count from which so many consecutive evaluations meet the target; infinity if none."""
    met = (np.array(found["return"]) >= target) & (np.array(found["cost"]) <= COST)
    first = np.full(met.shape[1], np.inf)
    for i in range(met.shape[0] - CONSECUTIVE, -1, -1):
        first[met[i : i + CONSECUTIVE].all(axis=0)] = found["samples"][i]
    return first


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--spec")
    parser.add_argument("--environment", default="point-gather")
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    for spec in json.loads(Path(given.spec).read_text()):
        algorithm = spec.get("algorithm", "apdo")
        options = {k: tuple(v) if isinstance(v, list) else v for k, v in spec["options"].items()}
        if "preset" in options:
            options = dict(presets.PRESETS[options.pop("preset")].options(algorithm)) | options
        found = curves(algorithm, given.environment, options | {"seeds": given.seeds})
        line = {"name": spec["name"], "seconds": found["seconds"], "adjusting": found["adjusting"]}
        for target in (11, 13, 14):
            first = samples_to(found, target)
            line[f"R{target}"] = [float(np.median(first)), int(np.isfinite(first).sum()), np.sort(first)[:20].tolist()]
        line["end"] = [round(float(np.mean(found[k][-5:])), 3) for k in ("return", "cost")]
        line["estimates"] = [[round(x, 2) for x in e] for e in found["estimates"]]
        print(json.dumps(line), flush=True)
        if given.out:
            with given.out.open("a") as f:
                f.write(json.dumps({"name": spec["name"], **found}) + "\n")


if __name__ == "__main__":
    main()
