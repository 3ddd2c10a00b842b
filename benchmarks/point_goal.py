"""SafetyPointGoal1: λ^OFF against the multiplier at which PDO settles.

    python -m benchmarks.point_goal                     all of it (an H200 takes some minutes), then the table
    python -m benchmarks.point_goal --only estimate     a part: pdo-without-margin, estimate, bounded, sac
    python -m benchmarks.point_goal --only pdo-without-margin --run runs/pdo    the same from a run on the command line
    python -m benchmarks.point_goal --table             the table alone, from what was measured

Every algorithm has the library's defaults and batches of 20,000, and the task's own limit of 25. λ^OFF is an estimate
for that limit. PDO enforces a lower one by default, whose price is higher; `pdo-without-margin` enforces the limit
itself. PDO with the defaults is a part of the field's benchmark (`benchmarks.safety`), whose file is read here.

`estimate` trains PDO for 2,000,000 samples and then estimates λ* from the newest of them, as APDO's adjustment does.
`bounded` does the same with cost critics that are bounded by what costs can add up to, and `sac` with soft
actor-critic, whose cost critics are also cautious. Results go to results/point-goal, one JSON file each. A run made on
the command line with the same options can be filed too: its folder has the metrics and their origin.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import provenance

RESULTS = Path("results/point-goal")
DEFAULTS = Path("results/benchmarks/point-goal-1-pdo.json")
"""PDO's runs with the library's defaults."""
SEEDS = 5
BATCH = 20_000
LIMIT = 25.0
PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "pdo-without-margin": ("pdo", {"samples": 10_000_000, "margin": 0.0}),
    "estimate": (
        "apdo",
        {"samples": 2_040_000, "k_adj": 99, "adjust": "dual", "check": False, "replay_capacity": 400_000},
    ),
}
PARTS["bounded"] = ("apdo", PARTS["estimate"][1] | {"off_policy.learner.bounded": True})
PARTS["sac"] = ("apdo", PARTS["estimate"][1] | {"off_policy.learner": "sac"})
LAST = 0.05
"""A result is the mean over this share of the epochs, at the end of the run."""
SETTLED = 0.3
"""PDO's multiplier is averaged over this share of the epochs, at the end of the run, after it has settled."""


def train(part: str, seeds: int) -> dict[str, Any]:
    """One part: the seeds' curves, thinned, and their means at the end."""
    from apdo.experiment import records, runner, settings
    from apdo.report import runs
    from benchmarks.ground_truth import device

    algorithm, options = PARTS[part]
    experiment = settings.make_experiment(algorithm, "point-goal-1", options | {"batch": BATCH, "seeds": seeds})
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        result = runner.run(experiment, Path(folder) / "run", quiet=True)
        metrics = runs.read(result.path).metrics
    about = {
        "command": f"python -m benchmarks.point_goal --only {part}",
        "commit": records.commit(),
        "versions": records.versions(()),
        "device": device(),
        "seconds": round(time.perf_counter() - began, 1),
        "options": experiment.describe(),
        "samples": int(experiment.settings.epochs * BATCH),
    }
    return about | summarised(part, metrics)


def filed(part: str, folder: Path) -> dict[str, Any]:
    """The same from the folder of a run."""
    from apdo.report import runs

    algorithm, options = PARTS[part]
    told = runs.read_description(folder)
    given = {"samples": told["epochs"] * told["batch"], "batch": told["batch"]} | told["config"]["algorithm_config"]
    assert told["environment"] == "point-goal-1", told["environment"]
    assert told["algorithm"] == algorithm, told["algorithm"]
    assert all(given[name] == value for name, value in (options | {"batch": BATCH}).items()), given
    seeds = len(told["seeds"])
    about = {name: told[name] for name in ("commit", "versions", "device", "seconds")}
    chosen = " ".join(f"--{name} {value}" for name, value in options.items())
    words = f"apdo train {algorithm} point-goal-1 {chosen} --batch {BATCH} --seeds {seeds}"
    about |= {"command": words, "date": told["finished"], "options": told["config"], "samples": given["samples"]}
    return about | summarised(part, runs.read(folder).metrics)


def summarised(part: str, read: Mapping[str, Any]) -> dict[str, Any]:
    """The seeds' curves, thinned, and their means at the end."""
    metrics = {name: np.asarray(values) for name, values in read.items()}
    seeds, every = metrics["return"].shape[0], max(1, metrics["return"].shape[1] // 100)
    kept = [
        name for name in ("return", "cost", "multiplier", "predicted_cost", "recovering", "belief") if name in metrics
    ]
    found = {
        "part": part,
        "curves": {name: metrics[name].reshape(seeds, -1)[:, ::every].round(4).tolist() for name in kept},
        "last": {name: _last(metrics[name], LAST) for name in ("return", "cost")},
        "multiplier": _last(metrics["multiplier"], SETTLED),
    }
    if "adjusted_multiplier" in metrics:
        jumps = metrics["adjusted_multiplier"].reshape(seeds, -1)
        found["estimate"] = [float(row[np.isfinite(row)][0]) for row in jumps]
    return found


def _last(values: np.ndarray, share: float) -> list[float]:
    flat = values.reshape(values.shape[0], -1)
    return flat[:, -max(1, round(share * flat.shape[1])) :].mean(axis=1).tolist()


def settled() -> dict[str, np.ndarray]:
    """Where PDO's multipliers settle, a number for each seed: with the defaults, and without a margin."""
    found = {}
    if DEFAULTS.exists():
        curves = [seed["curve"]["multiplier"] for seed in json.loads(DEFAULTS.read_text())["seeds"].values()]
        found["pdo"] = np.asarray([np.mean(curve[-round(SETTLED * len(curve)) :]) for curve in curves])
    if (path := RESULTS / "pdo-without-margin.json").exists():
        found["pdo-without-margin"] = np.asarray(json.loads(path.read_text())["multiplier"])
    return found


def table() -> str:
    """The results in words."""
    lines = []
    for part in ("estimate", "bounded", "sac"):
        if not (path := RESULTS / f"{part}.json").exists():
            continue
        found = np.asarray(json.loads(path.read_text())["estimate"])
        for name, prices in settled().items():
            lines.append(
                f"{part}: {name} settles at λ = {prices.mean():.3f} ({prices.min():.2f} to {prices.max():.2f}); λ^OFF "
                f"after 2,000,000 samples is {', '.join(f'{value:.3f}' for value in found)}: "
                f"{np.median(found) / prices.mean():.2f} of it in the median"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(PARTS))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--run", type=Path, help="with --only: the folder of a run that is there already")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    if given.run and not given.only:
        parser.error("--run is of one part: say which with --only")
    for part in () if given.table else [given.only] if given.only else list(PARTS):
        found = filed(part, given.run) if given.run else train(part, given.seeds)
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / f"{part}.json").write_text(
            json.dumps(provenance.stamped(found), indent=1) + "\n", encoding="utf-8"
        )
        print(part, {name: np.round(values, 3).tolist() for name, values in found["last"].items()}, flush=True)
    print(table())


if __name__ == "__main__":
    main()
