"""How much faster settings are in one program than in calls of `apdo train`, one after the other.

    python -m benchmarks.sweep_speed [--settings 64] [--seeds 8] [--epochs 20] [--batch 10000] [--calls 4] [--out FILE]

PDO on point-gather with random limits and random steps of dual ascent. The sweep is timed from its start to its end,
including compilation, pictures and page, with an empty compilation cache. A few calls of `apdo train` are timed too,
each with its own settings. The first call compiles for an empty cache; the calls that are not made are assumed to take
as long as the later ones.
"""

import argparse
import json
import tempfile
from pathlib import Path

import jax

from apdo.experiment import records
from apdo.sweeps import plan
from benchmarks import provenance
from benchmarks.timing import timed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in {"settings": 64, "seeds": 8, "epochs": 20, "batch": 10_000, "calls": 4}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--out", type=Path, default=Path("results/speed/sweep.json"))
    given = parser.parse_args()
    size = ["--seeds", str(given.seeds), "--epochs", str(given.epochs), "--batch", str(given.batch)]
    drawn = ["--draw", "limits=0.1:0.5", "--draw", "dual-step=log:0.01:1", "--draws", str(given.settings)]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        words = ["sweep", "pdo", "point-gather", "--together", "true", *drawn, *size, "--out", str(out / "sweep")]
        together = timed(words, out / "cold")
        asked = plan.amended(
            plan.of_names("pdo", "point-gather"),
            {"draw": "limits=0.1:0.5; dual-step=log:0.01:1", "draws": str(given.calls), "epochs": "1"},
        )
        calls = []
        for i, setting in enumerate(plan.expand(asked)):
            own = [word for name, value in setting.varied.items() for word in (f"--{name}", str(value))]
            words = ["train", "pdo", "point-gather", *own, *size, "--out", str(out / f"call-{i}")]
            calls.append(timed(words, out / "calls"))
    later = calls[1:] or calls
    alone = calls[0] + (given.settings - 1) * sum(later) / len(later)
    device = jax.devices()[0]
    found = {
        "settings": given.settings,
        "seeds": given.seeds,
        "epochs": given.epochs,
        "batch": given.batch,
        "sweep_seconds": together,
        "call_seconds": calls,
        "all_calls_seconds": alone,
        "times_faster": alone / together,
        "device": f"{device.platform}: {device.device_kind}",
        "commit": records.commit(),
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(provenance.stamped(found), indent=2) + "\n")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
