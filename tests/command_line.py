"""The command line as a user calls it, but inside the test's own process."""

from apdo import cli


def call(capsys, *arguments):
    """Call a command; returns exit status, standard output and standard error."""
    try:
        cli.main(list(arguments))
        status = 0
    except SystemExit as stop:
        status = stop.code
    out, err = capsys.readouterr()
    return status, out, err
