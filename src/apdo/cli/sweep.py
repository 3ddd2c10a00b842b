"""`apdo sweep`: many runs as one."""

import sys
from collections.abc import Sequence
from pathlib import Path

from apdo.algorithms import ALGORITHMS
from apdo.cli import completing, configured, values
from apdo.cli.declaring import Command, Given, Option, option, place, setting, switch
from apdo.cli.train import WATCHING, taken_watch
from apdo.errors import InvalidInput

_NEEDS = "sweep needs a TOML file, or algorithms and environments, as in: apdo sweep study.toml."
_WHERE = ("on", "address", "cpus", "gpus", "partition", "minutes")


def sweep(given: Given) -> None:
    """Do the runs of a sweep that are not finished; exit status 1 if a run has failed."""
    names, changes = given.names, dict(given.changes)
    for name, value in changes.items():
        if value is None:
            raise InvalidInput(f"--{name.replace('_', '-')} needs a value.")
    dry, quiet, retry = (bool(changes.pop(flag, False)) for flag in ("dry_run", "quiet", "retry"))
    jobs = values.count(changes, "jobs", 0) or None
    together, watched = values.truth(changes, "together"), taken_watch(changes)
    watched.callbacks()  # fails now if an extra is missing
    for taken in ("jobs", "together"):
        changes.pop(taken, None)
    from apdo.sweeps import plan
    from apdo.sweeps import sweep as running

    file = Path(names[0]) if len(names) == 1 else None
    on = {name: changes.pop(name, None) for name in _WHERE}
    wanted = plan.amended(plan.read(file) if file else plan.of_names(*names), changes)
    out = Path(wanted.out) if wanted.out else running.default_out(file)
    chosen = running.Options(out, jobs, together, retry, quiet, running.command(given.words), watched)
    if dry:
        running.dry_run(wanted, chosen)
        return
    if running.run(wanted, chosen, running.executor(out, **on)).failures:
        sys.exit(1)


class Sweep(Command):
    """The command that takes every option of `apdo train`, for any algorithm."""

    def further(self, words: list[str], guessing: bool) -> Sequence[Option]:
        """All options that are typed; the plan checks them. A shell is offered the options of the first algorithm."""
        if guessing:
            leading = [word.split(",")[0] for word in words[:2] if not word.startswith("-")]
            return configured.guessed(leading) if len(leading) == 2 and leading[0] in ALGORITHMS else ()
        typed = {word.partition("=")[0].replace("_", "-") for word in words if word.startswith("--") and word != "--"}
        ours = {one.spelling for one in self.options}
        negated = {one.replace("--", "--no-", 1) for one in ours}
        return [
            setting(one.removeprefix("--"), "", "", None, False, one.removeprefix("--") in configured.REPEATED)
            for one in sorted(typed - ours - negated)
        ]

    def stray(self, word: str) -> InvalidInput:
        """The error for a third name, or for another unexpected word."""
        return InvalidInput(_NEEDS) if not word.startswith("-") else super().stray(word)


COMMAND = Sweep(
    "sweep",
    sweep,
    usage="sweep FILE",
    what="many runs as one: grids, random draws, seeds; resumable",
    about="Also: apdo sweep ALGORITHMS ENVIRONMENTS --out DIR [options]\n\n"
    "Runs algorithms × environments × options × seeds, as a TOML file or the command line says, and writes run "
    "folders, results.csv (and .parquet with pyarrow), pictures and report.html. docs/sweeps.md describes the file. "
    "What is finished in the folder is not run again: a sweep that was stopped goes on, and settings and seeds can be "
    "added. Any option of apdo train may be given too, and is the same for all.\n\n"
    "SIGTERM and Ctrl-C save every run and say how to go on. Exit status 1 if a run has failed; the others go on.",
    places=[place("file", completing.algorithms), place("environments", completing.environments)],
    options=[
        option(
            "--grid",
            "NAME=V,V,...",
            "values of an option, every combination; with spaces between values that hold commas: --grid "
            "'policy.hidden=64,32 32,16'. May be repeated",
            repeated=True,
        ),
        option(
            "--draw",
            "NAME=LOW:HIGH",
            "random values of an option; NAME=log:LOW:HIGH on a logarithmic scale. May be repeated",
            repeated=True,
        ),
        option("--draws", "N", "how many random settings for each point of the grid"),
        option("--seeds", "N", "independent repetitions of every setting, in one program"),
        option("--seed", "N", "the first seed"),
        option("--block", "N", "the most seeds of one run; the others become runs of their own (default: all in one)"),
        option("--preset", "NAME", "a preset, as for apdo train", completing.presets),
        option("--out", "DIR", "where everything goes (default: the file's `out`, or runs/FILE)", completing.folders),
        option("--jobs", "N", "runs at once, each in a process of its own (default: what suits the machine)"),
        option(
            "--together",
            "true|false",
            "whether runs that differ in numbers only (limits, rates, …) share one program (default: on an "
            "accelerator)",
            completing.named(["true", "false"]),
        ),
        option(
            "--on",
            "local|ray|slurm",
            "where the runs are computed: in processes of this machine, on Ray (pip install 'apdo[ray]'), or on Slurm "
            "(pip install 'apdo[slurm]')",
            completing.named(["local", "ray", "slurm"]),
        ),
        option(
            "--address",
            "HOST:PORT",
            "the address of a running Ray cluster (default: start one on this machine, for this sweep)",
            advanced=True,
        ),
        option("--cpus", "N", "CPUs that Ray or Slurm sets apart for each job (default: 1)", advanced=True),
        option(
            "--gpus",
            "N",
            "GPUs that are set apart for each job (default: with Ray one where there are any, with Slurm none)",
            advanced=True,
        ),
        option("--partition", "NAME", "Slurm's partition", advanced=True),
        option("--minutes", "N", "the time limit of a Slurm job (default: a day)", advanced=True),
        switch("--retry", "also continue runs that failed"),
        switch("--dry-run", "only say what would be done, and about how long it takes"),
        *WATCHING,
        switch("--quiet", "no display"),
    ],
    needs=_NEEDS,
    fewest=1,
)
