"""Pictures of the JAX-native environments' states, as arrays [height, width, 3] of bytes."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from apdo.envs import point_gather

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE = 4.8
"""Inches at 100 dots each."""
APPLE, BOMB, ROBOT, GROUND = "#2a9d3a", "#c0392b", "#1f4e79", "#f4f1e8"


def draw(name: str, task: Any, state: Any, observation: np.ndarray, caption: str) -> np.ndarray:  # noqa: ANN401
    """The picture of a state, with a caption above it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(SIZE, SIZE), dpi=100)
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_axes((0.08, 0.06, 0.88, 0.86))
    axes.set_title(caption, fontsize=8)
    if name == "point-gather":
        _point_gather(axes, state, observation)
    elif name == "gridworld":
        _gridworld(axes, task, state)
    else:
        _bars(axes, observation)
    canvas.draw()
    return np.array(canvas.buffer_rgba())[..., :3].copy()


def _point_gather(axes: "Axes", state: Any, observation: np.ndarray) -> None:  # noqa: ANN401
    """The arena from above: what is left, the robot, and its sensor's bins, filled as far as they read."""
    from matplotlib.patches import Circle, Wedge

    reach = point_gather.ARENA + 1.5
    axes.set_xlim(-reach, reach)
    axes.set_ylim(-reach, reach)
    axes.set_aspect("equal")
    axes.set_facecolor(GROUND)
    x, y = (float(value) for value in state.position)
    heading = math.degrees(float(state.heading))
    width = math.degrees(point_gather.SENSOR_SPAN) / point_gather.BINS
    bins = observation[-2 * point_gather.BINS :].reshape(2, point_gather.BINS)
    for k in range(point_gather.BINS):
        first = heading - math.degrees(point_gather.SENSOR_SPAN) / 2 + k * width
        axes.add_patch(Wedge((x, y), point_gather.SENSOR_RANGE, first, first + width, fill=False, lw=0.4, ec="#999999"))
        for reading, colour in zip(bins[:, k], (APPLE, BOMB), strict=True):
            if reading > 0:
                # A bin reads 1 - distance/range: the wedge ends where the nearest object is.
                far = (1.0 - float(reading)) * point_gather.SENSOR_RANGE
                axes.add_patch(Wedge((x, y), far, first, first + width, fc=colour, alpha=0.2, lw=0))
    for i, (place, left) in enumerate(zip(np.asarray(state.objects), np.asarray(state.remaining), strict=True)):
        if left:
            colour = APPLE if i < point_gather.APPLES else BOMB
            axes.add_patch(Circle((float(place[0]), float(place[1])), 0.35, fc=colour, ec="black", lw=0.5))
    axes.add_patch(Circle((x, y), 0.5, fc=ROBOT, ec="black", lw=0.5))
    ahead = float(state.heading)
    axes.plot([x, x + 1.1 * math.cos(ahead)], [y, y + 1.1 * math.sin(ahead)], color=ROBOT, lw=3)


def _gridworld(axes: "Axes", task: Any, state: Any) -> None:  # noqa: ANN401
    rows = task.layout
    shades = np.array([[{"h": 0.55, "G": 0.8, "S": 0.95}.get(cell, 1.0) for cell in row] for row in rows])
    axes.imshow(shades, cmap="gray", vmin=0.0, vmax=1.0)
    for row, line in enumerate(rows):
        for column, cell in enumerate(line):
            if cell != ".":
                axes.text(column, row, cell, ha="center", va="center", color=BOMB if cell == "h" else "black")
    place = int(state)
    if place < shades.size:
        axes.plot(place % shades.shape[1], place // shades.shape[1], "o", ms=18, color=ROBOT)
    axes.set_xticks([])
    axes.set_yticks([])


def _bars(axes: "Axes", observation: np.ndarray) -> None:
    """Any observation: a bar for each entry."""
    axes.bar(np.arange(len(observation)), observation, color=ROBOT)
    axes.set_xlabel("entry of the observation", fontsize=8)
    axes.tick_params(labelsize=7)
