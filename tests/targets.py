"""Runs the Makefile's test targets, and stores the outcome of each: results/tests/last.json and last.md.

    python -m tests.targets                   every target
    python -m tests.targets test test-isa     these; the outcomes of the others stay

An outcome has the commit and the date of its own run. It is stored only for a tree without changes.
"""

import argparse
import datetime
import json
import re
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import provenance

from apdo.experiment import records

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "results" / "tests" / "last.json"
TARGETS = {
    "check": "lint, format and types",
    "test": "everything but the learning outcomes",
    "test-slow": "learning outcomes",
    "test-optimised": "`test` with programs as users run them",
    "test-isa": "`test` with the instructions of SSE4.2, of AVX2 and of the machine",
    "test-random": "`test` twice in random order",
    "test-pythons": "`test` on each supported Python",
    "test-mujoco": "the velocity tasks and users' own models",
    "test-mujoco-versions": "the same with the oldest and the newest supported MuJoCo",
    "test-docs": "the site in a browser",
    "test-wheel": "the wheel in bare environments",
    "test-ray": "Ray, Slurm, TensorBoard, Weights & Biases",
    "test-safety-gymnasium": "Safety-Gymnasium's tasks",
    "test-bullet": "Bullet-Safety-Gym's tasks",
    "test-stable-baselines3": "its checker",
}
NOT_RUN = {"outcome": "not run"}
_COUNTS = re.compile(r"\d+ (?:passed|failed|skipped|error)[^\n]* in [0-9.]+s[^\n]*")


def run(target: str) -> dict[str, Any]:
    """Run one target, and return its outcome; the output is printed as it comes."""
    began, used = time.monotonic(), _children()
    process = subprocess.Popen(["make", target], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        print(line, end="", flush=True)
        lines.append(line)
    return {
        "outcome": "failed" if process.wait() else "passed",
        "counts": counts("".join(lines)),
        "seconds": round(time.monotonic() - began),
        "cpu_seconds": round(_children() - used),
        "commit": records.commit().removesuffix("-dirty"),  # `main` has checked that only outcomes have changed
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def counts(text: str) -> list[str]:
    """The last line of each run of pytest in a target's output."""
    return _COUNTS.findall(text)


def table(kept: dict[str, Any]) -> str:
    """The outcomes as a table."""
    rows = ["| target | what it tests | outcome | tests | CPU s | s | commit | date |", "| --- " * 8 + "|"]
    for name, what in TARGETS.items():
        row = kept["targets"].get(name, NOT_RUN)
        facts = ["; ".join(row.get("counts", [])), *(row.get(key, "") for key in ("cpu_seconds", "seconds"))]
        facts += [row.get("commit", "")[:10], row.get("date", "")[:10]]
        rows.append(" | ".join([f"| `make {name}`", what, row["outcome"], *map(str, facts)]) + " |")
    return "# The last outcome of each test target\n\n" + "\n".join(rows) + "\n"


def merged(known: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """A row for every target: the new outcome, or the earlier one, or that it has not been run."""
    return {name: found.get(name) or known.get(name) or NOT_RUN for name in TARGETS}


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _changed() -> bool:
    """Whether the tree differs from the commit in anything but the outcomes."""
    status = ["git", "status", "--porcelain", "--untracked-files=no", "--", ".", f":!{KEPT.parent.relative_to(ROOT)}"]
    return bool(subprocess.run(status, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", choices=[[], *TARGETS], metavar="target")
    chosen = parser.parse_args().targets or list(TARGETS)
    if _changed():
        sys.exit("The tree has changes that are not committed: nobody could have it again. Commit, then run this.")
    found = {}
    for name in chosen:
        print(f"== make {name}", flush=True)
        found[name] = run(name)
        known = json.loads(KEPT.read_text(encoding="utf-8"))["targets"] if KEPT.exists() else {}
        kept = provenance.of(("mujoco", "gymnasium", "pytest")) | {"targets": merged(known, found)}
        kept["commit"] = found[name]["commit"]
        KEPT.parent.mkdir(parents=True, exist_ok=True)
        KEPT.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
        KEPT.with_suffix(".md").write_text(table(kept), encoding="utf-8")
    sys.exit(any(row["outcome"] != "passed" for row in found.values()))


if __name__ == "__main__":
    main()
