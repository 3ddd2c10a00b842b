"""Pictures of the environments' states: `draw(environment, state)` gives an RGB array of bytes.

States have numpy arrays in place of the environment's JAX arrays. Everything is drawn at three times the size and then
averaged down, which smooths edges. Pillow comes with matplotlib, and is imported only when something is drawn.
"""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from apdo.errors import InvalidInput
from apdo.tasks import navigation as nav
from apdo.tasks import point_gather as pg
from apdo.tasks import safety_point as sp
from apdo.tasks import wind_turbine as wt
from apdo.tasks.navigation import Navigation
from apdo.tasks.point_gather import PointGather
from apdo.tasks.queueing import QueueingNetwork
from apdo.tasks.tabular import Garnet, Gridworld, Tabular, TwoState
from apdo.tasks.wind_turbine import WindTurbine

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

WIDTH, HEIGHT, CAPTION = 400, 400, 44
"""Pixels of a picture, and of the band above it for a caption."""
_FINE = 3
_INK, _PALE, _GROUND = "#333333", "#999999", "#FFFFFF"
_GOOD, _BAD, _SELF = "#009E73", "#D55E00", "#0072B2"
_GOOD_PALE, _BAD_PALE, _SELF_PALE = "#BFE7DC", "#F5D5C0", "#C6DFEF"

State: TypeAlias = Any
"""An environment's own `State`, with numpy arrays."""


def draw(environment: object, state: State, caption: Sequence[str] = ()) -> np.ndarray:
    """The state as [HEIGHT + CAPTION, WIDTH, 3] bytes, with up to two lines of text above it."""
    from PIL import Image, ImageDraw

    painter = _PAINTERS.get(type(environment))
    if painter is None:
        raise InvalidInput(f"there is no picture of {type(environment).__name__}; {_known()} can be drawn.")
    size = (WIDTH * _FINE, (HEIGHT + CAPTION) * _FINE)
    image = Image.new("RGB", size, _GROUND)
    canvas = _Canvas(ImageDraw.Draw(image), CAPTION * _FINE)
    painter(canvas, environment, state)
    canvas.caption(caption)
    return np.asarray(image.resize((WIDTH, HEIGHT + CAPTION), Image.Resampling.BOX))


def captioned(picture: np.ndarray, caption: Sequence[str]) -> np.ndarray:
    """An environment's own picture, [H, W, 3] bytes, scaled to `WIDTH` pixels, with up to two lines of text above."""
    from PIL import Image, ImageDraw

    height = max(1, round(picture.shape[0] * WIDTH / picture.shape[1]))
    height += height % 2  # video codecs need an even number of lines
    image = Image.new("RGB", (WIDTH * _FINE, (height + CAPTION) * _FINE), _GROUND)
    _Canvas(ImageDraw.Draw(image), CAPTION * _FINE).caption(caption)
    image = image.resize((WIDTH, height + CAPTION), Image.Resampling.BOX)
    image.paste(Image.fromarray(picture).resize((WIDTH, height), Image.Resampling.LANCZOS), (0, CAPTION))
    return np.asarray(image)


def can_draw(environment: object) -> bool:
    """Whether there is a picture of this environment."""
    return type(environment) in _PAINTERS


def _known() -> str:
    return ", ".join(kind.__name__ for kind in _PAINTERS)


class _Canvas:
    """A canvas with coordinates in pixels of the final picture. (0, 0) is the top left corner below the caption."""

    def __init__(self, brush: "ImageDraw", top: int) -> None:
        self.brush, self.top = brush, top

    def caption(self, lines: Sequence[str]) -> None:
        """Up to two lines in the band above the picture, in letters that fit."""
        self.brush.rectangle((0, 0, WIDTH * _FINE, self.top - 1), fill=_GROUND)
        for i, line in enumerate(lines[:2]):
            fitting = next((s for s in range(14, 7, -1) if _font(s).getlength(line) <= WIDTH - 20), 7)
            self.text(10, 4 + 19 * i - CAPTION, line, fitting, _INK)

    def place(self, x: float, y: float) -> tuple[float, float]:
        return x * _FINE, y * _FINE + self.top

    def line(self, points: Sequence[tuple[float, float]], colour: str, width: float = 1.0) -> None:
        self.brush.line([self.place(*point) for point in points], fill=colour, width=round(width * _FINE))

    def polygon(self, points: Sequence[tuple[float, float]], fill: str, outline: str | None = None) -> None:
        self.brush.polygon([self.place(*point) for point in points], fill=fill, outline=outline)

    def box(
        self, x: float, y: float, right: float, bottom: float, fill: str | None, outline: str | None = None
    ) -> None:
        left_top, right_bottom = self.place(x, y), self.place(right, bottom)
        self.brush.rectangle((*left_top, *right_bottom), fill=fill, outline=outline, width=_FINE)

    def disc(self, x: float, y: float, radius: float, fill: str | None, outline: str | None = None) -> None:
        low, high = self.place(x - radius, y - radius), self.place(x + radius, y + radius)
        self.brush.ellipse((*low, *high), fill=fill, outline=outline, width=_FINE)

    def wedge(
        self, x: float, y: float, radius: float, first: float, last: float, fill: str | None, outline: str | None = None
    ) -> None:
        """A slice between two angles in degrees, clockwise from the right."""
        low, high = self.place(x - radius, y - radius), self.place(x + radius, y + radius)
        self.brush.pieslice((*low, *high), first, last, fill=fill, outline=outline, width=_FINE)

    def text(self, x: float, y: float, text: str, size: int, colour: str, anchor: str = "la") -> None:
        self.brush.text(self.place(x, y), text, font=_font(size * _FINE), fill=colour, anchor=anchor)

    def cross(self, x: float, y: float, half: float, colour: str) -> None:
        for slope in (-1, 1):
            self.line([(x - half, y - slope * half), (x + half, y + slope * half)], colour, 2)

    def gauge(self, y: float, name: str, value: float, most: float, shown: str, mark: float | None = None) -> None:
        """A named horizontal bar, with a mark at a limit. It turns red beyond the mark."""
        left, right = 118.0, 318.0
        share = min(max(value / most, 0.0), 1.0)
        over = mark is not None and value > mark
        self.text(10, y + 1, name, 12, _INK)
        self.box(left, y, right, y + 14, "#F2F2F2")
        self.box(left, y, left + max(share * (right - left), 1.0), y + 14, _BAD if over else _SELF)
        if mark is not None:
            at = left + mark / most * (right - left)
            self.line([(at, y - 2), (at, y + 16)], _INK, 1.5)
        self.text(right + 8, y + 1, shown, 12, _INK)


def _font(size: int) -> Any:  # noqa: ANN401 Pillow has several kinds of font, with no name in common
    from PIL import ImageFont

    return ImageFont.load_default(size)


def _point_gather(canvas: _Canvas, environment: PointGather, state: State) -> None:
    """The arena from above: apples green, bombs red, the robot blue, and the sensor's bins, lit where they see."""
    scale = WIDTH / (2 * pg.ARENA + 4.0)

    def at(point: Sequence[float] | np.ndarray) -> tuple[float, float]:
        return WIDTH / 2 + scale * float(point[0]), HEIGHT / 2 - scale * float(point[1])

    position, heading = np.asarray(state.position), float(state.heading)
    centre = position + pg.CENTRE_AHEAD * np.array([math.cos(heading), math.sin(heading)])
    observation = np.asarray(environment.observe(state))
    apples, bombs = observation[9 : 9 + pg.BINS], observation[9 + pg.BINS :]
    x, y = at(centre)
    for i in range(pg.BINS):
        low = heading - pg.SENSOR_SPAN / 2 + i * pg.SENSOR_SPAN / pg.BINS
        # Pillow's angles are clockwise, and the world's are counter-clockwise.
        first, last = math.degrees(-low - pg.SENSOR_SPAN / pg.BINS), math.degrees(-low)
        readings = [(float(apples[i]), _GOOD_PALE), (float(bombs[i]), _BAD_PALE)]
        canvas.wedge(x, y, pg.SENSOR_RANGE * scale, first, last, None, "#D8D8D8")
        # A reading gives the distance of the nearest object. The bin is coloured up to it, first for the farther kind.
        for reading, colour in sorted(readings, key=lambda pair: pair[0]):
            if reading > 0.0:
                canvas.wedge(x, y, (1.0 - reading) * pg.SENSOR_RANGE * scale, first, last, colour, "#D8D8D8")
    corner, opposite = at((-pg.ARENA, pg.ARENA)), at((pg.ARENA, -pg.ARENA))
    canvas.box(*corner, *opposite, None, _PALE)
    for i, (place, remains) in enumerate(zip(np.asarray(state.objects), np.asarray(state.remaining), strict=True)):
        apple = i < pg.APPLES
        if remains:
            canvas.disc(*at(place), 0.32 * scale, _GOOD if apple else _BAD, _INK)
        else:
            canvas.cross(*at(place), 0.2 * scale, _GOOD if apple else _BAD)
    canvas.disc(*at(centre), pg.CATCH_RANGE * scale, None, _SELF)
    tip = [position + r * np.array([math.cos(heading + a), math.sin(heading + a)]) for r, a in _ARROW]
    canvas.disc(*at(position), 0.4 * scale, _SELF, _INK)
    canvas.polygon([at(point) for point in tip], _SELF, _INK)


_ARROW = ((1.0, 0.0), (0.5, 0.5), (0.5, -0.5))


def _from_above(
    robot: State, half: float
) -> tuple[Callable[[Sequence[float] | np.ndarray], tuple[float, float]], float]:
    """The map from the plane to the picture, and pixels per metre. It shows ±half, or more if the robot is outside."""
    half = max(half, float(np.abs(np.asarray(robot.position)).max()) + 0.3)
    scale = WIDTH / (2.0 * half)
    return lambda point: (WIDTH / 2 + scale * float(point[0]), HEIGHT / 2 - scale * float(point[1])), scale


def _square(middle: np.ndarray, half: float, heading: float) -> list[np.ndarray]:
    """The corners of a square."""
    along = half * np.array([math.cos(heading), math.sin(heading)])
    across = np.array([-along[1], along[0]])
    return [middle + a * along + b * across for a, b in ((1, 1), (1, -1), (-1, -1), (-1, 1))]


def _point_robot(canvas: _Canvas, robot: State, at: Callable[..., tuple[float, float]], scale: float) -> None:
    position, heading = np.asarray(robot.position), float(robot.heading)
    ahead = position + sp.ARROW * np.array([math.cos(heading), math.sin(heading)])
    canvas.disc(*at(position), sp.ROBOT_RADIUS * scale, _SELF, _INK)
    canvas.polygon([at(corner) for corner in _square(ahead, sp.ARROW_SIZE, heading)], _SELF, _INK)


def _point_goal(canvas: _Canvas, environment: sp.PointGoal, state: State) -> None:
    """From above: the goal green, hazards red and darker with the robot inside, the vase grey, the robot blue."""
    at, scale = _from_above(state.robot, environment.extent + 0.5)
    canvas.disc(*at(np.asarray(state.goal)), sp.GOAL_SIZE * scale, _GOOD_PALE, _GOOD)
    for hazard in np.asarray(state.hazards):
        inside = np.linalg.norm(hazard - np.asarray(state.robot.position)) < sp.HAZARD_SIZE
        canvas.disc(*at(hazard), sp.HAZARD_SIZE * scale, _BAD if inside else _BAD_PALE, _BAD)
    for vase, heading in zip(np.asarray(state.vase), np.asarray(state.vase_heading), strict=True):
        canvas.polygon([at(corner) for corner in _square(vase, sp.VASE_SIZE, float(heading))], "#CCCCCC", _INK)
    _point_robot(canvas, state.robot, at, scale)


def _point_circle(canvas: _Canvas, environment: sp.PointCircle, state: State) -> None:
    """From above: the circle green, the area beyond the walls red, the robot blue."""
    at, scale = _from_above(state, 2.0)
    far, wall = WIDTH / scale, sp.WALL
    if environment.walls:
        canvas.box(0, 0, WIDTH, HEIGHT, _BAD_PALE)
        up = wall if environment.walls == 4 else far
        canvas.box(*at((-wall, up)), *at((wall, -up)), _GROUND, _BAD)
    canvas.disc(*at((0.0, 0.0)), sp.CIRCLE_RADIUS * scale, None, _GOOD)
    _point_robot(canvas, state, at, scale)


def _gridworld(canvas: _Canvas, environment: Gridworld, state: State) -> None:
    """The grid: hazardous ground red, the goal green, the walker blue."""
    rows, columns = len(environment.layout), len(environment.layout[0])
    side = (WIDTH - 20) / columns
    top = (HEIGHT - rows * side) / 2
    for row, line in enumerate(environment.layout):
        for column, mark in enumerate(line):
            x, y = 10 + column * side, top + row * side
            canvas.box(x, y, x + side, y + side, {"h": _BAD_PALE, "G": _GOOD_PALE}.get(mark, "#FAFAFA"), _PALE)
            if mark in "SG":
                canvas.text(x + side / 2, y + side / 2, mark, 20, _PALE, "mm")
    row, column = divmod(int(state), columns)
    if row < rows:
        canvas.disc(10 + (column + 0.5) * side, top + (row + 0.5) * side, 0.3 * side, _SELF, _INK)
    else:
        canvas.text(WIDTH / 2, HEIGHT - 40, "at the goal", 18, _GOOD, "mm")


def _states(canvas: _Canvas, environment: Tabular, state: State) -> None:
    """The states on a circle, with the current one blue."""
    count, radius = environment.observation_size, 0.4 * HEIGHT
    for number in range(count):
        angle = 2.0 * math.pi * number / count
        x, y = WIDTH / 2 + radius * math.cos(angle), HEIGHT / 2 + radius * math.sin(angle)
        canvas.disc(x, y, min(14.0, 2.0 * radius / count + 2.0), _SELF if number == int(state) else "#F2F2F2", _PALE)
    canvas.text(WIDTH / 2, HEIGHT / 2, f"state {int(state)}", 18, _INK, "mm")


def _queueing(canvas: _Canvas, environment: QueueingNetwork, state: State) -> None:
    """Every queue as a tank that fills up to its buffer."""
    lengths = np.asarray(state)
    gap = WIDTH / (len(lengths) + 1)
    width, top, bottom = min(0.6 * gap, 110.0), 30.0, HEIGHT - 60.0
    for i, length in enumerate(lengths):
        x = gap * (i + 1) - width / 2
        level = bottom - (bottom - top) * float(length) / environment.buffer
        canvas.box(x, top, x + width, bottom, "#F2F2F2", _PALE)
        if length:
            canvas.box(x, level, x + width, bottom, _BAD if length >= environment.buffer else _SELF)
        canvas.text(x + width / 2, bottom + 8, f"queue {i + 1}", 14, _INK, "ma")
        canvas.text(x + width / 2, bottom + 27, f"{int(length)} of {environment.buffer}", 14, _INK, "ma")


def _navigation(canvas: _Canvas, environment: Navigation, state: State) -> None:  # noqa: ARG001
    """The arena from above: hazards red, the goal green, the point blue with its velocity."""
    scale = (WIDTH - 20) / (2 * nav.HALF_WIDTH)

    def at(x: float, y: float) -> tuple[float, float]:
        return WIDTH / 2 + scale * x, HEIGHT / 2 - scale * y

    for left, bottom, right, top in nav.WALLS:
        canvas.box(*at(left, top), *at(right, bottom), _BAD_PALE, _BAD)
    canvas.box(*at(-nav.HALF_WIDTH, nav.HALF_HEIGHT), *at(nav.HALF_WIDTH, -nav.HALF_HEIGHT), None, _PALE)
    canvas.disc(*at(*nav.GOAL), nav.GOAL_RADIUS * scale, _GOOD_PALE, _GOOD)
    (x, y), (vx, vy) = np.asarray(state.position).tolist(), np.asarray(state.velocity).tolist()
    # The line ends where the point would be in four steps.
    canvas.line([at(x, y), at(x + 4.0 * vx, y + 4.0 * vy)], _INK, 2)
    canvas.disc(*at(x, y), 0.18 * scale, _SELF, _INK)


def _wind_turbine(canvas: _Canvas, environment: WindTurbine, state: State) -> None:  # noqa: ARG001
    """The turbine from the side: bent tower, pitched blades, the wind as arrows; and its instruments."""
    speed, pitch, wind = float(state.speed), float(state.pitch), float(state.wind)
    ground, height, length = 258.0, 150.0, 88.0
    # The deflection in metres is drawn at 25 times its size.
    shift = 25.0 * float(state.deflection) * height / wt.HUB_HEIGHT
    foot, hub = (185.0, ground), (185.0 + shift, ground - height)
    for i in range(5):
        y = ground - 235.0 + 50.0 * i
        tip = 14.0 + 6.0 * wind
        canvas.line([(14.0, y), (tip, y)], _SELF_PALE, 3)
        canvas.polygon([(tip + 8, y), (tip - 2, y - 5), (tip - 2, y + 5)], _SELF_PALE)
    canvas.line([(0, ground), (WIDTH, ground)], _PALE, 2)
    bend = [
        (foot[0] + shift * (s**2 * (3 - s) / 2) + side * (5 - 2.5 * s), ground - height * s)
        for side, steps in ((-1, range(11)), (1, range(10, -1, -1)))
        for s in (step / 10 for step in steps)
    ]
    canvas.polygon(bend, "#CCCCCC", _PALE)
    canvas.box(hub[0], hub[1] - 6, hub[0] + 26, hub[1] + 6, "#CCCCCC", _PALE)
    # Two blades are seen edge on. Pitch turns their chord out of the rotor's plane, and is shown as width.
    half = 2.0 + 9.0 * math.sin(math.radians(pitch))
    for up in (-1, 1):
        root, end = hub[1] + 5 * up, hub[1] + length * up
        canvas.polygon([(hub[0] - half, root), (hub[0] + half, root), (hub[0] + 1, end), (hub[0] - 1, end)], _INK)
    canvas.disc(*hub, 6, _INK)
    limit = wt.OVER_SPEED * 12.1
    rpm = speed * 30.0 / math.pi
    power = min(wt.EFFICIENCY * wt.GEAR * float(state.torque) * speed, wt.RATED_POWER) / 1e6
    moment = float(np.asarray(state.residue)[0, 0]) * wt.REFERENCE_RANGE[0] / 1e6
    canvas.gauge(268, "wind", wind, 25.0, f"{wind:.1f} m/s")
    canvas.gauge(290, "rotor", rpm, 18.0, f"{rpm:.1f} rpm", limit)
    canvas.gauge(312, "pitch", pitch, wt.MOST_PITCH, f"{pitch:.1f}°")
    canvas.gauge(334, "torque", float(state.torque), wt.MOST_TORQUE, f"{float(state.torque) / 1e3:.1f} kN m")
    canvas.gauge(356, "power", power, 5.0, f"{power:.2f} MW")
    canvas.gauge(378, "tower moment", moment, 100.0, f"{moment:.0f} MN m")


_PAINTERS: dict[type, Callable[[_Canvas, Any, State], None]] = {
    PointGather: _point_gather,
    sp.PointGoal0: _point_goal,
    sp.PointGoal1: _point_goal,
    sp.PointCircle0: _point_circle,
    sp.PointCircle1: _point_circle,
    sp.PointCircle2: _point_circle,
    Gridworld: _gridworld,
    TwoState: _states,
    Garnet: _states,
    QueueingNetwork: _queueing,
    Navigation: _navigation,
    WindTurbine: _wind_turbine,
}
