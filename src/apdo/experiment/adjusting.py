"""Before a run jumps to an off-policy estimate: what speaks against it, by the checks of `apdo dual`."""

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
from apdo.experiment import buffers, dual_checks
from apdo.off_policy import dual_estimate

_CHECK = 3
"""Folded into an adjustment's key, so that its checks draw nothing that it drew."""


def doubts(training: loop.Training, state: loop.State, learner: PyTree) -> list[list[str]]:
    """For each seed why the data do not support its estimate, a sentence each; none where they do.

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
