"""Options that come from configurations: as a command takes them, and as its help shows them.

Which options there are depends on the algorithm and the environment. Which defaults are in force depends also on the
preset, on the length of the episodes, and on the other options that are given (`experiment.settings.make_experiment`).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from apdo import algorithms, envs, options, own
from apdo.cli import completing, helping
from apdo.cli.declaring import Option, part, setting
from apdo.errors import InvalidInput, unknown
from apdo.options import Configuration, Row

REPEATED = ("cost", "grid", "draw")
"""Options that may be given several times; all their values are kept."""
_TRUE_OR_FALSE = ("True", "False")


class Part(NamedTuple):
    """One of the configurations of a run, with the values in force."""

    title: str
    config: Configuration
    rows: list[Row]
    """Every option with the default in force, and the origin of that default."""

    def own_first(self) -> list[Row]:
        """The options without those of nested parts. Options that the class adds come before those that it inherits."""
        added = vars(type(self.config)).get("__annotations__", {})
        main = [row for row in self.rows if "." not in row.name]
        return sorted(main, key=lambda row: key(row) not in added)


def key(row: Row) -> str:
    """The option's dotted name in the configuration."""
    return row.name.replace("-", "_")


def settings_of(rows: Sequence[Row]) -> list[Option]:
    """The options of some rows. An option that several choices have is listed once."""
    found: dict[str, Option] = {}
    for row in rows:
        is_switch = row.default in _TRUE_OR_FALSE and not row.choices
        words = row.choices or (("true", "false") if is_switch else ())
        offer = completing.named(words) if words else None
        one = setting(row.name, "|".join(row.choices), row.meaning, offer, is_switch, key(row) in REPEATED)
        found.setdefault(row.name, one)
    parts = {row.name.rsplit(".", 1)[0] for row in rows if "." in row.name}
    return [*found.values(), *(part(name) for name in sorted(parts - set(found)))]


def of_names(algorithm: str, environment: str) -> list[Option]:
    """Every option of a run of an algorithm on an environment, including those of every choice."""
    rows = [row for config in _plain(algorithm, environment) for row in options.rows(config)]
    if all(row.name != "limit" for row in rows):
        rows.append(Row("limit", (), "the same as --limits, for a single cost", "", "", ()))
    return settings_of(rows)


def guessed(names: Sequence[str]) -> list[Option]:
    """The options of an algorithm on an environment, as far as they are known without executing a user's file."""
    from apdo.experiment.settings import Settings, defaults

    rows = options.rows(Settings())
    if names[0] in algorithms.ALGORITHMS:
        rows += options.rows(defaults(names[0]))
    if names[1] in envs.ENVIRONMENTS:
        rows += options.rows(envs.find(names[1])())
    elif envs.is_gymnasium_id(names[1]):
        from apdo.envs.host_options import HostOptions

        rows += options.rows(HostOptions())
    return settings_of(rows)


def in_force(algorithm: str, environment: str, changes: Mapping[str, Any], preset: str | None) -> list[Part]:
    """The parts of a run with the defaults in force, and where each comes from.

    If the given options do not make a valid run, as on an unfinished command line, they are ignored.
    """
    from apdo.experiment import settings
    from apdo.experiment.presets import PRESETS

    if preset is not None and preset not in PRESETS:
        raise unknown("preset", preset, PRESETS)
    chosen = PRESETS[preset].options(algorithm) if preset else {}
    plain = _plain(algorithm, environment)
    found, used = None, dict(changes)
    for attempt in (dict(changes), {}):
        try:
            found, used = settings.make_experiment(algorithm, environment, attempt, preset), attempt
            break
        except InvalidInput:
            continue
    task = envs.find(environment)
    family = getattr(task, "defaults", {})
    if found is not None:
        held = [found.settings, found.algorithm_config, found.environment_config]
    else:
        # The environment cannot be opened: it is not installed, or needs a cost.
        if preset and not chosen:
            raise InvalidInput(f"the preset {preset!r} has nothing for {algorithm}.")
        held, used = [_laid_over(config, family, chosen) for config in plain], {}
    alias = algorithms.stands_for(algorithm)
    titles = ["the run", f"{algorithm}, that is: {alias}" if alias else own.short(algorithm), own.short(environment)]
    origins = dict.fromkeys(family, f"suits {own.short(environment)}")
    origins |= dict.fromkeys(chosen, f"preset {preset}") | dict.fromkeys(used, "as given")
    parts = [
        Part(title, config, _rows_with_origins(config, before, origins, algorithm if alias and i == 1 else "", i == 0))
        for i, (title, config, before) in enumerate(zip(titles, held, plain, strict=True))
    ]
    if found is None:
        return parts
    limits = ",".join(f"{limit:g}" for limit in found.problem().limits)
    run = [row._replace(default=limits) if row.name == "limits" else row for row in parts[0].rows]
    return [parts[0]._replace(rows=run), *parts[1:]]


def _plain(algorithm: str, environment: str) -> list[Configuration]:
    from apdo.experiment.settings import Settings, defaults

    return [Settings(), defaults(algorithm), envs.find(environment)()]


def _laid_over(config: Configuration, *layers: Mapping[str, Any]) -> Configuration:
    fields = {field.name for field in dataclasses.fields(config)}
    for layer in layers:
        config = options.override(config, {name: layer[name] for name in layer if name.split(".")[0] in fields})
    return config


def _rows_with_origins(
    config: Configuration, before: Configuration, origins: Mapping[str, str], alias: str, of_run: bool
) -> list[Row]:
    """The rows of a configuration, with the origin of each value in force."""
    now, once = options.flatten(config), options.flatten(before)
    rows = []
    for row in options.rows(config, alias):
        name = key(row)
        if any(now.get(option.replace("-", "_")) != kind for option, kind in row.given):
            rows.append(row)  # it belongs to a choice that was not made
        elif name in origins and (name in now or row.choices):
            rows.append(row._replace(source=origins[name]))
        elif name in once and now.get(name) != once[name]:
            rows.append(row._replace(source="follows from the others" if of_run else "suits the task"))
        else:
            rows.append(row)
    return rows


def explained(rows: Sequence[Row]) -> list[str]:
    """Every option with its choices, its meaning, its default and the default's origin."""
    return helping.table(
        [
            (
                f"--{row.name}{' ' * bool(row.choices)}{'|'.join(row.choices)}",
                f"{row.meaning} [{row.default}; {row.source}]"
                + "".join(f" (with --{name} {kind})" for name, kind in row.given),
            )
            for row in rows
        ]
    )


def brief(rows: Sequence[Row], most: int) -> list[str]:
    """The first options, one line each with the default in force, and then the names of the others."""
    shown = rows if len(rows) <= most else rows[: most - 1]
    names = [f"--{row.name} {row.default}" for row in shown]
    column = max((min(len(name), 32) for name in names), default=0) + 2
    lines = [
        helping.one_line(name, column, row.meaning, f"[{row.source}]") for name, row in zip(names, shown, strict=True)
    ]
    others = ", ".join(f"--{row.name}" for row in rows[len(shown) :])
    return [*lines, helping.one_line("", 0, f"also: {others}", "")[: helping.width()].rstrip()] if others else lines


def nested(rows: Sequence[Row]) -> str:
    """The nested parts that have options of their own, in one line."""
    counts: dict[str, int] = {}
    for name in {row.name for row in rows if "." in row.name}:
        counts[name.split(".")[0]] = counts.get(name.split(".")[0], 0) + 1
    return ", ".join(f"--{one}.… ({count})" for one, count in sorted(counts.items()))
