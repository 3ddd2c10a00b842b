"""How many samples it takes to earn R within the limit: every sample counts, and fresh episodes judge.

    make sample-efficiency                                  all arms, then the tables and figure of the document
    python -m benchmarks.sample_efficiency --only fast      some arms (a pattern)
    python -m benchmarks.sample_efficiency --table          the tables and figure alone

After every epoch the stochastic policy plays 1,000 fresh episodes, which are neither trained on nor counted. On a
finite problem it is evaluated exactly instead. The target is met at the first number of samples from which three
evaluations in a row have a return ≥ R and a cost of at most 1.05 d. While an actor is on trial, the policy has not
changed yet, so such an evaluation does not count. Results go to results/sample-efficiency, one JSON file for each arm.
A file that exists is not made again, unless --again is given.
"""

import argparse
import dataclasses
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from apdo.experiment import presets
from benchmarks import document, ground_truth, provenance

RESULTS = Path("results/sample-efficiency")
DOCUMENT = Path("docs/sample-efficiency.md")
EPISODES = 1000
CONSECUTIVE = 3
EXCESS = 0.05
"""The share of a limit by which an evaluation may exceed it."""
KEPT = 500_000
"""The number of samples after the target during which its cost must be kept."""


@dataclasses.dataclass(frozen=True)
class Task:
    """A problem with its target returns."""

    title: str
    environment: str
    targets: tuple[float, ...]
    """Returns; if the optimum is known, shares of its return."""
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    finite: bool = False


def _finite(case: str) -> Task:
    """A finite problem with small networks, and with batches in proportion."""
    own = {"batch": 2000, "policy.hidden": (32,), "critic.hidden": (32,), "primal": "trpo", "primal.rate": 0.3}
    known = ground_truth.CASES[case]
    return Task(known.title, known.environment, (0.95, 0.98), known.options | own, finite=True)


TASKS = {
    "point-gather": Task("point-gather", "point-gather", (11, 14)),
    "gridworld": _finite("gridworld"),
    "garnet-a": _finite("garnet-a"),
}


@dataclasses.dataclass(frozen=True)
class Arm:
    """One curve."""

    title: str
    algorithm: str = "apdo"
    preset: str | None = "fast"
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)
    seeds: int = 8
    task: str = "point-gather"


PAPER = dict(presets.PRESETS["paper"].options("pdo"))
"""PDO as in the paper: batches, networks, TRPO, and plain ascent in the problem's own units."""
ARMS = {
    "fast": Arm("APDO, preset fast", changes={"epochs": 110}, seeds=16),
    "fast-auto": Arm("fast, K_adj auto, not 4", changes={"k_adj": "auto", "epochs": 110}, seeds=16),
    "fast-dual": Arm("fast, multiplier only (adjust = dual)", changes={"adjust": "dual", "epochs": 110}),
    "dual": Arm(
        "APDO as in the paper: multiplier only",
        preset=None,
        changes=PAPER | {"adjust": "dual", "check": False, "k_adj": 5, "epochs": 70},
    ),
    "ideal": Arm(
        "PDO as in the paper, λ held at 10 from the start",
        "pdo",
        None,
        PAPER | {"initial_multiplier": 10.0, "dual_step": 0.0, "epochs": 70},
    ),
    "cpo-50k": Arm("CPO, batches of 50,000", "cpo", None, {"batch": 50_000, "epochs": 90}),
    "cpo-10k": Arm("CPO, batches of 10,000", "cpo", None, {"batch": 10_000, "epochs": 250}),
    "pdo-10k": Arm("PDO, batches of 10,000", "pdo", None, {"batch": 10_000, "epochs": 250}),
    "pdo-ppo": Arm("PDO with PPO, batches of 10,000", "pdo", None, {"primal": "ppo", "batch": 10_000, "epochs": 250}),
}
FIXED = (1, 2, 5, 10, 20)
K_ADJ = {
    f"{task}-k{k}": Arm(f"APDO, K_adj {k}", changes={"k_adj": k, "epochs": 60}, seeds=10, task=task)
    for task in TASKS
    for k in (*FIXED, "auto")
}
"""Arms that compare when to adjust."""
ELSEWHERE = {
    f"{task}-{algorithm}": Arm(algorithm.upper(), algorithm, None, {"epochs": 150}, seeds=10, task=task)
    for task in ("gridworld", "garnet-a")
    for algorithm in ("pdo", "cpo")
}
"""Arms without the jump, on two problems with a known optimum."""
EVERYTHING = ARMS | ELSEWHERE | K_ADJ
DRAWN = ("fast", "fast-dual", "pdo-10k", "pdo-ppo", "cpo-10k", "cpo-50k", "dual")
"""The arms in the picture, which has no room for all."""


def specified(arm: Arm, seeds: int) -> Any:
    """The experiment of an arm."""
    from apdo.experiment import settings

    task = TASKS[arm.task]
    known = settings.make_experiment(arm.algorithm, task.environment, {}, arm.preset).algorithm_config
    wanted = {name: value for name, value in task.options.items() if not name.startswith("primal")}
    if hasattr(known, "primal"):
        wanted = task.options
    if task.finite and hasattr(known, "off_policy"):
        wanted = wanted | {"off_policy.learner.actor_hidden": task.options["policy.hidden"]}
    chosen = wanted | arm.changes | {"seeds": seeds}
    return settings.make_experiment(arm.algorithm, task.environment, chosen, arm.preset)


def evaluator(task: Task, experiment: Any, training: Any) -> Callable[[Any, Any], tuple[np.ndarray, np.ndarray]]:
    """A function from the state of all seeds and keys to returns and costs: of fresh episodes, or exact and as shares.

    For exact values these are the share of the optimum's return, and one plus the worst excess as a share of its limit.
    """
    import jax

    from apdo import loop, objective, rollout
    from apdo.envs.environment import Environment

    problem, environment = training.problem, training.environment
    if task.finite:
        from apdo import exact

        model, optimum = ground_truth.solved(experiment.environment_config)
        seen, against = experiment.environment_config.observations(), ground_truth.scale(model, optimum)

        def share(network: Any) -> tuple[float, float]:
            found = exact.evaluate(model, ground_truth.probabilities(network, seen))
            return found.value / optimum.value, 1.0 + float(np.max((found.costs - model.limits) / against))

        def exactly(state: Any, keys: Any) -> tuple[np.ndarray, np.ndarray]:
            policies = training.algorithm.learned_policy(state)
            each = [share(jax.tree.map(lambda leaf, i=i: leaf[i], policies)) for i in range(keys.shape[0])]
            return np.array([e[0] for e in each]), np.array([e[1] for e in each])

        return exactly
    assert isinstance(environment, Environment)

    def play(state: Any, key: Any) -> tuple[Any, Any]:
        policy = training.algorithm.learned_policy(state)
        batch = rollout.collect(
            environment,
            lambda memory, observation, key: (policy(observation).sample(key), memory),
            (),
            key,
            steps=problem.horizon,
            environments=EPISODES,
            seeds_axis=None,
        )
        found = objective.measure(problem, batch)
        return found.undiscounted_return, found.cost[0]

    compiled = jax.jit(lambda state, keys: loop.over_seeds(training, play, (state, keys)))

    def of_episodes(state: Any, keys: Any) -> tuple[np.ndarray, np.ndarray]:
        returns, costs = compiled(state, keys)
        return np.asarray(returns), np.asarray(costs)

    return of_episodes


def curves(arm: Arm, seeds: int) -> dict[str, Any]:
    """Return and cost of the stochastic policy after every epoch, [epochs, seeds]."""
    import jax
    import jax.numpy as jnp
    from jax import random

    from apdo import loop
    from apdo.experiment import adjusting, opening

    experiment = specified(arm, seeds)
    training = opening.training_of(experiment)
    evaluate = evaluator(TASKS[arm.task], experiment, training)
    advance, adjuster = loop.make_advance(training), loop.Adjuster(training)
    state = loop.start(training, list(range(seeds)))
    rows: dict[str, list[Any]] = {"return": [], "cost": [], "multiplier": [], "actor_taken": []}
    adjusted, estimates, began = [], [], time.perf_counter()
    for epoch in range(experiment.settings.epochs):
        chunk = advance(state, jnp.asarray(1, dtype=jnp.int32))
        state = chunk.state
        for name in ("multiplier", "actor_taken"):
            if name in chunk.metrics:
                rows[name].append(np.asarray(chunk.metrics[name][0]).reshape(seeds, -1)[:, 0])
        if adjuster.due(epoch) and adjuster.open(state).any():
            learner = adjuster.work(state, adjuster.begin(state), adjuster.total)
            supported = jnp.asarray([not reasons for reasons in adjusting.doubts(training, state, learner)])
            state, found = adjuster.finish(state, learner, supported)
            adjusted.append(epoch)
            estimates.append({name: np.asarray(getattr(found, name)).tolist() for name in vars(found)})
        keys = random.split(random.fold_in(random.key(99), epoch), seeds)
        returns, costs = evaluate(state.algorithm, keys)
        rows["return"].append(returns)
        rows["cost"].append(costs)
    return {
        "options": experiment.describe(),
        "batch": training.problem.batch,
        "limit": 1.0 if TASKS[arm.task].finite else training.problem.limits[0],
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
    """By seed: the first number of samples from which enough evaluations in a row meet the target; infinity if none."""
    met = (np.array(found["return"]) >= target) & (np.array(found["cost"]) <= (1.0 + EXCESS) * found["limit"])
    if found["on_trial"]:
        for epoch, estimate in zip(found["adjusted"], found["estimates"], strict=True):
            met[epoch, np.isfinite(estimate["multiplier"]).all(axis=-1)] = False
    first = np.full(met.shape[1], np.inf)
    for i in range(met.shape[0] - CONSECUTIVE, -1, -1):
        first[met[i : i + CONSECUTIVE].all(axis=0)] = samples_of(found)[i]
    return first


def kept(found: dict[str, Any], target: float) -> np.ndarray:
    """By seed: the mean cost over the 500,000 samples after the target; NaN if the target is not met."""
    samples, costs = samples_of(found), np.array(found["cost"])
    means = np.full(costs.shape[1], np.nan)
    for seed, first in enumerate(samples_to(found, target)):
        if np.isfinite(first):
            means[seed] = costs[(samples >= first) & (samples <= first + KEPT), seed].mean()
    return means


def path_of(name: str) -> Path:
    return RESULTS / f"{name}.json"


def _reached(found: dict[str, Any], target: float) -> str:
    """The median and the worst seed's samples, and how many seeds met the target."""
    first = samples_to(found, target)
    median = np.median(first)
    middle = f"{median:,.0f}" if np.isfinite(median) else f"> {samples_of(found)[-1]:,}"
    worst = f"{first.max():,.0f}" if np.isfinite(first.max()) else "never"
    return f"{middle} ({worst}; {np.isfinite(first).sum()} met it)"


def _row(name: str, found: dict[str, Any]) -> list[str]:
    arm = EVERYTHING[name]
    targets = TASKS[arm.task].targets
    cells = [arm.title, str(len(found["return"][0]))] + [_reached(found, target) for target in targets]
    means = kept(found, targets[0])
    means = means[np.isfinite(means)]
    cells.append(f"{means.mean():.3f} ({means.max():.3f})" if len(means) else "-")
    last = slice(-10, None)
    cells.append(f"{np.mean(found['return'][last]):.3g} / {np.mean(found['cost'][last]):.3f}")
    return cells


def table(arms: dict[str, Arm], task: str) -> str:
    """The table of the arms of one problem, with their results."""
    heads = ["arm", "seeds"] + [f"samples to return {target:g}: median (worst)" for target in TASKS[task].targets]
    heads += ["cost kept after: mean (worst seed)", "last ten evaluations: return / cost"]
    rows = [_row(name, found) for name, found in measured(arms).items() if arms[name].task == task]
    return document.table(heads, *rows)


def k_adj_table() -> str:
    """The table of samples to the first target by K_adj, and how close K_adj auto is to the best fixed one."""
    rows = []
    for key, task in TASKS.items():
        arms = measured({name: arm for name, arm in K_ADJ.items() if arm.task == key})
        first = {name.removeprefix(f"{key}-k"): samples_to(arm, task.targets[0]) for name, arm in arms.items()}
        fixed = [name for name in first if name != "auto"]
        ratio = "-"
        if fixed and "auto" in first:
            best = min(fixed, key=lambda name: np.median(first[name]))
            ratio = _ratio(first["auto"], first[best])
        cells = [f"{np.median(first[str(k)]):,.0f}" if str(k) in first else "-" for k in (*FIXED, "auto")]
        rows.append([task.title, *[cell.replace("inf", "never") for cell in cells], ratio])
    return document.table(["problem", *[f"K_adj {k}" for k in FIXED], "auto", "auto / best"], *rows)


def _ratio(one: np.ndarray, other: np.ndarray) -> str:
    """The ratio of two arms' medians. The bootstrap draws a seed for both, because they share their first data."""
    from apdo.report.statistics import bootstrap_interval

    def medians(drawn: np.ndarray) -> np.ndarray:
        return np.median(one[drawn.astype(int)], axis=0) / np.median(other[drawn.astype(int)], axis=0)

    seeds = np.arange(len(one), dtype=np.float64)
    low, high = bootstrap_interval(medians, seeds)
    return f"{medians(seeds):.2f} ({low:.2f} to {high:.2f})"


def measured(arms: dict[str, Arm]) -> dict[str, dict[str, Any]]:
    """The results so far, by arm."""
    return {name: json.loads(path_of(name).read_text()) for name in arms if path_of(name).exists()}


def draw() -> None:
    """Return and cost against samples, medians and quartiles over seeds."""
    import matplotlib.pyplot as plt

    from apdo.report import plot

    with plt.rc_context(plot.LOOK):
        figure, panels = plt.subplots(1, 2, figsize=(11, 4.8))
        for i, (name, found) in enumerate(measured({name: ARMS[name] for name in DRAWN}).items()):
            samples = samples_of(found)
            for panel, values in zip(panels, (found["return"], found["cost"]), strict=True):
                low, middle, high = np.quantile(np.array(values), [0.25, 0.5, 0.75], axis=1)
                panel.plot(samples, middle, color=f"C{i}", label=ARMS[name].title, linewidth=1.4)
                panel.fill_between(samples, low, high, color=f"C{i}", alpha=0.12, linewidth=0)
        for panel, label in zip(panels, ("return", "cost (discounted)"), strict=True):
            panel.set_xscale("log")
            panel.xaxis.set_major_formatter(lambda samples, _: f"{samples:,.0f}")
            panel.set_xlabel("samples")
            panel.set_ylabel(label)
        panels[0].axhline(14, color="0.4", linewidth=0.8, linestyle=":")
        panels[0].axhline(11, color="0.4", linewidth=0.8, linestyle=":")
        panels[1].axhline(0.2, color="0.2", linewidth=0.9, linestyle="--")
        panels[1].set_ylim(0.0, 0.8)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.tight_layout(rect=(0.0, 0.14, 1.0, 1.0))
        figure.legend(handles, labels, fontsize=8, frameon=False, loc="lower center", ncols=3)
    plot.write(figure, RESULTS / "samples.svg")
    plt.close(figure)


def tables() -> dict[str, str]:
    """The document's tables, by name."""
    elsewhere = {task: table(K_ADJ | ELSEWHERE, task) for task in ("gridworld", "garnet-a")}
    return {"samples": table(ARMS, "point-gather"), "k-adj": k_adj_table()} | elsewhere


def write_document() -> None:
    """Write the tables and the figure, from the results so far."""
    document.fill(DOCUMENT, tables())
    draw()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--only", help="arms, as a pattern")
    parser.add_argument("--seeds", type=int, help="instead of each arm's own")
    parser.add_argument("--again", action="store_true", help="also what is there already")
    parser.add_argument("--table", action="store_true", help="write the table and the figure, run nothing")
    given = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name, arm in EVERYTHING.items():
        wanted = given.only is None or re.fullmatch(given.only, name)
        if given.table or not wanted or (path_of(name).exists() and not given.again):
            continue
        found = curves(arm, given.seeds or arm.seeds)
        path_of(name).write_text(json.dumps(provenance.stamped(found)) + "\n", encoding="utf-8")
        print(f"{name}: {found['seconds']:.0f} s | {' | '.join(_row(name, found))}", flush=True)
    if given.table or given.only is None:
        write_document()


if __name__ == "__main__":
    main()
