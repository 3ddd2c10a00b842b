"""Estimates λ* from logged data alone: `apdo dual`.

The estimate itself is `off_policy.dual_estimate`, which APDO also uses for its jump. Here the data can come from
anywhere: a run's buffer, a file, arrays. The learner's settings suit vectors of order one, so vectors of other sizes
are scaled first (`Scaling`). The learner scales rewards and costs itself.
"""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from numpy.typing import NDArray

from apdo import datasets, options
from apdo.core import replay
from apdo.core.data import Transition
from apdo.datasets import Dataset
from apdo.errors import InvalidInput, NumericalFailure
from apdo.experiment import dual_checks, logged
from apdo.experiment.compilation import keep_compiled_programs
from apdo.experiment.dual_findings import MultiplierEstimate
from apdo.experiment.progress import Progress
from apdo.off_policy import contract, dual_estimate
from apdo.options import OURS, one_of, option
from apdo.problem import Problem

_LOOKS = 60
"""How many points of the members' paths are kept."""


@dataclasses.dataclass(frozen=True)
class Config(dual_estimate.Config):
    """The options of `apdo dual`: those of the estimate, of its checks and of its verdict."""

    limits: tuple[float, ...] = option((), "one limit for each cost, with commas; empty: the data's own", "the data")
    seed: int = option(0, "the seed of the first weights and of the minibatches", OURS, within=(0, 2**31))
    scaling: str = option(
        "auto",
        "auto: scale observations and actions that are not of order one; none: do not",
        OURS,
        choices=one_of("auto", "none"),
    )
    check_iterations: int = option(
        10_000, "iterations of the critics of the logged policy, for calibration", OURS, above=0
    )
    tolerance: float = option(
        0.1, "the largest error of critics and actors, as a share of cost or limit", OURS, above=0.0
    )
    fewest: int = option(30, "with fewer episodes no answer is supported", OURS, above=1)


def estimate(
    source: str | Path | Dataset, changes: dict[str, Any], *, run_seed: int | None = None, quiet: bool = True
) -> MultiplierEstimate:
    """Estimate the multipliers from a run's buffer, a file of logged data, or a dataset. `changes` are options."""
    config = configure(changes)
    data, name = open_source(source, run_seed)
    if config.limits:
        data = data.with_limits(config.limits)
    keep_compiled_programs()
    with Progress(f"multipliers of {name}", 0, data.limits, quiet=quiet) as progress:
        return _estimate(config, data, progress)


def configure(changes: dict[str, Any]) -> Config:
    """The options with some changed; a single limit may be a plain number."""
    limits = changes.get("limits")
    if isinstance(limits, int | float):
        changes = changes | {"limits": (limits,)}
    elif isinstance(limits, np.ndarray):
        changes = changes | {"limits": tuple(limits.reshape(-1).tolist())}
    return options.override(Config(), changes)


def open_source(source: str | Path | Dataset, run_seed: int | None = None) -> tuple[Dataset, str]:
    """The logged data, and a name for them."""
    if isinstance(source, Dataset):
        return source, "the dataset"
    path = Path(source)
    try:
        is_folder, exists = path.is_dir(), path.exists()
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{str(source)!r} cannot be a run folder or a file: {error}.") from None
    if not exists:
        raise InvalidInput(f"there is no run folder or file {path}.")
    if is_folder:
        return logged.of_run(path, run_seed), str(path)
    if run_seed is not None:
        raise InvalidInput(f"{path} is a file, and only a run has seeds.")
    return datasets.load(path), str(path)


@dataclasses.dataclass(frozen=True, eq=False)
class Scaling:
    """How observations and actions are scaled for the learners: (x - shift) / scale."""

    observation: tuple[NDArray[np.float32], NDArray[np.float32]]
    action: tuple[NDArray[np.float32], NDArray[np.float32]]


def scaling(data: Dataset, how: str) -> Scaling:
    """The scaling that brings the vectors to order one. Entries that are of order one already stay as they are.

    An entry of an observation is of order one if its largest absolute value lies between 0.1 and 10. An entry of an
    action is of order one if its standard deviation lies between 0.2 and 2 and its mean within ±1.
    """
    seen, done = data.observation, data.action
    plain = (np.zeros(seen.shape[1], np.float32), np.ones(seen.shape[1], np.float32))
    still = (np.zeros(done.shape[1], np.float32), np.ones(done.shape[1], np.float32))
    if how == "none":
        return Scaling(plain, still)
    size = np.abs(seen).max(axis=0)
    observation = _standard(seen, (size == 0) | ((size >= 0.1) & (size <= 10.0)))
    mean, deviation = done.mean(axis=0, dtype=np.float64), done.std(axis=0, dtype=np.float64)
    fits = (deviation >= 0.2) & (deviation <= 2.0) & (np.abs(mean) <= 1.0)
    return Scaling(observation, still if data.choices else _standard(done, fits))


def _standard(values: NDArray[np.float32], fits: NDArray[np.bool_]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    mean, deviation = values.mean(axis=0, dtype=np.float64), values.std(axis=0, dtype=np.float64)
    deviation = np.where(deviation > 1e-6 * np.abs(mean), deviation, 1.0)
    return np.where(fits, 0.0, mean).astype(np.float32), np.where(fits, 1.0, deviation).astype(np.float32)


def _as_seen(data: Dataset, scale: Scaling) -> Transition:
    def standard(values: NDArray[np.float32], unit: tuple[NDArray[np.float32], NDArray[np.float32]]) -> jax.Array:
        return jnp.asarray((values - unit[0]) / unit[1])

    return Transition(
        observation=standard(data.observation, scale.observation),
        action=standard(data.action, scale.action),
        reward=jnp.asarray(data.reward),
        cost=jnp.asarray(data.cost),
        next_observation=standard(data.next_observation, scale.observation),
        terminated=jnp.asarray(data.terminated),
        truncated=jnp.asarray(data.truncated),
        step=jnp.asarray(data.step, dtype=jnp.int32),
    )


def _estimate(config: Config, data: Dataset, progress: Progress) -> MultiplierEstimate:
    batch = _as_seen(data, scaling(data, config.scaling))
    problem = Problem(
        observation_size=data.observation.shape[1],
        action_size=data.action.shape[1],
        batch=data.samples,
        limits=tuple(float(limit) for limit in data.limits),
        discount=data.discount,
        cost_discount=data.cost_discount,
        horizon=data.horizon,
        truncates=not data.horizon_terminates,
        discrete_actions=data.choices > 0,
    )
    key, buffer = random.key(config.seed), replay.of(batch)
    members, looks = _learn(config, problem, buffer, key, progress)
    found = dual_estimate.estimate(members)
    multiplier, low, high = (np.asarray(part, np.float64) for part in (found.multiplier, found.low, found.high))
    progress.phase("checking the critics against the logged episodes", 0, 1)
    checks = dual_checks.Checks(config.check_iterations, config.tolerance, config.fewest)
    about = dual_checks.diagnose(checks, config, problem, data, batch, members, random.fold_in(key, 1))
    progress.end_phase()
    return MultiplierEstimate(
        multiplier=multiplier,
        low=low,
        high=high,
        members=np.asarray(members.path.multiplier, np.float64),
        iterations=looks.iterations,
        path=looks.multiplier,
        limits=data.limits,
        cost_names=data.cost_names,
        diagnostics=about,
        unsupported=tuple(dual_checks.against(checks, data, found, about)),
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Looks:
    """Snapshots of the members while they learned, in the data's own units; multipliers without transient terms."""

    iterations: NDArray[np.int64]
    multiplier: NDArray[np.float64]


def _learn(
    config: Config,
    problem: Problem,
    buffer: replay.Replay,
    key: jax.Array,
    progress: Progress,
) -> tuple[contract.OwnState, _Looks]:
    """The members after all their iterations. They learn in pieces, with a snapshot after each."""
    learn = jax.jit(lambda members, buffer, count: dual_estimate.learn(config, problem, members, buffer, count))
    members = jax.jit(lambda key: dual_estimate.start(config, problem, key))(key)
    piece = max(1, config.iterations // (_LOOKS * dual_estimate.PIECE)) * dual_estimate.PIECE
    done, looks = 0, []
    while done < config.iterations:
        progress.phase(*_phase(config, done, members))
        size = min(piece, config.iterations - done)
        members = jax.block_until_ready(learn(members, buffer, jnp.asarray(size)))
        done += size
        if not np.all(np.isfinite(members.path.multiplier)):
            raise NumericalFailure(
                f"the multipliers are not finite after {done} iterations; try smaller learner.critic_rate and "
                "learner.dual_rate, or --scaling auto and learner.units data."
            )
        looks.append((done, np.asarray(members.path.latest)))
    progress.phase(*_phase(config, done, members))
    progress.end_phase()
    return members, _Looks(
        iterations=np.asarray([look[0] for look in looks]),
        multiplier=np.asarray([look[1] for look in looks], dtype=np.float64),
    )


def _phase(config: Config, done: int, members: contract.OwnState) -> tuple[str, int, int, str]:
    so_far = np.median(np.asarray(members.path.multiplier), axis=0)
    shown = "so far " + ", ".join(f"{value:.3g}" for value in so_far) if done else ""
    return "training the multiplier off-policy", done, config.iterations, shown
