"""An optimum in words, line by line."""

import numpy as np

from apdo.exact.solution import UNIQUE, Solution, mixed_states
from apdo.finite import FiniteCMDP, Floats

FEW = 30
"""The largest number of states for which the policy is written out."""


def describe(cmdp: FiniteCMDP, optimum: Solution) -> list[str]:
    """Value, costs, multipliers, policy and certificate of an optimum."""
    steps = optimum.occupancy.sum()
    return [
        f"{cmdp.states} states, {cmdp.actions} actions, {cmdp.constraints} constraints, discount {cmdp.discount:g}",
        f"optimal return {optimum.value:.6g}, over {steps:.6g} discounted steps",
        "",
        *(line for i in range(cmdp.constraints) for line in _price(cmdp, optimum, i)),
        *_policy(cmdp, optimum),
        "",
        *_proof(optimum),
    ]


def _price(cmdp: FiniteCMDP, optimum: Solution, i: int) -> list[str]:
    name, cost, limit = cmdp.cost_names[i], optimum.costs[i], cmdp.limits[i]
    low, high = optimum.multiplier_low[i], optimum.multiplier_high[i]
    binds = abs(cost - limit) <= 1e-6 * max(abs(limit), np.abs(cmdp.cost[i]).max())
    first = f"{name}: {cost:.6g} of at most {limit:.6g} ({'binds' if binds else 'slack'}), λ = "
    if high - low <= UNIQUE * (1 + low):
        price = optimum.multipliers[i]
        if price <= UNIQUE * 1e-2:
            return [f"{first}0", "  one more unit of limit is worth nothing", ""]
        return [
            f"{first}{price:.6g}",
            f"  one more unit of limit is worth {price:.6g} in return, at the margin",
            "",
        ]
    less = f"one unit less costs {high:.6g}" if np.isfinite(high) else "with any less no policy keeps the limits"
    ends = f"{low:.6g} to {high:.6g}" if np.isfinite(high) else f"{low:.6g} or more"
    worth = f"{low:.6g} in return" if low > UNIQUE * 1e-2 else "nothing"
    return [f"{first}{ends} (not unique)", f"  one more unit of limit is worth {worth}, {less}, at the margin", ""]


def _policy(cmdp: FiniteCMDP, optimum: Solution) -> list[str]:
    visits = optimum.occupancy.sum(axis=1)
    mixed = mixed_states(optimum.policy)
    head = f"policy: {cmdp.states - mixed} states with one action, {mixed} that draw between several"
    if cmdp.states > FEW:
        return [head, f"  {int((visits > 0).sum())} states are visited; the whole policy is among the results"]
    rows = [
        f"  state {s}: {_distribution(row)}" + ("" if visits[s] > 0 else "  (never visited)")
        for s, row in enumerate(optimum.policy)
    ]
    return [head, *rows]


def _distribution(row: Floats) -> str:
    likely = [a for a in np.argsort(-row, kind="stable") if row[a] > 1e-9]
    if len(likely) == 1:
        return f"action {likely[0]}"
    return ", ".join(f"action {a} with {row[a]:.4g}" for a in likely)


def _proof(optimum: Solution) -> list[str]:
    proof = optimum.certificate
    return [
        f"certificate: {'holds' if proof.holds else 'DOES NOT HOLD'} (tolerance {proof.tolerance:g}, relative)",
        f"  limits exceeded by at most {proof.primal_violation:.1e}",
        f"  dual constraints broken by at most {proof.dual_violation:.1e}",
        f"  no policy within the limits earns more than {abs(proof.gap):.1e} above this one",
    ]
