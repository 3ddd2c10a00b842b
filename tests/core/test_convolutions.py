"""Networks over images: what a convolution is, and what stays as it is around it."""

import dataclasses
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

from apdo.core import critics, networks, policies

IMAGE = (9, 11, 2)
PIXELS = prod(IMAGE)


def by_hand(image, kernel, stride):
    """Every entry of a convolution as the sum that defines it."""
    (height, width, _), (a, b, _, out) = image.shape, kernel.shape
    found = np.zeros(((height - a) // stride + 1, (width - b) // stride + 1, out))
    for y, x, d in np.ndindex(found.shape):
        seen = image[y * stride : y * stride + a, x * stride : x * stride + b]
        found[y, x, d] = np.sum(seen * kernel[..., d])
    return found


@pytest.fixture
def network():
    fresh = networks.convolutional(random.key(0), IMAGE, 2, (7,), 3)
    offsets = tuple(0.1 * random.normal(random.key(i), offset.shape) for i, offset in enumerate(fresh.offsets))
    return dataclasses.replace(fresh, offsets=offsets)


@pytest.fixture
def inputs():
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (4, PIXELS))
    return np.concatenate([pixels, rng.normal(size=(4, 2))], axis=1).astype(np.float32)


def test_the_network_is_convolutions_by_hand_and_then_its_connected_layers(network, inputs):
    assert len(network.kernels) == 2
    for given in inputs:
        seen = given[:PIXELS].reshape(IMAGE) / 255.0
        for kernel, offset, stride in zip(network.kernels, network.offsets, network.strides, strict=True):
            seen = np.maximum(by_hand(seen, np.asarray(kernel), stride) + np.asarray(offset), 0.0)
        wanted = network.head(jnp.asarray(np.concatenate([seen.reshape(-1), given[PIXELS:]]), jnp.float32))
        np.testing.assert_allclose(network(jnp.asarray(given)), wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("way", [networks.by_products, networks.by_convolution])
@pytest.mark.parametrize(("side", "stride"), [((3, 3), 1), ((3, 3), 2), ((4, 2), 3), ((8, 8), 4)])
def test_either_way_is_the_sum_that_defines_a_convolution(way, side, stride):
    rng = np.random.default_rng(5)
    image, kernel = rng.normal(size=(13, 12, 2)), rng.normal(size=(*side, 2, 3))
    found = way(jnp.asarray(image, jnp.float32), jnp.asarray(kernel, jnp.float32), stride)
    np.testing.assert_allclose(found, by_hand(image, kernel, stride), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("down", "right"), [(2, 0), (0, 2), (2, 4)])
def test_what_is_found_moves_with_the_image(down, right):
    """Shifted by a multiple of all strides, the maps are shifted, but for the edges that came in."""
    network = networks.convolutional(random.key(1), (16, 18, 3), 0, (), 1)
    stride = prod(network.strides)
    assert stride == 2
    image = random.uniform(random.key(2), (16, 18, 3))
    before, after = (network.maps(seen) for seen in (image, jnp.roll(image, (down, right), (0, 1))))
    y, x = down // stride, right // stride
    assert float(jnp.max(jnp.abs(before))) > 0.01
    np.testing.assert_allclose(
        after[y:, x:], before[: before.shape[0] - y, : before.shape[1] - x], rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(
    ("image", "places"),
    [
        ((84, 84, 4), (7, 7, 64)),
        ((36, 44, 1), (3, 4, 64)),
        ((16, 16, 3), (4, 4, 32)),
        ((12, 12, 1), (4, 4, 32)),
        ((8, 8, 3), (6, 6, 16)),
        ((8, 200, 3), (6, 198, 16)),
    ],
)
def test_every_size_has_convolutions_that_leave_places(image, places):
    network = networks.convolutional(random.key(0), image, 0, (), 2)
    assert network.maps(jnp.ones(image)).shape == places
    assert network.head.weights[0].shape == (prod(places), 2)


def test_the_seventh_of_eight_images_does_not_depend_on_the_others(network, inputs):
    alone = network(jnp.asarray(inputs[2]))
    np.testing.assert_allclose(jax.vmap(network)(jnp.asarray(inputs))[2], alone, rtol=1e-5, atol=1e-6)


def test_a_stack_answers_as_each_of_its_networks(inputs):
    stack = networks.build_stack(random.key(3), 3, PIXELS + 2, (5,), IMAGE)
    answers = networks.apply_stack(stack, jnp.asarray(inputs))
    assert answers.shape == (3, 4, 1)
    for k in range(3):
        one = jax.tree.map(lambda leaf, k=k: leaf[k], stack)
        np.testing.assert_allclose(answers[k], jax.vmap(one)(jnp.asarray(inputs)), rtol=1e-5, atol=1e-6)
    assert not np.allclose(answers[0], answers[1])


def test_value_functions_of_images_are_fitted_and_keep_their_values_when_units_change():
    config = critics.Config(hidden=(16,), passes=30, minibatches=4, rate=3e-3)
    critic = critics.init(config, random.key(0), PIXELS, 2, 10, IMAGE)
    rng = np.random.default_rng(1)
    place = rng.integers(0, 11, 200)
    pixels = np.zeros((200, *IMAGE), np.float32)
    pixels[np.arange(200), 4, place, 0] = 255.0
    observation, step = jnp.asarray(pixels.reshape(1, 200, -1)), jnp.asarray(rng.integers(0, 10, (1, 200)))
    observed = critics.inputs(critic, observation, step)
    target = jnp.asarray(np.stack([100.0 + 5.0 * place, 0.01 * np.asarray(step)[0]], axis=1), jnp.float32)
    fitted, error = jax.jit(lambda c, k: critics.fit(config, c, k, observed, target))(critic, random.key(1))
    assert (np.asarray(error) < 0.1).all()
    moved = critics._in_units_of(fitted, 3.0 * target + 50.0)
    before, after = (critics.values(c, observation, step) for c in (fitted, moved))
    np.testing.assert_allclose(after, before, rtol=1e-3, atol=1e-3)
    assert isinstance(moved.networks, networks.Convolutional)


@pytest.mark.parametrize("discrete", [False, True])
def test_a_policy_sees_an_image_and_what_is_beside_it(discrete):
    policy: Any = policies.init(
        policies.Config(output_scale=1.0), random.key(0), PIXELS + 1, 3, discrete=discrete, image=IMAGE
    )
    key = random.key(4)
    given = jnp.concatenate([jnp.full(PIXELS, 255.0), jnp.zeros(1)])
    assert policy(given).sample(key).shape == (3,)
    for entry in (PIXELS // 2, PIXELS):
        other = given.at[entry].add(-100.0)
        assert float(policy(given).kl(policy(other))) > 1e-6
