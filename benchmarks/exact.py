"""The time to solve finite CMDPs exactly, one JSON line per size and method.

`python -m benchmarks.exact` (two cores, about twenty minutes) prints the lines and writes results/speed/exact.jsonl.

Problems are random sparse ones (each action leads to 5 states at most, γ = 0.99, two constraints that both bind), a
walk on a grid with hazards, and the same with its time folded into the state. Methods are the decomposition, HiGHS on
the occupancy program (simplex, interior point with crossover; SciPy offers none without), and HiGHS on that program's
dual. Sizes grow until a method takes longer than --limit seconds.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import scipy
import scipy.sparse
from scipy.optimize import linprog

from apdo import exact
from apdo.errors import NumericalFailure
from apdo.exact import program
from apdo.finite import FiniteCMDP, fold_time
from benchmarks import provenance

OUT = Path("results/speed/exact.jsonl")


def garnet(
    states: int, actions: int = 10, branches: int = 5, constraints: int = 2, discount: float = 0.99
) -> FiniteCMDP:
    rng = np.random.default_rng(states)
    rows = states * actions
    to, weights = rng.integers(0, states, (rows, branches)), rng.dirichlet(np.ones(branches), rows)
    places = (np.repeat(np.arange(rows), branches), to.reshape(-1))
    return FiniteCMDP.of(
        scipy.sparse.coo_array((weights.reshape(-1), places), shape=(rows, states)),
        rng.uniform(size=(states, actions)),
        rng.uniform(size=(constraints, states, actions)),
        np.full(states, 1 / states),
        discount,
        np.full(constraints, 0.33) / (1 - discount),
    )


def grid(side: int, discount: float = 0.99) -> FiniteCMDP:
    """Walk from the left edge to the right. The goal column pays a prize in each step; hazards in the middle cost."""
    rng = np.random.default_rng(side)
    states = side * side
    row, column = np.divmod(np.arange(states), side)
    moves = [(0, 1), (0, -1), (1, 0), (-1, 0)]
    to = np.stack([np.clip(row + d, 0, side - 1) * side + np.clip(column + e, 0, side - 1) for d, e in moves])
    # A step goes in its direction with probability 0.85, and otherwise in one of the four directions.
    chance = np.full((4, 4), 0.0375) + 0.85 * np.eye(4)
    rows = np.arange(states)[None, :, None] * 4 + np.arange(4)[:, None, None]
    places = (
        np.broadcast_to(rows, (4, states, 4)).reshape(-1),
        np.broadcast_to(to.T[None], (4, states, 4)).reshape(-1),
    )
    weights = np.broadcast_to(chance[:, None, :], (4, states, 4)).reshape(-1)
    hazard = (rng.uniform(size=states) < 0.25) & (column > 0) & (column < side - 1)
    prize = column == side - 1
    wear = np.broadcast_to(rng.uniform(size=(states, 1)) * (column < side - 1)[:, None], (states, 4))
    cmdp = FiniteCMDP.of(
        scipy.sparse.coo_array((weights, places), shape=(states * 4, states)),
        np.repeat(prize.astype(float)[:, None], 4, axis=1),
        np.stack([np.repeat(hazard.astype(float)[:, None], 4, axis=1), wear]),
        (column == 0) / side,
        discount,
        [1e9, 1e9],
    )
    return half_way(cmdp)


def half_way(cmdp: FiniteCMDP) -> FiniteCMDP:
    """Limits between the costs of the best policy and those of the best policy that pays a price for both costs."""
    free, careful = (exact.lagrangian(cmdp, [price, price]).costs for price in (0.0, 1.0))
    return cmdp.with_limits((free + careful) / 2)


def value_program(cmdp: FiniteCMDP, method: str, seconds: float) -> None:
    """The dual: min start·v + λ·d  subject to  v - γ P v + Σ λ_i c_i ≥ r."""
    states, actions = cmdp.reward.shape
    leave = scipy.sparse.kron(scipy.sparse.eye_array(states), np.ones((actions, 1)), format="csr")
    prices = scipy.sparse.csr_array(cmdp.cost.reshape(cmdp.constraints, -1).T)
    rows = scipy.sparse.hstack([leave - cmdp.discount * cmdp.transition, prices]).tocsr()
    found = linprog(
        np.r_[cmdp.start, cmdp.limits],
        A_ub=-rows,
        b_ub=-cmdp.reward.reshape(-1),
        bounds=[(None, None)] * states + [(0, None)] * cmdp.constraints,
        method=method,
        options={"time_limit": seconds},
    )
    if found.status != 0:
        raise NumericalFailure(found.message)


def measure(problem: str, method: str, cmdp: FiniteCMDP, work: Callable[[], object]) -> float:
    """Measure one problem and print its line; returns the seconds."""
    began = time.perf_counter()
    try:
        answer, finished = work(), True
    except NumericalFailure:
        answer, finished = None, False
    seconds = time.perf_counter() - began
    facts = {
        "figure": "exact optimum of a finite CMDP",
        "problem": problem,
        "method": method,
        "states": cmdp.states,
        "actions": cmdp.actions,
        "constraints": cmdp.constraints,
        "entries": int(cmdp.transition.nnz),
        "seconds": round(seconds, 3),
        "finished": finished,
        "cores": os.cpu_count(),
        "scipy": scipy.__version__,
    }
    if isinstance(answer, exact.Solution):
        proof = answer.certificate
        facts |= {
            "certificate": proof.holds,
            "relative_gap": abs(proof.gap) / proof.gap_scale,
            "binding": int((answer.multipliers > 0).sum()),
        }
    line = json.dumps(provenance.stamped(facts, ("scipy",)))
    print(line, flush=True)
    with OUT.open("a") as file:
        file.write(line + "\n")
    return seconds


def sweep(problem: str, sizes: Iterable[FiniteCMDP], limit: float, whole: bool) -> None:
    """Each method on each size until it takes longer than the limit."""
    given_up: set[str] = set()
    for cmdp in sizes:
        ways: dict[str, Callable[[], object]] = {"decomposition": lambda c=cmdp: exact.solve(c)}
        if whole:
            for method in program.METHODS:
                ways[f"occupancy program, {method}"] = lambda c=cmdp, m=method: program.occupancy(c, m, limit)
                ways[f"value program, {method}"] = lambda c=cmdp, m=method: value_program(c, m, limit)
        for name, work in ways.items():
            # Programs grow at least with the square of the size: a method that took a third of the limit ends here.
            if name not in given_up and measure(problem, name, cmdp, work) > limit / 3:
                given_up.add(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=float, default=100.0, help="seconds after which a method is given up")
    parser.add_argument("--largest", type=int, default=100_000, help="most states of a random problem")
    parser.add_argument("--decomposition", action="store_true", help="only the decomposition, keeping the other lines")
    given = parser.parse_args()
    whole = not given.decomposition
    OUT.parent.mkdir(parents=True, exist_ok=True)
    kept = [] if not given.decomposition or not OUT.exists() else OUT.read_text().splitlines(keepends=True)
    OUT.write_text("".join(line for line in kept if json.loads(line)["method"] != "decomposition"))
    sizes = [n for n in (100, 300, 1000, 3000, 10_000, 30_000, 100_000) if n <= given.largest]
    sweep("random", (garnet(n) for n in sizes), given.limit, whole)
    sweep("grid", (grid(n) for n in (10, 30, 100)), given.limit, whole)
    sweep("grid, 50 steps folded", (half_way(fold_time(grid(n), 50)) for n in (5, 14, 30)), given.limit, whole)


if __name__ == "__main__":
    main()
