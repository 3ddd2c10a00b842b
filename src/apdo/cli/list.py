"""`apdo list`: algorithms, environments, presets."""

from collections.abc import Sequence

from apdo.cli import helping
from apdo.cli.declaring import Command, Given, Option
from apdo.cli.train import algorithm_rows
from apdo.envs import ENVIRONMENTS
from apdo.errors import InvalidInput


def show(_given: Given) -> None:
    """Print every name with its description."""
    from apdo.experiment.presets import PRESETS

    tables = {
        "algorithms": algorithm_rows(),
        "environments": [(name, what) for name, (_, _, what) in ENVIRONMENTS.items()],
        "presets": [(name, preset.what) for name, preset in PRESETS.items()],
    }
    for title, rows in tables.items():
        print("\n".join([title, *helping.table(rows)]))


class Listing(Command):
    """The command that takes no arguments."""

    def stray(self, word: str) -> InvalidInput:
        """The error for any word."""
        return InvalidInput(f"list takes no arguments, and was given {word!r}.")

    def unheard(self, spelling: str, known: Sequence[Option]) -> InvalidInput:  # noqa: ARG002
        """The error for any option."""
        return self.stray(spelling)


COMMAND = Listing(
    "list",
    show,
    usage="list",
    what="algorithms, environments, presets",
    about="Names every algorithm, environment and preset, with what it is and what an alias stands for.",
)
