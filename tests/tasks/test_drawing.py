"""Pictures show what the state is."""

import jax
import numpy as np
import pytest

from apdo.errors import InvalidInput
from apdo.tasks import drawing
from apdo.tasks.navigation import Navigation
from apdo.tasks.point_gather import PointGather
from apdo.tasks.queueing import QueueingNetwork
from apdo.tasks.safety_point import PointCircle1, PointCircle2, PointGoal1
from apdo.tasks.tabular import Gridworld
from apdo.tasks.wind_turbine import WindTurbine
from problems import Reach

SHAPE = (drawing.HEIGHT + drawing.CAPTION, drawing.WIDTH, 3)


def start(environment, seed=0):
    return jax.device_get(environment.reset(jax.random.key(seed)))


def count(picture, colour):
    """Pixels of nearly this colour."""
    wanted = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])
    return int(np.sum(np.abs(picture.astype(int) - wanted).max(axis=-1) < 12))


@pytest.mark.parametrize(
    "environment",
    [PointGather(), PointGoal1(), PointCircle1(), Gridworld(), QueueingNetwork(buffer=40), WindTurbine(), Navigation()],
)
def test_a_state_is_bytes_of_one_size_and_another_state_looks_different(environment):
    first, second = start(environment), start(environment, 1)
    if isinstance(environment, Gridworld | QueueingNetwork):
        second = first + 1
    pictures = [drawing.draw(environment, state) for state in (first, second, first)]
    assert all(picture.shape == SHAPE and picture.dtype == np.uint8 for picture in pictures)
    assert np.array_equal(pictures[0], pictures[2])
    assert not np.array_equal(pictures[0], pictures[1])


def test_taking_an_apple_takes_its_green_from_the_picture():
    environment = PointGather()
    state = start(environment)
    before = count(drawing.draw(environment, state), drawing._GOOD)
    remaining = np.array(state.remaining)
    remaining[:2] = False
    object.__setattr__(state, "remaining", remaining)
    after = count(drawing.draw(environment, state), drawing._GOOD)
    assert before > 2 * after


def test_the_sensor_s_bins_are_lit_up_to_an_object_ahead_and_not_for_one_behind():
    environment = PointGather()
    state = start(environment)
    object.__setattr__(state, "remaining", np.eye(10, dtype=bool)[5])
    for place, lit in (((4.0, 0.3), True), ((-4.0, 0.3), False)):
        objects = np.full((10, 2), 20.0, dtype=np.float32)
        objects[5] = place
        object.__setattr__(state, "objects", objects)
        assert (count(drawing.draw(environment, state), drawing._BAD_PALE) > 50) == lit


def test_a_hazard_is_dark_with_the_robot_inside_and_everything_has_its_size():
    environment = PointGoal1()
    state = start(environment)
    hazards = np.full((8, 2), 1.2, dtype=np.float32)
    object.__setattr__(state.robot, "position", np.zeros(2, dtype=np.float32))
    object.__setattr__(state, "hazards", hazards)
    outside = drawing.draw(environment, state)
    hazards[0] = 0.15, 0.0
    inside = drawing.draw(environment, state)
    assert count(inside, drawing._BAD) > count(outside, drawing._BAD) + 300
    # 100 pixels per metre: the robot's disc and arrow, less their borders, and a hazard.
    assert count(outside, drawing._SELF) == pytest.approx(1e4 * (np.pi * 0.1**2 + 0.5 * 0.1**2), rel=0.25)
    assert count(outside, drawing._BAD_PALE) == pytest.approx(1e4 * np.pi * 0.2**2, rel=0.15)


def test_a_robot_far_away_is_still_in_the_picture():
    environment = PointCircle1()
    state = start(environment)
    object.__setattr__(state, "position", np.array([5.0, -7.0], dtype=np.float32))
    assert count(drawing.draw(environment, state), drawing._SELF) >= 5


@pytest.mark.parametrize(("environment", "share"), [(PointCircle1(), 2.25 / 4.0), (PointCircle2(), (2.25 / 4.0) ** 2)])
def test_what_lies_beyond_the_walls_is_red(environment, share):
    state = start(environment)
    object.__setattr__(state, "position", np.zeros(2, dtype=np.float32))
    beyond = count(drawing.draw(environment, state), drawing._BAD_PALE) / (drawing.WIDTH * drawing.HEIGHT)
    assert beyond == pytest.approx(1.0 - share, abs=0.04)


def test_a_longer_queue_is_a_fuller_tank():
    network = QueueingNetwork(buffer=40)
    heights = [count(drawing.draw(network, np.array([n, 0])), drawing._SELF) for n in (5, 10, 20)]
    assert heights[1] == pytest.approx(2 * heights[0], rel=0.1)
    assert heights[2] == pytest.approx(4 * heights[0], rel=0.1)


def test_a_caption_is_written_above_and_changes_nothing_below():
    environment = Gridworld()
    plain, named = (
        drawing.draw(environment, start(environment)),
        drawing.draw(environment, start(environment), ["return 3"]),
    )
    assert not np.array_equal(plain[: drawing.CAPTION], named[: drawing.CAPTION])
    assert np.array_equal(plain[drawing.CAPTION :], named[drawing.CAPTION :])


def test_an_environment_without_a_picture_is_refused_by_name():
    assert not drawing.can_draw(Reach())
    with pytest.raises(InvalidInput, match="Reach"):
        drawing.draw(Reach(), np.asarray(0))
