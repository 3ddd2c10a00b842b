"""`apdo completion`: the script with which a shell completes this command line."""

from apdo.cli import completing
from apdo.cli.declaring import Command, Given, place
from apdo.errors import unknown

SHELLS = ("bash", "zsh", "fish")


def completion(given: Given) -> None:
    """Print the script of a shell."""
    [shell] = given.names
    if shell not in SHELLS:
        raise unknown("shell", shell, SHELLS)
    from click.shell_completion import get_completion_class

    from apdo.cli.program import PROGRAM, VARIABLE

    kind = get_completion_class(shell)
    assert kind is not None
    print(kind(PROGRAM, {}, "apdo", VARIABLE).source())


COMMAND = Command(
    "completion",
    completion,
    usage="completion bash|zsh|fish",
    what="the script by which a shell completes commands, names and options",
    about="Prints the script for a shell. It completes commands, algorithms, environments, presets, options and their "
    'values. For bash, version 4.4 or later, in ~/.bashrc: eval "$(apdo completion bash)"\n\n'
    'For zsh, in ~/.zshrc after compinit: eval "$(apdo completion zsh)"\n\n'
    "For fish: apdo completion fish > ~/.config/fish/completions/apdo.fish",
    places=[place("shell", completing.named(SHELLS))],
    needs="completion needs the name of a shell, as in: apdo completion bash.",
    fewest=1,
)
