"""The curve of each multiplier rule, on problems with known λ*.

    make multiplier-rules                   seconds; JSON and pictures in results/multiplier-rules

Nothing is sampled: C(π_k) is the policy's exact cost, and the primal step is a natural-gradient step on the tabular
softmax policy with the exact advantages of r - λ c. The step has the same length in every run, so only the rules
differ.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from apdo import exact
from apdo.core import dual
from apdo.exact.chain import Chain
from apdo.finite import FiniteCMDP
from apdo.tasks.tabular import Garnet, TwoState
from benchmarks import provenance

RESULTS = Path("results/multiplier-rules")
PROBLEMS = {"two-state": ("two states", TwoState()), "garnet": ("Garnet", Garnet(instance=2))}
EPOCHS, SHOWN = 600, 3
"""The number of epochs, and the interval between epochs that are stored."""
PRIMAL_STEP = 0.5
GAIN = 1.0
"""What the proportional term adds at the largest excess over the limit, in units of λ*; an epoch of ascent adds 5 %."""
WITHIN = 0.02


def rules(optimum: float, excess: float) -> dict[str, tuple[dual.Config, float]]:
    """Each rule with its step. Adam's step is a length, not a factor on the excess."""
    proportional = GAIN * optimum / excess
    step = 0.05 * proportional
    return {
        "ascent": (dual.Ascent(), step),
        "ascent, decay 0.5": (dual.Ascent(decay=0.5), 4.0 * step),
        "PID": (dual.Pid(proportional=proportional, far=0.0, most=0.0), step),
        "Adam": (dual.Adam(), 0.02 * optimum),
        "ascent, at most 1.25 λ*": (dual.Ascent(most=1.25 * optimum), step),
        "PID, at most 0.75 λ*": (dual.Pid(proportional=proportional, far=0.0, most=0.75 * optimum), step),
    }


def improved(model: FiniteCMDP, logits: np.ndarray, price: np.ndarray) -> np.ndarray:
    """The logits after a natural-gradient step on R - λ C, whose direction is the advantage itself."""
    signal = model.reward - np.tensordot(price, model.cost, axes=1)
    policy = softmax(logits)
    values = Chain(model, policy).values(np.sum(policy * signal, axis=1))
    following = (model.transition @ values).reshape(model.reward.shape)
    advantage = signal + model.discount * following - values[:, None]
    # A probability that has almost vanished must be able to grow again.
    return np.clip(logits + PRIMAL_STEP * advantage, -12.0, 12.0)


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def follow(model: FiniteCMDP, rule: dual.Config, step: float) -> dict[str, Any]:
    """λ, return and cost, epoch by epoch."""
    logits, limit = np.zeros_like(model.reward), jnp.asarray(model.limits, dtype=jnp.float32)
    multiplier = dual.start(rule, jnp.zeros(model.constraints))
    update = jax.jit(lambda state, cost: dual.update(rule, state, cost - limit, step))
    path: dict[str, list[float]] = {"multiplier": [], "cost": [], "return": []}
    for _ in range(EPOCHS):
        found = exact.evaluate(model, softmax(logits))
        price = np.asarray(multiplier.value, dtype=np.float64)
        for name, value in (("multiplier", price[0]), ("cost", found.costs[0]), ("return", found.value)):
            path[name].append(round(float(value), 4))
        logits = improved(model, logits, price)
        multiplier = update(multiplier, jnp.asarray(found.costs, dtype=jnp.float32))
    return path


def measure(name: str) -> dict[str, Any]:
    """Every rule on one problem, next to its optimum."""
    model = PROBLEMS[name][1].model()
    optimum = exact.solve(model)
    assert isinstance(optimum, exact.Solution), optimum
    price = float(optimum.multipliers[0])
    excess = float(exact.lagrangian(model, np.zeros(1)).costs[0] - model.limits[0])
    found = {}
    for title, (rule, step) in rules(price, excess).items():
        path = follow(model, rule, step)
        kept = {name: values[::SHOWN] for name, values in path.items()}
        last = path["multiplier"][-1]
        found[title] = {"settled": settled(path["multiplier"], price), "last": last, "step": step, **kept}
    return {
        "problem": name,
        "optimum": {"multiplier": price, "return": optimum.value, "cost": float(optimum.costs[0])},
        "limit": float(model.limits[0]),
        "rules": found,
    }


def settled(path: list[float], price: float) -> int | None:
    """The first epoch from which the multiplier stays near λ*; None if there is none."""
    away = np.flatnonzero(np.abs(np.array(path) / price - 1.0) > WITHIN)
    first = 0 if away.size == 0 else int(away[-1]) + 1
    return first if first < len(path) else None


def draw(all: list[dict[str, Any]]) -> None:
    """Draw λ above and cost below, in a column for each problem."""
    import matplotlib
    from matplotlib.figure import Figure

    from apdo.report import plot

    with matplotlib.rc_context(plot.LOOK):
        figure = Figure(figsize=(11, 5.6), layout="constrained")
        panels = figure.subplots(2, len(all), sharex=True, squeeze=False)
        for (above, below), found in zip(panels.T, all, strict=True):
            for index, (title, path) in enumerate(found["rules"].items()):
                style = {"color": plot.COLOURS[index], "linewidth": 1.4, "label": title}
                for panel, name in ((above, "multiplier"), (below, "cost")):
                    panel.plot(np.arange(0, EPOCHS, SHOWN), path[name], **style)
            for panel, value in ((above, found["optimum"]["multiplier"]), (below, found["limit"])):
                panel.axhline(value, color="#333333", linestyle=(0, (5, 3)), linewidth=1)
            above.set_title(f"{PROBLEMS[found['problem']][0]}: multiplier, λ* dashed", loc="left", fontweight="bold")
            below.set_title("cost, limit dashed", loc="left", fontweight="bold")
            below.set_xlabel("epoch")
        figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=6, frameon=False)
        plot.write(figure, RESULTS / "multiplier-rules")


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0]).parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    all = [measure(name) for name in PROBLEMS]
    for found in all:
        (RESULTS / f"{found['problem']}.json").write_text(
            json.dumps(provenance.stamped(found)) + "\n", encoding="utf-8"
        )
        for title, path in found["rules"].items():
            when = "not settled" if path["settled"] is None else f"within 2 % from epoch {path['settled']}"
            print(f"{found['problem']} (λ* {found['optimum']['multiplier']:.4g}), {title}: {path['last']:.4g}, {when}")
    draw(all)


if __name__ == "__main__":
    main()
