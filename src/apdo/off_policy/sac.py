"""Soft actor-critic under constraints: twin critics of the reward, cautious critics of the costs, multipliers.

Q_R1, Q_R2 are critics of the reward, Q_Ci1..Q_CiE those of each cost, Q' their target networks, and a' ~ π(·|s'):

    y    = r + γ (min_j Q'_Rj(s', a') - α log π(a'|s'))            for both j; no bootstrap after a terminated step
    z_ie = Σ_{k<n} γ_c^k c_i,k + γ_c^n Q'_Cie(s_n, a_n)            clipped to the range that costs can have
    Q        minimise the mean squares of y - Q_Rj(s, a) and of z_ie - Q_Cie(s, a)
    Q̂_Ci     = mean_e Q_Cie + k · deviation_e Q_Cie                 a cautious estimate: critics are overconfident
    π        ascends the mean of  (min_j Q_Rj - Σ_i λ_i Q̂_Ci - α log π)(s, a) / (1 + Σ_i λ_i),   a ~ π(·|s)
    log α    descends the mean of  -log α (log π(a|s) + H)         so that the entropy approaches H
    λ_i      moves with  e_i, the relative excess of mean Q̂_Ci(s_0, a) over d_i, at first states of episodes:
             I_i ← [I_i + rate · u_i e_i]⁺,  λ_i = [I_i + K_P u_i e_i]⁺,  u_i = max(I_i, 1);  or the caller moves it

(Haarnoja et al. 2018; the minimum over the reward's critics is from Fujimoto et al.) With n > 1 (`cost_steps`) the
first n costs of a sum are measured ones, also of older policies. An actor that exploits errors of its cost critics
cannot hide these costs. With `of_integral` K_P is relative to I. If actions are discrete, every mean over a is an exact
expectation, and no action is sampled. A policy over vectors is a squashed Gaussian, a = b · tanh(u / b).

**Units.** The units of rewards and costs are powers of two near the spread of the data (`units.view`). When the spread
changes, the last layers, λ and α are adjusted, so that all values are unchanged in the problem's own units. So nothing
depends on the units of a reward or a cost. With powers of two the adjustment has no rounding errors.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import random
from jaxtyping import Array, Float, Int, PRNGKeyArray

from apdo.core import categorical, gaussian, policies, replay
from apdo.core.statistics import Statistics
from apdo.errors import InvalidInput
from apdo.off_policy import critics, sac_state
from apdo.off_policy import path as paths
from apdo.off_policy.sac_iteration import Draws, draw, iterate, judge
from apdo.off_policy.sac_state import Learner, State
from apdo.off_policy.units import view
from apdo.problem import Problem

__all__ = ["Learner", "State"]
start = sac_state.start
acting = sac_state.acting


def prepare(config: Learner, problem: Problem, state: State, buffer: replay.Replay) -> State:
    """The same learner, in units of the current data's spread."""
    return sac_state.in_units(state, view(config, problem, buffer)[1].size)


def learn(
    config: Learner,
    problem: Problem,
    state: State,
    buffer: replay.Replay,
    iterations: Int[Array, ""],
    total: int | None = None,
    statistics: Statistics | None = None,
    unseen: Float[Array, " M"] | None = None,
    whole: bool = False,
    certainty: Float[Array, " M"] | None = None,
) -> State:
    """`iterations` iterations on the buffer, without touching an environment.

    `unseen` is by how much the critics underestimate the actor's costs, in units of the limits; the multipliers respond
    to the sum. The less `certainty` about the costs, from 0 to 1, the slower are multipliers and actor. `whole`
    promises whole blocks of iterations.
    """
    problem, units = view(config, problem, buffer)
    state = sac_state.in_units(state, units.size)
    starts = replay.episode_starts(buffer) if config.dual_rate else None
    missed = 0.0 if unseen is None else unseen / units.total
    certain = jnp.ones_like(problem.limit) if certainty is None else certainty
    follow = None if total is None else critics.settling(config.target_rate, problem, total)

    def drawn(key: PRNGKeyArray) -> Draws:
        return draw(config, problem, buffer, starts, key, statistics, units)

    def rate(iteration: Int[Array, ""]) -> float | Array:
        return 1.0 if total is None else 1.0 - (1.0 - config.last_rate) * jnp.minimum(iteration / total, 1.0)

    def one(state: State, draws: Draws, rate: float | Array) -> tuple[State, Float[Array, " M"]]:
        # Reduced precision of an accelerator's products is acceptable: gradients from minibatches are noisier.
        with jax.default_matmul_precision("high"):
            return iterate(config, problem, state, draws, units, rate, follow, missed, certain)

    skipped = paths.unaveraged(config.averaged, total)
    return paths.walk(state, iterations, units, skipped, drawn, rate, one, whole)


def working_bytes(config: Learner, problem: Problem) -> int:
    """About how many bytes a block's random draws need, and its networks' activations for a minibatch."""
    row = 2 * problem.observation_size + problem.action_size + problem.constraints + 3
    networks = (2 + config.costs * problem.constraints) * sum(config.critic_hidden)
    return 4 * config.minibatch * (paths.BLOCK * (2 * row + 3 * problem.action_size) + 4 * networks)


def policy(config: Learner, state: State) -> policies.Policy:  # noqa: ARG001
    """The actor as a policy whose deviation does not depend on the state: the actor's own, averaged over states."""
    actor = state.learned.actor
    if state.learned.discrete:
        return categorical.Policy(logits=actor)
    size, bound = state.variance.shape[-1], state.learned.bound
    last = (bound * actor.weights[-1][..., :size], bound * actor.biases[-1][..., :size])
    mean = dataclasses.replace(actor, weights=(*actor.weights[:-1], last[0]), biases=(*actor.biases[:-1], last[1]))
    return gaussian.Policy(mean=mean, log_std=0.5 * jnp.log(state.variance), bound=bound)


def check_policy(config: Learner, problem: Problem, policy: policies.Config) -> None:
    """Raise InvalidInput unless the actor has the policy's shape."""
    own = (config.actor_hidden, config.activation) + (() if problem.discrete_actions else (config.bound,))
    wanted = (policy.hidden, "tanh") + (() if problem.discrete_actions else (policy.bound,))
    if own != wanted:
        raise InvalidInput(
            "--adjust primal-dual needs an off-policy actor of the policy's shape: off_policy.learner.actor_hidden, "
            f"activation and bound must be {', '.join(str(part) for part in wanted)}, "
            f"not {', '.join(str(part) for part in own)}."
        )


def actions(state: State, observation: Float[Array, "B O"]) -> Float[Array, "B A"]:
    """The median of the actor's distribution, or its probabilities if actions are discrete."""
    if state.learned.discrete:
        return jnp.exp(state.learned.log_probabilities(observation))
    return state.learned.distributions(observation).mode()


def value(
    config: Learner, problem: Problem, judging: State, actor: State, observation: Float[Array, "B O"], key: PRNGKeyArray
) -> Float[Array, " K"]:
    """The cautious estimate of the actor's value by the judge's critics, averaged over starts of episodes."""
    step = jnp.zeros(observation.shape[0], dtype=jnp.int32)
    shape = (observation.shape[0], problem.action_size)
    noise = None if problem.discrete_actions else random.normal(key, shape)
    judges = judging.learned.critics
    return judge(config, actor.learned, judges, observation, step, noise, problem.constraints).values
