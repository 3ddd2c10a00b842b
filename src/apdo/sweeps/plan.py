"""The plan of a sweep: algorithms × environments × options, as a grid, as random draws, or as both crossed.

    algorithms = ["pdo", "cpo"]
    environments = ["point-gather"]
    seeds = 4

    [options]                # the same for every run
    epochs = 20

    [grid]                   # every combination
    limits = [0.1, 0.2, 0.4]

    [draws]                  # a number of random settings, crossed with the grid
    count = 8
    trace = {low = 0.9, high = 1.0}

    [for.pdo.draws]          # for one algorithm only; [for.pdo.options] and [for.pdo.grid] exist too
    dual_step = {low = 0.01, high = 1.0, scale = "log"}

The i-th draw of an option depends only on the option's name, i and the sweep's `draws.seed`. So more draws do not
change the earlier ones. Draws have four digits, so that a folder's name can show all of them.
"""

import dataclasses
import itertools
import math
import re
import tomllib
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from apdo import files
from apdo.errors import InvalidInput, unknown
from apdo.experiment import settings
from apdo.experiment.settings import Experiment

T = TypeVar("T")

_MOST_FILE = 2**20
_MOST_RUNS = 100_000
_LONGEST = 120
"""The most letters of a folder's name."""
_TOP = ("algorithms", "environments", "seeds", "seed", "block", "preset", "out", "options", "grid", "draws", "for")
_PART = ("options", "grid", "draws")
_DRAW = ("low", "high", "scale", "whole", "values")
_SEEDS = ("seeds", "seed")


@dataclasses.dataclass(frozen=True)
class Draw:
    """The distribution of one option's random values: the numbers from `low` to `high`, or a list of values."""

    low: float = 0.0
    high: float = 1.0
    log: bool = False
    """Whether the logarithm is uniformly distributed, instead of the number itself."""
    whole: bool = False
    values: tuple[Any, ...] = ()

    def value(self, *place: int) -> Any:  # noqa: ANN401
        """The value at a place. The same place always gives the same value."""
        rng = np.random.default_rng(place)
        if self.values:
            return self.values[int(rng.integers(len(self.values)))]
        share = rng.uniform()
        low, high = (math.log(end) if self.log else end for end in (self.low, self.high))
        number = low + share * (high - low)
        number = math.exp(number) if self.log else number
        return round(number) if self.whole else float(f"{number:.4g}")


@dataclasses.dataclass(frozen=True)
class Part:
    """Options with one value, with several values, and with random values, by dotted name."""

    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    grid: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)
    draws: Mapping[str, Draw] = dataclasses.field(default_factory=dict)

    def __or__(self, other: "Part") -> "Part":
        """This part, with the other one overriding it."""
        return Part(
            options=_without(self.options, other.names) | {**other.options},
            grid=_without(self.grid, other.names) | {**other.grid},
            draws=_without(self.draws, other.names) | {**other.draws},
        )

    @property
    def names(self) -> set[str]:
        """The names of all options in it."""
        return {*self.options, *self.grid, *self.draws}


def _without(entries: Mapping[str, T], names: set[str]) -> dict[str, T]:
    return {name: value for name, value in entries.items() if name not in names}


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A whole sweep."""

    algorithms: tuple[str, ...]
    environments: tuple[str, ...]
    common: Part = Part()
    own: Mapping[str, Part] = dataclasses.field(default_factory=dict)
    """The parts that hold for one algorithm only, by its name."""
    seeds: int = 1
    seed: int = 0
    """The first seed."""
    block: int = 0
    """The most seeds of one run, which is one program; 0: no limit."""
    draws: int = 0
    """The number of random settings for each point of the grid."""
    draw_seed: int = 0
    preset: str | None = None
    out: str | None = None


@dataclasses.dataclass(frozen=True)
class Setting:
    """One point of a sweep: a run without its seeds."""

    name: str
    """The name of its folder."""
    experiment: Experiment
    varied: Mapping[str, Any]
    """The options that are not the same everywhere, with their values in this setting."""

    def with_seeds(self, first: int, count: int) -> Experiment:
        """The run on consecutive seeds. It keeps only its newest checkpoint."""
        own = dataclasses.replace(self.experiment.settings, seed=first, seeds=count, keep=1)
        return dataclasses.replace(self.experiment, settings=own)


# Reading.


def read(file: Path) -> Sweep:
    """Read the sweep from a TOML file."""
    if not file.exists():
        raise InvalidInput(f"there is no sweep file {file}.")
    try:
        given = tomllib.loads(files.read(file, _MOST_FILE).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{file} is not valid TOML: {error}.") from None
    try:
        return parse(given)
    except InvalidInput as error:
        raise InvalidInput(f"{file}: {error}") from None


def parse(given: Mapping[str, Any]) -> Sweep:
    """The sweep that a dictionary describes. The dictionary has the entries of a TOML file."""
    _check_names("entry", given, _TOP)
    draws = _table(given, "draws")
    count, draw_seed = _whole(draws, "count", 0, "draws."), _whole(draws, "seed", 0, "draws.")
    own = {}
    for name, inner in _table(given, "for").items():
        if not isinstance(inner, Mapping):
            raise InvalidInput(f"for.{name} must be a table, as in [for.{name}.options].")
        _check_names(f"entry of for.{name}", inner, _PART)
        own[name] = _part(inner, f"for.{name}.")
    sweep = Sweep(
        algorithms=_words(given, "algorithms"),
        environments=_words(given, "environments"),
        common=_part(dict(given) | {"draws": {n: v for n, v in draws.items() if n not in ("count", "seed")}}, ""),
        own=own,
        seeds=_whole(given, "seeds", 1),
        seed=_whole(given, "seed", 0),
        block=_whole(given, "block", 0),
        draws=count,
        draw_seed=draw_seed,
        preset=_word(given, "preset"),
        out=_word(given, "out"),
    )
    _check(sweep)
    return sweep


def _check(sweep: Sweep) -> None:
    for name in sweep.own:
        if name not in sweep.algorithms:
            raise unknown("algorithm of this sweep", name, sweep.algorithms)
    if sweep.seeds < 1:
        raise InvalidInput(f"seeds must be at least 1, not {sweep.seeds}.")
    drawn = [name for part in (sweep.common, *sweep.own.values()) for name in part.draws]
    if drawn and not sweep.draws:
        raise InvalidInput(f"{drawn[0]} is to be drawn at random, but draws.count does not say how often.")
    if sweep.draws and not drawn:
        raise InvalidInput(f"draws.count is {sweep.draws}, but no option is to be drawn at random.")


def _part(given: Mapping[str, Any], where: str) -> Part:
    options = _flat(_table(given, "options", where))
    grid = _flat(_table(given, "grid", where))
    for name, values in grid.items():
        if not isinstance(values, list | tuple) or not values:
            raise InvalidInput(f"{where}grid.{name} must be a list of values, not {values!r}.")
    draws = _flat(_table(given, "draws", where), ends=_DRAW)
    part = Part(options, grid, {name: _draw(f"{where}draws.{name}", about) for name, about in draws.items()})
    for name in _SEEDS:
        if name in part.names:
            raise InvalidInput(f"{name} belongs at the top of the sweep, not into its options.")
    for name, among in itertools.product(part.names, (("options", "grid"), ("options", "draws"), ("grid", "draws"))):
        if all(name in getattr(part, one) for one in among):
            raise InvalidInput(f"{name} stands in both {where}{among[0]} and {where}{among[1]}.")
    return part


def _draw(where: str, about: object) -> Draw:
    if isinstance(about, list | tuple) and about:
        return Draw(values=tuple(about))
    if not isinstance(about, Mapping):
        raise InvalidInput(f"{where} must be a list of values or a table such as {{low = 0.01, high = 1.0}}.")
    _check_names(f"entry of {where}", about, _DRAW)
    if "values" in about:
        return _draw(where, about["values"])
    ends = [about.get(end) for end in ("low", "high")]
    if not all(isinstance(end, int | float) and math.isfinite(end) for end in ends):
        raise InvalidInput(f"{where} needs two numbers, low and high.")
    low, high = (float(end) for end in ends if end is not None)
    scale = about.get("scale", "linear")
    if scale not in ("linear", "log"):
        raise unknown(f"scale of {where}", str(scale), ("linear", "log"))
    if low > high or (scale == "log" and low <= 0.0):
        raise InvalidInput(f"{where} goes from {low:g} to {high:g}, which is no range on a {scale} scale.")
    return Draw(low, high, log=scale == "log", whole=bool(about.get("whole", False)))


def _flat(table: Mapping[str, Any], above: str = "", ends: Sequence[str] = ()) -> dict[str, Any]:
    """Nested tables by dotted names. A table that has one of the names in `ends` is a value."""
    flat: dict[str, Any] = {}
    for given, value in table.items():
        name = above + str(given).replace("-", "_")
        if isinstance(value, Mapping) and not any(end in value for end in ends):
            flat |= _flat(value, f"{name}.", ends)
        else:
            flat[name] = value
    return flat


def _table(given: Mapping[str, Any], name: str, where: str = "") -> Mapping[str, Any]:
    found = given.get(name, {})
    if not isinstance(found, Mapping):
        raise InvalidInput(f"{where}{name} must be a table, not {found!r}.")
    return found


def _words(given: Mapping[str, Any], name: str) -> tuple[str, ...]:
    found = given.get(name)
    found = [found] if isinstance(found, str) else found
    if not isinstance(found, list | tuple) or not found or not all(isinstance(word, str) for word in found):
        raise InvalidInput(f"{name} must be a list of names, as in {name} = [{_EXAMPLES[name]!r}].")
    return tuple(dict.fromkeys(str(word) for word in found))


_EXAMPLES = {"algorithms": "pdo", "environments": "point-gather"}


def _word(given: Mapping[str, Any], name: str) -> str | None:
    found = given.get(name)
    if found is not None and not isinstance(found, str):
        raise InvalidInput(f"{name} must be text, not {found!r}.")
    return found


def _whole(given: Mapping[str, Any], name: str, default: int, where: str = "") -> int:
    found = given.get(name, default)
    if isinstance(found, bool) or not isinstance(found, int) or found < 0:
        raise InvalidInput(f"{where}{name} must be a whole number that is not negative, not {found!r}.")
    return found


def _check_names(kind: str, given: Iterable[str], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            raise unknown(kind, str(name), known)


# From the command line.


def of_names(algorithms: str, environments: str) -> Sweep:
    """The sweep of names with commas between them."""
    return Sweep(tuple(algorithms.split(",")), tuple(environments.split(",")))


def amended(sweep: Sweep, changes: Mapping[str, str]) -> Sweep:
    """A sweep with the options of the command line, which override it; `apdo sweep --help` describes their values."""
    plain = {name: str(value) for name, value in changes.items()}
    counts = {name: _count(plain.pop(option), option) for name, option in _COUNTS.items() if option in plain}
    texts = {name: plain.pop(name) for name in ("preset", "out") if name in plain}
    grid = dict(_assignment("grid", one) for one in plain.pop("grid", "").split("; ") if one)
    draw = dict(_assignment("draw", one) for one in plain.pop("draw", "").split("; ") if one)
    more = Part(
        options=plain,
        grid={name: text.split() if " " in text.strip() else text.split(",") for name, text in grid.items()},
        draws={name: _range(name, text) for name, text in draw.items()},
    )
    found = dataclasses.replace(sweep, common=sweep.common | more, **counts, **texts)
    _check(found)
    return found


_COUNTS = {"seeds": "seeds", "seed": "seed", "block": "block", "draws": "draws"}


def _count(text: str, name: str) -> int:
    if not text.isdecimal():
        raise InvalidInput(f"--{name} must be a whole number, not {text!r}.")
    return int(text)


def _assignment(option: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise InvalidInput(f"--{option} needs a name and its values, as in --{option} {_SHOWN[option]}, not {text!r}.")
    return name.strip().replace("-", "_"), value.strip()


_SHOWN = {"grid": "limits=0.1,0.2", "draw": "dual-step=log:0.01:1"}


def _range(name: str, text: str) -> Draw:
    *scale, low, high = ["", *text.split(":")][-3:] if ":" in text else ["", text, ""]
    try:
        ends = {"low": float(low), "high": float(high)}
    except ValueError:
        raise InvalidInput(f"--draw {name} needs two ends, as in {name}=0.1:0.5, not {text!r}.") from None
    return _draw(f"--draw {name}", ends | ({"scale": scale[0]} if scale and scale[0] else {}))


# Expanding.


def expand(sweep: Sweep) -> list[Setting]:
    """Every setting of a sweep, checked. A setting that occurs twice is listed once."""
    points = [
        (algorithm, environment, _varied(sweep.common | sweep.own.get(algorithm, Part()), sweep))
        for algorithm, environment in itertools.product(sweep.algorithms, sweep.environments)
    ]
    if sum(len(varied) for _, _, varied in points) > _MOST_RUNS:
        raise InvalidInput(f"the sweep has more than {_MOST_RUNS:,} settings.")
    found: dict[str, Setting] = {}
    for algorithm, environment, every in points:
        fixed = (sweep.common | sweep.own.get(algorithm, Part())).options
        for varied in every:
            name = _name(algorithm, environment, varied)
            if name not in found:
                experiment = _make_experiment(sweep, algorithm, environment, {**fixed, **varied})
                found[name] = Setting(name, experiment, varied)
    return list(found.values())


def _varied(part: Part, sweep: Sweep) -> list[dict[str, Any]]:
    """The values of grid and draws at each point of the sweep."""
    grid = [dict(zip(part.grid, values, strict=True)) for values in itertools.product(*part.grid.values())]
    if not part.draws:
        return grid
    drawn = [
        {name: draw.value(sweep.draw_seed, i, zlib.crc32(name.encode())) for name, draw in part.draws.items()}
        for i in range(sweep.draws)
    ]
    return [one | other for one, other in itertools.product(grid, drawn)]


def _make_experiment(sweep: Sweep, algorithm: str, environment: str, changes: Mapping[str, Any]) -> Experiment:
    plain = {name: tuple(value) if isinstance(value, list) else value for name, value in changes.items()}
    try:
        return settings.make_experiment(algorithm, environment, plain, sweep.preset)
    except InvalidInput as error:
        several = len(sweep.algorithms) > 1 and "unknown option" in str(error)
        hint = f" An option of one algorithm alone belongs into [for.{algorithm}.options]." if several else ""
        raise InvalidInput(f"{algorithm} on {environment}: {error}{hint}") from None


def short_names(names: Iterable[str]) -> dict[str, str]:
    """The last part of each dotted name, or the whole name if two would be the same."""
    every = list(dict.fromkeys(names))
    ends = [name.split(".")[-1] for name in every]
    return {name: end if ends.count(end) == 1 else name for name, end in zip(every, ends, strict=True)}


def _name(algorithm: str, environment: str, varied: Mapping[str, Any]) -> str:
    shorter = short_names(varied)
    parts = [algorithm, environment, *(f"{shorter[name]}={shown(value)}" for name, value in varied.items())]
    whole = re.sub(r"[^\w.=+,-]+", "-", "-".join(parts))
    if len(whole) <= _LONGEST:
        return whole
    return f"{whole[: _LONGEST - 9]}-{zlib.crc32('-'.join(parts).encode()):08x}"


def shown(value: object) -> str:
    """A value as text, for a name or a table."""
    if isinstance(value, list | tuple):
        return ",".join(shown(part) for part in value)
    return (
        f"{value:.12g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)
    )
