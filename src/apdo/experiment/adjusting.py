"""A run's adjustments: the off-policy learner in pieces, saved as it goes, and what speaks against its estimate."""

import time

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
from apdo.errors import InvalidInput
from apdo.experiment import buffers, checkpoint, dual_checks, runner
from apdo.experiment.runner import Runner
from apdo.off_policy import dual_estimate

_CHECK = 3
"""Folded into an adjustment's key, so that its checks draw nothing that it drew."""
_PIECE = 100
"""Iterations that cannot be divided: the off-policy learner draws so many minibatches at once."""


def adjust(work: Runner, state: loop.State) -> tuple[loop.State, dict[str, np.ndarray]]:
    """The algorithm's adjustment, in pieces of about `runner.REPORT_EVERY` seconds; its learner is saved as it goes."""
    total, size = work.adjuster.total, _PIECE
    learner, done = _learner(work, state)
    while done < total:
        size = min(size, total - done)
        began = time.perf_counter()
        learner = jax.block_until_ready(work.adjuster.work(state, learner, size))
        elapsed = time.perf_counter() - began
        done += size
        multiplier = np.asarray(work.adjuster.shown(learner))
        multiplier = multiplier.reshape(len(work.seeds), -1, multiplier.shape[-1])
        if not np.all(np.isfinite(multiplier)):
            work.fail(state, "off-policy multiplier", np.asarray(~np.isfinite(multiplier).all(axis=(1, 2))))
        shown = ", ".join(f"{value:.3g}" for value in np.median(multiplier, axis=1).mean(axis=0))
        work.progress.phase("training the multiplier off-policy", done, total, f"so far {shown}")
        size = max(_PIECE, int(size * min(4.0, runner.REPORT_EVERY / elapsed)) // _PIECE * _PIECE)
        if done < total and (work.stop.asked or work.time_to_save()):
            _save_learner(work, state, learner, done)
    work.progress.end_phase()
    reasons_by_seed = doubts(work.training, state, learner)
    for seed, reasons in zip(work.seeds, reasons_by_seed, strict=True):
        if reasons:
            work.say(f"seed {seed}: no jump after {int(state.epoch)} epochs, since {reasons[0]}.", int(state.epoch))
    supported = jnp.asarray([not reasons for reasons in reasons_by_seed])
    state, found = work.adjuster.finish(state, learner, supported)
    adjusted = {"adjusted_multiplier": found.multiplier, "adjusted_low": found.low, "adjusted_high": found.high}
    adjusted = {name: np.asarray(value) for name, value in adjusted.items()}
    if np.isfinite(adjusted["adjusted_multiplier"]).any():
        work.adjusted_at = int(state.epoch)
    return state, adjusted


def _learner(work: Runner, state: loop.State) -> tuple[PyTree, int]:
    """The learner of an adjustment that was interrupted, with its iterations; or a fresh one."""
    path = checkpoint.learner_path(work.record.folder, int(state.epoch))
    if path.exists():
        like = {"done": jnp.asarray(0), "learner": jax.eval_shape(work.adjuster.begin, state)}
        try:
            saved = checkpoint.load(path, like)
            done = int(saved["done"])
            if 0 < done < work.adjuster.total and done % _PIECE == 0:
                return saved["learner"], done
        except InvalidInput as error:
            work.progress.message(f"{error} The adjustment begins again.")
            checkpoint.set_aside(path)
    return work.adjuster.begin(state), 0


def _save_learner(work: Runner, state: loop.State, learner: PyTree, done: int) -> None:
    epoch = int(state.epoch)
    path = checkpoint.learner_path(work.record.folder, epoch)
    checkpoint.save(path, {"done": jnp.asarray(done), "learner": learner}, epoch)
    work.saved_at, work.save_seconds = time.perf_counter(), 0.0
    if work.stop.asked:
        how_far = f"stopped in the adjustment after {epoch} epochs, at {done:,} of {work.adjuster.total:,} iterations,"
        raise work.interrupted(
            f"{how_far} all saved. {runner.how_to_go_on(work.record.folder, work.experiment)}", state
        )


def doubts(training: loop.Training, state: loop.State, learner: PyTree) -> list[list[str]]:
    """For each seed why the data do not support its estimate, a sentence each, by the checks of `apdo dual`.

    A seed that waits for no adjustment, or whose estimates are to be believed as they are, is not looked at.
    """
    adjustment = training.algorithm.adjustment  # type: ignore[attr-defined]
    config = adjustment.checked(training.config)
    found = []
    for s in range(state.key.shape[0]):
        own, members = jax.tree.map(lambda leaf, s=s: leaf[s], (state.algorithm, learner))
        waits = bool(adjustment.open(training.config, own))
        key = random.fold_in(random.fold_in(state.key[s], state.epoch), _CHECK)
        found.append(_doubts(config, training, getattr(own, "inner", own), members, key) if config and waits else [])
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
