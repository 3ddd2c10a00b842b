"""Constrained policy optimisation, CPO (Achiam et al. 2017): the multipliers solved for anew in every step.

Each epoch maximises the linearised return within the linearised constraints and a KL trust region
(`core.constrained_step`), and recovers by reducing cost alone where no such step exists. A line search then checks the
sampled surrogates. Where the safety dial is not in the middle (`core.dial`), the step's constraint is d_k for d.

Units: C(π) and d are per episode, while the mean over samples of ratio × advantage is per step. Both gradients are
multiplied by the mean episode length, so that c + bᵀx compares like with like, and ν comes out in reward per cost.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import random
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from apdo.algorithms import on_policy, primal_steps
from apdo.core import constrained_step, critics, dial, policies, trust_region
from apdo.core.data import Transition, flatten
from apdo.options import PAPER, PUBLISHED, option
from apdo.problem import Problem

act = on_policy.act
memory = on_policy.memory
learned_policy = on_policy.learned_policy


@dataclasses.dataclass(frozen=True)
class Config(dial.Config):
    """Settings of CPO."""

    search: trust_region.LineSearch = option(trust_region.LineSearch(), "the step's bounds and search", PAPER)
    policy: policies.Config = option(policies.Config(), "the policy network", PAPER)
    critic: critics.Config = option(critics.Config(), "the value functions", PAPER)
    trace: float = option(0.95, "λ of generalised advantage estimation, reward", PAPER, within=(0.0, 1.0))
    cost_trace: float = option(1.0, "λ of generalised advantage estimation, costs", PUBLISHED, within=(0.0, 1.0))


class State(eqx.Module):
    """Everything that the next epoch needs."""

    policy: policies.Policy
    critic: critics.Critic
    dial: dial.Dial | None


def init(config: Config, problem: Problem, key: PRNGKeyArray) -> State:
    """A fresh policy and value functions."""
    policy_key, critic_key = random.split(key)
    return State(
        policy=on_policy.fresh_policy(config.policy, problem, policy_key),
        critic=critics.init(config.critic, critic_key, problem.observation_size, 1 + problem.constraints),
        dial=dial.start(config, problem.constraints),
    )


def step(
    config: Config, problem: Problem, state: State, batch: Transition, key: PRNGKeyArray
) -> tuple[State, dict[str, Array]]:
    """One epoch: advantages, the constrained step, value fit."""
    episodes = on_policy.summary(problem, batch)
    estimates = on_policy.estimate(problem, state.critic, batch, config.trace, config.cost_trace)
    advantage = estimates.advantage.reshape(-1, 1 + problem.constraints)
    centred = advantage - jnp.mean(advantage, axis=0, keepdims=True)
    per_episode = episodes.length * centred
    turned, limit = dial.enforce(config, state.dial, episodes.constrained_cost, problem.limit)
    excess = episodes.constrained_cost - limit
    policy, metrics = improve(config.search, state.policy, batch, per_episode, excess)
    targets = estimates.target.reshape(-1, 1 + problem.constraints)
    fitted, error = critics.fit(config.critic, state.critic, key, flatten(batch).observation, targets)
    metrics |= on_policy.measure(problem, batch) | dial.measure(turned, limit) | {"value_error": error}
    return State(policy=policy, critic=fitted, dial=turned), metrics


def improve(
    config: trust_region.LineSearch,
    policy: policies.Policy,
    batch: Transition,
    advantage: Float[Array, "B K"],
    excess: Float[Array, " M"],
) -> tuple[policies.Policy, dict[str, Array]]:
    """The constrained step from advantages per episode (reward, then costs) and c = C(π) - d."""
    samples = on_policy.samples(batch, advantage[:, 0])
    surrogate = primal_steps.Surrogate.around(policy, samples)
    parameters, unravel = ravel_pytree(policy)

    def gains(candidate: policies.Policy) -> Float[Array, " K"]:
        """The surrogate change of the return and of each cost."""
        return jnp.mean((surrogate.ratio(candidate) - 1.0)[:, None] * advantage, axis=0)

    gradients = jax.vmap(lambda leaf: ravel_pytree(leaf)[0])(jax.jacrev(gains)(policy))
    product = primal_steps.fisher(config, policy, samples.observation)
    solved = jax.vmap(lambda g: trust_region.conjugate_gradient(product, g, config.iterations))(gradients)
    move = constrained_step.solve(*_quadratic_numbers(gradients, solved), excess, config.radius)
    step = move.along_objective * solved[0] + move.along_constraint @ solved[1:]

    def acceptable(theta: Float[Array, " P"]) -> Bool[Array, ""]:
        candidate = unravel(theta)
        gain = gains(candidate)
        within = surrogate.kl(candidate) <= config.radius
        # A cost may use up its slack; one that is over its limit may not grow.
        safe = jnp.all(gain[1:] <= jnp.maximum(-excess, 0.0))
        # From outside the limits the way back may cost return; only from inside must a step gain some.
        return within & safe & (jnp.any(excess > 0.0) | (gain[0] > 0.0))

    found = trust_region.backtrack(acceptable, parameters, step, config.shrink, config.trials)
    new = unravel(found.parameters)
    metrics = {
        "kl": surrogate.kl(new),
        "surrogate_gain": gains(new)[0],
        "step_accepted": found.accepted.astype(jnp.float32),
        "recovering": move.recovering.astype(jnp.float32),
        "constrained": move.constrained.astype(jnp.float32),
        "multiplier": move.multiplier,
    }
    return new, metrics


def _quadratic_numbers(
    gradients: Float[Array, "K P"], solved: Float[Array, "K P"]
) -> tuple[Float[Array, ""], Float[Array, " M"], Float[Array, "M M"]]:
    """q, r and S from the gradients (objective first) and H⁻¹ times them."""
    gram = gradients @ solved.T
    gram = 0.5 * (gram + gram.T)
    return gram[0, 0], gram[0, 1:], gram[1:, 1:]
