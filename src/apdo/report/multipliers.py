"""Estimated multipliers as a file and as a picture: each learner's path, and beside it the final values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from apdo import files
from apdo.report.plot import COLOURS, LOOK, write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Findings = dict[str, Any]
"""An estimate as plain values, as in its JSON file."""


def save(found: Findings, prefix: Path) -> Path:
    """Write PREFIX.json; the file is written whole or not at all."""
    path = prefix.with_name(f"{prefix.name}.json")
    with files.replacing(path) as file:
        file.write((json.dumps(found, indent=1, allow_nan=False) + "\n").encode())
    return path


def plot(found: Findings, out: str | Path, title: str) -> list[Path]:
    """Write the picture as a .png, .svg or .pdf file, or as .png and .svg if `out` has no ending; return the files."""
    return write(figure(found, title), out)


def figure(found: Findings, title: str) -> Figure:
    """For each constraint the learners' paths, and on their right the spread, the estimate and each learner's value."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    count = len(found["multiplier"])
    with matplotlib.rc_context(LOOK):
        layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.06, wspace=0.0)
        picture = Figure(figsize=(1.2 + 4.8 * count, 3.6), layout=layout)
        panels = picture.subplots(1, 2 * count, squeeze=False, width_ratios=[4, 1] * count)[0]
        for i in range(count):
            _draw_paths(panels[2 * i], found, i)
            _draw_ends(panels[2 * i + 1], found, i)
            _share_scale(panels[2 * i], panels[2 * i + 1])
        verdict = "" if found["supported"] else "   (unsupported by the data)"
        picture.suptitle(title + verdict, x=0.012, ha="left", fontweight="bold", fontsize=11)
    return picture


def _draw_paths(panel: Axes, found: Findings, i: int) -> None:
    paths, iterations = np.asarray(found["path"]), np.asarray(found["iterations"])
    for e in range(paths.shape[1]):
        panel.plot(iterations, paths[:, e, i], color=COLOURS[e % len(COLOURS)], linewidth=1.1)
    panel.set_title(f"{found['cost_names'][i]}, limit {found['limits'][i]:g}", loc="left", fontsize=9)
    panel.set_xlabel("iterations")
    panel.set_ylabel("multiplier λ of each learner")
    panel.set_xlim(0, iterations[-1])


def _draw_ends(panel: Axes, found: Findings, i: int) -> None:
    middle, low, high = (found[name][i] for name in ("multiplier", "low", "high"))
    if high is not None:
        panel.fill_between([-1, 1], low, high, color="#BBBBBB", alpha=0.45, linewidth=0)
    panel.plot([-1, 1], [middle, middle], color="#222222", linewidth=1.6)
    members = np.asarray(found["members"])[:, i]
    for e, value in enumerate(members):
        place = 0.0 if len(members) == 1 else 1.2 * e / (len(members) - 1) - 0.6
        panel.plot([place], [value], "o", color=COLOURS[e % len(COLOURS)], markersize=4.5)
    panel.set_title("a single learner" if high is None else "learners' spread", loc="left", fontsize=9)
    panel.set_xlabel(f"λ = {middle:.4g}")
    panel.set_xlim(-1, 1)
    panel.set_xticks([])
    panel.tick_params(labelleft=False)


def _share_scale(left: Axes, right: Axes) -> None:
    top = max(left.get_ylim()[1], right.get_ylim()[1])
    for panel in (left, right):
        panel.set_ylim(0.0, top if top > 0.0 else 1.0)
