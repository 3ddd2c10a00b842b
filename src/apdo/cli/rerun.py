"""`apdo rerun`: repeat a run, and compare the results."""

import sys
from pathlib import Path

from apdo.cli import completing, values
from apdo.cli.declaring import Command, Given, option, place, switch


def rerun(given: Given) -> None:
    """Run the experiment again in another folder; exit status 1 if any metric differs."""
    folder = Path(given.names[0])
    out = values.path(given.changes, "out")
    if out is None:
        out = folder.resolve().parent / f"{folder.resolve().name}-again"
    from apdo.report import runs

    runs.read_description(folder)
    values.check_new(out)
    from apdo.experiment import rerun as running

    matched, said = running.rerun(folder, out, quiet=bool(given.changes.get("quiet")))
    print(said)
    if not matched:
        sys.exit(1)


COMMAND = Command(
    "rerun",
    rerun,
    usage="rerun RUN",
    what="repeat a run, and compare the results",
    about="Runs the experiment that run.json describes again, into another folder, and says whether every metric of "
    "every epoch came out the same. Exit status 1 if not.",
    places=[place("run", completing.folders)],
    options=[
        option("--out", "DIR", "the other folder (default: RUN-again); must not exist", completing.folders),
        switch("--quiet", "no display"),
    ],
    needs="rerun needs a run folder, as in: apdo rerun runs/demo.",
    fewest=1,
)
