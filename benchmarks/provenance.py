"""The provenance of a result: commit, command, device, versions and date.

Every benchmark that writes a file of results passes them through `stamped`; `tests/test_results.py` refuses others.
"""

import datetime
import re
import shlex
import sys
from typing import Any

ENTRIES = ("commit", "command", "device", "versions", "date")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def stamped(found: dict[str, Any], packages: tuple[str, ...] = ()) -> dict[str, Any]:
    """A result with its provenance. Entries of a provenance that the result has already are kept."""
    return of(packages) | found


def of(packages: tuple[str, ...] = ()) -> dict[str, Any]:
    """The provenance of this process's results, with the versions of further packages that matter."""
    import jax

    from apdo.experiment import records

    device = jax.devices()[0]
    return {
        "commit": records.commit(),
        "command": command(),
        "device": f"{device.platform}: {device.device_kind}",
        "versions": records.versions(packages),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


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
    several = found.get("runs", found.get("seeds"))
    parts = list(several.values()) if isinstance(several, dict) and several else [{}]
    each = [found | part if isinstance(part, dict) else found for part in parts]
    return [entry for entry in ENTRIES if not all(_says(part, entry) for part in each)]


def _says(part: dict[str, Any], entry: str) -> bool:
    if entry == "commit":
        return bool(_COMMIT.fullmatch(str(part.get("commit", ""))))
    return bool(part.get(entry) or (entry == "date" and part.get("finished")))
