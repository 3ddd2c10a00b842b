"""Logged transitions as a file: every step's observation, action, reward and cost, and the numbers of their problem.

A dataset is B transitions of whole episodes and a few numbers about the problem (docs/dual-estimation.md, "File
format"). As a NumPy .npz it holds these arrays:

    observation        [B, O]          reward             [B]       discount             a number
    action             [B, A] or [B]   cost               [B, M]    cost_discount        a number
    next_observation   [B, O]                    or [B]             limits               [M]
    terminated         [B]             episode            [B]       horizon              a whole number
    truncated          [B]             step               [B]       horizon_terminates   true or false
    choices            a whole number, if actions are choices       cost_names           [M], optional

As Parquet (the extra `apdo[parquet]`) it has a row for each transition, list columns for vectors, and the problem's
numbers as JSON in the schema's metadata under `apdo`.

Rows may come in any order; a dataset sorts them by episode and step. Everything is checked, because a log that
contradicts itself would give a meaningless multiplier.
"""

import dataclasses
import importlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from apdo import files, npz
from apdo.errors import InvalidInput, unknown

Floats = NDArray[np.float32]
Flags = NDArray[np.bool_]
Wholes = NDArray[np.int64]

FEWEST = 2
"""The fewest episodes from which a spread can be estimated."""
CLOSE = 1e-4
"""The most by which `next_observation` may differ from the next row's observation, relative to 1 plus its size."""
_ROWS = {
    "observation": npz.Entry((2,)),
    "action": npz.Entry((1, 2)),
    "reward": npz.Entry((1,)),
    "cost": npz.Entry((1, 2)),
    "next_observation": npz.Entry((2,)),
    "terminated": npz.Entry((1,), npz.TRUTH),
    "truncated": npz.Entry((1,), npz.TRUTH),
    "episode": npz.Entry((1,), npz.WHOLE),
    "step": npz.Entry((1,), npz.WHOLE),
}
_ABOUT = {
    "discount": npz.Entry((0,)),
    "cost_discount": npz.Entry((0,)),
    "limits": npz.Entry((1,)),
    "horizon": npz.Entry((0,), npz.WHOLE),
    "horizon_terminates": npz.Entry((0,), npz.TRUTH),
}
_OPTIONAL = {"choices": npz.Entry((0,), npz.WHOLE), "cost_names": npz.Entry((1,), npz.TEXT)}
ENTRIES = _ROWS | _ABOUT | _OPTIONAL
"""The arrays that a file may hold."""
NEEDED = (*_ROWS, *_ABOUT)
_LARGEST_WHOLE = 2**31 - 1
_MOST_CHOICES = 10_000
_MOST_VALUES = 2**31
"""The most values that a Parquet file may declare. The file is compressed, so its size says little about them."""
_savez: Callable[..., None] = np.savez  # to type checkers, any of its keywords could be `allow_pickle`


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """Logged transitions in order of episode and step. Use `Dataset.of`; the constructor checks nothing."""

    observation: Floats
    """The observation before the step, [B, O]."""
    action: Floats
    """[B, A]; one-hot vectors if actions are choices."""
    reward: Floats
    """[B]."""
    cost: Floats
    """[B, M]."""
    next_observation: Floats
    """[B, O]: the observation after the step, before any reset."""
    terminated: Flags
    """[B]: whether the episode terminated with this step, so that nothing follows."""
    truncated: Flags
    """[B]: whether the episode was cut off after this step, though more would have followed."""
    episode: Wholes
    """[B]: a number that the steps of an episode share."""
    step: Wholes
    """[B]: the step's index within its episode, from 0."""
    discount: float
    """γ of the reward."""
    cost_discount: float
    """γ of the costs that are limited."""
    limits: tuple[float, ...]
    """The limits d_1..d_M, in units of one episode's cost."""
    horizon: int
    """The most steps that an episode can have."""
    horizon_terminates: bool
    """Whether an episode terminates at the horizon, rather than being cut off."""
    choices: int
    """The number of actions to choose from; 0 if an action is a vector."""
    cost_names: tuple[str, ...]
    """The names of the costs."""

    @classmethod
    def of(
        cls,
        *,
        observation: ArrayLike,
        action: ArrayLike,
        reward: ArrayLike,
        cost: ArrayLike,
        next_observation: ArrayLike,
        terminated: ArrayLike,
        truncated: ArrayLike,
        episode: ArrayLike,
        step: ArrayLike,
        discount: float,
        cost_discount: float,
        limits: ArrayLike | Sequence[float],
        horizon: int,
        horizon_terminates: bool,
        choices: int = 0,
        cost_names: Sequence[str] | None = None,
    ) -> "Dataset":
        """Make a dataset from arrays: sort them by episode and step, and check everything."""
        return _dataset(
            observation=observation,
            action=action,
            reward=reward,
            cost=cost,
            next_observation=next_observation,
            terminated=terminated,
            truncated=truncated,
            episode=episode,
            step=step,
            discount=discount,
            cost_discount=cost_discount,
            limits=limits,
            horizon=horizon,
            horizon_terminates=horizon_terminates,
            choices=choices,
            cost_names=cost_names,
        )

    @property
    def samples(self) -> int:
        """B, the number of transitions."""
        return self.observation.shape[0]

    @property
    def constraints(self) -> int:
        """M, the number of costs."""
        return self.cost.shape[1]

    @property
    def starts(self) -> Wholes:
        """The first row of each episode."""
        return np.flatnonzero(self.step == 0)

    @property
    def ends(self) -> Wholes:
        """The last row of each episode."""
        return np.append(self.starts[1:], self.samples) - 1

    @property
    def episodes(self) -> int:
        """The number of episodes."""
        return len(self.starts)

    def with_limits(self, limits: ArrayLike | Sequence[float]) -> "Dataset":
        """The same data with other limits."""
        return dataclasses.replace(self, limits=_limits(limits, self.constraints))

    def discounted(self) -> NDArray[np.float64]:
        """[N, 1 + M]: each episode's discounted reward and costs, as far as it was logged."""
        return self.sums(np.asarray([self.discount] + [self.cost_discount] * self.constraints))

    def sums(self, factors: NDArray[np.float64]) -> NDArray[np.float64]:
        """[N, 1 + M]: Σ_t factor^t x_t of each episode's reward and costs, as far as it was logged."""
        signals = np.concatenate([self.reward[:, None], self.cost], axis=1).astype(np.float64)
        return np.add.reduceat(signals * factors[None] ** self.step[:, None], self.starts, axis=0)

    def arrays(self) -> dict[str, np.ndarray]:
        """The dataset as the arrays of a file."""
        named = {name: np.asarray(getattr(self, name)) for name in (*NEEDED, "cost_names")}
        if self.choices:
            named |= {"action": np.argmax(self.action, axis=1).astype(np.int64), "choices": np.asarray(self.choices)}
        return named


def save(dataset: Dataset, path: str | os.PathLike[str]) -> None:
    """Write a dataset to a .npz or .parquet file, depending on the name's ending. The file is written whole or not at
    all.

    To save your own arrays: `save(Dataset.of(observation=..., action=..., ...), "log.npz")`.
    """
    file = Path(path)
    writers: dict[str, Callable[[Dataset, Path], None]] = {".npz": _save_npz, ".parquet": _save_parquet}
    if file.suffix not in writers:
        raise InvalidInput(f"a dataset is written as .npz or .parquet, and {str(path)!r} ends in neither.")
    if not file.parent.is_dir():
        raise InvalidInput(f"the folder {file.parent} for {file.name} does not exist.")
    writers[file.suffix](dataset, file)


def load(path: str | os.PathLike[str]) -> Dataset:
    """Read a dataset and check everything about it. An `InvalidInput` of one sentence says what is wrong."""
    readers = {".npz": _read_npz, ".parquet": _read_parquet}
    reader = readers.get(Path(path).suffix)
    if reader is None:
        raise InvalidInput(f"a dataset is a .npz or a .parquet file, and {str(path)!r} ends in neither.")
    arrays = reader(Path(path))
    try:
        return _dataset(**arrays)
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from error


# Files.


def _save_npz(dataset: Dataset, path: Path) -> None:
    with files.replacing(path) as file:
        _savez(file, **dataset.arrays())


def _read_npz(path: Path) -> dict[str, Any]:
    arrays: dict[str, Any] = npz.read(path, ENTRIES, NEEDED)
    return {name: array.item() if array.ndim == 0 else array for name, array in arrays.items()}


def _parquet() -> tuple[Any, Any]:
    """Import pyarrow and its Parquet module, or say how to install them."""
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise InvalidInput("Parquet needs the package pyarrow; install it with: pip install 'apdo[parquet]'.") from None


def _save_parquet(dataset: Dataset, path: Path) -> None:
    arrow, parquet = _parquet()
    arrays = dataset.arrays()
    about = {name: arrays.pop(name).tolist() for name in (*_ABOUT, *_OPTIONAL) if name in arrays}
    columns = {name: list(array) if array.ndim == 2 else array for name, array in arrays.items()}
    table = arrow.table(columns).replace_schema_metadata({"apdo": json.dumps(about)})
    with files.replacing(path) as file:
        parquet.write_table(table, file)


def _read_parquet(path: Path) -> dict[str, Any]:
    arrow, parquet = _parquet()
    try:
        with path.open("rb") as raw, parquet.ParquetFile(raw) as file:
            about = _parquet_about(file)
            table = file.read(columns=list(_ROWS))
        return {name: _column(name, table.column(name)) for name in _ROWS} | about
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from error
    except (OSError, arrow.ArrowException, ValueError, MemoryError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:200].rstrip(".")
        raise InvalidInput(f"{path} is not an undamaged Parquet file: {reason}.") from error


def _parquet_about(file: Any) -> dict[str, Any]:  # noqa: ANN401 - pyarrow has no types
    """The problem's numbers, after the columns and the metadata have been checked."""
    names = file.schema_arrow.names
    for name in names:
        if name not in _ROWS:
            raise unknown("column", name, _ROWS)
    missing = [name for name in _ROWS if name not in names]
    if missing:
        raise InvalidInput(f"the column {missing[0]} is missing.")
    groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
    values = sum(group.column(j).num_values for group in groups for j in range(group.num_columns))
    if max(values, file.metadata.num_rows) > _MOST_VALUES:
        raise InvalidInput(f"it declares {values:,} values, and at most {_MOST_VALUES:,} are read.")
    text = (file.schema_arrow.metadata or {}).get(b"apdo")
    if text is None:
        raise InvalidInput("the schema's metadata has no entry 'apdo' with the problem's numbers as JSON.")
    about = files.parse(text, "the metadata 'apdo'")
    known = (*_ABOUT, *_OPTIONAL)
    for name in about:
        if name not in known:
            raise unknown("number", name, known)
    missing = [name for name in _ABOUT if name not in about]
    if missing:
        raise InvalidInput(f"the metadata 'apdo' has no {missing[0]}.")
    return about


def _column(name: str, column: Any) -> np.ndarray:  # noqa: ANN401
    """A column as an array: of numbers, or of lists of numbers with equal lengths."""
    if column.null_count:
        raise InvalidInput(f"the column {name} has {column.null_count} empty entries.")
    whole = column.combine_chunks()
    if not hasattr(whole, "flatten") or not hasattr(whole.type, "value_type"):
        return whole.to_numpy(zero_copy_only=False)
    lengths = np.unique(whole.value_lengths().to_numpy(zero_copy_only=False))
    if len(lengths) > 1:
        raise InvalidInput(f"the lists in the column {name} have between {lengths[0]} and {lengths[-1]} entries.")
    inner = whole.flatten()
    if inner.null_count:
        raise InvalidInput(f"the lists in the column {name} have {inner.null_count} empty entries.")
    return inner.to_numpy(zero_copy_only=False).reshape(len(whole), -1)


# Checks.


def _dataset(*, choices: Any = 0, cost_names: Any = None, **given: Any) -> Dataset:  # noqa: ANN401 - a stranger's
    """Make a dataset after checking everything, sorted by episode and step."""
    seen = _numbers("observation", given["observation"], (2,))
    count = seen.shape[0]
    costs = _numbers("cost", given["cost"], (1, 2))
    _rows("cost", costs, count)
    costs = costs[:, None] if costs.ndim == 1 else costs
    bounds = _limits(given["limits"], costs.shape[1])
    columns = {
        "observation": seen,
        "action": _actions(given["action"], choices),
        "reward": _numbers("reward", given["reward"], (1,)),
        "cost": costs,
        "next_observation": _numbers("next_observation", given["next_observation"], (2,)),
        "terminated": _flags("terminated", given["terminated"]),
        "truncated": _flags("truncated", given["truncated"]),
        "episode": _wholes("episode", given["episode"]),
        "step": _wholes("step", given["step"]),
    }
    for name, column in columns.items():
        _rows(name, column, count)
    if columns["next_observation"].shape != seen.shape:
        raise InvalidInput(
            f"next_observation must have observation's shape {list(seen.shape)}, and has "
            f"{list(columns['next_observation'].shape)}."
        )
    order = np.lexsort((columns["step"], columns["episode"]))
    if (np.diff(order) != 1).any():
        columns = {name: column[order] for name, column in columns.items()}
    for column in columns.values():
        column.setflags(write=False)
    dataset = Dataset(
        **columns,
        discount=_discount("discount", given["discount"]),
        cost_discount=_discount("cost_discount", given["cost_discount"]),
        limits=bounds,
        horizon=_whole("horizon", given["horizon"], 1),
        horizon_terminates=_truth("horizon_terminates", given["horizon_terminates"]),
        choices=int(choices),
        cost_names=_names(cost_names, len(bounds)),
    )
    _check_episodes(dataset)
    return dataset


def _numbers(name: str, given: Any, axes: tuple[int, ...]) -> Floats:  # noqa: ANN401
    """A copy in 32-bit floats, if it has an allowed number of axes and is finite in 32 bits."""
    array = np.asarray(given)
    if array.dtype.kind not in "fiub":
        raise InvalidInput(f"{name} must hold numbers, and has dtype {array.dtype}.")
    if array.ndim not in axes:
        wanted = " or ".join(str(count) for count in axes)
        raise InvalidInput(f"{name} must have {wanted} axes, and has shape {list(array.shape)}.")
    with np.errstate(over="ignore"):
        narrow = array.astype(np.float32)
    if not np.isfinite(narrow).all():
        where = np.argwhere(~np.isfinite(narrow))[0].tolist()
        raise InvalidInput(f"{name} must be finite in 32 bits, and is {array[tuple(where)]} at index {where}.")
    return narrow


def _rows(name: str, given: np.ndarray, count: int) -> None:
    if len(given) != count:
        raise InvalidInput(f"there are {count} observations, and {len(given)} rows of {name}; give one for each.")


def _actions(given: Any, choices: Any) -> Floats:  # noqa: ANN401
    """Check actions: vectors stay as they are, choices become one-hot vectors."""
    array = np.asarray(given)
    if not isinstance(choices, int | np.integer) or isinstance(choices, bool) or not 0 <= choices <= _MOST_CHOICES:
        raise InvalidInput(f"choices must be a whole number from 0 (none) to {_MOST_CHOICES}, not {choices!r}.")
    if not choices:
        if array.ndim != 2 or array.shape[1] == 0:
            raise InvalidInput(
                f"action must have shape [B, A], and has {list(array.shape)}; if actions are choices, give them as "
                "whole numbers [B] and say in `choices` how many there are."
            )
        return _numbers("action", array, (2,))
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InvalidInput(
            f"with {choices} choices, action must be whole numbers [B], and is {array.dtype}{list(array.shape)}."
        )
    if len(array) and not (array.min() >= 0 and array.max() < choices):
        raise InvalidInput(
            f"with {choices} choices, actions are 0 to {choices - 1}, and reach from {array.min()} to {array.max()}."
        )
    return (array[:, None] == np.arange(choices)[None]).astype(np.float32)


def _flags(name: str, given: Any) -> Flags:  # noqa: ANN401
    array = np.asarray(given)
    if array.ndim != 1 or array.dtype.kind not in npz.TRUTH or not ((array == 0) | (array == 1)).all():
        raise InvalidInput(f"{name} must be true or false (or 1 and 0) for each step.")
    return array.astype(np.bool_)


def _wholes(name: str, given: Any) -> Wholes:  # noqa: ANN401
    array = np.asarray(given)
    if array.ndim != 1 or array.dtype.kind not in npz.WHOLE:
        raise InvalidInput(f"{name} must be a whole number for each step, and is {array.dtype}{list(array.shape)}.")
    if len(array) and not (array.min() >= 0 and array.max() < 2**62):
        raise InvalidInput(f"{name} must not be negative or beyond 2^62, and reaches from {array.min()}.")
    return array.astype(np.int64)


def _limits(given: Any, constraints: int) -> tuple[float, ...]:  # noqa: ANN401
    bounds = _numbers("limits", given, (0, 1)).reshape(-1)
    if constraints == 0:
        raise InvalidInput("there is no cost, so that there is no multiplier to estimate.")
    if len(bounds) != constraints:
        raise InvalidInput(f"there are {constraints} costs and {len(bounds)} limits; give one for each.")
    # Not rounded to 32 bits.
    return tuple(float(limit) for limit in np.asarray(given, dtype=np.float64).reshape(-1))


def _discount(name: str, given: Any) -> float:  # noqa: ANN401
    if isinstance(given, bool) or not isinstance(given, int | float | np.number) or not 0 <= given <= 1:
        raise InvalidInput(f"{name} must be a number between 0 and 1, not {given!r}.")
    return float(given)


def _whole(name: str, given: Any, least: int) -> int:  # noqa: ANN401
    sound = isinstance(given, int | np.integer) and not isinstance(given, bool)
    if not sound or not least <= given <= _LARGEST_WHOLE:
        raise InvalidInput(f"{name} must be a whole number from {least} to {_LARGEST_WHOLE}, not {given!r}.")
    return int(given)


def _truth(name: str, given: Any) -> bool:  # noqa: ANN401
    if given not in (0, 1):
        raise InvalidInput(f"{name} must be true or false, not {given!r}.")
    return bool(given)


def _names(given: Any, constraints: int) -> tuple[str, ...]:  # noqa: ANN401
    if given is None:
        return ("cost",) if constraints == 1 else tuple(f"cost {i}" for i in range(constraints))
    listed = isinstance(given, list | tuple | np.ndarray)
    if not listed or len(given) != constraints or not all(isinstance(name, str) for name in given):
        raise InvalidInput(f"cost_names must be a word for each of {constraints} costs.")
    # One line each, whatever names the file has.
    return tuple(" ".join("".join(c if c.isprintable() else " " for c in name).split())[:60] for name in given)


def _check_episodes(data: Dataset) -> None:
    """Check that the sorted rows are episodes: steps 0, 1, 2, ... that follow from each other, with at most one end."""
    if data.samples == 0:
        raise InvalidInput("there are no transitions.")
    first = np.append(True, data.episode[1:] != data.episode[:-1])
    if data.observation.shape[1] == 0:
        raise InvalidInput("an observation needs at least one entry.")
    rows = np.arange(data.samples)
    expected = rows - rows[first][np.cumsum(first) - 1]
    if (wrong := data.step != expected).any():
        row = int(np.argmax(wrong))
        raise InvalidInput(
            f"the steps of an episode must be 0, 1, 2, ..., each once; in episode {data.episode[row]}, where step "
            f"{expected[row]} should be, is step {data.step[row]}."
        )
    if data.episodes < FEWEST:
        raise InvalidInput(f"there is only {data.episodes} episode; at least {FEWEST} are needed.")
    if data.step.max() >= data.horizon:
        row = int(np.argmax(data.step))
        raise InvalidInput(
            f"the horizon is {data.horizon} steps, and episode {data.episode[row]} has {data.step[row] + 1}."
        )
    last = np.append(first[1:], True)
    if (wrong := (data.terminated | data.truncated) & ~last).any():
        row = int(np.argmax(wrong))
        raise InvalidInput(
            f"only an episode's last step can be terminated or truncated, and episode {data.episode[row]} goes on "
            f"after step {data.step[row]}."
        )
    if data.horizon_terminates and (wrong := (data.step == data.horizon - 1) & ~data.terminated).any():
        raise InvalidInput(
            f"horizon_terminates says that step {data.horizon - 1} ends an episode, and episode "
            f"{data.episode[int(np.argmax(wrong))]} is not terminated there."
        )
    _check_succession(data, last)


def _check_succession(data: Dataset, last: Flags) -> None:
    onward = np.flatnonzero(~last)
    after, seen = data.next_observation[onward], data.observation[onward + 1]
    apart = (np.abs(after - seen) > CLOSE * (1.0 + np.abs(seen))).any(axis=1)
    if apart.any():
        row = onward[int(np.argmax(apart))]
        raise InvalidInput(
            f"next_observation of a step must be the observation of the next one, and is another in episode "
            f"{data.episode[row]} at step {data.step[row]} ({int(apart.sum())} of {len(onward)} steps)."
        )
