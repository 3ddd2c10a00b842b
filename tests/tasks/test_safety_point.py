"""The point tasks against Safety-Gymnasium's own episodes (tests/data/make_safety_point.py), and against their laws."""

import math
from functools import cache
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from apdo.tasks import safety_point as sp

TASKS = (sp.PointGoal0, sp.PointGoal1, sp.PointCircle0, sp.PointCircle1, sp.PointCircle2)
EACH = 20
KEY = jax.random.key(0)
FINE = 1e-4


@cache
def recorded():
    with np.load(Path(__file__).parents[1] / "data" / "safety_point.npz") as file:
        return {name: file[name] for name in file.files}


def of_task(number):
    """The recorded episodes of one task."""
    rows = slice(number * EACH, (number + 1) * EACH)
    return {name: part[rows] for name, part in recorded().items() if len(part) == EACH * len(TASKS)}


def robot_of(state, action=(0.0, 0.0)):
    state = jnp.asarray(state)
    return sp.Robot(
        position=state[:2],
        heading=state[2],
        velocity=state[3:5],
        spin=state[5],
        action=jnp.asarray(action, state.dtype),
    )


def numbers_of(robot):
    return jnp.concatenate([robot.position, robot.heading[None], robot.velocity, robot.spin[None]])


def off(state, wanted):
    """Differences between states, headings by the shorter way round."""
    difference = np.asarray(state) - wanted
    difference[..., 2] = np.angle(np.exp(1j * difference[..., 2]))
    return np.abs(difference)


@jax.jit
def driven(start, actions):
    """The states that follow each other under actions."""

    def advance(robot, action):
        robot = sp.drive(robot, action)
        return robot, numbers_of(robot)

    return jax.lax.scan(advance, robot_of(start), actions)[1]


def state_of(task, robot, goal, hazards, vase) -> Any:
    if isinstance(task, sp.PointCircle):
        return robot
    dtype = robot.position.dtype
    return sp.GoalState(
        robot=robot,
        goal=jnp.asarray(goal, dtype),
        hazards=jnp.asarray(hazards[: task.hazards], dtype),
        vase=jnp.asarray(vase[None][: task.vases], dtype),
        vase_heading=jnp.zeros(task.vases, dtype),
    )


def replay(number, dtype):
    """The recorded steps of a task, taken here from the recorded states: what came out next to what is recorded."""
    task, data = TASKS[number](), of_task(number)
    step, observe = jax.jit(task.step), jax.jit(task.observe)
    for e in range(EACH):
        for i, t in enumerate(data["when"][e]):
            wanted = {name: data[name][e, i] for name in ("after", "goals", "reward", "cost", "observation")}
            scene = (data["hazards"][e], data["vase"][e])
            robot = robot_of(np.asarray(data["before"][e, i], dtype))
            action = jnp.asarray(data["actions"][e, t] / 64.0, dtype)
            outcome = step(state_of(task, robot, wanted["goals"][0], *scene), action, KEY)
            after = getattr(outcome.state, "robot", outcome.state)
            # The next goal is drawn, and another one here: what is seen is seen with the recorded one.
            seen = observe(state_of(task, after, wanted["goals"][1], *scene))
            yield outcome, numbers_of(after), seen, wanted


def is_goal(number):
    return issubclass(TASKS[number], sp.PointGoal)


each_task = pytest.mark.parametrize("number", range(len(TASKS)), ids=[task.__name__ for task in TASKS])


@each_task
def test_a_step_is_the_originals(number, double_precision):
    """States and rewards to the last digits, costs exactly, observations as exactly as they are recorded."""
    goals_met = costs = 0
    for outcome, after, seen, wanted in replay(number, np.float64):
        assert off(after, wanted["after"]).max() < 1e-11
        assert float(outcome.reward) == pytest.approx(float(wanted["reward"]), abs=1e-12)
        assert outcome.cost.tolist() == [wanted["cost"]]
        np.testing.assert_allclose(seen, wanted["observation"][: len(seen)], rtol=3e-7, atol=1e-7)
        assert np.isnan(wanted["observation"][len(seen) :]).all()
        assert not outcome.terminated
        costs += int(wanted["cost"])
        if is_goal(number):
            met = bool((wanted["goals"][0] != wanted["goals"][1]).any())
            assert bool((outcome.state.goal != wanted["goals"][0]).any()) == met
            goals_met += met
    assert goals_met >= 4 * is_goal(number)
    assert costs >= 5 * (TASKS[number] in (sp.PointGoal1, sp.PointCircle1, sp.PointCircle2))


@each_task
def test_a_step_is_the_originals_to_rounding_in_single_precision(number):
    """The turning actuator amplifies roundings of the spin, by up to 3.7 in each of ten steps; all else stays small."""
    for outcome, after, seen, wanted in replay(number, np.float32):
        assert off(after, wanted["after"])[:5].max() < 3e-5
        assert off(after, wanted["after"])[5] < 5e-3
        assert float(outcome.reward) == pytest.approx(float(wanted["reward"]), abs=3e-6)
        assert outcome.cost.tolist() == [wanted["cost"]]
        np.testing.assert_allclose(seen[6:], wanted["observation"][6 : len(seen)], rtol=0, atol=5e-3)


@each_task
def test_sensors_and_lidars_are_the_originals_given_the_state(number):
    task, data = TASKS[number](), of_task(number)
    observe = jax.jit(task.observe)
    for e in range(EACH):
        for i, t in enumerate(data["when"][e]):
            robot = robot_of(np.float32(data["after"][e, i]), data["actions"][e, t] / 64.0)
            seen = observe(state_of(task, robot, data["goals"][e, i, 1], data["hazards"][e], data["vase"][e]))
            wanted = data["observation"][e, i][: len(seen)]
            # Accelerations up to 20 m/s², 450 times the spin's rounding: sideways by the feedback of the turning.
            np.testing.assert_allclose(seen[:3], wanted[:3], rtol=0, atol=3e-5)
            np.testing.assert_allclose(seen[3:], wanted[3:], rtol=0, atol=3e-6)


@pytest.mark.parametrize("number", range(len(TASKS)))
def test_free_motion_stays_with_the_original_for_200_steps(number):
    """Where the turning actuator is at its bound throughout; in between it is chaotic, and no two programs agree."""
    data = of_task(number)
    for e in range(5):
        states = driven(np.float32(data["start"][e]), np.float32(data["actions"][e] / 64.0))
        assert set(np.abs(data["actions"][e, :, 1])) == {64}
        assert off(states[9::10], data["track"][e]).max() < 1e-4


def test_differences_of_the_spin_grow_until_they_are_as_large_as_its_swing(double_precision):
    """Why episodes are compared step by step: the original's feedback on the spin is unstable at steps of 2 ms."""
    gain = sp.TIMESTEP * (sp.GEAR**2 + sp.SPIN_DRAG) / (sp.INERTIA + sp.TIMESTEP * sp.SPIN_DRAG)
    assert gain > 2.0
    actions = jnp.asarray(np.random.default_rng(0).normal(scale=0.3, size=(200, 2)))
    one, other = (driven(jnp.asarray([0.0, 0.0, 0.0, 0.0, 0.0, spin]), actions) for spin in (0.1, 0.1 + 1e-12))
    apart = np.abs(np.asarray(one - other))
    assert apart[0, 5] < 1e-7
    assert apart[100:, 5].max() > 0.1
    # The swing is fast: the way hardly depends on it.
    assert apart[:, :2].max() < 0.05


def described_lidar(robot, objects, reach):
    """Object by object, as the original reads."""
    readings = np.zeros(16)
    x, y, heading = robot
    for a, b in objects:
        angle = (math.atan2(b - y, a - x) - heading) % (2.0 * math.pi)
        nearness = max(0.0, reach - math.hypot(a - x, b - y)) / reach
        place = int(angle / (2.0 * math.pi / 16))
        share = angle / (2.0 * math.pi / 16) - place
        for bin_, part in ((place, 1.0), (place + 1, share), (place - 1, 1.0 - share)):
            readings[bin_ % 16] = max(readings[bin_ % 16], part * nearness)
    return readings


def test_the_lidar_is_as_its_description_reads():
    rng = np.random.default_rng(1)
    read = jax.jit(sp.lidar, static_argnums=2)
    for _ in range(200):
        pose, objects = rng.uniform(-3.0, 3.0, 3), rng.uniform(-3.0, 3.0, (rng.integers(1, 9), 2))
        pose[2] *= 5.0
        robot = sp.rest(jnp.asarray(np.float32(pose[:2])), jnp.asarray(np.float32(pose[2])))
        wanted = described_lidar(np.float32(pose), np.float32(objects), 3.0)
        np.testing.assert_allclose(read(robot, np.float32(objects), 3.0), wanted, rtol=0, atol=5e-6)


def test_a_lidar_bin_ends_where_the_next_begins():
    """On the border both show the object fully, and the bins beyond them nothing."""
    robot = sp.rest(jnp.zeros(2), jnp.asarray(0.0))
    angles = np.arange(16) * math.pi / 8.0
    places = 1.5 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    readings = jax.jit(jax.vmap(lambda place: sp.lidar(robot, place[None], 3.0)))(jnp.asarray(places))
    wanted = 0.5 * (np.eye(16) + np.roll(np.eye(16), -1, axis=1))
    np.testing.assert_allclose(readings, wanted, atol=1e-5)


def test_actions_beyond_their_bounds_are_the_bounds():
    robot = robot_of([0.3, 0.2, 1.0, 0.1, -0.4, 0.7])
    drive = jax.jit(sp.drive)
    for beyond, bound in ([(7.0, 3.0), (1.0, 1.0)], [(0.05, 0.01), (0.3, 0.01)], [(-0.05, -9.0), (-9.0, -1.0)]):
        np.testing.assert_array_equal(
            numbers_of(drive(robot, jnp.asarray(beyond))), numbers_of(drive(robot, jnp.asarray(bound)))
        )


def test_the_robot_comes_to_its_top_speed_and_no_further():
    """Thrust over drag: 0.015 / 0.01."""
    straight = driven(jnp.zeros(6), jnp.tile(jnp.asarray([1.0, 0.0]), (500, 1)))
    np.testing.assert_allclose(straight[-1, 3:], [1.5, 0.0, 0.0], atol=1e-4)


def test_no_driver_earns_more_on_a_circle_than_its_top_speed_allows():
    """A step pays a tenth of the speed at most: 1.5 of the centre of mass, and 0.019 beside it a spin of 3.04 at most.

    The drivers change at random between their bounds, so that they reach the top of both.
    """
    steps, drivers = sp.PointCircle1.horizon, 500
    draw, every, full = jax.random.split(KEY, 3)
    chosen = jax.random.choice(draw, jnp.array([-1.0, 0.0, 1.0]), (drivers, steps, 2))
    held = jnp.arange(steps)[None] // jax.random.randint(every, (drivers, 1), 1, 80)
    actions = jnp.take_along_axis(chosen, held[..., None], axis=1)
    forward = jax.random.bernoulli(full, 0.5, (drivers, 1))
    actions = actions.at[..., 0].set(jnp.where(forward, 1.0, actions[..., 0]))
    states = jax.vmap(driven, in_axes=(None, 0))(jnp.zeros(6), actions)
    speeds, spins = jnp.linalg.norm(states[..., 3:5], axis=-1), jnp.abs(states[..., 5])
    assert 1.5 < speeds.max() <= 1.5 + 0.019 * 3.04
    assert 3.0 < spins.max() <= 3.04 + 1e-4
    most = 0.1 * (1.5 + 0.019 * 3.04)
    assert steps * most < 78.0
    # The best place and direction for a speed: on the circle, around it.
    quick = jnp.asarray([sp.CIRCLE_RADIUS, 0.0, math.pi / 2, 0.0, 1.5, 0.0])
    paid = sp.PointCircle1().step(robot_of(quick), jnp.asarray([1.0, 0.0]), KEY).reward
    assert 0.149 < paid <= most


def same(ours, theirs):
    """The chance of a difference between two samples as large as this one."""
    result: Any = stats.ks_2samp(np.ravel(ours), np.ravel(theirs))
    return result.pvalue


def nearest(places, others):
    return np.linalg.norm(places[..., None, :] - others, axis=-1).min(axis=-1)


def features(places):
    """Numbers by which layouts [L, 11, 2] may differ."""
    agent, goal, hazards, vase = places[:, 0], places[:, 1], places[:, 2:10], places[:, 10]
    gaps = np.linalg.norm(hazards[:, :, None] - hazards[:, None], axis=-1) + 9.0 * np.eye(8)
    yield from (places[:, i, axis] for i in (0, 1, 2, 9, 10) for axis in (0, 1))
    yield from (np.linalg.norm(one - other, axis=-1) for one, other in ((agent, goal), (agent, vase), (goal, vase)))
    yield from (nearest(one, hazards) for one in (agent, goal, vase))
    yield gaps.min(axis=(1, 2))
    yield np.linalg.norm(hazards, axis=-1).mean(axis=-1)


def test_layouts_are_distributed_as_the_originals():
    states = jax.jit(jax.vmap(sp.PointGoal1().reset))(jax.random.split(jax.random.key(3), 4000))
    ours = np.concatenate(
        [states.robot.position[:, None], states.goal[:, None], states.hazards, states.vase], axis=1, dtype=np.float64
    )
    theirs = recorded()["layouts"] * FINE
    chances = [same(one, other) for one, other in zip(features(ours), features(theirs), strict=True)]
    assert len(chances) == 18
    assert min(chances) > 0.005
    assert stats.kstest(chances, "uniform").pvalue > 0.005
    headings = np.stack([states.robot.heading, states.vase_heading[:, 0]], axis=1) % (2.0 * math.pi)
    for i in range(2):
        assert same(headings[:, i], recorded()["headings"][:, i] * FINE % (2.0 * math.pi)) > 0.005


def test_everything_is_placed_clear_of_everything_else():
    """The goal is drawn again after the layout, and keeps clear too."""
    keepouts = np.array([0.4, 0.305, *[0.18] * 8, 0.15])
    states = jax.jit(jax.vmap(sp.PointGoal1().reset))(jax.random.split(jax.random.key(4), 2000))
    places = np.concatenate([states.robot.position[:, None], states.goal[:, None], states.hazards, states.vase], axis=1)
    gaps = np.linalg.norm(places[:, :, None] - places[:, None], axis=-1) + 9.0 * np.eye(11)
    assert (gaps >= keepouts[:, None] + keepouts[None] - 1e-6).all()
    assert (np.abs(places).max(axis=-1) <= 1.5 - keepouts[None] + 1e-6).all()


def test_goals_are_redrawn_as_in_the_original():
    data = recorded()
    layouts, robots, theirs = (data[name] * FINE for name in ("layouts", "goal_robot", "goal_redrawn"))
    task = sp.PointGoal1()

    def redraw(layout, robot, key):
        state = state_of(task, sp.rest(robot, jnp.asarray(0.0)), layout[1], layout[2:10], layout[10])
        return jax.vmap(lambda k: task.next_goal(state, k)[0])(jax.random.split(key, theirs.shape[1]))

    keys = jax.random.split(jax.random.key(5), len(robots))
    ours = np.asarray(jax.jit(jax.vmap(redraw))(np.float32(layouts[: len(robots)]), np.float32(robots), keys))
    for goals in (ours, theirs):
        assert (np.linalg.norm(goals - robots[:, None], axis=-1) > 0.705 - 1e-3).all()
        assert (nearest(goals, layouts[: len(robots), None, 2:10]) > 0.485 - 1e-3).all()
        assert (nearest(goals, layouts[: len(robots), None, 10:]) > 0.455 - 1e-3).all()
        assert (np.abs(goals) < 1.195 + 1e-3).all()
    for axis in (0, 1):
        assert same(ours[..., axis], theirs[..., axis]) > 0.005
    assert same(*(np.linalg.norm(goals - robots[:, None], axis=-1) for goals in (ours, theirs))) > 0.005
    assert same(*(nearest(goals, layouts[: len(robots), None, 2:10]) for goals in (ours, theirs))) > 0.005


class Cramped(sp.PointGoal1):
    """No room for a second goal."""

    extent = 0.5


def test_an_episode_ends_where_no_goal_finds_room():
    task = Cramped()
    nowhere = jnp.full((8, 2), 9.0)
    robot = sp.rest(jnp.zeros(2), jnp.asarray(0.0))
    state = state_of(task, robot, [0.1, 0.0], nowhere, np.array([9.0, 9.0]))
    outcome = jax.jit(task.step)(state, jnp.zeros(2), KEY)
    assert bool(outcome.terminated)
    assert float(outcome.reward) == pytest.approx(1.0, abs=1e-6)
    np.testing.assert_array_equal(outcome.state.goal, state.goal)
    away = eqx.tree_at(lambda s: s.goal, state, jnp.asarray([0.31, 0.0]))
    assert not jax.jit(task.step)(away, jnp.zeros(2), KEY).terminated


def test_hazards_cost_once_however_many_and_only_inside():
    task = sp.PointGoal1()
    robot = sp.rest(jnp.zeros(2), jnp.asarray(0.0))
    step = jax.jit(task.step)
    for near, cost in (([0.1, 0.15], 1.0), ([0.199, 9.0], 1.0), ([0.201, 9.0], 0.0)):
        hazards = np.full((8, 2), 9.0)
        hazards[:2] = [(x, 0.0) for x in near]
        outcome = step(state_of(task, robot, [2.0, 0.0], hazards, np.array([9.0, 9.0])), jnp.zeros(2), KEY)
        assert outcome.cost.tolist() == [cost]


@pytest.mark.parametrize(("task", "walls"), [(sp.PointCircle0, 0), (sp.PointCircle1, 1), (sp.PointCircle2, 2)])
def test_walls_cost_beyond_them(task, walls):
    step = jax.jit(lambda place: task().step(sp.rest(place, jnp.asarray(0.0)), jnp.zeros(2), KEY))
    for axis in (0, 1):
        for distance in (-9.0, -1.13, -1.12, 1.12, 1.13, 9.0):
            outcome = step(np.float32(distance * np.eye(2)[axis]))
            assert outcome.cost.tolist() == [float(abs(distance) > 1.125 and axis < walls)]


def test_circles_begin_anywhere_around_the_middle():
    states = jax.jit(jax.vmap(sp.PointCircle1().reset))(jax.random.split(jax.random.key(6), 4000))
    theirs = recorded()["start"][2 * EACH :]
    assert np.abs(theirs[:, :2]).max() < 0.8
    for axis in (0, 1):
        uniform = (np.asarray(states.position[:, axis]) + 0.8) / 1.6
        assert stats.kstest(uniform, "uniform").pvalue > 0.005
    assert stats.kstest(np.asarray(states.heading) / (2.0 * math.pi), "uniform").pvalue > 0.005


def pushed(poses):
    """The vase [T, 3] along a robot's way, given as the recorded poses [T, 6], and that of the recorded vase."""
    robots = jax.vmap(lambda pose: sp.rest(pose[:2], pose[2]))(poses)

    def advance(vase, robots):
        place, heading = sp.push(robots[0], robots[1], vase[:2], vase[2])
        vase = jnp.concatenate([place, heading[None]])
        return vase, vase

    pairs = (jax.tree.map(lambda leaf: leaf[:-1], robots), jax.tree.map(lambda leaf: leaf[1:], robots))
    return jax.lax.scan(advance, poses[0, 3:], pairs)[1]


def test_the_vase_goes_where_the_original_goes_for_the_most_part():
    """Two seconds of pushing: half of the tracks end within 8 cm, and the way and its distribution are alike."""
    tracks = recorded()["pushes"] * FINE
    ours = np.asarray(jax.jit(jax.vmap(pushed))(jnp.asarray(np.float32(tracks))))
    theirs = tracks[:, 1:, 3:]
    apart = np.median(np.linalg.norm((ours - theirs)[..., :2], axis=-1), axis=0)
    moved = np.median(np.linalg.norm(theirs[..., :2], axis=-1), axis=0)
    for steps, most in ((10, 0.015), (30, 0.04), (100, 0.08)):
        assert apart[steps - 1] < min(most, 0.3 * moved[steps - 1])
    far = [np.linalg.norm(vase[:, -1, :2], axis=-1) for vase in (ours, theirs)]
    assert same(*far) > 0.05
    ways = [np.linalg.norm(np.diff(vase[..., :2], axis=1), axis=-1).sum(axis=1) for vase in (ours, theirs)]
    assert np.median(ways[0] / ways[1]) == pytest.approx(1.0, abs=0.1)


def overlap(robot, vase):
    """How deep a grid of the robot's points lies in the vase, the deepest."""
    x, y = np.meshgrid(np.linspace(-0.1, 0.15, 101), np.linspace(-0.1, 0.1, 81))
    inside = (np.hypot(x, y) <= 0.1) | ((np.abs(x - 0.1) <= 0.05) & (np.abs(y) <= 0.05))
    points = (x + 1j * y)[inside] * np.exp(1j * robot[2]) + complex(*robot[:2])
    seen = (points - complex(*vase[:2])) * np.exp(-1j * vase[2])
    return (0.1 - np.maximum(np.abs(seen.real), np.abs(seen.imag))).max()


def test_a_pushed_vase_is_clear_of_the_robot_and_one_out_of_reach_stays():
    tracks = recorded()["pushes"][:20] * FINE
    ours = np.asarray(jax.jit(jax.vmap(pushed))(jnp.asarray(np.float32(tracks))))
    before = np.concatenate([np.float32(tracks[:, :1, 3:]), ours[:, :-1]], axis=1)
    left = []
    for i in range(20):
        for t in range(0, 100, 5):
            if overlap(tracks[i, t + 1], before[i, t]) < -0.004:
                np.testing.assert_array_equal(ours[i, t], before[i, t])
            else:
                left.append(overlap(tracks[i, t + 1], ours[i, t]))
    assert len(left) > 100, "the robot is at the vase often enough to tell"
    # The original's contacts are soft: its robot sinks in as far.
    assert np.quantile(left, 0.95) < 0.005
    assert max(left) < 0.01


def test_pushing_is_the_same_everywhere_and_in_a_mirror():
    rng = np.random.default_rng(2)
    push = jax.jit(sp.push)

    def shove(first, second, vase):
        robots = [
            sp.rest(jnp.asarray(np.float32(pose[:2])), jnp.asarray(np.float32(pose[2]))) for pose in (first, second)
        ]
        place, heading = push(*robots, jnp.asarray(np.float32(vase[:2])), jnp.asarray(np.float32(vase[2])))
        return np.array([*place, heading])

    moved = 0
    for _ in range(100):
        vase = np.array([0.0, 0.0, rng.uniform(-3.0, 3.0)])
        first = np.array([*rng.uniform(-0.3, 0.3, 2), rng.uniform(-3.0, 3.0)])
        second = first + rng.uniform(-1.0, 1.0, 3) * [0.02, 0.02, 0.05]
        plain = shove(first, second, vase)
        moved += bool((plain != np.float32(vase)).any())
        mirrored = shove(*(pose * [1.0, -1.0, -1.0] for pose in (first, second, vase)))
        np.testing.assert_allclose(mirrored, plain * [1.0, -1.0, -1.0], atol=1e-5)
        turn, shift = rng.uniform(-3.0, 3.0), complex(*rng.uniform(-1.0, 1.0, 2))

        def elsewhere(pose, turn=turn, shift=shift):
            place = complex(*pose[:2]) * np.exp(1j * turn) + shift
            return np.array([place.real, place.imag, pose[2] + turn])

        np.testing.assert_allclose(shove(*map(elsewhere, (first, second, vase))), elsewhere(plain), atol=1e-5)
    assert moved > 30
