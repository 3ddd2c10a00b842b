"""The primal step of an epoch: π_{k+1} from samples of π_k and their advantages (paper, Algorithm 1, line 5).

Every step raises the surrogate  E[w · π_θ(a|s)/π_k(a|s) · A(s, a)]  near π_k, where w is the weight of a step in the
sums that are optimised (`surrogate`). Steps differ in how they stay near π_k:

    trpo        bounds the KL divergence, and searches along the natural gradient      (`natural_steps`)
    natural     takes the same step, or a shorter one, without a search                (`natural_steps`)
    reinforce   takes one Adam step along the likelihood-ratio gradient                (`gradient_steps`)
    ppo         clips the ratio, and takes many Adam steps                             (`ppo_steps`)
"""

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from apdo.algorithms import gradient_steps, natural_steps, ppo_steps
from apdo.algorithms.gradient_steps import LikelihoodRatio, Passes
from apdo.algorithms.natural_steps import NaturalGradient, Shortening, Trpo
from apdo.algorithms.ppo_steps import Ppo
from apdo.algorithms.surrogate import Samples, Surrogate
from apdo.core import annealing, trust_region
from apdo.core.policies import Policy
from apdo.problem import Asked

Config = Trpo | NaturalGradient | LikelihoodRatio | Ppo
CHOICES = {"trpo": Trpo, "natural": NaturalGradient, "reinforce": LikelihoodRatio, "ppo": Ppo}


def suited(asked: Asked) -> dict[str, object]:
    """Default options of a policy step for a task and a run."""
    return {"primal.radius": trust_region.radius_for(asked.horizon, asked.epochs)}


def init(config: Config | Passes, policy: Policy) -> optax.OptState:
    """The optimiser's state before the first epoch; empty for steps along the natural gradient."""
    return () if isinstance(config, Trpo | NaturalGradient) else gradient_steps.init(config, policy)


def counter(config: Config) -> Int[Array, ""] | None:
    """The counter of epochs for steps that shrink, which begins at 0; None for other steps."""
    return annealing.counter(config.anneal) if isinstance(config, Trpo | NaturalGradient) else None


def step_length(
    config: Config, optimiser: optax.OptState, epochs: Int[Array, ""] | int = 0
) -> float | Float[Array, ""]:
    """The length of the coming epoch's steps, relative to the first epoch's.

    Gradient steps count themselves, in the optimiser's state. For steps along the natural gradient, `epochs` counts.
    """
    match config:
        case LikelihoodRatio():
            return 1.0
        case Ppo():
            return gradient_steps.step_length(config, optimiser)
        case _:
            return natural_steps.step_length(config, epochs)


def improve(
    config: Config,
    policy: Policy,
    optimiser: optax.OptState,
    samples: Samples,
    key: PRNGKeyArray,
    shortening: Shortening | None = None,
    epochs: Int[Array, ""] | int = 0,
) -> tuple[Policy, optax.OptState, dict[str, Array]]:
    """One primal step, in the epoch with the number `epochs`."""
    surrogate = Surrogate.at(policy, samples)
    accepted = jnp.asarray(True)
    match config:
        case Trpo():
            new, accepted = natural_steps.trust_region_step(config, surrogate, policy, epochs, shortening)
        case NaturalGradient():
            new = natural_steps.natural_gradient_step(config, surrogate, policy, epochs)
        case LikelihoodRatio():
            new, optimiser = gradient_steps.likelihood_ratio_step(config, surrogate, policy, optimiser)
        case Ppo():
            new, optimiser = ppo_steps.improve(config, surrogate, policy, optimiser, key)
    return new, optimiser, surrogate.measure(new, accepted)
