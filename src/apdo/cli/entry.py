"""The entry point: it finds the command, and sets the exit status."""

import errno
import os
import sys
from collections.abc import Sequence

from apdo import __version__
from apdo.cli import helping
from apdo.cli.program import NAMES, PROGRAM, VARIABLE
from apdo.errors import EnvironmentFailure, Interrupted, InvalidInput, NumericalFailure, StorageFailure, unknown


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line.

    Exit status: 0 also for a run that was asked to stop and has saved itself; 1 if a file cannot be written, if an
    environment breaks its contract during a run, or if a rerun gives other results; 2 for invalid input; 3 for a
    numerical failure; 130 for an interruption.
    """
    given = _typed() if arguments is None else list(arguments)
    # This finds environments in modules of the current folder. The folder comes last, so that it replaces no module.
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
    """The words of the process's command line. If a shell asks for completions, print them and exit instead."""
    if VARIABLE not in os.environ:
        return sys.argv[1:]
    from click.shell_completion import shell_complete

    sys.exit(shell_complete(PROGRAM, {}, "apdo", VARIABLE, os.environ[VARIABLE]))


def _stop(message: str, status: int) -> None:
    # One line, even if a name contains line breaks.
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
