"""Gradient steps by Adam: one on the whole batch (REINFORCE), or passes over the batch in minibatches.

    REINFORCE   θ_{k+1} = θ_k + Adam(rate; g)                    g the gradient of the surrogate's gain at π_k
    passes      θ ← θ - Adam(p_k rate; ∇ loss_B(θ))              for each minibatch B, beginning with θ = θ_k

The gradients of passes are scaled down to a largest norm. Passes end early once KL(π_k ‖ π_θ) exceeds a bound D. If
it exceeds 2D, the whole step from θ_k is multiplied by sqrt(2D / KL), and so is the pace p_k, from which later epochs
recover slowly.
"""

import dataclasses
from collections.abc import Callable
from math import inf
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from apdo.algorithms.surrogate import Surrogate
from apdo.core import annealing, descent, minibatch
from apdo.core.policies import Policy
from apdo.options import OURS, option

Data = TypeVar("Data")
SomePasses = TypeVar("SomePasses", bound="Passes")

_QUICKER = 1.05
"""The factor by which the pace of gradient steps recovers in an epoch that did not go too far."""


@dataclasses.dataclass(frozen=True)
class LikelihoodRatio:
    """REINFORCE: one Adam step along the likelihood-ratio gradient."""

    rate: float = option(0.01, "Adam's learning rate", OURS, above=0.0)


@dataclasses.dataclass(frozen=True)
class Passes:
    """Gradient steps by Adam on shuffled minibatches of one batch."""

    rate: float = option(1e-3, "Adam's learning rate", OURS, above=0.0)
    passes: int = option(10, "passes over the batch", "the PPO paper", above=0)
    minibatches: int = option(25, "gradient steps in one pass", OURS, above=0)
    gradient_norm: float = option(0.5, "longer gradients are scaled down to this norm", OURS, above=0.0)
    most_kl: float = option(
        0.03,
        "passes end once the policy has moved so far, in KL divergence; beyond twice this the whole step is shortened, "
        "and later gradient steps too; 0: any distance",
        OURS,
        within=(0.0, inf),
    )
    anneal: float = option(
        0.0,
        f"{annealing.SHORTER} on rate and clip; 0: both are constant",
        OURS,
        within=(0.0, inf),
    )

    def shortened(self: SomePasses, length: float | Float[Array, ""]) -> SomePasses:
        """The settings of steps that are shorter by this factor."""
        return dataclasses.replace(self, rate=length * self.rate)


class Walk(NamedTuple):
    """The state of passes between epochs."""

    moments: optax.OptState
    """Adam's state."""
    pace: Float[Array, ""]
    """p_k, the current share of the configured rate, at most 1.

    If a policy has become narrow, a small change of its mean is a large KL divergence. One pass at the configured rate
    can then go far beyond `most_kl`. KL grows with the square of the rate.
    """


def init(config: LikelihoodRatio | Passes, policy: Policy, pace_of: optax.OptState = ()) -> optax.OptState:
    """The state before the first step. Passes begin at the pace of another walk of the same policy, or else at 1."""
    moments = _optimiser(config).init(ravel_pytree(policy)[0])
    if isinstance(config, LikelihoodRatio):
        return moments
    return Walk(moments=moments, pace=pace_of.pace if isinstance(pace_of, Walk) else jnp.ones(()))


def step_length(config: Passes, optimiser: optax.OptState) -> float | Float[Array, ""]:
    """The length of the coming epoch's steps, relative to the first epoch's. Adam's count of steps tells the epoch."""
    if not config.anneal:
        return 1.0
    counted = optax.tree_utils.tree_get(optimiser, "count") / (config.passes * config.minibatches)
    return annealing.length(config.anneal, counted)


def annealed(config: SomePasses, optimiser: optax.OptState) -> SomePasses:
    """The settings of the coming epoch's steps."""
    return config.shortened(step_length(config, optimiser)) if config.anneal else config


def likelihood_ratio_step(
    config: LikelihoodRatio, surrogate: Surrogate, policy: Policy, state: optax.OptState
) -> tuple[Policy, optax.OptState]:
    """The policy after one step along the gradient of the surrogate's gain."""
    parameters, unravel = ravel_pytree(policy)
    gradient = jax.grad(lambda p: -surrogate.gain(p))(policy)
    parameters, state = descent.step(_optimiser(config), parameters, ravel_pytree(gradient)[0], state)
    return unravel(parameters), state


def descend(
    config: Passes,
    loss: Callable[[Policy, Data], Float[Array, ""]],
    data: Data,
    surrogate: Surrogate,
    policy: Policy,
    walk: optax.OptState,
    key: PRNGKeyArray,
) -> tuple[Policy, optax.OptState]:
    """The policy after passes over `data`, with a gradient step on the loss of each minibatch.

    The samples are the first axis of every array in `data`, so that a minibatch has the same type. `surrogate` is that
    of all samples; it measures how far the policy has moved.
    """
    assert isinstance(walk, Walk)
    start, unravel = ravel_pytree(policy)
    optimiser = _optimiser(dataclasses.replace(config, rate=walk.pace * config.rate))

    def one(carry: tuple[Array, optax.OptState], part: Data) -> tuple[tuple[Array, optax.OptState], None]:
        theta, state = carry
        gradient = jax.grad(lambda theta: loss(unravel(theta), part))(theta)
        return descent.step(optimiser, theta, gradient, state), None

    def near(carry: tuple[Array, optax.OptState]) -> Bool[Array, ""]:
        return surrogate.kl(unravel(carry[0])) <= config.most_kl

    size = max(1, surrogate.samples.advantage.shape[0] // config.minibatches)
    going = near if config.most_kl else None
    begun = (start, walk.moments)
    (end, moments), _ = minibatch.sweep(one, begun, data, key, size=size, passes=config.passes, going=going)
    if not config.most_kl:
        return unravel(end), Walk(moments=moments, pace=walk.pace)
    far = surrogate.kl(unravel(end)) / (2.0 * config.most_kl)
    end, pace = _held_back(far, start, end, walk.pace)
    return unravel(end), Walk(moments=moments, pace=pace)


def _held_back(
    far: Float[Array, ""], start: Float[Array, " P"], end: Float[Array, " P"], pace: Float[Array, ""]
) -> tuple[Float[Array, " P"], Float[Array, ""]]:
    """Where a walk ends and its pace, both reduced if its divergence is too large, that is, if `far` exceeds 1."""
    share = jnp.where(far > 1.0, 1.0 / jnp.sqrt(far), 1.0)
    end = jnp.where(far > 1.0, start + share * (end - start), end)
    return end, jnp.minimum(1.0, pace * jnp.where(far > 1.0, share, _QUICKER))


def _optimiser(config: LikelihoodRatio | Passes) -> optax.GradientTransformation:
    adam = optax.adam(config.rate)
    if isinstance(config, LikelihoodRatio):
        return adam
    return optax.chain(optax.clip_by_global_norm(config.gradient_norm), adam)
