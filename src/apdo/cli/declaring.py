"""What a command consists of: its places (RUN, FILE), its options, and how the words of a command line are read."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from apdo.errors import InvalidInput, unknown
from apdo.options import TRUTH

Offer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
"""What a shell offers for the beginning of a word."""
_FURTHER = "apdo.further"
_HELP = ("-h", "--help", "--help-all")


class Option(click.Option):
    """An option whose value stays text until the command checks it."""

    def __init__(self, spelling: str, metavar: str, help: str, offer: Offer | None = None, **more: Any) -> None:  # noqa: ANN401
        self.key = spelling.removeprefix("--").replace("-", "_")
        """The name under which its value is passed on: with "_" for "-", and with dots between nested parts."""
        self.is_switch = bool(more.pop("is_switch", False))
        self.advanced = bool(more.pop("advanced", False))
        """Whether only --help-all shows it."""
        self.missing = str(more.pop("missing", f"{spelling} needs a value."))
        """The error if its value is missing; empty if the command reports this itself."""
        # Click's own name has to be a Python identifier.
        identifier = self.key.replace(".", "__")
        identifier += "_" * (not identifier.isidentifier())
        super().__init__([spelling, identifier], metavar=metavar, help=help, shell_complete=offer, type=str, **more)

    @property
    def spelling(self) -> str:
        """The option as it is typed."""
        return self.opts[0]


def option(
    spelling: str,
    metavar: str,
    help: str,
    offer: Offer | None = None,
    *,
    advanced: bool = False,
    repeated: bool = False,
    missing: str | None = None,
) -> Option:
    """An option of a command itself, with its help. Only --help-all shows options that are `advanced`."""
    refusal = {} if missing is None else {"missing": missing}
    return Option(spelling, metavar, help, offer, advanced=advanced, multiple=repeated, **refusal)


def switch(spelling: str, help: str, *, advanced: bool = False) -> Option:
    """An option that is true or false: --quiet, --no-quiet, --quiet=false and --quiet false."""
    return Option(spelling, "", help, is_switch=True, advanced=advanced, is_flag=False)


def setting(name: str, metavar: str, help: str, offer: Offer | None, is_switch: bool, repeated: bool) -> Option:
    """An option of a configuration, which checks the value itself; `name` has "-" for "_"."""
    return Option(f"--{name}", metavar, help, offer, is_switch=is_switch, multiple=repeated, missing="")


def part(name: str) -> Option:
    """A part of a configuration. It takes no value, and the configuration's own error says so. No shell offers it."""
    return Option(f"--{name}", "", "", missing="", hidden=True)


def place(name: str, offer: Offer, *, several: bool = False) -> click.Argument:
    """A place for a word without dashes: the first, the second, or all of them."""
    return click.Argument([name], required=False, nargs=-1 if several else 1, shell_complete=offer, type=str)


class Given(NamedTuple):
    """The content of a command line."""

    names: list[str]
    """The words without dashes."""
    changes: dict[str, Any]
    """The values of options by their keys: text, or true and false for switches."""
    words: list[str]
    """All words as they were typed, after the command's name."""


class Command(click.Command):
    """A command: its places and options, its help, and the function that it runs."""

    def __init__(
        self,
        name: str,
        does: Callable[[Given], None],
        *,
        usage: str,
        what: str,
        about: str,
        places: Sequence[click.Argument] = (),
        options: Sequence[Option] = (),
        needs: str = "",
        fewest: int = 0,
    ) -> None:
        helps = [
            switch("--help", "show this help"),
            switch("--help-all", "show all options, with those of nested parts"),
        ]
        super().__init__(name, params=[*places, *options, *helps], add_help_option=False, short_help=what)
        # Words beyond the last place are reported here, with an error of our own.
        self.allow_extra_args = True
        self.does, self.usage, self.what, self.about = does, usage, what, about
        self.places, self.options, self.needs, self.fewest = list(places), list(options), needs, fewest

    def further(self, words: list[str], guessing: bool) -> Sequence[Option]:  # noqa: ARG002
        """Options that depend on the words. While a shell completes (`guessing`), nothing may be raised or executed."""
        return ()

    def screen(self, words: list[str], everything: bool) -> str:  # noqa: ARG002
        """The text of --help or --help-all; `words` are the other words of the command line."""
        from apdo.cli import helping

        return helping.screen(self, everything)

    def stray(self, word: str) -> InvalidInput:
        """The error for an unexpected word."""
        return InvalidInput(f"an option was expected where {word!r} stands; options begin with --.")

    def unheard(self, spelling: str, known: Sequence[Option]) -> InvalidInput:
        """The error for an unknown option."""
        return unknown("option", spelling, [one.spelling for one in known])

    def call(self, words: list[str]) -> None:
        """Run the command, or print its help if the words ask for it."""
        asked = [word for word in words if word in _HELP]
        if asked:
            rest = [word for word in words if word not in _HELP]
            print(self.screen(rest, "--help-all" in asked), end="")
            return
        self.does(self.read(words))

    def read(self, words: list[str]) -> Given:
        """Read the words as names and options. InvalidInput says in one sentence what is wrong."""
        try:
            with self.make_context(self.name, list(words)) as ctx:
                return self._given(ctx, words)
        except click.NoSuchOption as error:
            raise self._refused(error.option_name, words) from None
        except click.UsageError as error:
            raise InvalidInput(f"{error.format_message().rstrip('.')}.") from None

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as Click does, with the options that depend on the words, and each option joined to its value."""
        ctx.meta[_FURTHER] = self._unlike_own(self.further(list(args), ctx.resilient_parsing))
        if "--" in args and not ctx.resilient_parsing:
            raise self.stray("--")
        known = self._known(ctx)
        whole, bare = joined(args, known)
        if bare is not None and not ctx.resilient_parsing and bare.missing:
            raise InvalidInput(bare.missing)
        ctx.meta["apdo.bare"] = bare
        return super().parse_args(ctx, whole)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The parameters of the command, and those that depend on the words."""
        return [*super().get_params(ctx), *ctx.meta.get(_FURTHER, ())]

    def _unlike_own(self, further: Sequence[Option]) -> list[Option]:
        own = {one.key for one in self.options}
        return [one for one in further if one.key not in own]

    def _known(self, ctx: click.Context) -> list[Option]:
        return [one for one in self.get_params(ctx) if isinstance(one, Option)]

    def _refused(self, word: str, words: list[str]) -> InvalidInput:
        if not word.startswith("--"):
            return self.stray(word)
        typed = next((one for one in words if one.partition("=")[0].replace("_", "-") == word), word)
        return self.unheard(typed, [*self.options, *self._unlike_own(self.further(words, False))])

    def _given(self, ctx: click.Context, words: list[str]) -> Given:
        changes: dict[str, Any] = {}
        for one in self._known(ctx):
            value = ctx.params.get(str(one.name))
            if value is None or value == ():
                continue
            changes[one.key] = "; ".join(value) if isinstance(value, tuple) else _truth(one, value)
        bare: Option | None = ctx.meta["apdo.bare"]
        if bare is not None:
            changes[bare.key] = None
        names: list[str] = []
        for one in self.places:
            value = ctx.params.get(str(one.name))
            names += value if isinstance(value, tuple) else [] if value is None else [value]
        if len(names) < self.fewest:
            raise InvalidInput(self.needs)
        if ctx.args:
            raise self.stray(ctx.args[0])
        return Given(names, changes, list(words))


def _truth(one: Option, value: str) -> str | bool:
    """A switch's value as true or false. A configuration's own error reports any other value."""
    if not one.is_switch:
        return value
    if value.lower() not in TRUTH and one.missing:
        raise InvalidInput(f"{one.spelling} must be true or false, not {value!r}.")
    return TRUTH.get(value.lower(), value)


def joined(words: Sequence[str], known: Sequence[Option]) -> tuple[list[str], Option | None]:
    """Join each option with its value, `--name=value`; also return the last option whose value is missing.

    Click's parser has no switches that may be followed by a word, takes the next option for a missing value, and does
    not read "_" as "-".
    """
    by_name: Mapping[str, Option] = {one.spelling: one for one in known}
    whole, rest, bare = [], list(words), None
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            whole.append(word)
            continue
        name, equals, value = word.partition("=")
        name = name.replace("_", "-")
        positive = name.replace("--no-", "--", 1)
        if equals:
            whole.append(f"{name}={value}")
        elif name in by_name and by_name[name].is_switch:
            whole.append(f"{name}={rest.pop(0) if rest and rest[0].lower() in TRUTH else 'true'}")
        elif name not in by_name and positive in by_name and by_name[positive].is_switch:
            whole.append(f"{positive}=false")
        elif rest and not rest[0].startswith("--"):
            whole.append(f"{name}={rest.pop(0)}")
        elif name in by_name:
            bare = by_name[name]
        else:
            whole.append(name)
    return whole, bare
