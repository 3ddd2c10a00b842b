"""The screens of --help, made from the commands themselves."""

import shutil
import textwrap
from collections.abc import Sequence

from apdo.cli.declaring import Command, Option

LINES = 40
"""The most lines of a --help screen."""
_NARROWEST, _WIDEST = 60, 118
_NAMES = 40
"""The most letters of a name in a column."""
_MORE = "apdo COMMAND --help says what a command takes, with its defaults; --help-all shows every option."
_SHELLS = 'TAB completes commands, names and options: eval "$(apdo completion bash)" (or zsh, fish)'


def width() -> int:
    """The number of columns of the terminal, within reason."""
    return max(_NARROWEST, min(_WIDEST, shutil.get_terminal_size((_WIDEST, LINES)).columns))


def overview(commands: Sequence[Command]) -> str:
    """The text of `apdo --help`: the commands, each in one line."""
    usages = [(f"apdo {one.usage}" + " [options]" * bool(one.options), one.what) for one in commands]
    usages.append(("apdo --version", "the version of the library"))
    column = max(len(usage) for usage, _ in usages) + 3
    lines = [f"  {usage:<{column}}{what}" for usage, what in usages]
    first, last = "apdo: constrained reinforcement learning in JAX", "apdo train apdo point-gather --seeds 8 --k-adj 5"
    hints = [*paragraph(_MORE), *paragraph(_SHELLS)]
    return "\n".join([first, "", *lines, "", *hints, "", f"  for instance: {last}", ""])


def screen(command: Command, everything: bool) -> str:
    """The help of a command: its usage, what it does, its options."""
    hidden = [one for one in command.options if one.advanced and not everything]
    shown = [one for one in command.options if one not in hidden]
    parts = [head(command), *(paragraph(text) for text in command.about.split("\n\n"))]
    if shown:
        parts.append(described(shown))
    if hidden:
        parts.append(paragraph(f"--help-all also shows: {', '.join(one.spelling for one in hidden)}."))
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def head(command: Command) -> list[str]:
    """The usage, one line for each way to call the command."""
    return [f"apdo {one}{' [options]' * bool(command.options)}" for one in command.usage.split("\n")]


def described(options: Sequence[Option]) -> list[str]:
    """A command's own options with their help."""
    lines = []
    for one in options:
        name = f"{one.spelling} {one.metavar or ''}".rstrip()
        wrapped = textwrap.wrap(one.help or "", width() - 27, break_on_hyphens=False)
        if len(name) > 24:
            lines.append(f"  {name}")
        else:
            lines.append(f"  {name:<25}{wrapped.pop(0)}")
        lines += [" " * 27 + line for line in wrapped]
    return lines


def one_liners(options: Sequence[Option]) -> list[str]:
    """A command's own options, one line each."""
    named = [(f"{one.spelling} {one.metavar or ''}".rstrip(), one.help or "") for one in options]
    return [f"  {name:<25}{textwrap.shorten(text, width() - 27, placeholder='…')}" for name, text in named]


def table(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Names with descriptions, over as many lines as necessary."""
    column = min(_NAMES, max((len(name) for name, _ in rows), default=0)) + 2
    lines = []
    for name, text in rows:
        wrapped = textwrap.wrap(text, width() - column - 4, break_on_hyphens=False) or [""]
        if len(name) < column:
            lines.append(f"    {name:<{column}}{wrapped.pop(0)}")
        else:
            lines.append(f"    {name}")
        lines += [" " * (column + 4) + line for line in wrapped]
    return lines


def paragraph(text: str) -> list[str]:
    """Text, over as many lines as necessary."""
    return textwrap.wrap(text, width(), initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)


def one_line(name: str, column: int, text: str, after: str) -> str:
    """A row in a single line; the description is cut off if it is too long."""
    begun = f"{name:<{column}}" if len(name) < column or not column else f"{name}  "
    room = width() - 4 - len(begun) - len(after) - 1
    return f"    {begun}{textwrap.shorten(text, max(room, 12), placeholder='…')} {after}"
