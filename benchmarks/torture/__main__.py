"""make torture, or: python -m benchmarks.torture --jobs 14 [--kills N] [--damages N] [--lines N] [--epochs N]"""

import argparse
import signal
import tempfile
import time
from pathlib import Path

from benchmarks.torture import commands, common, damages, endurance, kills, table

PARTS = ("kills", "damages", "commands", "disk", "two", "memory")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.torture", description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="how often a run is killed")
    parser.add_argument("--damages", type=int, default=1000, help="how many files are damaged")
    parser.add_argument("--lines", type=int, default=2000, help="how many command lines are tried")
    parser.add_argument("--epochs", type=int, default=2000, help="for how many epochs memory is watched")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=common.RESULTS, help="where the results go")
    parser.add_argument("--work", type=Path, help="a folder to work in, kept; it saves compiling the next time")
    parser.add_argument("--only", default=",".join(PARTS), help="which parts, with commas")
    given = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as own:
        work = (given.work or Path(own)).resolve()
        print("runs to compare with", flush=True)
        known = kills.references(work, given.jobs)
        for part in given.only.split(","):
            _run(part, given, work, known)
    if given.out == common.RESULTS:
        table.write(given.out)
    print(f"{time.monotonic() - began:.0f} seconds; results in {given.out}")


def _run(part: str, given, work: Path, known) -> None:
    wanted = {"kills": given.kills, "damages": given.damages, "commands": given.lines, "two": 3}.get(part, 5)
    report = common.Report(part, wanted, given.out)
    parts = {
        "kills": lambda: kills.torture(given.kills, given.jobs, work, report, given.seed, known),
        "damages": lambda: damages.torture(given.damages, given.jobs, work, report, given.seed),
        "commands": lambda: commands.torture(given.lines, given.jobs, work, report, given.seed),
        "disk": lambda: endurance.disk(given.jobs, work, report, known),
        "two": lambda: endurance.two(work, report),
        "memory": lambda: endurance.memory(given.epochs, given.jobs, work, report),
    }
    try:
        parts[part]()
    finally:
        report.write()


def _end(*_) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    main()
