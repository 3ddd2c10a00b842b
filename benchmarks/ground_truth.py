"""Every algorithm against the exact optimum of finite CMDPs, and λ^OFF against λ* by the size of the buffer.

    make ground-truth                                    all of it, then the tables of docs/ground-truth.md
    python -m benchmarks.ground_truth --only garnet      a part
    python -m benchmarks.ground_truth --jobs 4           several at a time (on a GPU, or with many cores)
    python -m benchmarks.ground_truth --table            the tables alone, from what was measured
    python -m benchmarks.ground_truth --out build/ground-truth --job train gridworld focops     one row, alone

A learned policy is not sampled but evaluated exactly, from its probabilities in every state. Results go to
results/ground-truth, one JSON file for each problem and algorithm. A file that exists is not made again, unless --again
is given.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from apdo.experiment import presets
from benchmarks import document, provenance

RESULTS = Path("results/ground-truth")
TWO_CORES = RESULTS / "two-cores"
"""Rows that were run on a small machine with two cores, unlike the others."""
DOCUMENT = Path("docs/ground-truth.md")
SEEDS = 5
AVERAGED = 200
"""The number of epochs at the end of a run over which its multipliers are averaged."""
RETURN_BAR, COST_BAR, MULTIPLIER_BAR = 0.02, 0.03, 0.10
BUFFERS = (1, 2, 4, 8, 16)
"""The numbers of batches in the buffers from which λ^OFF is estimated."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A problem, with the settings that a run on it needs."""

    title: str
    environment: str
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    primal_dual: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Settings of PDO and similar algorithms that differ on this problem."""
    settling: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Further settings of PDO and APDO, where the policy follows the noise of its batches and must average over it."""


SETTLING = {"batch": 20_000, "primal.rate": 0.3, "primal.anneal": 40.0, "epochs": 300}
"""The steps of policy and multipliers shrink with the epochs. On the Garnets prices move too slowly for that."""
QUEUE = {"power": (0.045, 0.15), "budget": 0.075}
"""The network with power in a unit in which all three costs have about the same size."""
CASES = {
    # The standard deviation of an episode's cost exceeds its mean, and the policy follows that noise.
    "two-state": Case("two states", "two-state", primal_dual={"batch": 100_000, "primal.rate": 0.1}, settling=SETTLING),
    "gridworld": Case("gridworld", "gridworld", settling=SETTLING),
    "garnet": Case("Garnet", "garnet"),
    "garnet-a": Case("Garnet, two limits that bind (a)", "garnet", {"instance": 2, "tightness": (0.5, 0.5)}),
    "garnet-b": Case("Garnet, two limits that bind (b)", "garnet", {"instance": 4, "tightness": (0.5, 0.5)}),
    "garnet-c": Case("Garnet, two limits that bind (c)", "garnet", {"instance": 1, "tightness": (0.5, 0.5)}),
    "garnet-slack": Case("Garnet, one limit slack", "garnet", {"instance": 5, "tightness": (0.5, -0.5)}),
    "queueing": Case("queueing network, three limits that bind", "queueing", QUEUE),
    "queueing-large": Case(
        "the same, batches of 200,000", "queueing", QUEUE | {"batch": 200_000}, primal_dual={"batch": 200_000}
    ),
}
RUN = {
    "batch": 20_000,
    "epochs": 300,
    "seeds": SEEDS,
    "checkpoint_every": 10**6,
    "policy.hidden": (32,),
    "critic.hidden": (32,),
    # The aim is the optimum itself, not a policy that is known to keep the limits.
    "margin": 0.0,
}
PRIMAL_DUAL = {"batch": 20_000, "epochs": 1000, "primal.rate": 0.3}
"""The steps shrink with the gradient, so that a mixed policy can settle. Gains are pure numbers, the library's own."""
LEARNER = {"critic_hidden": (32,), "actor_hidden": (32,)}
"""Small networks, like the policy's."""
ITERATIONS = 30_000
FIRST_ORDER = {"epochs": 400, "primal.anneal": 10.0}
"""Adam's steps shrink with the epochs, because PPO's reach the edge of the clip however near the optimum is."""
UNDAMPED = {"epochs": 400}
"""A policy that oscillates must not be slowed down on the far side."""
ALGORITHMS: dict[str, tuple[str, dict[str, Any]]] = {
    "pdo": ("pdo", PRIMAL_DUAL),
    "apdo": (
        "apdo",
        PRIMAL_DUAL
        | {"k_adj": 5, "off_policy.iterations": ITERATIONS}
        | {f"off_policy.learner.{name}": value for name, value in LEARNER.items()},
    ),
    "cpo": ("cpo", {"anneal": 10.0}),
    "pdo-plain": (
        "pdo",
        {name: value for name, value in presets.PRESETS["paper"].options("pdo").items() if name not in RUN},
    ),
    "focops": ("focops", FIRST_ORDER),
    "cup": ("cup", FIRST_ORDER),
    "p3o": ("p3o", FIRST_ORDER),
    # With a barrier, the cost stays m/t below the limit. Steps that shrink can follow a steeper barrier.
    "ipo": ("ipo", FIRST_ORDER | {"sharpness": 50.0}),
    "pcpo": ("pcpo", {"anneal": 10.0}),
    "crpo": ("crpo", {"primal.rate": 0.1, "epochs": 1000}),
    "ppo-lag": ("ppo-lag", UNDAMPED),
    "trpo-lag": ("trpo-lag", PRIMAL_DUAL),
    "cppo-pid": ("cppo-pid", FIRST_ORDER),
    "trpo-pid": ("trpo-pid", PRIMAL_DUAL | {"primal.rate": 0.1}),
    # A policy that depends smoothly on λ, and an ascent whose steps shrink faster than the policy's and the entropy's.
    "rcpo": (
        "rcpo",
        UNDAMPED | {"primal.anneal": 40.0, "primal.entropy": 0.3, "dual_step": 0.5, "rule.decay": 0.5},
    ),
}
NAMES = {"pdo": "PDO", "apdo": "APDO", "cpo": "CPO", "pdo-plain": "PDO as in the paper"}
NAMES |= {"focops": "FOCOPS", "cup": "CUP", "p3o": "P3O", "ipo": "IPO", "pcpo": "PCPO", "crpo": "CRPO"}
NAMES |= {"ppo-lag": "PPO-Lag", "trpo-lag": "TRPO-Lag", "cppo-pid": "CPPO-PID", "trpo-pid": "TRPO-PID", "rcpo": "RCPO"}
NO_PRICE = ("cpo", "pcpo", "ipo", "p3o", "crpo", "cup")
"""Algorithms without a multiplier, or whose multiplier is not an estimate of λ*: no bar is set for it."""


LIKE_PDO = ("pdo", "apdo", "trpo-lag", "trpo-pid")
"""Algorithms that have PDO's settings of a problem."""
ON_ONE_PROBLEM = {("two-state", "rcpo"): {"batch": 100_000}}
"""Settings of an algorithm on one problem: here PDO's batch, because the noise of the cost is as large."""
ON_AVERAGE = ("crpo", "ppo-lag", "trpo-lag", "rcpo")
"""Algorithms whose newest policy keeps moving around the optimum. If they have a theory, it is about the average."""


def trained(case: str, algorithm: str, options: dict[str, Any] | None = None) -> tuple[Any, Any, Any]:
    """Train on one problem with one algorithm. Returns the experiment, the result, and the multipliers of its jump."""
    from apdo.experiment import runner
    from apdo.report import runs

    name, own = ALGORITHMS[algorithm]
    if algorithm in LIKE_PDO:
        own = own | CASES[case].primal_dual | (CASES[case].settling if algorithm in ("pdo", "apdo") else {})
    own = own | ON_ONE_PROBLEM.get((case, algorithm), {})
    experiment = specified(name, case, own | (options or {}))
    with tempfile.TemporaryDirectory() as folder:
        result = runner.run(experiment, Path(folder) / "run", quiet=True)
        return experiment, result, runs.read(result.path).metrics.get("adjusted_multiplier")


def judged(policy: Any, task: Any, model: Any) -> Any:
    """The exact return and costs of a learned policy."""
    from apdo import exact

    return exact.evaluate(model, probabilities(policy.network, task.observations()))


def train(case: str, algorithm: str, options: dict[str, Any] | None = None) -> dict[str, Any]:
    """One problem and algorithm: the results of each seed, compared with the optimum."""
    began = time.perf_counter()
    experiment, result, adjusted = trained(case, algorithm, options)
    seconds = time.perf_counter() - began
    task = experiment.environment_config
    model, optimum = solved(task)
    seeds = []
    for i, policy in enumerate(result.newest):
        found = judged(policy, task, model)
        seeds.append({"return": found.value, "costs": found.costs.tolist()})
        if algorithm in ON_AVERAGE:
            seeds[-1]["average"] = averaged({name: values[i] for name, values in result.metrics.items()}, algorithm)
        if "multiplier" in result.metrics:
            seeds[-1]["multipliers"] = result.metrics["multiplier"][i, -AVERAGED:].mean(axis=0).tolist()
        if adjusted is not None:
            jumps = adjusted[i][~np.isnan(adjusted[i]).any(axis=-1)]
            seeds[-1]["off_policy_multipliers"] = jumps[0].tolist() if len(jumps) else None
    return {
        "case": case,
        "algorithm": algorithm,
        "optimum": {
            "return": optimum.value,
            "multipliers": optimum.multipliers.tolist(),
            "limits": model.limits.tolist(),
            "scale": scale(model, optimum).tolist(),
        },
        "seeds": seeds,
        "options": experiment.describe(),
        "seconds": round(seconds, 1),
        "device": device(),
    }


def averaged(metrics: dict[str, np.ndarray], algorithm: str) -> dict[str, Any]:
    """The average return and costs of a seed's last policies, by their batches; for CRPO without recovery epochs."""
    last = {name: values[-AVERAGED:] for name, values in metrics.items()}
    counted = last["recovering"] == 0.0 if algorithm == "crpo" else np.ones(len(last["cost"]), dtype=bool)
    return {
        "return": float(last["discounted_return"][counted].mean()),
        "costs": last["cost"][counted].mean(axis=0).tolist(),
    }


def specified(algorithm: str, case: str, options: dict[str, Any]) -> Any:
    """The experiment on a problem."""
    from apdo.experiment import settings

    return settings.make_experiment(algorithm, CASES[case].environment, RUN | CASES[case].options | options)


def solved(task: Any) -> tuple[Any, Any]:
    """A task's model and its optimum."""
    from apdo import exact

    model = task.model()
    optimum = exact.solve(model)
    assert isinstance(optimum, exact.Solution), optimum
    return model, optimum


def probabilities(network: Any, observations: np.ndarray) -> np.ndarray:
    """π(a|s) at every state."""
    import jax
    import jax.numpy as jnp

    chances = np.asarray(jax.vmap(lambda o: network(o).probabilities)(jnp.asarray(observations)), dtype=np.float64)
    return chances / chances.sum(axis=1, keepdims=True)


def scale(model: Any, optimum: Any) -> np.ndarray:
    """The size that an excess is compared with: the limit or, if it is 0, the sum of the cost's absolute values."""
    turnover = np.array([np.sum(optimum.occupancy * np.abs(cost)) for cost in model.cost])
    return np.where(model.limits != 0, np.abs(model.limits), turnover)


def device() -> str:
    import jax

    return f"{jax.devices()[0].device_kind}, jax {jax.__version__}"


_SMALL = {f"learner.{name}": value for name, value in LEARNER.items()}
VARIANTS: dict[str, dict[str, Any]] = {
    "published": {f"learner.{name}": value for name, value in presets.LEARNER.items()}
    | {"members": 1, "spread": 1.0}
    | _SMALL,
    "default": _SMALL,
}
"""The settings of the estimate λ^OFF: as in the paper's appendix, and APDO's defaults."""


def logged(experiment: Any, batches: int) -> tuple[Any, Any]:
    """The buffers of an APDO experiment's seeds after so many epochs without an adjustment, and its training."""
    import jax.numpy as jnp

    from apdo import loop
    from apdo.experiment import opening

    training = opening.training_of(experiment)
    state = loop.start(training, list(range(experiment.settings.seeds)))
    state = loop.make_advance(training)(state, jnp.asarray(batches, dtype=jnp.int32)).state
    assert int(state.epoch) == batches
    return state.algorithm.buffer, training


def estimate(case: str, variant: str) -> dict[str, Any]:
    """λ^OFF for every seed and size of the buffer; all learners work side by side on the data of one PDO run."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    from jax import random

    from apdo.off_policy import dual_estimate

    # Before its adjustment, APDO is PDO with a buffer.
    own = PRIMAL_DUAL | {"k_adj": max(BUFFERS) - 1, "check": False}
    own |= {f"off_policy.{name}": value for name, value in VARIANTS[variant].items()}
    own["off_policy.iterations"] = ITERATIONS
    experiment = specified("apdo", case, own)
    buffers, training = logged(experiment, max(BUFFERS))
    problem, config = training.problem, experiment.algorithm_config.off_policy

    def one(buffer, batches, key):
        buffer = eqx.tree_at(lambda b: b.inserted, buffer, batches * problem.batch)
        members = dual_estimate.start(config, problem, random.fold_in(key, batches))
        members = dual_estimate.learn(config, problem, members, buffer, jnp.asarray(ITERATIONS))
        return dual_estimate.estimate(members).multiplier

    over_sizes = jax.vmap(one, in_axes=(None, 0, None))
    keys = random.split(random.key(1), SEEDS)
    began = time.perf_counter()
    found = jax.jit(jax.vmap(over_sizes, in_axes=(0, None, 0)))(buffers, jnp.asarray(BUFFERS), keys)
    found = np.asarray(found)
    _, optimum = solved(experiment.environment_config)
    return {
        "case": case,
        "variant": variant,
        "batch": problem.batch,
        "buffers": list(BUFFERS),
        "optimum": optimum.multipliers.tolist(),
        "estimates": found.tolist(),
        "iterations": ITERATIONS,
        "seconds": round(time.perf_counter() - began, 1),
        "device": device(),
    }


def jobs(only: str | None) -> list[tuple[str, ...]]:
    """The jobs to do, each as the arguments of a process."""
    everything: list[tuple[str, ...]] = [("train", case, name) for case in CASES for name in ALGORITHMS]
    everything += [("estimate", case, variant) for case in ("gridworld", "garnet") for variant in VARIANTS]
    return [job for job in everything if only is None or re.fullmatch(only, "/".join(job[1:])) or only in job]


def path_of(job: tuple[str, ...], out: Path = RESULTS) -> Path:
    return out / ("-".join(job) + ".json")


def work(job: tuple[str, ...], out: Path) -> None:
    """Do one job in this process. The recorded commit is that of the tree when the job starts."""
    where = provenance.of()
    found = train(job[1], job[2]) if job[0] == "train" else estimate(job[1], job[2])
    out.mkdir(parents=True, exist_ok=True)
    path_of(job, out).write_text(json.dumps(where | found, indent=1) + "\n", encoding="utf-8")


def work_apart(job: tuple[str, ...], out: Path) -> str:
    """Do one job in a process of its own."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "benchmarks.ground_truth", "--out", str(out), "--job", *job]
    done = subprocess.run(command, capture_output=True, text=True)
    outcome = "done" if done.returncode == 0 else "FAILED: " + done.stderr.strip().splitlines()[-1]
    return f"{' '.join(job)}: {outcome} in {time.perf_counter() - began:.0f} s"


def on_average(found: dict[str, Any]) -> dict[str, Any]:
    """The same result with each seed's average instead of its newest policy."""
    return found | {"seeds": [seed["average"] for seed in found["seeds"]]}


def verdicts(found: dict[str, Any]) -> dict[str, np.ndarray]:
    """By seed: the return relative to the optimum's, the worst excess over a limit, the worst error of a multiplier."""
    optimum = found["optimum"]
    best, limits = optimum["return"], np.array(optimum["limits"])
    prices = np.array(optimum["multipliers"])
    returns = np.array([seed["return"] for seed in found["seeds"]])
    costs = np.array([seed["costs"] for seed in found["seeds"]])
    multipliers = np.array([seed.get("multipliers", [np.nan] * len(limits)) for seed in found["seeds"]])
    # The multiplier of a slack constraint is 0. Its error is compared with the largest multiplier.
    against = np.where(prices > 1e-6, prices, prices.max())
    return {
        "shortfall": np.maximum(1.0 - returns / best, 0.0),
        "excess": np.max((costs - limits) / np.array(optimum["scale"]), axis=1),
        "error": np.max(np.abs(multipliers - prices) / against, axis=1),
    }


def cell(values: np.ndarray, bar: float) -> str:
    """The median and the worst seed in percent, and whether all seeds are within the bar."""
    if np.isnan(values).any():
        return "none"
    mark = "" if values.max() <= bar else " ✗"
    return f"{100 * np.median(values):.1f} ({100 * values.max():.1f}){mark}"


def row(found: dict[str, Any]) -> str:
    """A line of the table: the newest policy of every seed."""
    seen = verdicts(found)
    optimum = found["optimum"]
    prices = ", ".join(f"{price:.3g}" for price in optimum["multipliers"])
    return (
        f"| {CASES[found['case']].title} | {NAMES[found['algorithm']]} | {optimum['return']:.3f} | {prices} | "
        f"{cell(seen['shortfall'], RETURN_BAR)} | {cell(seen['excess'], COST_BAR)} | "
        f"{cell(seen['error'], np.inf if found['algorithm'] in NO_PRICE else MULTIPLIER_BAR)} |"
    )


def average_row(found: dict[str, Any]) -> str:
    """A line of the table of averages."""
    seen = verdicts(on_average(found))
    return (
        f"| {CASES[found['case']].title} | {NAMES[found['algorithm']]} | "
        f"{cell(seen['shortfall'], RETURN_BAR)} | {cell(seen['excess'], COST_BAR)} |"
    )


def kept(algorithm: str) -> str:
    """A row of the summary: on how many problems every seed meets each bar."""
    files = [path_of(("train", case, algorithm)) for case in CASES if case != "queueing-large"]
    there = [json.loads(path.read_text()) for path in files if path.exists()]
    newest, average = ([verdicts(found) for found in part] for part in (there, _averages(there)))

    def count(seen: list[dict[str, np.ndarray]], name: str, bar: float) -> str:
        return f"{sum(float(one[name].max()) <= bar for one in seen)} of {len(seen)}" if seen else "–"

    price = "none" if algorithm in NO_PRICE else count(newest, "error", MULTIPLIER_BAR)
    cells = [count(newest, "shortfall", RETURN_BAR), count(newest, "excess", COST_BAR), price]
    cells += [count(average, "shortfall", RETURN_BAR), count(average, "excess", COST_BAR)]
    return f"| {NAMES[algorithm]} | {' | '.join(cells)} |"


def _averages(there: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [on_average(found) for found in there if "average" in found["seeds"][0]]


def sources() -> list[str]:
    """Rows of a table: at which commit, and on which device, the results were made."""
    rows: dict[tuple[str, str], dict[str, list[str]]] = {}
    for case in CASES:
        for name in ALGORITHMS:
            path = path_of(("train", case, name))
            if path.exists():
                found = json.loads(path.read_text())
                where = (found.get("commit", "")[:7] or "not told", "H200" if "H200" in found["device"] else "CPU")
                rows.setdefault(where, {}).setdefault(NAMES[name], []).append(case)
    return [f"| {commit} | {device} | {_grouped(found)} |" for (commit, device), found in sorted(rows.items())]


def _grouped(found: dict[str, list[str]]) -> str:
    """Algorithms with their problems; algorithms with the same problems are grouped."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, cases in found.items():
        groups.setdefault(tuple(cases), []).append(name)
    return "; ".join(f"{', '.join(names)}: {', '.join(cases)}" for cases, names in groups.items())


def tables() -> dict[str, str]:
    """The document's tables, by name."""
    summary = [
        "| algorithm | R* | limits | λ* | R*, on average | limits, on average |",
        "| --- | --- | --- | --- | --- | --- |",
        *map(kept, ALGORITHMS),
    ]
    origins = ["| commit | device | rows |", "| --- | --- | --- |", *sources()]
    averages = [
        "| problem | algorithm | return short of R*, % | cost above its limit, % |",
        "| --- | --- | --- | --- |",
    ]
    lines = [
        "| problem | algorithm | R* | λ* | return short of R*, % | cost above its limit, % | multiplier off λ*, % |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for case in CASES:
        for name in ALGORITHMS:
            path = path_of(("train", case, name))
            if path.exists():
                found = json.loads(path.read_text())
                lines.append(row(found))
                averages += [average_row(found)] if "average" in found["seeds"][0] else []
    sizes = [
        "| problem | learner | λ* | " + " | ".join(f"{b} batch{'es' * (b > 1)}" for b in BUFFERS) + " |",
        "| --- | --- | --- |" + " --- |" * len(BUFFERS),
    ]
    for job in jobs(None):
        if job[0] == "estimate" and path_of(job).exists():
            found = json.loads(path_of(job).read_text())
            estimates, optimum = np.array(found["estimates"]), np.array(found["optimum"])
            for i, price in enumerate(optimum):
                found_here = estimates[:, :, i]
                spread = [f"{np.median(x):.2f} ({x.min():.2f} to {x.max():.2f})" for x in found_here.T]
                title = CASES[found["case"]].title
                sizes.append(f"| {title} | {found['variant']} | {price:.3f} | {' | '.join(spread)} |")
    head = [line.replace(" R* | λ* |", "") for line in lines[:1]] + ["| --- | --- | --- | --- | --- | --- |"]
    here = [json.loads(path.read_text()) for path in sorted(TWO_CORES.glob("train-*.json"))]
    order = list(CASES)
    here.sort(key=lambda found: (list(ALGORITHMS).index(found["algorithm"]), order.index(found["case"])))
    two_cores = [head[0] + " commit |", head[1]]
    for found in here:
        cells = row(found).split(" | ")
        two_cores.append(" | ".join([*cells[:2], *cells[4:]]) + f" {found.get('commit', '')[:7] or 'not told'} |")
    parts = {
        "kept": summary,
        "two-cores": two_cores,
        "algorithms": lines,
        "sources": origins,
        "averages": averages,
        "buffers": sizes,
    }
    return {name: "\n".join(part) for name, part in parts.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--only", help="a case, an algorithm, or both as CASE/ALGORITHM (a pattern)")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--again", action="store_true", help="also what is there already")
    parser.add_argument("--table", action="store_true", help="write the tables, run nothing")
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="folder of the results; the tables are those of its default"
    )
    parser.add_argument(
        "--job", nargs=3, help="one row, in this process: train CASE ALGORITHM or estimate CASE LEARNER"
    )
    given = parser.parse_args()
    if given.job:
        work(tuple(given.job), given.out)
        return
    if not given.table:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        wanted = [job for job in jobs(given.only) if given.again or not path_of(job, given.out).exists()]
        with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
            for i, line in enumerate(pool.map(lambda job: work_apart(job, given.out), wanted), start=1):
                print(f"[{i}/{len(wanted)}] {line}", flush=True)
    if given.only is None:
        document.fill(DOCUMENT, tables())


if __name__ == "__main__":
    main()
