"""One iteration of constrained soft actor-critic, and its random draws (the equations are in `sac`)."""

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
from apdo.core import descent, dual, networks, relative_units, replay
from apdo.core.data import Transition
from apdo.core.statistics import Statistics, normalised
from apdo.off_policy import cloning, critics
from apdo.off_policy.path import BLOCK
from apdo.off_policy.sac_state import TWINS, Learner, Networks, State, target_entropy
from apdo.off_policy.units import Units
from apdo.problem import Problem

_TARGETS, _ACTOR, _DUAL, _COSTS = range(4)


class Draws(eqx.Module):
    """The random draws of several iterations, whose number is the first axis."""

    batch: Transition
    """Single steps."""
    longer: Transition
    """Transitions from the same rows over n steps, for the costs' targets."""
    steps: Int[Array, "*n B"]
    """The number of steps of each longer transition."""
    starts: Float[Array, "*n B O"] | None
    """First observations of episodes, if the multipliers are learned too."""
    noise: Float[Array, "*n U B A"] | None
    """Standard normal noise for the reward's targets, the actor, the dual gradient and, if n > 1, the costs' targets.

    It is None if actions are discrete."""


def draw(
    config: Learner,
    problem: Problem,
    buffer: replay.Replay,
    starts: tuple[Int[Array, " C"], Int[Array, ""]] | None,
    key: PRNGKeyArray,
    statistics: Statistics | None,
    units: Units,
) -> Draws:
    """The draws of all iterations of a block, in the learner's units."""
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
    """The estimates that actor and multipliers use: the reward's lower twin, and mean + k · deviation of each cost."""
    each = q[TWINS:].reshape(constraints, config.costs, *q.shape[1:])
    mean = jnp.mean(each, axis=1)
    if config.caution and config.costs > 1:
        # If critics agree exactly, the root has no finite derivative.
        variance = jnp.maximum(jnp.var(each, axis=1), jnp.finfo(q.dtype).tiny)
        mean = mean + config.caution * jnp.sqrt(variance)
    return jnp.concatenate([_lower(q)[None], mean])


def _lower(q: Float[Array, "N B ..."]) -> Float[Array, "B ..."]:
    """The lower reward twin.

    `jnp.min` is not used here: its gradient looks for the inputs that equal the minimum, and is NaN if the compiler
    computes these twice with different rounding.
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
    """y for both twins and z for every cost critic; after a terminated step they are the reward and the costs alone.

    The targets of cost critics are clipped to the range that costs can add up to. The actor seeks actions that critics
    wrongly consider cheap. Without these bounds the errors of actor and critics amplify each other (on point-goal-1
    values reached -12,000).
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
    """The actor's value by the critics at states after `steps` steps, plus `temperature` times its entropy."""
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
    """The critics' evaluation of an actor at some states."""

    values: Float[Array, " K"]
    """Mean return and costs, by the estimates of `cautious`."""
    entropy: Float[Array, ""]
    action: Float[Array, "B A"]
    """The actor's actions, or their probabilities if actions are discrete."""


def judge(
    config: Learner,
    actor: Networks,
    judges: critics.Critics,
    s: Float[Array, "B O"],
    step: Int[Array, " B"],
    noise: Float[Array, "B A"] | None,
    constraints: int,
) -> Judged:
    """The critics' evaluation of the actor. If actions are discrete, it is the exact expectation over them."""
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
    certainty: float | Float[Array, " M"] = 1.0,
) -> tuple[State, Float[Array, " M"]]:
    """One iteration on a minibatch, and the actor's cost by the critics; rates are multiplied by `rate`.

    The multipliers respond to the critics' cost plus `unseen`, more slowly with less `certainty`, and so does the
    actor. All costs are in the learner's units. The actor's gradient uses the updated critics. The updates of
    multipliers and temperature use the actor from before its step.
    """
    learned = state.learned
    temperature = jnp.exp(state.log_temperature)
    wanted = targets(config, problem, learned, state.target, temperature, draws, units.possible)
    judges, critic_optimiser = _fit_critics(config, state, draws.batch, wanted, rate)
    pace = rate * jnp.min(jnp.square(certainty), initial=1.0)
    actor, actor_optimiser, found = _improve_actor(config, problem, state, judges, draws, pace)
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
        excess = relative_units.excess(cost + unseen, units.limit, jnp.zeros_like(units.limit))
        step, unit = rate * config.dual_rate * certainty, jnp.maximum(multiplier.integral, 1.0)
        multiplier = dual.update(config.rule, multiplier, excess, step, unit, certain=jnp.square(certainty))
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
    """The critics after a gradient step towards their targets."""
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
    """The actor after a step up Q - Σ λ_i Q_i plus entropy (and towards the data's actions); the old one's values."""
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
    """The mean squared distance of actions from the median of their distributions; 0 if actions are discrete."""
    if learned.discrete:
        return jnp.zeros(action.shape[-1])
    return jnp.mean(jnp.square(action - learned.distributions(s).mode()), axis=0)


_MEMORY = 0.01
"""The weight of one iteration in the running average of the actions' variance."""
