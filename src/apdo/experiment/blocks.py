"""Many experiments in one folder, each in blocks of seeds, so that a batch of runs can be stopped and continued.

    OUT/PAGE.json                      what the folder holds: every experiment's configuration, by name
    OUT/runs/NAME/seeds-000-009/       an ordinary run folder, whose seeds ran in one program

A finished block is never run again, an interrupted block continues from its checkpoint, and additional seeds become an
additional block. The process that works on the folder holds `OUT/lock`. Results of two configurations are never mixed
under one name.
"""

import contextlib
import fcntl
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from apdo import files
from apdo.errors import InvalidInput
from apdo.experiment.difference import describe_differences
from apdo.experiment.settings import Experiment
from apdo.report import runs

FORMAT = 1
KILLED, STOPPED, INCOMPLETE = "not finished", "interrupted", "its metrics are not complete"
GOING_ON = (KILLED, STOPPED, INCOMPLETE)
"""Reasons for which a block is unfinished, but can continue from its checkpoint."""
_BLOCK = re.compile(r"seeds-(\d+)-(\d+)")


def folder_of(parent: Path, first: int, count: int) -> Path:
    """The folder of a block of consecutive seeds."""
    return parent / f"seeds-{first:03d}-{first + count - 1:03d}"


def folders(parent: Path) -> list[Path]:
    """The existing block folders."""
    return sorted(path for path in parent.glob("seeds-*") if _BLOCK.fullmatch(path.name)) if parent.is_dir() else []


def seeds_of(folder: Path) -> range:
    """The seeds in a block's name."""
    found = _BLOCK.fullmatch(folder.name)
    if found is None:
        raise InvalidInput(f"{folder} is not named like a block of seeds.")
    return range(int(found[1]), int(found[2]) + 1)


def ended(folder: Path, how: Sequence[str] = ("finished",)) -> bool:
    """Whether a block has ended in one of these ways."""
    try:
        return runs.read_description(folder).get("status") in how
    except InvalidInput:
        return False


def unfinished(folder: Path, wanted: Experiment) -> str:
    """Why a block is unfinished; empty if it is finished. A finished block of another configuration is an error."""
    try:
        description = runs.read_description(folder)
    except InvalidInput:
        return "half-written"
    status = description.get("status", "unknown")
    found = describe_differences(essential(description.get("config")), wanted.essence())
    if status != "finished":
        if found:
            return "of another configuration"
        return {"running": KILLED, "interrupted": STOPPED}.get(status, str(status))
    if found:
        raise InvalidInput(f"{folder} is from another configuration: {found}; choose another folder with --out.")
    try:
        whole = len(runs.read(folder).epochs) == wanted.settings.epochs
    except InvalidInput:
        whole = False
    return "" if whole else INCOMPLETE


def gaps(seeds: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending numbers as ranges without gaps: (first, how many)."""
    stretches: list[tuple[int, int]] = []
    for seed in seeds:
        if stretches and sum(stretches[-1]) == seed:
            stretches[-1] = (stretches[-1][0], stretches[-1][1] + 1)
        else:
            stretches.append((seed, 1))
    return stretches


@contextlib.contextmanager
def alone(page: Path, what: str, command: str) -> Iterator[None]:
    """Lock the folder of a page (such as `OUT/sweep.json`) against other processes; the folder is made if necessary."""
    out, ours = page.parent, ("lock", page.name + files.PARTIAL)
    if out.exists() and not out.is_dir():
        raise InvalidInput(f"{out} is not a folder; choose another with --out.")
    if out.exists() and not page.exists() and any(path.name not in ours for path in out.iterdir()):
        raise InvalidInput(f"{out} exists and is no {what} (it has no {page.name}); choose another with --out.")
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = (out / "lock").open("w")
    except OSError as error:
        raise InvalidInput(f"the folder {out} cannot be made or written to: {error.strerror}.") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InvalidInput(f"another {command} is at work in {out}.") from None
        yield


def remember(page: Path, facts: Mapping[str, Any], experiments: Mapping[str, Experiment]) -> None:
    """Check a page against the experiments that are wanted now, and add the new ones to it.

    `facts` are further entries of the page that must not change.
    """
    now = {name: _shared(experiment) for name, experiment in experiments.items()}
    known = known_of(page, facts) if page.exists() else {}
    before = known.get("arms", {})
    common = [name for name in now if name in before]
    found = describe_differences({name: known.get(name, facts[name]) for name in facts}, dict(facts))
    found = found or describe_differences(
        {name: essential(before[name]) for name in common}, {name: essential(now[name]) for name in common}
    )
    if found:
        raise InvalidInput(f"{page.parent} is from another configuration: {found}; choose another folder with --out.")
    content = {"format": FORMAT, **facts, "arms": before | now}
    with files.replacing(page) as file:
        file.write((json.dumps(content, indent=2) + "\n").encode())


def known_of(page: Path, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a page."""
    try:
        known = json.loads(page.read_text(encoding="utf-8"))
        sound = known["format"] == FORMAT and isinstance(known["arms"], dict)
        sound = sound and all(isinstance(known[name], type(value)) for name, value in facts.items())
    except (OSError, ValueError, KeyError, TypeError):
        sound, known = False, {}
    if not sound:
        raise InvalidInput(f"{page} cannot be read; choose another folder with --out.")
    return known


def _shared(experiment: Experiment) -> dict[str, Any]:
    """The configuration without the seeds, which differ from block to block."""
    described = experiment.describe()
    described["settings"] = {
        name: value for name, value in described["settings"].items() if name not in ("seed", "seeds")
    }
    return described


def essential(described: object) -> object:
    """A configuration from a file as this version describes it, without settings that affect no result."""
    try:
        return Experiment.restore(described).essence() if isinstance(described, dict) else described
    except InvalidInput:
        return described
