"""The distance of an actor from the actions in the data."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def distance(action: Float[Array, "B A"], taken: Float[Array, "B A"], *, discrete: bool) -> Float[Array, ""]:
    """The mean squared distance; for discrete actions, a tenth of the mean of -log of the taken action's probability.

    `action` is the vector of probabilities if actions are discrete. The gradient of the logarithm does not vanish for
    actions whose probability is nearly 0; that of a square would vanish in the softmax. The logarithm is steeper, hence
    the factor of a tenth.
    """
    if discrete:
        return -0.1 * jnp.mean(jnp.log(jnp.sum(action * taken, axis=-1) + 1e-8))
    return jnp.mean(jnp.sum(jnp.square(action - taken), axis=-1))
