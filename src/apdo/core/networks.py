"""Fully connected networks, written for one example; callers vmap."""

from collections.abc import Sequence
from itertools import pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

_LARGE = 512


class MLP(eqx.Module):
    """Affine layers with tanh, or what `activation` says, between them and a linear output."""

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
        return jax.nn.relu(x) if self.activation == "relu" else jnp.tanh(x)


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


def rebase(network: MLP, scale: Float[Array, " O"], shift: Float[Array, " O"]) -> MLP:
    """The same function of other inputs: what was x is now scale · x + shift, in the first O of them."""
    first = network.weights[0]
    seen = first[..., : scale.shape[0], :]
    stretched = seen * jnp.broadcast_to(scale[:, None], seen.shape)
    weight = first.at[..., : scale.shape[0], :].set(stretched)
    bias = network.biases[0] + jnp.einsum("o,...oh->...h", shift, seen)
    return MLP((weight, *network.weights[1:]), (bias, *network.biases[1:]), network.activation)


def stack(
    key: PRNGKeyArray, count: int, inputs: int, hidden: Sequence[int], outputs: int = 1, activation: str = "tanh"
) -> MLP:
    """`count` independent networks in one set of arrays, their index in front."""
    return jax.vmap(lambda k: mlp(k, inputs, hidden, outputs, activation=activation))(jax.random.split(key, count))


def apply_stack(networks: MLP, x: Float[Array, "B I"]) -> Float[Array, "K B J"]:
    """The outputs of a stack of K networks at B inputs.

    Written for a batch, unlike the rest, and in two ways that agree to rounding: a CPU multiplies two large matrices
    faster than a batch of them; where the work is small, or on an accelerator, few operations are better.
    """
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
