"""The entry point: which command is meant, and the exit status of what goes wrong."""

import errno
import os
import sys
from collections.abc import Sequence

from apdo import __version__
from apdo.cli import helping
from apdo.cli.program import NAMES, PROGRAM, VARIABLE
from apdo.errors import EnvironmentFailure, Interrupted, InvalidInput, NumericalFailure, StorageFailure, unknown


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point.

    Exit status 0 also for a run that was asked to stop and has saved itself; 1 for a file that could not be written, an
    environment that broke its contract in the middle of a run and a rerun that came out differently, 2 for what cannot
    be done, 3 for a numerical failure, 130 for an interruption.
    """
    given = _typed() if arguments is None else list(arguments)
    # So that an environment in a module beside the user is found; behind everything else, so that it replaces nothing.
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())
    try:
        _dispatch(given)
    except InvalidInput as error:
        _stop(f"apdo: {error}", 2)
    except NumericalFailure as error:
        _stop(f"apdo: {error}", 3)
    except EnvironmentFailure as error:
        sys.stderr.write(error.trace)
        _stop(f"apdo: {error}", 1)
    except StorageFailure as error:
        _stop(f"apdo: {error}", 1)
    except Interrupted as stopped:
        _stop(f"apdo: {stopped}", 0)
    except KeyboardInterrupt:
        _stop("apdo: interrupted.", 130)
    except BrokenPipeError:
        sys.stderr.close()
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _stop(f"apdo: {where}{(error.strerror or str(error)).lower()}.", 1 if error.errno in _FULL_DISK else 2)


_FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def _typed() -> list[str]:
    """The words of the process's own command line; a shell that is completing one gets its answer instead."""
    if VARIABLE not in os.environ:
        return sys.argv[1:]
    from click.shell_completion import shell_complete

    sys.exit(shell_complete(PROGRAM, {}, "apdo", VARIABLE, os.environ[VARIABLE]))


def _stop(message: str, status: int) -> None:
    # One line, whatever a name may hold.
    print(" ".join(message.split()), file=sys.stderr)
    sys.exit(status)


def _dispatch(given: list[str]) -> None:
    if not given or given[0] in ("-h", "--help", "--help-all", "help"):
        print(helping.overview(PROGRAM.commands_in_order()), end="")
        return
    if given[0] == "--version":
        print(f"apdo {__version__}")
        return
    if given[0] not in NAMES:
        raise unknown("command", given[0], NAMES)
    PROGRAM.find(given[0]).call(given[1:])
