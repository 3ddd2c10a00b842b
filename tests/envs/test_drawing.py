"""Pictures show what the state is."""

import jax
import numpy as np
import pytest

from apdo.envs import drawing
from apdo.envs.navigation import Navigation
from apdo.envs.point_gather import PointGather
from apdo.envs.queueing import QueueingNetwork
from apdo.envs.tabular import Gridworld
from apdo.envs.wind_turbine import WindTurbine
from apdo.errors import InvalidInput
from problems import Reach

SHAPE = (drawing.HEIGHT + drawing.CAPTION, drawing.WIDTH, 3)


def start(environment, seed=0):
    return jax.device_get(environment.reset(jax.random.key(seed)))


def count(picture, colour):
    """Pixels of nearly this colour."""
    wanted = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])
    return int(np.sum(np.abs(picture.astype(int) - wanted).max(axis=-1) < 12))


@pytest.mark.parametrize(
    "environment", [PointGather(), Gridworld(), QueueingNetwork(buffer=40), WindTurbine(), Navigation()]
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
