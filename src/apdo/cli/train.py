"""`apdo train`: train an algorithm on an environment into a run folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apdo import algorithms, envs, own
from apdo.algorithms import ALGORITHMS, stands_for
from apdo.cli import completing, configured, helping, values
from apdo.cli.declaring import Command, Given, Option, option, place, switch
from apdo.envs import ENVIRONMENTS
from apdo.errors import InvalidInput, unknown

if TYPE_CHECKING:
    from apdo.experiment.mirrors import Watch
    from apdo.experiment.result import Result

WATCHING = (
    switch("--tensorboard", "also write event files for TensorBoard (pip install 'apdo[tensorboard]')"),
    option(
        "--wandb",
        "PROJECT",
        "also log to Weights & Biases (pip install 'apdo[wandb]')",
        missing="--wandb needs the name of a project.",
    ),
    option("--stop-within", "N", "stop when every cost has been within its limit for N epochs"),
)
"""Options that say how a run is watched."""
_NEEDS = "train needs an algorithm and an environment first, as in: apdo train apdo point-gather."
_RUN_LINES = 8
_TASK_LINES = 5
"""Lines of --help for the options of the run and of the environment; the algorithm gets the rest of the screen."""


def train(given: Given) -> None:
    """Train, draw the curves of the run, and say where everything is."""
    algorithm, environment = (own.whole(name) for name in given.names)
    changes = dict(given.changes)
    watched = taken_watch(changes).callbacks()
    preset, out, quiet = changes.pop("preset", None), changes.pop("out", None), bool(changes.pop("quiet", False))
    goes_on = changes.pop("resume", False)
    from apdo.experiment import settings

    experiment = settings.make_experiment(algorithm, environment, changes, preset)
    folder = Path(out) if out else None
    if goes_on and folder is None:
        raise InvalidInput("--resume needs --out, the folder of the run to go on with.")
    if not goes_on:
        values.check_new(folder)
    from apdo.experiment import runner

    if experiment.note and not quiet:
        print(experiment.note)
    if goes_on and folder is not None:
        result = runner.train(experiment, folder, quiet, watched)
    else:
        result = runner.run(experiment, folder, quiet, watched)
    print_result(result, quiet)


def taken_watch(changes: dict[str, Any]) -> "Watch":
    """Take the options that say how a run is watched out of `changes`."""
    from apdo.experiment.mirrors import Watch

    stop = values.count(changes, "stop_within", 0) or 0
    changes.pop("stop_within", None)
    return Watch(bool(changes.pop("tensorboard", False)), str(changes.pop("wandb", "")), stop)


def print_result(result: "Result", quiet: bool) -> None:
    """Draw the curves of a run, and say where everything is."""
    from apdo.report import plot, runs

    pictures = plot.plot([runs.read(result.path)], result.path / "curves", None)
    if not quiet:
        print(f"results: {result.path} (run.json, metrics.jsonl, checkpoints)")
        print(f"picture: {', '.join(str(picture) for picture in pictures)}")
        for one in result.best:
            print(f"best:    seed {one.seed}, {one.words()}: {one.figures()}")
        print(f"next:    apdo evaluate {result.path}")


def algorithm_rows() -> list[tuple[str, str]]:
    """Every algorithm with its description, and for an alias with what it stands for."""
    rows = ((name, found.what, stands_for(name)) for name, found in ALGORITHMS.items())
    return [(name, f"{what}: {alias}" if alias else what) for name, what, alias in rows]


def _is_environment(name: str) -> bool:
    return name in ENVIRONMENTS or envs.is_gymnasium_id(name) or own.is_file(name)


def _leading(words: Sequence[str]) -> list[str]:
    """The first two words, unless they are options."""
    names = []
    for word in words[:2]:
        if word.startswith("-"):
            break
        names.append(word)
    return names


class Train(Command):
    """The command whose options depend on the named algorithm and environment."""

    def further(self, words: list[str], guessing: bool) -> Sequence[Option]:
        """The options of the run, of the algorithm and of the environment."""
        names = _leading(words)
        if guessing:
            return configured.guessed(names) if len(names) == 2 else ()  # without executing a file
        names = [own.whole(name) for name in names]
        if names:
            algorithms.check_name(names[0])
        if len(names) < 2:
            raise InvalidInput(_NEEDS)
        envs.check_name(names[1])
        return configured.of_names(*names)

    def unheard(self, spelling: str, known: Sequence[Option]) -> InvalidInput:
        """The error for an unknown option, with the names that configurations, Python and sweep files have."""
        name = spelling.removeprefix("--").partition("=")[0].replace("-", "_")
        return unknown("option", name, [one.key for one in known])

    def screen(self, words: list[str], everything: bool) -> str:
        """The options with the defaults in force for the algorithm, the environment and the preset."""
        names = [own.whole(name) for name in _leading(words)]
        if not names:
            return self._without_names(everything)
        algorithms.check_name(names[0])
        if len(names) < 2 or not _is_environment(names[1]):
            names = [names[0], next(iter(ENVIRONMENTS))]
        try:
            changes = dict(self.read([*names, *words[len(_leading(words)) :]]).changes)
        except InvalidInput:
            changes = {}
        preset = changes.get("preset")
        own_keys = {one.key for one in self.options}
        changes = {name: value for name, value in changes.items() if name not in own_keys}
        parts = configured.in_force(names[0], names[1], changes, preset)
        return self._all(parts) if everything else self._screen(parts, names)

    def _without_names(self, everything: bool) -> str:
        hint = "Give an algorithm (and an environment) before --help to see its options with their defaults:"
        listed = [*helping.paragraph(hint), *helping.table(algorithm_rows())]
        return helping.screen(self, everything) if everything else self._short() + "\n" + "\n".join(listed) + "\n"

    def _short(self) -> str:
        lines = [*helping.head(self), "", *helping.one_liners(self.options)]
        return "\n".join(lines) + "\n"

    def _screen(self, parts: list[configured.Part], names: list[str]) -> str:
        run, algorithm, task = parts
        lines = [*helping.head(self), "", *helping.one_liners(self.options)]
        lines += ["", "  the run, with the defaults in force", *configured.brief(run.own_first(), _RUN_LINES)]
        last = ["", f"  {task.title}", *configured.brief(task.own_first(), _TASK_LINES)] if task.rows else []
        parted = configured.nested([*algorithm.rows, *task.rows])
        shown = " ".join(own.short(name) for name in names)
        more = f"apdo train {shown} --help-all explains every option" + (f", with {parted}." if parted else ".")
        last += ["", *helping.paragraph(more)]
        title = helping.paragraph(algorithm.title)
        room = helping.LINES - len(lines) - len(last) - len(title) - 1
        lines += ["", *title, *configured.brief(algorithm.own_first(), max(room, 4)), *last]
        return "\n".join(lines) + "\n"

    def _all(self, parts: list[configured.Part]) -> str:
        sections = (f"\n  {part.title}\n" + "\n".join(configured.explained(part.rows)) + "\n" for part in parts)
        return helping.screen(self, True) + "".join(sections)


COMMAND = Train(
    "train",
    train,
    usage="train ALGORITHM ENVIRONMENT",
    what="train, with a live display, into a run folder",
    about="Trains and writes a run folder: run.json, metrics.jsonl (a line per epoch and seed), checkpoints/, "
    "curves.png, curves.svg.\n\n"
    "ENVIRONMENT is one of `apdo list`, or a Gymnasium id (pip install 'apdo[gymnasium]'), with a cost if it "
    "reports none: apdo train apdo Pendulum-v1 --cost 'abs(obs[2]) > 4' --limit 25. --cost may be repeated.\n\n"
    "Either may be your own: mine.py, or mine.py:name for what the file calls name (docs/own-algorithm.md).\n\n"
    "An option that is true or false is written --explore, --no-explore, --explore true or --explore=false.\n\n"
    "SIGTERM and Ctrl-C finish the epoch, save, and say how to go on; a second Ctrl-C stops at once.",
    places=[place("algorithm", completing.algorithms), place("environment", completing.environments)],
    options=[
        option(
            "--preset",
            "NAME",
            "a set of options: paper, the paper's parameters; fast, few samples; demo, a first look (apdo list)",
            completing.presets,
        ),
        option(
            "--out",
            "DIR",
            "the run folder (default: runs/ALGORITHM-ENVIRONMENT-TIME); must not exist",
            completing.folders,
        ),
        switch("--resume", "continue the run in DIR, if there is one with the same configuration"),
        *WATCHING,
        switch("--quiet", "no display"),
    ],
    needs=_NEEDS,
    fewest=2,
)
