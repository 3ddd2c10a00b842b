"""`apdo export`: the policy of a run as a file."""

from pathlib import Path

from apdo.cli import completing, values
from apdo.cli.declaring import Command, Given, option, place, switch
from apdo.cli.evaluate import which


def export(given: Given) -> None:
    """Write the policy, and say which one it is."""
    run, file = given.names
    seed = values.count(given.changes, "seed")
    from apdo.report import runs

    runs.read_description(Path(run))
    import apdo

    policy = apdo.load(run, seed, newest=bool(given.changes.get("newest")))
    policy.save(file)
    print(f"{file}: {which(policy)}")


COMMAND = Command(
    "export",
    export,
    usage="export RUN FILE",
    what="the policy of a run as a plain .npz or as ONNX",
    about="Writes the policy of a run to FILE: a plain .npz, which numpy alone can use, or .onnx, which needs the "
    "extra apdo[onnx] to write. docs/policies.md shows how to read both. The policy is the best that training has "
    "found: of those that are known to keep the limits, the one with the highest return.",
    places=[place("run", completing.folders), place("file", completing.files)],
    options=[
        switch("--newest", "the policy after the last epoch instead"),
        option("--seed", "N", "the seed whose policy is exported (default: the run's first)"),
    ],
    needs="export needs a run folder and a file, as in: apdo export runs/demo policy.npz.",
    fewest=2,
)
