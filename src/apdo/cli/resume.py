"""`apdo resume`: continue a run that was interrupted."""

from pathlib import Path

from apdo.cli import completing, values
from apdo.cli.declaring import Command, Given, option, place, switch
from apdo.cli.train import print_result


def resume(given: Given) -> None:
    """Continue from the newest whole checkpoint."""
    folder, quiet = Path(given.names[0]), bool(given.changes.get("quiet"))
    epochs = values.count(given.changes, "epochs")
    from apdo.report import runs

    runs.read_description(folder)
    from apdo.experiment import runner

    print_result(runner.resume(folder, quiet, epochs), quiet)


COMMAND = Command(
    "resume",
    resume,
    usage="resume RUN",
    what="continue a run that was interrupted",
    about="Goes on with a run that was interrupted, killed or damaged, from its newest whole checkpoint. On the same "
    "machine with the same versions the result is, bit for bit, that of the run that was never interrupted.",
    places=[place("run", completing.folders)],
    options=[option("--epochs", "N", "train for longer than was planned"), switch("--quiet", "no display")],
    needs="resume needs a run folder, as in: apdo resume runs/demo.",
    fewest=1,
)
