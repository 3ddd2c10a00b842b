"""λ^OFF on point-gather: what each part of the learner brings, and how near the estimate comes to λ*.

    make dual-estimation                                     everything, then the tables and figure of the document
    python -m benchmarks.dual_estimation --only 'no clock'   some rows (a pattern)
    python -m benchmarks.dual_estimation --table             the tables and the figure alone

All rows of a part learn from the same data: the first K_adj + 1 batches of 50,000 of PDO runs with the paper's
settings, one for each seed. Each actor is then judged on 2,000 fresh episodes, with the noise it was trained under.
Results go to results/dual-estimation; what is there is not run again unless --again.
"""

import argparse
import dataclasses
import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np

from apdo.core import dual
from benchmarks import document

RESULTS = Path("results/dual-estimation")
DOCUMENT = Path("docs/dual-estimation.md")
OPTIMUM = 10.0
"""λ* by multipliers held fixed for 300 epochs, ten seeds: 10.0 [9.83, 10.2] (docs/reproduction.md)."""


@dataclasses.dataclass(frozen=True)
class Row:
    """A learner, and the data it learns from."""

    title: str
    k_adj: int = 5
    members: int = 2
    spread: float = 1.0
    iterations: int = 100_000
    seeds: int = 8
    learner: dict[str, Any] = dataclasses.field(default_factory=dict)


LONG: dict[str, Any] = {
    "critic_hidden": (100, 100),
    "critic_rate": 1e-3,
    "actor_rate": 3e-4,
    "dual_rate": 1e-3,
    "rule": dual.Ascent(),
    "units": "own",
    "target_rate": 5e-3,
    "minibatch": 64,
    "action_noise": 0.35,
    "cloning": 0.05,
}
"""The learner as an independent implementation had it, around which parts are left out."""


def _long(title: str, k_adj: int = 5, **changes: Any) -> Row:
    return Row(title, k_adj=k_adj, learner=LONG | changes)


ABLATION = {
    "long": _long("all parts"),
    "no clock": _long("critics blind to the time", clock=False),
    "no cloning": _long("no cloning", cloning=0.0),
    "clone .02": _long("cloning 0.02", cloning=0.02),
    "clone .1": _long("cloning 0.1", cloning=0.1),
    "no noise": _long("no noise", action_noise=0.0),
    "no bound": _long("no bound", bound=0.0),
    "dual batch": _long("dual gradient at all states", dual_states="batch"),
    "no decay": _long("rates that do not fall", last_rate=1.0),
    "target .01": _long("target rate 0.01", target_rate=1e-2),
    "paper+starts": _long("none but the starts", clock=False, cloning=0.0, bound=0.0, action_noise=0.0, last_rate=1.0),
    "k1 .35": _long("all parts, K_adj 1", 1),
    "k2 .35": _long("all parts, K_adj 2", 2),
    "k10 .35": _long("all parts, K_adj 10", 10),
}
ACCURACY = {
    f"k{k}": Row(f"K_adj {k}", k_adj=k, members=4, spread=2.0, iterations=30_000, seeds=16) for k in (1, 2, 5, 10)
}
ROWS = ABLATION | ACCURACY


def collected(batches: int, seeds: int) -> tuple[Any, Any]:
    """The buffers of PDO runs, [seeds], and their training."""
    import jax.numpy as jnp

    from apdo import loop
    from apdo.experiment import runner, settings

    # APDO before it adjusts is PDO with a buffer.
    experiment = settings.specify("apdo", "point-gather", {"k_adj": batches - 1, "seeds": seeds})
    training = runner.training_of(experiment)
    advance, state = loop.make_advance(training), loop.start(training, list(range(seeds)))
    for _ in range(batches):
        state = advance(state, jnp.asarray(1, dtype=jnp.int32)).state
    return state.algorithm.buffer, training


def measure(row: Row, buffers: Any, training: Any) -> dict[str, Any]:
    """What the row's learners come to, [seeds, members]."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    from jax import random

    from apdo import rollout
    from apdo.algorithms import dual_estimate
    from apdo.core import networks
    from apdo.core.advantage import summarise

    problem = training.problem
    learner = dataclasses.replace(dual_estimate.DEPENDABLE, **row.learner)
    config = dual_estimate.Config(learner=learner, members=row.members, spread=row.spread, iterations=row.iterations)
    buffers = jax.tree.map(lambda leaf: leaf[: row.seeds], buffers)
    rows = jnp.full_like(buffers.inserted, (row.k_adj + 1) * problem.batch)
    buffers = eqx.tree_at(lambda b: b.inserted, buffers, rows)

    def one(buffer, key):
        members = dual_estimate.start(config, problem, key)
        members = dual_estimate.learn(config, problem, members, buffer, jnp.asarray(row.iterations))
        return members, dual_estimate.estimate(members)

    def judge(learned, key):
        def act(memory, observation, key):
            mean = networks.bounded(learned.actor(observation), learned.bound)
            return mean + learner.action_noise * random.normal(key, mean.shape), memory

        batch = rollout.collect(
            training.environment, act, (), key, steps=problem.horizon, environments=2000, seeds_axis=None
        )
        found = summarise(batch, problem.discount, problem.cost_discount)
        return found.undiscounted_return, found.constrained_cost[0]

    compiled = jax.jit(jax.vmap(one)).lower(buffers, random.split(random.key(7), row.seeds)).compile()
    began = time.perf_counter()
    members, found = jax.block_until_ready(compiled(buffers, random.split(random.key(7), row.seeds)))
    seconds = time.perf_counter() - began
    keys = random.split(random.key(3), (row.seeds, row.members))
    returns, costs = jax.jit(jax.vmap(jax.vmap(judge)))(members.learned, keys)
    return {
        "multiplier": np.asarray(members.multiplier_mean)[..., 0].round(3).tolist(),
        "low": np.asarray(found.low)[:, 0].round(3).tolist(),
        "high": np.asarray(found.high)[:, 0].round(3).tolist(),
        "said": np.asarray(members.critic_cost)[..., 0].round(4).tolist(),
        "return": np.asarray(returns).round(2).tolist(),
        "cost": np.asarray(costs).round(4).tolist(),
        "seconds": round(seconds, 1),
        "device": f"{jax.devices()[0].device_kind}, jax {jax.__version__}",
    }


def path_of(name: str) -> Path:
    return RESULTS / f"{name.replace(' ', '-')}.json"


def measured(rows: dict[str, Row]) -> dict[str, dict[str, Any]]:
    """What has been measured, by row."""
    return {name: json.loads(path_of(name).read_text()) for name in rows if path_of(name).exists()}


def _spread(values: Any, digits: int = 1) -> str:
    values = np.asarray(values, dtype=np.float64)
    return f"{np.median(values):.{digits}f} ({values.min():.{digits}f} to {values.max():.{digits}f})"


def tables() -> dict[str, str]:
    """The document's tables, by name."""
    lines = [
        "| learner | λ^OFF: median (range) | the actor's cost, critics say | its true cost | its true return |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, found in measured(ABLATION).items():
        said = f"{np.median(found['said']):.2f}"
        cells = [_spread(found["multiplier"]), said, _spread(found["cost"], 2), _spread(found["return"])]
        lines.append(f"| {ABLATION[name].title} | {' | '.join(cells)} |")
    accuracy = [
        "| data | seeds | λ^OFF: median (range) | off λ*, median | 90th percentile | interval covers λ* |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, found in measured(ACCURACY).items():
        middle = np.median(np.array(found["multiplier"]), axis=1)
        error = np.abs(middle / OPTIMUM - 1.0)
        covered = "-"
        if "low" in found:
            inside = (np.array(found["low"]) <= OPTIMUM) & (np.array(found["high"]) >= OPTIMUM)
            covered = f"{inside.sum()} of {len(inside)}"
        accuracy.append(
            f"| {ACCURACY[name].title} | {len(middle)} | {_spread(middle)} | {100 * np.median(error):.0f} % | "
            f"{100 * np.quantile(error, 0.9):.0f} % | {covered} |"
        )
    return {"ablation": "\n".join(lines), "accuracy": "\n".join(accuracy)}


def draw() -> None:
    """Every learner's λ^OFF, by row."""
    import matplotlib.pyplot as plt

    found = measured(ABLATION)
    figure, panel = plt.subplots(figsize=(8, 0.36 * len(found) + 1.2))
    for i, (name, values) in enumerate(found.items()):
        dots = np.array(values["multiplier"]).ravel()
        jitter = np.random.default_rng(i).uniform(-0.14, 0.14, len(dots))
        panel.plot(np.minimum(dots, 26), i + jitter, ".", color="C0", alpha=0.6)
        panel.plot([np.median(dots)] * 2, [i - 0.3, i + 0.3], color="C1", linewidth=2)
        panel.text(-0.4, i, ABLATION[name].title, ha="right", va="center", fontsize=9)
    panel.axvline(OPTIMUM, color="0.3", linestyle="--", linewidth=1, label="λ*")
    panel.set_yticks([])
    panel.invert_yaxis()
    panel.set_xlim(0, 26.5)
    panel.set_xlabel("λ^OFF, each learner a dot, the median a bar")
    panel.legend(frameon=False, loc="lower right")
    figure.tight_layout()
    figure.savefig(RESULTS / "ablation.svg")
    plt.close(figure)


def write_document() -> None:
    document.fill(DOCUMENT, tables())
    draw()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--only", help="rows, as a pattern")
    parser.add_argument("--again", action="store_true", help="also what is there already")
    parser.add_argument("--table", action="store_true", help="write the tables and the figure, run nothing")
    given = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    wanted = {
        name: row
        for name, row in ROWS.items()
        if not given.table
        and (given.only is None or re.fullmatch(given.only, name))
        and (given.again or not path_of(name).exists())
    }
    if wanted:
        batches, seeds = (max(getattr(row, field) for row in wanted.values()) for field in ("k_adj", "seeds"))
        buffers, training = collected(batches + 1, seeds)
        for name, row in wanted.items():
            found = measure(row, buffers, training)
            path_of(name).write_text(json.dumps(found) + "\n", encoding="utf-8")
            print(f"{name}: λ^OFF {_spread(found['multiplier'])}, {found['seconds']} s", flush=True)
    if given.table or given.only is None:
        write_document()


if __name__ == "__main__":
    main()
