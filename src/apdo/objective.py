"""The sums that are maximised and limited: all definitions of discounts, weights of steps, and ends of episodes.

An episode has at most T steps. For each signal x (the reward, then the costs) a policy π has one of two sums:

    discounted   J(π) = E Σ_t γ^t x_t     as in the paper; if the horizon only cuts episodes off, the sum goes on
    total        J(π) = E Σ_{t<T} x_t     the plain sum of one episode; nothing counts after its end, whatever ends it

The gradient of either is  ∇J = E Σ_t w_t ∇log π(a_t|s_t) A(s_t, a_t)  with w_t = γ^t or 1: a step has the same weight
in the gradient as in the sum. In both cases a multiplier is dR/dC, return per cost in these sums.

For a discounted sum, A is the advantage with the same γ. For a total, A is the advantage over the rest of the episode,
so the value functions have to see the time. The problem's γ may still be below 1 there. It then only reduces noise: the
advantage ignores effects beyond 1/(1 - γ) steps, and with them most of the noise. With γ = 1 it ignores nothing.

**Samples.** A batch is N rows of steps. Each row begins with a new episode, and the next episode begins when one ends,
so the end of the batch cuts some episodes short. An average over the episodes that ended within the batch would favour
short ones. So each step is averaged over all episodes that could have been observed up to it: the step with index t in
its episode has weight 1/n_t, where n_t is the number of episodes that began at least t steps before the batch's end.
Whether an episode begins early enough does not depend on what happens in it. Each average is therefore unbiased, except
for the O(1/n) bias of a ratio.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from apdo.core.advantage import episode_totals
from apdo.core.data import Transition
from apdo.problem import Problem


def is_total(problem: Problem) -> bool:
    """Whether limits and return are plain sums over an episode."""
    return problem.cost_discount == 1.0


def sum_discounts(problem: Problem) -> tuple[float, ...]:
    """The discounts in the sums J: of the reward, then of each cost."""
    reward = 1.0 if is_total(problem) else problem.discount
    return (reward, *[problem.cost_discount] * problem.constraints)


def advantage_discounts(problem: Problem) -> tuple[float, ...]:
    """The discounts in advantages and value functions: of the reward, then of each cost."""
    cost = problem.discount if is_total(problem) else problem.cost_discount
    return (problem.discount, *[cost] * problem.constraints)


def goes_on(problem: Problem) -> bool:
    """Whether the sums go on when the horizon cuts an episode off, so that the last step bootstraps from a value."""
    return problem.truncates and not is_total(problem)


def sees_time(problem: Problem) -> bool:
    """Whether the rest of an episode depends on the time. It does not if the sums go on beyond the horizon."""
    return not goes_on(problem)


def ends(problem: Problem, batch: Transition) -> Array:
    """The steps after which nothing counts any more, so that they do not bootstrap."""
    return batch.terminated if goes_on(problem) else batch.ended


def effective_steps(discount: float, steps: int) -> float:
    """Σ_{t<T} γ^t, the effective number of steps of a discounted sum over T steps."""
    return float(steps) if discount == 1.0 else (1.0 - discount**steps) / (1.0 - discount)


def most_steps(problem: Problem, discount: float) -> float:
    """The largest effective number of steps of a sum with this discount, from any step on."""
    if goes_on(problem) and discount < 1.0:
        return 1.0 / (1.0 - discount)
    return effective_steps(discount, problem.horizon)


def signals(batch: Transition) -> Float[Array, "T N K"]:
    """The reward, then the costs."""
    return jnp.concatenate([batch.reward[..., None], batch.cost], axis=-1)


def stationary(problem: Problem) -> Problem:
    """The problem for learners of single transitions, which do not know the episode of a step.

    If the environment would go on after T steps, the rest of a total over T steps is no function of the state. This
    problem replaces the total by the cost discounted like the reward, in a sum that goes on, and the limit by its share
    1 / ((1 - γ) T). A policy with the same cost in every step keeps both limits or neither. Return and cost change by
    the same share, so the multiplier dR/dC is the same in both problems. Where episodes terminate early, the share is
    another one (`weight_of_total`), which only data can tell.
    """
    gamma = problem.discount
    if not (is_total(problem) and problem.truncates) or gamma == 1.0:
        return problem
    share = total_share(problem)
    return dataclasses.replace(problem, cost_discount=gamma, limits=tuple(share * limit for limit in problem.limits))


def total_share(problem: Problem) -> float:
    """What a total becomes in the `stationary` problem, as a share; 1 if that is the same problem.

    There a sum goes on behind the horizon, and has 1 / (1 - γ) effective steps. This is for episodes of T steps.
    """
    gamma = problem.discount
    if not (is_total(problem) and problem.truncates) or gamma == 1.0:
        return 1.0
    return 1.0 / ((1.0 - gamma) * problem.horizon)


def weight_of_total(problem: Problem, step: Float[Array, "*n"], terminated: Bool[Array, "*n"]) -> Float[Array, "*n"]:
    """The weight of a step in a sum of the `stationary` problem, for a cost that is the same in every step.

    A step of index t has γ^t, and the last one of an episode that the horizon cuts off also has what would follow,
    γ^T / (1 - γ). The mean over all steps of whole episodes is a total's share there, however early they terminate.
    """
    gamma, last = problem.discount, problem.horizon
    goes_on_behind = (step == last - 1) & ~terminated
    return gamma**step + jnp.where(goes_on_behind, gamma**last / (1.0 - gamma), 0.0)


def observable(batch: Transition) -> Int[Array, "T N"]:
    """n_t at each step: the number of episodes that began early enough to have a step of this index in the batch."""
    begun = jnp.cumsum(jnp.sum(batch.step == 0, axis=1))
    return begun[batch.step.shape[0] - 1 - batch.step]


def step_weights(problem: Problem, batch: Transition) -> Float[Array, "T N"]:
    """w_t / n_t, the weight of each step in the sums of one episode and in their gradients."""
    discount = 1.0 if is_total(problem) else problem.discount
    return discount**batch.step / observable(batch)


class Measurement(eqx.Module):
    """Estimates from a batch for the policy that drew it: the sums of one episode, and their standard errors."""

    objective: Float[Array, ""]
    """R(π): a discounted sum or a total, as the problem defines it."""
    objective_error: Float[Array, ""]
    """The standard error of R(π)."""
    cost: Float[Array, " M"]
    """C(π): discounted sums or totals, in the units of the limits."""
    cost_error: Float[Array, " M"]
    """The standard errors of C(π)."""
    undiscounted_return: Float[Array, ""]
    discounted_return: Float[Array, ""]
    undiscounted_cost: Float[Array, " M"]
    length: Float[Array, ""]
    """The mean length of an episode, in steps."""
    episodes: Float[Array, ""]
    """The number of episodes that began in the batch."""

    @property
    def cost_deviation(self) -> Float[Array, " M"]:
        """The standard deviation of the cost of one episode."""
        return self.cost_error * jnp.sqrt(self.episodes)


def measure(problem: Problem, batch: Transition) -> Measurement:
    """R(π) and C(π) of the policy that sampled the batch, from this batch alone."""
    m, reward = problem.constraints, batch.reward[..., None]
    signal = jnp.concatenate([reward, reward, batch.cost, batch.cost, jnp.ones_like(reward)], axis=-1)
    factors = jnp.asarray([1.0, problem.discount] + [1.0] * m + [problem.cost_discount] * m + [1.0])
    mean, error = _episode_means(batch, signal, factors)
    which = 0 if is_total(problem) else 1
    return Measurement(
        objective=mean[which],
        objective_error=error[which],
        cost=mean[2 + m : 2 + 2 * m],
        cost_error=error[2 + m : 2 + 2 * m],
        undiscounted_return=mean[0],
        discounted_return=mean[1],
        undiscounted_cost=mean[2 : 2 + m],
        length=mean[-1],
        episodes=jnp.sum(batch.step == 0).astype(mean.dtype),
    )


def plain_return(batch: Transition) -> Float[Array, ""]:
    """The mean total of the environment's own reward in an episode, even if a wrapper replaces that reward."""
    paid = batch.reward if batch.plain_reward is None else batch.plain_reward
    return _episode_means(batch, paid[..., None], jnp.ones(1))[0][0]


def _episode_means(
    batch: Transition, signal: Float[Array, "T N K"], factors: Float[Array, " K"]
) -> tuple[Float[Array, " K"], Float[Array, " K"]]:
    """The mean over episodes of Σ_t factor^t x_t, where each step is averaged over the episodes that could reach it.

    The standard error is computed from the difference between each episode's sum and the sum expected of an episode
    that begins at the same time.
    """
    steps = batch.step.shape[0]
    begins = batch.step == 0
    begun = jnp.cumsum(jnp.sum(begins, axis=1))
    episodes = jnp.sum(begins).astype(signal.dtype)
    # If the batch contains every episode up to its end, the ratio is 1, and the result is exactly the plain mean.
    ratio = episodes / begun[steps - 1 - batch.step]
    weighted = ratio[..., None] * factors[None, None] ** batch.step[..., None] * signal
    # The mean of an episode's step of index t, and the expected sum of an episode that began at a given time.
    by_index = jax.ops.segment_sum(weighted.reshape(-1, signal.shape[-1]), batch.step.reshape(-1), num_segments=steps)
    expected = jnp.cumsum(by_index / begun[::-1][:, None].clip(1), axis=0)[::-1]
    mean = jnp.sum(weighted, axis=(0, 1)) / episodes
    # The sum from each step to the end of its episode or of the batch. At a first step it is the observed episode.
    seen = episode_totals(weighted, batch.ended, jnp.ones_like(factors))
    residual = jnp.where(begins[..., None], seen - expected[:, None], 0.0)
    squares = jnp.sum(jnp.square(residual), axis=(0, 1)) / jnp.square(episodes)
    error = jnp.sqrt(squares * episodes / jnp.maximum(episodes - 1.0, 1.0))
    # A single episode gives no estimate of its error, so the mean's magnitude is used.
    return mean, jnp.where(episodes > 1.0, error, jnp.abs(mean))
