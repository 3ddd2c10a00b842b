"""make torture-sweeps, or: python -m benchmarks.torture.sweeps [--sweeps 20] [--on local,ray] [--jobs 2] [--out FILE]

Sweeps that are disturbed at random: the process that drives one is killed, or a process that runs for it, or, where Ray
is installed, a node of its cluster. A sweep whose driver was killed is called again, until it ends by itself. Then
every run must be there once, with every epoch once, and have the metrics of a sweep that nobody disturbed, bit for bit.
"""

import argparse
import csv
import importlib
import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks import provenance
from benchmarks.torture.common import RESULTS, ROOT

SEEDS = 4
WORDS = ["sweep", "trpo,pdo", "two-state", "--seeds", str(SEEDS), "--block", "1", "--batch", "200"]
WORDS += ["--critic.passes", "1", "--policy.hidden", "4", "--critic.hidden", "4", "--checkpoint-every", "20"]
MOST_KILLS = 4
"""Killings of one sweep."""
MEMORY = {"object_store_memory": 80_000_000}


class Cluster:
    """Ray nodes on this machine: a head without processors, and others with one each, which can be killed."""

    def __init__(self, nodes: int) -> None:
        nodes_of = importlib.import_module("ray.cluster_utils").Cluster
        self._made = nodes_of(initialize_head=True, head_node_args={"num_cpus": 0, **MEMORY})
        self.address = self._made.address
        self._nodes = [self._add() for _ in range(nodes)]

    def _add(self):
        return self._made.add_node(num_cpus=1, **MEMORY)

    def kill_one(self, chance: random.Random) -> None:
        """A node dies, and another one comes."""
        self._made.remove_node(self._nodes.pop(chance.randrange(len(self._nodes))), allow_graceful=False)
        self._nodes.append(self._add())

    def close(self) -> None:
        self._made.shutdown()


def begin(out: Path, work: Path, epochs: int, where: list[str]) -> subprocess.Popen:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "JAX_PLATFORMS": "cpu"}
    environment |= {"JAX_COMPILATION_CACHE_DIR": str(work / "cache"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    with (work / f"{out.name}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "apdo.cli", *WORDS, "--epochs", str(epochs), "--out", str(out), *where],
            env=environment,
            stdout=log,
            stderr=log,
        )


def children(process: subprocess.Popen) -> list[int]:
    """The processes that a driver has started."""
    try:
        return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    except OSError:
        return []


def written(out: Path) -> int:
    """Bytes of metrics."""
    return sum(file.stat().st_size for file in out.glob("runs/*/*/metrics.jsonl"))


def disturbed(
    out: Path, work: Path, given, chance: random.Random, calm: int, cluster: Cluster | None
) -> dict[str, int]:
    """A sweep with some killings; how many of which kind. `calm` is what an undisturbed one has written."""
    where = ["--on", "ray", "--address", cluster.address] if cluster else ["--jobs", str(given.jobs)]
    kills = {"drivers": 0, "nodes" if cluster else "processes": 0, "calls": 1}
    driver = begin(out, work, given.epochs, where)
    for share in sorted(chance.uniform(0.0, 0.95) for _ in range(chance.randint(1, MOST_KILLS))):
        # By what is on the disk, so that a sweep that is quick is disturbed too.
        while written(out) <= share * calm and driver.poll() is None:
            time.sleep(0.02)
        if driver.poll() is not None:
            break
        if chance.random() < 0.5:
            driver.send_signal(signal.SIGKILL)
            driver.wait()
            kills["drivers"] += 1
            kills["calls"] += 1
            driver = begin(out, work, given.epochs, where)
        elif cluster:
            cluster.kill_one(chance)
            kills["nodes"] += 1
        elif own := children(driver):
            os.kill(chance.choice(own), signal.SIGKILL)
            kills["processes"] += 1
    while driver.wait(given.patience) != 0 and kills["calls"] < 10:
        # A process that dies twice fails its run, which is gone on with when that is asked for.
        kills["calls"] += 1
        driver = begin(out, work, given.epochs, [*where, "--retry"])
    return kills


def found_in(out: Path) -> dict[str, dict[tuple[int, int], dict]]:
    """The metrics of each run by epoch and seed; an epoch that is there twice is an error."""
    every = {}
    for folder in sorted(out.glob("runs/*/seeds-*")):
        rows: dict[tuple[int, int], dict] = {}
        for line in (folder / "metrics.jsonl").read_text().splitlines():
            row = json.loads(line)
            place = row["epoch"], row["seed"]
            if place in rows:
                raise ValueError(f"{folder} has epoch {place[0]} of seed {place[1]} twice")
            rows[place] = {name: value for name, value in row.items() if name not in ("seconds", "crc32")}
        status = json.loads((folder / "run.json").read_text())["status"]
        if status != "finished":
            raise ValueError(f"{folder} is {status}")
        every[f"{folder.parent.name}/{folder.name}"] = rows
    return every


def complaints(out: Path, expected: dict[str, dict[tuple[int, int], dict]]) -> list[str]:
    """What is wrong with a sweep's results."""
    try:
        found = found_in(out)
        with (out / "results.csv").open() as file:
            lines = [(row["setting"], row["seed"]) for row in csv.DictReader(file)]
    except (OSError, ValueError, KeyError) as error:
        return [str(error)]
    wrong = []
    if len(lines) != len(expected) or len(set(lines)) != len(lines):
        wrong.append(f"{out}/results.csv has {len(lines)} lines for {len(expected)} runs")
    if found.keys() != expected.keys():
        wrong.append(f"{out} has other runs: {sorted(found.keys() ^ expected.keys())}")
    for name in found.keys() & expected.keys():
        if found[name] != expected[name]:
            wrong.append(f"{out}: the metrics of {name} differ")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.torture.sweeps", description=__doc__)
    parser.add_argument("--sweeps", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=400, help="of each run")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time, and nodes")
    parser.add_argument("--on", default="local,ray", help="local, ray, or both in turn; ray only where it is installed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--patience", type=float, default=1800.0, help="seconds that a call may take")
    parser.add_argument("--out", type=Path, default=RESULTS / "sweeps.json", help="where the results go")
    given = parser.parse_args()
    places = [place for place in given.on.split(",") if place != "ray" or importlib.util.find_spec("ray")]
    report = {"sweeps": 0, "runs": 0, "drivers": 0, "processes": 0, "nodes": 0, "calls": 0, "wrong": [], "places": {}}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        begin(work / "first", work, 2, ["--jobs", "1"]).wait()  # compiles, for all
        begin(work / "calm", work, given.epochs, ["--jobs", str(given.jobs)]).wait()
        calm, expected = written(work / "calm"), found_in(work / "calm")
        assert len(expected) == 2 * SEEDS
        assert all(len(rows) == given.epochs for rows in expected.values())
        assert not np.isnan([row["return"] for rows in expected.values() for row in rows.values()]).any()
        cluster = Cluster(given.jobs) if "ray" in places else None
        try:
            for i in range(given.sweeps):
                place, chance = places[i % len(places)], random.Random(given.seed * 1000 + i)
                own = cluster if place == "ray" else None
                kills = disturbed(work / f"sweep-{i}", work, given, chance, calm, own)
                wrong = complaints(work / f"sweep-{i}", expected)
                for name, count in kills.items():
                    report[name] += count
                report["sweeps"] += 1
                report["runs"] += len(expected)
                report["places"][place] = report["places"].get(place, 0) + 1
                report["wrong"] += wrong
                print(f"sweep {i} on {place}: {kills}{': ' + '; '.join(wrong) if wrong else ''}", flush=True)
                report["seconds"] = round(time.monotonic() - began)
                given.out.parent.mkdir(parents=True, exist_ok=True)
                given.out.write_text(json.dumps(provenance.stamped(report), indent=2) + "\n", encoding="utf-8")
        finally:
            if cluster:
                cluster.close()
    print(json.dumps(report, indent=2))
    sys.exit(1 if report["wrong"] else 0)


if __name__ == "__main__":
    main()
