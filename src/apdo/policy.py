"""A learned policy as something to call: numpy in, numpy out, no environment needed."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jaxtyping import Array, PyTree
from numpy.typing import ArrayLike

from apdo.errors import InvalidInput


class Policy:
    """`policy(observation)` for one observation [O] or a batch [B, O]; `deterministic=True` gives the mode.

    An action is a vector or, where actions are choices, the index of one.

    Draws depend on the policy's own seed and on how many calls came before: two policies loaded alike act alike.
    """

    def __init__(self, network: PyTree, observation_size: int, seed: int = 0, *, discrete: bool = False) -> None:
        self.network = network
        """The module from one observation to an action distribution."""
        self.observation_size = observation_size
        self.discrete = discrete
        """Whether actions are choices."""
        self._key = random.key(seed)
        self._calls = 0

    def __call__(self, observation: ArrayLike, deterministic: bool = False) -> np.ndarray:
        """The action for each observation."""
        given = np.asarray(observation, dtype=np.float32)
        if given.ndim not in (1, 2) or given.shape[-1] != self.observation_size:
            raise InvalidInput(
                f"an observation has {self.observation_size} numbers, and a batch of them two axes; "
                f"this has shape {given.shape}."
            )
        batch = np.atleast_2d(given)
        keys = random.split(random.fold_in(self._key, self._calls), batch.shape[0])
        self._calls += 1
        actions = np.asarray(_act(self.network, jnp.asarray(batch), keys, deterministic))
        if self.discrete:
            actions = np.argmax(actions, axis=-1)
        return actions[0] if given.ndim == 1 else actions


@eqx.filter_jit
def _act(network: PyTree, observations: Array, keys: Array, deterministic: bool) -> Array:
    if deterministic:
        return jax.vmap(lambda o: network(o).mode())(observations)
    return jax.vmap(lambda o, k: network(o).sample(k))(observations, keys)
