"""Reads the values of a command's own options."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from apdo.errors import InvalidInput
from apdo.options import TRUTH


def count(changes: Mapping[str, Any], key: str, default: int | None = None) -> int | None:
    """A whole number that is not negative; the default if the option is not given."""
    if key not in changes:
        return default
    name, value = key.replace("_", "-"), changes[key]
    try:
        number = int(value)
    except ValueError:
        raise InvalidInput(f"--{name} must be a whole number, not {value!r}.") from None
    if number < 0:
        raise InvalidInput(f"--{name} must not be negative, and is {number}.")
    return number


def truth(changes: Mapping[str, Any], key: str) -> bool | None:
    """True or false; None if the option is not given."""
    value = changes.get(key)
    if value is not None and str(value).lower() not in TRUTH:
        raise InvalidInput(f"--{key} must be true or false, not {value!r}.")
    return None if value is None else TRUTH[str(value).lower()]


def numbers(changes: Mapping[str, Any], key: str) -> list[float]:
    """Numbers with commas between them."""
    try:
        return [float(number) for number in changes[key].split(",")]
    except ValueError:
        raise InvalidInput(f"--{key} must be numbers with commas between them, not {changes[key]!r}.") from None


def path(changes: Mapping[str, Any], key: str) -> Path | None:
    """A path; None if the option is not given."""
    return Path(changes[key]) if key in changes else None


def check_new(folder: Path | None) -> None:
    """Raise InvalidInput if a run folder exists already, or if its name is not possible."""
    try:
        taken = folder is not None and folder.exists()
    except (OSError, ValueError) as error:
        raise InvalidInput(f"--out {str(folder)!r} cannot be a folder: {error}.") from None
    if taken:
        raise InvalidInput(f"the run folder {folder} exists already; choose another with --out or remove it.")
