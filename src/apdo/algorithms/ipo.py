"""Interior-point policy optimisation, IPO (Liu, Ding and Liu 2020): a logarithmic barrier in front of each limit.

    maximise over θ   L_R(θ) + Σ_i log(d_i - C_i(θ)) / t,      C_i(θ) = C_i(π_k) + L E (ρ - 1) A_Ci

L_R is PPO's clipped surrogate and ρ = π_θ(a|s) / π_k(a|s). The maximisation is by gradient steps on minibatches. The
barrier's gradient is -∇C_i / (t (d_i - C_i)): it acts as a multiplier of 1 / (t (d_i - C_i)), which grows as the cost
approaches its limit. As for every logarithmic barrier, the return at the optimum of the sum is at most m/t below R*. A
larger t gives an optimum nearer to the limit, and a steeper barrier.

Any number of constraints, as in the paper.

Deviations:
1. **Units.** d_i - C_i is expressed as a share x of max(|d_i|, |C_i|), and t is a pure number: the multiplier is
   σ(A_R) / (σ(A_Ci) t x). The paper's 1/t has the unit of the return.
2. **Beyond the limits** the logarithm is undefined, and the paper requires a first policy that keeps them. Here the
   barrier continues as a straight line below x = 1/(20 t), where the multiplier is 20 in units of σ(A_R) / σ(A_Ci). So
   any first policy is allowed. (OmniSafe's version has a constant penalty there.)
3. The margin of `dial` is part of d_i.
"""

import dataclasses

import jax.numpy as jnp
from jax import random
from jaxtyping import Array, Float, PRNGKeyArray

from apdo.algorithms import epoch, gradient_steps, on_policy, ppo_steps
from apdo.core import policies
from apdo.core.data import Transition
from apdo.options import OURS, option
from apdo.problem import Problem

act, memory, learned_policy, learned_values, start_from = on_policy.SHARED
State = epoch.State


@dataclasses.dataclass(frozen=True)
class Config(epoch.ClippedConfig):
    """Settings of IPO."""

    sharpness: float = option(20.0, "t: a larger t gives a steeper barrier, nearer to the limit", OURS, above=0.0)
    most: float = option(20.0, "largest multiplier of the barrier, in units of σ(A_R)/σ(A_C)", OURS, above=0.0)


init = epoch.init


def step(
    config: Config, problem: Problem, state: State, batch: Transition, key: PRNGKeyArray
) -> tuple[State, dict[str, Array]]:
    """One epoch: advantages, gradient steps on return and barrier, and the fit of the value functions."""
    primal_key, critic_key = random.split(key)
    config, quantities, data = epoch.begin_clipped(config, problem, state, batch)

    def barred(candidate: policies.Policy, part: epoch.Signals) -> Float[Array, ""]:
        return loss(config, candidate, part, quantities.excess, quantities.size)

    policy, optimiser = gradient_steps.descend(
        config.primal, barred, data, data.surrogate, quantities.policy, state.optimiser, primal_key
    )
    deviation = jnp.std(quantities.estimates.advantage, axis=(0, 1))
    varies = (deviation[1:] > 0.0) & (quantities.size > 0.0)
    share = -quantities.excess / jnp.where(varies, quantities.size, 1.0)
    price = deviation[0] / jnp.where(varies, deviation[1:], 1.0) / config.sharpness
    multiplier = jnp.where(varies, price / jnp.maximum(share, least(config)), 0.0)
    metrics = data.surrogate.measure(policy) | {"multiplier": multiplier}
    return epoch.finish(config, state, quantities, critic_key, policy, optimiser, metrics)


def loss(
    config: Config, policy: policies.Policy, near: epoch.Signals, excess: Float[Array, " M"], size: Float[Array, " M"]
) -> Float[Array, ""]:
    """-L_R - Σ_i barrier_i."""
    weight = near.surrogate.samples.weight[:, None]
    change = jnp.mean(weight * (near.surrogate.ratio(policy)[:, None] - 1.0) * near.cost, axis=0)
    unit = jnp.where(size > 0.0, size, 1.0)
    barriers = unit * barrier((-excess - change) / unit, least(config)) / config.sharpness
    return -jnp.sum(barriers) - ppo_steps.clipped_gain(config.primal, near.surrogate, policy)


def least(config: Config) -> float:
    """The slack, as a share of the limit, at which the barrier's multiplier reaches its maximum."""
    return 1.0 / (config.sharpness * config.most)


def barrier(slack: Float[Array, " M"], least: float) -> Float[Array, " M"]:
    """log(x); below the least slack it continues as its tangent there."""
    inside = jnp.maximum(slack, least)
    return jnp.log(inside) + (jnp.minimum(slack, least) - least) / least
