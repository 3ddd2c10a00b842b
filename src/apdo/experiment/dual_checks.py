"""Checks of whether an estimate of λ* can be trusted. `apdo dual` uses them, and APDO before it jumps."""

import dataclasses
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from numpy.typing import NDArray

from apdo import objective
from apdo.core import replay
from apdo.core.data import Transition
from apdo.datasets import Dataset
from apdo.experiment.dual_findings import BLOCKS, Diagnostics, reasons
from apdo.off_policy import contract, critics, dual_diagnostics, dual_estimate
from apdo.off_policy.units import Units, view
from apdo.problem import Problem

_JUDGED = 4000
_NEIGHBOURLY = 1000
"""The number of episode starts and states on which actors are checked; fewer for choices, which need neighbours."""


@dataclasses.dataclass(frozen=True)
class Checks:
    """How thorough the checks are, and how strict."""

    iterations: int = 10_000
    """Iterations of the critics that are fitted to the logged policy."""
    tolerance: float = 0.1
    """How far critics may misjudge the cost and actors may miss it, as a share of the logged cost or of the limit."""
    fewest: int = 30
    """With fewer episodes no answer is supported."""


def against(checks: Checks, data: Dataset, found: dual_estimate.Estimate, about: Diagnostics) -> Iterator[str]:
    """The reasons why the data cannot support an estimate, a sentence each."""
    price, low, high = (np.asarray(part, np.float64) for part in (found.multiplier, found.low, found.high))
    yield from reasons(data, price, low, high, about, checks.tolerance, checks.fewest)


def diagnose(
    checks: Checks,
    config: dual_estimate.Config,
    problem: Problem,
    data: Dataset,
    batch: Transition,
    members: contract.OwnState,
    key: jax.Array,
) -> Diagnostics:
    """Measure what the checks need to know about the data and about members that have learned from them.

    `batch` is the data with observations and actions as the members see them, and with rewards and costs unscaled.
    """
    critic_key, judge_key = random.split(key)
    rng = np.random.default_rng(0)
    seen, units = view(config.learner, problem, replay.of(batch))
    critic_says, logged_says, tail = _calibrate(
        config.learner, seen, data, units.seen(batch), units, checks.iterations, critic_key
    )
    n = data.episodes
    parts = [logged_says[part, 1:].mean(axis=0) for part in np.array_split(np.arange(n), min(BLOCKS, n))]
    first = batch.observation[_draw(rng, data.starts, _JUDGED)]
    table = np.asarray(dual_estimate.judgements(config, seen, members, first, judge_key), np.float64)
    judged = table[..., 1:] * np.asarray(units.total)
    distance, outside = _coverage(config.learner, data, batch, members, rng)
    return Diagnostics(
        samples=data.samples,
        episodes=n,
        logged=logged_says.mean(axis=0),
        logged_error=logged_says.std(axis=0, ddof=1) / np.sqrt(n),
        blocks=np.asarray(parts),
        calibrated=critic_says.mean(axis=0),
        calibration_error=(critic_says - logged_says).std(axis=0, ddof=1) / np.sqrt(n),
        tail=tail,
        actor_cost=np.asarray(members.path.cost, np.float64),
        disagreement=judged.std(axis=1).mean(axis=0),
        swing=np.median(np.sqrt(np.asarray(members.path.swing, np.float64)), axis=0),
        distance=distance,
        outside=outside,
    )


def _calibrate(
    learner: contract.Settings,
    problem: Problem,
    data: Dataset,
    batch: Transition,
    units: Units,
    iterations: int,
    key: jax.Array,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """For each episode [N, K]: its sums as critics of the logged policy predict them, and as logged; shares beyond."""
    last = np.zeros(data.samples, dtype=bool)
    last[data.ends] = True
    after = np.minimum(np.arange(data.samples) + 1, data.samples - 1)
    steps = dual_diagnostics.Logged(
        batch=batch,
        next_action=batch.action[after],
        known=jnp.asarray(np.flatnonzero(~last | data.terminated)),
    )
    fit: Callable[..., critics.Critics] = jax.jit(
        lambda steps, key: dual_diagnostics.behaviour_critic(learner, problem, steps, iterations, key)
    )
    critic = fit(steps, key)

    # In the units of the limits. Where the limits are on totals, critics estimate these from discounted sums.
    size_of = np.asarray(units.sums)

    def says(rows: NDArray[np.int64]) -> NDArray[np.float64]:
        q = jax.jit(critics.Critics.q)(critic, batch.observation[rows], batch.action[rows], batch.step[rows])
        return np.asarray(q, np.float64).T * size_of

    ends = data.ends
    share = float(units.share)
    signals = np.concatenate([data.reward[ends, None], data.cost[ends]], axis=1) / share
    factors = np.asarray(objective.sum_discounts(problem))
    beyond = factors ** data.step[ends, None] * (says(ends) - signals) * ~data.terminated[ends, None]
    came = data.sums(factors) / share + beyond
    size = np.abs(came).mean(axis=0)
    return says(data.starts), came, np.abs(beyond).mean(axis=0) / np.where(size > 0.0, size, 1.0)


def _coverage(
    learner: contract.Settings, data: Dataset, batch: Transition, members: contract.OwnState, rng: np.random.Generator
) -> tuple[float | None, float]:
    rows = _draw(rng, np.arange(data.samples), _NEIGHBOURLY if data.choices else _JUDGED)
    done = np.asarray(dual_diagnostics.actions(learner, members, batch.observation[rows]))
    if not data.choices:
        everything = np.asarray(batch.action)
        return dual_diagnostics.coverage_of_vectors(done, everything[rows], everything)
    states = np.asarray(batch.observation)
    return None, dual_diagnostics.coverage_of_choices(done, states[rows], states, data.action, rng)


def _draw(rng: np.random.Generator, rows: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    return rows if len(rows) <= most else rng.choice(rows, most, replace=False)
