"""The results as the table of docs/reliability.md."""

import json
from pathlib import Path

from benchmarks.torture import common

DOCUMENT = common.ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- torture: begin -->", "<!-- torture: end -->"


def write(results: Path) -> None:
    """Put the table between its marks."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(results.glob("*.json"))}
    text = DOCUMENT.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    DOCUMENT.write_text(f"{before}{BEGIN}\n{table(found)}\n{END}{after}")


def table(found) -> str:
    lines = ["| test | done | problems | seconds | |", "| --- | --- | --- | --- | --- |"]
    titles = {
        "kills": "kill -9 at a random moment, then resume",
        "damages": "files flipped, truncated, zeroed",
        "commands": "random command lines and run descriptions",
        "disk": "disk full while saving, each algorithm",
        "two": "two processes on one folder; SIGTERM",
        "memory": "memory, each algorithm",
    }
    for name, title in titles.items():
        if name in found:
            one = found[name]
            done = f"{one['done']} of {one['wanted']}"
            lines.append(f"| {title} | {done} | {len(one['problems'])} | {one['seconds']:.0f} | {detail(name, one)} |")
    machines = sorted({one["machine"] for one in found.values()})
    return "\n".join([*lines, "", f"Measured on {'; '.join(machines)}."])


def detail(name: str, one) -> str:
    counts = {key: value for key, value in one.items() if isinstance(value, int) and key not in ("wanted", "done")}
    if name == "kills":
        places = [key for key in counts if key != "identical" and not key.startswith("kills of")]
        return f"{one.get('identical', 0)} identical; " + ", ".join(f"{counts[key]} {key}" for key in sorted(places))
    if name == "memory":
        own = {key: value for key, value in one.items() if isinstance(value, dict)}
        epochs = max((value["epochs"] for value in own.values()), default=0)
        grown = ", ".join(f"{key} {value['growth in percent']:+.2f} %" for key, value in sorted(own.items()))
        return f"growth over {epochs} epochs: {grown}"
    if name == "disk":
        return one.get("reason", "stopped with one sentence, last checkpoints whole; identical with space again")
    return ", ".join(f"{value} {key}" for key, value in sorted(counts.items()))
