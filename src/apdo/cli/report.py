"""`apdo report`: runs and their statistics as a page for the browser."""

import shlex
from pathlib import Path

from apdo.cli import completing
from apdo.cli.declaring import Command, Given, option, place


def report(given: Given) -> None:
    """Write the page, and say where it is."""
    from apdo.report import page

    document = page.of_runs([Path(folder) for folder in given.names], shlex.join(["apdo", "report", *given.words]))
    print(page.write(document, Path(given.changes.get("out", "report.html"))))


COMMAND = Command(
    "report",
    report,
    usage="report RUN...",
    what="curves, statistics and settings, as a page for the browser",
    about="Writes one self-contained HTML page about runs, grouped by environment and algorithm: interactive curves, "
    "the results over seeds, every setting. A folder that holds run folders stands for all of them; runs that differ "
    "only in their seeds are taken together.",
    places=[place("runs", completing.folders, several=True)],
    options=[option("--out", "FILE", "the page (default: report.html)", completing.files)],
)
