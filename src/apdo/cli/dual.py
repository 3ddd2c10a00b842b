"""`apdo dual`: what each limit costs, estimated from logged data alone."""

from collections.abc import Sequence
from pathlib import Path

from apdo import options
from apdo.cli import completing, configured, helping, values
from apdo.cli.declaring import Command, Given, Option, option, place, switch
from apdo.errors import InvalidInput, unknown

_NEEDS = "dual needs a run folder or a file of logged data first, as in: apdo dual runs/demo."


def dual(given: Given) -> None:
    """Print the estimate with the learners' spread and the checks."""
    source, changes = given.names[0], dict(given.changes)
    quiet, out, export = bool(changes.pop("quiet", False)), changes.pop("out", ""), changes.pop("export", "")
    run_seed = values.count(changes, "run_seed")
    changes.pop("run_seed", None)
    from apdo.experiment import multipliers

    multipliers.configure(changes)
    if export:
        from apdo import datasets

        data, _ = multipliers.open_source(source, run_seed)
        datasets.save(data, export)
        print(f"{export}: {data.samples:,} transitions of {data.episodes:,} episodes")
        return
    prefix = Path(out) if out else None
    if prefix is not None and not prefix.parent.is_dir():
        raise InvalidInput(f"the folder {prefix.parent} for {prefix.name} does not exist.")
    found = multipliers.estimate(source, changes, run_seed=run_seed, quiet=quiet)
    print("\n".join(found.describe()))
    if prefix is not None:
        from apdo.report import multipliers as drawing

        results = drawing.save(found.plain(), prefix)
        pictures = drawing.plot(found.plain(), prefix, f"{Path(source).name}: what each limit costs")
        print(f"\nresults: {results}\npicture: {', '.join(str(picture) for picture in pictures)}")


class Dual(Command):
    """The command whose options include those of the estimate."""

    def further(self, words: list[str], guessing: bool) -> Sequence[Option]:
        """The options of the estimate, of its learners and of its checks."""
        if words and not words[0].startswith("-"):
            return configured.settings_of(_rows())
        if guessing:
            return ()
        raise InvalidInput(_NEEDS)

    def unheard(self, spelling: str, known: Sequence[Option]) -> InvalidInput:
        """The error for an unknown option, with the names that the configuration has."""
        name = spelling.removeprefix("--").partition("=")[0].replace("-", "_")
        return unknown("option", name, [one.key for one in known])

    def screen(self, words: list[str], everything: bool) -> str:  # noqa: ARG002
        """The command's own options, and those of the estimate with their defaults."""
        rows, own = _rows(), helping.screen(self, everything)
        if everything:
            return own + "\n" + "\n".join(configured.explained(rows)) + "\n"
        main = [row for row in rows if "." not in row.name]
        more = helping.paragraph(f"--help-all explains every option, with {configured.nested(rows)}.")
        room = helping.LINES - own.count("\n") - len(more) - 2
        return own + "\n" + "\n".join([*configured.brief(main, max(room, 4)), "", *more]) + "\n"


def _rows() -> list[options.Row]:
    from apdo.experiment import multipliers

    return options.rows(multipliers.Config())


COMMAND = Dual(
    "dual",
    dual,
    usage="dual RUN_OR_FILE",
    what="what each limit costs, estimated from logged data alone",
    about="Estimates the optimal multipliers, what one more unit of each limit is worth in return, from logged "
    "transitions alone: the buffer in a run's newest checkpoint (apdo, pd-ddpg, sac-lag), or a .npz or .parquet file "
    "of your own (docs/dual-estimation.md describes its content). Prints the estimate, its learners' spread, and "
    "checks: critics against logged episodes, the learners against each other, actors against logged actions. Where "
    'the data cannot support an answer it says "unsupported", and why; the exit status is 0 then too. The learners '
    "have options of their own, such as --learner.cloning.",
    places=[place("source", completing.files)],
    options=[
        option("--out", "PREFIX", "also write PREFIX.json, PREFIX.png and PREFIX.svg", completing.files),
        option("--export", "FILE", "write the data to FILE, .npz or .parquet, and estimate nothing", completing.files),
        option("--run-seed", "N", "the seed whose buffer is read, if a run has several (default: the first)"),
        switch("--quiet", "no display while it works"),
    ],
    needs=_NEEDS,
    fewest=1,
)
