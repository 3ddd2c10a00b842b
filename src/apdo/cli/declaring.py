"""What a command is made of: its places (RUN, FILE), its options, and how the words of a command line are read."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from apdo.errors import InvalidInput, unknown
from apdo.options import TRUTH

Offer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
"""What a shell may offer for a word that has begun."""
_FURTHER = "apdo.further"
_HELP = ("-h", "--help", "--help-all")


class Option(click.Option):
    """An option whose value is text until its reader checks it."""

    def __init__(self, spelling: str, metavar: str, help: str, offer: Offer | None = None, **more: Any) -> None:  # noqa: ANN401
        self.key = spelling.removeprefix("--").replace("-", "_")
        """Under what name its value is handed on: with "_" for "-", and dots between nested parts."""
        self.is_switch = bool(more.pop("is_switch", False))
        self.advanced = bool(more.pop("advanced", False))
        """Whether only --help-all shows it."""
        self.missing = str(more.pop("missing", f"{spelling} needs a value."))
        """What is said where its value is missing; empty if its reader says it."""
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
    """An option of a command's own, with its help; `advanced` ones are shown by --help-all only."""
    refusal = {} if missing is None else {"missing": missing}
    return Option(spelling, metavar, help, offer, advanced=advanced, multiple=repeated, **refusal)


def switch(spelling: str, help: str, *, advanced: bool = False) -> Option:
    """What is either so or not: --quiet, --no-quiet, --quiet=false and --quiet false."""
    return Option(spelling, "", help, is_switch=True, advanced=advanced, is_flag=False)


def setting(name: str, metavar: str, help: str, offer: Offer | None, is_switch: bool, repeated: bool) -> Option:
    """An option of a configuration, which checks its value itself; `name` has "-" for "_"."""
    return Option(f"--{name}", metavar, help, offer, is_switch=is_switch, multiple=repeated, missing="")


def part(name: str) -> Option:
    """A part of a configuration that takes no value, so that the configuration can say so; no shell offers it."""
    return Option(f"--{name}", "", "", missing="", hidden=True)


def place(name: str, offer: Offer, *, several: bool = False) -> click.Argument:
    """Where a word without dashes stands: the first, the second, or all of them."""
    return click.Argument([name], required=False, nargs=-1 if several else 1, shell_complete=offer, type=str)


class Given(NamedTuple):
    """What a command line says."""

    names: list[str]
    """The words without dashes."""
    changes: dict[str, Any]
    """What the options say, by their keys: texts, and truth values of switches."""
    words: list[str]
    """All of it as it was typed, after the command's name."""


class Command(click.Command):
    """A command: what it takes, what it is for, and what it does."""

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
        helps = [switch("--help", "this"), switch("--help-all", "all options, with those of nested parts")]
        super().__init__(name, params=[*places, *options, *helps], add_help_option=False, short_help=what)
        # More words than there are places for are answered here, in our own words.
        self.allow_extra_args = True
        self.does, self.usage, self.what, self.about = does, usage, what, about
        self.places, self.options, self.needs, self.fewest = list(places), list(options), needs, fewest

    def further(self, words: list[str], guessing: bool) -> Sequence[Option]:  # noqa: ARG002
        """Options that depend on the words; while a shell is `guessing`, nothing may be raised or executed."""
        return ()

    def screen(self, words: list[str], everything: bool) -> str:  # noqa: ARG002
        """What --help or --help-all prints; `words` are those of the command line without them."""
        from apdo.cli import helping

        return helping.screen(self, everything)

    def stray(self, word: str) -> InvalidInput:
        """The error for a word where none belongs."""
        return InvalidInput(f"an option was expected where {word!r} stands; options begin with --.")

    def unheard(self, spelling: str, known: Sequence[Option]) -> InvalidInput:
        """The error for an option that is none."""
        return unknown("option", spelling, [one.spelling for one in known])

    def call(self, words: list[str]) -> None:
        """Do what the words say, or print the help that they ask for."""
        asked = [word for word in words if word in _HELP]
        if asked:
            rest = [word for word in words if word not in _HELP]
            print(self.screen(rest, "--help-all" in asked), end="")
            return
        self.does(self.read(words))

    def read(self, words: list[str]) -> Given:
        """The words as names and options; InvalidInput in one sentence where they are neither."""
        try:
            with self.make_context(self.name, list(words)) as ctx:
                return self._given(ctx, words)
        except click.NoSuchOption as error:
            raise self._refused(error.option_name, words) from None
        except click.UsageError as error:
            raise InvalidInput(f"{error.format_message().rstrip('.')}.") from None

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Click's parsing, with what depends on the words, and with each option and its value in one word."""
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
        """Those of the command, and those that depend on the words."""
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
    """A switch's value as a truth value; a configuration's own says itself what is wrong with another."""
    if not one.is_switch:
        return value
    if value.lower() not in TRUTH and one.missing:
        raise InvalidInput(f"{one.spelling} must be true or false, not {value!r}.")
    return TRUTH.get(value.lower(), value)


def joined(words: Sequence[str], known: Sequence[Option]) -> tuple[list[str], Option | None]:
    """The words with each option and its value in one, `--name=value`, and the last option whose value is missing.

    The parser has no switches that may be followed by a word, takes a next option for a value where that is missing,
    and does not read "_" as "-".
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
