"""Penalised proximal policy optimisation, P3O (Zhang et al. 2022): an exact penalty instead of multipliers.

    minimise over θ   -L_R(θ) + κ Σ_i [L_Ci(θ)]⁺

    L_R  = E min(ρ A_R, clip(ρ) A_R),                             ρ = π_θ(a|s) / π_k(a|s)
    L_Ci = E max(ρ A_Ci, clip(ρ) A_Ci) + (C_i(π_k) - d_i) / L

by gradient steps on minibatches. If κ exceeds every optimal multiplier λ_i*, the penalty is exact: the minimiser keeps
the limits and solves the constrained problem. If κ is lower, a limit is exceeded. A κ that is larger than necessary
only makes the loss steeper beyond the limits.

Any number of constraints, as in the paper.

Deviations:
1. Rewards and costs are in units of the standard deviation of their own advantages (`epoch`), so κ is a pure number: in
   return per cost it is κ σ(A_R) / σ(A_Ci). The default of 20 is that of OmniSafe, which standardises advantages too.
2. L, the effective number of steps in an episode's sum, replaces the paper's 1/(1 - γ). It is the same for endless
   episodes, and correct for those that end.
3. κ is fixed. The paper also describes a κ that grows while limits are exceeded.
4. The bracket is measured from ρ = 1: max(ρ A, clip(ρ) A) - A. Otherwise a batch whose weighted mean of A_C is not
   exactly 0 would shift the limit.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import random
from jaxtyping import Array, Float, PRNGKeyArray

from apdo.algorithms import epoch, gradient_steps, on_policy, ppo_steps
from apdo.core import policies
from apdo.core.data import Transition
from apdo.options import option
from apdo.problem import Problem

act, memory, learned_policy, learned_values, start_from = on_policy.SHARED
State = epoch.State


@dataclasses.dataclass(frozen=True)
class Config(epoch.ClippedConfig):
    """Settings of P3O."""

    penalty: float = option(20.0, "κ, in units of σ(A_R)/σ(A_C)", "OmniSafe", above=0.0)


init = epoch.init


def step(
    config: Config, problem: Problem, state: State, batch: Transition, key: PRNGKeyArray
) -> tuple[State, dict[str, Array]]:
    """One epoch: advantages, gradient steps on the penalised loss, and the fit of the value functions."""
    primal_key, critic_key = random.split(key)
    config, quantities, data = epoch.begin_clipped(config, problem, state, batch)

    def penalised(candidate: policies.Policy, part: epoch.Signals) -> Float[Array, ""]:
        return loss(config, candidate, part, quantities.excess)

    policy, optimiser = gradient_steps.descend(
        config.primal, penalised, data, data.surrogate, quantities.policy, state.optimiser, primal_key
    )
    metrics = data.surrogate.measure(policy)
    metrics["penalised"] = (brackets(config.primal, policy, data, quantities.excess) > 0.0).astype(jnp.float32)
    return epoch.finish(config, state, quantities, critic_key, policy, optimiser, metrics)


def loss(config: Config, policy: policies.Policy, near: epoch.Signals, excess: Float[Array, " M"]) -> Float[Array, ""]:
    """-L_R + κ Σ_i [L_Ci]⁺."""
    gain = ppo_steps.clipped_gain(config.primal, near.surrogate, policy)
    return config.penalty * jnp.sum(jax.nn.relu(brackets(config.primal, policy, near, excess))) - gain


def brackets(
    config: ppo_steps.Ppo, policy: policies.Policy, near: epoch.Signals, excess: Float[Array, " M"]
) -> Float[Array, " M"]:
    """L_Ci: the excess of each cost that is left, estimated by the pessimistic clipped surrogate."""
    ratio = near.surrogate.ratio(policy)[:, None]
    change = jnp.maximum(ratio * near.cost, ppo_steps.clipped(config, ratio) * near.cost) - near.cost
    return jnp.mean(near.surrogate.samples.weight[:, None] * change, axis=0) + excess
