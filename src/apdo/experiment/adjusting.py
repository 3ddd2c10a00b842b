"""Adjustments of one run, or of several in one program: the off-policy learners in pieces, saved as they go.

Each run has a learner file of its own, so that it goes on alone or with others; and each is asked by itself what speaks
against its estimate.
"""

import dataclasses
import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jaxtyping import PyTree

from apdo import loop
from apdo.algorithms.apdo import State as Adjustable
from apdo.core.data import Transition
from apdo.core.statistics import Statistics, normalised
from apdo.datasets import Dataset
from apdo.errors import InvalidInput, NumericalFailure
from apdo.experiment import buffers, checkpoint, dual_checks, rows, runner
from apdo.experiment.runner import Runner
from apdo.off_policy import dual_estimate

_CHECK = 3
"""Folded into an adjustment's key, so that its checks draw nothing that it drew."""
_PIECE = 100
"""Iterations that cannot be divided: the off-policy learner draws so many minibatches at once."""

Adjusted = dict[str, np.ndarray] | NumericalFailure
"""What a run's seeds were adjusted to, as its records have it; or what ended it."""


@dataclasses.dataclass(frozen=True)
class Part:
    """A run and its rows of the state."""

    work: Runner
    rows: slice


def adjust(
    parts: Sequence[Part], state: loop.State, numbers: loop.Numbers = loop.NONE
) -> tuple[loop.State, list[Adjusted]]:
    """The adjustment of runs that share a state, and what came of it for each; other rows stay as they are.

    It works in pieces of about `runner.REPORT_EVERY` seconds. A run whose learner fails takes no other along.
    """
    adjuster = parts[0].work.adjuster
    learner, failures = _learn(parts, state, numbers)
    asked, supported = (np.zeros(state.key.shape, dtype=bool) for _ in range(2))
    for part in parts:
        part.work.progress.end_phase()
        if part.work not in failures:
            asked[part.rows] = True
            supported[part.rows] = _supported(part, state, learner)
    epoch = int(state.epoch)
    state, found = adjuster.finish(state, learner, supported, asked, numbers)
    names = {"adjusted_multiplier": found.multiplier, "adjusted_low": found.low, "adjusted_high": found.high}
    every = {name: np.asarray(values) for name, values in names.items()}
    outcomes: list[Adjusted] = []
    for part in parts:
        adjusted = {name: values[part.rows] for name, values in every.items()}
        if part.work not in failures and np.isfinite(adjusted["adjusted_multiplier"]).any():
            part.work.adjusted_at = epoch
        outcomes.append(failures.get(part.work, adjusted))
    return state, outcomes


def _learn(
    parts: Sequence[Part], state: loop.State, numbers: loop.Numbers
) -> tuple[PyTree, dict[Runner, NumericalFailure]]:
    """The learners after all of their iterations, and the runs in which one came to nothing."""
    first = parts[0].work
    adjuster, total, size = first.adjuster, first.adjuster.total, _PIECE
    learner, done = _learners(parts, state, numbers)
    live, failures = list(parts), {}
    while done.min() < total:
        # Those that are ahead, since they were saved later than others, wait.
        more = np.maximum(np.minimum(done.min() + size, total) - done, 0)
        began = time.perf_counter()
        learner = jax.block_until_ready(adjuster.work(state, learner, more, numbers))
        elapsed = time.perf_counter() - began
        done += more
        multiplier = np.asarray(adjuster.shown(learner))
        multiplier = multiplier.reshape(len(done), -1, multiplier.shape[-1])
        for part in tuple(live):
            if failure := _watch(part, state, multiplier[part.rows], int(done[part.rows].min())):
                failures[part.work] = failure
                live.remove(part)
                done[part.rows] = total
        size = max(_PIECE, int(size * min(4.0, runner.REPORT_EVERY / elapsed)) // _PIECE * _PIECE)
        if done.min() < total and (first.stop.asked or any(part.work.time_to_save() for part in live)):
            _save(live, state, learner, done)
    return learner, failures


def _watch(part: Part, state: loop.State, multiplier: np.ndarray, done: int) -> NumericalFailure | None:
    """Show how far a run's learners are; the failure, told of in its folder, if one is not finite."""
    finite = np.isfinite(multiplier).all(axis=(1, 2))
    if not finite.all():
        try:
            part.work.fail(rows.of(state, part.rows), "off-policy multiplier", np.asarray(~finite))
        except NumericalFailure as failure:
            return failure
    shown = ", ".join(f"{value:.3g}" for value in np.median(multiplier, axis=1).mean(axis=0))
    total = part.work.adjuster.total
    part.work.progress.phase("training the multiplier off-policy", done, total, f"so far {shown}")
    return None


def _learners(parts: Sequence[Part], state: loop.State, numbers: loop.Numbers) -> tuple[PyTree, np.ndarray]:
    """The learners with the iterations of each row: of adjustments that were interrupted, or fresh ones."""
    adjuster, count = parts[0].work.adjuster, state.key.shape[0]
    done = np.full(count, adjuster.total)
    like = jax.eval_shape(adjuster.begin, state, numbers)
    saved = [(part.rows, _saved(part, state, like)) for part in parts]
    for own, found in saved:
        done[own] = 0 if found is None else int(found["done"])
    if len(parts[0].work.seeds) == count and (whole := saved[0][1]) is not None:
        return whole["learner"], done
    learner = adjuster.begin(state, numbers)
    for own, found in saved:
        if found is not None:
            learner = jax.tree.map(lambda all_, one, own=own: all_.at[own].set(one), learner, found["learner"])
    return learner, done


def _saved(part: Part, state: loop.State, like: PyTree) -> PyTree | None:
    """What a run has kept of the learners of an adjustment that was interrupted."""
    path = checkpoint.learner_path(part.work.record.folder, int(state.epoch))
    if not path.exists():
        return None
    size = (part.rows.stop - part.rows.start,)
    own = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(size + leaf.shape[1:], leaf.dtype), like)
    try:
        found = checkpoint.load(path, {"done": jnp.asarray(0), "learner": own})
    except InvalidInput as error:
        part.work.progress.message(f"{error} The adjustment begins again.")
        checkpoint.set_aside(path)
        return None
    done = int(found["done"])
    return found if 0 < done < part.work.adjuster.total and done % _PIECE == 0 else None


def _save(parts: Sequence[Part], state: loop.State, learner: PyTree, done: np.ndarray) -> None:
    """Each run's learners into its folder; where that was asked for, the end of all of them."""
    epoch = int(state.epoch)
    for part in parts:
        own = jax.tree.map(lambda leaf, own=part.rows: leaf[own], learner)
        path = checkpoint.learner_path(part.work.record.folder, epoch)
        checkpoint.save(path, {"done": jnp.asarray(done[part.rows].min()), "learner": own}, epoch)
        part.work.saved_at, part.work.save_seconds = time.perf_counter(), 0.0
    first = parts[0]
    if first.work.stop.asked:
        where = f"stopped in the adjustment after {epoch} epochs, at {done[first.rows].min():,} of "
        how = runner.how_to_go_on(first.work.record.folder, first.work.experiment)
        said = f"{where}{first.work.adjuster.total:,} iterations, all saved. {how}"
        raise first.work.interrupted(said, rows.of(state, first.rows))


def _supported(part: Part, state: loop.State, learner: PyTree) -> list[bool]:
    """Whether the data support each seed's estimate; where they do not, the run says why."""
    work, epoch = part.work, int(state.epoch)
    reasons_by_seed = doubts(work.training, state, learner, part.rows)
    for seed, reasons in zip(work.seeds, reasons_by_seed, strict=True):
        if reasons:
            work.say(f"seed {seed}: no jump after {epoch} epochs, since {reasons[0]}.", epoch)
    return [not reasons for reasons in reasons_by_seed]


def doubts(training: loop.Training, state: loop.State, learner: PyTree, of: slice = slice(None)) -> list[list[str]]:
    """For each seed of some rows why the data do not support its estimate, by the checks of `apdo dual`.

    Each is a sentence. A seed that waits for no adjustment, or whose estimates are to be believed as they are, is not
    looked at.
    """
    adjustment = training.algorithm.adjustment  # type: ignore[attr-defined]
    config = adjustment.checked(training.config)
    seeds = range(*of.indices(state.key.shape[0]))
    if config is None:
        return [[] for _ in seeds]
    found = []
    for s in seeds:
        own, members = jax.tree.map(lambda leaf, s=s: leaf[s], (state.algorithm, learner))
        waits = bool(adjustment.open(training.config, own))
        key = random.fold_in(random.fold_in(state.key[s], state.epoch), _CHECK)
        found.append(_doubts(config, training, getattr(own, "inner", own), members, key) if waits else [])
    return found


def _doubts(
    config: dual_estimate.Config, training: loop.Training, state: Adjustable, members: PyTree, key: jax.Array
) -> list[str]:
    data = buffers.dataset_of(state.buffer, training)
    data = data.with_limits(np.asarray(training.problem.limits) - np.asarray(state.unseen, np.float64))
    checks = dual_checks.Checks()
    about = dual_checks.diagnose(checks, config, training.problem, data, _as_seen(data, state.statistics), members, key)
    return list(dual_checks.against(checks, data, dual_estimate.estimate(members), about))


def _as_seen(data: Dataset, statistics: Statistics | None) -> Transition:
    batch = Transition(
        observation=jnp.asarray(data.observation),
        action=jnp.asarray(data.action, dtype=np.float32),
        reward=jnp.asarray(data.reward),
        cost=jnp.asarray(data.cost),
        next_observation=jnp.asarray(data.next_observation),
        terminated=jnp.asarray(data.terminated),
        truncated=jnp.asarray(data.truncated),
        step=jnp.asarray(data.step, dtype=jnp.int32),
    )
    return normalised(statistics, batch)
