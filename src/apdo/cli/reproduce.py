"""`apdo reproduce`: the paper's experiments."""

import shlex

from apdo.cli import completing, values
from apdo.cli.declaring import Command, Given, option, place
from apdo.errors import Interrupted, InvalidInput

TOGETHER = ("true", "false")


def reproduce(given: Given) -> None:
    """Run what is not finished of a study, and write its report."""
    changes, study = given.changes, (given.names or ["all"])[0]
    together, seeds = values.truth(changes, "together"), values.count(changes, "seeds")
    jobs, out = values.count(changes, "jobs"), values.path(changes, "out")
    if jobs == 0:
        raise InvalidInput("--jobs must be at least 1, not 0.")
    from apdo.experiment.reproduce import plan
    from apdo.sweeps import studies

    wanted = plan(study, seeds, changes.get("scale", "full"), out)
    command = shlex.join(["apdo", "reproduce", *given.words])
    try:
        studies.run(wanted, command, together, jobs)
    except Interrupted as stopped:
        before, _, _ = str(stopped).partition(" Go on with:")
        raise Interrupted(f"{before} Go on with: {command}") from None


COMMAND = Command(
    "reproduce",
    reproduce,
    usage="reproduce [STUDY]",
    what="the paper's experiments with statistics, as a resumable batch",
    about="Runs the paper's experiments on point-gather and writes pictures (PNG, SVG), results.json and report.html: "
    "APDO against PDO and CPO (fig1), when to adjust (fig2), the step of dual ascent (step-size), the optimal "
    "multiplier by holding it fixed (lambda-star), or all of them (all, the default). What is finished in the folder "
    "is not run again; more seeds are added to those that are there.",
    places=[place("study", completing.named(["fig1", "fig2", "step-size", "lambda-star", "all"]))],
    options=[
        option("--seeds", "N", "independent repetitions (default: 10; small: 3)"),
        option(
            "--scale",
            "full|small",
            "the paper's sizes, or a miniature for two cores that ends within ten minutes (default: full)",
            completing.named(["full", "small"]),
        ),
        option(
            "--together",
            "true|false",
            "whether arms that differ in numbers only (the step of dual ascent, the multiplier that is held fixed) run "
            "in one program (default: on an accelerator)",
            completing.named(TOGETHER),
        ),
        option(
            "--jobs",
            "N",
            "programs at once, each in a process of its own (default: 1 on a CPU, which a single one fills, and up to "
            "4 on an accelerator, of which the many small steps of an adjustment leave most idle)",
        ),
        option("--out", "DIR", "where runs and results go (default: runs/reproduce-SCALE)", completing.folders),
    ],
)
