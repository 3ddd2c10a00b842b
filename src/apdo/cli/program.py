"""All commands as one Click program, which shells ask for completions. A command is imported only when needed."""

import importlib

import click

from apdo.cli.declaring import Command, switch

NAMES = (
    "train",
    "resume",
    "rerun",
    "evaluate",
    "export",
    "plot",
    "report",
    "reproduce",
    "sweep",
    "watch",
    "solve",
    "dual",
    "list",
    "completion",
)
"""Each name is a module in this package with its `COMMAND`."""
VARIABLE = "_APDO_COMPLETE"
"""The environment variable with which a shell's script asks for completions."""


class Program(click.Group):
    """The commands by their names."""

    def find(self, name: str) -> Command:
        """The command of a known name."""
        return importlib.import_module(f"apdo.cli.{name}").COMMAND

    def commands_in_order(self) -> list[Command]:
        """Every command, in the order of the overview."""
        return [self.find(name) for name in NAMES]

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """The names, for Click."""
        return list(NAMES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> Command | None:  # noqa: ARG002
        """The command of a name, for Click."""
        return self.find(cmd_name) if cmd_name in NAMES else None


PROGRAM = Program(
    "apdo",
    params=[switch("--help", "what a command takes"), switch("--version", "the version of the library")],
    add_help_option=False,
)
"""The program that shells complete."""
