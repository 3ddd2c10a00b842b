"""Networks, written for one example; callers vmap.

Fully connected ones and, for images, those with convolutions before the connected layers. An image comes as the first
H · W · C entries of a vector, row by row with its channels last, as bytes from 0 to 255; whatever follows it in the
vector (the time, budgets) goes past the convolutions.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

_LARGE = 512
Image: TypeAlias = tuple[int, int, int]
"""Height, width and channels."""
BYTE = 255.0
"""What a pixel is divided by."""
_NATURE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""(channels, side of the kernel, stride) of each convolution, as in Mnih et al. 2015."""
_SMALL = ((16, 3, 1), (32, 3, 2), (32, 3, 1))
"""The same for images that are too small for those."""
_LEAST_NATURE = 36
_LEAST_PLACES = 3
"""How many places each way a convolution must leave: what is where is what images are looked at for."""


class MLP(eqx.Module):
    """Affine layers with tanh, or what `activation` says, between them and a linear output.

    `normalised-relu` is layer normalisation (Ba et al. 2016) without parameters of its own, then ReLU: however far
    inputs lie from all that were learned from, what a layer hands on has the same size, so that the output grows no
    further.
    """

    weights: tuple[Float[Array, "..."], ...]
    biases: tuple[Float[Array, "..."], ...]
    activation: str = eqx.field(static=True, default="tanh")

    def __call__(self, x: Float[Array, " I"]) -> Float[Array, " J"]:
        """The output for one input."""
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = self.between(x @ weight + bias)
        return x @ self.weights[-1] + self.biases[-1]

    def between(self, x: Float[Array, "*batch J"]) -> Float[Array, "*batch J"]:
        """What stands between two layers."""
        match self.activation:
            case "relu":
                return jax.nn.relu(x)
            case "normalised-relu":
                return jax.nn.relu(jax.nn.standardize(x, axis=-1))
            case _:
                return jnp.tanh(x)


def bounded(output: Float[Array, "*batch J"], bound: float) -> Float[Array, "*batch J"]:
    """bound · tanh(output / bound), within ±bound and nearly the output where that is small; as it is for bound 0."""
    return bound * jnp.tanh(output / bound) if bound else output


def mlp(
    key: PRNGKeyArray,
    inputs: int,
    hidden: Sequence[int],
    outputs: int,
    output_scale: float = 1.0,
    activation: str = "tanh",
) -> MLP:
    """A network with Glorot-uniform weights, the last layer's scaled, and zero biases, as in the published code."""
    sizes = [inputs, *hidden, outputs]
    keys = jax.random.split(key, len(sizes) - 1)
    weights = []
    for layer, (fan_in, fan_out) in enumerate(pairwise(sizes)):
        bound = (6.0 / (fan_in + fan_out)) ** 0.5
        weights.append(jax.random.uniform(keys[layer], (fan_in, fan_out), minval=-bound, maxval=bound))
    weights[-1] = output_scale * weights[-1]
    biases = [jnp.zeros(size) for size in sizes[1:]]
    return MLP(weights=tuple(weights), biases=tuple(biases), activation=activation)


class Convolutional(eqx.Module):
    """Convolutions with ReLU after each over an image of bytes, and a connected network over what they find.

    A convolution has no padding: it gives a number for each place where the whole kernel lies in the image.
    """

    kernels: tuple[Float[Array, "..."], ...]
    """Each [height, width, channels in, channels out]."""
    offsets: tuple[Float[Array, "..."], ...]
    """What is added to each channel."""
    head: MLP
    image: Image = eqx.field(static=True)
    strides: tuple[int, ...] = eqx.field(static=True)

    def __call__(self, x: Float[Array, " I"]) -> Float[Array, " J"]:
        """The output for one input, the image in front."""
        size = prod(self.image)
        found = self.maps(x[:size].reshape(self.image) / BYTE)
        return self.head(jnp.concatenate([found.reshape(-1), x[size:]]))

    def maps(self, pixels: Float[Array, "H W C"]) -> Float[Array, "h w c"]:
        """What the convolutions find, by place and channel."""
        for kernel, offset, stride in zip(self.kernels, self.offsets, self.strides, strict=True):
            pixels = jax.nn.relu(convolved(pixels, kernel, stride) + offset[None, None])
        return pixels


Network: TypeAlias = MLP | Convolutional


def convolved(pixels: Float[Array, "H W C"], kernel: Float[Array, "a b C D"], stride: int) -> Float[Array, "h w D"]:
    """The kernel laid over every place of the image, `stride` apart, where it fits.

    In two ways that agree to rounding: a CPU multiplies matrices quickly, and takes minutes to compile the derivatives
    of a convolution; an accelerator has convolutions of its own.
    """
    way = by_products if jax.default_backend() == "cpu" else by_convolution
    return way(pixels, kernel, stride)


def by_products(pixels: Float[Array, "H W C"], kernel: Float[Array, "a b C D"], stride: int) -> Float[Array, "h w D"]:
    """What lies under the kernel at each place, as the rows of a matrix, times the kernel."""
    (a, b, channels, out), (rows, columns, _) = kernel.shape, pixels.shape
    height, width = (rows - a) // stride + 1, (columns - b) // stride + 1
    down, right = stride * (height - 1) + 1, stride * (width - 1) + 1
    under = [
        jax.lax.slice(pixels, (y, x, 0), (y + down, x + right, channels), (stride, stride, 1))
        for y in range(a)
        for x in range(b)
    ]
    patches = jnp.concatenate(under, axis=-1).reshape(height * width, -1)
    return (patches @ kernel.reshape(-1, out)).reshape(height, width, out)


def by_convolution(
    pixels: Float[Array, "H W C"], kernel: Float[Array, "a b C D"], stride: int
) -> Float[Array, "h w D"]:
    """The device's own convolution."""
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(pixels[None], kernel, (stride, stride), "VALID", dimension_numbers=layout)[0]


def layers_for(image: Image) -> tuple[tuple[int, int, int], ...]:
    """The convolutions that suit an image: (channels, side of the kernel, stride), as many as leave places to tell."""
    found, side = [], min(image[:2])
    for channels, kernel, stride in _NATURE if side >= _LEAST_NATURE else _SMALL:
        side = (side - kernel) // stride + 1
        if side < _LEAST_PLACES:
            break
        found.append((channels, kernel, stride))
    return tuple(found)


def convolutional(
    key: PRNGKeyArray,
    image: Image,
    beside: int,
    hidden: Sequence[int],
    outputs: int,
    output_scale: float = 1.0,
) -> Convolutional:
    """A fresh network over an image and so many entries beside it, with He-uniform kernels."""
    layers = layers_for(image)
    *keys, head_key = jax.random.split(key, len(layers) + 1)
    (height, width, channels), kernels = image, []
    for layer_key, (out, side, stride) in zip(keys, layers, strict=True):
        bound = (6.0 / (side * side * channels)) ** 0.5
        kernels.append(jax.random.uniform(layer_key, (side, side, channels, out), minval=-bound, maxval=bound))
        height, width, channels = (height - side) // stride + 1, (width - side) // stride + 1, out
    return Convolutional(
        kernels=tuple(kernels),
        offsets=tuple(jnp.zeros(out) for out, _, _ in layers),
        head=mlp(head_key, height * width * channels + beside, hidden, outputs, output_scale),
        image=image,
        strides=tuple(stride for _, _, stride in layers),
    )


def build(
    key: PRNGKeyArray,
    inputs: int,
    hidden: Sequence[int],
    outputs: int,
    output_scale: float = 1.0,
    image: Image | None = None,
) -> Network:
    """A fresh network of so many inputs; where an image is in front of them, with convolutions for it."""
    if image is None:
        return mlp(key, inputs, hidden, outputs, output_scale)
    return convolutional(key, image, inputs - prod(image), hidden, outputs, output_scale)


def connected(network: Network) -> MLP:
    """The connected layers of a network."""
    return network.head if isinstance(network, Convolutional) else network


def with_connected(network: Network, layers: MLP) -> Network:
    """The network with other connected layers."""
    return eqx.tree_at(lambda n: n.head, network, layers) if isinstance(network, Convolutional) else layers


def rebase(network: MLP, scale: Float[Array, " O"], shift: Float[Array, " O"]) -> MLP:
    """The same function of other inputs: what was x is now scale · x + shift, in the first O of them."""
    first = network.weights[0]
    seen = first[..., : scale.shape[0], :]
    stretched = seen * jnp.broadcast_to(scale[:, None], seen.shape)
    weight = first.at[..., : scale.shape[0], :].set(stretched)
    bias = network.biases[0] + jnp.einsum("o,...oh->...h", shift, seen)
    return MLP((weight, *network.weights[1:]), (bias, *network.biases[1:]), network.activation)


def build_stack(
    key: PRNGKeyArray, count: int, inputs: int, hidden: Sequence[int], image: Image | None = None
) -> Network:
    """`count` independent networks with one output in one set of arrays, their index in front."""
    return jax.vmap(lambda k: build(k, inputs, hidden, 1, image=image))(jax.random.split(key, count))


def stack(
    key: PRNGKeyArray, count: int, inputs: int, hidden: Sequence[int], outputs: int = 1, activation: str = "tanh"
) -> MLP:
    """`count` independent connected networks in one set of arrays, their index in front."""
    return jax.vmap(lambda k: mlp(k, inputs, hidden, outputs, activation=activation))(jax.random.split(key, count))


def apply_stack(networks: Network, x: Float[Array, "B I"]) -> Float[Array, "K B J"]:
    """The outputs of a stack of K networks at B inputs.

    Written for a batch, unlike the rest, and in two ways that agree to rounding: a CPU multiplies two large matrices
    faster than a batch of them; where the work is small, or on an accelerator, few operations are better.
    """
    if isinstance(networks, Convolutional):
        # Kernels side by side would make one convolution in groups, which is slower than as many plain ones.
        count = networks.offsets[0].shape[0]
        each = [jax.tree.map(lambda leaf, k=k: leaf[k], networks) for k in range(count)]
        return jnp.stack([jax.vmap(network)(x) for network in each])
    large = jax.default_backend() == "cpu" and x.shape[0] >= _LARGE
    return one_by_one(networks, x) if large else all_at_once(networks, x)


def one_by_one(networks: MLP, x: Float[Array, "B I"]) -> Float[Array, "K B J"]:
    """Network by network."""

    def one(network: MLP) -> Float[Array, "B J"]:
        hidden = x
        for weight, bias in zip(network.weights[:-1], network.biases[:-1], strict=True):
            hidden = networks.between(hidden @ weight + bias[None])
        return _columns(hidden, network.weights[-1]) + network.biases[-1][None]

    count = networks.biases[0].shape[0]
    return jnp.stack([one(jax.tree.map(lambda leaf, k=k: leaf[k], networks)) for k in range(count)])


def all_at_once(networks: MLP, x: Float[Array, "B I"]) -> Float[Array, "K B J"]:
    """Layer by layer, each one batched product; with the network's index in front no array is ever transposed."""
    hidden = jnp.broadcast_to(x[None], (networks.biases[0].shape[0], *x.shape))
    for weight, bias in zip(networks.weights[:-1], networks.biases[:-1], strict=True):
        hidden = networks.between(jax.lax.batch_matmul(hidden, weight) + bias[:, None])
    return _columns(hidden, networks.weights[-1]) + networks.biases[-1][:, None]


def _columns(hidden: Float[Array, "*k B H"], weight: Float[Array, "*k H J"]) -> Float[Array, "*k B J"]:
    """hidden @ weight; for a single output a sum of products, which compilers fuse where they would not a product."""
    if weight.shape[-1] == 1:
        return jnp.sum(hidden * jnp.swapaxes(weight, -1, -2), axis=-1, keepdims=True)
    return hidden @ weight
