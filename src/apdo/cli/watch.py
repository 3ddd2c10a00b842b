"""`apdo watch`: follow running runs."""

from pathlib import Path

from apdo.cli import completing, values
from apdo.cli.declaring import Command, Given, option, place, switch


def watch(given: Given) -> None:
    """Follow the runs until all are over."""
    from apdo.sweeps import watching

    port = values.count(given.changes, "page")
    watching.watch(Path(given.names[0]), port, once=bool(given.changes.get("once")))


COMMAND = Command(
    "watch",
    watch,
    usage="watch RUN_OR_SWEEP",
    what="follow running runs, on the terminal or on a page",
    about="Follows a run, or all runs of a folder, until they are over. It only reads, so it can run on "
    "any machine that can read the folder.",
    places=[place("folder", completing.folders)],
    options=[
        option("--page", "PORT", "also show curves on http://127.0.0.1:PORT/; 0 takes a free port"),
        switch("--once", "print the present state once, and end"),
    ],
    needs="watch needs a folder of a run or of a sweep, as in: apdo watch runs/demo.",
    fewest=1,
)
