"""Collecting on the host: what is recorded, the memory of acting, and what acting is handed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from apdo import hosted, loop
from apdo.experiment import opening, settings

pytest.importorskip("gymnasium", reason="Gymnasium is not installed")

from apdo.envs import of_object
from host_environments import Counting


def training_of(algorithm, **changes):
    name, task, _ = of_object(lambda: Counting(length=3))
    changes = {"batch": 24, "environments": 2, "max_episode_steps": 6, "limits": 1.0, "workers": "0"} | changes
    return opening.training_of(settings.make_experiment(algorithm, name, changes, task=task))


def test_a_batch_holds_every_step_with_the_observation_before_its_reset():
    """The actor acts by a memory that counts: within an episode it must agree with the step's own index."""
    training = training_of("pdo")
    copies = hosted.open_copies(training)

    def act(memory, observation, keys):
        return jnp.stack([memory, jnp.zeros_like(memory)], axis=1), memory + 1.0

    batch = hosted.collect(copies, act, jnp.zeros(()), jax.random.key(0), training.steps)
    copies.close()
    assert batch.reward.shape == (12, 2)
    expected = np.tile([0, 1, 2], 4)[:, None].repeat(2, axis=1)
    np.testing.assert_array_equal(batch.step, expected)
    np.testing.assert_array_equal(batch.action[..., 0], expected)
    np.testing.assert_array_equal(batch.observation[..., 1], expected)
    np.testing.assert_array_equal(batch.next_observation[..., 1], expected + 1)
    np.testing.assert_array_equal(batch.terminated, expected == 2)
    assert not batch.truncated.any()
    # The last observation of an episode is its own, not the next one's.
    np.testing.assert_array_equal(batch.observation[..., 0], batch.next_observation[..., 0])
    assert len(np.unique(batch.observation[..., 0])) == 8


def test_a_collection_depends_on_its_key_and_on_nothing_before_it():
    training = training_of("pdo")
    copies = hosted.open_copies(training)
    state = loop.start(training, [0])
    actor = hosted.Actor(lambda *a: training.algorithm.act(training.config, *a), training)
    act = actor.of(jax.tree.map(lambda leaf: leaf[0], state.algorithm), ())
    batches = [hosted.collect(copies, act, (), jax.random.key(k), training.steps) for k in (1, 2, 1)]
    copies.close()
    for first, again in zip(jax.tree.leaves(batches[0]), jax.tree.leaves(batches[2]), strict=True):
        np.testing.assert_array_equal(first, again)
    assert not np.array_equal(batches[0].observation, batches[1].observation)
    assert not np.array_equal(batches[0].action, batches[1].action)


@pytest.mark.parametrize("algorithm", ["pdo", "pd-ddpg"])
def test_acting_is_handed_what_it_reads_and_does_what_the_algorithm_does(algorithm):
    training = training_of(algorithm)
    state = loop.start(training, [3, 4]).algorithm
    memory = training.algorithm.memory(training.config, training.problem)
    actor = hosted.Actor(lambda *a: training.algorithm.act(training.config, *a), training)
    seen = np.random.default_rng(0).normal(size=(2, 2)).astype(np.float32)
    keys = jax.random.split(jax.random.key(5), 2)
    drawn = jax.random.key_data(keys)
    both, _ = actor.of_seeds(state, memory, (0, 1))(
        hosted.spread(memory, (2, 2)), np.stack([seen, seen]), np.stack([drawn, drawn])
    )
    for seed in (0, 1):
        own = jax.tree.map(lambda leaf, s=seed: leaf[s], state)
        actions, _ = actor.of(own, memory)(hosted.spread(memory, (2,)), seen, drawn)
        np.testing.assert_array_equal(both[seed], actions)
        for n in range(2):
            expected, _ = training.algorithm.act(training.config, own, memory, jnp.asarray(seen[n]), keys[n])
            np.testing.assert_allclose(actions[n], expected, rtol=1e-5, atol=1e-6)
    for read, _ in actor._compiled.values():
        assert len(read) < len(jax.tree.leaves(state))


def test_a_deterministic_evaluation_leaves_the_policys_deviation_unread_and_its_noise_out():
    training = training_of("pdo")
    policy = training.algorithm.learned_policy(jax.tree.map(lambda leaf: leaf[0], loop.start(training, [3]).algorithm))
    seen = []

    def played(deterministic, key):
        actions = []
        copies = hosted.open_copies(training, 2)
        step = copies.step

        def noting(*, last):
            actions.append(copies.arrays.action.copy())
            step(last=last)

        copies.step = noting
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(hosted, "open_copies", lambda *_: copies)
            totals = hosted.play(training, policy, jax.random.key(key), 2, np.ones(3), deterministic)
        seen.append(np.stack(actions))
        return totals

    # By hand: three steps in an episode, which earn 1 + 2 + 3 and cost half of that, whatever is done.
    for deterministic, key in ((True, 0), (True, 0), (False, 0), (False, 1)):
        np.testing.assert_array_equal(played(deterministic, key), [[6.0, 3.0, 3.0]] * 2)
    np.testing.assert_array_equal(seen[0], seen[1])
    assert np.abs(seen[0]).max() < 0.5
    assert not np.array_equal(seen[2], seen[3])
    assert np.abs(seen[2] - seen[0]).max() > 0.5
