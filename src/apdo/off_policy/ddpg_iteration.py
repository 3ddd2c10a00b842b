"""One iteration of primal-dual DDPG, and its random draws (paper, Algorithm 2, lines 12 to 16)."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import random
from jaxtyping import Array, Float, Int, PRNGKeyArray

from apdo import objective
from apdo.core import descent, dual, networks, replay
from apdo.core.data import Transition
from apdo.core.statistics import Statistics, normalised
from apdo.off_policy import cloning
from apdo.off_policy.critics import follow as follow_by
from apdo.off_policy.ddpg_state import Learner, LearnerState, Networks
from apdo.off_policy.path import BLOCK
from apdo.problem import Problem


class Draws(eqx.Module):
    """The random draws of several iterations, whose number is the first axis."""

    batch: Transition
    starts: Float[Array, "*n B O"] | None
    """First observations of episodes, if the dual gradient is taken there."""
    noise: Float[Array, "*n U B A"] | None
    """ε for the targets, the actor and the dual gradient; None without action noise."""

    def around(self, action: Float[Array, "B A"], use: int) -> Float[Array, "B A"]:
        """The action with the noise of one of its three uses."""
        return action if self.noise is None else action + self.noise[use]


_TARGETS, _ACTOR, _DUAL = range(3)


def draw(
    config: Learner,
    problem: Problem,
    buffer: replay.Replay,
    starts: tuple[Int[Array, " C"], Int[Array, ""]] | None,
    key: PRNGKeyArray,
    statistics: Statistics | None,
) -> Draws:
    """The draws of all iterations of a block."""
    minibatch_key, start_key, noise_key = random.split(key, 3)
    shape = (BLOCK, config.minibatch)
    first = noise = None
    if starts is not None:
        first = normalised(statistics, replay.sample_starts(buffer, starts, start_key, shape)).observation
    if config.action_noise and not problem.discrete_actions:
        around = random.normal(noise_key, (BLOCK, 3, config.minibatch, problem.action_size))
        noise = config.action_noise * around
    batch = normalised(statistics, replay.sample(buffer, minibatch_key, shape))
    return Draws(batch=batch, starts=first, noise=noise)


def iterate(
    config: Learner,
    problem: Problem,
    state: LearnerState,
    draws: Draws,
    limit: Float[Array, " M"],
    rate: float | Float[Array, ""] = 1.0,
    follow: float | None = None,
    possible: Float[Array, "2 M"] | None = None,
) -> tuple[LearnerState, Float[Array, " M"]]:
    """One primal-dual iteration on a minibatch (lines 12 to 16), and the actor's cost by the critics.

    The actor's gradient uses the updated critics. The dual gradient uses the actor's forward pass of this iteration.
    Rates are multiplied by `rate`. Target networks follow at the rate `follow`, or as configured. If `possible` is
    given, the critics' targets for costs are clipped to it.
    """
    wanted = targets(problem, state.target, draws, possible)
    judged, critic_optimiser = _fit_critics(config, state, draws.batch, wanted, rate)
    learned, actor_optimiser, cost = _improve_actor(config, problem, state, judged, draws, rate)
    if draws.starts is not None:
        action = draws.around(judged.mu(draws.starts), _DUAL)
        cost = jnp.mean(judged.q(draws.starts, action, jnp.zeros_like(draws.batch.step))[1:], axis=-1)
    after = LearnerState(
        learned=learned,
        target=jax.tree.map(
            partial(follow_by, config.target_rate if follow is None else follow), learned, state.target
        ),
        critic_optimiser=critic_optimiser,
        actor_optimiser=actor_optimiser,
        multiplier=dual.update(config.rule, state.multiplier, cost - limit, rate * config.dual_rate),
        path=state.path,
        cloning=state.cloning,
        iteration=state.iteration + 1,
        key=state.key,
    )
    return after, cost


def _fit_critics(
    config: Learner, state: LearnerState, batch: Transition, target: Float[Array, "K B"], rate: float | Float[Array, ""]
) -> tuple[Networks, optax.OptState]:
    """The networks after a gradient step of the critics."""

    def with_critics(critics: networks.MLP) -> Networks:
        return eqx.tree_at(lambda n: n.critics.stack, state.learned, critics)

    def loss(critics: networks.MLP) -> Float[Array, ""]:
        error = target - with_critics(critics).q(batch.observation, batch.action, batch.step)
        return jnp.sum(jnp.mean(jnp.square(error), axis=-1))

    before = state.learned.critics.stack
    gradient = jax.grad(loss)(before)
    critics, optimiser = descent.step(optax.adam(rate * config.critic_rate), before, gradient, state.critic_optimiser)
    return with_critics(critics), optimiser


def _improve_actor(
    config: Learner,
    problem: Problem,
    state: LearnerState,
    judged: Networks,
    draws: Draws,
    rate: float | Float[Array, ""],
) -> tuple[Networks, optax.OptState, Float[Array, " M"]]:
    """The networks after a step of the actor up Q - Σ λ_i Q_i (and towards the data's actions), and its cost before."""
    batch, weight = draws.batch, jnp.concatenate([jnp.ones(1), -state.multiplier.value])

    def loss(actor: networks.MLP) -> tuple[Float[Array, ""], Float[Array, " M"]]:
        candidate = eqx.tree_at(lambda n: n.actor, judged, actor)
        action = candidate.mu(batch.observation)
        q = jnp.mean(candidate.q(batch.observation, draws.around(action, _ACTOR), batch.step), axis=-1)
        value = -jnp.vdot(weight, q)
        if config.cloning:
            distance = cloning.distance(action, batch.action, discrete=problem.discrete_actions)
            value = value / (1.0 + jnp.sum(state.multiplier.value)) + state.cloning * distance
        return value, q[1:]

    gradient, cost = jax.grad(loss, has_aux=True)(state.learned.actor)
    actor, optimiser = descent.step(
        optax.adam(rate * config.actor_rate), state.learned.actor, gradient, state.actor_optimiser
    )
    return eqx.tree_at(lambda n: n.actor, judged, actor), optimiser, cost


def targets(
    problem: Problem, target: Networks, draws: Draws, possible: Float[Array, "2 M"] | None = None
) -> Float[Array, "K B"]:
    """(y, z_1..z_m) of line 12; at a terminated step they are the reward and the costs alone."""
    batch = draws.batch
    now = jnp.concatenate([batch.reward[None], batch.cost.T])
    action = draws.around(target.mu(batch.next_observation), _TARGETS)
    after = target.q(batch.next_observation, action, batch.step + 1)
    discount = jnp.asarray(objective.sum_discounts(problem))
    alive = 1.0 - batch.terminated.astype(now.dtype)
    wanted = now + discount[:, None] * alive[None] * after
    if possible is None:
        return wanted
    least, most = possible
    return jnp.concatenate([wanted[:1], jnp.clip(wanted[1:], least[:, None], most[:, None])])
