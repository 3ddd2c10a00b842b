"""The numbers of docs/theory.md: how fast dual ascent finds λ* on finite CMDPs, and what a good estimate of it saves.

`make theory` (two cores, ten minutes) writes results/theory/*.json, theory.png, theory.svg and a table of the document.
The matrices are small: one BLAS thread, OPENBLAS_NUM_THREADS=1, is several times faster than two.

Everything is computed exactly, with dense linear algebra on small problems: policies are arrays, returns and costs are
linear solves, nothing is sampled. The one exception is the off-policy estimate of λ*. It is the exact optimum of the
model that is counted from sampled transitions: the best that any off-policy learner could make of these data, without
luck.
"""

import argparse
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from apdo import exact
from apdo.finite import FiniteCMDP, fold_time
from benchmarks import document, provenance
from benchmarks import exact as problems

OUT = Path("results/theory")
DOCUMENT = Path("docs/theory.md")
Floats = NDArray[np.float64]


# Problems.


class Model:
    """A small CMDP with dense arrays and its optimum."""

    def __init__(self, name: str, cmdp: FiniteCMDP) -> None:
        self.name, self.cmdp, self.moves = name, cmdp, cmdp.dense()
        self.optimum = exact.solve(cmdp)
        assert self.optimum.certificate.holds
        # λ* is a single point and not on the boundary, as the statements on sharpness assume.
        assert self.optimum.unique
        assert (self.optimum.multipliers > 0).all()
        self.best = self.optimum.multipliers
        self._known: dict[bytes, tuple[float, Floats]] = {}

    def sums(self, policy: Floats) -> tuple[float, Floats, Floats]:
        """R, C and the occupancy of a policy."""
        chain = np.einsum("sa,sat->st", policy, self.moves)
        visits = np.linalg.solve((np.eye(len(chain)) - self.cmdp.discount * chain).T, self.cmdp.start)
        occupancy = visits[:, None] * policy
        return float(np.sum(occupancy * self.cmdp.reward)), np.sum(occupancy * self.cmdp.cost, axis=(1, 2)), occupancy

    def advantage(self, policy: Floats, prices: Floats) -> Floats:
        """[S, A]: of r - Σ λ_i c_i under the policy."""
        reward = self.cmdp.reward - np.tensordot(prices, self.cmdp.cost, axes=1)
        chain = np.einsum("sa,sat->st", policy, self.moves)
        value = np.linalg.solve(np.eye(len(chain)) - self.cmdp.discount * chain, np.sum(policy * reward, axis=1))
        return reward + self.cmdp.discount * self.moves @ value - value[:, None]

    def maximise(self, prices: Floats, policy: Floats) -> Floats:
        """Policy iteration: a policy that attains g(λ)."""
        while True:
            advantage = self.advantage(policy, prices)
            gain = advantage.max(axis=1) - np.sum(policy * advantage, axis=1)
            better = gain > 1e-11 * max(1.0, np.abs(advantage).max())
            if not better.any():
                return policy
            policy = np.where(better[:, None], np.eye(policy.shape[1])[advantage.argmax(axis=1)], policy)

    def line(self, policy: Floats) -> tuple[float, Floats]:
        """R and C - d of a deterministic policy."""
        key = policy.argmax(axis=1).tobytes()
        if key not in self._known:
            gain, costs, _ = self.sums(policy)
            self._known[key] = gain, costs - self.cmdp.limits
        return self._known[key]

    def uniform(self) -> Floats:
        return np.full(self.cmdp.reward.shape, 1 / self.cmdp.actions)


def models() -> list[Model]:
    def between(cmdp: FiniteCMDP, price: float, share: float) -> FiniteCMDP:
        m = cmdp.constraints
        free, careful = (exact.lagrangian(cmdp, np.full(m, p)).costs for p in (0.0, price))
        return cmdp.with_limits(free + share * (careful - free))

    return [
        Model("work or rest", work_or_rest()),
        Model("random, one constraint", between(problems.garnet(20, 4, 5, 1, 0.9), 3.0, 0.5)),
        Model("random, two constraints", between(problems.garnet(20, 4, 5, 2, 0.9), 1.0, 0.5)),
        Model("folded grid", between(grid(), 3.0, 0.5)),
    ]


def work_or_rest() -> FiniteCMDP:
    """Two states in closed form: R = C = x, the discounted number of times that work is chosen, up to 1 / (1 - γ²)."""
    moves = np.zeros((2, 2, 2))
    moves[0, 0, 0] = moves[0, 1, 1] = moves[1, :, 0] = 1.0
    work = np.asarray([[0.0, 1.0], [0.0, 0.0]])
    return FiniteCMDP.of(moves, work, work[None], [1.0, 0.0], 0.8, [1.0])


def grid(side: int = 4, horizon: int = 8) -> FiniteCMDP:
    """From one corner to the next along the lower edge. The cells between them cost 1 each; the way around costs
    nothing.

    A step goes astray with probability 0.1. The goal pays 10 and ends the episode. Time is folded into the state.
    """
    states = side * side
    row, column = np.divmod(np.arange(states), side)
    steps = [(0, 1), (0, -1), (1, 0), (-1, 0)]
    to = [np.clip(row + d, 0, side - 1) * side + np.clip(column + e, 0, side - 1) for d, e in steps]
    moves = np.zeros((states, 4, states))
    for action in range(4):
        for other in range(4):
            moves[np.arange(states), action, to[other]] += 0.025 + 0.9 * (action == other)
    goal = side - 1
    reach = moves[:, :, goal].copy()
    moves[:, :, goal] = 0.0
    hazard = ((row == 0) & (column > 0) & (column < side - 1)).astype(float)
    cost = np.repeat(hazard[:, None], 4, axis=1)
    cmdp = FiniteCMDP.of(moves, 10 * reach, cost[None], np.eye(states)[0], 0.95, [1.0], ending=reach)
    return fold_time(cmdp, horizon)


# The dual function.


def pieces(model: Model, top: float) -> list[tuple[float, float, float]]:
    """The linear pieces of g between 0 and top, for one constraint: where each begins, and R and C - d on it."""

    def at(price: float) -> tuple[float, float]:
        gain, excess = model.line(model.maximise(np.asarray([price]), model.uniform()))
        return gain, float(excess[0])

    def between(left: tuple[float, float], right: tuple[float, float]) -> list[tuple[float, float, float]]:
        if abs(left[1] - right[1]) < 1e-9:
            return []
        meet = (left[0] - right[0]) / (left[1] - right[1])
        middle = at(meet)
        if middle[0] - meet * middle[1] <= left[0] - meet * left[1] + 1e-9:
            return [(meet, *right)]
        return between(left, middle) + between(middle, right)

    first, last = at(0.0), at(top)
    return [(0.0, *first), *between(first, last)]


def slopes(found: list[tuple[float, float, float]], best: float) -> tuple[float, float]:
    """s₋ = C - d just below λ*, s₊ = d - C just above it."""
    below = [excess for begin, _, excess in found if begin < best - 1e-7][-1]
    above = [excess for begin, _, excess in found if begin <= best + 1e-7][-1]
    return below, -above


def time_between(found: list[tuple[float, float, float]], start: float, stop: float) -> float:
    """∫ dλ / |C(λ) - d| from start to stop: how long the flow dλ/dt = C(λ) - d takes."""
    low, high = sorted((start, stop))
    ends = [begin for begin, _, _ in found[1:]] + [np.inf]
    parts = zip(found, ends, strict=True)
    return sum(max(0.0, min(high, end) - max(low, begin)) / abs(excess) for (begin, _, excess), end in parts)


def sharpness(model: Model) -> float:
    """μ: g(λ) - g(λ*) ≥ μ ‖λ - λ*‖ for every λ ≥ 0, from the directional derivatives of g at λ*."""
    m, size = len(model.best), 1e-4
    if m == 1:
        directions = np.asarray([[1.0], [-1.0]])
    else:
        angle = np.linspace(0, 2 * np.pi, 721)[:-1]
        directions = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    found = []
    for direction in directions:
        # g is linear over a short distance from λ*, so that the difference quotient is the derivative.
        prices = model.best + size * direction
        gain, excess = model.line(model.maximise(prices, model.uniform()))
        found.append((gain - prices @ excess - model.optimum.value) / size)
    return float(min(found))


# Dual ascent.


@dataclasses.dataclass
class Course:
    """The course of an algorithm: one row per epoch."""

    prices: Floats
    excess: Floats
    gains: Floats
    widths: Floats


def ascend(model: Model, step: float, start: Floats, epochs: int) -> tuple[Floats, float]:
    """λ of PDO with exact inner maximisation, [epochs + 1, M], and the largest ‖C - d‖ on the way."""
    prices, policy, path, largest = start.copy(), model.uniform(), [start.copy()], 0.0
    for _ in range(epochs):
        policy = model.maximise(prices, policy)
        excess = model.line(policy)[1]
        prices = np.maximum(prices + step * excess, 0.0)
        path.append(prices)
        largest = max(largest, float(np.linalg.norm(excess)))
    return np.stack(path), largest


def primal_dual(
    model: Model,
    step: float,
    start: Floats,
    epochs: int,
    improve: Callable[[Floats, Floats, Floats], Floats],
    policy: Floats | None = None,
    adjust: tuple[int, Floats] | None = None,
) -> Course:
    """PDO whose policy moves by bounded steps; `adjust` replaces λ after an epoch, as APDO does."""
    prices, policy = start.copy(), model.uniform() if policy is None else policy
    rows = []
    for k in range(epochs):
        gain, costs, occupancy = model.sums(policy)
        advantage = model.advantage(policy, prices)
        rows.append((prices, costs - model.cmdp.limits, gain, np.ptp(advantage, axis=1).max()))
        policy = improve(policy, advantage, occupancy)
        prices = np.maximum(prices + step * (costs - model.cmdp.limits), 0.0)
        if adjust is not None and k == adjust[0]:
            prices = adjust[1]
    return Course(*(np.asarray(column) for column in zip(*rows, strict=True)))


def mirror(rate: float) -> Callable[[Floats, Floats, Floats], Floats]:
    """π ∝ π exp(η A): the natural gradient of a table of logits, with a fixed rate."""

    def improve(policy: Floats, advantage: Floats, occupancy: Floats) -> Floats:  # noqa: ARG001
        return tilt(policy, advantage, rate, least=0.0)

    return improve


def trust_region(bound: float) -> Callable[[Floats, Floats, Floats], Floats]:
    """The same with a rate for which the mean KL over the visited states equals the bound, like TRPO's step."""

    def improve(policy: Floats, advantage: Floats, occupancy: Floats) -> Floats:
        visits = occupancy.sum(axis=1)
        visits = visits / visits.sum()
        low, high = 0.0, 1e4 / max(np.abs(advantage).max(), 1e-12)
        if divergence(policy, tilt(policy, advantage, high), visits) <= bound:
            return tilt(policy, advantage, high)
        for _ in range(50):
            middle = (low + high) / 2 if low else high / 8
            if divergence(policy, tilt(policy, advantage, middle), visits) <= bound:
                low = middle
            else:
                high = middle
            if low and high - low < 1e-3 * low:
                break
        return tilt(policy, advantage, low)

    return improve


def tilt(policy: Floats, advantage: Floats, rate: float, least: float = 1e-12) -> Floats:
    """π exp(η A), normalised. A least probability makes sure that rounding does not give up an action for good."""
    logits = np.log(np.maximum(policy, 1e-300)) + rate * advantage
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    weights = np.maximum(weights / weights.sum(axis=1, keepdims=True), least)
    return weights / weights.sum(axis=1, keepdims=True)


def divergence(old: Floats, new: Floats, visits: Floats) -> float:
    return float(visits @ np.sum(old * (np.log(old) - np.log(new)), axis=1))


def settled(path: Floats, best: Floats, within: float) -> int | None:
    """The first epoch from which λ stays within a distance of λ*, if that holds for at least the last 50 epochs."""
    far = np.flatnonzero(np.linalg.norm(path - best, axis=1) > within)
    first = 0 if not len(far) else int(far[-1]) + 1
    return first if first <= len(path) - 50 else None


def reached(path: Floats, best: Floats, within: float) -> int | None:
    near = np.flatnonzero(np.linalg.norm(path - best, axis=1) <= within)
    return int(near[0]) if len(near) else None


# Off-policy estimates.


def sample(model: Model, policy: Floats, count: int, rng: np.random.Generator) -> Floats:
    """[S, A, S + 1]: counts of transitions from the visits of a policy; the last column is the end."""
    _, _, occupancy = model.sums(policy)
    share = np.maximum(occupancy, 0.0)
    pairs = rng.multinomial(count, (share / share.sum()).reshape(-1)).reshape(share.shape)
    ways = np.concatenate([model.moves, model.cmdp.ending[..., None]], axis=2)
    ways = np.maximum(ways, 0.0) / ways.sum(axis=2, keepdims=True)
    return rng.multinomial(pairs, ways).astype(np.float64)


def estimate(model: Model, counts: Floats) -> Floats | None:
    """λ* of the model with these counts. In it, an action that was never tried ends the episode. None if infeasible."""
    tried = counts.sum(axis=2)
    chance = counts / np.maximum(tried, 1.0)[..., None]
    ending = np.where(tried > 0, chance[..., -1], 1.0)
    known = (tried > 0).astype(np.float64)
    cmdp = model.cmdp
    guess = FiniteCMDP.of(
        chance[..., :-1],
        cmdp.reward * known,
        cmdp.cost * known,
        cmdp.start,
        cmdp.discount,
        cmdp.limits,
        ending=ending,
    )
    try:
        return exact.solve(guess).multipliers
    except exact.Infeasible:
        return None


# Experiments, each a statement of docs/theory.md.


def shape(model: Model) -> dict[str, object]:
    """Statement 1."""
    facts: dict[str, object] = {
        "problem": model.name,
        "states": model.cmdp.states,
        "actions": model.cmdp.actions,
        "multipliers": model.best.tolist(),
        "value": model.optimum.value,
        "limits": model.cmdp.limits.tolist(),
        "sharpness": sharpness(model),
        "excess_at_zero": model.line(model.maximise(np.zeros_like(model.best), model.uniform()))[1].tolist(),
    }
    if len(model.best) == 1:
        found = pieces(model, 3 * model.best[0])
        below, above = slopes(found, model.best[0])
        facts |= {
            "breakpoints": [begin for begin, _, _ in found[1:]],
            "excess": [excess for _, _, excess in found],
            "slope_below": below,
            "slope_above": above,
        }
    return facts


def steps(model: Model) -> list[dict[str, object]]:
    """Statements 2 and 3: epochs of exact dual ascent from several starts, next to the bounds."""
    size = float(np.linalg.norm(model.best))
    within, mu, rows = 0.05 * size, sharpness(model), []
    starts = {"0": 0.0, "-50 %": 0.5, "-20 %": 0.8, "+20 %": 1.2, "+50 %": 1.5, "+100 %": 2.0}
    ends = [model.line(model.maximise(factor * model.best, model.uniform()))[1] for factor in (0.0, 2.0)]
    largest = float(max(np.linalg.norm(excess) for excess in ends))
    found = pieces(model, 3 * model.best[0]) if len(model.best) == 1 else None
    for part in (1.0, 0.1) if found is not None else (1.0,):
        step = part * (within / largest if found is not None else mu * within / largest**2)
        for name, factor in starts.items():
            start = factor * model.best
            error = float(np.linalg.norm(start - model.best))
            general = 2 * max(error - within, 0.0) / (step * mu)
            facts: dict[str, object] = {"problem": model.name, "start": name, "step": step, "within": within}
            if found is not None:
                edge = model.best[0] + np.sign(factor - 1) * within
                speed = slopes(found, model.best[0])[0 if factor < 1 else 1]
                facts |= {
                    "bound_flow": 1 + time_between(found, start[0], edge) / step,
                    "bound_slope": max(error - within, 0.0) / (step * speed) + 1,
                }
            path, most = ascend(model, step, start, int(1.2 * general) + 100)
            facts |= {
                "bound_sharpness": general + 1,
                "sharpness_applies": bool(step * most**2 <= mu * within * (1 + 1e-9)),
                "reached": reached(path, model.best, within * (1 + 1e-9)),
                "settled": settled(path, model.best, within * (1 + 1e-9)),
                "settled_twice": settled(path, model.best, 2 * within),
            }
            rows.append(facts)
    return rows


def averages(model: Model, lengths: tuple[int, ...] = (100, 1000, 10_000)) -> list[dict[str, object]]:
    """Statement 4: mirror descent with fixed rates, and the bound on the mean multiplier."""
    rows, mu, actions = [], sharpness(model), model.cmdp.actions
    width = float(np.ptp(model.advantage(model.uniform(), np.zeros_like(model.best)), axis=1).max())
    excess = float(np.linalg.norm(model.line(model.maximise(np.zeros_like(model.best), model.uniform()))[1]))
    for name, start in {"0": np.zeros_like(model.best), "λ*": model.best}.items():
        for length in lengths:
            rate = np.sqrt(8 * np.log(actions) / length) / width
            step = float(np.linalg.norm(model.best)) / (excess * np.sqrt(length))
            course = primal_dual(model, step, start, length, mirror(rate))
            mean = course.prices.mean(axis=0)
            visits = model.sums(model.maximise(mean, model.uniform()))[2].sum()
            squares = np.sum(course.excess**2, axis=1).mean()
            terms = {
                "primal": visits * np.log(actions) / (rate * length),
                "dual": float(np.sum((start - model.best) ** 2)) / (2 * step * length),
                "primal_noise": rate * float(np.mean(course.widths**2)) * visits / 8,
                "dual_noise": step * squares / 2,
            }
            bound = sum(terms.values())
            gap = exact.lagrangian(model.cmdp, mean).value - model.optimum.value
            error = float(np.linalg.norm(mean - model.best))
            facts = {"problem": model.name, "start": name, "epochs": length, "rate": rate, "step": step}
            facts |= {"gap": gap, "gap_bound": bound, "error": error, "error_bound": bound / mu, "terms": terms}
            facts |= {"last_error": float(np.linalg.norm(course.prices[-1] - model.best))}
            rows.append(facts)
    return rows


def cycles(model: Model, epochs: int = 600) -> list[dict[str, object]]:
    """Statement 5: the last multipliers with steps of bounded KL."""
    rows, size = [], float(np.linalg.norm(model.best))
    for bound in (0.01, 0.1):
        for step in (0.01, 0.1):
            for name, start in {"0": np.zeros_like(model.best), "λ*": model.best}.items():
                course = primal_dual(model, step, start, epochs, trust_region(bound))
                late = course.prices[epochs // 2 :]
                rows.append(
                    {
                        "problem": model.name,
                        "kl": bound,
                        "step": step,
                        "start": name,
                        "settled_10%": settled(course.prices, model.best, 0.1 * size),
                        "farthest": float(np.linalg.norm(course.prices - model.best, axis=1).max()) / size,
                        "late_farthest": float(np.linalg.norm(late - model.best, axis=1).max()) / size,
                        "late_mean_error": float(np.linalg.norm(late.mean(axis=0) - model.best)) / size,
                        "late_return_gap": float(course.gains[epochs // 2 :].mean() - model.optimum.value),
                    }
                )
    return rows


def adjustments(model: Model, step: float, bound: float, batch: int, seeds: int, epochs: int) -> dict[str, object]:
    """Statement 6: APDO's total epochs against K_adj."""
    size = float(np.linalg.norm(model.best))
    within, zero = 0.1 * size, np.zeros_like(model.best)
    plain = primal_dual(model, step, zero, epochs, trust_region(bound))
    policies = list(_policies(model, step, max(KS) + 1, bound))
    exact_step = 0.5 * within / float(np.linalg.norm(model.line(model.maximise(zero, model.uniform()))[1]))
    alone = settled(ascend(model, exact_step, zero, 600)[0], model.best, within)
    rows = []
    for seed in range(seeds):
        rng, counts = np.random.default_rng(seed), np.zeros((*model.cmdp.reward.shape, model.cmdp.states + 1))
        for k, policy in enumerate(policies):
            counts += sample(model, policy, batch, rng)
            if k not in KS:
                continue
            guess = estimate(model, counts)
            if guess is None:
                rows.append({"k_adj": k, "seed": seed, "error": None})
                continue
            course = primal_dual(model, step, zero, epochs, trust_region(bound), adjust=(k, guess))
            after = settled(ascend(model, exact_step, guess, 600)[0], model.best, within)
            rows.append(
                {
                    "k_adj": k,
                    "seed": seed,
                    "error": float(np.linalg.norm(guess - model.best)) / size,
                    "settled": settled(course.prices, model.best, within),
                    "settled_exact": None if after is None else k + 1 + after,
                }
            )
    return {
        "problem": model.name,
        "step": step,
        "kl": bound,
        "batch": batch,
        "epochs": epochs,
        "exact_step": exact_step,
        "pdo": settled(plain.prices, model.best, within),
        "pdo_exact": alone,
        "rows": rows,
    }


KS = (0, 1, 2, 5, 10, 20, 40)
"""K_adj tried."""


def _policies(model: Model, step: float, count: int, bound: float) -> list[Floats]:
    """π_0, π_1, ... of PDO."""
    prices, policy, made, improve = np.zeros_like(model.best), model.uniform(), [], trust_region(bound)
    for _ in range(count):
        made.append(policy)
        _, costs, occupancy = model.sums(policy)
        policy = improve(policy, model.advantage(policy, prices), occupancy)
        prices = np.maximum(prices + step * (costs - model.cmdp.limits), 0.0)
    return made


# Results.


def picture(found: list[Model], steps_: list[dict], adjusted: list[dict]) -> None:
    """Dual functions, epochs of exact ascent and their bound, cycles of the last multiplier, total epochs of APDO."""
    import matplotlib
    from matplotlib.figure import Figure

    from apdo.report.plot import COLOURS, LOOK, write

    colours = dict(zip([model.name for model in found], COLOURS, strict=False))
    with matplotlib.rc_context(LOOK):
        figure = Figure(figsize=(11, 7.6), layout="constrained")
        (shapes, ascents), (courses, totals) = figure.subplots(2, 2)
        for model in found:
            ray = np.linspace(0, 2.5, 251)
            values = [exact.lagrangian(model.cmdp, factor * model.best).value for factor in ray]
            rise = (np.asarray(values) - model.optimum.value) / model.optimum.value
            shapes.plot(ray, 100 * rise, color=colours[model.name], label=model.name, linewidth=1.7)
        shapes.set_ylim(-0.5, 30)
        shapes.set(xlabel="λ / λ*", ylabel="g(λ) above its least, %")
        shapes.set_title("1  The dual function along the ray through λ*", loc="left", fontweight="bold")
        shapes.legend(frameon=False, loc="upper right", fontsize=8)
        for row in steps_:
            if "bound_flow" in row:
                ascents.plot(row["bound_flow"], row["reached"], "o", color=colours[row["problem"]], markersize=4.5)
            else:
                ascents.plot(row["bound_sharpness"], row["reached"], "^", color=colours[row["problem"]], markersize=4.5)
        ascents.plot([3, 1e4], [3, 1e4], color="#777777", linewidth=1, linestyle=(0, (5, 3)))
        ascents.set(xscale="log", yscale="log", xlabel="bound (○ flow, △ sharpness)", ylabel="epochs measured")
        ascents.xaxis.set_major_formatter("{x:g}")
        ascents.yaxis.set_major_formatter("{x:g}")
        ascents.set_title("2, 3  Epochs of exact dual ascent to within 5 %", loc="left", fontweight="bold")
        model = found[0]
        for step, style in ((0.1, "-"), (0.01, (0, (1, 1.1)))):
            for start, colour in ((np.zeros(1), COLOURS[0]), (model.best, COLOURS[1])):
                course = primal_dual(model, step, start, 300, trust_region(0.01))
                name = f"from {'0' if not start.any() else 'λ*'}, β = {step:g}"
                courses.plot(course.prices[:, 0], color=colour, linestyle=style, linewidth=1.5, label=name)
        courses.set(xlabel="epoch", ylabel="λ", ylim=(0, 2.9))
        courses.legend(frameon=False, ncols=2, loc="upper right", fontsize=8)
        courses.set_title(f"5  {model.name.capitalize()}, steps of KL 0.01", loc="left", fontweight="bold")
        for result in adjusted:
            medians = [median_epochs(result, k) for k in KS]
            colour = colours[result["problem"]]
            totals.plot(KS, medians, "o-", color=colour, linewidth=1.7, markersize=4)
            totals.axhline(result["pdo"], color=colour, linestyle=(0, (5, 3)), linewidth=1.1)
        totals.set(xscale="symlog", yscale="log", xlabel="K_adj", ylabel="epochs until λ stays within 10 %")
        totals.yaxis.set_major_formatter("{x:g}")
        totals.set_xlim(-0.3, 50)
        totals.set_xticks(KS, [str(k) for k in KS])
        totals.set_title("6  APDO (median of 8; gap: never) and PDO (dashed)", loc="left", fontweight="bold")
        write(figure, OUT / "theory")


def median_epochs(result: dict, k_adj: int, of: str = "settled") -> float:
    """The median epoch of settling over the seeds; infinite where half of them or more never settle."""
    found = [row.get(of) for row in result["rows"] if row["k_adj"] == k_adj]
    return float(np.median([np.inf if epoch is None else epoch for epoch in found]))


def adjustments_table(adjusted: list[dict]) -> str:
    """Statement 6 in the document: errors of λ^OFF and epochs by K_adj, medians over the seeds."""
    rows = []
    for result in adjusted:
        cases = {k: [row["error"] for row in result["rows"] if row["k_adj"] == k] for k in KS}
        errors = [np.median([np.inf if error is None else error for error in cases[k]]) for k in KS]
        rows.append([result["problem"], "error of λ^OFF", "100 %", *(f"{100 * error:.0f} %" for error in errors)])
        for title, plain, of in (
            (f"epochs, δ = {result['kl']:g}", "pdo", "settled"),
            ("epochs, exact maximisation", "pdo_exact", "settled_exact"),
        ):
            epochs = [result[plain], *(median_epochs(result, k, of) for k in KS)]
            rows.append(["", title, *("never" if np.isinf(epoch) else f"{epoch:.0f}" for epoch in epochs)])
    heading = ["problem", "", "PDO", *(f"K_adj {k}" for k in KS)]
    return document.table(heading, *rows).replace("|  |", "| |")


def save(name: str, rows: object) -> None:
    (OUT / f"{name}.json").write_text(json.dumps(provenance.stamped({"rows": rows}), indent=1, default=float) + "\n")


def saved(name: str) -> list[dict]:
    """What `save` wrote, or an earlier version without its provenance."""
    found = json.loads((OUT / f"{name}.json").read_text())
    return found if isinstance(found, list) else found["rows"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8, help="estimates of λ* for each K_adj")
    parser.add_argument("--picture", action="store_true", help="only the picture and the table, from the results")
    given = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    found = models()
    if given.picture:
        picture(found, *map(saved, ("steps", "adjustments")))
        document.fill(DOCUMENT, {"adjustments": adjustments_table(saved("adjustments"))})
        return
    save("shape", [shape(model) for model in found])
    print("shape", flush=True)
    taken = [row for model in found for row in steps(model)]
    save("steps", taken)
    print("steps", flush=True)
    save("averages", [row for model in found[:3] for row in averages(model)])
    print("averages", flush=True)
    save("cycles", [row for model in found for row in cycles(model)])
    print("cycles", flush=True)
    adjusted = [adjustments(model, 0.01, 0.01, 200, given.seeds, 450) for model in found]
    save("adjustments", adjusted)
    picture(found, taken, adjusted)
    document.fill(DOCUMENT, {"adjustments": adjustments_table(adjusted)})


if __name__ == "__main__":
    main()
