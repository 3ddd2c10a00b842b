"""Value functions V_k(s) of K signals (the reward, the costs) as one stack of networks.

The networks predict targets in units of the targets themselves: V = mean + scale · output, with mean and scale of each
signal taken from the latest batch. When those change, the last layer is changed so that every value stays what it was
(van Hasselt et al. 2016). So a value function is fitted alike whatever its signal is counted in, and a level that all
targets share need not be learned. Where what is left of an episode depends on the time, the networks see that too.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from apdo.core import descent, minibatch, networks
from apdo.core.advantage import gae
from apdo.core.data import Transition
from apdo.options import OURS, PAPER, option

_CONSTANT = 1e-5
"""Targets that differ by less than this share of their size are constant, up to rounding."""


@dataclasses.dataclass(frozen=True)
class Config:
    """How value functions are shaped and fitted."""

    hidden: tuple[int, ...] = option((64, 32), "hidden layers of each value network", PAPER, above=0, most=10**5)
    rate: float = option(1e-3, "Adam's learning rate", OURS, above=0.0)
    passes: int = option(5, "passes over the batch in one fit", OURS, above=0)
    minibatches: int = option(25, "gradient steps in one pass", OURS, above=0)


class Critic(eqx.Module):
    """K value networks, the units of their outputs, and their optimiser."""

    networks: networks.Network
    mean: Float[Array, " K"]
    scale: Float[Array, " K"]
    """0 until a signal's targets have varied: its value is then the mean."""
    optimiser: optax.OptState
    horizon: int | None = eqx.field(static=True)
    """The episode's length, where the networks see the time."""


def init(
    config: Config,
    key: PRNGKeyArray,
    observation_size: int,
    signals: int,
    horizon: int | None = None,
    image: networks.Image | None = None,
) -> Critic:
    """Fresh value functions for K signals: 0 everywhere."""
    values = networks.build_stack(key, signals, observation_size + (horizon is not None), config.hidden, image)
    return Critic(
        networks=values,
        mean=jnp.zeros(signals),
        scale=jnp.zeros(signals),
        optimiser=descent.init(optax.adam(config.rate), values),
        horizon=horizon,
    )


def inputs(critic: Critic, observation: Float[Array, "*batch O"], step: Int[Array, "*batch"]) -> Float[Array, "B I"]:
    """What the networks see, one row for each sample."""
    flat = observation.reshape(-1, observation.shape[-1])
    if critic.horizon is None:
        return flat
    return jnp.concatenate([flat, (step.reshape(-1, 1) / critic.horizon).astype(flat.dtype)], axis=-1)


def values(
    critic: Critic, observation: Float[Array, "*batch O"], step: Int[Array, "*batch"]
) -> Float[Array, "*batch K"]:
    """V_k at each observation, at that step of an episode."""
    output = networks.apply_stack(critic.networks, inputs(critic, observation, step))[..., 0].T
    found = critic.mean[None] + critic.scale[None] * output
    return found.reshape(*observation.shape[:-1], -1)


class Estimates(eqx.Module):
    """Advantages of the sampled actions, and the targets that the value functions are to be fitted to."""

    advantage: Float[Array, "T N K"]
    target: Float[Array, "T N K"]


def estimate(
    critic: Critic,
    batch: Transition,
    signal: Float[Array, "T N K"],
    discount: Float[Array, " K"],
    trace: Float[Array, " K"],
    final: Bool[Array, "T N"],
) -> Estimates:
    """Advantages by GAE with the values as they stand before the fit; targets are value plus advantage.

    `final` says after which steps nothing counts any more. Where that is so of all that end an episode, the next value
    within the batch is the value one step on, which saves half of the work.
    """
    value = values(critic, batch.observation, batch.step)
    if critic.horizon is None:
        next_value = values(critic, batch.next_observation, batch.step + 1)
    else:
        last = values(critic, batch.next_observation[-1:], batch.step[-1:] + 1)
        next_value = jnp.concatenate([value[1:], last])
    advantage = gae(signal, value, next_value, final, batch.ended, discount, trace)
    return Estimates(advantage=advantage, target=value + advantage)


def fit(
    config: Config, critic: Critic, key: PRNGKeyArray, observed: Float[Array, "B I"], target: Float[Array, "B K"]
) -> tuple[Critic, Float[Array, " K"]]:
    """The critic after least squares by Adam on minibatches, and the last pass's mean squared error by signal.

    `observed` is what `inputs` gives. The error is a share of the targets' variance.
    """
    optimiser = optax.adam(config.rate)
    critic = _in_units_of(critic, target)
    divisor = jnp.where(critic.scale > 0.0, critic.scale, 1.0)
    wanted = (target - critic.mean[None]) / divisor[None]

    def loss(values: networks.Network, o: Float[Array, "b I"], y: Float[Array, "b K"]) -> tuple[Array, Array]:
        error = jnp.mean(jnp.square(networks.apply_stack(values, o)[..., 0] - y.T), axis=-1)
        return jnp.sum(error), error

    def descend(
        carry: tuple[networks.Network, optax.OptState], data: tuple[Array, Array]
    ) -> tuple[tuple[networks.Network, optax.OptState], Array]:
        values, state = carry
        gradient, error = jax.grad(loss, has_aux=True)(values, *data)
        return descent.step(optimiser, values, gradient, state), error

    (fitted, state), error = minibatch.sweep(
        descend,
        (critic.networks, critic.optimiser),
        (observed, wanted),
        key,
        size=max(1, observed.shape[0] // config.minibatches),
        passes=config.passes,
    )
    return dataclasses.replace(critic, networks=fitted, optimiser=state), error


def _in_units_of(critic: Critic, target: Float[Array, "B K"]) -> Critic:
    """The same value functions, with outputs in units of these targets; a signal that does not vary keeps its own."""
    mean, deviation = jnp.mean(target, axis=0), jnp.std(target, axis=0)
    varies = deviation > _CONSTANT * jnp.max(jnp.abs(target), axis=0)
    new_mean, new_scale = jnp.where(varies, mean, critic.mean), jnp.where(varies, deviation, critic.scale)
    # Values that have no unit yet are those of a network that nobody has fitted: they need not be kept.
    kept = varies & (critic.scale > 0.0)
    divisor = jnp.where(kept, new_scale, 1.0)
    ratio = jnp.where(kept, critic.scale / divisor, 1.0)
    shift = jnp.where(kept, (critic.mean - new_mean) / divisor, 0.0)
    last = networks.connected(critic.networks)
    weights = (*last.weights[:-1], last.weights[-1] * ratio[:, None, None])
    biases = (*last.biases[:-1], last.biases[-1] * ratio[:, None] + shift[:, None])
    moved = networks.with_connected(critic.networks, networks.MLP(weights=weights, biases=biases))
    return dataclasses.replace(critic, networks=moved, mean=new_mean, scale=new_scale)
