"""How far an actor is from what was done in the data."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def distance(action: Float[Array, "B A"], taken: Float[Array, "B A"], *, discrete: bool) -> Float[Array, ""]:
    """The squared distance or, of choices, -log of what was chosen; `action` is then the probabilities.

    The logarithm keeps a pull on choices that are all but given up, which a square would lose in the softmax; and being
    so much steeper there it counts a tenth.
    """
    if discrete:
        return -0.1 * jnp.mean(jnp.log(jnp.sum(action * taken, axis=-1) + 1e-8))
    return jnp.mean(jnp.sum(jnp.square(action - taken), axis=-1))
