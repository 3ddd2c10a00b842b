"""The ring buffer against a python deque."""

from collections import deque
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from apdo.core import replay
from apdo.core.data import Transition, by_environment, flatten
from apdo.errors import InvalidInput

insert = jax.jit(replay.insert)
take = jax.jit(replay.take)
episode_starts = jax.jit(replay.episode_starts)
sample = partial(jax.jit, static_argnums=2)(replay.sample)


def numbered(numbers):
    """Transitions that carry their number in every field; each third begins an episode."""
    numbers = np.asarray(numbers, dtype=np.float32)
    return Transition(
        observation=jnp.asarray(numbers[:, None] + np.asarray([0.25, 0.5], np.float32)),
        action=jnp.asarray(-numbers[:, None]),
        reward=jnp.asarray(10.0 * numbers),
        cost=jnp.asarray(numbers[:, None] * np.asarray([2.0, 3.0], np.float32)),
        next_observation=jnp.asarray(numbers[:, None] + np.asarray([0.125, 0.75], np.float32)),
        terminated=jnp.asarray(numbers % 2 == 0),
        truncated=jnp.zeros(len(numbers), dtype=bool),
        step=jnp.asarray(numbers.astype(np.int32) % 3),
    )


def empty(capacity, batch):
    return replay.init(capacity, batch, observation_size=2, action_size=1, constraints=2)


def numbers_of(transitions):
    """The numbers of transitions made by `numbered`, once every field has been seen to agree on them."""
    numbers = np.round(np.asarray(transitions.reward) / 10.0)
    for stored, expected in zip(jax.tree.leaves(transitions), jax.tree.leaves(numbered(numbers.ravel())), strict=True):
        np.testing.assert_array_equal(np.asarray(stored).reshape(expected.shape), expected)
    return numbers.astype(int)


def held(ring):
    """The numbers of the transitions in the ring, in ascending order."""
    filled = min(int(ring.inserted), ring.capacity)
    everything = take(ring, jnp.asarray(np.arange(ring.capacity)))
    return sorted(numbers_of(jax.tree.map(lambda leaf: np.asarray(leaf)[:filled], everything)).tolist())


@pytest.mark.parametrize(("capacity", "batch"), [(7, 3), (10, 4), (5, 5)])
def test_the_ring_holds_what_a_deque_holds_after_any_sequence_of_insertions(capacity, batch):
    rng = np.random.default_rng(capacity)
    for _ in range(6):
        ring, twin, number = empty(capacity, batch), deque(maxlen=capacity), 1
        for size in rng.choice([1, batch], size=10):
            fresh = range(number, number + size)
            ring, number = insert(ring, numbered(fresh)), number + size
            twin.extend(fresh)
            assert int(ring.inserted) == number - 1
            assert int(ring.filled) == len(twin)
            assert held(ring) == sorted(twin)


def test_every_field_comes_back_bit_for_bit(random_batch):
    batch = flatten(random_batch(np.random.default_rng(0), 6, 5, observations=4, actions=3, constraints=2))
    extremes = np.asarray([np.finfo(np.float32).max, np.finfo(np.float32).tiny, -0.0, np.pi, 1 / 3], np.float32)
    batch = Transition(
        observation=batch.observation,
        action=batch.action,
        reward=jnp.asarray(np.resize(extremes, 30)),
        cost=batch.cost,
        next_observation=batch.next_observation,
        terminated=batch.terminated,
        truncated=batch.truncated,
        step=jnp.asarray(np.arange(30) + 2**24 - 30, dtype=jnp.int32),
    )
    ring = insert(replay.init(41, 30, observation_size=4, action_size=3, constraints=2), batch)
    back = take(ring, jnp.asarray(np.arange(30)))
    for field in ("observation", "action", "reward", "cost", "next_observation", "terminated", "step"):
        stored, original = np.asarray(getattr(back, field)), np.asarray(getattr(batch, field))
        assert stored.dtype == original.dtype
        assert stored.tobytes() == original.tobytes(), field
    assert batch.terminated.any()
    assert batch.truncated.any()
    assert not back.truncated.any(), "a truncated step bootstraps like any other, so the ring does not remember it"


def test_taking_rows_keeps_the_shape_and_the_order_of_the_index():
    ring = insert(insert(empty(10, 4), numbered([4, 8, 15, 16])), numbered([23, 42, 1, 2]))
    np.testing.assert_array_equal(numbers_of(take(ring, jnp.asarray([[5, 0], [2, 2]]))), [[42, 4], [15, 15]])


@pytest.mark.parametrize(("insertions", "expected"), [(1, range(1, 5)), (2, range(1, 9)), (5, range(11, 21))])
def test_samples_are_uniform_over_exactly_the_filled_rows(insertions, expected):
    ring = empty(10, 4)
    for i in range(insertions):
        ring = insert(ring, numbered(range(4 * i + 1, 4 * i + 5)))
    drawn = numbers_of(sample(ring, jax.random.key(0), (30, 200)))
    assert drawn.shape == (30, 200)
    values, counts = np.unique(drawn, return_counts=True)
    assert values.tolist() == list(expected)
    assert stats.chisquare(counts).pvalue > 1e-3
    np.testing.assert_array_equal(drawn, numbers_of(sample(ring, jax.random.key(0), (30, 200))))
    assert (drawn != numbers_of(sample(ring, jax.random.key(1), (30, 200)))).any()


@pytest.mark.parametrize("insertions", [0, 1, 2, 3, 7])
def test_episode_starts_are_exactly_the_filled_rows_with_step_zero(insertions):
    ring, twin = empty(10, 4), deque(maxlen=10)
    for i in range(insertions):
        fresh = range(4 * i + 1, 4 * i + 5)
        ring = insert(ring, numbered(fresh))
        twin.extend(fresh)
    rows, count = episode_starts(ring)
    expected = sorted(number for number in twin if number % 3 == 0)
    assert int(count) == len(expected)
    chosen = np.asarray(rows)[: int(count)]
    assert len(set(chosen.tolist())) == int(count)
    if expected:
        found = numbers_of(take(ring, rows))[: int(count)]
        assert sorted(found.tolist()) == expected


def test_a_ring_smaller_than_one_batch_is_refused_and_one_of_just_a_batch_is_not():
    with pytest.raises(InvalidInput, match="holds 3 transitions, fewer than one batch of 4"):
        empty(3, 4)
    assert held(insert(insert(empty(4, 4), numbered([1, 2, 3, 4])), numbered([5, 6, 7, 8]))) == [5, 6, 7, 8]


def test_rolling_back_forgets_the_last_insertion_and_keeping_keeps_it():
    before = insert(empty(10, 4), numbered([1, 2, 3, 4]))
    after = insert(before, numbered([5, 6, 7, 8]))
    undone = replay.roll_back(jnp.asarray(False), after, before)
    assert int(undone.inserted) == 4
    assert held(undone) == [1, 2, 3, 4]
    assert held(insert(undone, numbered([11, 12, 13, 14]))) == [1, 2, 3, 4, 11, 12, 13, 14]
    kept = replay.roll_back(jnp.asarray(True), after, before)
    assert int(kept.inserted) == 8
    assert held(kept) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_an_insertion_that_was_rolled_back_and_made_again_leaves_the_ring_of_one_insertion():
    before = empty(10, 4)
    for i in range(4):
        before = insert(before, numbered(range(4 * i + 1, 4 * i + 5)))
    after = insert(before, numbered([101, 102, 103, 104]))
    again = insert(replay.roll_back(jnp.asarray(False), after, before), numbered([101, 102, 103, 104]))
    assert held(again) == held(after)
    assert int(again.inserted) == int(after.inserted)


def test_a_batch_that_is_not_finite_leaves_the_ring_as_it_was():
    """Also where it would have run over the end of a full ring."""
    ring = empty(10, 4)
    for i in range(7):
        for bad in (jnp.nan, jnp.inf):
            broken = insert(ring, numbered([101, 102, bad, 104]))
            assert held(broken) == held(ring)
            assert int(broken.inserted) == int(ring.inserted)
        ring = insert(ring, numbered(range(4 * i + 1, 4 * i + 5)))


def test_a_ring_made_of_transitions_holds_just_them():
    batch = numbered(range(7))
    ring = replay.of(batch)
    assert int(ring.filled) == ring.capacity == 7
    back = take(ring, jnp.arange(7))
    for name in ("observation", "action", "reward", "cost", "next_observation", "terminated", "step"):
        np.testing.assert_array_equal(getattr(back, name), getattr(batch, name))


@pytest.mark.parametrize("inserted", [4, 8, 12])
def test_a_larger_ring_draws_the_same_transitions(inserted):
    """Of one that is half full, full, and written over."""
    ring = empty(8, 4)
    for first in range(0, inserted, 4):
        ring = insert(ring, numbered(range(first, first + 4)))
    larger = replay.enlarged(ring, 20)
    assert (larger.capacity, int(larger.filled)) == (20, int(ring.filled))
    for one, other in zip(
        jax.tree.leaves(sample(ring, jax.random.key(1), (50,))),
        jax.tree.leaves(sample(larger, jax.random.key(1), (50,))),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)
    (rows, count), (more, same) = episode_starts(ring), episode_starts(larger)
    assert int(count) == int(same)
    np.testing.assert_array_equal(rows[: int(count)], more[: int(count)])
    np.testing.assert_allclose(replay.spread(ring), replay.spread(larger), rtol=1e-6)


def test_the_range_of_the_signals_is_that_of_the_rows_in_the_ring():
    """Rows that are not filled yet or no longer there do not count; 0 is always within, for episodes may end."""
    ring = insert(empty(6, 3), numbered([5, 7, 6]))
    np.testing.assert_array_equal(replay.range_of(ring), [[0.0, 0.0, 0.0], [70.0, 14.0, 21.0]])
    ring = insert(insert(ring, numbered([-2, 1, 1])), numbered([3, 3, 4]))  # 5, 7 and 6 are overwritten
    np.testing.assert_array_equal(replay.range_of(ring), [[-20.0, -4.0, -6.0], [40.0, 8.0, 12.0]])


def episodes(rng, steps, environments, longest):
    """A batch [T, N] whose episodes end at random, or are cut off after so many steps."""
    shape = (steps, environments)
    step, terminated, truncated = np.zeros(shape, np.int32), np.zeros(shape, bool), np.zeros(shape, bool)
    for n in range(environments):
        k = 0
        for t in range(steps):
            step[t, n], k = k, k + 1
            terminated[t, n], truncated[t, n] = rng.random() < 0.2, k == longest
            truncated[t, n] &= not terminated[t, n]
            k = 0 if terminated[t, n] or truncated[t, n] else k

    def drawn(*size):
        return jnp.asarray(rng.normal(size=(*shape, *size)).astype(np.float32))

    return Transition(
        observation=drawn(2),
        action=drawn(1),
        reward=drawn(),
        cost=drawn(2),
        next_observation=drawn(2),
        terminated=jnp.asarray(terminated),
        truncated=jnp.asarray(truncated),
        step=jnp.asarray(step),
    )


def ahead(batch, t, n, most, discounts):
    """What follows a step for at most so many, by a walk: sums, how many, the last of them."""
    sums, count = np.zeros(3), 0
    while True:
        signals = np.concatenate([[batch.reward[t + count, n]], batch.cost[t + count, n]])
        sums += np.asarray(discounts) ** count * signals
        count += 1
        last = t + count - 1
        if count == most or batch.terminated[last, n] or batch.truncated[last, n] or last + 1 == len(batch.reward):
            return sums, count, last


def test_transitions_over_several_steps_equal_a_walk_along_their_episodes():
    """In a ring that has been written over, of two environments whose episodes end early or are cut off."""
    rng, ring, walked, discounts = np.random.default_rng(0), empty(32, 14), {}, (0.9, 0.5, 1.0)
    for number in range(4):
        batch = episodes(rng, 7, 2, longest=4)
        ring = insert(ring, by_environment(batch))
        for n in range(2):
            for t in range(7):
                walked[(14 * number + 7 * n + t) % 32] = (batch, t, n)
    found, steps = replay.take_ahead(ring, jnp.arange(32), 3, jnp.asarray(discounts))
    assert set(np.asarray(steps).tolist()) == {1, 2, 3}
    for row, (batch, t, n) in walked.items():
        sums, count, last = ahead(batch, t, n, 3, discounts)
        assert int(steps[row]) == count
        np.testing.assert_allclose(np.append(found.reward[row], found.cost[row]), sums, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(found.observation[row], batch.observation[t, n])
        np.testing.assert_array_equal(found.next_observation[row], batch.next_observation[last, n])
        assert bool(found.terminated[row]) == bool(batch.terminated[last, n])


def test_one_step_ahead_is_the_transition_itself():
    ring = insert(empty(8, 6), numbered(range(6)))
    found, steps = replay.take_ahead(ring, jnp.arange(6), 1, jnp.asarray([0.9, 0.5, 1.0]))
    np.testing.assert_array_equal(steps, 1)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(take(ring, jnp.arange(6))), strict=True):
        np.testing.assert_array_equal(one, other)
