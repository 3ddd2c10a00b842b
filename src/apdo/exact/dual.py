"""The dual function of a finite CMDP.

    g(λ) = max_π R(π) - Σ_i λ_i (C_i(π) - d_i)

For fixed λ this is an ordinary Markov decision process with reward r - Σ λ_i c_i, which is solved by policy iteration.
g is the maximum of linear functions of λ, one for each deterministic policy, so it is convex and piecewise linear. For
any policy π_λ that attains the maximum, d - C(π_λ) is a subgradient of g.
"""

import dataclasses

import numpy as np
from numpy.typing import ArrayLike, NDArray

from apdo.errors import InvalidInput, NumericalFailure
from apdo.exact.chain import Chain
from apdo.exact.evaluation import deterministic, evaluate
from apdo.finite import FiniteCMDP, Floats

TIE = 1e-12
"""Advantages below this, relative to the values, count as rounding errors."""
ROUNDS = 1000


@dataclasses.dataclass(frozen=True, eq=False)
class DualPoint:
    """The dual function at one λ."""

    value: float
    """g(λ)."""
    subgradient: Floats
    """[M]: d - C(π_λ). Dual ascent, λ + β (C - d), moves in the opposite direction."""
    policy: Floats
    """[S, A]: π_λ, which is deterministic, and optimal from every state for the reward r - Σ λ_i c_i."""
    gain: float
    """R(π_λ)."""
    costs: Floats
    """[M]: C(π_λ)."""
    state_values: Floats
    """[S]: the optimal values of that reward."""


def lagrangian(cmdp: FiniteCMDP, multipliers: ArrayLike) -> DualPoint:
    """g(λ), a policy that attains it and a subgradient."""
    prices = np.asarray(multipliers, dtype=np.float64)
    if prices.shape != cmdp.limits.shape or not np.isfinite(prices).all() or (prices < 0).any():
        raise InvalidInput(
            f"multipliers are {cmdp.constraints} finite numbers of at least 0 here, and {multipliers} were given."
        )
    actions, values = improve(cmdp, priced(cmdp, prices))
    policy = deterministic(actions, cmdp.actions)
    found = evaluate(cmdp, policy)
    return DualPoint(
        value=float(cmdp.start @ values + prices @ cmdp.limits),
        subgradient=cmdp.limits - found.costs,
        policy=policy,
        gain=found.value,
        costs=found.costs,
        state_values=values,
    )


def priced(cmdp: FiniteCMDP, prices: Floats) -> Floats:
    """[S, A]: r - Σ λ_i c_i."""
    return cmdp.reward - np.tensordot(prices, cmdp.cost, axes=1)


def improve(
    cmdp: FiniteCMDP, reward: Floats, actions: NDArray[np.intp] | None = None
) -> tuple[NDArray[np.intp], Floats]:
    """Policy iteration for a reward [S, A], started from given actions [S]: optimal actions and their values [S]."""
    every = np.arange(cmdp.states)
    chosen = np.argmax(reward, axis=1) if actions is None else actions
    before = -np.inf
    for _ in range(ROUNDS):
        values = Chain(cmdp, deterministic(chosen, cmdp.actions)).values(reward[every, chosen])
        scale = max(np.abs(values).max(), np.abs(reward).max(), 1e-300)
        advantage = backup(cmdp, reward, values)
        best = np.argmax(advantage, axis=1)
        better = advantage[every, best] > advantage[every, chosen] + TIE * scale
        # In exact arithmetic the values rise in every round. If they do not, the differences are rounding errors.
        if not better.any() or values.sum() <= before:
            return chosen, values
        before = values.sum()
        chosen = np.where(better, best, chosen)
    raise NumericalFailure(f"policy iteration did not settle within {ROUNDS} rounds.")


def backup(cmdp: FiniteCMDP, reward: Floats, values: Floats) -> Floats:
    """[S, A]: r + γ P v."""
    return reward + cmdp.discount * (cmdp.transition @ values).reshape(reward.shape)


def longest(cmdp: FiniteCMDP) -> float:
    """The largest expected number of discounted steps of an episode, over all states and policies."""
    if cmdp.discount < 1:
        return 1 / (1 - cmdp.discount)
    _, steps = improve(cmdp, np.ones_like(cmdp.reward))
    return float(steps.max())
