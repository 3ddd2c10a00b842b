"""One self-contained HTML page about runs: interactive curves, summaries of the results, and their origin.

The page needs no network and no other file. Its curves are embedded as JSON, and drawn by a small script (`page.js`,
styled by `page.css`). Each arm is embedded only once, even if several figures show it, and is thinned to `POINTS`
points with four digits.
"""

import dataclasses
import datetime
import html
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apdo.errors import InvalidInput
from apdo.report import comparison, plot, runs
from apdo.report.claims import Claim, number, show
from apdo.report.comparison import Estimate, OptimalMultiplier, Summary, Target
from apdo.report.runs import Run
from apdo.report.statistics import bootstrap_interval, interquartile_mean

POINTS = 300
"""The most points of an embedded curve."""

_FRAME = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy"
      content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<main>
{body}
</main>
<script type="application/json" id="data">{data}</script>
<script>
{script}</script>
</body>
</html>
"""
_SOLVABLE = "point-gather"
"""The environment to which the paper's target applies."""


@dataclasses.dataclass(frozen=True)
class Arm:
    """Runs of one algorithm with the same settings, joined."""

    title: str
    run: Run
    summary: Summary


@dataclasses.dataclass(frozen=True)
class Figure:
    """Arms side by side: return, cost and multiplier."""

    name: str
    title: str
    text: str
    arms: tuple[str, ...]
    colours: int = 7
    """After how many arms the colours repeat, with another line style."""
    settles: bool = False
    """Whether the settled cost of each fixed multiplier is shown instead of the multiplier's curve."""


@dataclasses.dataclass(frozen=True)
class Document:
    """The content of a page."""

    title: str
    note: str
    """Shown in a box at the top of the page."""
    arms: Mapping[str, Arm]
    figures: tuple[Figure, ...]
    target: Target | None
    """When the task counts as solved; None if the page does not say."""
    optimal: OptimalMultiplier | None = None
    claims: tuple[Claim, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    """The origin of the numbers: names and values."""


def write(document: Document, file: Path) -> Path:
    """Write the page, and return its path."""
    return _write(file, render(document))


def write_results(document: Document, file: Path) -> Path:
    """Write the page's numbers without the curves as JSON; infinity becomes "never", NaN becomes null."""
    results = {
        "title": document.title,
        "note": document.note,
        "target": document.target and dataclasses.asdict(document.target),
        "optimal_multiplier": document.optimal and dataclasses.asdict(document.optimal),
        "claims": [dataclasses.asdict(claim) for claim in document.claims],
        "arms": {
            name: {"title": arm.title, "algorithm": arm.run.algorithm, "seeds": list(arm.run.seeds)}
            | {"summary": dataclasses.asdict(arm.summary), "best": arm.run.best, "remarks": list(arm.run.remarks)}
            for name, arm in document.arms.items()
        },
        "facts": dict(document.facts),
    }
    return _write(file, json.dumps(_json(results), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def render(document: Document) -> str:
    """The page as HTML."""
    embedded = json.dumps(_data(document), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    parts = [
        f"<h1>{_text(document.title)}</h1>",
        f'<p class="note">{_text(document.note)}</p>' if document.note else "",
        _claims_section(document.claims, bool(document.note)),
        *(_figure_section(figure) for figure in document.figures),
        _summary_section(document),
        _best_section(document.arms),
        _remarks_section(document.arms),
        _settings_section(document.arms),
        _facts_section(document.facts),
    ]
    return _FRAME.format(
        title=_text(document.title),
        style=_part("page.css"),
        body="\n".join(part for part in parts if part),
        # The data must not contain the end tag of its element.
        data=embedded.replace("<", "\\u003c"),
        script=_part("page.js"),
    )


def of_runs(folders: Sequence[Path], command: str) -> Document:
    """The content of a page about any runs, with a figure for each environment.

    A folder may be a run folder or contain run folders. Runs that differ only in their seeds are joined to one arm.
    """
    found = [runs.read(folder) for folder in _run_folders(folders)]
    groups: dict[str, list[Run]] = {}
    for run in sorted(found, key=lambda run: (run.environment, run.algorithm)):
        groups.setdefault(_sameness(run), []).append(run)
    joined = [comparison.join(group) for group in groups.values()]
    arms: dict[str, Arm] = {}
    figures = []
    for environment in dict.fromkeys(run.environment for run in joined):
        here = [run for run in joined if run.environment == environment]
        names = [f"{environment}/{i}" for i in range(len(here))]
        for name, title, run in zip(names, plot.labels(here), here, strict=True):
            arms[name] = Arm(title, run, comparison.summarise(run, Target()))
        text = "Arms by algorithm: " + "; ".join(_counts(here)) + "."
        figures.append(Figure(f"figure-{len(figures) + 1}", environment, text, tuple(names)))
    descriptions = [run.description for run in found]
    wall = sum(wall_seconds(description) for description in descriptions)
    return Document(
        title="Runs on " + ", ".join(figure.title for figure in figures),
        note=" ".join(dict.fromkeys(run.note for run in found if run.note)),
        arms=arms,
        figures=tuple(figures),
        target=Target() if all(figure.title == _SOLVABLE for figure in figures) else None,
        facts=(
            ("command", command),
            ("runs", ", ".join(str(run.path) for run in found)),
            ("wall time of all runs", f"{wall:.0f} s"),
            *provenance(descriptions),
        ),
    )


def provenance(descriptions: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, str], ...]:
    """The devices, commits and versions of runs, each value once."""

    def values(name: str) -> str:
        return ", ".join(dict.fromkeys(str(one.get(name) or "unknown") for one in descriptions))

    versions = [one.get("versions") or {} for one in descriptions]
    packages = dict.fromkeys(package for one in versions for package in one)
    return (
        ("device", values("device")),
        ("commit", values("commit")),
        *(
            (package, ", ".join(dict.fromkeys(one[package] for one in versions if package in one)))
            for package in packages
        ),
    )


def wall_seconds(description: Mapping[str, Any]) -> float:
    """The seconds from a run's start to its end, with compilation and adjustment; 0 if it has not ended.

    For a run that was interrupted, it is the time that it worked, because days may lie between the parts.
    """
    if description.get("resumed"):
        return float(description.get("seconds") or 0.0)
    try:
        began, ended = (datetime.datetime.fromisoformat(description[name]) for name in ("started", "finished"))
    except (KeyError, TypeError, ValueError):
        return float(description.get("seconds") or 0.0)
    return (ended - began).total_seconds()


# The data of the script.


def _data(document: Document) -> dict[str, Any]:
    star = document.optimal and document.optimal.estimate
    return {
        "note": document.note,
        "band": star and [_short(star.low), _short(star.high)],
        "arms": {name: _arm_data(arm) for name, arm in document.arms.items()},
        "figures": [_figure_data(figure, document) for figure in document.figures],
    }


def _arm_data(arm: Arm) -> dict[str, Any]:
    run = arm.run
    kept = _thinned(len(run.epochs))
    metrics = {name: run.metrics[name][:, kept] for name in ("return", "cost", "multiplier") if name in run.metrics}
    return {
        "title": arm.title,
        "seeds": list(run.seeds),
        "batch": run.batch,
        "epochs": (run.epochs[kept] + 1).tolist(),
        "adjustment": None if run.adjustment_epoch is None else run.adjustment_epoch + 1,
        "limits": list(run.limits),
        "costs": list(run.cost_names),
        "curves": {name: _curves(values) for name, values in metrics.items() if not np.isnan(values).all()},
    }


def _curves(values: NDArray[np.float64]) -> list[dict[str, Any]]:
    """The curves of a metric, one for each constraint: middle, interval, and the seeds."""
    columns = [values] if values.ndim == 2 else [values[..., i] for i in range(values.shape[2])]
    return [
        {
            "middle": _list(interquartile_mean(column)),
            "low": _list(low),
            "high": _list(high),
            "seeds": [_list(seed) for seed in column],
        }
        for column in columns
        for low, high in [bootstrap_interval(interquartile_mean, column, resamples=1000)]
    ]


def _figure_data(figure: Figure, document: Document) -> dict[str, Any]:
    return {
        "name": figure.name,
        "arms": list(figure.arms),
        "colours": figure.colours,
        "settled": _settled_data(document.optimal) if figure.settles and document.optimal else None,
    }


def _settled_data(optimal: OptimalMultiplier) -> dict[str, Any]:
    return {
        "grid": list(optimal.grid),
        "middle": [_short(cost.value) for cost in optimal.cost],
        "low": [_short(cost.low) for cost in optimal.cost],
        "high": [_short(cost.high) for cost in optimal.cost],
        "seeds": [_list(seed) for seed in optimal.settled],
    }


def _thinned(count: int) -> NDArray[np.int64]:
    """At most `POINTS` of `count` indices, evenly spread, with the first and the last."""
    return np.unique(np.round(np.linspace(0, count - 1, min(count, POINTS))).astype(np.int64))


def _list(values: NDArray[np.float64]) -> list[float | None]:
    return [_short(value) for value in values.tolist()]


def _short(value: float) -> float | None:
    """The value with four digits; None if JSON has no number for it."""
    return float(f"{value:.4g}") if math.isfinite(value) else None


def _json(value: object) -> object:
    """The value as something that JSON can hold."""
    if isinstance(value, Mapping):
        return {str(name): _json(inner) for name, inner in value.items()}
    if isinstance(value, np.ndarray):
        return _json(value.tolist())
    if isinstance(value, list | tuple):
        return [_json(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "never" if value > 0 else None
    return float(f"{value:.6g}") if isinstance(value, float) else value


# The sections.


def _figure_section(figure: Figure) -> str:
    return (
        f'<section class="figure" data-figure="{_text(figure.name)}"><h2>{_text(figure.title)}</h2>'
        f"<p>{_text(figure.text)}</p>"
        '<div class="legend"></div><div class="panels"></div><noscript>The curves need JavaScript.</noscript>'
        '<p class="small">Lines: interquartile mean over seeds. Bands: its 95 % bootstrap interval. Faint: each seed. '
        "Dotted: an adjustment of the multiplier. Names in the legend switch arms on and off.</p></section>"
    )


def _claims_section(claims: Sequence[Claim], miniature: bool) -> str:
    if not claims:
        return ""
    rows = "".join(
        f"<tr><td>{_text(claim.paper)}</td><td>{_cell(claim.measured).replace('; ', '<br>')}</td>"
        f'<td class="{claim.standing}">{_text(claim.verdict)}</td></tr>'
        for claim in claims
    )
    aside = " These are the miniature's: they say nothing about the paper." if miniature else ""
    return (
        f"<section><h2>The paper's claims</h2><p>Brackets are 95 % bootstrap intervals over seeds.{aside}</p>"
        '<div class="scroll"><table class="claims"><thead><tr><th>the paper says</th><th>measured</th><th>verdict</th>'
        f"</tr></thead><tbody>{rows}</tbody></table></div></section>"
    )


def _summary_section(document: Document) -> str:
    several = any(len(arm.run.limits) > 1 for arm in document.arms.values())
    environments = len({arm.run.environment for arm in document.arms.values()}) > 1
    heads = ["arm", "seeds", *_target_heads(document.target), "epochs to the limit", "seeds there"]
    heads += ["final return", "final costs" if several else "final cost", "violation"]
    adjusting = any(arm.summary.adjusted for arm in document.arms.values())
    heads += ["λ set by the adjustment"] if adjusting else []
    heads += ["|λ − λ*|"] if document.optimal else []
    rows = []
    for arm in document.arms.values():
        summary = arm.summary
        cells = [f"{arm.run.environment}: {arm.title}" if environments else arm.title, str(summary.seeds)]
        cells += _target_cells(summary) if document.target else []
        cells += [show(summary.to_feasible), f"{summary.feasible} of {summary.seeds}"]
        cells += [show(summary.final_return), "; ".join(show(cost) for cost in summary.final_cost)]
        cells += [show(summary.violation)] + ([_adjusted(summary)] if adjusting else [])
        cells += [_optional(summary.multiplier_error)] if document.optimal else []
        rows.append(cells)
    return (
        f"<section><h2>What the seeds came to</h2><p>{_text(_explanation(document))}</p>"
        f"{_table(heads, rows)}{_star(document.optimal)}</section>"
    )


def _best_section(arms: Mapping[str, Arm]) -> str:
    """The best policy of each seed: a summary by arm, and then one by one."""
    telling = [arm for arm in arms.values() if arm.run.best]
    if not telling:
        return ""
    brief = [[arm.title, *_best_in_brief(arm.run.best)] for arm in telling]
    each = [[arm.title, str(one["seed"]), *_best_in_full(one)] for arm in telling for one in arm.run.best]
    heads = ["arm", "known to keep the limits", "epoch", "return", "cost"]
    return (
        "<section><h2>The best policies</h2><p>Of the policies that training's own samples show to keep the limits, "
        "with 95 % confidence, the one with the highest return; where none is known to, the nearest to the limits. "
        "The policy of epoch k has learned from k epochs; return and cost are discounted where the limits are. "
        "This is what evaluate, export and load take.</p>"
        f"{_table(heads, brief)}<details><summary>each seed</summary>"
        f"{_table([heads[0], 'seed', *heads[1:]], each)}</details></section>"
    )


def _best_in_brief(found: Sequence[Mapping[str, Any]]) -> list[str]:
    epochs = sorted(one["epoch"] for one in found)
    costs = np.asarray([one["cost"] for one in found], dtype=np.float64)
    return [
        f"{sum(one['known'] for one in found)} of {len(found)} seeds",
        str(epochs[0]) if epochs[0] == epochs[-1] else f"{epochs[0]} to {epochs[-1]}",
        show(comparison.middle(np.asarray([one["return"] for one in found], dtype=np.float64))),
        "; ".join(show(comparison.middle(costs[:, i])) for i in range(costs.shape[1])),
    ]


def _best_in_full(one: Mapping[str, Any]) -> list[str]:
    cells = ["yes" if one["known"] else "no", str(one["epoch"]), _with_error(one["return"], one["return_error"])]
    return [*cells, "; ".join(map(_with_error, one["cost"], one["cost_error"]))]


def _with_error(mean: float, error: float) -> str:
    return f"{number(mean)} ± {number(error)}"


def _remarks_section(arms: Mapping[str, Arm]) -> str:
    """The remarks of the runs, each line once for an arm."""
    said = {(arm.title, one["text"]): one["epoch"] for arm in arms.values() for one in reversed(arm.run.remarks)}
    if not said:
        return ""
    rows = [[title, str(epoch), text] for (title, text), epoch in reversed(said.items())]
    return f"<section><h2>What the runs remarked upon</h2>{_table(['arm', 'after epoch', 'remark'], rows)}</section>"


def _target_heads(target: Target | None) -> list[str]:
    if target is None:
        return []
    return [f"epochs to return {target.reward:g}", "samples", "seeds there"]


def _target_cells(summary: Summary) -> list[str]:
    samples = summary.samples_to_target
    short = Estimate(*(value / 1e6 for value in dataclasses.astuple(samples)))
    millions = "never" if math.isinf(samples.value) else f"{short.value:.2f} M"
    return [show(summary.to_target), millions, f"{summary.reached} of {summary.seeds}"]


def _explanation(document: Document) -> str:
    target = document.target or Target()
    solved = f"a return of {target.reward:g} within the limits" if document.target else ""
    return (
        f"Epochs are counted until the trailing mean over {target.window} epochs has "
        + (f"{solved}, or is within the limits alone" if solved else "come within the limits")
        + f" (+{100 * target.slack:g} %): the median over seeds, where a seed that never gets there counts as never. "
        f"Final values are of the last {comparison.LAST} epochs, violation is the area of the cost above its limit in "
        "cost × epochs: interquartile means over seeds. Brackets are 95 % bootstrap intervals."
    )


def _adjusted(summary: Summary) -> str:
    if summary.adjusted is None or summary.adjusted_range is None:
        return "–"
    low, high = summary.adjusted_range
    return f"{show(summary.adjusted)}, seeds {number(low)} to {number(high)}"


def _optional(estimate: Estimate | None) -> str:
    return "–" if estimate is None else show(estimate)


def _star(optimal: OptimalMultiplier | None) -> str:
    if optimal is None:
        return ""
    found = f"The optimal multiplier λ* is {show(optimal.estimate)}."
    if not optimal.enclosed:
        end = number(optimal.estimate.value)
        found = f"The cost does not cross the limit on the grid; the nearer end, {end}, stands for λ*."
    costs = ", ".join(f"{value:g} → {show(cost)}" for value, cost in zip(optimal.grid, optimal.cost, strict=True))
    return f"<p>{_text(f'{found} Settled cost with the multiplier held at: {costs}.')}</p>"


def _settings_section(arms: Mapping[str, Arm]) -> str:
    """The settings that all arms share, and the settings of each arm that not all share."""
    flat = {name: _settings(arm.run.description.get("config") or {}) for name, arm in arms.items()}
    shared = {
        name: value
        for name, value in next(iter(flat.values()), {}).items()
        if all(other.get(name) == value for other in flat.values())
    }
    common = _table(["setting", "value"], [[name, value] for name, value in shared.items()])
    own = [
        [arms[arm].title, name, value]
        for arm, settings in flat.items()
        for name, value in settings.items()
        if name not in shared
    ]
    return (
        "<section><h2>Every setting</h2>"
        f"<details><summary>shared by all arms ({len(shared)})</summary>{common}</details>"
        f"<details><summary>the arms' own ({len(own)})</summary>{_table(['arm', 'setting', 'value'], own)}</details>"
        "</section>"
    )


def _settings(config: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for part, value in config.items():
        if isinstance(value, Mapping):
            found |= {name: _value(inner) for name, inner in value.items() if name not in ("seed", "seeds")}
        elif part != "note":
            found[part] = _value(value)
    return found


def _value(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(str(part) for part in value) or "the task's own"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _facts_section(facts: Sequence[tuple[str, str]]) -> str:
    rows = "".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in facts)
    return f"<section><h2>Where this comes from</h2><dl>{rows}</dl></section>" if rows else ""


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{_text(name)}</th>" for name in heads)
    body = "".join("<tr>" + "".join(f"<td>{_cell(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(text: str) -> str:
    """Text with its intervals in small print."""
    return re.sub(r"\[[^\[\]]*\]", r"<small>\g<0></small>", _text(text))


def _text(text: str) -> str:
    return html.escape(text)


# Folders and files.


def _part(name: str) -> str:
    return (resources.files("apdo.report") / name).read_text(encoding="utf-8")


def _run_folders(folders: Sequence[Path]) -> list[Path]:
    """Each folder that is a run folder, and the run folders in each folder that is not."""
    if not folders:
        raise InvalidInput("report needs at least one run folder, as in: apdo report runs/demo.")
    found: list[Path] = []
    for folder in folders:
        if (folder / runs.DESCRIPTION).exists() or not folder.is_dir():
            found.append(folder)
            continue
        below = sorted(file.parent for file in folder.rglob(runs.DESCRIPTION))
        if not below:
            raise InvalidInput(f"{folder} is not a run folder, and holds none.")
        found += below
    return list(dict.fromkeys(found))


def _sameness(run: Run) -> str:
    """A key that is equal for runs that differ only in their seeds."""
    config = json.loads(json.dumps(run.description.get("config") or {}))
    config.setdefault("settings", {})
    config["settings"] = {name: value for name, value in config["settings"].items() if name not in ("seed", "seeds")}
    own = "" if run.description.get("config") else str(run.path)
    return json.dumps([run.environment, run.algorithm, run.batch, run.limits, config, own], sort_keys=True)


def _counts(here: Iterable[Run]) -> list[str]:
    names = [run.algorithm for run in here]
    return [f"{name} ({names.count(name)})" for name in dict.fromkeys(names)]


def _write(file: Path, text: str) -> Path:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_name(file.name + ".partial")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(file)
    except OSError as error:
        raise InvalidInput(f"{file} cannot be written: {error.strerror}.") from error
    return file
