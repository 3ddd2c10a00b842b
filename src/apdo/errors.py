"""The errors a user can meet, each one sentence long, with the exit status the command line gives it."""

import difflib
from collections.abc import Iterable
from typing import Any


class InvalidInput(ValueError):
    """What was asked for cannot be done; nothing has been started. Exit status 2."""


class NumericalFailure(ArithmeticError):
    """An update produced NaN or infinity; the last good state has been saved. Exit status 3."""


class EnvironmentFailure(RuntimeError):
    """An environment broke its contract in the middle of a run; the last good state has been saved. Exit status 1."""

    trace: str = ""
    """The traceback of what the environment raised, if it raised and no file has it."""


class StorageFailure(OSError):
    """A file could not be written; what was saved before is whole. Exit status 1."""


class Interrupted(KeyboardInterrupt):
    """The run was asked to stop and has saved itself; the message says how to go on. Exit status 0."""

    result: Any = None
    """What the run has so far, an `apdo.experiment.runner.Result`, where Ctrl-C has stopped it."""


def unknown(kind: str, given: str, known: Iterable[str]) -> InvalidInput:
    """The error for a name that is none of those known, with the nearest one as a suggestion."""
    known = sorted(known)
    near = difflib.get_close_matches(given, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}."
    return InvalidInput(f"unknown {kind} {given!r}; {hint}")
