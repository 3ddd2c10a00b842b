"""Returns and advantages against their definitions, written as plain loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from apdo.core.advantage import episode_totals, gae, standardise

DISCOUNT = np.array([0.99, 0.8, 1.0])
TRACE = np.array([0.95, 0.0, 1.0])
GAE = jax.jit(gae)


def signals(rng, batch):
    shape = (*batch.reward.shape, 3)
    return [rng.normal(size=shape).astype(np.float32) for _ in range(3)]


def definition(signal, value, next_value, terminated, ended, discount, trace):
    """A_t = Σ_l (γ·trace)^l δ_{t+l}, one entry at a time."""
    steps, environments, kinds = signal.shape
    advantage = np.zeros(signal.shape)
    for t in range(steps):
        for n in range(environments):
            for k in range(kinds):
                for later in range(t, steps):
                    bootstrap = 0.0 if terminated[later, n] else discount[k] * next_value[later, n, k]
                    error = signal[later, n, k] + bootstrap - value[later, n, k]
                    advantage[t, n, k] += (discount[k] * trace[k]) ** (later - t) * error
                    if ended[later, n]:
                        break
    return advantage


def of(batch, signal, value, next_value, discount=DISCOUNT, trace=TRACE):
    return np.asarray(
        GAE(
            jnp.asarray(signal),
            jnp.asarray(value),
            jnp.asarray(next_value),
            batch.terminated,
            batch.ended,
            jnp.asarray(discount, dtype=jnp.float32),
            jnp.asarray(trace, dtype=jnp.float32),
        )
    )


@pytest.mark.parametrize("seed", range(4))
def test_gae_equals_its_definition_on_random_episodes(random_batch, seed):
    rng = np.random.default_rng(seed)
    batch = random_batch(rng, 19, 5)
    terminated, ended = np.asarray(batch.terminated), np.asarray(batch.ended)
    assert terminated.any()
    assert np.asarray(batch.truncated).any()
    assert not ended[-1].all(), "no episode is cut off by the end of the batch"
    signal, value, next_value = signals(rng, batch)
    expected = definition(signal, value, next_value, terminated, ended, DISCOUNT, TRACE)
    np.testing.assert_allclose(of(batch, signal, value, next_value), expected, rtol=1e-4, atol=1e-5)


def test_gae_with_trace_one_is_the_discounted_sum_less_the_value(random_batch):
    rng = np.random.default_rng(1)
    batch = random_batch(rng, 19, 5)
    signal, value, next_value = signals(rng, batch)
    terminated, ended = np.asarray(batch.terminated), np.asarray(batch.ended)
    expected = np.zeros(signal.shape)
    for t, n, k in np.ndindex(signal.shape):
        total, factor, later = 0.0, 1.0, t
        while True:
            total += factor * signal[later, n, k]
            factor *= DISCOUNT[k]
            if ended[later, n] or later == len(signal) - 1:
                break
            later += 1
        if not terminated[later, n]:
            total += factor * next_value[later, n, k]
        expected[t, n, k] = total - value[t, n, k]
        # trace = 1 telescopes only where the next value is the next step's value
    chained = next_value.copy()
    chained[:-1] = np.where(ended[:-1, :, None], next_value[:-1], value[1:])
    actual = of(batch, signal, value, chained, trace=np.ones(3))
    last = ended.copy()
    last[-1] = True
    np.testing.assert_array_equal(chained[last], next_value[last])
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=2e-5)


def test_gae_with_trace_zero_is_the_one_step_error(random_batch):
    rng = np.random.default_rng(2)
    batch = random_batch(rng, 19, 5)
    signal, value, next_value = signals(rng, batch)
    alive = ~np.asarray(batch.terminated)[..., None]
    expected = signal + DISCOUNT * next_value * alive - value
    np.testing.assert_allclose(of(batch, signal, value, next_value, trace=np.zeros(3)), expected, rtol=1e-5, atol=1e-6)


def test_a_terminated_step_does_not_bootstrap_and_a_truncated_one_does(random_batch):
    rng = np.random.default_rng(3)
    batch = random_batch(rng, 19, 5)
    terminated, truncated = np.asarray(batch.terminated), np.asarray(batch.truncated)
    signal, value, next_value = signals(rng, batch)
    before = of(batch, signal, value, next_value)

    beyond_termination = np.where(terminated[..., None], 1e6, next_value).astype(np.float32)
    np.testing.assert_array_equal(of(batch, signal, value, beyond_termination), before)

    beyond_truncation = np.where(truncated[..., None], next_value + 1.0, next_value).astype(np.float32)
    change = of(batch, signal, value, beyond_truncation) - before
    np.testing.assert_allclose(change[truncated], np.broadcast_to(DISCOUNT, change[truncated].shape), atol=1e-5)


def test_nothing_after_the_end_of_an_episode_reaches_back_over_it(random_batch):
    rng = np.random.default_rng(4)
    batch = random_batch(rng, 19, 5)
    ended = np.asarray(batch.ended)
    signal, value, next_value = signals(rng, batch)
    before = of(batch, signal, value, next_value)
    for n in range(ended.shape[1]):
        end = int(np.argmax(ended[:, n]))
        assert ended[end, n]
        disturbed = signal.copy()
        disturbed[end + 1 :, n] += 100.0
        after = of(batch, disturbed, value, next_value)
        np.testing.assert_array_equal(after[: end + 1, n], before[: end + 1, n])
        np.testing.assert_array_less(50.0, after[end + 1 :, n] - before[end + 1 :, n])


def test_episode_totals_equal_a_loop_to_the_end_of_the_episode(random_batch):
    rng = np.random.default_rng(5)
    batch = random_batch(rng, 19, 5)
    signal, ended = signals(rng, batch)[0], np.asarray(batch.ended)
    expected = np.zeros(signal.shape)
    for t, n, k in np.ndindex(signal.shape):
        for later in range(t, len(signal)):
            expected[t, n, k] += DISCOUNT[k] ** (later - t) * signal[later, n, k]
            if ended[later, n]:
                break
    actual = jax.jit(episode_totals)(jnp.asarray(signal), batch.ended, jnp.asarray(DISCOUNT, dtype=jnp.float32))
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_standardised_advantages_have_mean_zero_and_variance_one_and_keep_their_order():
    raw = jnp.asarray(np.random.default_rng(0).normal(3.0, 7.0, size=(40, 25)), dtype=jnp.float32)
    done = np.asarray(standardise(raw), dtype=np.float64)
    assert abs(done.mean()) < 1e-5
    assert abs(done.std() - 1.0) < 1e-5
    np.testing.assert_array_equal(np.argsort(done, axis=None), np.argsort(np.asarray(raw), axis=None))
    np.testing.assert_allclose(standardise(0.5 * raw - 2.0), done, atol=1e-5)


@pytest.mark.parametrize("shape", [(10,), (1000,), (50, 77)])
def test_standardising_a_constant_gives_zero(shape):
    # Most constants are not exactly their own mean in single precision, and that error must not be blown up.
    for constant in (0.0, 1.0, 0.1, -3.3, 1000.1):
        same = standardise(jnp.full(shape, constant))
        np.testing.assert_allclose(same, np.zeros(shape), atol=1e-3, err_msg=f"constant {constant}")
