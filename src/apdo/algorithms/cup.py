"""Constrained update projection, CUP (Yang et al. 2022): improve the return, then project back towards the limits.

    multipliers   ν_i ← [ν_i + η (C_i(π_k) - d_i)]⁺, plus the rule's other terms
    improvement   π_{k+1/2}  from a step on A_R alone, which ignores the limits
    projection    π_{k+1} = argmin_π  E_s [ KL(π ‖ π_{k+1/2}) + Σ_i ν_i E_{a~π_k} π(a|s)/π_k(a|s) A_Ci(s, a) ]

Both steps are gradient steps on minibatches of the same batch. In a single state, if π_k chose all actions equally
often, the projection has the solution π_{k+1} ∝ π_{k+1/2} exp(-Σ ν_i A_Ci).

Any number of constraints: each has its ν_i. The paper has one.

Deviations:
1. The projection's KL has no unit, so ν_i A_Ci must have none either. It is divided by σ(A_R), like the improvement's
   advantage. The paper's factor (1 - γ λ)/(1 - γ) on the cost is part of that unit.
2. The improvement is PPO's clipped step, as in their code; the text has a KL penalty there.
3. The gains of ν are pure numbers (`core.relative_units`), and ν starts at 0. It is updated before the improvement, as
   in OmniSafe's code. In algorithm 1 it is updated after the projection, which then responds one batch too late.
4. ν is controlled by PID. The paper's ascent (`--rule ascent`) does not damp the oscillation of ν and policy.
5. With `primal.anneal` both steps become shorter: the clip shrinks, and ν A_C by the same factor.
6. The divergence from π_{k+1/2} is averaged over the states that π_k has visited; there are no others.
7. The passes of the projection end once the policy is as far from π_{k+1/2} as an improvement may go
   (`projection.most_kl`). On a noisy batch the loss has no other bound, because it falls with the distance.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import random
from jaxtyping import Array, Float, PRNGKeyArray

from apdo.algorithms import epoch, gradient_steps, on_policy, ppo_steps
from apdo.algorithms.surrogate import Surrogate
from apdo.core import policies
from apdo.core.data import Transition
from apdo.options import OURS, option
from apdo.problem import Problem

act, memory, learned_policy, learned_values, start_from = on_policy.SHARED
State = epoch.PricedState


@dataclasses.dataclass(frozen=True)
class Config(epoch.PricedConfig):
    """Settings of CUP."""

    primal: ppo_steps.Ppo = option(ppo_steps.Ppo(), "the improvement and its gradient steps", OURS)
    projection: gradient_steps.Passes = option(
        gradient_steps.Passes(), "the projection's gradient steps; distances are measured from π_{k+1/2}", OURS
    )


class Halfway(eqx.Module):
    """The samples, with the quantities that the projection needs for each."""

    surrogate: Surrogate
    half: eqx.Module
    """π_{k+1/2} at each sample."""
    cost: Float[Array, " B"]
    """Σ_i ν_i A_Ci in units of σ(A_R)."""


init = epoch.init_priced


def step(
    config: Config, problem: Problem, state: State, batch: Transition, key: PRNGKeyArray
) -> tuple[State, dict[str, Array]]:
    """One epoch: update of ν by C(π_k), improvement, projection."""
    improve_key, project_key, critic_key = random.split(key, 3)
    quantities = epoch.begin(config, problem, state, batch)
    state = epoch.ascend(config, problem, state, quantities)
    here = quantities.signals(problem)
    samples = here.surrogate.samples
    half, optimiser = ppo_steps.improve(config.primal, here.surrogate, quantities.policy, state.optimiser, improve_key)
    length = gradient_steps.step_length(config.primal, state.optimiser)
    data = Halfway(
        surrogate=here.surrogate,
        half=jax.vmap(half)(samples.observation),
        cost=here.cost @ (length * epoch.relative_influence(state, quantities)),
    )
    # Adam's moments start at zero for the projection: those of the improvement point in the opposite direction.
    fresh = gradient_steps.init(config.projection, half, pace_of=optimiser)
    back = eqx.tree_at(lambda surrogate: surrogate.old, data.surrogate, data.half)
    policy, _ = gradient_steps.descend(config.projection, loss, data, back, half, fresh, project_key)
    metrics = here.surrogate.measure(policy)
    metrics |= {"multiplier": state.multiplier.value, "improvement_kl": data.surrogate.kl(half)}
    metrics["projection_kl"] = back.kl(policy)
    return epoch.finish(config, state, quantities, critic_key, policy, optimiser, metrics)


def loss(policy: policies.Policy, near: Halfway) -> Float[Array, ""]:
    """KL(π ‖ π_{k+1/2}) + Σ_i ν_i (π/π_k) A_Ci, averaged over the samples."""
    new = jax.vmap(policy)(near.surrogate.samples.observation)
    divergence = jax.vmap(lambda now, half: now.kl(half))(new, near.half)
    return jnp.mean(near.surrogate.samples.weight * (divergence + near.surrogate.ratio(policy) * near.cost))
