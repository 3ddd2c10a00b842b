"""How many samples it takes to earn R within the limit: every sample counted, judged on fresh episodes.

    make sample-efficiency                                  all arms, then the table and figure of the document
    python -m benchmarks.sample_efficiency --only fast      some arms (a pattern)
    python -m benchmarks.sample_efficiency --table          the table and figure alone

After every epoch the stochastic policy plays 1,000 fresh episodes, neither trained on nor counted. The target is met at
the first sample count from which three evaluations in a row have return ≥ R and cost ≤ 0.21. While an actor is on
trial the policy has not changed yet, so that such an evaluation does not count. Results go to
results/sample-efficiency, one JSON file for each arm; what is there is not run again unless --again.
"""

import argparse
import dataclasses
import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import document

RESULTS = Path("results/sample-efficiency")
DOCUMENT = Path("docs/sample-efficiency.md")
EPISODES = 1000
CONSECUTIVE = 3
COST = 0.21
TARGETS = (11, 14)
KEPT = 500_000
"""Samples after the target within which its cost must be kept."""


@dataclasses.dataclass(frozen=True)
class Arm:
    """One curve."""

    title: str
    algorithm: str = "apdo"
    preset: str | None = "fast"
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)
    seeds: int = 8


ARMS = {
    "fast": Arm("APDO, preset fast", changes={"epochs": 110}, seeds=16),
    "fast-again": Arm("adjusted again every 10 epochs", changes={"epochs": 110, "again_every": 10}),
    "fast-pdo-first": Arm("PDO before the jump, not π_0", changes={"explore": False, "epochs": 70}, seeds=16),
    "fast-later": Arm("PDO before, jump after 100,000", changes={"explore": False, "k_adj": 9, "epochs": 70}, seeds=16),
    "fast-quicker-ppo": Arm("PPO's rate 0.003", changes={"primal.rate": 3e-3, "epochs": 110}, seeds=16),
    "fast-trpo": Arm("TRPO instead of PPO", changes={"primal": "trpo", "epochs": 110}),
    "fast-ascent": Arm("dual ascent instead of PID", changes={"rule": "ascent", "epochs": 110}),
    "fast-dual": Arm("multiplier only (adjust = dual)", changes={"adjust": "dual", "epochs": 110}),
    "dual": Arm("APDO, paper's TRPO, multiplier only", preset=None, changes={"k_adj": 5, "epochs": 70}, seeds=16),
    "cpo-50k": Arm("CPO, batches of 50,000", "cpo", None, {"epochs": 90}),
    "cpo-10k": Arm("CPO, batches of 10,000", "cpo", None, {"batch": 10_000, "epochs": 250}),
    "pdo-ppo": Arm(
        "PDO with PPO, batches of 10,000",
        "pdo",
        None,
        {"primal": "ppo", "batch": 10_000, "epochs": 250, "rule": "pid", "rule.proportional": 20.0, "dual_step": 2.0},
    ),
}


def curves(arm: Arm, seeds: int) -> dict[str, Any]:
    """Return and cost of the stochastic policy on fresh episodes after every epoch, [epochs, seeds]."""
    import jax
    import jax.numpy as jnp
    from jax import random

    from apdo import loop, rollout
    from apdo.core.advantage import summarise
    from apdo.envs.environment import Environment
    from apdo.experiment import runner, settings

    experiment = settings.specify(arm.algorithm, "point-gather", arm.changes | {"seeds": seeds}, arm.preset)
    training = runner.training_of(experiment)
    problem, environment = training.problem, training.environment
    assert isinstance(environment, Environment)

    def evaluate(algorithm_state, key):
        policy = training.algorithm.learned_policy(algorithm_state)
        batch = rollout.collect(
            environment,
            lambda memory, observation, key: (policy(observation).sample(key), memory),
            (),
            key,
            steps=problem.horizon,
            environments=EPISODES,
            seeds_axis=None,
        )
        found = summarise(batch, problem.discount, problem.cost_discount)
        return found.undiscounted_return, found.constrained_cost[0]

    advance, adjuster = loop.make_advance(training), loop.Adjuster(training)
    evaluate_all = jax.jit(lambda state, keys: loop.over_seeds(training, evaluate, (state, keys)))
    state = loop.start(training, list(range(seeds)))
    rows: dict[str, list[Any]] = {"return": [], "cost": [], "multiplier": [], "actor_taken": []}
    adjusted, estimates, began = [], [], time.perf_counter()
    for epoch in range(experiment.settings.epochs):
        chunk = advance(state, jnp.asarray(1, dtype=jnp.int32))
        state = chunk.state
        for name in ("multiplier", "actor_taken"):
            if name in chunk.metrics:
                rows[name].append(np.asarray(chunk.metrics[name][0]).reshape(seeds, -1)[:, 0])
        if adjuster.due(epoch):
            state, found = adjuster.finish(state, adjuster.work(state, adjuster.begin(state), adjuster.total))
            adjusted.append(epoch)
            estimates.append({name: np.asarray(getattr(found, name))[:, 0].tolist() for name in vars(found)})
        keys = random.split(random.fold_in(random.key(99), epoch), seeds)
        returns, costs = evaluate_all(state.algorithm, keys)
        rows["return"].append(np.asarray(returns))
        rows["cost"].append(np.asarray(costs))
    return {
        "options": experiment.describe(),
        "batch": problem.batch,
        "adjusted": adjusted,
        "on_trial": getattr(experiment.algorithm_config, "adjust", "dual") == "primal-dual",
        "estimates": estimates,
        **{name: np.array(values).round(4).tolist() for name, values in rows.items() if values},
        "seconds": round(time.perf_counter() - began, 1),
        "device": f"{jax.devices()[0].device_kind}, jax {jax.__version__}",
    }


def samples_of(found: dict[str, Any]) -> np.ndarray:
    return (np.arange(len(found["return"])) + 1) * found["batch"]


def samples_to(found: dict[str, Any], target: float) -> np.ndarray:
    """By seed: the first sample count from which so many evaluations in a row meet the target; infinity if none."""
    met = (np.array(found["return"]) >= target) & (np.array(found["cost"]) <= COST)
    if found["on_trial"]:
        met[found["adjusted"]] = False
    first = np.full(met.shape[1], np.inf)
    for i in range(met.shape[0] - CONSECUTIVE, -1, -1):
        first[met[i : i + CONSECUTIVE].all(axis=0)] = samples_of(found)[i]
    return first


def kept(found: dict[str, Any], target: float) -> np.ndarray:
    """By seed: the mean cost over the next 500,000 samples after the target; NaN where it is not met."""
    samples, costs = samples_of(found), np.array(found["cost"])
    means = np.full(costs.shape[1], np.nan)
    for seed, first in enumerate(samples_to(found, target)):
        if np.isfinite(first):
            means[seed] = costs[(samples >= first) & (samples <= first + KEPT), seed].mean()
    return means


def path_of(name: str) -> Path:
    return RESULTS / f"{name}.json"


def _row(name: str, found: dict[str, Any]) -> str:
    cells = [ARMS[name].title, str(len(found["return"][0]))]
    for target in TARGETS:
        first = samples_to(found, target)
        median = np.median(first)
        middle = f"{median:,.0f}" if np.isfinite(median) else f"> {samples_of(found)[-1]:,}"
        worst = f"{first.max():,.0f}" if np.isfinite(first.max()) else "never"
        cells.append(f"{middle} ({worst}; {np.isfinite(first).sum()} met it)")
    means = kept(found, TARGETS[0])
    means = means[np.isfinite(means)]
    cells.append(f"{means.mean():.3f} ({means.max():.3f})" if len(means) else "-")
    last = slice(-10, None)
    cells.append(f"{np.mean(found['return'][last]):.1f} / {np.mean(found['cost'][last]):.3f}")
    return "| " + " | ".join(cells) + " |"


def table() -> str:
    """The document's table."""
    heads = ["arm", "seeds"] + [f"samples to return {target}: median (worst)" for target in TARGETS]
    heads += ["cost kept after: mean (worst seed)", "last ten evaluations: return / cost"]
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    return "\n".join(lines + [_row(name, found) for name, found in measured().items()])


def measured() -> dict[str, dict[str, Any]]:
    """What has been measured, by arm."""
    return {name: json.loads(path_of(name).read_text()) for name in ARMS if path_of(name).exists()}


def draw() -> None:
    """Return and cost against samples, medians and quartiles over seeds."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(11, 4.2))
    for i, (name, found) in enumerate(measured().items()):
        samples = samples_of(found)
        for panel, values in zip(panels, (found["return"], found["cost"]), strict=True):
            low, middle, high = np.quantile(np.array(values), [0.25, 0.5, 0.75], axis=1)
            colour, style = f"C{i % 10}", "-" if i < 10 else "--"
            panel.plot(samples, middle, style, color=colour, label=ARMS[name].title, linewidth=1.4)
            panel.fill_between(samples, low, high, color=colour, alpha=0.12, linewidth=0)
    for panel, label in zip(panels, ("return", "cost (discounted)"), strict=True):
        panel.set_xscale("log")
        panel.set_xlabel("samples")
        panel.set_ylabel(label)
        panel.grid(alpha=0.25)
    panels[0].axhline(14, color="0.4", linewidth=0.8, linestyle=":")
    panels[0].axhline(11, color="0.4", linewidth=0.8, linestyle=":")
    panels[1].axhline(0.2, color="0.2", linewidth=0.9, linestyle="--")
    panels[1].set_ylim(0.0, 0.8)
    panels[0].legend(fontsize=7, frameon=False, loc="lower right")
    figure.tight_layout()
    figure.savefig(RESULTS / "samples.svg")
    plt.close(figure)


def write_document() -> None:
    document.fill(DOCUMENT, {"samples": table()})
    draw()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--only", help="arms, as a pattern")
    parser.add_argument("--seeds", type=int, help="instead of each arm's own")
    parser.add_argument("--again", action="store_true", help="also what is there already")
    parser.add_argument("--table", action="store_true", help="write the table and the figure, run nothing")
    given = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name, arm in ARMS.items():
        wanted = given.only is None or re.fullmatch(given.only, name)
        if given.table or not wanted or (path_of(name).exists() and not given.again):
            continue
        found = curves(arm, given.seeds or arm.seeds)
        path_of(name).write_text(json.dumps(found) + "\n", encoding="utf-8")
        print(f"{name}: {found['seconds']:.0f} s {_row(name, found)}", flush=True)
    if given.table or given.only is None:
        write_document()


if __name__ == "__main__":
    main()
