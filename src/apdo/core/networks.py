"""Networks, written for one example; callers vmap.

Networks are fully connected. For images they have convolutions before the connected layers. An image is the first
H · W · C entries of a vector, row by row with the channels last, as bytes from 0 to 255. The entries after it (the
time, budgets) bypass the convolutions.
"""

import dataclasses
from collections.abc import Callable, Sequence
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
"""Pixels are divided by this number."""
_NATURE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""(channels, side of the kernel, stride) of each convolution, as in Mnih et al. 2015."""
_SMALL = ((16, 3, 1), (32, 3, 2), (32, 3, 1))
"""The same for images that are too small for `_NATURE`."""
_LEAST_NATURE = 36
_LEAST_PLACES = 3
"""The least height and width of a convolution's output, so that it still tells where in the image something is."""

_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "normalised-relu": lambda x: jax.nn.relu(jax.nn.standardize(x, axis=-1)),
    "tanh": jnp.tanh,
}


class MLP(eqx.Module):
    """Affine layers with `activation` between them, by default tanh, and a linear output.

    `normalised-relu` is layer normalisation (Ba et al. 2016) without parameters, followed by ReLU. A layer's output
    then has the same size even for inputs that are far from the training data, so the network does not extrapolate to
    large values.
    """

    weights: tuple[Float[Array, "..."], ...]
    biases: tuple[Float[Array, "..."], ...]
    activation: str | tuple[str, ...] = eqx.field(static=True, default="tanh")
    """One for all, or one for each network of a stack."""

    def __call__(self, x: Float[Array, " I"]) -> Float[Array, " J"]:
        """The output for one input."""
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = self.between(x @ weight + bias)
        return x @ self.weights[-1] + self.biases[-1]

    def between(self, x: Float[Array, "*batch J"]) -> Float[Array, "*batch J"]:
        """The activation between two layers."""
        if isinstance(self.activation, str):
            return _ACTIVATIONS[self.activation](x)
        return jnp.stack([_ACTIVATIONS[name](x[k]) for k, name in enumerate(self.activation)])

    def part(self, which: slice | int) -> "MLP":
        """Some networks of a stack, or one."""
        kind = self.activation if isinstance(self.activation, str) else self.activation[which]
        return dataclasses.replace(jax.tree.map(lambda leaf: leaf[which], self), activation=kind)


def bounded(output: Float[Array, "*batch J"], bound: float) -> Float[Array, "*batch J"]:
    """bound · tanh(output / bound): within ±bound, and close to a small output. With bound 0 it is the output."""
    return bound * jnp.tanh(output / bound) if bound else output


def mlp(
    key: PRNGKeyArray,
    inputs: int,
    hidden: Sequence[int],
    outputs: int,
    output_scale: float = 1.0,
    activation: str | tuple[str, ...] = "tanh",
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
    """Convolutions over an image of bytes, each followed by ReLU, and then a connected network.

    Convolutions have no padding: there is an output for each place where the whole kernel lies within the image.
    """

    kernels: tuple[Float[Array, "..."], ...]
    """Each [height, width, channels in, channels out]."""
    offsets: tuple[Float[Array, "..."], ...]
    """The bias of each output channel, for each convolution."""
    head: MLP
    image: Image = eqx.field(static=True)
    strides: tuple[int, ...] = eqx.field(static=True)

    def __call__(self, x: Float[Array, " I"]) -> Float[Array, " J"]:
        """The output for one input, which begins with the image."""
        size = prod(self.image)
        found = self.maps(x[:size].reshape(self.image) / BYTE)
        return self.head(jnp.concatenate([found.reshape(-1), x[size:]]))

    def maps(self, pixels: Float[Array, "H W C"]) -> Float[Array, "h w c"]:
        """The output of the last convolution, by place and channel."""
        for kernel, offset, stride in zip(self.kernels, self.offsets, self.strides, strict=True):
            pixels = jax.nn.relu(convolved(pixels, kernel, stride) + offset[None, None])
        return pixels


Network: TypeAlias = MLP | Convolutional


def convolved(pixels: Float[Array, "H W C"], kernel: Float[Array, "a b C D"], stride: int) -> Float[Array, "h w D"]:
    """The convolution of an image with a kernel, with this stride and without padding.

    There are two implementations, which agree up to rounding. A CPU multiplies matrices quickly, but takes minutes to
    compile the derivatives of a convolution. An accelerator has its own convolutions.
    """
    way = by_products if jax.default_backend() == "cpu" else by_convolution
    return way(pixels, kernel, stride)


def by_products(pixels: Float[Array, "H W C"], kernel: Float[Array, "a b C D"], stride: int) -> Float[Array, "h w D"]:
    """The convolution as a product of two matrices: the image's patches as rows, and the kernel."""
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
    """The convolutions that suit an image: (channels, side of the kernel, stride).

    There are as many of them as possible with at least `_LEAST_PLACES` rows and columns left.
    """
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
    """A new network for an image and `beside` further entries, with He-uniform kernels."""
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
    """A new network with this number of inputs. If they begin with an image, it has convolutions for it."""
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
    """The network f' with f'(x) = f(scale · x + shift), where scale and shift apply to the first O inputs."""
    first = network.weights[0]
    seen = first[..., : scale.shape[0], :]
    stretched = seen * jnp.broadcast_to(scale[:, None], seen.shape)
    weight = first.at[..., : scale.shape[0], :].set(stretched)
    bias = network.biases[0] + jnp.einsum("o,...oh->...h", shift, seen)
    return MLP((weight, *network.weights[1:]), (bias, *network.biases[1:]), network.activation)


def build_stack(
    key: PRNGKeyArray, count: int, inputs: int, hidden: Sequence[int], image: Image | None = None
) -> Network:
    """`count` independent networks with one output, in one set of arrays whose first axis is the network's index."""
    return jax.vmap(lambda k: build(k, inputs, hidden, 1, image=image))(jax.random.split(key, count))


def stack(
    key: PRNGKeyArray,
    count: int,
    inputs: int,
    hidden: Sequence[int],
    outputs: int = 1,
    activation: str | tuple[str, ...] = "tanh",
) -> MLP:
    """`count` independent connected networks in one set of arrays, whose first axis is the network's index."""
    return jax.vmap(lambda k: mlp(k, inputs, hidden, outputs, activation=activation))(jax.random.split(key, count))


def apply_stack(networks: Network, x: Float[Array, "B I"]) -> Float[Array, "K B J"]:
    """The outputs of a stack of K networks at B inputs.

    Unlike the rest of this module it is written for a batch. There are two implementations, which agree up to rounding:
    a CPU multiplies two large matrices faster than a batch of them, but if the matrices are small, or on an
    accelerator, fewer operations are better.
    """
    if isinstance(networks, Convolutional):
        # One grouped convolution over all networks would be slower than a plain one for each network.
        count = networks.offsets[0].shape[0]
        each = [jax.tree.map(lambda leaf, k=k: leaf[k], networks) for k in range(count)]
        return jnp.stack([jax.vmap(network)(x) for network in each])
    large = jax.default_backend() == "cpu" and x.shape[0] >= _LARGE
    return one_by_one(networks, x) if large else all_at_once(networks, x)


def one_by_one(networks: MLP, x: Float[Array, "B I"]) -> Float[Array, "K B J"]:
    """The outputs of a stack, computed network by network."""

    def one(network: MLP) -> Float[Array, "B J"]:
        hidden = x
        for weight, bias in zip(network.weights[:-1], network.biases[:-1], strict=True):
            hidden = network.between(hidden @ weight + bias[None])
        return _columns(hidden, network.weights[-1]) + network.biases[-1][None]

    count = networks.biases[0].shape[0]
    return jnp.stack([one(networks.part(k)) for k in range(count)])


def all_at_once(networks: MLP, x: Float[Array, "B I"]) -> Float[Array, "K B J"]:
    """The outputs of a stack, computed layer by layer, each as one batched product.

    The network's index is the first axis everywhere, so no array is ever transposed.
    """
    hidden = jnp.broadcast_to(x[None], (networks.biases[0].shape[0], *x.shape))
    for weight, bias in zip(networks.weights[:-1], networks.biases[:-1], strict=True):
        hidden = networks.between(jax.lax.batch_matmul(hidden, weight) + bias[:, None])
    return _columns(hidden, networks.weights[-1]) + networks.biases[-1][:, None]


def _columns(hidden: Float[Array, "*k B H"], weight: Float[Array, "*k H J"]) -> Float[Array, "*k B J"]:
    """hidden @ weight. For a single output it is written as a sum of products, which compilers fuse with the rest."""
    if weight.shape[-1] == 1:
        return jnp.sum(hidden * jnp.swapaxes(weight, -1, -2), axis=-1, keepdims=True)
    return hidden @ weight
