"""The errors that a user can meet. Each message is one sentence, and each error has an exit status."""

import difflib
from collections.abc import Iterable
from typing import Any


class InvalidInput(ValueError):
    """The request cannot be carried out, and nothing has been started. Exit status 2."""


class NumericalFailure(ArithmeticError):
    """An update produced NaN or infinity; the last good state has been saved. Exit status 3."""


class EnvironmentFailure(RuntimeError):
    """An environment broke its contract during a run; the last good state has been saved. Exit status 1."""

    trace: str = ""
    """The traceback of the environment's own error, if there was one and no file has it."""


class StorageFailure(OSError):
    """A file could not be written; everything saved before is whole. Exit status 1."""


class Interrupted(KeyboardInterrupt):
    """The run was asked to stop, and has saved itself; the message says how to continue. Exit status 0."""

    result: Any = None
    """The result so far, an `apdo.experiment.result.Result`, if Ctrl-C stopped the run."""


def unknown(kind: str, given: str, known: Iterable[str]) -> InvalidInput:
    """The error for an unknown name, with the nearest known name as a suggestion."""
    known = sorted(known)
    near = difflib.get_close_matches(given, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}."
    return InvalidInput(f"unknown {kind} {given!r}; {hint}")
