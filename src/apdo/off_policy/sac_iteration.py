"""One iteration of constrained soft actor-critic, and what it draws (the equations are in `sac`)."""

import dataclasses
from collections.abc import Callable
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
from apdo.off_policy import cloning, critics
from apdo.off_policy.path import BLOCK
from apdo.off_policy.sac_state import TWINS, Learner, Networks, State, target_entropy
from apdo.off_policy.units import Units
from apdo.problem import Problem

_TARGETS, _ACTOR, _DUAL, _COSTS = range(4)


class Draws(eqx.Module):
    """What the iterations draw at random, the iterations in front."""

    batch: Transition
    """Single steps."""
    longer: Transition
    """The same over as many steps as the costs' targets count."""
    steps: Int[Array, "*n B"]
    """How many these are, of each."""
    starts: Float[Array, "*n B O"] | None
    """First observations of episodes, where the multipliers are learned too."""
    noise: Float[Array, "*n U B A"] | None
    """Standard normal: for the reward's targets, actor, dual gradient, the costs' targets; None for choices."""


def draw(
    config: Learner,
    problem: Problem,
    buffer: replay.Replay,
    starts: tuple[Int[Array, " C"], Int[Array, ""]] | None,
    key: PRNGKeyArray,
    statistics: Statistics | None,
    units: Units,
) -> Draws:
    """What the iterations of a block draw, at once, in the learner's units."""
    minibatch_key, start_key, noise_key = random.split(key, 3)
    shape = (BLOCK, config.minibatch)
    first = noise = None
    if starts is not None:
        first = normalised(statistics, replay.sample_starts(buffer, starts, start_key, shape)).observation
    if not problem.discrete_actions:
        uses = 3 if config.cost_steps == 1 else 4
        noise = random.normal(noise_key, (BLOCK, uses, config.minibatch, problem.action_size))
    rows = replay.draw(buffer, minibatch_key, shape)
    batch = longer = units.seen(normalised(statistics, replay.take(buffer, rows)))
    steps = jnp.ones_like(rows)
    if config.cost_steps > 1:
        discounts = jnp.asarray(objective.sum_discounts(problem))
        whole, steps = replay.take_ahead(buffer, rows, config.cost_steps, discounts)
        longer = units.seen(normalised(statistics, whole))
    return Draws(batch, longer, steps, first, noise)


def cautious(config: Learner, q: Float[Array, "N B ..."], constraints: int) -> Float[Array, "K B ..."]:
    """What actor and multipliers see of N critics: the lower reward twin, and mean + k · deviation of each cost's."""
    each = q[TWINS:].reshape(constraints, config.costs, *q.shape[1:])
    mean = jnp.mean(each, axis=1)
    if config.caution and config.costs > 1:
        # Where critics agree to the last digit the root has no slope.
        variance = jnp.maximum(jnp.var(each, axis=1), jnp.finfo(q.dtype).tiny)
        mean = mean + config.caution * jnp.sqrt(variance)
    return jnp.concatenate([_lower(q)[None], mean])


def _lower(q: Float[Array, "N B ..."]) -> Float[Array, "B ..."]:
    """The lower reward twin.

    Not `jnp.min`, whose slope asks which of its inputs equals the least, and is NaN where a compiler has computed them
    twice with different rounding.
    """
    return jnp.minimum(q[0], q[1])


def targets(
    config: Learner,
    problem: Problem,
    learned: Networks,
    target: critics.Critics,
    temperature: Array,
    draws: Draws,
    possible: Float[Array, "2 M"],
) -> Float[Array, "N B"]:
    """y for both twins and z for every cost critic; at a terminated step the reward and the costs alone.

    A cost critic is not asked to say less, or more, than costs can add up to. The actor looks for what critics take to
    be cheap; without these bounds their errors feed on each other (on point-goal-1 they came to -12,000).
    """
    gamma, *cost_gammas = objective.sum_discounts(problem)
    batch, longer = draws.batch, draws.longer
    soft = _following(learned, target.first(TWINS), batch, 1, draws, _TARGETS, _lower, temperature)
    reward = batch.reward + gamma * _goes_on(batch) * soft
    which = _TARGETS if config.cost_steps == 1 else _COSTS
    after = _following(learned, target.rest(TWINS), longer, draws.steps, draws, which)
    discount = jnp.repeat(jnp.asarray(cost_gammas), config.costs)[:, None] ** draws.steps[None]
    costs = jnp.repeat(longer.cost.T, config.costs, axis=0) + discount * _goes_on(longer)[None] * after
    least, most = jnp.repeat(possible, config.costs, axis=1)
    costs = jnp.clip(costs, least[:, None], most[:, None])
    return jnp.concatenate([jnp.broadcast_to(reward[None], (TWINS, *reward.shape)), costs])


def _goes_on(batch: Transition) -> Float[Array, " B"]:
    return 1.0 - batch.terminated.astype(batch.reward.dtype)


def _following(
    learned: Networks,
    target: critics.Critics,
    batch: Transition,
    steps: int | Int[Array, " B"],
    draws: Draws,
    which: int,
    choose: Callable[[Array], Array] = lambda q: q,
    temperature: float | Array = 0.0,
) -> Float[Array, "*N B"]:
    """What critics say of the actor where transitions of so many steps have led, with its entropy at this price."""
    s, step = batch.next_observation, batch.step + steps
    if learned.discrete:
        q, log_p = choose(target.of_choices(s, step)), learned.log_probabilities(s)
        log_p = jnp.broadcast_to(log_p, q.shape)
        return jnp.sum(jnp.exp(log_p) * (q - temperature * log_p), axis=-1)
    assert draws.noise is not None
    action, log_density = learned.distributions(s).at(draws.noise[which])
    q = choose(target.q(s, action, step))
    return q - temperature * jnp.broadcast_to(log_density, q.shape)


class Judged(eqx.Module):
    """An actor at some states, in the eyes of critics."""

    values: Float[Array, " K"]
    """Return and costs, as `cautious` sees them, on average."""
    entropy: Float[Array, ""]
    action: Float[Array, "B A"]
    """What it does: actions, or probabilities of choices."""


def judge(
    config: Learner,
    actor: Networks,
    judges: critics.Critics,
    s: Float[Array, "B O"],
    step: Int[Array, " B"],
    noise: Float[Array, "B A"] | None,
    constraints: int,
) -> Judged:
    """What the critics say of the actor; of choices, the expectation over them."""
    if actor.discrete:
        log_p = actor.log_probabilities(s)
        p = jnp.exp(log_p)
        values = jnp.sum(p[None] * cautious(config, judges.of_choices(s, step), constraints), axis=-1)
        return Judged(jnp.mean(values, axis=-1), -jnp.mean(jnp.sum(p * log_p, axis=-1)), p)
    assert noise is not None
    action, log_density = actor.distributions(s).at(noise)
    values = cautious(config, judges.q(s, action, step), constraints)
    return Judged(jnp.mean(values, axis=-1), -jnp.mean(log_density), action)


def iterate(
    config: Learner,
    problem: Problem,
    state: State,
    draws: Draws,
    units: Units,
    rate: float | Float[Array, ""] = 1.0,
    follow: float | None = None,
    unseen: float | Float[Array, " M"] = 0.0,
) -> tuple[State, Float[Array, " M"]]:
    """One iteration on a minibatch, and the actor's cost by the critics; rates are multiplied by `rate`.

    The multipliers see `unseen` cost on top of what the critics say; all costs are in the learner's units.
    The actor's gradient uses the critics just updated, the multipliers and the temperature the actor before its step.
    """
    learned = state.learned
    temperature = jnp.exp(state.log_temperature)
    wanted = targets(config, problem, learned, state.target, temperature, draws, units.possible)
    judges, critic_optimiser = _fit_critics(config, state, draws.batch, wanted, rate)
    actor, actor_optimiser, found = _improve_actor(config, problem, state, judges, draws, rate)
    log_temperature, temperature_optimiser = descent.step(
        optax.adam(rate * config.temperature_rate),
        state.log_temperature,
        found.entropy - target_entropy(config, problem),
        state.temperature_optimiser,
    )
    cost, multiplier = found.values[1:], state.multiplier
    if draws.starts is not None:
        noise = None if draws.noise is None else draws.noise[_DUAL]
        at_start = jnp.zeros_like(draws.batch.step)
        cost = judge(config, learned, judges, draws.starts, at_start, noise, problem.constraints).values[1:]
        excess = dual.relative_excess(cost + unseen, units.limit, jnp.zeros_like(units.limit))
        unit = jnp.maximum(multiplier.integral, 1.0)
        multiplier = dual.update(config.rule, multiplier, excess, rate * config.dual_rate, unit)
    variance = _variance(learned, draws.batch.observation, found.action)
    after = dataclasses.replace(
        state,
        learned=Networks(critics=judges, actor=actor, bound=learned.bound),
        target=jax.tree.map(
            partial(critics.follow, config.target_rate if follow is None else follow), judges, state.target
        ),
        log_temperature=log_temperature,
        critic_optimiser=critic_optimiser,
        actor_optimiser=actor_optimiser,
        temperature_optimiser=temperature_optimiser,
        multiplier=multiplier,
        variance=state.variance + _MEMORY * (variance - state.variance),
        iteration=state.iteration + 1,
    )
    return after, cost


def _fit_critics(
    config: Learner, state: State, batch: Transition, wanted: Float[Array, "N B"], rate: float | Float[Array, ""]
) -> tuple[critics.Critics, optax.OptState]:
    """The critics, a step nearer to their targets."""
    before = state.learned.critics

    def loss(stack: networks.MLP) -> Float[Array, ""]:
        judges = eqx.tree_at(lambda c: c.stack, before, stack)
        return jnp.sum(jnp.mean(jnp.square(wanted - judges.q(batch.observation, batch.action, batch.step)), axis=-1))

    gradient = jax.grad(loss)(before.stack)
    stack, optimiser = descent.step(
        optax.adam(rate * config.critic_rate), before.stack, gradient, state.critic_optimiser
    )
    return eqx.tree_at(lambda c: c.stack, before, stack), optimiser


def _improve_actor(
    config: Learner,
    problem: Problem,
    state: State,
    judges: critics.Critics,
    draws: Draws,
    rate: float | Float[Array, ""],
) -> tuple[networks.MLP, optax.OptState, Judged]:
    """The actor, a step up Q - Σ λ_i Q_i and its entropy, near the data's actions; and the one before, judged."""
    batch, learned, multiplier = draws.batch, state.learned, state.multiplier.value
    price = jnp.concatenate([jnp.ones(1), -multiplier])

    def loss(actor: networks.MLP) -> tuple[Float[Array, ""], Judged]:
        candidate = eqx.tree_at(lambda n: n.actor, learned, actor)
        noise = None if draws.noise is None else draws.noise[_ACTOR]
        found = judge(config, candidate, judges, batch.observation, batch.step, noise, problem.constraints)
        gain = jnp.vdot(price, found.values) + jnp.exp(state.log_temperature) * found.entropy
        value = -gain / (1.0 + jnp.sum(multiplier))
        if config.cloning:
            value = value + state.cloning * cloning.distance(found.action, batch.action, discrete=learned.discrete)
        return value, found

    gradient, found = jax.grad(loss, has_aux=True)(learned.actor)
    actor, optimiser = descent.step(
        optax.adam(rate * config.actor_rate), learned.actor, gradient, state.actor_optimiser
    )
    return actor, optimiser, found


def _variance(learned: Networks, s: Float[Array, "B O"], action: Float[Array, "B A"]) -> Float[Array, " A"]:
    """The mean square of actions around the middle of their distributions; 0 of choices, which have none."""
    if learned.discrete:
        return jnp.zeros(action.shape[-1])
    return jnp.mean(jnp.square(action - learned.distributions(s).mode()), axis=0)


_MEMORY = 0.01
"""What an iteration counts in the average of the actions' variance."""
