"""Adjustments of one run or of many: the off-policy learners work in pieces, and are saved between them.

A learner takes many small steps, which leave most of an accelerator idle. So the learners of all runs that wait for an
adjustment work side by side, even if these runs belong to different programs (`Request`): runs with different K_adj
have buffers of different sizes. Each run has its own learner file, so that it can continue alone or with others. The
checks of an estimate are made for each run separately.
"""

import dataclasses
import itertools
import time
from collections.abc import Mapping, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jaxtyping import Array, PyTree

from apdo import arguments, loop
from apdo.algorithms.apdo import State as Adjustable
from apdo.core import replay
from apdo.core.data import Transition
from apdo.core.statistics import Statistics, normalised
from apdo.datasets import Dataset
from apdo.errors import InvalidInput, NumericalFailure
from apdo.experiment import buffers, checkpoint, dual_checks, rows, runner
from apdo.experiment.runner import Runner
from apdo.off_policy import dual_estimate

_CHECK = 3
"""Folded into an adjustment's key, so that its checks use other random numbers than the adjustment itself."""
_PIECE = 100
"""Iterations that cannot be divided: the off-policy learner draws this many minibatches at once."""

Adjusted = dict[str, np.ndarray] | NumericalFailure
"""The adjusted multipliers of a run's seeds, as its records store them; or the failure that ended the run."""


@dataclasses.dataclass(frozen=True)
class Part:
    """A run and its rows of the state."""

    work: Runner
    rows: slice


@dataclasses.dataclass(frozen=True)
class Request:
    """An adjustment that some runs of one program wait for. Rows of the other runs stay unchanged."""

    parts: Sequence[Part]
    state: loop.State
    numbers: loop.Numbers = dataclasses.field(default_factory=dict)

    @property
    def adjuster(self) -> loop.Adjuster:
        """The object that makes the adjustment."""
        return self.parts[0].work.adjuster

    @property
    def count(self) -> int:
        """The number of rows of the state."""
        return self.state.key.shape[0]


Answer = tuple[loop.State, list[Adjusted]]
"""The state after an adjustment, and the outcome for each run."""


def adjust(requests: Sequence[Request]) -> list[Answer]:
    """Make the adjustments of one program, or of several programs with equal `learning`: their learners work side by
    side.

    They work in pieces of about `runner.REPORT_EVERY` seconds. If a run's learner fails, the other runs continue.
    """
    learners, failures = _learn(requests)
    return [_finish(request, learner, failures) for request, learner in zip(requests, learners, strict=True)]


def learning(training: loop.Training) -> object:
    """A key that is equal for programs whose learners can work side by side; None for a program without learners."""
    adjustment = getattr(training.algorithm, "adjustment", None)
    if adjustment is None:
        return None
    timeless = dataclasses.replace(training, config=adjustment.timeless(training.config))
    return arguments.structure(timeless)


def _finish(request: Request, learner: PyTree, failures: Mapping[Runner, NumericalFailure]) -> Answer:
    parts, state = request.parts, request.state
    asked, supported = (np.zeros(request.count, dtype=bool) for _ in range(2))
    for part in parts:
        part.work.progress.end_phase()
        if part.work not in failures:
            asked[part.rows] = True
            supported[part.rows] = _supported(part, state, learner)
    epoch = int(state.epoch)
    state, found = request.adjuster.finish(state, learner, supported, asked, request.numbers)
    names = {"adjusted_multiplier": found.multiplier, "adjusted_low": found.low, "adjusted_high": found.high}
    every = {name: np.asarray(values) for name, values in names.items()}
    outcomes: list[Adjusted] = []
    for part in parts:
        adjusted = {name: values[part.rows] for name, values in every.items()}
        if part.work not in failures and np.isfinite(adjusted["adjusted_multiplier"]).any():
            part.work.adjusted_at = epoch
        outcomes.append(failures.get(part.work, adjusted))
    return state, outcomes


@dataclasses.dataclass(frozen=True)
class _Learning:
    """A run whose learners are working: its part, the state of its program, and its rows among all learners."""

    part: Part
    state: loop.State
    rows: slice


def _learn(requests: Sequence[Request]) -> tuple[list[PyTree], dict[Runner, NumericalFailure]]:
    """The learners of each request after all of their iterations, and the failures by run."""
    adjuster, state, numbers = requests[0].adjuster, _joined_states(requests), _joined_numbers(requests)
    first, total, size = requests[0].parts[0].work, adjuster.total, _PIECE
    begun = [_learners(request) for request in requests]
    learner, done = _joined([learner for learner, _ in begun]), np.concatenate([done for _, done in begun])
    edges = np.cumsum([0, *(request.count for request in requests)]).tolist()
    live = [
        _Learning(part, request.state, slice(part.rows.start + edge, part.rows.stop + edge))
        for request, edge in zip(requests, edges[:-1], strict=True)
        for part in request.parts
    ]
    failures: dict[Runner, NumericalFailure] = {}
    while done.min() < total:
        # Learners that are ahead, because they were saved later than others, wait.
        more = np.maximum(np.minimum(done.min() + size, total) - done, 0)
        began = time.perf_counter()
        learner = jax.block_until_ready(adjuster.work(state, learner, more, numbers))
        elapsed = time.perf_counter() - began
        done += more
        multiplier = np.asarray(adjuster.shown(learner))
        multiplier = multiplier.reshape(len(done), -1, multiplier.shape[-1])
        for one in tuple(live):
            if failure := _watch(one, multiplier[one.rows], int(done[one.rows].min())):
                failures[one.part.work] = failure
                live.remove(one)
                done[one.rows] = total
        size = max(_PIECE, int(size * min(4.0, runner.REPORT_EVERY / elapsed)) // _PIECE * _PIECE)
        if done.min() < total and (first.stop.asked or any(one.part.work.time_to_save() for one in live)):
            _save(live, learner, done)
    if len(requests) == 1:
        return [learner], failures
    return jax.jit(partial(_split, edges))(learner), failures


def _split(edges: Sequence[int], tree: PyTree) -> list[PyTree]:
    return [jax.tree.map(lambda leaf, a=a, b=b: leaf[a:b], tree) for a, b in itertools.pairwise(edges)]


def _joined(trees: Sequence[PyTree]) -> PyTree:
    """Trees concatenated along their first axis, in one program. One program for each leaf would compile longer."""
    return trees[0] if len(trees) == 1 else jax.jit(_concatenated)(*trees)


def _concatenated(*trees: PyTree) -> PyTree:
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *trees)


def _joined_states(requests: Sequence[Request]) -> loop.State:
    """The parts of the states that learners use, for all requests. Every buffer is as large as the largest."""
    states = [request.state for request in requests]
    if len(states) == 1:
        return states[0]

    def is_buffer(part: PyTree) -> bool:
        return isinstance(part, replay.Replay)

    every = [part for state in states for part in jax.tree.leaves(state.algorithm, is_leaf=is_buffer)]
    capacity = max((part.capacity for part in every if is_buffer(part)), default=0)
    enlarge = jax.vmap(lambda buffer: replay.enlarged(buffer, capacity))

    def alike(algorithm: PyTree) -> PyTree:
        return jax.tree.map(lambda part: enlarge(part) if is_buffer(part) else part, algorithm, is_leaf=is_buffer)

    join = jax.jit(lambda *algorithms: _concatenated(*map(alike, algorithms)))
    algorithm = join(*(state.algorithm for state in states))
    return loop.State(algorithm, _joined([state.key for state in states]), states[0].epoch)


def _joined_numbers(requests: Sequence[Request]) -> loop.Numbers:
    """The numbers in which any of the rows differ, with a value for each row."""

    def of(request: Request, name: str) -> Array:
        own = arguments.numbers(request.adjuster.training)
        return request.numbers.get(name, jnp.full(request.count, own[name]))

    names = sorted({name for request in requests for name in request.numbers})
    return {name: jnp.concatenate([of(request, name) for request in requests]) for name in names}


def _watch(one: _Learning, multiplier: np.ndarray, done: int) -> NumericalFailure | None:
    """Show the progress of a run's learners. If one is not finite, record the failure and return it."""
    finite, work = np.isfinite(multiplier).all(axis=(1, 2)), one.part.work
    if not finite.all():
        try:
            work.fail(rows.of(one.state, one.part.rows), "off-policy multiplier", np.asarray(~finite))
        except NumericalFailure as failure:
            return failure
    shown = ", ".join(f"{value:.3g}" for value in np.median(multiplier, axis=1).mean(axis=0))
    work.progress.phase("training the multiplier off-policy", done, work.adjuster.total, f"so far {shown}")
    return None


def _learners(request: Request) -> tuple[PyTree, np.ndarray]:
    """The learners, with the iterations that each row has done. Interrupted adjustments continue; others begin."""
    adjuster, parts, state = request.adjuster, request.parts, request.state
    done = np.full(request.count, adjuster.total)
    like = jax.eval_shape(adjuster.begin, state, request.numbers)
    saved = [(part.rows, _saved(part, state, like)) for part in parts]
    for own, found in saved:
        done[own] = 0 if found is None else int(found["done"])
    if len(parts[0].work.seeds) == request.count and (whole := saved[0][1]) is not None:
        return whole["learner"], done
    learner = adjuster.begin(state, request.numbers)
    for own, found in saved:
        if found is not None:
            learner = jax.tree.map(lambda every, one, own=own: every.at[own].set(one), learner, found["learner"])
    return learner, done


def _saved(part: Part, state: loop.State, like: PyTree) -> PyTree | None:
    """The learners that a run saved during an interrupted adjustment; None if there are none."""
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


def _save(learning: Sequence[_Learning], learner: PyTree, done: np.ndarray) -> None:
    """Save each run's learners in its folder, and stop if that was asked for."""
    here = rows.on_host(learner)
    for one in learning:
        work, epoch = one.part.work, int(one.state.epoch)
        own = jax.tree.map(lambda leaf, own=one.rows: leaf[own], here)
        path = checkpoint.learner_path(work.record.folder, epoch)
        checkpoint.save(path, {"done": jnp.asarray(done[one.rows].min()), "learner": own}, epoch)
        work.saved_at, work.save_seconds = time.perf_counter(), 0.0
    first, work = learning[0], learning[0].part.work
    if work.stop.asked:
        how_far = f"at {done[first.rows].min():,} of {work.adjuster.total:,} iterations, all saved."
        how = runner.how_to_go_on(work.record.folder, work.experiment)
        said = f"stopped in the adjustment after {int(first.state.epoch)} epochs, {how_far} {how}"
        raise work.interrupted(said, rows.of(first.state, first.part.rows))


def _supported(part: Part, state: loop.State, learner: PyTree) -> list[bool]:
    """Whether the data support each seed's estimate. If they do not, the run says why."""
    work, epoch = part.work, int(state.epoch)
    reasons_by_seed = doubts(work.training, state, learner, part.rows)
    for seed, reasons in zip(work.seeds, reasons_by_seed, strict=True):
        if reasons:
            work.say(f"seed {seed}: no jump after {epoch} epochs, since {reasons[0]}.", epoch)
    return [not reasons for reasons in reasons_by_seed]


def doubts(training: loop.Training, state: loop.State, learner: PyTree, of: slice = slice(None)) -> list[list[str]]:
    """For each seed of some rows, the reasons why the data do not support its estimate, by the checks of `apdo dual`.

    Each reason is a sentence. Seeds that do not wait for an adjustment, or whose configuration asks for no checks, get
    an empty list.
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
