"""Navigation's dynamics as laws, and that the two ways to the goal earn and cost what the task promises."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import apdo.envs
from apdo import rollout
from apdo.experiment import settings
from apdo.tasks import drawing
from apdo.tasks import navigation as nav
from apdo.tasks.navigation import Navigation

TASK = Navigation()
KEY = jax.random.key(0)
AROUND = ((-2.6, 1.9), (-0.6, 1.9), (0.6, -1.9), (2.6, -1.9), nav.GOAL)
THROUGH = (nav.GOAL,)
step = jax.jit(lambda state, action: TASK.step(state, action, KEY))


def at(position, velocity=(0.0, 0.0)):
    return TASK.place(jnp.asarray(position, dtype=jnp.float32), jnp.asarray(velocity, dtype=jnp.float32))


def along(points):
    """Full thrust towards one point after the other."""
    places = jnp.asarray(points)

    def act(reached, observation, key):
        position = observation[:2] * jnp.asarray([nav.HALF_WIDTH, nav.HALF_HEIGHT])
        near = jnp.sum(jnp.square(places[reached] - position)) < 0.4**2
        reached = jnp.minimum(reached + near, len(points) - 1)
        way = places[reached] - position
        wanted = nav.TOP_SPEED * way / jnp.max(jnp.abs(way))
        action = (wanted - nav.FRICTION * observation[2:] * nav.TOP_SPEED) / nav.THRUST
        return jnp.clip(action, -1.0, 1.0), reached

    return act, jnp.asarray(0)


def play(points, episodes=50):
    """Return, cost, length and whether it arrived, of each episode."""
    act, memory = along(points)
    run = jax.jit(lambda key: jax.vmap(lambda k: rollout.watch(TASK, act, memory, k))(jax.random.split(key, episodes)))
    _, steps = jax.device_get(run(KEY))
    ended = steps.terminated | steps.truncated
    counts = np.cumsum(ended, axis=1) - ended == 0
    final = np.argmax(ended, axis=1)
    places = steps.next_observation[np.arange(episodes), final, :2] * [nav.HALF_WIDTH, nav.HALF_HEIGHT]
    arrived = np.hypot(*(places - np.asarray(nav.GOAL)).T) < nav.GOAL_RADIUS
    return (steps.reward * counts).sum(axis=1), (steps.cost[..., 0] * counts).sum(axis=1), counts.sum(axis=1), arrived


def test_the_way_around_costs_nothing_and_earns_about_30():
    earned, cost, length, arrived = play(AROUND)
    assert arrived.all()
    assert cost.max() == 0
    assert earned.mean() == pytest.approx(30, abs=1)
    assert length.max() < TASK.horizon / 2


def test_the_straight_way_earns_a_little_more_and_breaks_the_limit():
    earned, cost, length, arrived = play(THROUGH)
    safe, _, longer, _ = play(AROUND)
    assert arrived.all()
    assert 0.5 < earned.mean() - safe.mean() < 3
    assert cost.min() > 2 * TASK.limits[0]
    assert length.mean() < longer.mean()


def test_under_constant_thrust_the_velocity_is_a_geometric_series():
    state, action = at((-5.0, -3.0)), jnp.asarray([1.0, 0.5])
    for t in range(1, 15):
        state = step(state, action).state
        expected = nav.TOP_SPEED * (1 - nav.FRICTION**t) * np.asarray([1.0, 0.5])
        np.testing.assert_allclose(state.velocity, expected, rtol=1e-5)
    travelled = nav.TOP_SPEED * sum(1 - nav.FRICTION**t for t in range(1, 15)) * np.asarray([1.0, 0.5])
    np.testing.assert_allclose(state.position, np.asarray([-5.0, -3.0]) + travelled, rtol=1e-5)


def test_thrust_beyond_1_is_clipped():
    one, more = step(at((0.0, 0.0)), jnp.asarray([1.0, -1.0])), step(at((0.0, 0.0)), jnp.asarray([7.0, -3.0]))
    np.testing.assert_array_equal(one.observation, more.observation)


def test_rewards_add_up_to_progress_less_time_plus_what_the_end_brings():
    """A telescoping sum: whatever the way, only its ends and its length count."""
    rng = np.random.default_rng(0)
    for _ in range(5):
        first = state = at(rng.uniform(-3, 3, 2))
        total, count, outcome = 0.0, 0, None
        while outcome is None or (not outcome.terminated and count < 400):
            outcome = step(state, jnp.asarray(rng.normal(0.4, 1.0, 2), dtype=jnp.float32))
            state, total, count = outcome.state, total + float(outcome.reward), count + 1
        assert outcome.terminated
        away = [float(nav.distance_to_goal(one.position)) for one in (first, state)]
        ending = nav.BONUS if away[1] < nav.GOAL_RADIUS else -nav.FINE
        assert total == pytest.approx(nav.PROGRESS * (away[0] - away[1]) - nav.TIME * count + ending, abs=1e-3)


def test_a_step_costs_1_exactly_where_a_wall_is():
    for x, y in itertools.product(np.linspace(-5.9, 5.9, 30), np.linspace(-3.9, 3.9, 20)):
        inside = any(left <= x <= right and bottom <= y <= top for left, bottom, right, top in nav.WALLS)
        assert float(step(at((x, y)), jnp.zeros(2)).cost[0]) == inside


@pytest.mark.parametrize(
    ("position", "velocity", "ended"),
    [
        ((nav.HALF_WIDTH - 0.1, 0.0), (0.3, 0.0), True),
        ((nav.HALF_WIDTH - 0.1, 0.0), (-0.3, 0.0), False),
        ((0.0, -nav.HALF_HEIGHT + 0.1), (0.0, -0.3), True),
        ((nav.GOAL[0] - nav.GOAL_RADIUS - 0.1, 0.0), (0.3, 0.0), True),
        ((nav.GOAL[0] - nav.GOAL_RADIUS - 0.1, 0.0), (0.0, 0.0), False),
        ((0.0, 0.0), (0.3, 0.3), False),
    ],
)
def test_an_episode_ends_at_the_goal_and_outside_the_arena_and_nowhere_else(position, velocity, ended):
    assert bool(step(at(position, velocity), jnp.zeros(2)).terminated) == ended


def test_starts_are_near_the_start_and_in_no_hazard():
    starts = jax.vmap(TASK.reset)(jax.random.split(KEY, 500))
    offset = np.abs(np.asarray(starts.position) - np.asarray(nav.START))
    assert (offset <= np.asarray(nav.START_SPREAD)).all()
    assert (offset.max(axis=0) > 0.95 * np.asarray(nav.START_SPREAD)).all()
    assert not jax.vmap(nav.in_hazard)(starts.position).any()
    assert not np.asarray(starts.velocity).any()


def test_the_limit_speaks_of_the_total_unless_told_otherwise():
    assert settings.make_experiment("pdo", "navigation").problem().cost_discount == 1.0
    discounted = settings.make_experiment("pdo", "navigation", {"constrain": "discounted"})
    assert discounted.problem().cost_discount == TASK.discount
    assert apdo.envs.find("navigation") is Navigation


def test_the_picture_shows_hazards_goal_and_point():
    def colours(state):
        picture = drawing.draw(TASK, jax.device_get(state)).reshape(-1, 3).astype(int)
        wanted = [[int(text[i : i + 2], 16) for i in (1, 3, 5)] for text in (drawing._BAD_PALE, drawing._SELF)]
        return [int((np.abs(picture - one).max(axis=1) < 6).sum()) for one in wanted]

    scale = (drawing.WIDTH - 20) / (2 * nav.HALF_WIDTH)
    area = sum((right - left) * (top - bottom) for left, bottom, right, top in nav.WALLS) * scale**2
    far, inside = colours(at((-4.0, 0.0))), colours(at((-1.6, 0.0)))
    assert far[0] == pytest.approx(area, rel=0.1)
    assert inside[0] < far[0]
    assert inside[1] == pytest.approx(far[1], rel=0.3)
