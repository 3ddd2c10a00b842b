"""Fully connected tanh networks, written for one example; callers vmap."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray


class MLP(eqx.Module):
    """Affine layers with tanh between them and a linear output."""

    weights: tuple[Float[Array, "..."], ...]
    biases: tuple[Float[Array, "..."], ...]

    def __call__(self, x: Float[Array, " I"]) -> Float[Array, " J"]:
        """The output for one input."""
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = jnp.tanh(x @ weight + bias)
        return x @ self.weights[-1] + self.biases[-1]


def mlp(key: PRNGKeyArray, inputs: int, hidden: Sequence[int], outputs: int, *, output_bound: float | None = None) -> MLP:
    """A network with Glorot-uniform weights and zero biases, as in the published code.

    With `output_bound` the last layer's weights are uniform within ±`output_bound` instead, as DDPG starts its networks.
    """
    sizes = [inputs, *hidden, outputs]
    keys = jax.random.split(key, len(sizes) - 1)
    weights = []
    for layer, (fan_in, fan_out) in enumerate(zip(sizes[:-1], sizes[1:], strict=True)):
        bound = (6.0 / (fan_in + fan_out)) ** 0.5
        if output_bound is not None and layer == len(sizes) - 2:
            bound = output_bound
        weights.append(jax.random.uniform(keys[layer], (fan_in, fan_out), minval=-bound, maxval=bound))
    biases = [jnp.zeros(size) for size in sizes[1:]]
    return MLP(weights=tuple(weights), biases=tuple(biases))


def stack(key: PRNGKeyArray, count: int, inputs: int, hidden: Sequence[int], outputs: int = 1, *, output_bound: float | None = None) -> MLP:
    """`count` independent networks in one set of arrays, their index in front."""
    keys = jax.random.split(key, count)
    return jax.vmap(lambda k: mlp(k, inputs, hidden, outputs, output_bound=output_bound))(keys)


def apply_stack(networks: MLP, x: Float[Array, "B I"]) -> Float[Array, "K B"]:
    """The scalar outputs of a stack of K networks at B inputs.

    Written for a batch, unlike the rest: with the index of the network in front everywhere, each layer is one batched
    matrix product forward and two back, and no array is ever transposed.
    """
    hidden = jnp.broadcast_to(x[None], (networks.biases[0].shape[0], *x.shape))
    for weight, bias in zip(networks.weights[:-1], networks.biases[:-1], strict=True):
        hidden = jnp.tanh(jax.lax.batch_matmul(hidden, weight) + bias[:, None])
    return jnp.sum(hidden * networks.weights[-1][:, None, :, 0], axis=-1) + networks.biases[-1]
