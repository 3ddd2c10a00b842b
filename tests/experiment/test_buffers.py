"""A training's buffer as whole episodes, against a twin that keeps lists."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from apdo.algorithms import pdo
from apdo.core import replay
from apdo.core.data import flatten
from apdo.errors import InvalidInput
from apdo.experiment import buffers
from apdo.off_policy.units import empty_buffer
from problems import Reach, training_of

STEPS, ENVIRONMENTS = 12, 3
BATCH = STEPS * ENVIRONMENTS


def training():
    return training_of(pdo, pdo.Config(), Reach(horizon=STEPS), environments=ENVIRONMENTS)


def batches(random_batch, count, actions=1):
    """Random ones in which an episode's observations follow each other."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(count):
        batch = random_batch(rng, STEPS, ENVIRONMENTS, observations=2, actions=actions, constraints=1)
        ends = (batch.terminated | batch.truncated)[:-1, :, None]
        following = jnp.where(ends, batch.next_observation[:-1], batch.observation[1:])
        last = batch.next_observation[-1:]
        found.append(dataclasses.replace(batch, next_observation=jnp.concatenate([following, last])))
    return found


def filled(seen, capacity):
    buffer = empty_buffer(training().problem, capacity)
    for batch in seen:
        buffer = replay.insert(buffer, flatten(batch))
    return buffer


def episodes(seen, kept):
    """The whole episodes among the last `kept` rows, in order of batch and environment: lists of (batch, t, n)."""
    oldest = len(seen) * BATCH - kept
    found = []
    for b, batch in enumerate(seen):
        for n in range(ENVIRONMENTS):
            here = []
            for t in range(STEPS):
                if batch.step[t, n] == 0:
                    here.append([])
                if here:
                    here[-1].append((b, t, n))
            # A later row of an episode is newer than its first one.
            found += [one for one in here if b * BATCH + one[0][1] * ENVIRONMENTS + n >= oldest]
    return found


@pytest.mark.parametrize("capacity", [3 * BATCH, 2 * BATCH, 2 * BATCH + 7, BATCH])
def test_the_dataset_is_every_episode_that_the_ring_still_has_from_its_first_step_on(random_batch, capacity):
    seen = batches(random_batch, 3)
    data = buffers.dataset_of(filled(seen, capacity), training())
    expected = episodes(seen, min(capacity, 3 * BATCH))
    assert data.episodes == len(expected)
    rows = [row for episode in expected for row in episode]
    assert data.samples == len(rows)
    for name in ("observation", "action", "reward", "cost", "next_observation", "terminated", "step"):
        there = [np.asarray(getattr(seen[b], name))[t, n] for b, t, n in rows]
        np.testing.assert_array_equal(getattr(data, name), np.asarray(there), err_msg=name)
    np.testing.assert_array_equal(np.diff(data.starts), [len(episode) for episode in expected][:-1])


def test_an_episode_counts_as_cut_off_where_another_follows_it_or_the_horizon_ends_it(random_batch):
    """Whether the end of the batch or the environment ended the last one, the ring does not say."""
    seen = batches(random_batch, 2)
    data = buffers.dataset_of(filled(seen, 2 * BATCH), training())
    rows = [row for episode in episodes(seen, 2 * BATCH) for row in episode]
    cut = [np.asarray(seen[b].truncated)[t, n] & (t < STEPS - 1 or seen[b].step[t, n] == STEPS - 1) for b, t, n in rows]
    np.testing.assert_array_equal(data.truncated, cut)


def test_the_dataset_has_the_problems_own_numbers(random_batch):
    known = training()
    data = buffers.dataset_of(filled(batches(random_batch, 1), BATCH), known)
    assert (data.discount, data.cost_discount) == (known.problem.discount, known.problem.cost_discount)
    assert (data.limits, data.horizon) == (known.problem.limits, known.problem.horizon)
    assert data.horizon_terminates is not known.problem.truncates
    assert data.cost_names == known.environment.cost_names
    assert data.choices == 0


def test_a_choice_is_its_number_again(random_batch):
    known = training()
    problem = dataclasses.replace(known.problem, action_size=3, discrete_actions=True)
    known = dataclasses.replace(known, problem=problem)
    [seen] = batches(random_batch, 1, actions=3)
    choices = np.random.default_rng(1).integers(0, 3, (STEPS, ENVIRONMENTS))
    seen = dataclasses.replace(seen, action=jnp.eye(3)[choices])
    buffer = replay.insert(empty_buffer(problem, BATCH), flatten(seen))
    data = buffers.dataset_of(buffer, known)
    expected = [choices[t, n] for episode in episodes([seen], BATCH) for _, t, n in episode]
    np.testing.assert_array_equal(np.argmax(data.action, axis=1), expected)
    assert data.choices == 3


def test_a_buffer_without_any_row_is_refused():
    with pytest.raises(InvalidInput, match="it is empty"):
        buffers.dataset_of(filled([], BATCH), training())
