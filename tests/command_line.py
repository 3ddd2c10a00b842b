"""The command line as a user meets it, called within the test's own process."""

from apdo import cli


def call(capsys, *arguments):
    """Exit status, standard output and standard error."""
    try:
        cli.main(list(arguments))
        status = 0
    except SystemExit as stop:
        status = stop.code
    out, err = capsys.readouterr()
    return status, out, err
