"""Constrained policy optimisation, CPO (Achiam et al. 2017): the multipliers solved for anew in every step.

Each epoch maximises the linearised return within the linearised constraints and a KL trust region
(`core.constrained_step`), and recovers by reducing cost alone where no such step exists. A line search then checks the
sampled surrogates. Where the safety dial is not in the middle (`core.dial`), the step's constraint is d_k for d.

Units: g and b_i are the gradients of the sums of one episode, R(π) and C_i(π), as `objective` has them, so that c + bᵀx
compares like with like, and ν comes out in reward per cost.

**Noise.** A batch of 20 episodes knows thousands of entries of b badly: most of bᵀH⁻¹b is then noise, which a step
along H⁻¹b is sure to please. Such a step promises to remove any excess and removes nothing. So (both are ours, and off
in `--preset paper`):

    belief    the batch's episodes are cut in two halves, whose errors are independent. What a move along the one's
              H⁻¹b does to the cost is read off the other: b_AᵀH⁻¹b_B has the signal and none of the noise. Lengths
              of moves, in KL, are those of the whole batch.
    history   g and b are averaged over epochs, half by half: v ← (1 - w) v_new + w v. A policy moves little in one
              step, and so may its gradient. How little shows: with n² the noise of the new one, a quarter of the
              halves' squared distance, and D the squared distance of the new one from the average, both in H⁻¹,
              the average is off by D - n², and w = n² / D, at most `history`.

With v_0 = g and v_i = b_i of the whole batch, a move is x = Σ_j a_j H⁻¹v_j. In a, the trust region is aᵀGa/2 ≤ δ with
G_jk = v_jᵀH⁻¹v_k, and the effect on the sum k is (Γa)_k with Γ_jk the same product across the halves: CPO's problem
again, of 1 + m dimensions. Where there is no noise Γ = G, and it is CPO's own.
"""

import dataclasses
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from apdo import objective
from apdo.algorithms import on_policy, primal_steps
from apdo.core import constrained_step, critics, dial, policies, trust_region
from apdo.core.data import Transition
from apdo.core.statistics import Statistics
from apdo.options import OURS, PAPER, option
from apdo.problem import Asked, Problem

act = on_policy.act
memory = on_policy.memory
learned_policy = on_policy.learned_policy
learned_values = on_policy.learned_values
start_from = on_policy.start_from

_LEAST_BELIEF = 0.01
"""The least share of a direction's own effect that is believed, whatever the halves say."""


@dataclasses.dataclass(frozen=True)
class Config(dial.Config):
    """Settings of CPO."""

    search: trust_region.LineSearch = option(trust_region.LineSearch(radius=0.02), "the step's bounds and search", OURS)
    policy: policies.Config = option(policies.Config(), "the policy network", PAPER)
    critic: critics.Config = option(critics.Config(), "the value functions", PAPER)
    trace: float = option(0.95, "λ of generalised advantage estimation, reward", PAPER, within=(0.0, 1.0))
    cost_trace: float = option(0.95, "λ of generalised advantage estimation, costs", OURS, within=(0.0, 1.0))
    doubt: bool = option(True, "whether a step is believed only as far as the batch's two halves agree on it", OURS)
    history: float = option(
        0.9, "the most that the gradients of the epochs before count; 0: nothing", OURS, within=(0.0, 1.0)
    )


class State(eqx.Module):
    """Everything that the next epoch needs."""

    policy: policies.Policy
    critic: critics.Critic
    dial: dial.Dial | None
    statistics: Statistics | None
    gradients: Float[Array, "H K P"]
    """Of the sums of one episode, by half of the episodes, averaged over the epochs."""
    predicted: Float[Array, " M"]
    """C(π_k), as the step to π_k predicted it."""
    epoch: Int[Array, ""]


def suited(asked: Asked) -> dict[str, float]:
    """Options that suit episodes of so many steps, where no other are given."""
    return {"search.radius": trust_region.radius_for(asked.horizon)}


def init(config: Config, problem: Problem, key: PRNGKeyArray) -> State:
    """A fresh policy and value functions."""
    policy_key, critic_key = jax.random.split(key)
    policy = on_policy.fresh_policy(config.policy, problem, policy_key)
    signals = 1 + problem.constraints
    return State(
        policy=policy,
        critic=on_policy.fresh_critic(config.critic, problem, critic_key, signals),
        dial=dial.start(config, problem.constraints),
        statistics=on_policy.fresh_statistics(problem),
        gradients=jnp.zeros((2 if config.doubt else 1, signals, ravel_pytree(policy)[0].shape[0])),
        predicted=jnp.zeros(problem.constraints),
        epoch=jnp.asarray(0),
    )


def step(
    config: Config, problem: Problem, state: State, batch: Transition, key: PRNGKeyArray
) -> tuple[State, dict[str, Array]]:
    """One epoch: advantages, the constrained step, value fit."""
    statistics, seen = on_policy.observe(state.statistics, batch)
    policy = on_policy.rebase(state.policy, state.statistics, statistics)
    critic = on_policy.rebase(state.critic, state.statistics, statistics)
    estimates = on_policy.estimate(problem, critic, seen, config.trace, config.cost_trace)
    measured = on_policy.measure(problem, batch)
    turned, limit = dial.enforce(config, state.dial, measured["cost"], measured["cost_error"], problem.limit)
    around = Around.of(problem, policy, seen, estimates.advantage)
    most = jnp.where(state.epoch == 0, 0.0, config.history if config.doubt else 0.0)
    fresh = around.gradients(state.gradients.shape[0])
    solve = solver(config.search, around)
    gradients, solved, kept = averaged(fresh, solve(fresh), state.gradients, solve(state.gradients), most)
    policy, change, metrics = improve(config.search, around, gradients, solved, measured["cost"] - limit)
    metrics["history"] = kept[1:]
    critic, error = on_policy.fit(config.critic, critic, key, seen, estimates)
    predicted = jnp.where(state.epoch == 0, measured["cost"], state.predicted)
    metrics |= measured | dial.measure(turned, limit) | {"value_error": error, "predicted_cost": predicted}
    after = State(
        policy=policy,
        critic=critic,
        dial=turned,
        statistics=statistics,
        gradients=gradients,
        predicted=measured["cost"] + change,
        epoch=state.epoch + 1,
    )
    return after, metrics


class Around(eqx.Module):
    """A policy and the batch that it drew: the sums R and C_i of one episode, as functions of policies nearby."""

    policy: policies.Policy
    surrogate: primal_steps.Surrogate
    advantage: Float[Array, "B K"]
    """Of each signal, times what the step counts in the sum."""
    row: Int[Array, " B"]
    """Which environment a sample is from."""

    @staticmethod
    def of(problem: Problem, policy: policies.Policy, batch: Transition, advantage: Float[Array, "T N K"]) -> "Around":
        """Around the policy that drew the batch."""
        centred = advantage - jnp.mean(advantage, axis=(0, 1), keepdims=True)
        weighted = objective.step_weights(problem, batch)[..., None] * centred
        samples = on_policy.samples(problem, batch, advantage[..., 0])
        return Around(
            policy=policy,
            surrogate=primal_steps.Surrogate.around(policy, samples),
            advantage=weighted.reshape(-1, advantage.shape[-1]),
            row=jnp.broadcast_to(jnp.arange(advantage.shape[1]), advantage.shape[:2]).reshape(-1),
        )

    def gains(self, candidate: policies.Policy) -> Float[Array, " K"]:
        """The surrogate change of the return and of each cost."""
        return jnp.sum((self.surrogate.ratio(candidate) - 1.0)[:, None] * self.advantage, axis=0)

    def gradients(self, parts: int) -> Float[Array, "H K P"]:
        """∇R and ∇C_i, from the episodes of each of so many parts of the environments."""
        mine = (self.row[None] % parts == jnp.arange(parts)[:, None]).astype(self.advantage.dtype)
        mine = mine / jnp.maximum(jnp.mean(mine, axis=1, keepdims=True), 1e-9)

        def by_part(candidate: policies.Policy) -> Float[Array, "H K"]:
            return mine @ ((self.surrogate.ratio(candidate) - 1.0)[:, None] * self.advantage)

        found = jax.jacrev(by_part)(self.policy)
        flat = jax.vmap(jax.vmap(lambda leaf: ravel_pytree(leaf)[0]))(found)
        # A single environment has no second half.
        return jnp.where(jnp.all(jnp.any(mine > 0.0, axis=1)), flat, jnp.sum(flat, axis=0, keepdims=True))


def solver(config: trust_region.LineSearch, around: Around) -> Callable[[Float[Array, "H K P"]], Float[Array, "H K P"]]:
    """v ↦ H⁻¹v, with the Fisher matrix H of the policy."""
    product = primal_steps.fisher(config, around.policy, around.surrogate.samples.observation)
    one = lambda vector: trust_region.conjugate_gradient(product, vector, config.iterations)  # noqa: E731
    return jax.vmap(jax.vmap(one))


def averaged(
    fresh: Float[Array, "H K P"],
    fresh_solved: Float[Array, "H K P"],
    before: Float[Array, "H K P"],
    before_solved: Float[Array, "H K P"],
    most: Float[Array, ""],
) -> tuple[Float[Array, "H K P"], Float[Array, "H K P"], Float[Array, " K"]]:
    """The gradients averaged with those before, H⁻¹ times them, and how much those before count."""

    def squared(vector: Float[Array, "K P"], solved: Float[Array, "K P"]) -> Float[Array, " K"]:
        return jnp.maximum(jnp.sum(vector * solved, axis=-1), 0.0)

    noise = 0.25 * squared(fresh[0] - fresh[-1], fresh_solved[0] - fresh_solved[-1])
    away = squared(jnp.mean(fresh - before, axis=0), jnp.mean(fresh_solved - before_solved, axis=0))
    share = jnp.where(away > noise, noise / jnp.where(away > 0.0, away, 1.0), 1.0)
    kept = jnp.where(away > 0.0, jnp.minimum(share, most), 0.0)
    mix = lambda new, old: (1.0 - kept)[None, :, None] * new + kept[None, :, None] * old  # noqa: E731
    return mix(fresh, before), mix(fresh_solved, before_solved), kept


def improve(
    config: trust_region.LineSearch,
    around: Around,
    gradients: Float[Array, "H K P"],
    solved: Float[Array, "H K P"],
    excess: Float[Array, " M"],
) -> tuple[policies.Policy, Float[Array, " M"], dict[str, Array]]:
    """The constrained step from gradients of the sums (return, then costs), H⁻¹ times them, and c = C(π) - d.

    Returns the policy, what the step is believed to change in each cost, and metrics.
    """
    parameters, unravel = ravel_pytree(around.policy)
    along = jnp.mean(solved, axis=0)
    length, effect = products(gradients, solved)
    move, amounts = small_step(length, effect, excess, config.radius)
    step = amounts @ along

    def acceptable(theta: Float[Array, " P"]) -> Bool[Array, ""]:
        candidate = unravel(theta)
        gain = around.gains(candidate)
        within = around.surrogate.kl(candidate) <= config.radius
        # A cost may use up its slack; one that is over its limit may not grow.
        safe = jnp.all(gain[1:] <= jnp.maximum(-excess, 0.0))
        # From outside the limits the way back may cost return; only from inside must a step gain some.
        return within & safe & (jnp.any(excess > 0.0) | (gain[0] > 0.0))

    found = trust_region.backtrack(acceptable, parameters, step, config.shrink, config.trials)
    new = unravel(found.parameters)
    taken = jnp.where(found.accepted, config.shrink ** (found.trials - 1), 0.0)
    metrics = {
        "kl": around.surrogate.kl(new),
        "surrogate_gain": around.gains(new)[0],
        "step_accepted": found.accepted.astype(jnp.float32),
        "recovering": move.recovering.astype(jnp.float32),
        "constrained": move.constrained.astype(jnp.float32),
        "multiplier": move.multiplier,
        "belief": jnp.diagonal(effect)[1:] / jnp.maximum(jnp.diagonal(length)[1:], jnp.finfo(jnp.float32).tiny),
    }
    return new, taken * (effect @ amounts)[1:], metrics


def products(
    gradients: Float[Array, "H K P"], solved: Float[Array, "H K P"]
) -> tuple[Float[Array, "K K"], Float[Array, "K K"]]:
    """G, by which moves are as long as they are, and Γ, by which they are believed to have their effects."""
    whole, along = jnp.mean(gradients, axis=0), jnp.mean(solved, axis=0)
    length = whole @ along.T
    length = 0.5 * (length + length.T)
    if gradients.shape[0] == 1:
        return length, length
    across = 0.5 * jnp.sum(gradients[0] * solved[1] + gradients[1] * solved[0], axis=-1)
    own = jnp.diagonal(length)
    believed = jnp.clip(across / jnp.where(own > 0.0, own, 1.0), _LEAST_BELIEF, 1.0)
    return length, length * jnp.sqrt(believed[:, None] * believed[None])


def small_step(
    length: Float[Array, "K K"], effect: Float[Array, "K K"], excess: Float[Array, " M"], radius: float
) -> tuple[constrained_step.Move, Float[Array, " K"]]:
    """CPO's problem in the span of H⁻¹v_j, and the amount of each of them in its solution."""
    scale = jnp.sqrt(jnp.diagonal(length))
    scale = jnp.where(scale > 0.0, scale, 1.0)
    normal = length / (scale[:, None] * scale[None]) + 1e-6 * jnp.eye(scale.shape[0])
    directions = jnp.linalg.solve(normal, (effect / scale[None]).T).T / scale[None]
    gram = effect @ directions.T
    gram = 0.5 * (gram + gram.T)
    move = constrained_step.solve(gram[0, 0], gram[0, 1:], gram[1:, 1:], excess, radius)
    return move, move.along_objective * directions[0] + move.along_constraint @ directions[1:]
