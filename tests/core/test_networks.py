"""Networks against plain matrix arithmetic."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from apdo.core import networks


def forward(weights, biases, x):
    """The same network in float64, one neuron at a time."""
    x = np.asarray(x, dtype=np.float64)
    for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        weight, bias = np.asarray(weight, dtype=np.float64), np.asarray(bias, dtype=np.float64)
        sums = []
        for j in range(weight.shape[1]):
            sums.append(bias[j] + sum(weight[i, j] * x[i] for i in range(weight.shape[0])))
        x = np.array(sums) if layer == len(weights) - 1 else np.tanh(sums)
    return x


def random_network(rng, sizes, count=()):
    """A network (or a stack of them) with random weights and biases."""
    pairs = list(itertools.pairwise(sizes))
    weights = [rng.normal(size=(*count, i, j)) / np.sqrt(i) for i, j in pairs]
    biases = [rng.normal(size=(*count, j)) for _, j in pairs]
    return networks.MLP(
        weights=tuple(jnp.asarray(w, dtype=jnp.float32) for w in weights),
        biases=tuple(jnp.asarray(b, dtype=jnp.float32) for b in biases),
    )


apply = jax.jit(jax.vmap(lambda network, x: network(x), in_axes=(None, 0)))


@pytest.mark.parametrize("hidden", [(), (5,), (6, 4)])
def test_a_network_is_tanh_layers_with_a_linear_output(hidden):
    rng = np.random.default_rng(0)
    network = random_network(rng, (3, *hidden, 2))
    x = 2.0 * rng.normal(size=(7, 3)).astype(np.float32)
    expected = [forward(network.weights, network.biases, row) for row in x]
    np.testing.assert_allclose(apply(network, x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("hidden", [(), (5,), (6, 4)])
def test_a_stack_answers_as_its_networks_do_one_by_one(hidden, outputs):
    rng = np.random.default_rng(1)
    stack = random_network(rng, (3, *hidden, outputs), count=(4,))
    x = jnp.asarray(2.0 * rng.normal(size=(7, 3)), dtype=jnp.float32)
    answers = np.asarray(jax.jit(networks.apply_stack)(stack, x))
    assert answers.shape == (4, 7, outputs)
    for k in range(4):
        weights = [np.asarray(w)[k] for w in stack.weights]
        biases = [np.asarray(b)[k] for b in stack.biases]
        single = networks.MLP(weights=tuple(map(jnp.asarray, weights)), biases=tuple(map(jnp.asarray, biases)))
        np.testing.assert_allclose(answers[k], apply(single, x), rtol=1e-5, atol=1e-6)
        expected = [forward(weights, biases, row) for row in np.asarray(x)]
        np.testing.assert_allclose(answers[k], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("way", [networks.one_by_one, networks.all_at_once])
def test_each_network_of_a_stack_may_have_an_activation_of_its_own_and_so_have_parts_of_the_stack(way):
    rng = np.random.default_rng(5)
    kinds = ("normalised-relu", "relu", "tanh", "relu")
    plain = random_network(rng, (3, 6, 5, 2), count=(4,))
    mixed = networks.MLP(plain.weights, plain.biases, kinds)
    x = jnp.asarray(2.0 * rng.normal(size=(7, 3)), dtype=jnp.float32)
    found = np.asarray(jax.jit(way)(mixed, x))
    for k, kind in enumerate(kinds):
        alone = networks.MLP(plain.weights, plain.biases, kind)
        expected = np.asarray(way(alone, x))[k]
        np.testing.assert_allclose(found[k], expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(apply(mixed.part(k), x), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(way(mixed.part(slice(2)), x), found[:2], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(way(mixed.part(slice(2, None)), x), found[2:], rtol=1e-5, atol=1e-6)


def test_a_stacks_networks_are_those_of_the_split_keys_and_all_different():
    keys = jax.random.split(jax.random.key(3), 3)
    stack = networks.stack(jax.random.key(3), 3, 4, ())
    single = jax.jit(lambda key: networks.mlp(key, 4, (), 1))
    for k in range(3):
        for stacked, alone in zip(jax.tree.leaves(stack), jax.tree.leaves(single(keys[k])), strict=True):
            np.testing.assert_allclose(np.asarray(stacked)[k], alone, rtol=1e-6, atol=1e-8)
    assert len(np.unique(np.asarray(stack.weights[0]).reshape(3, -1), axis=0)) == 3


SIZES = (30, 30, 30, 30)


@pytest.fixture(scope="module")
def fresh():
    return networks.mlp(jax.random.key(0), SIZES[0], SIZES[1:-1], SIZES[-1])


def test_weights_start_uniform_within_their_bounds_and_biases_at_zero(fresh):
    for layer, weight in enumerate(fresh.weights):
        assert weight.shape == (SIZES[layer], SIZES[layer + 1])
        ratio = np.asarray(weight) / np.sqrt(6.0 / (SIZES[layer] + SIZES[layer + 1]))
        assert 0.98 < np.abs(ratio).max() <= 1.0 + 1e-6
        assert stats.kstest(ratio.ravel(), stats.uniform(-1.0, 2.0).cdf).pvalue > 1e-3
        np.testing.assert_array_equal(fresh.biases[layer], np.zeros(SIZES[layer + 1]))


@pytest.mark.parametrize("outputs", [1, 2])
def test_the_two_ways_to_evaluate_a_stack_agree_with_their_gradients(outputs):
    stack = networks.stack(jax.random.key(3), 3, 4, (8, 5), outputs)
    x = jax.random.normal(jax.random.key(4), (7, 4))
    outcomes = []
    for way in (networks.one_by_one, networks.all_at_once):
        outcomes.append(jax.jit(jax.value_and_grad(lambda s, way=way: (way(s, x) ** 3).sum()))(stack))
    for ours, theirs in zip(*map(jax.tree.leaves, outcomes), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_a_scaled_last_layer_is_the_unscaled_one_times_the_factor():
    plain, scaled = (networks.mlp(jax.random.key(2), 3, (5,), 2, scale) for scale in (1.0, 0.01))
    np.testing.assert_array_equal(scaled.weights[0], plain.weights[0])
    np.testing.assert_allclose(scaled.weights[1], 0.01 * np.asarray(plain.weights[1]), rtol=1e-6)


def test_layers_of_equal_size_do_not_share_their_weights(fresh):
    weights = [np.asarray(weight) for weight in fresh.weights]
    for one, other in itertools.combinations(weights, 2):
        assert (one == other).mean() < 0.01


def test_bounds_follow_each_layers_own_fan_in_and_fan_out():
    network = networks.mlp(jax.random.key(1), 2, (200,), 3)
    for weight, bound in zip(network.weights, (np.sqrt(6 / 202), np.sqrt(6 / 203)), strict=True):
        assert 0.95 * bound < np.abs(np.asarray(weight)).max() <= bound * (1 + 1e-6)
    assert [bias.shape for bias in network.biases] == [(200,), (3,)]


@pytest.mark.parametrize("count", [(), (3,)])
@pytest.mark.parametrize("hidden", [(), (5,), (6, 4)])
def test_a_rebased_network_is_the_same_function_of_the_inputs_before(hidden, count):
    """What was x is now scale · x + shift in the first entries; the others, a clock say, are as they were."""
    rng = np.random.default_rng(7)
    network = random_network(rng, (4, *hidden, 2), count=count)
    scale, shift = rng.uniform(0.2, 5.0, 3), rng.normal(size=3)
    now = rng.normal(size=(9, 4))
    before = now.copy()
    before[:, :3] = scale * now[:, :3] + shift
    moved = networks.rebase(network, jnp.asarray(scale, jnp.float32), jnp.asarray(shift, jnp.float32))
    answer = networks.apply_stack if count else apply
    expected = answer(network, jnp.asarray(before, jnp.float32))
    np.testing.assert_allclose(answer(moved, jnp.asarray(now, jnp.float32)), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(moved.weights[0][..., 3, :], network.weights[0][..., 3, :])


def test_rebasing_by_nothing_changes_no_bit():
    network = random_network(np.random.default_rng(8), (3, 5, 2))
    same = networks.rebase(network, jnp.ones(3), jnp.zeros(3))
    for ours, theirs in zip(jax.tree.leaves(same), jax.tree.leaves(network), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def normalised_network(rng, sizes, count=()):
    own = random_network(rng, sizes, count)
    return networks.MLP(own.weights, own.biases, "normalised-relu")


def test_a_normalised_layer_hands_on_what_has_mean_0_and_deviation_1_before_the_relu():
    network = normalised_network(np.random.default_rng(0), [3, 50, 2])
    x = jnp.asarray([0.3, -2.0, 5.0])
    sums = np.asarray(x, dtype=np.float64) @ np.asarray(network.weights[0]) + np.asarray(network.biases[0])
    standard = (sums - sums.mean()) / sums.std()
    expected = np.maximum(standard, 0.0) @ np.asarray(network.weights[1]) + np.asarray(network.biases[1])
    np.testing.assert_allclose(network(x), expected, rtol=1e-4, atol=1e-5)


def test_far_from_all_inputs_a_normalised_network_says_no_more_than_its_last_layer_can():
    rng = np.random.default_rng(1)
    network = normalised_network(rng, [4, 30, 30, 1])
    plain = networks.MLP(network.weights, network.biases, "relu")
    far = jnp.asarray(1e4 * rng.normal(size=(100, 4)), dtype=jnp.float32)
    # A layer of n entries of deviation 1 has the length √n.
    most = np.sqrt(30) * np.linalg.norm(network.weights[-1]) + np.abs(network.biases[-1])
    assert np.all(np.abs(jax.vmap(network)(far)[:, 0]) <= most)
    assert np.median(np.abs(jax.vmap(plain)(far)[:, 0])) > 100.0 * most


def test_normalised_stacks_and_rebased_ones_are_the_same_functions():
    rng = np.random.default_rng(2)
    stack, x = normalised_network(rng, [5, 20, 20, 1], (3,)), jnp.asarray(rng.normal(size=(40, 5)), dtype=jnp.float32)
    np.testing.assert_allclose(networks.one_by_one(stack, x), networks.all_at_once(stack, x), rtol=1e-4, atol=1e-4)
    scale, shift = jnp.asarray([2.0, 0.5, 3.0]), jnp.asarray([1.0, -1.0, 0.3])
    moved = networks.rebase(stack, scale, shift)
    before = x.at[:, :3].set(x[:, :3] * scale[None] + shift[None])
    np.testing.assert_allclose(
        networks.all_at_once(moved, x), networks.all_at_once(stack, before), rtol=1e-4, atol=1e-4
    )
