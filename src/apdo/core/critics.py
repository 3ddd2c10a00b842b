"""Value functions V_k(s) of K signals (the reward, the costs) as one stack of networks.

The networks predict normalised targets: V = mean + scale · output, where mean and scale of each signal are those of the
latest batch's targets. When these change, the last layer is adjusted so that every value remains the same (van Hasselt
et al. 2016). The units of a signal therefore make no difference to the fit, and the mean of the targets need not be
learned. If the rest of an episode depends on the time, the time is an input of the networks too.
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
"""Targets whose standard deviation is below this share of their largest magnitude count as constant."""


@dataclasses.dataclass(frozen=True)
class Config:
    """The shape of value functions, and how they are fitted."""

    hidden: tuple[int, ...] = option((64, 32), "hidden layers of each value network", PAPER, above=0, most=10**5)
    rate: float = option(1e-3, "Adam's learning rate", OURS, above=0.0)
    passes: int = option(5, "passes over the batch in one fit", OURS, above=0)
    minibatches: int = option(25, "gradient steps in one pass", OURS, above=0)


class Critic(eqx.Module):
    """K value networks, the mean and scale of each one's targets, and the state of their optimiser."""

    networks: networks.Network
    mean: Float[Array, " K"]
    scale: Float[Array, " K"]
    """The deviation of each signal's targets. It is 0 until they have varied; the value is the mean until then."""
    optimiser: optax.OptState
    horizon: int | None = eqx.field(static=True)
    """The episode's length in steps, if the networks see the time."""


def init(
    config: Config,
    key: PRNGKeyArray,
    observation_size: int,
    signals: int,
    horizon: int | None = None,
    image: networks.Image | None = None,
) -> Critic:
    """New value functions for K signals. They are 0 everywhere."""
    values = networks.build_stack(key, signals, observation_size + (horizon is not None), config.hidden, image)
    return Critic(
        networks=values,
        mean=jnp.zeros(signals),
        scale=jnp.zeros(signals),
        optimiser=descent.init(optax.adam(config.rate), values),
        horizon=horizon,
    )


def inputs(critic: Critic, observation: Float[Array, "*batch O"], step: Int[Array, "*batch"]) -> Float[Array, "B I"]:
    """The inputs of the networks, one row for each sample."""
    flat = observation.reshape(-1, observation.shape[-1])
    if critic.horizon is None:
        return flat
    return jnp.concatenate([flat, (step.reshape(-1, 1) / critic.horizon).astype(flat.dtype)], axis=-1)


def values(
    critic: Critic, observation: Float[Array, "*batch O"], step: Int[Array, "*batch"]
) -> Float[Array, "*batch K"]:
    """V_k at each observation and step of an episode."""
    output = networks.apply_stack(critic.networks, inputs(critic, observation, step))[..., 0].T
    found = critic.mean[None] + critic.scale[None] * output
    return found.reshape(*observation.shape[:-1], -1)


class Estimates(eqx.Module):
    """Advantages of the sampled actions, and the targets to fit the value functions to."""

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
    """Advantages by GAE with the values from before the fit. The targets are value plus advantage.

    `final` marks the steps after which nothing counts any more. If the networks see the time, every step that ends an
    episode is final. The next value of a step is then the value of the row after it, which saves half of the work.
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
    """The critic after a least-squares fit by Adam on minibatches, and each signal's mean squared error.

    `observed` is the result of `inputs`. The error is the mean over the last pass, as a share of the targets' variance.
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
    """The same value functions, with the mean and scale of these targets. A constant signal keeps its old ones."""
    mean, deviation = jnp.mean(target, axis=0), jnp.std(target, axis=0)
    varies = deviation > _CONSTANT * jnp.max(jnp.abs(target), axis=0)
    new_mean, new_scale = jnp.where(varies, mean, critic.mean), jnp.where(varies, deviation, critic.scale)
    # A scale of 0 means that the network was never fitted, so its values need not be preserved.
    kept = varies & (critic.scale > 0.0)
    divisor = jnp.where(kept, new_scale, 1.0)
    ratio = jnp.where(kept, critic.scale / divisor, 1.0)
    shift = jnp.where(kept, (critic.mean - new_mean) / divisor, 0.0)
    last = networks.connected(critic.networks)
    weights = (*last.weights[:-1], last.weights[-1] * ratio[:, None, None])
    biases = (*last.biases[:-1], last.biases[-1] * ratio[:, None] + shift[:, None])
    moved = networks.with_connected(critic.networks, networks.MLP(weights=weights, biases=biases))
    return dataclasses.replace(critic, networks=moved, mean=new_mean, scale=new_scale)
