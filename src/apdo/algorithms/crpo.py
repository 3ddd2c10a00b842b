"""Constraint-rectified policy optimisation, CRPO (Xu, Liang and Lan 2021): a step for the return or for one limit.

    if C_i(π_k) ≤ d_i + η for every i:   a step that raises R
    else                                 a step that lowers C_i of a limit that is exceeded

There are no multipliers (their algorithm 1). For natural-gradient steps in the tabular case, the policies that took a
step of the first kind are on average within O(1/√K) of R* and of the limits after K epochs (their theorem 1). This
bound holds for their average, or for one drawn at random among them. The newest policy keeps moving around the limit,
by about one step.

Any number of constraints: the step lowers the cost with the largest excess, as a share of the limit or of the cost. The
paper takes any limit that is exceeded.

Deviations:
1. η is a share of the limit or of the cost, whichever is larger, so it has no unit.
2. C(π_k) is the mean of the batch; the paper estimates it with a critic that is learned by TD.
3. Policies are not averaged over epochs. The run stores the best policy that is known to keep the limits (`best`),
   which is one of those in the theorem.
4. The step is a natural gradient, with the paper's fixed rate or, without a rate, to the edge of a trust region. Every
   `--primal` is possible.
"""

import dataclasses
from math import inf

import jax.numpy as jnp
from jax import random
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from apdo.algorithms import epoch, natural_steps, on_policy, primal_steps
from apdo.core.data import Transition
from apdo.options import OURS, option
from apdo.problem import Problem

act, memory, learned_policy, learned_values, start_from = on_policy.SHARED
State = epoch.CountedState


@dataclasses.dataclass(frozen=True)
class Config(epoch.Config):
    """Settings of CRPO."""

    primal: primal_steps.Config = option(
        natural_steps.Trpo(), "the step, both for the return and for a cost", OURS, choices=primal_steps.CHOICES
    )
    tolerance: float = option(
        0.0, "η, the excess that is tolerated, as a share of the limit or of the cost", OURS, within=(0.0, inf)
    )


def init(config: Config, problem: Problem, key: PRNGKeyArray) -> State:
    """A new policy and new value functions."""
    return State(**vars(epoch.start(config, problem, key, config.primal)), epoch=primal_steps.counter(config.primal))


def step(
    config: Config, problem: Problem, state: State, batch: Transition, key: PRNGKeyArray
) -> tuple[State, dict[str, Array]]:
    """One epoch: a step for the return, or against the cost with the largest excess."""
    primal_key, critic_key = random.split(key)
    quantities = epoch.begin(config, problem, state, batch)
    worst, broken = choose(quantities.excess, quantities.size, config.tolerance)
    advantage = jnp.where(broken, -jnp.take(quantities.standard, 1 + worst, axis=-1), quantities.standard[..., 0])
    samples = quantities.samples(problem, advantage)
    k = 0 if state.epoch is None else state.epoch
    policy, optimiser, metrics = primal_steps.improve(
        config.primal, quantities.policy, state.optimiser, samples, primal_key, epochs=k
    )
    state = state if state.epoch is None else dataclasses.replace(state, epoch=k + 1)
    metrics["recovering"] = broken.astype(jnp.float32)
    return epoch.finish(config, state, quantities, critic_key, policy, optimiser, metrics)


def choose(
    excess: Float[Array, " M"], size: Float[Array, " M"], tolerance: float
) -> tuple[Int[Array, ""], Bool[Array, ""]]:
    """The index of the largest excess, as a share of `size`, and whether it is more than is tolerated."""
    share = jnp.where(size > 0.0, excess / jnp.where(size > 0.0, size, 1.0), -inf)
    worst = jnp.argmax(share)
    return worst, share[worst] > tolerance
