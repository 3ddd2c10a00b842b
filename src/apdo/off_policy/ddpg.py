"""Primal-dual DDPG (paper, appendix A, Algorithm 2): an off-policy solver of constrained problems.

Critics Q_R, Q_C1..Q_Cm, an actor μ and the multipliers are trained on transitions from a replay buffer:

    y = r + γ Q'_R(s', μ'(s')),  z_i = c_i + γ_c Q'_Ci(s', μ'(s'))      no bootstrap through a terminated step
    Q_R, Q_C   minimise the mean of (y - Q_R(s, a))² and (z_i - Q_Ci(s, a))²
    μ          ascends the mean of  Q_R(s, μ(s)) - Σ_i λ_i Q_Ci(s, μ(s))
    λ_i        ← [λ_i + rate · mean(Q_Ci(s, μ(s)) - d_i)]⁺
    targets    ← τ · learned + (1 - τ) · targets

If actions are discrete, the actor is a softmax over them and the critics give Q(s, ·), with one output for each action.
μ(s) is then the vector of probabilities, and Q(s, μ(s)) = Σ_a μ_a(s) Q(s, a) is the expected value, so all lines above
remain valid. The actor is not greedy, because the optimum of a constrained problem mixes actions, and no deterministic
policy may attain it. Nor is it entropy-regularised, because a bonus for entropy would change λ.

On a buffer alone the result of this learner varies greatly from run to run (docs/dual-estimation.md). Options of
`Learner`, all off in the appendix's version, make it reliable:

- Critics see the time, Q(s, a, t).
- The actor is kept near the buffer's actions: by a bound, by noise a = μ(s) + ε in all three lines that use μ, and by a
  cloning term,

      μ        descends the mean of  -(Q_R - Σ_i λ_i Q_Ci)(s, μ(s) + ε, t) / (1 + Σ_i λ_i) + w |μ(s) - a|²

- Dual gradients are taken at starts of episodes only.
- Rates fall, and λ^OFF is the mean over the last part of the path.
- Rewards and costs are in units of the buffer's spread (`units`), so that no rate depends on the units of a reward.
"""

import dataclasses

import jax.numpy as jnp
from jax import random
from jaxtyping import Array, Float, Int, PRNGKeyArray

from apdo.core import categorical, gaussian, policies, replay
from apdo.core.statistics import Statistics
from apdo.errors import InvalidInput
from apdo.off_policy import critics, ddpg_state
from apdo.off_policy import path as paths
from apdo.off_policy.ddpg_iteration import Draws, draw, iterate
from apdo.off_policy.ddpg_state import Learner, LearnerState, Networks
from apdo.off_policy.units import view
from apdo.problem import Problem

__all__ = ["Learner", "LearnerState", "Networks"]
start = ddpg_state.start


def learn(
    config: Learner,
    problem: Problem,
    state: LearnerState,
    buffer: replay.Replay,
    iterations: Int[Array, ""],
    total: int | None = None,
    statistics: Statistics | None = None,
    unseen: Float[Array, " M"] | None = None,
    whole: bool = False,
) -> LearnerState:
    """`iterations` primal-dual iterations on the buffer (lines 11 to 16), without touching an environment.

    `unseen` is by how much the critics underestimate the actor's costs, in units of the limits; the multipliers respond
    to the sum. `whole` promises whole blocks of iterations.
    """
    problem, units = view(config, problem, buffer)
    limit = units.limit if unseen is None else units.limit - unseen / units.total
    starts = replay.episode_starts(buffer) if config.dual_states == "starts" else None
    rate_of_targets = following(config, problem, total)

    def drawn(key: PRNGKeyArray) -> Draws:
        draws = draw(config, problem, buffer, starts, key, statistics)
        return dataclasses.replace(draws, batch=units.seen(draws.batch))

    def rate(iteration: Int[Array, ""]) -> float | Array:
        fall = 0.0 if total is None else (1.0 - config.last_rate) * jnp.minimum(iteration / total, 1.0)
        return 1.0 - fall

    def one(state: LearnerState, draws: Draws, rate: float | Array) -> tuple[LearnerState, Float[Array, " M"]]:
        possible = units.possible if config.bounded else None
        return iterate(config, problem, state, draws, limit, rate, rate_of_targets, possible)

    skipped = paths.unaveraged(config.averaged, total)
    return paths.walk(state, iterations, units, skipped, drawn, rate, one, whole)


def following(config: Learner, problem: Problem, iterations: int | None) -> float:
    """τ: as configured or, for learners in the data's units, chosen so that values converge in time."""
    if iterations is None or config.units == "own":
        return config.target_rate
    return critics.settling(config.target_rate, problem, iterations)


def working_bytes(config: Learner, problem: Problem) -> int:
    """About how many bytes a block of iterations draws: rows, once gathered and once split, and noise."""
    row = 2 * problem.observation_size + problem.action_size + problem.constraints + 3
    return 4 * paths.BLOCK * config.minibatch * (2 * row + 3 * problem.action_size)


def policy(config: Learner, state: LearnerState) -> policies.Policy:
    """The actor as it was trained: a softmax, or a Gaussian with the action noise around its mean."""
    learned = state.learned
    if learned.discrete:
        return categorical.Policy(logits=learned.actor)
    noise = jnp.log(jnp.full(learned.actor.biases[-1].shape[-1:], config.action_noise))
    return gaussian.Policy(mean=learned.actor, log_std=noise, bound=learned.bound)


def check_policy(config: Learner, problem: Problem, policy: policies.Config) -> None:
    """Raise InvalidInput unless the actor has the policy's shape."""
    if config.actor_hidden != policy.hidden:
        raise InvalidInput(
            f"--adjust primal-dual needs an off-policy actor of the policy's shape, but policy.hidden is "
            f"{policy.hidden} and off_policy.learner.actor_hidden is {config.actor_hidden}."
        )
    if not problem.discrete_actions and config.bound != policy.bound:
        raise InvalidInput(
            f"--adjust primal-dual needs policy.bound ({policy.bound:g}) and off_policy.learner.bound "
            f"({config.bound:g}) to be the same."
        )
    if not problem.discrete_actions and not config.action_noise:
        raise InvalidInput("--adjust primal-dual needs off_policy.learner.action_noise above 0, to explore with.")


def actions(state: LearnerState, observation: Float[Array, "B O"]) -> Float[Array, "B A"]:
    """μ(s) at each state."""
    return state.learned.mu(observation)


def value(
    config: Learner,
    problem: Problem,
    judge: LearnerState,
    actor: LearnerState,
    observation: Float[Array, "B O"],
    key: PRNGKeyArray,
) -> Float[Array, " K"]:
    """The judge's Q of the actor's action with its noise, averaged over starts of episodes."""
    step = jnp.zeros(observation.shape[0], dtype=jnp.int32)
    shape = (observation.shape[0], problem.action_size)
    around = 0.0 if problem.discrete_actions else config.action_noise * random.normal(key, shape)
    return jnp.mean(judge.learned.q(observation, actor.learned.mu(observation) + around, step), axis=-1)
