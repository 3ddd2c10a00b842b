"""What is maximised and what is limited: the one owner of discounts, weights of steps, and ends of episodes.

An episode is at most T steps. With signals x (the reward, then the costs) a policy has, for each of them,

    discounted   J(π) = E Σ_t γ^t x_t     the paper's; where the horizon only cuts episodes off, the sum goes on
    total        J(π) = E Σ_{t<T} x_t     the plain sum of one episode; nothing counts after its end, whatever ends it

and the gradient of either is  ∇J = E Σ_t w_t ∇log π(a_t|s_t) A(s_t, a_t)  with w_t = γ^t or 1: a step counts in the
gradient as it counts in the sum. A multiplier is dR/dC, return per cost in these sums, in either mode.

Of a discounted sum A is the advantage with that γ. Of a total it is the advantage of what is left of the episode, for
which the value functions have to see the time; the problem's γ may still be below 1 there, and is then an estimator's
device: effects beyond 1/(1 - γ) steps are dropped, and with them most of the noise. With γ = 1 nothing is dropped.

**Samples.** A batch is N rows of steps. Each row begins with a new episode, and a new one begins when one ends, so that
the end of the batch cuts some episodes short. To average over the episodes that happened to end would favour short
ones. So every step is averaged over the episodes that could have been seen that far: the step with index t in its
episode weighs 1/n_t, with n_t the number of episodes that began at least t steps before the batch's end. Whether an
episode begins in time does not depend on what happens in it, so that each such average is unbiased up to the ratio's
own O(1/n).
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from apdo.core.advantage import episode_totals
from apdo.core.data import Transition
from apdo.problem import Problem


def is_total(problem: Problem) -> bool:
    """Whether the limits, and so the return, speak of plain sums over an episode."""
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
    """Whether the sums go on where the horizon cuts an episode off, so that a value stands for what would come."""
    return problem.truncates and not is_total(problem)


def sees_time(problem: Problem) -> bool:
    """Whether what is left of an episode depends on the time: not where it goes on for ever."""
    return not goes_on(problem)


def ends(problem: Problem, batch: Transition) -> Array:
    """After which steps nothing counts any more, so that nothing bootstraps."""
    return batch.terminated if goes_on(problem) else batch.ended


def effective_steps(discount: float, steps: int) -> float:
    """Σ_{t<T} γ^t: how many steps a discounted sum over T of them amounts to."""
    return float(steps) if discount == 1.0 else (1.0 - discount**steps) / (1.0 - discount)


def most_steps(problem: Problem, discount: float) -> float:
    """How many steps a sum with this discount can amount to, from any step on."""
    if goes_on(problem) and discount < 1.0:
        return 1.0 / (1.0 - discount)
    return effective_steps(discount, problem.horizon)


def signals(batch: Transition) -> Float[Array, "T N K"]:
    """The reward, then the costs."""
    return jnp.concatenate([batch.reward[..., None], batch.cost], axis=-1)


def stationary(problem: Problem) -> Problem:
    """The problem as single transitions can tell it, for learners that know a step and not its episode.

    A total over T steps after which the environment goes on unwatched is no function of the state. In its place stands
    the cost discounted like the reward, against the same share of the limit, Σ γ^t / T. A policy that costs as much in
    every step keeps both limits or neither. Return and cost shrink by the same share, so that the multiplier dR/dC is
    the same in both problems.
    """
    gamma, steps = problem.discount, problem.horizon
    if not (is_total(problem) and problem.truncates) or gamma == 1.0:
        return problem
    share = effective_steps(gamma, steps) / steps
    return dataclasses.replace(problem, cost_discount=gamma, limits=tuple(share * limit for limit in problem.limits))


def total_share(problem: Problem) -> float:
    """What a total of 1 has become in the `stationary` problem."""
    gamma = problem.discount
    if not (is_total(problem) and problem.truncates) or gamma == 1.0:
        return 1.0
    return effective_steps(gamma, problem.horizon) / problem.horizon


def observable(batch: Transition) -> Int[Array, "T N"]:
    """n_t at each step: how many episodes began early enough for their step of this index to be in the batch."""
    begun = jnp.cumsum(jnp.sum(batch.step == 0, axis=1))
    return begun[batch.step.shape[0] - 1 - batch.step]


def step_weights(problem: Problem, batch: Transition) -> Float[Array, "T N"]:
    """w_t / n_t: what each step counts in the sums of one episode, and in their gradients."""
    discount = 1.0 if is_total(problem) else problem.discount
    return discount**batch.step / observable(batch)


class Measurement(eqx.Module):
    """What a batch says of the policy that drew it; the sums of one episode, and their standard errors."""

    objective: Float[Array, ""]
    """R(π), as the problem means it."""
    objective_error: Float[Array, ""]
    cost: Float[Array, " M"]
    """C(π), as the limits mean it."""
    cost_error: Float[Array, " M"]
    undiscounted_return: Float[Array, ""]
    discounted_return: Float[Array, ""]
    undiscounted_cost: Float[Array, " M"]
    length: Float[Array, ""]
    """Steps of an episode."""
    episodes: Float[Array, ""]
    """Episodes that began in the batch."""

    @property
    def cost_deviation(self) -> Float[Array, " M"]:
        """How far the cost of one episode is from the mean."""
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
    """The mean plain sum of what the environment itself paid in an episode, where a wrapper pays otherwise."""
    paid = batch.reward if batch.plain_reward is None else batch.plain_reward
    return _episode_means(batch, paid[..., None], jnp.ones(1))[0][0]


def _episode_means(
    batch: Transition, signal: Float[Array, "T N K"], factors: Float[Array, " K"]
) -> tuple[Float[Array, " K"], Float[Array, " K"]]:
    """The mean over episodes of Σ_t factor^t x_t, each step averaged over those that reach the batch's end or beyond.

    The standard error follows from how far each episode is from what was to be expected of one that began when it did.
    """
    steps = batch.step.shape[0]
    begins = batch.step == 0
    begun = jnp.cumsum(jnp.sum(begins, axis=1))
    episodes = jnp.sum(begins).astype(signal.dtype)
    # Where every episode could be seen to its end the ratio is 1, and a mean is the plain one to the last digit.
    ratio = episodes / begun[steps - 1 - batch.step]
    weighted = ratio[..., None] * factors[None, None] ** batch.step[..., None] * signal
    # What an episode's step of index t adds on average, and what one that began at a given time adds in all.
    by_index = jax.ops.segment_sum(weighted.reshape(-1, signal.shape[-1]), batch.step.reshape(-1), num_segments=steps)
    expected = jnp.cumsum(by_index / begun[::-1][:, None].clip(1), axis=0)[::-1]
    mean = jnp.sum(weighted, axis=(0, 1)) / episodes
    # From each step to the end of its episode or of the batch, so that at its first step all that was seen of it.
    seen = episode_totals(weighted, batch.ended, jnp.ones_like(factors))
    residual = jnp.where(begins[..., None], seen - expected[:, None], 0.0)
    squares = jnp.sum(jnp.square(residual), axis=(0, 1)) / jnp.square(episodes)
    error = jnp.sqrt(squares * episodes / jnp.maximum(episodes - 1.0, 1.0))
    # A single episode says nothing of its own error.
    return mean, jnp.where(episodes > 1.0, error, jnp.abs(mean))
