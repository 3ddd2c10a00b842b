"""Constraint-rectified policy optimisation, CRPO (Xu, Liang and Lan 2021): one thing at a time.

    if C_i(π_k) ≤ d_i + η for every i:   a step that raises R
    else                                 a step that lowers C_i of a limit that is broken

with no multipliers at all (their algorithm 1). With natural-gradient steps in the tabular case the policies that took a
step of the first kind are, on average over them, within O(1/√K) of R* and of the limits after K epochs (their
theorem 1). That is a promise for the average, or for one drawn at random among them: the newest policy goes on moving
around the limit, by about one step.

Any number of constraints: of the broken limits the worst is taken, by the excess as a share of limit or cost. The
paper takes any of them.

Deviations:
1. η is a share of the limit or of the cost, whichever is larger, so that it has no unit.
2. C(π_k) is the batch's own mean; the paper estimates it by TD from the critic.
3. Nothing is averaged over epochs; the run keeps the best policy that it knows to keep the limits (`best`), which is
   one of those that the theorem speaks of.
4. The step is the natural gradient, with the paper's fixed rate or, without one, to the edge of a trust region; any
   `--primal` does.
"""

import dataclasses
from math import inf

import jax.numpy as jnp
from jax import random
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from apdo.algorithms import epoch, on_policy, primal_steps
from apdo.core.data import Transition
from apdo.options import OURS, option
from apdo.problem import Problem

act = on_policy.act
memory = on_policy.memory
learned_policy = on_policy.learned_policy
learned_values = on_policy.learned_values
start_from = on_policy.start_from


class State(epoch.State):
    """The same with the number of the epoch."""

    epoch: Int[Array, ""] | None
    """k; None where steps keep their length."""


@dataclasses.dataclass(frozen=True)
class Config(epoch.Config):
    """Settings of CRPO."""

    primal: primal_steps.Config = option(
        primal_steps.Trpo(), "the step, for the return and for a cost alike", OURS, choices=primal_steps.CHOICES
    )
    tolerance: float = option(0.0, "η, by which a limit may be exceeded, as a share", OURS, within=(0.0, inf))


def init(config: Config, problem: Problem, key: PRNGKeyArray) -> State:
    """A fresh policy and value functions."""
    return State(**vars(epoch.start(config, problem, key, config.primal)), epoch=primal_steps.counter(config.primal))


def step(
    config: Config, problem: Problem, state: State, batch: Transition, key: PRNGKeyArray
) -> tuple[State, dict[str, Array]]:
    """One epoch: a step for the return, or against the worst cost."""
    primal_key, critic_key = random.split(key)
    view = epoch.look(config, problem, state, batch)
    worst, broken = choose(view.excess, view.size, config.tolerance)
    advantage = jnp.where(broken, -jnp.take(view.standard, 1 + worst, axis=-1), view.standard[..., 0])
    samples = view.samples(problem, advantage)
    k = 0 if state.epoch is None else state.epoch
    policy, optimiser, metrics = primal_steps.improve(
        config.primal, view.policy, state.optimiser, samples, primal_key, epochs=k
    )
    state = state if state.epoch is None else dataclasses.replace(state, epoch=k + 1)
    metrics["recovering"] = broken.astype(jnp.float32)
    return epoch.finish(config, state, view, critic_key, policy, optimiser, metrics)


def choose(
    excess: Float[Array, " M"], size: Float[Array, " M"], tolerance: float
) -> tuple[Int[Array, ""], Bool[Array, ""]]:
    """The limit that is broken worst, as a share of its size, and whether it is broken by more than is tolerated."""
    share = jnp.where(size > 0.0, excess / jnp.where(size > 0.0, size, 1.0), -inf)
    worst = jnp.argmax(share)
    return worst, share[worst] > tolerance
