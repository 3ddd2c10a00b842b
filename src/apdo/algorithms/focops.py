"""First-order constrained optimisation in policy space, FOCOPS (Zhang, Vuong and Ross 2020).

Consider all policies, parametrised or not. The best one near π_k that keeps the limits solves

    maximise E_{s~π_k, a~π} A_R(s, a)   subject to   C_i(π_k) + L E A_Ci(s, a) ≤ d_i,   E KL(π ‖ π_k) ≤ δ.

It has a closed form (their theorem 1), where λ is the multiplier of the KL bound and ν_i are those of the limits:

    π*(a|s) = π_k(a|s) exp((A_R(s, a) - Σ_i ν_i A_Ci(s, a)) / λ) / Z(s)

Each epoch first updates ν by C(π_k) - d, then brings the network close to π* by gradient steps on

    E_s KL(π_θ ‖ π*) = E_s [ KL(π_θ ‖ π_k) - E_{a~π_k} π_θ(a|s)/π_k(a|s) (A_R - Σ_i ν_i A_Ci) / λ ] + const

over the states with KL(π_θ ‖ π_k) ≤ δ. λ is a setting, as in their experiments.

Any number of constraints: each has its ν_i.

Deviations:
1. A_R - Σ ν_i A_Ci is standardised, so that λ is a pure number. Their code standardises A_R and A_C separately, so its
   ν is in units of σ(A_R)/σ(A_C). Our ν moves in that unit (`core.relative_units`), and is reported in return per cost.
2. ν is controlled by PID. Their ascent (`--rule ascent`) does not damp the oscillation of ν and policy. ν is at most 20
   in that unit instead of 2, because a limit may need more. The step is 0.05; theirs is 0.01 per epoch of 2,048
   samples.
3. Sums, weights of steps and limits are those of `objective`. Their code constrains a running mean of undiscounted
   costs.
4. With `primal.anneal` steps become shorter: the rate falls, and λ rises. In their code the rate falls linearly.
5. Passes over the batch end when the mean KL(π_k ‖ π_θ) exceeds δ; their code uses KL(π_θ ‖ π_k). A step beyond 2 δ is
   shortened, and the rate of later steps is reduced too.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import random
from jaxtyping import Array, Float, PRNGKeyArray

from apdo.algorithms import epoch, gradient_steps, on_policy
from apdo.algorithms.surrogate import Surrogate
from apdo.core import policies
from apdo.core.advantage import standardise
from apdo.core.data import Transition
from apdo.options import option
from apdo.problem import Problem

act, memory, learned_policy, learned_values, start_from = on_policy.SHARED
State = epoch.PricedState

AUTHORS = "the FOCOPS paper"


@dataclasses.dataclass(frozen=True)
class Config(epoch.PricedConfig):
    """Settings of FOCOPS."""

    primal: gradient_steps.Passes = option(
        gradient_steps.Passes(most_kl=0.02), "the gradient steps; most_kl, where they end, is δ", AUTHORS
    )
    temperature: float = option(1.5, "λ: the larger, the closer the target π* is to π_k", AUTHORS, above=0.0)


init = epoch.init_priced


def step(
    config: Config, problem: Problem, state: State, batch: Transition, key: PRNGKeyArray
) -> tuple[State, dict[str, Array]]:
    """One epoch: update of ν by C(π_k), then gradient steps of the policy towards π*."""
    primal_key, critic_key = random.split(key)
    quantities = epoch.begin(config, problem, state, batch)
    state = epoch.ascend(config, problem, state, quantities)
    weight = jnp.concatenate([jnp.ones(1), -state.multiplier.value])
    samples = quantities.samples(problem, standardise(quantities.estimates.advantage @ weight))
    surrogate = Surrogate.at(quantities.policy, samples)
    primal = gradient_steps.annealed(config.primal, state.optimiser)
    temperature = config.temperature / gradient_steps.step_length(config.primal, state.optimiser)

    def towards_the_optimum(candidate: policies.Policy, part: Surrogate) -> Float[Array, ""]:
        return loss(candidate, part, temperature, config.primal.most_kl)

    policy, optimiser = gradient_steps.descend(
        primal, towards_the_optimum, surrogate, surrogate, quantities.policy, state.optimiser, primal_key
    )
    metrics = surrogate.measure(policy) | {"multiplier": state.multiplier.value}
    return epoch.finish(config, state, quantities, critic_key, policy, optimiser, metrics)


def loss(
    policy: policies.Policy, near: Surrogate, temperature: float | Float[Array, ""], radius: float
) -> Float[Array, ""]:
    """E_s KL(π_θ ‖ π*) up to a constant, over the states within the radius; over all states if the radius is 0."""
    new = jax.vmap(policy)(near.samples.observation)
    divergence = jax.vmap(lambda now, old: now.kl(old))(new, near.old)
    each = divergence - near.ratio(policy) * near.samples.advantage / temperature
    within = (divergence <= radius) if radius else jnp.ones_like(divergence, dtype=bool)
    return jnp.mean(near.samples.weight * jnp.where(within, each, 0.0))
