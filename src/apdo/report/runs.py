"""Reads run folders.

A run folder holds `run.json`, which describes the run, `metrics.jsonl` with a line for each epoch and seed, and
`remarks.jsonl` if the run made any remarks. The run may be still going on, or may have crashed: everything complete is
read. The files may be damaged or of unknown origin, so everything is checked before it is used. The axes are S seeds, E
epochs and m constraints.
"""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apdo import files
from apdo.errors import InvalidInput

ADJUSTED = frozenset({"adjusted_multiplier", "adjusted_low", "adjusted_high"})
"""Metrics that only the row of an epoch with an adjustment has."""

FORMAT = 2
"""The format of run folders that this version writes: every line and the description have a checksum."""
OLDEST = 1
"""The oldest format that can be read; it has no checksums."""

DESCRIPTION = "run.json"
METRICS = "metrics.jsonl"
REMARKS = "remarks.jsonl"

_MOST_DESCRIPTION = 2**24
_MOST_METRICS = 2**31
_MOST_REMARKS = 2**24
_MOST_LINE = 2**20
_MOST_SEEDS = 100_000
_MOST_NUMBER = 2**53
"""The largest whole number that is accepted: JSON is exact up to it, and no run counts that far."""


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """One run folder: the description of the run, and its metrics."""

    path: Path
    description: dict[str, Any]
    """The content of `run.json`."""
    metrics: dict[str, NDArray[np.float64]]
    """Each metric as [S, E], or [S, E, m] with a value per constraint. NaN in epochs that did not report it."""
    seeds: tuple[int, ...]
    """The seeds, in the order of the metrics' first axis."""
    epochs: NDArray[np.int64]
    """The epochs that every seed has finished, ascending, in the order of the metrics' second axis."""
    remarks: tuple[dict[str, Any], ...] = ()
    """The run's remarks: each has a `text`, a `kind`, and the number of epochs after which it was made (`epoch`)."""

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
        """The limits d_1..d_m."""
        return tuple(self.description["problem"]["limits"])

    @property
    def cost_names(self) -> tuple[str, ...]:
        """The names of the costs; numbered if the description does not have them."""
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
        """K_adj, the epoch after which APDO replaces the multipliers; None if it replaces none."""
        return self.description.get("adjustment_epoch")

    @property
    def best(self) -> list[dict[str, Any]]:
        """The entry of each seed's best policy, in the order of the seeds; empty if the run has none."""
        by_seed = {one["seed"]: one for one in self.description.get("best") or []}
        return [by_seed[seed] for seed in self.seeds if seed in by_seed]

    @property
    def note(self) -> str:
        """A note that every picture of this run must show."""
        return self.description.get("note") or ""


def read(path: str | Path) -> Run:
    """Read the run in a folder, as far as it has come."""
    path = Path(path)
    description = read_description(path)
    seeds = tuple(description["seeds"])
    rows = _read_rows(path / METRICS, seeds, sealed=description["format"] > OLDEST)
    epochs = sorted(set.intersection(*({epoch for epoch, seed in rows if seed == wanted} for wanted in seeds)))
    if not epochs:
        raise InvalidInput(f"the run {path} has no finished epoch yet{_hint(description)}.")
    if description["format"] > OLDEST:
        _check_complete(path, description, epochs)
    metrics = _stack(path / METRICS, rows, seeds, epochs)
    _check(path / METRICS, metrics, len(description["problem"]["limits"]))
    said = tuple(read_remarks(path))
    return Run(
        path=path, description=description, metrics=metrics, seeds=seeds, epochs=np.asarray(epochs), remarks=said
    )


def read_remarks(path: Path) -> list[dict[str, Any]]:
    """Read a run's remarks. Lines that are not whole are left out: remarks are advice, not results."""
    file = path / REMARKS
    found = []
    for line in files.read(file, _MOST_REMARKS).split(b"\n") if file.exists() else []:
        if len(line) > _MOST_LINE or not files.line_is_whole(line):
            continue
        row = files.parse(line, str(file))
        if _counts(row.get("epoch")) and _are_words([row.get("kind"), row.get("text")]):
            found.append({name: row[name] for name in ("epoch", "kind", "text")})
    return found


def _check_complete(path: Path, description: dict[str, Any], epochs: list[int]) -> None:
    """Check that no epoch is missing: all planned ones in a finished run, and none in between in any other."""
    wanted = description["epochs"] if description.get("status") == "finished" else len(epochs)
    if epochs != list(range(wanted)):
        raise InvalidInput(
            f"{path / METRICS} has {len(epochs)} whole epochs where {wanted} were written; "
            f"`apdo resume {path}` computes the rest again."
        )


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
    """Read and check the description in a run folder."""
    path = Path(path)
    try:
        exists, is_folder = path.exists(), path.is_dir()
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{str(path)!r} cannot be a run folder: {error}.") from None
    if not exists:
        raise InvalidInput(f"there is no run folder {path}.")
    if not is_folder:
        raise InvalidInput(f"{path} is not a folder; give the folder that `apdo train` wrote.")
    file = path / DESCRIPTION
    if not file.exists():
        raise InvalidInput(f"{path} is not a run folder: it has no {DESCRIPTION}.")
    text = files.read(file, _MOST_DESCRIPTION)
    description = files.parse(text, f"{file} cannot be read")
    form: Any = description.get("format")
    if not _is_number(form, int) or not OLDEST <= form <= FORMAT:
        given = "missing" if form is None else form
        raise InvalidInput(f"{file} has format {given}, but this version of apdo reads formats {OLDEST} to {FORMAT}.")
    if (form > OLDEST or files.SEAL in description) and not files.page_is_whole(text):
        raise InvalidInput(f"{file} was damaged or changed: its checksum does not match.")
    _check_description(file, description)
    return description


def _check_description(file: Path, description: dict[str, Any]) -> None:
    problem = description.get("problem")
    problem = problem if isinstance(problem, dict) else {}
    seeds: Any = description.get("seeds")
    versions = description.get("versions", {})
    sound = {
        "algorithm": isinstance(description.get("algorithm"), str),
        "environment": isinstance(description.get("environment"), str),
        "seeds": _is_list(seeds, int) and len(set(seeds)) == len(seeds) <= _MOST_SEEDS and _counts(*seeds),
        "batch": _counts(description.get("batch")) and description["batch"] > 0,
        "problem.limits": _is_list(problem.get("limits"), int, float),
        "problem.cost_names": _are_words(problem.get("cost_names") or []),
        "problem.discount": _is_number(problem.get("discount", 1), int, float),
        "problem.cost_discount": _is_number(problem.get("cost_discount", 1), int, float),
        "epochs": _counts(description.get("epochs", 1)),
        "adjustment_epoch": description.get("adjustment_epoch") is None or _counts(description["adjustment_epoch"]),
        "note": isinstance(description.get("note") or "", str),
        "status": isinstance(description.get("status", ""), str),
        "seconds": description.get("seconds") is None or _is_number(description["seconds"], int, float),
        "best": _are_best(description.get("best") or [], problem),
        "versions": isinstance(versions, dict) and _are_words(list(versions.values())),
    }
    if description["format"] > OLDEST:
        sound["epochs"] = _counts(description.get("epochs")) and description["epochs"] > 0
    config = description.get("config", {})
    sound["config"] = isinstance(config, dict) and all(
        isinstance(config.get(part, {}), dict) for part in ("settings", "algorithm_config", "environment_config")
    )
    for name, right in sound.items():
        if not right:
            raise InvalidInput(f"{file} has no usable {name!r}.")


@dataclasses.dataclass(frozen=True)
class Prefix:
    """The part of a metrics file from which a run can continue."""

    rows: list[list[dict[str, Any]]]
    """The rows by epoch, from 0, and by seed in the run's order."""
    ends: list[int]
    """The size of the file up to the end of each epoch, in bytes."""
    size: int
    """The size of the whole file, in bytes."""
    complaint: str
    """What is wrong after this part; empty if nothing follows."""


def read_prefix(path: Path, description: dict[str, Any]) -> Prefix:
    """The whole epochs at the beginning of a run's metrics, up to the first line that is not valid."""
    file, seeds = path / METRICS, description["seeds"]
    sealed = description["format"] > OLDEST
    data = files.read(file, _MOST_METRICS) if file.exists() else b""
    rows: list[list[dict[str, Any]]] = []
    ends, end, complaint, pending, first = [], 0, "", [], {}
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        try:
            row = _row(file, number, line, seeds, sealed)
            _check_entries(file, number, row)
        except InvalidInput as error:
            complaint = str(error)
            break
        shapes = {name: np.shape(value) for name, value in row.items() if name not in ADJUSTED}
        if shapes != (first := first or shapes):
            complaint = f"{file}, line {number}: other metrics than in the first line."
            break
        if (row["epoch"], row["seed"]) != (len(rows), seeds[len(pending)]):
            complaint = f"{file}, line {number}: epoch {row['epoch']}, seed {row['seed']} is out of order."
            break
        end += len(line) + 1
        pending.append(row)
        if len(pending) == len(seeds):
            rows.append(pending)
            ends.append(end)
            pending = []
    whole = ends[-1] if ends else 0
    if not complaint and whole < len(data):
        complaint = f"{file} ends in the middle of epoch {len(rows)}."
    return Prefix(rows=rows, ends=ends, size=len(data), complaint=complaint)


def _check_entries(file: Path, number: int, row: dict[str, Any]) -> None:
    for name, value in row.items():
        if name not in ("epoch", "seed") and _entry(value) is None:
            raise InvalidInput(f"{file}, line {number}: {name!r} is neither a number nor a list of numbers.")


def _row(file: Path, number: int, line: bytes, seeds: tuple[int, ...] | list[int], sealed: bool) -> dict[str, Any]:
    """One checked line, without its checksum."""
    place = f"{file}, line {number}"
    if len(line) > _MOST_LINE:
        raise InvalidInput(f"{place}: {len(line):,} bytes long, and at most {_MOST_LINE:,} are read.")
    values = files.parse(line, place)
    if (sealed or files.SEAL in values) and not files.line_is_whole(line):
        raise InvalidInput(f"{place}: damaged or changed, its checksum does not match.")
    values.pop(files.SEAL, None)
    for index in ("epoch", "seed"):
        if not _counts(values.get(index)):
            raise InvalidInput(f"{place}: {index!r} must be a whole number.")
    if values["seed"] not in seeds:
        raise InvalidInput(f"{place}: seed {values['seed']} is not one of the run's {list(seeds)}.")
    return values


def _read_rows(file: Path, seeds: tuple[int, ...], sealed: bool) -> dict[tuple[int, int], _Row]:
    """The rows by epoch and seed. If an epoch was repeated after a crash, the last repetition counts."""
    data = files.read(file, _MOST_METRICS) if file.exists() else b""
    lines = data.split(b"\n")
    # A crash during the writing of a line leaves a part of it; its epoch counts as not finished.
    if sealed:
        lines.pop()
    rows = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip() and not sealed:
            continue
        try:
            values = _row(file, number, line, seeds, sealed)
        except InvalidInput as error:
            if not sealed and number == len(lines) and "not valid JSON" in str(error):
                break
            raise
        if sealed and (values["epoch"], values["seed"]) in rows:
            raise InvalidInput(f"{file}, line {number}: epoch {values['epoch']} appears twice.")
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


def _are_best(found: object, problem: dict[str, Any]) -> bool:
    """Whether this is a valid list of the seeds' best policies."""
    limits = problem.get("limits")
    count = len(limits) if isinstance(limits, list) else 0
    return isinstance(found, list) and all(
        isinstance(one, dict)
        and _counts(one.get("seed"), one.get("epoch"))
        and all(_is_number(one.get(name), int, float) for name in ("return", "return_error"))
        and all(_is_list(one.get(name), int, float) and len(one[name]) == count for name in ("cost", "cost_error"))
        and isinstance(one.get("known"), bool)
        for one in found
    )


def _entry(value: object) -> NDArray[np.float64] | None:
    """A metric's value as an array with at most one axis, with NaN for null; None if it is not valid."""
    parts = value if isinstance(value, list) else [value]
    if not all(part is None or isinstance(part, int | float) for part in parts):
        return None
    try:
        entry = np.asarray([np.nan if part is None else part for part in parts], dtype=np.float64)
    except OverflowError:
        return None
    return entry if isinstance(value, list) else entry.reshape(())


def _is_number(value: object, *kinds: type) -> bool:
    """Whether this is a finite number of one of these types."""
    if not isinstance(value, kinds) or isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) if isinstance(value, float) else abs(value) <= _MOST_NUMBER


def _counts(*values: object) -> bool:
    """Whether these are whole numbers from 0 to `_MOST_NUMBER`."""
    return all(isinstance(v, int) and not isinstance(v, bool) and 0 <= v <= _MOST_NUMBER for v in values)


def _are_words(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _is_list(value: object, *kinds: type) -> bool:
    return isinstance(value, list) and bool(value) and all(_is_number(part, *kinds) for part in value)
