"""The provenance of a result: commit, command, device, versions and date.

Every benchmark that writes a file of results passes them through `stamped`; `tests/test_results.py` refuses others.

A machine to which the files were copied without their git repository cannot ask for the commit. So write a note before
copying, and copy it too:

    python -m benchmarks.provenance          writes build/commit.json

The note has the commit and a digest of the code. There it counts only as long as the code has this digest.
"""

import datetime
import functools
import hashlib
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ENTRIES = ("commit", "command", "device", "versions", "date")
ROOT = Path(__file__).parents[1]
NOTE = Path("build/commit.json")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_CODE = ("src", "benchmarks")
_WRITTEN = ("results", "docs")
"""Folders in which benchmarks write. Nothing that they measure depends on them, so changes there do not count."""


def stamped(found: dict[str, Any], packages: tuple[str, ...] = ()) -> dict[str, Any]:
    """A result with its provenance. Entries of a provenance that the result has already are kept."""
    return of(packages) | found


def of(packages: tuple[str, ...] = ()) -> dict[str, Any]:
    """The provenance of this process's results, with the versions of further packages that matter."""
    import jax

    from apdo.experiment import records

    device = jax.devices()[0]
    return {
        "commit": commit(),
        "command": command(),
        "device": f"{device.platform}: {device.device_kind}",
        "versions": records.versions(packages),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


@functools.cache
def commit(root: Path = ROOT) -> str:
    """The commit of the tree, with "-dirty" if its files have changed; empty if nothing says it."""
    told = _of_git(root)
    return told if _COMMIT.fullmatch(told) else _of_note(root) or told


def _of_git(root: Path) -> str:
    try:
        head = _git(root, "rev-parse", "HEAD")
        tracked = _git(root, "ls-files", *_CODE)
        written = [f":!{folder}" for folder in _WRITTEN]
        changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", ".", *written)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head + ("-dirty" if changed else "") if tracked else ""


def _of_note(root: Path) -> str:
    try:
        note = json.loads((root / NOTE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return ""
    paths = [path for folder in _CODE for path in (root / folder).rglob("*.py")]
    return note["commit"] + ("" if _digest(root, paths) == note["digest"] else "-dirty")


def write_note(root: Path = ROOT) -> str:
    """Write the note for a copy of this tree; its commit."""
    found = _of_git(root)
    if not _COMMIT.fullmatch(found):
        raise SystemExit(f"{root} is not a git checkout without changes, so that no commit can be named.")
    paths = [root / name for name in _git(root, "ls-files", *_CODE).splitlines() if name.endswith(".py")]
    (root / NOTE).parent.mkdir(exist_ok=True)
    content = {"commit": found, "digest": _digest(root, paths)}
    (root / NOTE).write_text(json.dumps(content) + "\n", encoding="utf-8")
    return found


def _digest(root: Path, paths: Iterable[Path]) -> str:
    """SHA-256 of the files' names and contents."""
    found = hashlib.sha256()
    for name, path in sorted((path.relative_to(root).as_posix(), path) for path in paths):
        found.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout.strip()


def command() -> str:
    """The command line that started this process, as one would type it in a checkout."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    name = getattr(spec, "name", "").removesuffix(".__main__")
    return shlex.join(["python", "-m", name, *sys.argv[1:]] if name else ["python", *sys.argv])


def missing(found: object) -> list[str]:
    """The entries of its provenance that a result lacks; each of its seeds or runs may have its own.

    The commit of a tree with changes does not count, because nobody can restore that tree.
    """
    if not isinstance(found, dict):
        return list(ENTRIES)
    found = _facts(found) | found
    several = found.get("runs", found.get("seeds"))
    parts = list(several.values()) if isinstance(several, dict) and several else [{}]
    each = [found | part if isinstance(part, dict) else found for part in parts]
    return [entry for entry in ENTRIES if not all(_says(part, entry) for part in each)]


def _facts(found: dict[str, Any]) -> dict[str, Any]:
    """The provenance of `apdo report` and `apdo reproduce`, whose numbers have it as the facts of their page."""
    facts = found.get("facts")
    if not isinstance(facts, dict):
        return {}
    versions = {name: facts[name] for name in ("python", "apdo", "jax", "jaxlib") if name in facts}
    return facts | {"versions": versions, "date": facts.get("made")}


def _says(part: dict[str, Any], entry: str) -> bool:
    if entry == "commit":
        return bool(_COMMIT.fullmatch(str(part.get("commit", ""))))
    return bool(part.get(entry) or (entry == "date" and part.get("finished")))


if __name__ == "__main__":
    print(f"{NOTE}: {write_note()}")
