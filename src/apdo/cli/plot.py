"""`apdo plot`: return, cost and multiplier as a picture."""

from pathlib import Path

from apdo.cli import completing
from apdo.cli.declaring import Command, Given, option, place


def plot(given: Given) -> None:
    """Draw the runs, and say where the pictures are."""
    from apdo.report import plot as drawing
    from apdo.report import runs

    read = [runs.read(Path(folder)) for folder in given.names]
    for picture in drawing.plot(read, Path(given.changes.get("out", "curves")), given.changes.get("title")):
        print(picture)


COMMAND = Command(
    "plot",
    plot,
    usage="plot RUN...",
    what="return, cost and multiplier as a picture",
    about="Draws return, cost with its limit and multiplier of one run or several: the interquartile mean over seeds, "
    "its 95 % bootstrap interval, and every seed faintly.",
    places=[place("runs", completing.folders, several=True)],
    options=[
        option(
            "--out",
            "FILE",
            "a .png, .svg or .pdf file, or a name without ending for .png and .svg (default: curves)",
            completing.files,
        ),
        option("--title", "TEXT", "a title above the picture"),
    ],
    needs="plot needs at least one run folder, as in: apdo plot runs/demo.",
    fewest=1,
)
