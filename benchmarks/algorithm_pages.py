"""The generated tables of docs/algorithms.md and docs/algorithms/: names, options and metrics, taken from the code.

    python -m benchmarks.algorithm_pages      write the tables into the pages

Options come from the configurations, metrics from an epoch that is traced but not computed. The meaning of each metric
is given here; a metric without a meaning is an error. `tests/test_algorithm_pages.py` compares the pages with the code.
"""

from pathlib import Path
from typing import Any

from apdo import options
from apdo.algorithms import ALGORITHMS, find, stands_for
from benchmarks import document

INDEX = Path("docs/algorithms.md")
FOLDER = Path("docs/algorithms")
OWN = tuple(name for name, entry in ALGORITHMS.items() if not entry.options)
"""The names of algorithms that have a page of their own. All aliases share one page."""
ALIASES = tuple(name for name in ALGORITHMS if name not in OWN)
WRAPPERS = ("wrap", "unsafe_reward")
"""The options of a run that change its environment."""

METRICS = {
    "return": "the mean plain sum of rewards of an episode of π_k",
    "discounted_return": "the mean discounted sum of rewards of an episode",
    "return_error": "the standard error of the return that is maximised",
    "cost": "C(π_k), what the limits speak of: discounted, or the plain total with `--constrain total`",
    "cost_error": "the standard error of `cost`",
    "cost_deviation": "the standard deviation of an episode's cost",
    "undiscounted_cost": "the mean plain total of each cost over an episode",
    "episode_length": "the mean number of steps in an episode",
    "kl": "KL(π_k ‖ π_{k+1}), the mean over the batch",
    "surrogate_gain": "what the step promises, by the batch's own advantages: of the return, "
    "or of the combined advantage where there is one",
    "step_accepted": "1 where a step was taken, 0 where the line search found none",
    "entropy": "the mean entropy of π_{k+1}",
    "value_error": "what the value functions leave unexplained after their fit, as a share of their targets' variance",
    "multiplier": "the prices λ_i that this epoch's policy step saw, in return per cost",
    "enforced_limit": "d_k, the limit that this epoch enforced; only with `--safety` off the middle",
    "recovering": "1 in an epoch that lowered costs alone, since a limit was broken",
    "constrained": "1 where a limit changed the step",
    "belief": "the share of each cost direction's effect that the batch's two halves agree on",
    "history": "how much the gradients of earlier epochs counted",
    "predicted_cost": "what the step before expected of this epoch's cost",
    "actor_taken": "1 in the epoch whose off-policy actor was taken as the policy",
    "adjusted_multiplier": "λ^OFF, in the row of the epoch after which the jump was made",
    "adjusted_low": "the lower end of its interval",
    "adjusted_high": "the upper end of its interval",
    "multiplier_mean": "λ^OFF: the mean of the multipliers over the iterations",
    "critic_cost": "what the cost critics say of the actor, at their latest iteration",
    "critic_error": "b: what the critics miss of the episodes' cost, smoothed over batches",
    "certainty": "q: how well a batch measures the cost; 1 if its relative error is at most a sixth",
    "temperature": "α, the price of entropy, in the reward's unit",
    "improvement_kl": "KL(π_k ‖ π_{k+1/2}), what the step for the return did before the projection",
    "projection_kl": "KL(π_{k+1/2} ‖ π_{k+1}), how far the projection went",
    "penalised": "1 for each limit that the step still left broken, by its surrogate: whose penalty was at work",
}
OTHERWISE = {
    ("cpo", "multiplier"): "ν of the step's own problem, in return per cost; 0 in recovery",
    ("pcpo", "multiplier"): "μ/α, the price that the projection amounts to, in return per cost",
    ("cup", "multiplier"): "ν_i that this epoch's projection saw, in return per cost; not λ* (see above)",
    ("ipo", "multiplier"): "the barrier's price at π_k, in return per cost",
    ("pd-ddpg", "multiplier"): "λ_i after the epoch's last iteration",
    ("sac-lag", "multiplier"): "λ_i before this epoch's iterations, in return per cost",
    ("crpo", "recovering"): "1 in an epoch whose step was against the worst broken cost",
    ("crpo", "surrogate_gain"): "what the step promises of the return, or of the cost that it lowers, standardised",
    ("pcpo", "step_accepted"): "1 where a move was short enough, 0 where the search found none",
}
"""Metrics that have a special meaning for one algorithm."""
JUMPS = {"apdo": ("adjusted_multiplier", "adjusted_low", "adjusted_high")}
"""Metrics that the run adds to those of the algorithm."""


def metric_names(name: str) -> list[str]:
    """The metrics of an epoch, in the order of `METRICS`."""
    import jax
    import jax.numpy as jnp
    from jax import random

    from apdo import loop
    from apdo.experiment import opening, settings

    dial = {"safety": 0.8} if "safety" in options.flatten(find(name).Config()) else {}
    training = opening.training_of(settings.make_experiment(name, "two-state", {"batch": 100} | dial))

    def epoch(key: Any) -> Any:
        state = training.algorithm.init(training.config, training.problem, key)
        return loop.epoch(training, state, None, key, jnp.asarray(0))[2]

    found = {*jax.eval_shape(epoch, random.key(0)), *JUMPS.get(name, ())}
    assert found <= set(METRICS), f"metrics without a meaning: {found - set(METRICS)}"
    return [metric for metric in METRICS if metric in found]


def metric_table(name: str) -> str:
    """The table of an algorithm's metrics with their meanings."""
    found = [[f"`{metric}`", OTHERWISE.get((name, metric), METRICS[metric])] for metric in metric_names(name)]
    return document.table(["metric", "meaning"], *found)


def option_table(rows: list[options.Row]) -> str:
    """The table of options with their defaults. An option that several choices share is listed once."""
    shared: dict[options.Row, list[str]] = {}
    for row in rows:
        given = " and ".join(f"`--{name} {kind}`" for name, kind in reversed(row.given))
        shared.setdefault(row._replace(given=()), []).append(given)
    cells = []
    for row, given in shared.items():
        choices = f"; one of {', '.join(row.choices)}" if row.choices else ""
        only = f" (with {'; or '.join(given)})" if given != [""] else ""
        meaning = f"{row.meaning}{choices}{only}".replace("|", "\\|")
        cells.append([f"`--{row.name}`", row.default or "none", meaning, row.source])
    return document.table(["option", "default", "meaning", "whose default"], *cells)


def alias_table() -> str:
    """What each alias stands for."""
    cells = [[f"`{name}`", ALGORITHMS[name].what, f"`{stands_for(name)}`"] for name in ALIASES]
    return document.table(["name", "what it is", "stands for"], *cells)


def index_table() -> str:
    """Every name, with its page."""
    cells = []
    for name, entry in ALGORITHMS.items():
        page = "aliases" if name in ALIASES else name
        cells.append([f"[`{name}`](algorithms/{page}.md)", entry.what])
    return document.table(["name", "what it is"], *cells)


def pages() -> dict[Path, dict[str, str]]:
    """Every page with its generated tables."""
    from apdo.experiment.settings import Settings, defaults

    wrappers = [row for row in options.rows(Settings()) if row.name.replace("-", "_") in WRAPPERS]
    found = {
        INDEX: {"names": index_table()},
        FOLDER / "aliases.md": {"aliases": alias_table()},
        FOLDER / "wrappers.md": {"options": option_table(wrappers)},
    }
    for name in OWN:
        tables = {"options": option_table(options.rows(defaults(name))), "metrics": metric_table(name)}
        found[FOLDER / f"{name}.md"] = tables
    return found


def main() -> None:
    for page, tables in pages().items():
        document.fill(page, tables)


if __name__ == "__main__":
    main()
