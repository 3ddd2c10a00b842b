"""Run folders, as the report sees them.

A run folder holds `run.json`, the description of the run, and `metrics.jsonl`, one line for each epoch and seed. Both
may belong to a run that is still going, or that crashed: what is complete is read. The axes are S seeds, E epochs and m
constraints.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apdo.errors import InvalidInput

FORMAT = 1
"""The version of the run folder that is understood here."""

DESCRIPTION = "run.json"
METRICS = "metrics.jsonl"


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """One run folder: what was run, and what came out of it."""

    path: Path
    description: dict[str, Any]
    """`run.json` as it stands."""
    metrics: dict[str, NDArray[np.float64]]
    """Each metric as [S, E], or [S, E, m] where there is one per constraint; NaN where an epoch did not report it."""
    seeds: tuple[int, ...]
    """The seeds, in the order of the metrics' first axis."""
    epochs: NDArray[np.int64]
    """The epochs that every seed has finished, ascending, in the order of the metrics' second axis."""

    @property
    def algorithm(self) -> str:
        """The name of the algorithm."""
        return self.description["algorithm"]

    @property
    def environment(self) -> str:
        """The name of the environment."""
        return self.description["environment"]

    @property
    def batch(self) -> int:
        """Environment samples in one epoch of one seed."""
        return self.description["batch"]

    @property
    def limits(self) -> tuple[float, ...]:
        """d_1..d_m."""
        return tuple(self.description["problem"]["limits"])

    @property
    def cost_names(self) -> tuple[str, ...]:
        """What each cost counts; numbered where the description does not say."""
        names = self.description["problem"].get("cost_names") or ()
        count = len(self.limits)
        if len(names) == count:
            return tuple(names)
        return ("cost",) if count == 1 else tuple(f"cost {i + 1}" for i in range(count))

    @property
    def samples(self) -> NDArray[np.int64]:
        """Environment samples that one seed had taken at the end of each epoch, [E]."""
        return (self.epochs + 1) * self.batch

    @property
    def adjustment_epoch(self) -> int | None:
        """K_adj, at whose end APDO replaces the multipliers; None where nothing is replaced."""
        return self.description.get("adjustment_epoch")

    @property
    def note(self) -> str:
        """What every picture of this run must say."""
        return self.description.get("note") or ""


def read(path: str | Path) -> Run:
    """The run in a folder, as far as it has come."""
    path = Path(path)
    description = read_description(path)
    seeds = tuple(description["seeds"])
    rows = _read_rows(path / METRICS, seeds)
    epochs = sorted(set.intersection(*({epoch for epoch, seed in rows if seed == wanted} for wanted in seeds)))
    if not epochs:
        raise InvalidInput(f"the run {path} has no finished epoch yet{_hint(description)}.")
    metrics = _stack(path / METRICS, rows, seeds, epochs)
    _check(path / METRICS, metrics, len(description["problem"]["limits"]))
    return Run(path=path, description=description, metrics=metrics, seeds=seeds, epochs=np.asarray(epochs))


@dataclasses.dataclass(frozen=True)
class _Row:
    line: int
    values: dict[str, Any]


def _hint(description: dict[str, Any]) -> str:
    ends = {"failed": "it failed", "interrupted": "it was interrupted"}
    status = description.get("status")
    if status in ends:
        return f" and will have none, because {ends[status]}"
    return "; try again when it has come further" if status == "running" else ""


def read_description(path: str | Path) -> dict[str, Any]:
    """What a run's folder says of the run."""
    path = Path(path)
    if not path.exists():
        raise InvalidInput(f"there is no run folder {path}.")
    if not path.is_dir():
        raise InvalidInput(f"{path} is not a folder; give the folder that `apdo train` wrote.")
    file = path / DESCRIPTION
    if not file.exists():
        raise InvalidInput(f"{path} is not a run folder: it has no {DESCRIPTION}.")
    try:
        description = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{file} cannot be read: {error}.") from error
    if not isinstance(description, dict):
        raise InvalidInput(f"{file} must hold a JSON object.")
    if description.get("format") != FORMAT:
        given = description.get("format", "missing")
        raise InvalidInput(f"{file} has format {given}, but this version of apdo reads format {FORMAT}.")
    problem = description.get("problem")
    limits = problem.get("limits") if isinstance(problem, dict) else None
    sound = {
        "algorithm": isinstance(description.get("algorithm"), str),
        "environment": isinstance(description.get("environment"), str),
        "seeds": _is_list(description.get("seeds"), int),
        "batch": _is_number(description.get("batch"), int) and description["batch"] > 0,
        "problem.limits": _is_list(limits, int, float),
    }
    for name, right in sound.items():
        if not right:
            raise InvalidInput(f"{file} has no usable {name!r}.")
    return description


def _read_rows(file: Path, seeds: tuple[int, ...]) -> dict[tuple[int, int], _Row]:
    """The rows by epoch and seed. An epoch that was repeated after a crash counts as it came out last."""
    try:
        lines = file.read_bytes().splitlines() if file.exists() else []
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error}.") from error
    rows = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except ValueError as error:
            # A crash while the last line was written leaves a part of it; the epoch counts as not finished.
            if number == len(lines):
                break
            raise InvalidInput(f"{file}, line {number}: not valid JSON ({error}).") from error
        if not isinstance(values, dict):
            raise InvalidInput(f"{file}, line {number}: not a JSON object.")
        for index in ("epoch", "seed"):
            if not _is_number(values.get(index), int):
                raise InvalidInput(f"{file}, line {number}: {index!r} must be a whole number.")
        if values["seed"] not in seeds:
            raise InvalidInput(f"{file}, line {number}: seed {values['seed']} is not one of the run's {list(seeds)}.")
        rows[values["epoch"], values["seed"]] = _Row(line=number, values=values)
    return rows


def _stack(
    file: Path, rows: dict[tuple[int, int], _Row], seeds: tuple[int, ...], epochs: list[int]
) -> dict[str, NDArray[np.float64]]:
    metrics: dict[str, NDArray[np.float64]] = {}
    for s, seed in enumerate(seeds):
        for e, epoch in enumerate(epochs):
            row = rows[epoch, seed]
            for name, value in row.values.items():
                if name in ("epoch", "seed"):
                    continue
                entry = _entry(value)
                if entry is None:
                    raise InvalidInput(f"{file}, line {row.line}: {name!r} is neither a number nor a list of numbers.")
                if name not in metrics:
                    metrics[name] = np.full((len(seeds), len(epochs), *entry.shape), np.nan)
                if entry.shape != metrics[name].shape[2:]:
                    raise InvalidInput(f"{file}, line {row.line}: {name!r} has another length than before.")
                metrics[name][s, e] = entry
    return metrics


def _check(file: Path, metrics: dict[str, NDArray[np.float64]], constraints: int) -> None:
    for name, shape in (("return", ()), ("cost", (constraints,)), ("multiplier", (constraints,))):
        if name not in metrics:
            if name == "multiplier":
                continue
            raise InvalidInput(f"{file} has no {name!r}.")
        if metrics[name].shape[2:] != shape:
            wanted = f"a list of {constraints}, one per constraint" if shape else "a single number"
            raise InvalidInput(f"{file}: {name!r} must be {wanted}.")


def _entry(value: object) -> NDArray[np.float64] | None:
    """A metric's value as an array without axes or with one; null stands for NaN. None if it is no such thing."""
    parts = value if isinstance(value, list) else [value]
    if not all(part is None or isinstance(part, int | float) for part in parts):
        return None
    entry = np.asarray([np.nan if part is None else part for part in parts], dtype=np.float64)
    return entry if isinstance(value, list) else entry.reshape(())


def _is_number(value: object, *kinds: type) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


def _is_list(value: object, *kinds: type) -> bool:
    return isinstance(value, list) and bool(value) and all(_is_number(part, *kinds) for part in value)
