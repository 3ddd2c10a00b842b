"""Primal-dual DDPG (paper, appendix A, Algorithm 2): an off-policy solver of constrained problems.

Critics Q_R, Q_C1..Q_Cm and an actor μ are trained on transitions from a replay buffer, and so are the multipliers:

    y = r + γ Q'_R(s', μ'(s')),  z_i = c_i + γ_c Q'_Ci(s', μ'(s'))      no bootstrap through a terminated step
    Q_R, Q_C   minimise the mean of (y - Q_R(s, a))² and (z_i - Q_Ci(s, a))²
    μ          ascends the mean of  Q_R(s, μ(s)) - Σ_i λ_i Q_Ci(s, μ(s))
    λ_i        ← [λ_i + rate · mean(Q_Ci(s, μ(s)) - d_i)]⁺
    targets    ← τ · learned + (1 - τ) · targets

Where actions are choices, the actor is a softmax over them and the critics give Q(s, ·), one output for each:
μ(s) is then the vector of probabilities and Q(s, μ(s)) = Σ_a μ_a(s) Q(s, a), the expected value, so that every line
above stands as it is. An expected-value actor rather than a greedy one, because the optimum of a constrained problem
mixes choices, and no deterministic policy may attain it; rather than an entropy-regularised one, because a bonus for
entropy would move λ.

λ^OFF is the mean of λ over the iterations, since the path itself keeps swinging. The learner needs no environment: APDO
trains it on the buffer alone (`learn`). As an algorithm of its own (`step`) it also fills the buffer, exploring with
noise.

On a buffer alone this learner is a lottery (docs/dual-estimation.md). What makes it dependable are options of
`Learner`, all off in the appendix's version: critics that see the time, Q(s, a, t); an actor kept near the buffer's
actions, by a bound, by noise a = μ(s) + ε in all three lines that use μ, and by a cloning term,

    μ          descends the mean of  -(Q_R - Σ_i λ_i Q_Ci)(s, μ(s) + ε, t) / (1 + Σ_i λ_i) + w |μ(s) - a|²

dual gradients at episode starts only; rates that fall, with λ^OFF the mean over the last part of the path; and rewards
and costs in units of the buffer's own (`units`), so that no rate depends on what a reward is counted in.
"""

import dataclasses
from functools import partial
from math import inf

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import random
from jaxtyping import Array, Float, Int, PRNGKeyArray

from apdo import objective
from apdo.algorithms import on_policy
from apdo.core import categorical, descent, deterministic, dual, gaussian, networks, noise, policies, replay
from apdo.core.data import Transition, flatten
from apdo.core.statistics import Statistics
from apdo.errors import InvalidInput
from apdo.options import LARGEST_WHOLE, OURS, PAPER, one_of, option
from apdo.problem import Problem

BLOCK = 100
"""Iterations whose minibatches are drawn together: one large gather instead of many small ones."""


@dataclasses.dataclass(frozen=True)
class Learner:
    """Settings of the off-policy learner itself."""

    critic_hidden: tuple[int, ...] = option(
        (100, 100), "hidden layers of each critic, tanh", PAPER, above=0, most=10**5
    )
    actor_hidden: tuple[int, ...] = option((64, 32), "hidden layers of the actor, tanh", PAPER, above=0, most=10**5)
    critic_rate: float = option(1e-3, "Adam's learning rate for the critics", PAPER, above=0.0)
    actor_rate: float = option(1e-3, "Adam's learning rate for the actor", PAPER, above=0.0)
    dual_rate: float = option(1e-2, "step of dual ascent in one iteration", PAPER, above=0.0)
    rule: dual.Config = option(dual.Ascent(), "what moves the multipliers", PAPER, choices=dual.CHOICES)
    dual_states: str = option(
        "batch",
        "states at which the dual gradient is taken: those of the minibatch, or only starts of episodes",
        PAPER,
        choices=one_of("batch", "starts"),
    )
    units: str = option(
        "own",
        "what rewards, costs and multipliers are counted in while learning: their own units, or the data's spread",
        PAPER,
        choices=one_of("own", "data"),
    )
    initial_multiplier: float = option(0.0, "where the multipliers start, in these units", OURS, within=(0.0, inf))
    target_rate: float = option(0.001, "τ, by which the target networks follow", PAPER, within=(0.0, 1.0))
    minibatch: int = option(64, "transitions in one iteration", PAPER, above=0)
    clock: bool = option(False, "whether the critics see the time, where the horizon ends an episode", PAPER)
    bound: float = option(0.0, "μ stays within ±bound, by a tanh; 0: anywhere", PAPER, within=(0.0, inf))
    action_noise: float = option(
        0.0, "standard deviation of the noise around μ(s) in the targets and gradients", PAPER, within=(0.0, inf)
    )
    cloning: float = option(
        0.0, "w, weight of the actor's distance from the buffer's actions in its loss", PAPER, within=(0.0, inf)
    )
    last_rate: float = option(
        1.0,
        "share of all rates left at the end, to which they fall linearly",
        PAPER,
        above=0.0,
    )
    averaged: float = option(
        1.0, "share of the iterations, the last ones, whose mean λ^OFF is", PAPER, above=0.0, most=1.0
    )


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of primal-dual DDPG with an environment."""

    learner: Learner = option(Learner(), "the off-policy learner", PAPER)
    exploration: noise.Config = option(
        noise.OrnsteinUhlenbeck(), "the exploration noise", "the DDPG paper", choices=noise.CHOICES
    )
    replay_capacity: int = option(1_000_000, "transitions that the buffer holds", PAPER, above=0)
    uniform: float = option(
        0.1, "where actions are choices: probability of any of them, instead of noise", OURS, within=(0.0, 1.0)
    )
    updates: float = option(1.0, "iterations per environment step", PAPER, above=0.0, most=1e6)


class Networks(eqx.Module):
    """The critics (reward first, then the costs, in one stack) and the actor."""

    critics: networks.MLP
    actor: networks.MLP
    discrete: bool = eqx.field(static=True)
    """Whether actions are choices: critics with an output for each, and an actor of logits."""
    horizon: int | None = eqx.field(static=True, default=None)
    """The episode's length, where the critics see the time."""
    bound: float = eqx.field(static=True, default=0.0)
    """Within which the actor's outputs stay; 0: anywhere."""

    def q(self, s: Float[Array, "B O"], a: Float[Array, "B A"], step: Int[Array, " B"]) -> Float[Array, "K B"]:
        """(Q_R, Q_C1..Q_Cm) at each state and action, or probabilities of actions, and step of the episode."""
        if self.horizon is not None:
            s = jnp.concatenate([s, (step / self.horizon)[:, None]], axis=-1)
        if self.discrete:
            return jnp.sum(networks.apply_stack(self.critics, s) * a[None], axis=-1)
        return networks.apply_stack(self.critics, jnp.concatenate([s, a], axis=-1))[..., 0]

    def mu(self, s: Float[Array, "B O"]) -> Float[Array, "B A"]:
        """μ at each state."""
        output = jax.vmap(self.actor)(s)
        return jax.nn.softmax(output) if self.discrete else networks.bounded(output, self.bound)


class Draws(eqx.Module):
    """What the iterations draw at random, the iterations in front."""

    batch: Transition
    starts: Float[Array, "*n B O"] | None
    """First observations of episodes, where the dual gradient is taken there."""
    noise: Float[Array, "*n U B A"] | None
    """ε for the targets, the actor and the dual gradient; None where actions are judged without."""

    def around(self, action: Float[Array, "B A"], use: int) -> Float[Array, "B A"]:
        """The action with the noise of one of its three uses."""
        return action if self.noise is None else action + self.noise[use]


_TARGETS, _ACTOR, _DUAL = range(3)


class LearnerState(eqx.Module):
    """Everything that the next iteration needs, besides the buffer."""

    learned: Networks
    target: Networks
    critic_optimiser: optax.OptState
    actor_optimiser: optax.OptState
    multiplier: dual.Multiplier
    """λ, in the learner's units."""
    multiplier_mean: Float[Array, " M"]
    """The mean of λ over the iterations so far that are averaged, in the problem's units: λ^OFF."""
    multiplier_swing: Float[Array, " M"]
    """The variance of λ, without its passing terms, over the same iterations, in the problem's units squared."""
    integral_mean: Float[Array, " M"]
    """And its mean."""
    cost_mean: Float[Array, " M"]
    """What the cost critics say of the actor, averaged over the same iterations, in the problem's units."""
    critic_cost: Float[Array, " M"]
    """The same, averaged over the last block only."""
    cloning: Float[Array, ""]
    """w: the configured one, or a member's own in an ensemble."""
    iteration: Int[Array, ""]
    key: PRNGKeyArray


class State(eqx.Module):
    """Everything that the next epoch needs."""

    learner: LearnerState
    buffer: replay.Replay
    """Observations as they came."""
    statistics: Statistics | None


def start(
    config: Learner, problem: Problem, key: PRNGKeyArray, cloning: Float[Array, ""] | None = None
) -> LearnerState:
    """Random networks, targets equal to them, multipliers as configured (lines 1 to 3)."""
    critic_key, actor_key, run_key = random.split(key, 3)
    o, a = problem.observation_size, problem.action_size
    inputs, outputs = (o, a) if problem.discrete_actions else (o + a, 1)
    clock = config.clock and objective.sees_time(objective.stationary(problem))
    learned = Networks(
        critics=networks.stack(critic_key, 1 + problem.constraints, inputs + clock, config.critic_hidden, outputs),
        actor=networks.mlp(actor_key, o, config.actor_hidden, a),
        discrete=problem.discrete_actions,
        horizon=problem.horizon if clock else None,
        bound=config.bound,
    )
    multiplier = jnp.full((problem.constraints,), config.initial_multiplier)
    return LearnerState(
        learned=learned,
        target=learned,
        critic_optimiser=descent.init(optax.adam(config.critic_rate), learned.critics),
        actor_optimiser=descent.init(optax.adam(config.actor_rate), learned.actor),
        multiplier=dual.start(config.rule, multiplier),
        multiplier_mean=jnp.zeros_like(multiplier),
        multiplier_swing=jnp.zeros_like(multiplier),
        integral_mean=jnp.zeros_like(multiplier),
        cost_mean=jnp.zeros_like(multiplier),
        critic_cost=jnp.zeros_like(multiplier),
        cloning=jnp.asarray(config.cloning) if cloning is None else cloning,
        iteration=jnp.asarray(0),
        key=run_key,
    )


def learn(
    config: Learner,
    problem: Problem,
    state: LearnerState,
    buffer: replay.Replay,
    iterations: Int[Array, ""],
    total: int | None = None,
    statistics: Statistics | None = None,
    reserve: Float[Array, " M"] | None = None,
) -> LearnerState:
    """`iterations` primal-dual iterations on the buffer (lines 11 to 16), without touching an environment.

    Of `total` iterations in all, where that is known: over them rates fall, and the last of them are averaged. The
    networks see observations normalised by `statistics`, where there are any. Of the limits, `reserve` is left unused.
    """
    problem, units = view(config, problem, buffer, reserve)
    starts = replay.episode_starts(buffer) if config.dual_states == "starts" else None
    end = state.iteration + iterations
    follow = following(config, problem, total)
    unaveraged = 0 if total is None else int((1.0 - config.averaged) * total) // BLOCK * BLOCK

    def block(state: LearnerState) -> LearnerState:
        draws = _draw(config, problem, buffer, starts, random.fold_in(state.key, state.iteration), statistics)
        draws = dataclasses.replace(draws, batch=units.seen(draws.batch))
        fall = 0.0 if total is None else (1.0 - config.last_rate) * jnp.minimum(state.iteration / total, 1.0)

        def one(i: Int[Array, ""], carry: tuple[LearnerState, Array]) -> tuple[LearnerState, Array]:
            state, sums = carry
            now = jax.tree.map(lambda leaf: leaf[i], draws)
            state, cost = iterate(config, problem, state, now, units.limit, 1.0 - fall, follow)
            return state, sums + jnp.stack([state.multiplier.value, state.multiplier.integral, cost])

        count = jnp.minimum(BLOCK, end - state.iteration)
        nothing = jnp.zeros((3, problem.constraints))
        after, sums = jax.lax.fori_loop(0, count, one, (state, nothing))
        # Of the iterations that are averaged; before there are any, of the newest block.
        share = count / jnp.maximum(after.iteration - unaveraged, count)
        value, integral, cost = sums / count * jnp.stack([units.price, units.price, units.total])
        ahead = integral - state.integral_mean
        swing = (1.0 - share) * (state.multiplier_swing + share * jnp.square(ahead))
        means = (state.multiplier_mean, state.integral_mean, state.cost_mean)
        told = [mean + share * (new - mean) for mean, new in zip(means, (value, integral, cost), strict=True)]
        told = (*told, swing, cost)
        return eqx.tree_at(
            lambda s: (s.multiplier_mean, s.integral_mean, s.cost_mean, s.multiplier_swing, s.critic_cost), after, told
        )

    return jax.lax.while_loop(lambda state: state.iteration < end, block, state)


def following(config: Learner, problem: Problem, iterations: int | None) -> float:
    """τ: the configured one or, where so many iterations are few for it, one by which values still come to rest.

    A value is learned step by step from the end of the horizon: with T effective steps that takes some T / τ
    iterations.
    """
    if iterations is None or config.units == "own":
        return config.target_rate
    steps = max(objective.effective_steps(gamma, problem.horizon) for gamma in objective.sum_discounts(problem))
    return min(1.0, max(config.target_rate, _SETTLED * steps / iterations))


_SETTLED = 5.0
"""How often the values could come to rest in the iterations that there are."""


def working_bytes(config: Learner, problem: Problem) -> int:
    """About what a block of iterations draws at once: rows, as they are gathered and as they are split, and noise."""
    row = 2 * problem.observation_size + problem.action_size + problem.constraints + 3
    return 4 * BLOCK * config.minibatch * (2 * row + 3 * problem.action_size)


def working_memory(config: "Config", problem: Problem) -> int:
    """Bytes that an epoch needs besides the state and the batch."""
    return working_bytes(config.learner, problem)


class Units(eqx.Module):
    """What a learner's numbers are in the problem's own: a reward of 1, costs of 1, and a price of 1."""

    reward: Float[Array, ""]
    cost: Float[Array, " M"]
    limit: Float[Array, " M"]
    """d, less what of it is to be left unused, in the learner's units."""
    share: float = eqx.field(static=True)
    """What a cost of 1, as the limits mean it, has become in the learner's problem (`objective.total_share`)."""

    @property
    def price(self) -> Float[Array, " M"]:
        """A multiplier of 1."""
        return self.reward / self.cost

    @property
    def total(self) -> Float[Array, " M"]:
        """A constrained cost of 1."""
        return self.cost / self.share

    def seen(self, batch: Transition) -> Transition:
        """The transitions with rewards and costs in the learner's units."""
        cost = batch.cost / jnp.broadcast_to(self.cost, batch.cost.shape)
        return dataclasses.replace(batch, reward=batch.reward / self.reward, cost=cost)


def view(
    config: Learner, problem: Problem, buffer: replay.Replay, reserve: Float[Array, " M"] | None = None
) -> tuple[Problem, Units]:
    """The problem as single transitions can tell it, and the units that a learner sees it in.

    Those of the data are, for each signal, σ √T: the deviation that a return would have if the signals of its T steps
    were independent (of the effective T). A multiplier's natural size is the ratio of two of them.
    """
    share = objective.total_share(problem)
    problem = objective.stationary(problem)
    size = jnp.ones(1 + problem.constraints)
    if config.units == "data":
        steps = [objective.effective_steps(gamma, problem.horizon) for gamma in objective.sum_discounts(problem)]
        spread = replay.spread(buffer) * jnp.sqrt(jnp.asarray(steps))
        size = jnp.where(spread > 0.0, spread, 1.0)
    limit = problem.limit if reserve is None else problem.limit - share * reserve
    return problem, Units(reward=size[0], cost=size[1:], limit=limit / size[1:], share=share)


def _draw(
    config: Learner,
    problem: Problem,
    buffer: replay.Replay,
    starts: tuple[Int[Array, " C"], Int[Array, ""]] | None,
    key: PRNGKeyArray,
    statistics: Statistics | None,
) -> Draws:
    """What the iterations of a block draw, at once."""
    minibatch_key, start_key, noise_key = random.split(key, 3)
    shape = (BLOCK, config.minibatch)
    first = noise = None
    if starts is not None:
        rows, count = starts
        drawn = replay.take(buffer, rows[random.randint(start_key, shape, 0, count)])
        first = on_policy.normalised(statistics, drawn).observation
    if config.action_noise and not problem.discrete_actions:
        around = random.normal(noise_key, (BLOCK, 3, config.minibatch, problem.action_size))
        noise = config.action_noise * around
    batch = on_policy.normalised(statistics, replay.sample(buffer, minibatch_key, shape))
    return Draws(batch=batch, starts=first, noise=noise)


def iterate(
    config: Learner,
    problem: Problem,
    state: LearnerState,
    draws: Draws,
    limit: Float[Array, " M"],
    rate: float | Float[Array, ""] = 1.0,
    follow: float | None = None,
) -> tuple[LearnerState, Float[Array, " M"]]:
    """One primal-dual iteration on a minibatch (lines 12 to 16), and the actor's cost by the critics.

    The actor's gradient uses the critics just updated; the dual gradient uses the actor's forward pass of this
    iteration. Rates are multiplied by `rate`; targets follow by `follow`, or as configured.
    """
    batch = draws.batch
    target = targets(problem, state.target, draws)
    s, step = batch.observation, batch.step

    def with_critics(critics: networks.MLP) -> Networks:
        return eqx.tree_at(lambda n: n.critics, state.learned, critics)

    def critic_loss(critics: networks.MLP) -> Float[Array, ""]:
        error = target - with_critics(critics).q(s, batch.action, step)
        return jnp.sum(jnp.mean(jnp.square(error), axis=-1))

    gradient = jax.grad(critic_loss)(state.learned.critics)
    critics, critic_optimiser = descent.step(
        optax.adam(rate * config.critic_rate), state.learned.critics, gradient, state.critic_optimiser
    )

    judged = with_critics(critics)
    weight = jnp.concatenate([jnp.ones(1), -state.multiplier.value])

    def actor_loss(actor: networks.MLP) -> tuple[Float[Array, ""], Float[Array, " M"]]:
        candidate = eqx.tree_at(lambda n: n.actor, judged, actor)
        action = candidate.mu(s)
        q = jnp.mean(candidate.q(s, draws.around(action, _ACTOR), step), axis=-1)
        loss = -jnp.vdot(weight, q)
        if config.cloning:
            distance = _distance(action, batch.action, discrete=problem.discrete_actions)
            loss = loss / (1.0 + jnp.sum(state.multiplier.value)) + state.cloning * distance
        return loss, q[1:]

    gradient, cost = jax.grad(actor_loss, has_aux=True)(state.learned.actor)
    actor, actor_optimiser = descent.step(
        optax.adam(rate * config.actor_rate), state.learned.actor, gradient, state.actor_optimiser
    )
    if draws.starts is not None:
        action = draws.around(judged.mu(draws.starts), _DUAL)
        cost = jnp.mean(judged.q(draws.starts, action, jnp.zeros_like(step))[1:], axis=-1)

    learned = eqx.tree_at(lambda n: n.actor, judged, actor)
    after = LearnerState(
        learned=learned,
        target=jax.tree.map(partial(_follow, config.target_rate if follow is None else follow), learned, state.target),
        critic_optimiser=critic_optimiser,
        actor_optimiser=actor_optimiser,
        multiplier=dual.update(config.rule, state.multiplier, cost - limit, rate * config.dual_rate),
        multiplier_mean=state.multiplier_mean,
        multiplier_swing=state.multiplier_swing,
        integral_mean=state.integral_mean,
        cost_mean=state.cost_mean,
        critic_cost=state.critic_cost,
        cloning=state.cloning,
        iteration=state.iteration + 1,
        key=state.key,
    )
    return after, cost


def targets(problem: Problem, target: Networks, draws: Draws) -> Float[Array, "K B"]:
    """(y, z_1..z_m) of line 12; at a terminated step they are the reward and the costs alone."""
    batch = draws.batch
    now = jnp.concatenate([batch.reward[None], batch.cost.T])
    action = draws.around(target.mu(batch.next_observation), _TARGETS)
    after = target.q(batch.next_observation, action, batch.step + 1)
    discount = jnp.asarray(objective.sum_discounts(problem))
    alive = 1.0 - batch.terminated.astype(now.dtype)
    return now + discount[:, None] * alive[None] * after


def _distance(action: Float[Array, "B A"], taken: Float[Array, "B A"], *, discrete: bool) -> Float[Array, ""]:
    """How far the actor is from what was done: the squared distance or, of choices, -log of what was chosen.

    The logarithm keeps a pull on choices that are all but given up, which a square would lose in the softmax; and being
    so much steeper there it counts a tenth.
    """
    if discrete:
        return -0.1 * jnp.mean(jnp.log(jnp.sum(action * taken, axis=-1) + 1e-8))
    return jnp.mean(jnp.sum(jnp.square(action - taken), axis=-1))


def _follow(rate: float, learned: Array, target: Array) -> Array:
    return rate * learned + (1.0 - rate) * target


def init(config: Config, problem: Problem, key: PRNGKeyArray) -> State:
    """Random networks and an empty buffer."""
    if config.learner.units != "own":
        raise InvalidInput("learner.units data is for a buffer that stays as it is; this one grows.")
    if config.updates * problem.batch > LARGEST_WHOLE:
        raise InvalidInput(
            f"{config.updates:g} updates for each of {problem.batch} samples are more than can be counted."
        )
    return State(
        learner=start(config.learner, problem, key),
        buffer=empty_buffer(problem, config.replay_capacity),
        statistics=on_policy.fresh_statistics(problem),
    )


def empty_buffer(problem: Problem, capacity: int) -> replay.Replay:
    """A buffer for the transitions of a problem."""
    return replay.init(capacity, problem.batch, problem.observation_size, problem.action_size, problem.constraints)


def memory(config: Config, problem: Problem) -> Float[Array, " A"]:  # noqa: ARG001
    """The exploration noise before an episode's first step (line 5)."""
    return noise.start(problem.action_size)


def act(
    config: Config, state: State, memory: Float[Array, " A"], observation: Float[Array, " O"], key: PRNGKeyArray
) -> tuple[Float[Array, " A"], Float[Array, " A"]]:
    """a = μ(s) + N_t (line 8); of choices, one drawn from μ(s) or, now and then, any."""
    learned = state.learner.learned
    if state.statistics is not None:
        observation = state.statistics.normalise(observation)
    if learned.discrete:
        probabilities = jax.nn.softmax(learned.actor(observation))
        mixed = (1.0 - config.uniform) * probabilities + config.uniform / probabilities.shape[0]
        return categorical.Categorical(logits=jnp.log(mixed)).sample(key), memory
    memory = noise.advance(config.exploration, memory, key)
    return networks.bounded(learned.actor(observation), learned.bound) + memory, memory


def as_policy(config: Learner, learned: Networks) -> policies.Policy:
    """The actor as it was trained: a softmax, or a mean with its noise around it."""
    if learned.discrete:
        return categorical.Policy(logits=learned.actor)
    noise = jnp.log(jnp.full(learned.actor.biases[-1].shape[-1:], config.action_noise))
    return gaussian.Policy(mean=learned.actor, log_std=noise, bound=learned.bound)


samples_its_policy = False
"""Episodes are played with exploration noise, and so say nothing certain of the learned policy."""


def learned_policy(state: State) -> deterministic.Policy | categorical.Policy | policies.Normalised:
    """The actor, without noise, for raw observations."""
    learned = state.learner.learned
    if learned.discrete:
        network = categorical.Policy(logits=learned.actor)
    else:
        network = deterministic.Policy(mean=learned.actor, bound=learned.bound)
    return network if state.statistics is None else policies.Normalised(network=network, statistics=state.statistics)


def step(
    config: Config,
    problem: Problem,
    state: State,
    batch: Transition,
    key: PRNGKeyArray,  # noqa: ARG001
) -> tuple[State, dict[str, Array]]:
    """One epoch: store what the noisy actor did, then as many iterations as it made steps (lines 10 to 16)."""
    buffer = replay.insert(state.buffer, flatten(batch))
    iterations = jnp.asarray(max(1, round(config.updates * problem.batch)))
    statistics, _ = on_policy.observe(state.statistics, batch)
    moved = [
        on_policy.rebase(each, state.statistics, statistics) for each in (state.learner.learned, state.learner.target)
    ]
    learner = eqx.tree_at(lambda s: (s.learned, s.target), state.learner, tuple(moved))
    learner = learn(config.learner, problem, learner, buffer, iterations, statistics=statistics)
    metrics = on_policy.measure(problem, batch) | {
        "multiplier": learner.multiplier.value,
        "multiplier_mean": learner.multiplier_mean,
        "critic_cost": learner.critic_cost,
    }
    return State(learner=learner, buffer=buffer, statistics=statistics), metrics
