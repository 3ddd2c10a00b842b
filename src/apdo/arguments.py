"""Numbers of a configuration as arguments of a compiled program, instead of constants in it.

A configuration consists of nested frozen dataclasses. Its numbers are its floats, found by their dotted paths
("config.primal.radius", "problem.limits.0"). Everything else is its structure. Inside a program, `put` makes a
configuration whose numbers are arguments, for functions that only compute with them. If Python branches on a number, it
cannot be an argument: tracing raises an error, and the number remains a constant.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def numbers(config: object, above: str = "") -> dict[str, float]:
    """The floats of nested dataclasses and tuples, by path."""
    if isinstance(config, float):
        return {above: config}
    found: dict[str, float] = {}
    for name, value in _parts(config):
        found |= numbers(value, f"{above}.{name}" if above else name)
    return found


def structure(config: object, above: str = "") -> tuple[Any, ...]:
    """Everything except the numbers. It is equal for configurations that differ only in numbers."""
    if isinstance(config, float):
        return ((above, float),)
    parts = _parts(config)
    if not parts and config != ():
        return ((above, config),)
    inner = [entry for name, value in parts for entry in structure(value, f"{above}.{name}" if above else name)]
    return ((above, type(config)), *inner)


def put(config: T, values: Mapping[str, Any], above: str = "") -> T:
    """A copy of the configuration with other numbers, which may be arguments of a program.

    Parts without new numbers are not copied. Values are not checked here, because they were checked when their own
    configurations were made.
    """
    prefix = f"{above}." if above else ""
    if above in values:
        return values[above]
    if not any(name.startswith(prefix) for name in values):
        return config
    parts = {name: put(value, values, prefix + name) for name, value in _parts(config)}
    if isinstance(config, tuple):
        return tuple(parts.values())  # pyright: ignore[reportReturnType]
    # The class's own __init__ is not called, because it would check values, which may be traced. Attributes that it
    # would derive from the fields are therefore missing.
    made = object.__new__(type(config))
    for name, value in parts.items():
        object.__setattr__(made, name, value)
    return made


def _parts(config: object) -> list[tuple[str, Any]]:
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return [(field.name, getattr(config, field.name)) for field in dataclasses.fields(config)]
    if isinstance(config, tuple):
        return [(str(i), value) for i, value in enumerate(config)]
    return []
