"""Learned policies compared with hand-written controllers, on the wind turbine and on the queueing network.

    make real-problems                                   all of it: about 15 minutes on two cores
    python -m benchmarks.real_problems wind-turbine      a part
    python -m benchmarks.real_problems queueing

Runs go to runs/real-problems, and existing runs are not trained again. Results and pictures go to
results/real-problems; docs/wind-turbine.md and docs/queueing.md are written from them.
"""

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize

import apdo
from apdo import exact, rollout
from apdo.report import plot
from apdo.tasks import controllers
from apdo.tasks import wind_turbine as wt
from apdo.tasks.queueing import QueueingNetwork
from apdo.tasks.wind_turbine import WindTurbine
from benchmarks import provenance

RESULTS, RUNS = Path("results/real-problems"), Path("runs/real-problems")
EPISODES = 1000
WIND_RUN = {"epochs": 200, "batch": 30_000, "policy.log_std": -0.7}
WIND_SEEDS = (0, 1, 2)
LARGE = {
    "arrival": (0.3, 0.25, 0.2),
    "utility": (1.0, 0.8, 0.6),
    "buffer": 100,
    "discount": 0.98,
    "horizon": 300,
}
QUEUE_RUN = {"epochs": 300, "batch": 30_000, "primal.rate": 1.0}
VALUES, PRICES, DEBTS = (2.0, 4.0, 6.0, 10.0), (1.0, 2.0, 3.0, 4.0, 6.0, 8.0), (0.0, 0.5, 1.0, 2.0, 4.0)


def policy_of(algorithm, environment, options, seed):
    """The policy of a run, which is trained or continued if it is not finished."""
    folder = RUNS / f"{environment}-{algorithm}-{seed}"
    changes = {name.replace(".", "__"): value for name, value in options.items()}
    return apdo.train(algorithm, environment, out=folder, seed=seed, quiet=True, resume=True, **changes).policy


def acting(policy, deterministic):
    def act(memory, observation, key):
        distribution = policy.network(observation)
        return distribution.mode() if deterministic else distribution.sample(key), memory

    return act, ()


def play(environment, controller, episodes=EPISODES, key=0):
    """Returns and discounted costs of fresh episodes, which are the same for every controller."""
    act, memory = controller
    steps = environment.horizon

    def run(key):
        return rollout.collect(environment, act, memory, key, steps=steps, environments=episodes)

    batch = jax.jit(run)(jax.random.key(1_000_000 + key))
    weights = environment.discount ** np.arange(steps)
    reward, cost = np.asarray(batch.reward), np.asarray(batch.cost)
    return {
        "return": reward.sum(axis=0),
        "discounted_return": weights @ reward,
        "cost": np.einsum("t,tnm->nm", weights, cost),
        "rate": cost.mean(axis=0),
        "batch": batch,
    }


def summary(found):
    """Means with their standard errors."""
    out: dict[str, Any] = {}
    for name in ("return", "discounted_return", "cost", "rate"):
        values = found[name]
        out[name] = np.mean(values, axis=0).tolist()
        out[f"{name}_error"] = (np.std(values, axis=0, ddof=1) / np.sqrt(len(values))).tolist()
    return out


# Wind turbine.


def wind_turbine():
    turbine = WindTurbine()
    classical = play(turbine, controllers.classical(turbine))
    found = {"classical": summary(classical)}
    policies = [policy_of("cpo", "wind-turbine", WIND_RUN, seed) for seed in WIND_SEEDS]
    for seed, policy in zip(WIND_SEEDS, policies, strict=True):
        for deterministic in (True, False):
            learned = play(turbine, acting(policy, deterministic))
            mode = "deterministic" if deterministic else "stochastic"
            difference = (
                learned["return"] / classical["return"].mean() - classical["return"] / classical["return"].mean()
            )
            found[f"cpo, seed {seed}, {mode}"] = summary(learned) | {
                "gain": float(difference.mean()),
                "gain_error": float(difference.std(ddof=1) / np.sqrt(EPISODES)),
            }
    free = acting(policy_of("trpo", "wind-turbine", WIND_RUN | {"epochs": 100}, 0), True)
    found["trpo (no limits), deterministic"] = summary(play(turbine, free))
    for step, substeps in ((0.25, 1), (1.0, 4)):
        other = WindTurbine(control_step=step, substeps=substeps, horizon=round(300 / step))
        played = play(other, controllers.classical(other))
        found[f"classical, every {step:g} s"] = summary(played) | {
            "power": float(played["return"].mean() / other.horizon)
        }
    write("wind-turbine.json", {"limits": turbine.limits, "episodes": EPISODES, "run": WIND_RUN, "controllers": found})
    picture_of_wind(policies[0])


def picture_of_wind(policy):
    """Draw one episode of both controllers in the same wind."""
    import matplotlib
    from matplotlib.figure import Figure

    windy = WindTurbine(wind=(12.0, 12.0))
    key = jax.random.key(4)
    with matplotlib.rc_context(plot.LOOK):
        figure = Figure(figsize=(10, 8.5), layout="constrained")
        panels = figure.subplots(6, 1, sharex=True)
        for name, (act, memory), colour in (
            ("classical: K ω² and pitch PI", controllers.classical(windy), plot.COLOURS[1]),
            ("learned: CPO", acting(policy, True), plot.COLOURS[0]),
        ):
            run = jax.jit(lambda key, act=act, memory=memory: rollout.watch(windy, act, memory, key))
            states, steps = jax.device_get(run(key))
            time = np.arange(len(states.speed)) * windy.control_step
            moment = states.residue[:, 0, 0] * wt.REFERENCE_RANGE[0] / 1e6
            power = np.asarray(steps.reward) * wt.RATED_POWER / 1e6
            wear = np.cumsum(np.asarray(steps.cost)[:, 0]) * windy.control_step
            series = [states.speed * 30 / np.pi, states.pitch, power, moment, wear]
            labels = ["rotor (rpm)", "pitch (°)", "power (MW)", "tower base\n(MN m)", "damage\nso far"]
            if name.startswith("classical"):
                panels[0].plot(time, states.wind, color="#777777", linewidth=1.2)
                panels[0].set_ylabel("wind (m/s)")
            for panel, values, label in zip(panels[1:], series, labels, strict=True):
                panel.plot(time[: len(values)], values, color=colour, linewidth=1.3, label=name)
                panel.set_ylabel(label)
        panels[1].axhline(1.1 * 12.1, color="#333333", linestyle=(0, (5, 3)), linewidth=1)
        panels[1].legend(loc="lower right", ncols=2, frameon=False)
        panels[-1].set_xlabel("seconds")
        panels[0].set_title("the same turbulent wind around 12 m/s", loc="left", fontweight="bold")
        plot.write(figure, RESULTS / "wind-turbine.png")


# Queueing network.


def rules(queues, debts=DEBTS):
    """The max-weight rules to compare with."""
    return [(v, p, debt) for v, p, *debt in itertools.product(VALUES, PRICES, *([debts] * queues))]


def mixture(returns, costs, limits):
    """The best mixture of rules that keeps the limits on average: one rule is drawn for each episode."""
    n = len(returns)
    solved = scipy.optimize.linprog(-returns, costs.T, limits, np.ones((1, n)), [1.0], method="highs")
    return None if solved.x is None else solved.x


def small_twin():
    """Exact values of all controllers on the small network."""
    network = QueueingNetwork()
    model = network.model()
    optimum = exact.solve(model)
    values = {}
    for v, p, debt in rules(network.queues):
        policy = controllers.MaxWeight(v, p, tuple(debt)).policy(network)
        values.setdefault(policy.tobytes(), exact.evaluate(model, policy))
    found = list(values.values())
    returns, costs = np.array([one.value for one in found]), np.array([one.costs for one in found])
    weights = mixture(returns, costs, model.limits)
    single = np.all(costs <= model.limits[None] + 1e-9, axis=1)
    assert weights is not None
    return {
        "optimum": {"value": optimum.value, "costs": optimum.costs.tolist()},
        "max_weight_rules": len(found),
        "best_single_rule_within_limits": float(returns[single].max()) if single.any() else None,
        "max_weight_mixture": {"value": float(weights @ returns), "costs": (weights @ costs).tolist()},
        "rules_in_mixture": int(np.sum(weights > 1e-9)),
    }


def large_network():
    network = QueueingNetwork(**LARGE)
    family = rules(network.queues, (0.0, 1.0, 3.0))

    def one(value, price, debt, key):
        act, memory = controllers.MaxWeight(value, price, debt).controller(network)
        batch = rollout.collect(network, act, memory, key, steps=network.horizon, environments=40)
        weights = jnp.asarray(network.discount ** np.arange(network.horizon), dtype=jnp.float32)
        signal = jnp.concatenate([batch.reward[..., None], batch.cost], axis=-1)
        return jnp.einsum("t,tnm->m", weights, signal) / 40

    parameters = [jnp.asarray([rule[i] for rule in family], dtype=jnp.float32) for i in range(3)]
    keys = jax.random.split(jax.random.key(0), len(family))
    totals = np.asarray(
        jax.jit(lambda *all: jax.lax.map(lambda args: one(*args), all, batch_size=50))(*parameters, keys)
    )
    limits = np.asarray(network.limits)
    weights = mixture(totals[:, 0], totals[:, 1:], limits)
    assert weights is not None
    chosen = np.flatnonzero(weights > 1e-9)
    # Evaluated again on fresh episodes, because the others were used to choose the mixture.
    again = []
    for i in chosen:
        v, p, debt = family[i]
        again.append(play(network, controllers.MaxWeight(v, p, tuple(debt)).controller(network)))
    share = weights[chosen] / weights[chosen].sum()
    mixed = {
        name: np.sum([w * np.mean(one[name], axis=0) for w, one in zip(share, again, strict=True)], axis=0).tolist()
        for name in ("discounted_return", "cost")
    }
    mixed["rules"] = [{"value": family[i][0], "price": family[i][1], "debt": family[i][2]} for i in chosen]
    mixed["shares"] = share.tolist()
    learned = play(network, acting(policy_of("pdo", "queueing", QUEUE_RUN | LARGE, 0), False))
    picture_of_queues(network, learned, again, share)
    return {"limits": limits.tolist(), "max_weight_mixture": mixed, "pdo, seed 0, stochastic": summary(learned)}


def picture_of_queues(network, learned, mixed, share):
    """Draw the mean backlog, and the discounted costs with their limits."""
    import matplotlib
    from matplotlib.figure import Figure

    def backlog(found):
        seen = np.asarray(found["batch"].observation)[..., : network.queues] * network.buffer
        return seen.sum(axis=-1).mean(axis=1)

    with matplotlib.rc_context(plot.LOOK):
        figure = Figure(figsize=(10, 3.6), layout="constrained")
        left, middle, right = figure.subplots(1, 3, width_ratios=(2, 1, 2))
        blend = sum(w * backlog(one) for w, one in zip(share, mixed, strict=True))
        left.plot(backlog(learned), color=plot.COLOURS[0], label="learned: PDO")
        left.plot(blend, color=plot.COLOURS[1], label="max-weight, mixed")
        left.set_xlabel("slot")
        left.set_title("packets waiting, mean", loc="left", fontweight="bold")
        left.legend(frameon=False)
        returns = [np.mean(learned["discounted_return"])]
        returns.append(sum(w * np.mean(one["discounted_return"]) for w, one in zip(share, mixed, strict=True)))
        middle.bar([0, 1], returns, color=plot.COLOURS[:2])
        middle.set_xticks([0, 1], ["PDO", "max-weight"])
        middle.set_title("utility", loc="left", fontweight="bold")
        ours = np.mean(learned["cost"], axis=0)
        theirs = sum(w * np.mean(one["cost"], axis=0) for w, one in zip(share, mixed, strict=True))
        place, limits = np.arange(len(ours)), np.asarray(network.limits)
        right.bar(place - 0.2, ours - limits, 0.4, color=plot.COLOURS[0])
        right.bar(place + 0.2, theirs - limits, 0.4, color=plot.COLOURS[1])
        right.axhline(0, color="#333333", linewidth=1)
        right.set_xticks(place, [f"rate {i + 1}" for i in range(network.queues)] + ["power"])
        right.set_title("cost less its limit", loc="left", fontweight="bold")
        plot.write(figure, RESULTS / "queueing.png")


def queueing():
    write("queueing.json", {"small": small_twin(), "large": large_network(), "run": QUEUE_RUN, "network": LARGE})


def write(name, found):
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / name).write_text(json.dumps(provenance.stamped(found), indent=1) + "\n", encoding="utf-8")
    print(f"wrote {RESULTS / name}")


PARTS = {"wind-turbine": wind_turbine, "queueing": queueing}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", default=list(PARTS), choices=[*PARTS, []])
    for part in parser.parse_args().parts:
        PARTS[part]()


if __name__ == "__main__":
    main()
