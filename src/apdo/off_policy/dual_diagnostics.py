"""Whether an estimate of λ* from logged data deserves belief: calibration, disagreement, coverage.

**Calibration.** The members' cost critics judge their own actors, of which there are no episodes to compare with. The
logged policy has episodes. So one more critic is trained for it, on the same data, with the same network, rates and
targets, but with the logged next action in the place of the actor's:

    z_i = c_i + γ_c Q'_Ci(s', a'),      a' the action that was logged at s'

and its mean at the starts of the logged episodes is compared with their Monte-Carlo cost. This says whether critics of
this kind can read costs off this data at all: whether the observations tell enough, the clock is right, the discounts
are, and training was long enough. Importance weights, the alternative, do not exist for actors without noise.
An episode that was cut off has a cost beyond its end, for which this critic stands in; `tail` says how much that is.

**Disagreement.** Every actor's first action is judged by every member's critics, at starts of episodes.

**Coverage.** A critic knows nothing of actions that were never logged. Of vectors: how far the actors' actions are from
the logged ones, in standard deviations of those, and how often they leave their middle 98 %. Of choices: what
probability the actors give to choices that were rarely logged at the most similar states.
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
"""Similar states among which choices are counted."""
RARE = 0.02
"""The share of them below which a choice is rare."""
_KNOWN = 20_000
"""Logged states among which the neighbours are looked for."""


class Logged(eqx.Module):
    """Logged steps, with the action that was taken next."""

    batch: Transition
    next_action: Float[Array, "B A"]
    known: Int[Array, " U"]
    """Rows at which that action is known, or none is needed because the episode ended."""


def behaviour_critic(
    learner: contract.Settings, problem: Problem, logged: Logged, iterations: int, key: PRNGKeyArray
) -> critics.Critics:
    """Critics of the policy that was logged, by as many iterations of temporal differences."""
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
    """What each member's actor does."""
    return jax.vmap(lambda member: kinds.of(learner).actions(member, observation))(members)


def coverage_of_vectors(
    done: NDArray[np.float32], logged: NDArray[np.float32], everything: NDArray[np.float32]
) -> tuple[float, float]:
    """How far the actors' actions [E, J, A] are from those logged at the same states [J, A], and how often outside.

    The first is the root of the mean square, in standard deviations of all logged actions [B, A]; a policy that did
    what was done on average would be at most 1 away. The second is the share of states at which some entry leaves the
    logged ones' 1 to 99 % range.
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
    """The probability that the actors, [E, J, A] at some states [J, O], give to choices rarely logged near there."""
    from scipy.spatial import KDTree

    # In random order: among equal states, those found first must not all come from one time.
    known = rng.permutation(len(logged_states))[:_KNOWN]
    count = min(NEIGHBOURS, len(known))
    near = KDTree(logged_states[known]).query(states, k=count)[1].reshape(len(states), count)
    share = logged_choices[known][near].mean(axis=1)
    return float(np.mean(np.sum(probabilities * (share < RARE)[None], axis=-1)))
