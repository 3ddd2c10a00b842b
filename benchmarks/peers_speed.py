"""Speed compared with OmniSafe, FSRL and stable-baselines3: environment steps per second of collecting and learning.

    make bench-peers                                       their environments, then all of this
    python -m benchmarks.peers_speed                       settings, measurement, tables: a quarter of an hour
    python -m benchmarks.peers_speed --settings            each peer's best vectorisation alone
    python -m benchmarks.peers_speed --measure             the measurement alone, with the settings on file
    python -m benchmarks.peers_speed --table               the tables alone, from the file

The algorithms are PDO (TRPO-Lagrangian for the peers) and CPO on HalfCheetah-velocity and PointGoal1; PPO of
stable-baselines3 gives a scale. The peers step Safety-Gymnasium's tasks, ours the library's own tasks of the same name.
Each library uses its own networks, batch and numbers of gradient steps, because the comparison is about what a user
gets.

Each training is a process that trains one batch whenever it is told to (`benchmarks.peers_speed_runs`). Our trainings
take a turn before each peer does, and all processes but one are idle. A peer's processes end before the next peer's
begin, because twenty copies of PointGoal1 take ten gigabytes. The first batch of each training is not counted (for
FSRL, one episode). Before the measurement, each peer tries several ways to vectorise, with smaller batches and
TRPO-Lagrangian, and the fastest is used; a trial that is on file is not made again without `--again`. PyTorch's threads
wait as by default. Nothing else may use the cores. If a peer is not installed it is reported as absent, and if it
breaks down as failed; the others continue.
"""

import argparse
import contextlib
import json
import os
import platform
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import document, provenance

RESULT = Path("results/speed/peers.json")
DOCUMENT = Path("docs/performance.md")
SCRIPT = Path(__file__).with_name("peers_speed_runs.py")
PYTHONS = {
    "apdo": sys.executable,
    "omnisafe": ".venv-omnisafe/bin/python",
    "fsrl": ".venv-fsrl/bin/python",
    "sb3": ".venv-sb3-safety/bin/python",
}
NAMES = {"apdo": "apdo", "omnisafe": "OmniSafe", "fsrl": "FSRL", "sb3": "stable-baselines3"}
TASKS = ("halfcheetah-velocity", "point-goal-1")
BATCH = 20_000
"""Our batch in the row from which ratios are computed; OmniSafe and FSRL have the same by default."""
BARS = {"halfcheetah-velocity": 30_000, "point-goal-1": 60_000}
"""The bars: steps per second of PDO on two cores."""
OMNISAFE_BAR, FASTEST_BAR = 10.0, 3.0
TURN = 1.5
"""The least seconds of a turn."""
ROUNDS = {"halfcheetah-velocity": 3, "point-goal-1": 2}
"""The number of turns of each training; one less on the task where a batch of the peers takes half a minute."""
PATIENCE = 240.0
"""The most seconds that a batch or a start may take."""

Row = dict[str, Any]


def _ways(system: str, kinds: str, counts: tuple[int, ...], threads: tuple[int, ...]) -> list[Row]:
    return [
        {"system": system, "vector": kind, "envs": count, "threads": number}
        for kind in kinds.split()
        for count in counts
        for number in threads
    ]


PARALLEL = {"system": "omnisafe", "vector": "async", "envs": 10, "threads": 1, "parallel": 2}
TRIED = {
    "halfcheetah-velocity": {
        "omnisafe": [
            *_ways("omnisafe", "async", (1, 4, 10), (1,)),
            *_ways("omnisafe", "async", (20,), (1, 2)),
            *_ways("omnisafe", "sync", (20,), (1,)),
            PARALLEL,
        ],
        "fsrl": [
            *_ways("fsrl", "dummy", (4, 20), (2,)),
            *_ways("fsrl", "shmem", (2, 4, 10), (2,)),
            *_ways("fsrl", "shmem", (20,), (1, 2)),
            *_ways("fsrl", "subproc", (4,), (2,)),
        ],
        "sb3": [
            *_ways("sb3", "dummy", (1,), (1,)),
            *_ways("sb3", "dummy", (4,), (1, 2)),
            *_ways("sb3", "subproc", (2, 4), (1,)),
        ],
    },
    "point-goal-1": {
        "omnisafe": _ways("omnisafe", "async", (1, 4, 10, 20), (1,)),
        "fsrl": [*_ways("fsrl", "dummy", (4,), (2,)), *_ways("fsrl", "shmem", (4, 10, 20), (2,))],
        "sb3": [*_ways("sb3", "dummy", (1,), (1,)), *_ways("sb3", "subproc", (2, 4), (1,))],
    },
}
"""The ways to vectorise that are tried for each peer. OmniSafe's copies step in processes of their own; "sync", in its
own process, exists in Safety-Gymnasium, but OmniSafe has no option for it. A step of PointGoal1 takes a millisecond or
two, so a single process, which leaves a core idle, is hardly tried there."""
ROWS: list[Row] = [
    {"system": "apdo", "algorithm": "pdo", "batch": BATCH},
    {"system": "apdo", "algorithm": "cpo", "batch": BATCH},
    {"system": "omnisafe", "algorithm": "pdo"},
    {"system": "fsrl", "algorithm": "pdo"},
    {"system": "sb3", "algorithm": "ppo"},
    {"system": "omnisafe", "algorithm": "cpo"},
    {"system": "fsrl", "algorithm": "cpo"},
    {"system": "apdo", "algorithm": "pdo", "batch": 64_000},
    {"system": "apdo", "algorithm": "pdo", "batch": 200_000},
]
LABELS = {"pdo": "TRPO-Lagrangian", "cpo": "CPO", "ppo": "PPO"}


class Failed(Exception):
    """A training ended or took too long; the message is its last output."""


class Training:
    """A process that trains one batch whenever it is told to."""

    def __init__(self, given: Row, folder: Path) -> None:
        self._log = folder / "log"
        address = str(folder / "socket")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen()
        python = Path(PYTHONS[given["system"]]).absolute()
        path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [str(python), str(SCRIPT), address, json.dumps(given)],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=os.environ | {"PATH": path},
                start_new_session=True,
            )

    def about(self) -> Row:
        """The facts that the process prints about itself after its start."""
        self._listener.settimeout(0.2)
        until = time.monotonic() + PATIENCE
        while True:
            try:
                link, _ = self._listener.accept()
                break
            except TimeoutError:
                if self._process.poll() is not None or time.monotonic() > until:
                    raise Failed(self._last_words()) from None
        link.settimeout(PATIENCE)
        self._line = link.makefile("rw")
        return self._answer()

    def batch(self) -> tuple[int, float]:
        """Train one more batch; returns its samples and seconds."""
        self._line.write("go\n")
        self._line.flush()
        answer = self._answer()
        return answer["samples"], answer["seconds"]

    def _answer(self) -> Row:
        try:
            line = self._line.readline()
        except OSError:
            line = ""
        if not line:
            raise Failed(self._last_words())
        return json.loads(line)

    def _last_words(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5.0)
        return last_words(self._log.read_text(errors="replace"))

    def end(self) -> None:
        """End the process, with all of its own processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5.0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._listener.close()


@contextlib.contextmanager
def started(given: Row) -> Iterator[Training]:
    """Start a training, and end it after the context, whatever happens."""
    with tempfile.TemporaryDirectory() as folder:
        training = Training(given, Path(folder))
        try:
            yield training
        finally:
            training.end()


def last_words(log: str) -> str:
    """The last line of a log that names an error, or else its last line, without paths of this machine."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    named = [line for line in lines if "Error:" in line or line.endswith("Error")]
    said = (named or lines or ["it said nothing"])[-1]
    return " ".join(word for word in said.split() if "/" not in word)[:200]


def absent(system: str) -> str:
    """A sentence if a system's environment is not installed; otherwise empty."""
    if Path(PYTHONS[system]).exists():
        return ""
    return f"{NAMES[system]} is not installed: there is no {PYTHONS[system]}, which `make bench-peers` makes."


def tried(task: str, way: Row) -> Row:
    """Try one way to vectorise: the steps per second of a batch. A small first batch is not counted."""
    # In OmniSafe each batch needs an episode that ended, and is divided equally among the copies.
    steps = max(4000, 1000 * way["envs"] * way.get("parallel", 1))
    size = {"omnisafe": {"steps": steps}, "fsrl": {"episodes": max(4, way["envs"])}, "sb3": {}}[way["system"]]
    algorithm = "ppo" if way["system"] == "sb3" else "pdo"
    try:
        with started(way | size | {"task": task, "algorithm": algorithm}) as training:
            training.about()
            if steps == 4000:
                training.batch()
            samples, seconds = training.batch()
    except Failed as failure:
        return way | {"failed": str(failure)}
    return way | {"steps_per_second": round(samples / seconds)}


def settings(out: Path, found: Row) -> None:
    """Make every trial that is not on file, by task and peer, and store each at once."""
    for task in TASKS:
        for system, ways in TRIED[task].items():
            if absent(system):
                continue
            trials = found["settings"]["trials"].setdefault(task, {}).setdefault(system, [])
            for way in ways:
                if any(_same(way, trial) for trial in trials):
                    continue
                trials.append(tried(task, way) | {"commit": found["commit"]})
                print(task, json.dumps(trials[-1]), flush=True)
                write(out, found)


def write(out: Path, found: Row) -> None:
    """Store a result in its file."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def best(trials: list[Row]) -> Row | None:
    """The fastest way among the trials; None if none succeeded."""
    done = [trial for trial in trials if "failed" not in trial]
    if not done:
        return None
    fastest = max(done, key=lambda trial: trial["steps_per_second"])
    return {name: value for name, value in fastest.items() if name not in ("steps_per_second", "commit")}


def measured(task: str, trials: dict[str, list[Row]], rounds: int) -> list[Row]:
    """All rows of a task. Our trainings stay, and take a turn before each peer; only one peer exists at a time."""
    rows = [dict(row) for row in ROWS]
    ours, peers = ([row for row in rows if (row["system"] == "apdo") == own] for own in (True, False))
    with contextlib.ExitStack() as stay:
        own = [(row, _set_up(task, row, trials, stay)) for row in ours]
        for row in peers:
            with contextlib.ExitStack() as stack:
                training = _set_up(task, row, trials, stack)
                print("measuring", flush=True)
                for each in own:
                    _take_turn(*each)
                for _ in range(rounds):
                    _take_turn(row, training)
                print("measured", flush=True)
    return [summarised(row) for row in rows]


def _set_up(task: str, row: Row, trials: dict[str, list[Row]], stack: contextlib.ExitStack) -> Training | None:
    """Start a row's training and train a first batch, which is not counted. A failure is recorded in the row."""
    system = row["system"]
    row["seconds"], row["samples"] = [], []
    if said := absent(system):
        row["absent"] = said
        return None
    if system != "apdo":
        way = best(trials.get(system, []))
        if way is None:
            row["failed"] = "no way to vectorise came to an end in the trials"
            return None
        row["way"] = {name: value for name, value in way.items() if name != "system"}
    given = {"task": task} | {name: row[name] for name in ("system", "algorithm", "batch") if name in row}
    training = stack.enter_context(started(given | row.get("way", {})))
    try:
        row |= training.about()
        if not row.get("warm"):
            training.batch()
    except Failed as failure:
        row["failed"] = str(failure)
    return training


def _take_turn(row: Row, training: Training | None) -> None:
    """Train batches until the turn is over, and record them in the row."""
    if training is None or "failed" in row:
        return
    spent = 0.0
    try:
        while spent < TURN:
            samples, seconds = training.batch()
            row["samples"].append(samples)
            row["seconds"].append(round(seconds, 4))
            spent += seconds
    except Failed as failure:
        row["failed"] = str(failure)
    print(row["system"], row["algorithm"], row.get("batch", ""), row["seconds"][-3:], flush=True)


def summarised(row: Row) -> Row:
    """A row with its median and best, unless it failed or is absent."""
    kept = dict(row)
    samples, seconds = kept.pop("samples"), kept.pop("seconds")
    if "failed" in row or "absent" in row or not seconds:
        return kept
    each = [count / taken for count, taken in zip(samples, seconds, strict=True)]
    return kept | {"median": round(statistics.median(each)), "best": round(max(each)), "seconds": seconds}


def ratios(rows: list[Row]) -> Row:
    """The ratios of our algorithms' medians, with the peers' batch, to OmniSafe's best row and any peer's best row."""
    peers = [row for row in rows if row["system"] != "apdo" and "median" in row]
    ours = [row for row in rows if row["system"] == "apdo" and "median" in row and row["batch"] == BATCH]
    found: Row = {}
    for row in ours:
        said: Row = {}
        for name, others in (("omnisafe", [p for p in peers if p["system"] == "omnisafe"]), ("fastest", peers)):
            if others:
                fastest = max(others, key=lambda other: other["median"])
                said[name] = round(row["median"] / fastest["median"], 1)
                said[f"{name}_is"] = f"{NAMES[fastest['system']]} {LABELS[fastest['algorithm']]}"
        found[row["algorithm"]] = said
    return found


def bars(task: str, rows: list[Row]) -> Row:
    """Which bars PDO meets. A bar counts as not met if there is nothing to compare with."""
    speed = [r["median"] for r in rows if (r["system"], r["algorithm"], r.get("batch")) == ("apdo", "pdo", BATCH)]
    against = ratios(rows).get("pdo", {})
    return {
        f"{BARS[task]:,} steps/s": bool(speed) and speed[0] >= BARS[task],
        f"{OMNISAFE_BAR:.0f} times OmniSafe": against.get("omnisafe", 0.0) >= OMNISAFE_BAR,
        f"{FASTEST_BAR:.0f} times the fastest peer": against.get("fastest", 0.0) >= FASTEST_BAR,
    }


def machine() -> Row:
    """The machine's cores, its model, and what else was running."""
    lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    cores = len(os.sched_getaffinity(0))
    return {"cores": cores, "cpu": model, "system": platform.machine(), "load_before": round(os.getloadavg()[0], 1)}


def way_words(way: Row) -> str:
    """A way to vectorise, in words."""
    kinds = {
        "async": "in processes",
        "sync": "in one process",
        "dummy": "in one process",
        "subproc": "in processes",
        "shmem": "in processes with shared memory",
    }
    agents = f", {way['parallel']} agents" if way.get("parallel", 1) > 1 else ""
    where = kinds[way["vector"]] if way["envs"] > 1 else "in one process"
    copies = "copies" if way["envs"] > 1 else "copy"
    threads = "threads" if way["threads"] > 1 else "thread"
    return f"{way['envs']} {copies} {where}, {way['threads']} {threads}{agents}"


def speed_table(tasks: Row) -> str:
    """The table of every row of every task."""
    heading = ["task", "", "algorithm", "batch", "networks", "environments", "steps/s, median", "best"]
    return document.table(heading, *[_cells(task, row) for task, found in tasks.items() for row in found["rows"]])


def _cells(task: str, row: Row) -> list[str]:
    label = "PDO" if (row["system"], row["algorithm"]) == ("apdo", "pdo") else LABELS[row["algorithm"]]
    ours = row["system"] == "apdo"
    way = f"{row.get('envs', '?')} copies" if ours else (way_words(row["way"]) if "way" in row else "")
    batch = f"{row['batch']:,}" if "batch" in row else ""
    networks = " × ".join(map(str, row.get("networks", [])))
    if "median" in row:
        speed = [f"{row['median']:,}", f"{row['best']:,}"]
    else:
        speed = ["absent" if "absent" in row else "failed", row.get("absent") or row.get("failed", "no batch")]
    return [task, NAMES[row["system"]], label, batch, networks, way, *speed]


def ratio_table(tasks: Row) -> str:
    """The table of the ratios and bars of every task."""
    heading = ["task", "", "times OmniSafe", "times the fastest peer", "which is", "bars missed"]
    cells = []
    for task, found in tasks.items():
        for algorithm, said in found["ratios"].items():
            missed = [name for name, met in found["bars"].items() if not met] if algorithm == "pdo" else None
            cells.append(
                [
                    task,
                    algorithm.upper(),
                    str(said.get("omnisafe", "")),
                    str(said.get("fastest", "")),
                    said.get("fastest_is", ""),
                    "" if missed is None else ", ".join(missed) or "none",
                ]
            )
    return document.table(heading, *cells)


def settings_table(trials: Row) -> str:
    """The table of every trial's result."""
    heading = ["peer", "environments", *TASKS]
    cells = []
    for system in TRIED[TASKS[0]]:
        known: list[Row] = []
        for way in (way for task in TASKS for way in TRIED[task][system] if way not in known):
            known.append(way)
            found = [_trial_cell(trials.get(task, {}).get(system, []), way) for task in TASKS]
            cells.append([NAMES[system], way_words(way), *found])
    return document.table(heading, *cells)


def _same(way: Row, trial: Row) -> bool:
    """Whether a trial is one of this way."""
    return way.items() <= trial.items() and ("parallel" in way) == ("parallel" in trial)


def _trial_cell(trials: list[Row], way: Row) -> str:
    for trial in trials:
        if _same(way, trial):
            speed = trial.get("steps_per_second")
            taken = best(trials)
            if speed is None:
                return "failed"
            return f"**{speed:,}**" if taken is not None and _same(taken, trial) else f"{speed:,}"
    return ""


def tables(found: Row) -> dict[str, str]:
    """The document's tables, by their names."""
    return {
        "peers-speed": speed_table(found["tasks"]),
        "peers-ratios": ratio_table(found["tasks"]),
        "peers-settings": settings_table(found["settings"]["trials"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", action="store_true", help="only look for each peer's best vectorisation")
    parser.add_argument("--again", action="store_true", help="also trials that are on file")
    parser.add_argument("--measure", action="store_true", help="only measure, with the settings on file")
    parser.add_argument("--table", action="store_true", help="only write the tables from the file")
    parser.add_argument("--only", default=".*", help="a pattern for the tasks to measure")
    parser.add_argument("--rounds", type=int, help=f"turns of each training that count (default {ROUNDS})")
    parser.add_argument("--out", type=Path, default=RESULT)
    given = parser.parse_args()
    found: Row = json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else {}
    stamp = provenance.of() | {"machine": machine()}
    if not (given.measure or given.table):
        found = stamp | {"settings": {"trials": {}} if given.again else found.get("settings", {"trials": {}})}
        settings(given.out, found)
    if not (given.settings or given.table):
        if "settings" not in found:
            parser.error("--measure needs the settings on file: run --settings first, or neither")
        found = stamp | {"settings": found["settings"], "tasks": found.get("tasks", {})}
        for task in [task for task in TASKS if re.fullmatch(given.only, task)]:
            rows = measured(task, found["settings"]["trials"].get(task, {}), given.rounds or ROUNDS[task])
            found["tasks"][task] = stamp | {"rows": rows, "ratios": ratios(rows), "bars": bars(task, rows)}
            write(given.out, found)
    if "tasks" in found:
        print("\n\n".join(tables(found).values()))
        if given.out == RESULT:
            document.fill(DOCUMENT, tables(found))


if __name__ == "__main__":
    main()
