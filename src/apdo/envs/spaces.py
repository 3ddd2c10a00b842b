"""Gymnasium's spaces as the vectors that networks read and write.

An observation of any supported kind becomes one vector: numbers stay as they are (an image row by row), a choice among
n becomes a one-hot vector of n, a Dict is joined in the order of its keys (Gymnasium sorts them), and a Tuple in its
own order. An action is a vector, or a choice, which is given as a one-hot vector. If an action consists of several
choices, every combination of them is one choice.

**What an action of the policy means.** If an entry of a Box has two finite bounds, ±1 are these bounds, and everything
beyond is clipped. Otherwise the number is passed on as it is, clipped to the bound that exists, if any.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from apdo.errors import InvalidInput

if TYPE_CHECKING:
    from gymnasium import Space

MOST_ENTRIES = 10**6
MOST_COMBINATIONS = 4096
"""For several choices: a policy has an output for each combination."""

Observed: TypeAlias = Any
"""An observation as an environment returns it."""
Layout: TypeAlias = dict[str, Any]
"""What an observation consists of, in plain values: numbers of a shape, choices, or named or numbered parts."""
Write: TypeAlias = Callable[[Observed, np.ndarray], None]
"""Writes an observation into a vector: (observation, the vector to fill). Raises `Mismatch`."""


class Mismatch(ValueError):
    """An observation does not fit its space; the message says how."""


def flattener(space: "Space[Any]") -> tuple[int, Write]:
    """The number of entries of an observation as a vector, and a function that writes them."""
    size, write = writer(layout(space))
    if not 0 < size <= MOST_ENTRIES:
        raise InvalidInput(f"an observation must have 1 to {MOST_ENTRIES:,} numbers, and this space has {size:,}.")
    return size, write


LEAST_SIDE, MOST_CHANNELS = 8, 16
"""The least height and width of an image, and the most channels."""


def image(space: "Space[Any]") -> tuple[int, int, int] | None:
    """Height, width and channels if an observation is an image (a Box of bytes with three axes, channels last)."""
    from gymnasium import spaces

    if not isinstance(space, spaces.Box) or space.dtype != np.uint8 or len(space.shape) != 3:
        return None
    height, width, channels = space.shape
    return (height, width, channels) if min(height, width) >= LEAST_SIDE and channels <= MOST_CHANNELS else None


def layout(space: "Space[Any]", name: str = "") -> Layout:
    """What an observation of a space consists of, as plain values for `run.json`."""
    from gymnasium import spaces

    if isinstance(space, spaces.Box | spaces.MultiBinary):
        return {"numbers": [int(side) for side in space.shape]}
    if isinstance(space, spaces.Discrete):
        return {"counts": [int(space.n)], "start": [int(space.start)], "shape": []}
    if isinstance(space, spaces.MultiDiscrete):
        start = getattr(space, "start", np.zeros_like(space.nvec))
        counts, first = (np.asarray(part).reshape(-1).tolist() for part in (space.nvec, start))
        return {"counts": counts, "start": first, "shape": list(space.nvec.shape)}
    if isinstance(space, spaces.Dict):
        return {"dict": [[key, layout(part, f"{name}[{key!r}]")] for key, part in space.spaces.items()]}
    if isinstance(space, spaces.Tuple):
        return {"tuple": [layout(part, f"{name}[{i}]") for i, part in enumerate(space.spaces)]}
    raise InvalidInput(
        f"observations{name} are a {type(space).__name__} space, which is not supported; "
        "allowed are Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple: wrap the environment to give one."
    )


def writer(plain: Layout) -> tuple[int, Write]:
    """The number of entries of an observation as a vector, and a function that writes them, from its layout.

    A layout may come from a file, so anything that is none raises InvalidInput.
    """
    try:
        return _writer(plain, "", 0)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput("the run does not say what its environment's observations consist of.") from error


def _writer(plain: Layout, name: str, depth: int) -> tuple[int, Write]:
    if depth > _DEEPEST:
        raise ValueError(depth)
    if "numbers" in plain:
        shape = _whole(plain["numbers"])
        return math.prod(shape), _numbers(shape, name)
    if "counts" in plain:
        counts, start, shape = (_whole(plain[key]) for key in ("counts", "start", "shape"))
        if not len(counts) == len(start) == math.prod(shape):
            raise ValueError(plain)
        return sum(counts), _choices(np.asarray(counts), np.asarray(start), shape, name)
    is_dict = "dict" in plain
    parts = list(plain["dict"]) if is_dict else list(enumerate(plain["tuple"]))
    found = [(key, *_writer(part, f"{name}[{key!r}]", depth + 1)) for key, part in parts]
    return _together(found, "Dict" if is_dict else "Tuple", name)


def _whole(values: object) -> tuple[int, ...]:
    if not isinstance(values, list) or not all(type(value) is int and abs(value) <= MOST_ENTRIES for value in values):
        raise ValueError(values)
    return tuple(values)


_DEEPEST = 16
"""The most parts of parts of an observation."""


def _numbers(shape: tuple[int, ...], name: str) -> Write:
    def write(observed: Observed, out: np.ndarray) -> None:
        values = observed if type(observed) is np.ndarray else np.asarray(observed)
        if values.shape != shape:
            raise Mismatch(f"the observation{name} has the shape {list(values.shape)} instead of {list(shape)}")
        if values.dtype.kind not in "fiub":
            raise Mismatch(f"the observation{name} has the type {values.dtype} instead of numbers")
        out[:] = values.reshape(-1)

    return write


def _choices(counts: np.ndarray, start: np.ndarray, shape: tuple[int, ...], name: str) -> Write:
    offset = np.concatenate([[0], np.cumsum(counts)[:-1]])

    def write(observed: Observed, out: np.ndarray) -> None:
        values = np.asarray(observed)
        if values.shape != shape:
            raise Mismatch(f"the observation{name} has the shape {list(values.shape)} instead of {list(shape)}")
        if values.dtype.kind not in "iub":
            raise Mismatch(f"the observation{name} has the type {values.dtype} instead of whole numbers")
        index = values.reshape(-1).astype(np.int64) - start
        if (index < 0).any() or (index >= counts).any():
            raise Mismatch(f"the observation{name} is {values.tolist()}, which is none of its choices")
        out[:] = 0.0
        out[offset + index] = 1.0

    return write


def _together(parts: list[tuple[Any, int, Write]], kind: str, name: str) -> tuple[int, Write]:
    ends = np.cumsum([size for _, size, _ in parts]).tolist()
    places = [(key, slice(end - size, end), write) for (key, size, write), end in zip(parts, ends, strict=True)]
    is_dict = kind == "Dict"

    def write(observed: Observed, out: np.ndarray) -> None:
        if is_dict != isinstance(observed, dict) or (not is_dict and not isinstance(observed, tuple | list)):
            raise Mismatch(f"the observation{name} is a {type(observed).__name__} instead of a {kind}")
        if len(observed) != len(places):
            raise Mismatch(f"the observation{name} has {len(observed)} parts instead of {len(places)}")
        for key, place, part in places:
            try:
                value = observed[key]
            except KeyError:
                raise Mismatch(f"the observation{name} has no part {key!r}") from None
            part(value, out[place])

    return (ends[-1] if ends else 0), write


@dataclasses.dataclass(frozen=True)
class Choices:
    """The choices of an action: one choice of one kind, or one of each of several kinds."""

    counts: tuple[int, ...]
    """The number of choices of each kind."""
    start: tuple[int, ...]
    """The number of the first choice of each kind."""
    shape: tuple[int, ...] = ()
    """The shape of the environment's action; () if there is one kind and the action is a plain number."""

    @property
    def size(self) -> int:
        """The number of combinations."""
        return math.prod(self.counts)

    def table(self) -> np.ndarray:
        """The environment's action for every combination, [n, *shape]; the last kind changes fastest."""
        kinds = np.stack(np.unravel_index(np.arange(self.size), self.counts), axis=-1)
        return (kinds + np.asarray(self.start)).reshape(self.size, *self.shape).astype(np.int64)

    def plain(self) -> dict[str, list[int]]:
        """The choices as an entry of `run.json`."""
        return {name: list(values) for name, values in dataclasses.asdict(self).items()}

    @staticmethod
    def of_plain(plain: object) -> "Choices":
        """The choices from such an entry."""
        names = ("counts", "start", "shape")
        values = [plain.get(name) if isinstance(plain, dict) else None for name in names]
        if not all(isinstance(each, list) and all(type(one) is int for one in each) for each in values):
            raise InvalidInput("the run does not say what its environment's choices are.")
        counts, start, shape = (tuple(each) for each in values if each is not None)
        return Choices(counts, start, shape)


@dataclasses.dataclass(frozen=True, eq=False)
class Actions:
    """An action space: what the policy's vectors mean to the environment."""

    size: int
    choices: Choices | None
    """None if an action is a vector."""
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    low: np.ndarray
    high: np.ndarray
    """Bounds by entry, [A]; infinite if there is none."""

    @property
    def discrete(self) -> bool:
        """Whether an action is a choice."""
        return self.choices is not None

    @property
    def entries(self) -> int:
        """How many numbers of an action a cost sees: the environment's own, or a one-hot vector for a single choice."""
        return len(self.choices.counts) if self.choices is not None and self.choices.shape else self.size

    @property
    def shift(self) -> np.ndarray:
        """What an action of 0 means, [A]: the middle between two finite bounds."""
        return np.where(self._bounded, 0.5 * (self._low + self._high), 0.0)

    @property
    def scale(self) -> np.ndarray:
        """What one unit of an action means, [A]."""
        return np.where(self._bounded, 0.5 * (self._high - self._low), 1.0)

    @property
    def meaning(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """(shift, scale, low, high), with bounds that single precision can represent."""
        largest = np.finfo(np.float32).max
        return self.shift, self.scale, np.maximum(self.low, -largest), np.minimum(self.high, largest)

    @property
    def _bounded(self) -> np.ndarray:
        return np.isfinite(self.low) & np.isfinite(self.high)

    @property
    def _low(self) -> np.ndarray:
        return np.where(self._bounded, self.low, 0.0)

    @property
    def _high(self) -> np.ndarray:
        return np.where(self._bounded, self.high, 0.0)

    def translator(self) -> Callable[[np.ndarray], tuple[np.ndarray, Any]]:
        """A function from actions [N, A] to the numbers that costs use, and to the environments' actions."""
        if self.choices is not None:
            table, dtype = self.choices.table(), self.dtype
            several = bool(self.choices.shape)
            numbers = table.reshape(self.size, -1).astype(np.float64) if several else np.eye(self.size)

            def choose(actions: np.ndarray) -> tuple[np.ndarray, Any]:
                chosen = np.argmax(actions, axis=1)
                given = table[chosen]
                return numbers[chosen], given.astype(dtype) if several else given.tolist()

            return choose
        shift, scale, low, high = self.shift, self.scale, self.low, self.high
        shape, dtype = (-1, *self.shape), self.dtype

        def place(actions: np.ndarray) -> tuple[np.ndarray, Any]:
            given = np.minimum(np.maximum(shift + scale * actions, low), high)
            return given, given.astype(dtype).reshape(shape)

        return place


def choices(space: "Space[Any]") -> Choices | None:
    """The choices of an action space; None if its actions are vectors."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return Choices((int(space.n),), (int(space.start),))
    if isinstance(space, spaces.MultiDiscrete):
        start = getattr(space, "start", np.zeros_like(space.nvec))
        return Choices(tuple(space.nvec.reshape(-1).tolist()), tuple(start.reshape(-1).tolist()), space.nvec.shape)
    if isinstance(space, spaces.MultiBinary):
        entries = int(np.prod(space.shape))
        return Choices((2,) * entries, (0,) * entries, space.shape)
    return None


def actions(space: "Space[Any]") -> Actions:
    """The actions of a Box, or of a space of choices; other spaces are refused."""
    from gymnasium import spaces

    found = choices(space)
    if found is not None:
        n = found.size
        if found.shape and n > MOST_COMBINATIONS:
            raise InvalidInput(
                f"actions are a {type(space).__name__} space with {n:,} combinations of choices, and at most "
                f"{MOST_COMBINATIONS:,} are allowed: wrap the environment to take fewer, or a Box."
            )
        return Actions(n, found, found.shape, np.dtype(space.dtype or np.int64), np.zeros(n), np.ones(n))
    if isinstance(space, spaces.Box):
        size = int(np.prod(space.shape))
        if not 0 < size <= MOST_ENTRIES:
            raise InvalidInput(f"an action must have 1 to {MOST_ENTRIES:,} numbers, and this space has {size:,}.")
        if space.dtype is None or space.dtype.kind != "f":
            raise InvalidInput(
                f"actions are a Box of {space.dtype}, and only a Box of floating-point numbers is allowed."
            )
        low, high = (np.asarray(bound, dtype=np.float64).reshape(-1) for bound in (space.low, space.high))
        return Actions(size, None, space.shape, np.dtype(space.dtype), low, high)
    raise InvalidInput(
        f"actions are a {type(space).__name__} space, which is not supported; "
        "allowed are Box, Discrete, MultiDiscrete and MultiBinary: wrap the environment to take one."
    )
