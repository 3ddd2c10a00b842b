"""A run's result in brief: as lines for a terminal, and as a table for a notebook."""

import html
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from apdo.experiment.result import Result

_MOST = 10
"""How many seeds are shown one by one."""


def lines(result: "Result") -> list[str]:
    """What was trained, for how long, and what each seed's policy achieved in training."""
    said = [f"<Result: {_heading(result)}"]
    for i, seed in enumerate(result.seeds[:_MOST]):
        said.append(f"  seed {seed}: {_figures(result, i)}; {result.policies[i].about}")
    if len(result.seeds) > _MOST:
        said.append(f"  and {len(result.seeds) - _MOST} seeds more")
    if result.interrupted:
        said.append(f"  {result.interrupted}")
    said.append(f"  in {result.path}>")
    return said


def table(result: "Result") -> str:
    """The same in HTML. Names are escaped."""
    rows = [
        f"<tr><td>{seed}</td><td>{_text(_figures(result, i))}</td><td>{_text(result.policies[i].about)}</td></tr>"
        for i, seed in enumerate(result.seeds[:_MOST])
    ]
    more = len(result.seeds) - _MOST
    rows += [f"<tr><td colspan=3>and {more} seeds more</td></tr>"] if more > 0 else []
    note = f"<p>{_text(result.interrupted)}</p>" if result.interrupted else ""
    head = "<tr><th>seed</th><th>in training</th><th>policy</th></tr>"
    return (
        f"<div><strong>{_text(_heading(result))}</strong><table>{head}{''.join(rows)}</table>"
        f"{note}<small>{_text(str(result.path))}</small></div>"
    )


def _heading(result: "Result") -> str:
    epochs = next((values.shape[1] for values in result.metrics.values()), 0)
    seeds = f"{len(result.seeds)} seed{'s' * (len(result.seeds) != 1)}"
    return f"{result.title or 'a run'}, {epochs} epoch{'s' * (epochs != 1)}, {seeds}"


def _figures(result: "Result", i: int) -> str:
    """Return and costs of a seed's best policy, each cost with its limit; without a best policy, of the last epoch."""
    if result.best:
        found = result.best[i]
        earned, costs = f"{found.returned:.4g} ± {found.return_error:.2g}", list(found.cost)
        errors = [f" ± {error:.2g}" for error in found.cost_error]
        kind = "discounted return" if found.discounted else "return"
    elif "return" in result.metrics and result.metrics["return"].shape[1]:
        earned, kind = f"{result.metrics['return'][i, -1]:.4g}", "last epoch's return"
        costs = np.atleast_1d(result.metrics["cost"][i, -1]).tolist() if "cost" in result.metrics else []
        errors = [""] * len(costs)
    else:
        return "no epoch yet"
    names = [*result.cost_names, *("cost" for _ in costs[len(result.cost_names) :])]
    beside = [_beside(result, j, cost) for j, cost in enumerate(costs)]
    shown = zip(names, costs, errors, beside, strict=False)
    return ", ".join([f"{kind} {earned}", *(f"{name} {cost:.4g}{error}{limit}" for name, cost, error, limit in shown)])


def _beside(result: "Result", j: int, cost: float) -> str:
    """A cost's limit, with the sign that says whether the cost is within it."""
    if j >= len(result.limits):
        return ""
    return f" {'≤' if cost <= result.limits[j] else '>'} {result.limits[j]:.4g}"


def _text(given: str) -> str:
    return html.escape(given)
