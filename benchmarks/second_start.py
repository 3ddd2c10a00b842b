"""How soon a command that ran before has its first metrics, compared with the time to import jax.

    python -m benchmarks.second_start [--starts 7] [--algorithm pdo] [--environment point-gather] [--out FILE]

Each start is a process of its own, as a user would start it, and is followed until its first line of metrics. The time
of `import jax` is measured in turn with it, so that both have the same load. Wall time is what a user waits for, but on
a shared machine it depends on others; processor time is what the command itself takes. The first start compiles, and is
not counted.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import provenance

BAR = 2.0
"""The bar: seconds beyond importing jax."""
_TICKS = os.sysconf("SC_CLK_TCK")


def importing() -> tuple[float, float]:
    """Wall and processor seconds of `python -c "import jax"`."""
    before, began = _children(), time.perf_counter()
    subprocess.run([sys.executable, "-c", "import jax"], check=True)
    return time.perf_counter() - began, _children() - before


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def starting(words: list[str], out: Path, cache: Path) -> tuple[float, float]:
    """Wall and processor seconds from a command to its first line of metrics."""
    metrics, began = out / "metrics.jsonl", time.perf_counter()
    environment = os.environ | {"XDG_CACHE_HOME": str(cache)}
    process = subprocess.Popen(
        [sys.executable, "-c", "from apdo.cli import main; main()", *words, "--out", str(out)], env=environment
    )
    while not (metrics.exists() and metrics.stat().st_size):
        if process.poll() is not None:
            raise SystemExit(f"the command ended with status {process.returncode} and without metrics.")
        time.sleep(0.005)
    wall = time.perf_counter() - began
    used = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    process.wait()
    return wall, sum(map(int, used[11:13])) / _TICKS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=7)
    parser.add_argument("--algorithm", default="pdo")
    parser.add_argument("--environment", default="point-gather")
    parser.add_argument("--out", type=Path, help="also write the figures to this file")
    given = parser.parse_args()
    words = ["train", given.algorithm, given.environment, "--epochs", "1", "--quiet"]
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        first = starting(words, work / "first", work / "cache")
        pairs = [(importing(), starting(words, work / str(i), work / "cache")) for i in range(given.starts)]
    found: dict[str, object] = {"command": " ".join(["apdo", *words]), "starts": given.starts, "bar": BAR}
    for i, clock in enumerate(("wall", "processor")):
        jax, whole = (statistics.median(pair[j][i] for pair in pairs) for j in (0, 1))
        found[clock] = {
            "import_jax": round(jax, 3),
            "first_metrics": round(whole, 3),
            "above": round(statistics.median(pair[1][i] - pair[0][i] for pair in pairs), 3),
            "least_above": round(min(pair[1][i] - pair[0][i] for pair in pairs), 3),
            "ratio": round(statistics.median(pair[1][i] / pair[0][i] for pair in pairs), 2),
            "compiling": round(first[i], 3),
        }
    found["load"] = round(os.getloadavg()[0], 1)
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(provenance.stamped(found), indent=2) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
