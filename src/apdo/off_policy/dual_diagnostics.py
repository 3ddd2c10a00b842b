"""Checks whether logged data support an estimate of λ*: calibration, disagreement, coverage.

**Calibration.** The members' cost critics evaluate their own actors, for which there are no episodes to compare with.
For the logged policy there are. So another critic is trained for the logged policy, on the same data, with the same
network, rates and targets, but with the logged next action instead of the actor's:

    z_i = c_i + γ_c Q'_Ci(s', a'),      a' the action that was logged at s'

Its mean at the starts of the logged episodes is compared with their Monte-Carlo cost. This shows whether critics of
this kind can estimate costs from this data at all: whether observations have enough information, clock and discounts
are right, and training was long enough. The alternative, importance weights, does not exist for actors without noise.
An episode that was cut off has further cost after its end, for which this critic's estimate is used; `tail` is its
share.

**Disagreement.** Every member's critics evaluate every actor's first action, at starts of episodes.

**Coverage.** A critic knows nothing about actions that were never logged. For action vectors: how far the actors'
actions are from the logged ones, in standard deviations of these, and how often they leave the middle 98 % of these.
For discrete actions: the probability that the actors give to actions that were rarely logged at the most similar
states.
"""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import random
from jaxtyping import Array, Float, Int, PRNGKeyArray
from numpy.typing import NDArray

from apdo import objective
from apdo.core import descent, networks
from apdo.core.data import Transition
from apdo.off_policy import contract, critics, kinds
from apdo.problem import Problem

NEIGHBOURS = 100
"""The number of most similar states over which logged actions are counted."""
RARE = 0.02
"""A discrete action is rare if it was taken at less than this share of them."""
_KNOWN = 20_000
"""The most logged states among which the most similar ones are searched."""


class Logged(eqx.Module):
    """Logged steps, with the action that was taken next."""

    batch: Transition
    next_action: Float[Array, "B A"]
    known: Int[Array, " U"]
    """Rows whose next action is known, or not needed because the episode ended."""


def behaviour_critic(
    learner: contract.Settings, problem: Problem, logged: Logged, iterations: int, key: PRNGKeyArray
) -> critics.Critics:
    """Critics of the logged policy, after `iterations` iterations of temporal-difference learning."""
    start_key, run_key = random.split(key)
    first = critics.init(
        random.split(start_key, 3)[0], problem, 1 + problem.constraints, learner.critic_hidden, clock=learner.clock
    )
    discount = jnp.asarray(objective.sum_discounts(problem))
    own = learner.units == "own"
    target_rate = learner.target_rate if own else critics.settling(learner.target_rate, problem, iterations)

    def targets(target: critics.Critics, rows: Int[Array, " B"]) -> Float[Array, "K B"]:
        batch = jax.tree.map(lambda leaf: leaf[rows], logged.batch)
        now = jnp.concatenate([batch.reward[None], batch.cost.T])
        after = target.q(batch.next_observation, logged.next_action[rows], batch.step + 1)
        alive = 1.0 - batch.terminated.astype(now.dtype)
        return now + discount[:, None] * alive[None] * after

    def once(i: Int[Array, ""], carry: tuple) -> tuple:
        learned, target, optimiser = carry
        drawn = random.randint(random.fold_in(run_key, i), (learner.minibatch,), 0, logged.known.shape[0])
        rows = logged.known[drawn]
        wanted = targets(target, rows)
        batch = logged.batch

        def loss(stack: networks.MLP) -> Float[Array, ""]:
            candidate = eqx.tree_at(lambda c: c.stack, learned, stack)
            error = wanted - candidate.q(batch.observation[rows], batch.action[rows], batch.step[rows])
            return jnp.sum(jnp.mean(jnp.square(error), axis=-1))

        rate = learner.critic_rate * (1.0 - (1.0 - learner.last_rate) * i / iterations)
        stack, optimiser = descent.step(optax.adam(rate), learned.stack, jax.grad(loss)(learned.stack), optimiser)
        learned = eqx.tree_at(lambda c: c.stack, learned, stack)
        return learned, jax.tree.map(partial(critics.follow, target_rate), learned, target), optimiser

    start = (first, first, descent.init(optax.adam(learner.critic_rate), first.stack))
    return jax.lax.fori_loop(0, iterations, once, start)[0]


def actions(
    learner: contract.Settings, members: contract.OwnState, observation: Float[Array, "B O"]
) -> Float[Array, "E B A"]:
    """The actions of each member's actor."""
    return jax.vmap(lambda member: kinds.of(learner).actions(member, observation))(members)


def coverage_of_vectors(
    done: NDArray[np.float32], logged: NDArray[np.float32], everything: NDArray[np.float32]
) -> tuple[float, float]:
    """The distance of the actors' actions [E, J, A] from those logged at the same states [J, A], and the share outside.

    The distance is the root mean square, in standard deviations of all logged actions [B, A]. A policy that always took
    the mean logged action would have a distance of at most 1. The share is that of states at which some entry is
    outside the 1 to 99 % range of the logged actions.
    """
    deviation = np.std(everything, axis=0, dtype=np.float64)
    deviation = np.where(deviation > 0.0, deviation, 1.0)
    distance = np.sqrt(np.mean(np.square((done - logged[None]) / deviation)))
    low, high = np.quantile(everything, (0.01, 0.99), axis=0)
    return float(distance), float(np.mean(((done < low) | (done > high)).any(axis=-1)))


def coverage_of_choices(
    probabilities: NDArray[np.float32],
    states: NDArray[np.float32],
    logged_states: NDArray[np.float32],
    logged_choices: NDArray[np.float32],
    rng: np.random.Generator,
) -> float:
    """The probability that the actors give to actions that were rarely logged at similar states.

    `probabilities` [E, J, A] are the actors' at `states` [J, O].
    """
    from scipy.spatial import KDTree

    # The order is random, so that among equal states the ones found first do not all come from the same time.
    known = rng.permutation(len(logged_states))[:_KNOWN]
    count = min(NEIGHBOURS, len(known))
    near = KDTree(logged_states[known]).query(states, k=count)[1].reshape(len(states), count)
    share = logged_choices[known][near].mean(axis=1)
    return float(np.mean(np.sum(probabilities * (share < RARE)[None], axis=-1)))
