"""Optax's optimisers on parameters of any shape: a vector, a network, a stack of networks.

Optax declares its parameters as nested containers of arrays. An Equinox module is one for JAX, but not for a type
checker, hence the casts.
"""

from typing import TypeVar, cast

import optax

Parameters = TypeVar("Parameters")


def init(optimiser: optax.GradientTransformation, parameters: object) -> optax.OptState:
    """The optimiser's state before its first step."""
    return optimiser.init(cast(optax.Params, parameters))


def step(
    optimiser: optax.GradientTransformation, parameters: Parameters, gradient: Parameters, state: optax.OptState
) -> tuple[Parameters, optax.OptState]:
    """The parameters and the optimiser's state after one step down the gradient."""
    updates, state = optimiser.update(cast(optax.Updates, gradient), state)
    return cast(Parameters, optax.apply_updates(cast(optax.Params, parameters), updates)), state
