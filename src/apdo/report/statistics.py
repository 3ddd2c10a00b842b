"""Statistics over seeds.

The S seeds of a run are S samples of a random training curve. They are few, and their distribution is skewed. So their
middle is the interquartile mean, and its uncertainty is estimated by a bootstrap over whole seeds (Agarwal et al. 2021,
"Deep reinforcement learning at the edge of the statistical precipice").
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from apdo.errors import InvalidInput

Statistic = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""A function that reduces axis 0, the seeds, and treats every other position separately."""

_BLOCK = 4_000_000
"""How many resampled numbers are in memory at the same time."""


def interquartile_mean(values: ArrayLike) -> NDArray[np.float64]:
    """The mean of the middle half of the values along axis 0, [S, ...] to [...].

    The sorted value i of S, counted from 0, represents the probabilities i/S to (i+1)/S. Its weight is the part of this
    range between 1/4 and 3/4. This is exact for every S: it equals the mean of the middle 2 S of 4 S values, if each
    value is repeated four times. A single value is its own mean. A NaN anywhere gives NaN there. Infinite values count
    only if they are in the middle half.
    """
    ordered = np.sort(_seeds(values), axis=0)
    count = ordered.shape[0]
    edges = np.arange(count + 1) / count
    weights = 2 * np.clip(np.minimum(edges[1:], 0.75) - np.maximum(edges[:-1], 0.25), 0, None)
    inside = weights > 1e-12
    mean = np.tensordot(weights[inside], ordered[inside], axes=1)
    # NaN sorts last, so it would be cut off with the upper quarter. It must not be lost.
    return np.where(np.isnan(ordered[-1]), np.nan, mean)


def bootstrap_interval(
    statistic: Statistic, values: ArrayLike, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The percentile bootstrap interval of a statistic of the seeds, [S, ...] to (low [...], high [...]).

    Whole seeds are drawn with replacement, and the same seeds for every other position, so that a seed's curve stays
    together. The same `seed` gives the same interval. A single seed has no spread: its interval is NaN.
    """
    if not 0 < level < 1:
        raise InvalidInput(f"the level of an interval must lie between 0 and 1, not {level}.")
    if resamples < 1:
        raise InvalidInput(f"a bootstrap needs at least one resample, not {resamples}.")
    values = _seeds(values)
    count, shape = values.shape[0], values.shape[1:]
    if count == 1:
        return np.full(shape, np.nan), np.full(shape, np.nan)
    drawn = np.random.default_rng(seed).integers(count, size=(count, resamples))
    flat = values.reshape(count, -1)
    width = max(1, _BLOCK // drawn.size)
    tails = [(1 - level) / 2, (1 + level) / 2]
    with np.errstate(invalid="ignore"):  # between two infinite resamples there is no number, and NaN says so
        blocks = [
            np.quantile(statistic(flat[:, start : start + width][drawn]), tails, axis=0)
            for start in range(0, flat.shape[1], width)
        ]
    low, high = np.concatenate(blocks, axis=1) if blocks else np.empty((2, 0))
    return low.reshape(shape), high.reshape(shape)


def _seeds(values: ArrayLike) -> NDArray[np.float64]:
    values = np.asarray(values, dtype=np.float64)
    if values.ndim == 0 or values.shape[0] == 0:
        raise InvalidInput("a statistic over seeds needs at least one seed.")
    return values
