"""Configuration fields with their own documentation.

A configuration is a frozen dataclass in the module that reads it. Each field is an `option` with a default, its
meaning, and the source of the default. The command line's options, help and errors are generated from it.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias, TypeVar, cast, runtime_checkable

from apdo.errors import InvalidInput, unknown

Value: TypeAlias = Any
"""The value of an option, as it is stored or as it was given. Its field determines the possible types."""


@runtime_checkable
class Configuration(Protocol):
    """An instance of a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


T = TypeVar("T")
C = TypeVar("C", bound=Configuration)

LARGEST_WHOLE = 2**31 - 1
LARGEST = 1e30
"""The largest integer and float allowed: programs compute with 32 bits."""
_MOST_ENTRIES = 64
TRUTH = {"true": True, "yes": True, "false": False, "no": False}
"""Words for Boolean values."""

PAPER = "the paper"
PUBLISHED = "the published CPO code"
OURS = "our choice"


def option(
    default: T,
    help: str,
    source: str,
    *,
    choices: Mapping[str, Any] | None = None,
    above: float | None = None,
    within: tuple[float, float] | None = None,
    most: float | None = None,
    named: Mapping[str, float] | None = None,
) -> T:
    """A dataclass field with its meaning and the source of its default.

    `choices` maps each allowed name to its value; for a nested configuration the values are classes. A number must be
    strictly greater than `above` and at most `most`, or be within the closed interval `within`. Values of `named` are
    allowed too, and can be given by their names.
    """
    bounds = {"above": above, "within": within, "most": most, "named": named}
    metadata = {"help": help, "source": source, "choices": choices, **bounds}
    return dataclasses.field(default=default, metadata=metadata)


def one_of(*names: str) -> dict[str, str]:
    """Choices whose values are their names."""
    return {name: name for name in names}


def describe(config: Configuration) -> dict[str, Any]:
    """The configuration as nested plain values for JSON, with the chosen kind of each nested choice."""
    plain: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, Configuration):
            kind = _kind(field, value)
            plain[field.name] = ({"kind": kind} if kind else {}) | describe(value)
        else:
            plain[field.name] = list(value) if isinstance(value, tuple) else value
    return plain


def flatten(config: Configuration) -> dict[str, Any]:
    """Every option by its dotted name: `override(type(config)(), flatten(config))` gives the configuration back."""
    flat: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, Configuration):
            kind = _kind(field, value)
            if kind:
                flat[field.name] = kind
            flat |= {f"{field.name}.{name}": inner for name, inner in flatten(value).items()}
        else:
            flat[field.name] = value
    return flat


class Row(NamedTuple):
    """An option as its help shows it."""

    name: str
    """The name on the command line, without leading dashes."""
    choices: tuple[str, ...]
    meaning: str
    default: str
    source: str
    """The source of the default."""
    given: tuple[tuple[str, str], ...]
    """The choices under which the option exists, as pairs (option, choice), innermost first."""


def rows(config: Configuration, chooser: str = "", prefix: str = "") -> list[Row]:
    """All options, including those of every choice.

    If the enclosing configuration has changed a default, the row has the changed default and the source `chooser`.
    """
    found = []
    for field in dataclasses.fields(config):
        value, about = getattr(config, field.name), field.metadata
        name = f"{prefix}{field.name}".replace("_", "-")
        choices = about["choices"] or {}
        source = about["source"] if value == field.default or not chooser else chooser
        if not isinstance(value, Configuration):
            found.append(Row(name, tuple(choices), about["help"], _show(value), source, ()))
            continue
        if choices:
            found.append(Row(name, tuple(choices), about["help"], cast(str, _kind(field, value)), source, ()))
        for kind, choice in (choices or {"": type(value)}).items():
            inside = rows(value if choice is type(value) else choice(), source, f"{prefix}{field.name}.")
            found += [row._replace(given=(*row.given, (name, kind))) if kind else row for row in inside]
    return found


def override(config: C, changes: Mapping[str, Any]) -> C:
    """The configuration with some options changed, by dotted name ("primal", "primal.radius"); values may be strings.

    Names are checked after all choices are made, because choices determine which options exist. Values are checked
    against the options' bounds.
    """
    # Plain options are set together, because some are checked against each other, such as the lengths of two lists.
    config = _set_plain(config, {name: value for name, value in changes.items() if "." not in name})
    for name in sorted((name for name in changes if "." in name), key=lambda name: name.count(".")):
        config = _set(config, name.split("."), changes[name], name)
    return config


def _set_plain(config: C, changes: Mapping[str, Any]) -> C:
    fields = {field.name: field for field in dataclasses.fields(config)}
    values = {}
    for name, value in changes.items():
        if name not in fields:
            raise unknown("option", name, flatten(config))
        values[name] = _converted(fields[name], getattr(config, name), value, name)
    return dataclasses.replace(config, **values) if values else config


def _set(config: C, path: list[str], value: Value, whole: str) -> C:
    fields = {field.name: field for field in dataclasses.fields(config)}
    known = flatten(config)
    prefix = whole[: len(whole) - len(".".join(path))]
    if path[0] not in fields:
        raise unknown("option", whole, [prefix + name for name in known])
    field, current = fields[path[0]], getattr(config, path[0])
    nested = isinstance(current, Configuration)
    if len(path) > 1:
        if not nested:
            raise unknown("option", whole, [prefix + name for name in known])
        return dataclasses.replace(config, **{path[0]: _set(current, path[1:], value, whole)})
    return dataclasses.replace(config, **{path[0]: _converted(field, current, value, whole)})


def _converted(field: dataclasses.Field[Any], current: Value, value: Value, name: str) -> Value:
    """The value as the option stores it, after checks."""
    if isinstance(current, Configuration):
        return _choose(field, current, value, name)
    parsed = _parse(field, current, value, name)
    _check(field, parsed, name)
    return parsed


def _choose(field: dataclasses.Field[Any], current: Configuration, value: Value, name: str) -> Configuration:
    """A nested configuration, given as an object or by the name of its kind. The current kind keeps its options."""
    if isinstance(value, Configuration):
        return value
    choices = field.metadata["choices"]
    if choices is None:
        raise InvalidInput(f"{name} has options of its own ({name}.…) and takes no value.")
    if not isinstance(value, str) or value not in choices:
        raise unknown(f"value for {name}", str(_brief(value)), choices)
    return current if choices[value] is type(current) else choices[value]()


def _parse(field: dataclasses.Field[Any], current: Value, value: Value, name: str) -> Value:
    """The value, converted to the type of the default."""
    choices = field.metadata["choices"]
    if choices is not None and (not isinstance(value, str) or value not in choices):
        raise unknown(f"value for {name}", str(_brief(value)), choices)
    kind = type(field.default)
    named = field.metadata.get("named") or {}
    if isinstance(value, str) and value in named:
        return named[value]
    try:
        if kind is tuple:
            return _numbers(field, value)
        if kind is bool and isinstance(value, str):
            return TRUTH[value.lower()]
        if kind is int and not isinstance(value, bool):
            return _whole(value)
        if kind is float and not isinstance(value, bool):
            return float(value)
        if kind is str and isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if isinstance(value, kind):
            return value
        raise ValueError
    except (KeyError, TypeError, ValueError, OverflowError):
        wanted = {int: "a whole number", float: "a number", bool: "true or false", tuple: "numbers with commas"}
        shown = wanted.get(kind, "text")
        raise InvalidInput(f"{name} must be {shown}, such as {_show(current)}, not {_brief(value)!r}.") from None


def _numbers(field: dataclasses.Field[Any], value: Value) -> tuple[Any, ...]:
    parts = [part for part in value.split(",") if part.strip()] if isinstance(value, str) else list(value)
    if len(parts) > _MOST_ENTRIES:
        raise ValueError
    default = cast(tuple[Any, ...], field.default)
    whole = bool(default) and all(isinstance(part, int) for part in default)
    return tuple(_whole(part) if whole else float(part) for part in parts)


def _whole(value: Value) -> int:
    number = float(value)
    if number != int(number):
        raise ValueError
    return int(value) if isinstance(value, int) else int(number)


def _check(field: dataclasses.Field[Any], value: Value, name: str) -> None:
    above, within, most = (field.metadata.get(bound) for bound in ("above", "within", "most"))
    if value in (field.metadata.get("named") or {}).values():
        return
    for number in value if isinstance(value, tuple) else (value,):
        if not isinstance(number, int | float):
            continue
        if math.isnan(number):
            raise InvalidInput(f"{name} must be a number, not {number}.")
        largest = most if most is not None else LARGEST if isinstance(number, float) else LARGEST_WHOLE
        if abs(number) > largest:
            raise InvalidInput(f"{name} must be finite and at most {largest:g}, not {number:g}.")
        if above is not None and not number > above:
            raise InvalidInput(f"{name} must be greater than {above}, not {number}.")
        if within is not None and not within[0] <= number <= within[1]:
            bounds = f"at least {within[0]}" if within[1] == math.inf else f"between {within[0]} and {within[1]}"
            raise InvalidInput(f"{name} must be {bounds}, not {number}.")


def _kind(field: dataclasses.Field[Any], value: Value) -> str | None:
    choices = field.metadata["choices"] or {}
    return next((name for name, choice in choices.items() if choice is type(value)), None)


def _brief(value: Value) -> Value:
    """The value, or the beginning of a long one."""
    text = str(value)
    return value if len(text) <= 60 else text[:60] + "…"


def _show(value: Value) -> str:
    return ",".join(str(part) for part in value) if isinstance(value, tuple) else str(value)
