"""λ^OFF where λ* is known: what each part of the learner contributes, and how close the estimate comes.

    make dual-estimation                                        everything, then the tables and figure of the document
    python -m benchmarks.dual_estimation --only 'no clock'      some rows (a pattern)
    python -m benchmarks.dual_estimation --only '.* gridworld'  the default learner and its parts on one problem
    python -m benchmarks.dual_estimation --only 'default .*'    the default learner on every problem
    python -m benchmarks.dual_estimation --table                the tables and the figure alone

All rows of a problem learn from the same data: the first K_adj + 1 batches of PDO runs, one run for each seed. On
point-gather these are batches of 50,000 with the paper's settings, on finite problems batches of 10,000 with the
settings of benchmarks.ground_truth. Then each actor is evaluated: on point-gather by 2,000 fresh episodes, with the
noise that it was trained with, and on finite problems exactly. Results go to results/dual-estimation, one file for each
row. A row that has a file is not run again, unless --again is given.
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
from benchmarks import document, ground_truth, provenance

RESULTS = Path("results/dual-estimation")
DOCUMENT = Path("docs/dual-estimation.md")
OPTIMUM = 10.2
"""λ* on point-gather, by multipliers held fixed for 300 epochs, ten seeds: 10.2 [10.0, 10.3] (docs/reproduction.md)."""
POINT_GATHER = "point-gather"
PROBLEMS = (POINT_GATHER, "two-state", "gridworld")
"""Point-gather, and finite problems by their names in benchmarks.ground_truth."""
FINITE_BATCH = 10_000


@dataclasses.dataclass(frozen=True)
class Row:
    """A learner, and the data it learns from."""

    title: str
    problem: str = POINT_GATHER
    k_adj: int = 5
    members: int = 4
    spread: float = 2.0
    iterations: int = 30_000
    seeds: int = 8
    learner: dict[str, Any] = dataclasses.field(default_factory=dict)


PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "default": ("default", {}),
    # The default's rate is one in the data's units.
    "own units": ("own units", {"units": "own", "dual_rate": 3e-3}),
    "ascent": ("plain ascent", {"rule": dual.Ascent()}),
    "no cloning": ("no cloning", {"cloning": 0.0}),
    "cloning x 4": ("cloning × 4", {"cloning": 0.05}),
    "dual batch": ("dual gradient at all states", {"dual_states": "batch"}),
    "no decay": ("rates that do not fall", {"last_rate": 1.0, "averaged": 0.5}),
}
"""The default learner, whole, and with one part left out or changed."""
CONTINUOUS: dict[str, tuple[str, dict[str, Any]]] = {
    "no clock": ("critics blind to the time", {"clock": False}),
    "no noise": ("no noise", {"action_noise": 0.0}),
    "no bound": ("no bound", {"bound": 0.0}),
}
"""Parts without effect on the finite problems: their episodes are truncated, not terminated; actions are choices."""


def _estimate(title: str, problem: str = POINT_GATHER, k_adj: int = 5, seeds: int = 8, **changes: Any) -> Row:
    """The estimate that APDO makes, with some changes."""
    return Row(title, problem, k_adj, seeds=seeds, learner=changes)


DEFAULT = {
    f"{name} {problem}": _estimate(title, problem, **changes)
    for problem in PROBLEMS
    for name, (title, changes) in (PARTS | CONTINUOUS if problem == POINT_GATHER else PARTS).items()
}
ACCURACY = {f"k{k}": _estimate(f"K_adj {k}", k_adj=k, seeds=16) for k in (1, 2, 5, 10)}
ROWS = DEFAULT | ACCURACY


@dataclasses.dataclass(frozen=True)
class Data:
    """The data that all rows of a problem learn from."""

    buffers: Any
    """The buffers of PDO runs, [seeds]."""
    training: Any
    task: Any
    optimum: tuple[float, ...]
    """The optimal multipliers λ*."""


def experiment_of(problem: str, batches: int, seeds: int) -> Any:
    """PDO runs that keep so many batches: APDO is PDO with a buffer before its adjustment."""
    from apdo.experiment import settings

    # With the multiplier alone, because a jump of the policy needs an off-policy actor of the policy's shape.
    own = {"k_adj": batches - 1, "seeds": seeds, "check": False, "adjust": "dual"}
    if problem == POINT_GATHER:
        return settings.make_experiment("apdo", problem, own, "paper")
    return ground_truth.specified("apdo", problem, ground_truth.PRIMAL_DUAL | own | {"batch": FINITE_BATCH})


def collected(problem: str, batches: int, seeds: int) -> Data:
    """Collect so many batches of so many PDO runs."""
    experiment = experiment_of(problem, batches, seeds)
    optimum = (OPTIMUM,)
    if problem != POINT_GATHER:
        optimum = tuple(ground_truth.solved(experiment.environment_config)[1].multipliers.tolist())
    buffers, training = ground_truth.logged(experiment, batches)
    return Data(buffers, training, experiment.environment_config, optimum)


def measure(row: Row, data: Data) -> dict[str, Any]:
    """The results of the row's learners, [seeds, members], or with several constraints [..., constraints]."""
    from apdo.off_policy import dual_estimate

    learner = dataclasses.replace(dual_estimate.DEPENDABLE, **row.learner)
    config = dual_estimate.Config(learner=learner, members=row.members, spread=row.spread, iterations=row.iterations)
    members, found, seconds = learned(config, row, data)
    if row.problem == POINT_GATHER:
        returns, costs = played(members.learned, learner.action_noise, data)
    else:
        returns, costs = evaluated(members.learned, data)
    return {
        "optimum": data.optimum,
        "multiplier": _plain(members.path.multiplier, 4),
        "low": _plain(found.low, 4),
        "high": _plain(found.high, 4),
        "said": _plain(members.path.latest_cost, 4),
        "return": np.asarray(returns, dtype=np.float64).round(3).tolist(),
        "cost": _plain(costs, 4),
        "seconds": round(seconds, 1),
        "device": ground_truth.device(),
    }


def _plain(values: Any, digits: int) -> list[Any]:
    """The values of each constraint, or of the only one."""
    values = np.asarray(values, dtype=np.float64).round(digits)
    return (values[..., 0] if values.shape[-1] == 1 else values).tolist()


def learned(config: Any, row: Row, data: Data) -> tuple[Any, Any, float]:
    """The members of each seed, [seeds, members], their estimate, and the seconds without compilation."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    from jax import random

    from apdo.off_policy import dual_estimate

    problem = data.training.problem
    buffers = jax.tree.map(lambda leaf: leaf[: row.seeds], data.buffers)
    rows = jnp.full_like(buffers.inserted, (row.k_adj + 1) * problem.batch)
    buffers = eqx.tree_at(lambda b: b.inserted, buffers, rows)

    def one(buffer, key):
        members = dual_estimate.start(config, problem, key)
        members = dual_estimate.learn(config, problem, members, buffer, jnp.asarray(row.iterations))
        return members, dual_estimate.estimate(members)

    given = buffers, random.split(random.key(7), row.seeds)
    compiled = jax.jit(jax.vmap(one)).lower(*given).compile()
    began = time.perf_counter()
    members, found = jax.block_until_ready(compiled(*given))
    return members, found, time.perf_counter() - began


def played(actors: Any, noise: float, data: Data) -> tuple[Any, Any]:
    """Each actor's return and costs over fresh episodes, with the noise that it was trained with."""
    import jax
    from jax import random

    from apdo import objective, rollout
    from apdo.core import networks

    problem = data.training.problem

    def one(actor, key):
        def act(memory, observation, key):
            mean = networks.bounded(actor.actor(observation), actor.bound)
            return mean + noise * random.normal(key, mean.shape), memory

        batch = rollout.collect(
            data.training.environment, act, (), key, steps=problem.horizon, environments=2000, seeds_axis=None
        )
        found = objective.measure(problem, batch)
        return found.undiscounted_return, found.cost

    shape = jax.tree.leaves(actors)[0].shape[:2]
    return jax.jit(jax.vmap(jax.vmap(one)))(actors, random.split(random.key(3), shape))


def evaluated(actors: Any, data: Data) -> tuple[Any, Any]:
    """Each actor's exact return and costs on a finite problem."""
    import jax

    from apdo import exact
    from apdo.core import categorical

    model, observations = data.task.model(), data.task.observations()

    def one(seed: int, member: int) -> Any:
        actor = jax.tree.map(lambda leaf: leaf[seed, member], actors.actor)
        return exact.evaluate(model, ground_truth.probabilities(categorical.Policy(logits=actor), observations))

    seeds, members = jax.tree.leaves(actors)[0].shape[:2]
    found = [[one(seed, member) for member in range(members)] for seed in range(seeds)]
    return [[f.value for f in seed] for seed in found], [[f.costs for f in seed] for seed in found]


def path_of(name: str) -> Path:
    return RESULTS / f"{name.replace(' ', '-')}.json"


def measured(rows: dict[str, Row]) -> dict[str, dict[str, Any]]:
    """The results so far, by row.

    Files on point-gather contain the estimate of λ* of their time. The newest estimate replaces it.
    """
    found = {name: json.loads(path_of(name).read_text()) for name in rows if path_of(name).exists()}
    newest = {"optimum": [OPTIMUM]}
    return {name: own | newest if rows[name].problem == POINT_GATHER else own for name, own in found.items()}


def _spread(values: Any, digits: int = 1) -> str:
    values = np.asarray(values, dtype=np.float64)
    return f"{np.median(values):.{digits}f} ({values.min():.{digits}f} to {values.max():.{digits}f})"


def tables() -> dict[str, str]:
    """The document's tables, by name."""
    return {"parts": parts_table(), "accuracy": accuracy_table()}


def ratios(found: dict[str, Any]) -> Any:
    """λ^OFF / λ* of each seed. With several constraints, for the one whose median is furthest from 1."""
    multipliers = np.asarray(found["multiplier"])
    multipliers = multipliers.reshape(*multipliers.shape[:2], len(found["optimum"]))
    each = np.median(multipliers, axis=1) / np.asarray(found["optimum"])
    return each[:, np.argmax(np.abs(np.median(each, axis=0) - 1.0))]


def parts_table() -> str:
    """The table of λ^OFF / λ* of the default learner, whole and without each of its parts, on every problem."""
    titles = [problem if problem == POINT_GATHER else ground_truth.CASES[problem].title for problem in PROBLEMS]
    found, rows = measured(DEFAULT), []
    for name, (title, _) in (PARTS | CONTINUOUS).items():
        here = [found.get(f"{name} {problem}") for problem in PROBLEMS]
        if any(here):
            rows.append([title, *(_spread(ratios(each), 2) if each else "-" for each in here)])
    return document.table(["learner", *titles], *rows)


def accuracy_table() -> str:
    """The table of how close the default learner comes on point-gather, depending on the data."""
    heading = ["data", "seeds", "λ^OFF: median (range)", "off λ*, median", "90th percentile", "spread covers λ*"]
    rows = []
    for name, found in measured(ACCURACY).items():
        middle = np.median(np.array(found["multiplier"]), axis=1)
        error = np.abs(middle / OPTIMUM - 1.0)
        inside = (np.array(found["low"]) <= OPTIMUM) & (np.array(found["high"]) >= OPTIMUM)
        covered = f"{inside.sum()} of {len(inside)}"
        off = [f"{100 * np.median(error):.0f} %", f"{100 * np.quantile(error, 0.9):.0f} %"]
        rows.append([ACCURACY[name].title, str(len(middle)), _spread(middle), *off, covered, f"{found['seconds']:.0f}"])
    return document.table([*heading, "seconds, all seeds side by side"], *rows)


def draw() -> None:
    """Draw every learner's λ^OFF on point-gather, by row."""
    import matplotlib.pyplot as plt

    from apdo.report import plot

    with plt.rc_context(plot.LOOK):
        found = measured({name: row for name, row in DEFAULT.items() if row.problem == POINT_GATHER})
        figure, panel = plt.subplots(figsize=(8, 0.36 * len(found) + 1.2))
        for i, (name, values) in enumerate(found.items()):
            dots = np.array(values["multiplier"]).ravel()
            jitter = np.random.default_rng(i).uniform(-0.14, 0.14, len(dots))
            panel.plot(dots, i + jitter, ".", color="C0", alpha=0.6)
            panel.plot([np.median(dots)] * 2, [i - 0.3, i + 0.3], color="C1", linewidth=2)
            panel.text(-0.3, i, DEFAULT[name].title, ha="right", va="center", fontsize=9)
        panel.axvline(OPTIMUM, color="0.3", linestyle="--", linewidth=1, label="λ*")
        panel.set_yticks([])
        panel.invert_yaxis()
        panel.set_xlim(left=0)
        panel.set_xlabel("λ^OFF, each learner a dot, the median a bar")
        panel.legend(frameon=False, loc="lower right")
        figure.tight_layout()
    plot.write(figure, RESULTS / "parts.svg")
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
    for problem in dict.fromkeys(row.problem for row in wanted.values()):
        rows = {name: row for name, row in wanted.items() if row.problem == problem}
        batches, seeds = (max(getattr(row, field) for row in rows.values()) for field in ("k_adj", "seeds"))
        data = collected(problem, batches + 1, seeds)
        for name, row in rows.items():
            found = measure(row, data)
            path_of(name).write_text(json.dumps(provenance.stamped(found)) + "\n", encoding="utf-8")
            print(f"{name}: λ^OFF/λ* {_spread(ratios(found), 2)}, {found['seconds']} s", flush=True)
    if given.table or given.only is None:
        write_document()


if __name__ == "__main__":
    main()
