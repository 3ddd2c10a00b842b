"""Value functions V_k(s) of K signals (the reward, the costs) as one stack of networks."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from apdo.core import descent, minibatch, networks
from apdo.core.advantage import gae
from apdo.core.data import Transition
from apdo.options import OURS, PAPER, option


@dataclasses.dataclass(frozen=True)
class Config:
    """How value functions are shaped and fitted."""

    hidden: tuple[int, ...] = option((64, 32), "hidden layers of each value network", PAPER, above=0, most=10**5)
    rate: float = option(1e-3, "Adam's learning rate", OURS, above=0.0)
    passes: int = option(5, "passes over the batch in one fit", OURS, above=0)
    minibatches: int = option(25, "gradient steps in one pass", OURS, above=0)


class Critic(eqx.Module):
    """K value networks and their optimiser."""

    networks: networks.MLP
    optimiser: optax.OptState


def init(config: Config, key: PRNGKeyArray, observation_size: int, signals: int) -> Critic:
    """Fresh value functions for K signals."""
    values = networks.stack(key, signals, observation_size, config.hidden)
    return Critic(networks=values, optimiser=descent.init(optax.adam(config.rate), values))


def values(critic: Critic, observation: Float[Array, "*batch O"]) -> Float[Array, "*batch K"]:
    """V_k at each observation."""
    flat = observation.reshape(-1, observation.shape[-1])
    return networks.apply_stack(critic.networks, flat)[..., 0].T.reshape(*observation.shape[:-1], -1)


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
    *,
    truncates: bool,
) -> Estimates:
    """Advantages by GAE with the values as they stand before the fit; targets are value plus advantage.

    Where no episode is ever truncated, the next value within the batch is the value one step on.
    """
    value = values(critic, batch.observation)
    if truncates:
        next_value = values(critic, batch.next_observation)
    else:
        next_value = jnp.concatenate([value[1:], values(critic, batch.next_observation[-1:])])
    advantage = gae(signal, value, next_value, batch.terminated, batch.ended, discount, trace)
    return Estimates(advantage=advantage, target=value + advantage)


def fit(
    config: Config, critic: Critic, key: PRNGKeyArray, observation: Float[Array, "B O"], target: Float[Array, "B K"]
) -> tuple[Critic, Float[Array, " K"]]:
    """The critic after least squares by Adam on minibatches, and the last pass's mean squared error by signal."""
    optimiser = optax.adam(config.rate)

    def loss(values: networks.MLP, o: Float[Array, "b O"], y: Float[Array, "b K"]) -> tuple[Array, Array]:
        error = jnp.mean(jnp.square(networks.apply_stack(values, o)[..., 0] - y.T), axis=-1)
        return jnp.sum(error), error

    def descend(
        carry: tuple[networks.MLP, optax.OptState], data: tuple[Array, Array]
    ) -> tuple[tuple[networks.MLP, optax.OptState], Array]:
        values, state = carry
        gradient, error = jax.grad(loss, has_aux=True)(values, *data)
        return descent.step(optimiser, values, gradient, state), error

    (fitted, state), error = minibatch.sweep(
        descend,
        (critic.networks, critic.optimiser),
        (observation, target),
        key,
        size=max(1, observation.shape[0] // config.minibatches),
        passes=config.passes,
    )
    return Critic(networks=fitted, optimiser=state), error
