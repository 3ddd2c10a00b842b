"""The price of a constraint as a picture: the optimal return and, below it, the multiplier, against the limit."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from apdo.errors import InvalidInput
from apdo.report.plot import COLOURS, LOOK, write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """The optimum as a function of one constraint's limit, and the optimum at the given limit."""

    name: str
    limits: NDArray[np.float64]
    values: NDArray[np.float64]
    multipliers: NDArray[np.float64]
    limit: float
    value: float
    multiplier: float


def plot(curves: Sequence[Curve], out: str | Path, title: str) -> list[Path]:
    """Write the curves as a .png, .svg or .pdf file, or as .png and .svg if `out` has no ending; return the files."""
    return write(figure(curves, title), out)


def figure(curves: Sequence[Curve], title: str) -> Figure:
    """Two panels for each constraint: optimal return above, multiplier below."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    if not curves:
        raise InvalidInput("there is no constraint, so there is no trade-off to draw.")
    with matplotlib.rc_context(LOOK):
        layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.06, wspace=0.04)
        picture = Figure(figsize=(1.2 + 3.8 * len(curves), 5.2), layout=layout)
        panels = picture.subplots(2, len(curves), squeeze=False, sharex="col", sharey="row")
        for (above, below), curve, colour in zip(panels.T, curves, _cycle(len(curves)), strict=True):
            _draw(above, below, curve, colour)
        # At the least feasible limit the price can be arbitrarily high, which would flatten all else.
        prices = [price for curve in curves for price in (*curve.multipliers[1:], curve.multiplier)]
        panels[1, 0].set_ylim(0, 1.1 * float(np.nanmax(prices)) or 1.0)
        panels[0, 0].set_ylabel("optimal return")
        panels[1, 0].set_ylabel("multiplier λ*")
        picture.suptitle(title, x=0.012, ha="left", fontweight="bold", fontsize=11)
    return picture


def _draw(above: Axes, below: Axes, curve: Curve, colour: str) -> None:
    above.plot(curve.limits, curve.values, color=colour, linewidth=1.9)
    # A tangent: how the return would change if the price stayed the same.
    reach = 0.18 * np.ptp(curve.limits)
    around = curve.limit + np.asarray([-reach, reach])
    line = curve.value + curve.multiplier * (around - curve.limit)
    above.plot(around, line, color="#777777", linewidth=1.0, linestyle=(0, (5, 3)), zorder=2.5)
    above.plot([curve.limit], [curve.value], "o", color=colour, markersize=6, zorder=4)
    above.annotate(
        f"limit {curve.limit:.4g}: return {curve.value:.5g}\none more unit is worth {curve.multiplier:.4g}",
        (0.97, 0.05),
        xycoords="axes fraction",
        ha="right",
        va="bottom",
        fontsize=8,
    )
    # λ* is a step function. The grid does not say where between two points the step is: it is drawn in the middle.
    below.plot(curve.limits, curve.multipliers, color=colour, linewidth=1.9, drawstyle="steps-mid")
    below.plot([curve.limit], [curve.multiplier], "o", color=colour, markersize=6, zorder=4)
    below.set_xlabel(f"limit of {curve.name}")


def _cycle(count: int) -> list[str]:
    return [COLOURS[i % len(COLOURS)] for i in range(count)]
