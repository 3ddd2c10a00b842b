"""The overhead of Ray on one machine: a sweep of short runs as tasks of Ray, and in processes of this machine.

    .venv-ray/bin/python -m benchmarks.ray_speed [--runs 40] [--epochs 20] [--batch 2000] [--repeats 1] [--out FILE]

PDO on point-gather with random limits and random steps of dual ascent; each run is a job and compiles its program.
Every sweep is timed from its start to its end, including the start and end of Ray and of the processes, with an empty
compilation cache. The bar: at most 1.15 times the better of one and two local processes.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path

from benchmarks import provenance
from benchmarks.timing import timed

BAR = 1.15
PLACES = {"local, 1 job": ["--jobs", "1"], "local, 2 jobs": ["--jobs", "2"], "ray": ["--on", "ray"]}


def main() -> None:
    """Time the sweep in every place, in turns, and write the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in {"runs": 40, "epochs": 20, "batch": 2_000, "repeats": 1}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--out", type=Path, default=Path("results/speed/ray.json"))
    given = parser.parse_args()
    drawn = ["--draw", "limits=0.1:0.5", "--draw", "dual-step=log:0.01:1", "--draws", str(given.runs)]
    words = ["sweep", "pdo", "point-gather", *drawn, "--epochs", str(given.epochs), "--batch", str(given.batch)]
    seconds: dict[str, list[float]] = {name: [] for name in PLACES}
    for i in range(given.repeats):
        for name, how in PLACES.items():
            with tempfile.TemporaryDirectory() as folder:
                out = Path(folder)
                seconds[name].append(timed([*words, *how, "--out", str(out / "sweep")], out / "cache"))
            print(f"{name}, {i + 1} of {given.repeats}: {seconds[name][-1]:.1f} s", flush=True)
    best = {name: min(taken) for name, taken in seconds.items()}
    local = min(taken for name, taken in best.items() if name != "ray")
    found = {
        "runs": given.runs,
        "epochs": given.epochs,
        "batch": given.batch,
        "cores": os.cpu_count(),
        "seconds": seconds,
        "ratio": best["ray"] / local,
        "bar": BAR,
        "holds": best["ray"] <= BAR * local,
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(provenance.stamped(found, ("ray",)), indent=2) + "\n")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
