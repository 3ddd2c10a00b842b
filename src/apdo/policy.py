"""A learned policy as a callable: NumPy arrays in, NumPy arrays out, without an environment."""

import html
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jaxtyping import Array, Float, PyTree
from numpy.typing import ArrayLike

from apdo import export
from apdo.core import categorical, deterministic, gaussian, networks, squashed
from apdo.envs import spaces
from apdo.errors import InvalidInput

Observation: TypeAlias = Any
"""Numbers [O] or [B, O], or one observation as its environment gives it."""


@runtime_checkable
class Wrapper(Protocol):
    """A network that wraps another one with a mapping of observations or actions."""

    @property
    def network(self) -> PyTree:
        """The wrapped network."""
        ...

    def around(self) -> dict[str, np.ndarray]:
        """The parameters of the mapping, under the names of `apdo.export`."""
        ...


@runtime_checkable
class Mapped(Protocol):
    """A distribution of actions that are mapped after they are drawn."""

    @property
    def inner(self) -> PyTree:
        """The distribution that they are drawn from."""
        ...


class Normalised(eqx.Module):
    """A policy network for observations minus their mean, divided by their standard deviation."""

    network: PyTree
    mean: Float[Array, " O"]
    std: Float[Array, " O"]

    def __call__(self, observation: Float[Array, " O"]) -> PyTree:
        """The action distribution at one raw observation."""
        return self.network((observation - self.mean) / self.std)

    def around(self) -> dict[str, np.ndarray]:
        """The normalisation, without a clip."""
        values = (np.asarray(self.mean), np.asarray(self.std), np.float32(np.inf))
        return {name: np.asarray(value) for name, value in zip(export.NORMALISATION, values, strict=True)}


class Policy:
    """`policy(observation)` is the action for one observation [O] or a batch [B, O]; `deterministic=True`: the mode.

    An action is in the form that the environment takes: a vector or, if actions are discrete, an integer or an array of
    several. `choices` has the environment's action for each discrete choice, [n, ...]; without it the action is the
    index of the choice. An image may have its own shape, [H, W, C] or [B, H, W, C]. With a `layout`, which says what an
    observation consists of (`envs.spaces.layout`), a single one may also be as its environment gives it: a Dict, a
    Tuple, a choice, numbers of any shape. `normaliser` is a mean and a standard deviation for each entry of an
    observation, applied before the network.

    Draws depend on the policy's seed and on the number of earlier calls. Two policies that are loaded in the same way
    therefore draw the same actions.
    """

    def __init__(
        self,
        network: PyTree,
        observation_size: int,
        seed: int = 0,
        *,
        discrete: bool = False,
        choices: np.ndarray | None = None,
        normaliser: tuple[ArrayLike, ArrayLike] | None = None,
        image: tuple[int, int, int] | None = None,
        layout: spaces.Layout | None = None,
        about: str = "",
        values: Callable[[Array, Array], Array] | None = None,
    ) -> None:
        self.network: PyTree = network if normaliser is None else _normalised(network, normaliser, observation_size)
        """The module from one raw observation to an action distribution."""
        self.observation_size = observation_size
        self.image = image
        """Height, width and channels, if an observation begins with an image."""
        self.layout = layout
        """What an observation of the environment consists of, if it is no vector."""
        self._write = None if layout is None else spaces.writer(layout)[1]
        self.discrete = discrete
        """Whether actions are discrete."""
        self.choices = choices
        """The environment's action for each choice; None if it is the index."""
        self.about = about
        """A description in words: which policy of its run this is."""
        self._values = values
        self._key = random.key(seed)
        self._calls = 0

    @property
    def learned_values(self) -> Callable[[Array, Array], Array] | None:
        """The value functions of (raw observations [B, O], steps [B]); None if there are none."""
        return self._values

    def __repr__(self) -> str:
        return f"<Policy: {', '.join(filter(None, (self.about, self._shapes())))}>"

    def _repr_html_(self) -> str:
        """The representation in notebooks."""
        return f"<div><strong>Policy</strong>: {html.escape(self.about)}<br><small>{self._shapes()}</small></div>"

    def _shapes(self) -> str:
        """The sizes of observations and actions, in words."""
        mode = jax.eval_shape(lambda o: self.network(o).mode(), jnp.zeros(self.observation_size))
        acts = (
            f"one of {mode.shape[0]} choices" if self.discrete else f"{mode.shape[0]} number{'s' * (mode.shape[0] > 1)}"
        )
        return f"{self.observation_size} number{'s' * (self.observation_size > 1)} in, {acts} out"

    def __call__(self, observation: Observation, deterministic: bool = False) -> np.ndarray:
        """The action for each observation."""
        batch, single = self._batch(observation)
        keys = random.split(random.fold_in(self._key, self._calls), batch.shape[0])
        self._calls += 1
        actions = np.asarray(_act(self.network, jnp.asarray(batch), keys, deterministic))
        if self.discrete:
            actions = np.argmax(actions, axis=-1)
            actions = actions if self.choices is None else self.choices[actions]
        # The result is an array even for a single discrete action.
        return np.asarray(actions[0]) if single else actions

    def sample(self, observation: Observation, seed: int | None = None) -> np.ndarray:
        """An action drawn for each observation. With the same seed the draw is the same."""
        if seed is None:
            return self(observation)
        kept, self._key, self._calls = (self._key, self._calls), random.key(seed), 0
        try:
            return self(observation)
        finally:
            self._key, self._calls = kept

    def distribution(self, observation: Observation) -> dict[str, np.ndarray]:
        """The parameters of the action distribution: `mean` and `std`, or `probabilities`, or the `action` itself.

        For a squashed Gaussian they are those before the tanh, in units of its bound.

        The argument is one observation or a batch. If actions are mapped to an environment's own range after they are
        drawn, these are the parameters before the mapping.
        """
        batch, single = self._batch(observation)
        found = jax.vmap(self.network)(jnp.asarray(batch))
        while isinstance(found, Mapped):
            found = found.inner
        if isinstance(found, gaussian.Gaussian | squashed.Squashed):
            named = {"mean": found.mean, "std": jnp.exp(found.log_std)}
        elif isinstance(found, categorical.Categorical):
            named = {"probabilities": jax.nn.softmax(found.logits, axis=-1)}
        else:
            named = {"action": found.action}
        return {name: np.asarray(value)[0] if single else np.asarray(value) for name, value in named.items()}

    def value(self, observation: Observation, step: ArrayLike = 0) -> np.ndarray:
        """The expected return over the rest of the episode, by training's value function, for each observation.

        `step` is the number of steps since the episode's start. It matters only if the horizon ends the sum. Returns
        are discounted as in training. A run's value functions are those of its newest policy, fitted to the batch of
        the latest epoch: `apdo.load(RUN, newest=True)` has them, and so does each policy of `result.newest`.
        """
        return self._valued(observation, step)[..., 0]

    def cost_value(self, observation: Observation, step: ArrayLike = 0) -> np.ndarray:
        """The expected costs over the rest of the episode, [M] or [B, M], in the same way as `value`."""
        return self._valued(observation, step)[..., 1:]

    def _valued(self, observation: Observation, step: ArrayLike) -> np.ndarray:
        if self._values is None:
            raise InvalidInput(
                "this policy has no value functions: a run keeps those of its newest policy (newest=True), and only "
                "where its algorithm learns one of the return and one of each cost."
            )
        batch, single = self._batch(observation)
        steps = np.asarray(step, dtype=np.int32)
        if steps.ndim > 1 or (steps.ndim == 1 and (single or len(steps) != len(batch))):
            raise InvalidInput(f"a step is a number, or one for each of {len(batch)} observations, not {steps.shape}.")
        steps = np.broadcast_to(steps, (len(batch),))
        found = np.asarray(_value(self._values, jnp.asarray(batch), jnp.asarray(steps)))
        return found[0] if single else found

    def save(self, path: str | Path) -> None:
        """Export to a plain .npz, or to ONNX if the name ends in .onnx (docs/policies.md)."""
        export.save(self.arrays(), Path(path))

    def arrays(self) -> dict[str, np.ndarray]:
        """The policy as named arrays, as `apdo.export` describes them."""
        around, network = {}, self.network
        while isinstance(network, Wrapper):
            around, network = network.around() | around, network.network
        if isinstance(network, gaussian.Policy):
            kind, layers, own = "gaussian", network.mean, {"log_std": np.asarray(network.log_std)}
        elif isinstance(network, categorical.Policy):
            kind, layers, own = "categorical", network.logits, {}
        elif isinstance(network, deterministic.Policy):
            kind, layers, own = "deterministic", network.mean, {}
        elif isinstance(network, squashed.Policy):
            kind, layers, own = "squashed", network.network, {}
        else:
            raise InvalidInput(f"a policy of kind {type(network).__name__} cannot be exported.")
        named = {"format": np.asarray(export.FORMAT), "kind": np.asarray(kind)} | _convolutions(layers)
        layers = networks.connected(layers)
        for i, (weight, bias) in enumerate(zip(layers.weights, layers.biases, strict=True)):
            named |= {f"weight_{i}": np.asarray(weight), f"bias_{i}": np.asarray(bias)}
        if layers.activation != "tanh":
            own["activation"] = np.asarray(layers.activation)
        if isinstance(network, gaussian.Policy | deterministic.Policy | squashed.Policy) and network.bound:
            own["bound"] = np.asarray(network.bound, dtype=np.float32)
        if self.choices is not None and not np.array_equal(self.choices, np.arange(len(self.choices))):
            own["choices"] = np.asarray(self.choices)
        return named | own | around

    def _batch(self, observation: Observation) -> tuple[np.ndarray, bool]:
        """The observations as a batch, and whether the argument was a single observation."""
        given = np.asarray(self._as_numbers(observation), dtype=np.float32)
        if self.image is not None and given.shape[-3:] == self.image and given.ndim in (3, 4):
            given = given.reshape(*given.shape[:-3], -1)
        if given.ndim not in (1, 2) or given.shape[-1] != self.observation_size:
            raise InvalidInput(
                f"an observation has {self.observation_size} numbers, and a batch of them two axes; "
                f"this has shape {given.shape}."
            )
        return np.atleast_2d(given), given.ndim == 1

    def _as_numbers(self, observation: Observation) -> ArrayLike:
        """The observation as a vector, if it is as its environment gives it; vectors and batches are returned."""
        if self._write is None:
            return observation
        if not isinstance(observation, dict | tuple):
            shape = np.shape(observation)
            if len(shape) in (1, 2) and shape[-1] == self.observation_size:
                return observation
        vector = np.empty(self.observation_size, np.float32)
        try:
            self._write(observation, vector)
        except spaces.Mismatch as mismatch:
            raise InvalidInput(f"{mismatch}; a batch needs {self.observation_size} numbers for each.") from None
        return vector


def _convolutions(network: networks.Network) -> dict[str, np.ndarray]:
    """The convolutions before the connected layers, under the names of `apdo.export`."""
    if not isinstance(network, networks.Convolutional):
        return {}
    named = {"image": np.asarray(network.image)}
    for i, (kernel, offset) in enumerate(zip(network.kernels, network.offsets, strict=True)):
        named |= {f"kernel_{i}": np.asarray(kernel), f"offset_{i}": np.asarray(offset)}
        named[f"stride_{i}"] = np.asarray(network.strides[i])
    return named


def _normalised(network: PyTree, normaliser: tuple[ArrayLike, ArrayLike], size: int) -> Normalised:
    mean, std = (np.asarray(part, dtype=np.float32) for part in normaliser)
    if mean.shape != (size,) or std.shape != (size,):
        raise InvalidInput(f"a normaliser needs {size} means and as many deviations, not {mean.shape} and {std.shape}.")
    if not (np.all(np.isfinite(mean)) and np.all(np.isfinite(std)) and np.all(std > 0.0)):
        raise InvalidInput("a normaliser's means must be finite and its deviations finite and above 0.")
    return Normalised(network=network, mean=jnp.asarray(mean), std=jnp.asarray(std))


@eqx.filter_jit
def _value(values: Callable[[Array, Array], Array], observations: Array, steps: Array) -> Array:
    return values(observations, steps)


@eqx.filter_jit
def _act(network: PyTree, observations: Array, keys: Array, deterministic: bool) -> Array:
    if deterministic:
        return jax.vmap(lambda o: network(o).mode())(observations)
    return jax.vmap(lambda o, k: network(o).sample(k))(observations, keys)
