"""Point-gather against episodes of the published environment on the real engine, and against its description."""

import gzip
import json
import math
from functools import cache
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from apdo.tasks import point_gather
from apdo.tasks.point_gather import APPLES, CENTRE_AHEAD, OBJECTS, PointGather

SLICE = Path(__file__).parents[1] / "data" / "point_gather_episodes.json.gz"
ALL = Path(__file__).parents[2].parent / "shared" / "reference" / "point_gather_episodes.json.gz"
KEY = jax.random.key(0)
FAR = (-100.0, -100.0)
step = jax.jit(lambda state, action: PointGather().step(state, action, KEY))
observe = jax.jit(PointGather().observe)


def place(objects, position=(0.0, 0.0), heading=0.0, velocity=(0.1, 0.2, 0.3)):
    """A state with objects given by their number (0 and 1 are apples); those not named lie far out of sight."""
    spots = np.full((OBJECTS, 2), FAR, dtype=np.float32)
    for number, spot in objects.items():
        spots[number] = spot
    return PointGather().place(
        objects=jnp.asarray(spots),
        position=jnp.asarray(np.float32(position)),
        heading=jnp.asarray(np.float32(heading)),
        velocity=jnp.asarray(np.float32(velocity)),
    )


def with_centre_at_origin(objects, heading=0.0):
    """As `place`, with the robot just so far back that its centre of mass is the origin."""
    back = (-np.float32(CENTRE_AHEAD) * math.cos(heading), -np.float32(CENTRE_AHEAD) * math.sin(heading))
    state = place(objects, position=back, heading=heading)
    np.testing.assert_allclose(observe(state)[6:8], [0.0, 0.0], atol=1e-8)
    return state


def bins(state):
    readings = np.asarray(observe(state))[9:]
    return readings[:10], readings[10:]


@cache
def player(environment):
    def run(objects, qpos, qvel, actions):
        start = environment.place(objects=objects, position=qpos[:2], heading=qpos[2], velocity=qvel)

        def advance(state, action):
            outcome = environment.step(state, action, KEY)
            return outcome.state, outcome[1:5]

        _, (observation, reward, cost, terminated) = jax.lax.scan(advance, start, actions)
        first = environment.observe(start)
        return jnp.concatenate([first[None], observation]), reward, cost[:, 0], terminated

    return jax.jit(run)


def play(environment, *inputs):
    """(objects, qpos, qvel, actions) of many episodes ↦ observations (with the reset's), rewards, costs, terminated."""
    played = [player(environment)(*episode) for episode in zip(*inputs, strict=True)]
    return [np.array(part) for part in zip(*played, strict=True)]


def episodes(path):
    with gzip.open(path, "rt") as file:
        data = json.load(file)
    fields = {name: np.array([episode[name] for episode in data], dtype=np.float32) for name in data[0]}
    assert (fields["objects"][..., 2] == [0] * APPLES + [1] * (OBJECTS - APPLES)).all()
    return fields


@pytest.mark.parametrize("path", [SLICE, ALL], ids=["slice", "all"])
def test_the_published_environments_episodes_are_reproduced(path):
    if path == ALL and not ALL.exists():
        pytest.skip("the full reference file is not here; its slice is tested")
    recorded = episodes(path)
    assert len(recorded["obs"]) == (10 if path == SLICE else 100)
    assert recorded["apple"].sum() > 0
    assert recorded["bomb"].sum() > 0
    inputs = (recorded["objects"][..., :2], recorded["qpos"], recorded["qvel"], recorded["actions"])
    observation, reward, cost, terminated = play(PointGather(), *inputs)
    np.testing.assert_array_equal(reward, 10.0 * recorded["apple"])
    np.testing.assert_array_equal(cost, recorded["bomb"])
    np.testing.assert_allclose(observation, recorded["obs"], rtol=0, atol=1e-4)
    assert not terminated.any()
    # With the published code's penalty the rewards are the published ones, and nothing else changes.
    published = play(PointGather(bomb_penalty=1.0), *inputs)
    np.testing.assert_array_equal(published[1], recorded["reward"])
    np.testing.assert_array_equal(published[0], observation)
    np.testing.assert_array_equal(published[2], cost)


def test_the_slice_holds_what_matters():
    """Apples, several bombs in one episode, the arena's edge and a heading beyond π all occur in it."""
    recorded = episodes(SLICE)
    assert recorded["bomb"].sum(axis=1).max() >= 2
    assert ((recorded["apple"].sum(axis=1) > 0) & (recorded["bomb"].sum(axis=1) > 0)).any()
    assert (np.abs(recorded["obs"][..., :2]) == 6.0).any()
    assert (np.abs(recorded["obs"][..., 2]) > math.pi).any()
    assert np.abs(recorded["actions"][..., 0]).max() > 1.0


def described(objects, qpos, qvel, actions):
    """The task as its description reads, step by step in float64 with one object at a time."""
    x, y, heading = (float(value) for value in qpos)
    left = {number: tuple(map(float, spot)) for number, spot in enumerate(objects)}

    def look():
        centre = (x + 0.0425835 * math.cos(heading), y + 0.0425835 * math.sin(heading))
        readings = np.zeros((2, 10))
        for number, (a, b) in left.items():
            distance = math.hypot(a - centre[0], b - centre[1])
            angle = math.remainder(math.atan2(b - centre[1], a - centre[0]) - heading, 2 * math.pi)
            if distance <= 6 and abs(angle) <= math.pi / 2:
                place = min(9, math.floor((angle + math.pi / 2) / (math.pi / 10)))
                kind = 0 if number < 2 else 1
                readings[kind, place] = max(readings[kind, place], 1 - distance / 6)
        return centre, np.array([x, y, heading, *qvel, *centre, 0.5, *readings.ravel()])

    seen, rewards, costs, ends = [look()[1]], [], [], []
    for forward, turn in actions:
        heading += float(turn)
        x = min(6.0, max(-6.0, x + float(forward) * math.cos(heading)))
        y = min(6.0, max(-6.0, y + float(forward) * math.sin(heading)))
        centre, _ = look()
        caught = [n for n, (a, b) in left.items() if math.hypot(a - centre[0], b - centre[1]) < 1]
        for number in caught:
            del left[number]
        rewards.append(10.0 * sum(n < 2 for n in caught))
        costs.append(sum(n >= 2 for n in caught))
        ends.append(not left)
        seen.append(look()[1])
    return seen, rewards, costs, ends


def test_random_walks_are_as_the_description_reads():
    rng = np.random.default_rng(0)
    cells = point_gather.CELLS
    objects = np.stack([cells[rng.permutation(35)[:10]] for _ in range(80)])
    objects += rng.normal(scale=0.05, size=objects.shape).astype(np.float32)
    qpos, qvel = rng.normal(size=(2, 80, 3)).astype(np.float32)
    actions = rng.normal(size=(80, 15, 2)).astype(np.float32) * np.asarray([2.0, 0.7], np.float32)
    played = play(PointGather(), objects, qpos, qvel, actions)
    assert played[1].sum() > 0
    assert played[2].sum() > 20
    assert (np.abs(played[0][..., :2]) == 6.0).any()
    for episode in range(80):
        expected = described(objects[episode], qpos[episode], qvel[episode], actions[episode])
        for actual, wanted in zip(played, expected, strict=True):
            np.testing.assert_allclose(actual[episode], wanted, atol=1e-4)


# Reset


@pytest.fixture(scope="module")
def resets():
    states = jax.jit(jax.vmap(PointGather().reset))(jax.random.split(jax.random.key(7), 20_000))
    return jax.tree.map(np.asarray, states)


def cell_numbers(resets):
    """The number of the cell that each object lies on."""
    places = {tuple(cell): number for number, cell in enumerate(point_gather.CELLS.tolist())}
    lookup = np.full((6, 6), -1)
    for (x, y), number in places.items():
        lookup[int(x) // 2 + 3, int(y) // 2 + 3] = number
    index = resets.objects.astype(int) // 2 + 3
    np.testing.assert_array_equal(2 * (index - 3), resets.objects)
    return lookup[index[..., 0], index[..., 1]]


def test_the_spawn_cells_are_the_35_even_cells_not_nearer_than_2_to_the_origin():
    expected = {(x, y) for x in (-6, -4, -2, 0, 2, 4) for y in (-6, -4, -2, 0, 2, 4) if x * x + y * y >= 4}
    assert len(expected) == 35
    assert {tuple(cell) for cell in point_gather.CELLS.tolist()} == expected
    assert len(point_gather.CELLS) == 35


def test_ten_objects_lie_on_distinct_cells_with_none_nearer_than_2_to_the_origin(resets):
    numbers = cell_numbers(resets)
    assert numbers.shape == (20_000, 10)
    assert numbers.min() >= 0
    in_order = np.sort(numbers, axis=1)
    assert (np.diff(in_order, axis=1) > 0).all()
    assert np.hypot(resets.objects[..., 0], resets.objects[..., 1]).min() >= 2.0
    assert resets.remaining.all()


def test_every_apple_and_every_bomb_is_equally_likely_on_every_cell(resets):
    numbers = cell_numbers(resets)
    for slot in range(10):
        counts = np.bincount(numbers[:, slot], minlength=35)
        assert stats.chisquare(counts).pvalue > 1e-4, f"object {slot}"


@pytest.mark.parametrize(("one", "other"), [(0, 1), (0, 2), (8, 9)])
def test_every_pair_of_distinct_cells_is_equally_likely_for_two_objects(resets, one, other):
    numbers = cell_numbers(resets)
    pairs = np.bincount(35 * numbers[:, one] + numbers[:, other], minlength=35 * 35).reshape(35, 35)
    assert np.trace(pairs) == 0
    assert stats.chisquare(pairs[~np.eye(35, dtype=bool)]).pvalue > 1e-4


def test_pose_and_velocity_at_reset_are_independent_normal_noise(resets):
    columns = np.column_stack([resets.position, resets.heading, resets.velocity])
    for column, scale in zip(columns.T, [0.01] * 3 + [0.1] * 3, strict=True):
        assert stats.kstest(column, stats.norm(0.0, scale).cdf).pvalue > 1e-4
        assert abs(column.std() / scale - 1.0) < 4.5 / math.sqrt(2 * len(column))
        assert abs(column.mean()) < 4.5 * scale / math.sqrt(len(column))
    correlation = np.corrcoef(columns.T) - np.eye(6)
    assert np.abs(correlation).max() < 4.5 / math.sqrt(len(columns))


# Motion


def test_the_robot_turns_before_it_moves_and_actions_are_not_clipped():
    outcome = step(place({}, position=(1.0, -2.0), heading=0.5), jnp.asarray([3.0, 1.25]))
    observation = np.asarray(outcome.observation)
    np.testing.assert_allclose(observation[2], 1.75, atol=1e-6)
    expected = [1.0 + 3.0 * math.cos(1.75), -2.0 + 3.0 * math.sin(1.75)]
    np.testing.assert_allclose(observation[:2], expected, atol=1e-5)


def test_clipped_actions_are_those_at_the_nominal_bounds_and_smaller_ones_pass():
    clipped = jax.jit(lambda state, action: PointGather(clip_actions=True).step(state, action, KEY))
    state = place({}, position=(0.5, -0.5), heading=0.3)
    for given, effective in [
        ((3.0, 1.25), (1.0, 0.25)),
        ((-3.0, -1.25), (-1.0, -0.25)),
        ((0.5, -9.0), (0.5, -0.25)),
        ((0.9, 0.2), (0.9, 0.2)),
    ]:
        actual = clipped(state, jnp.asarray(given)).observation
        np.testing.assert_allclose(actual, step(state, jnp.asarray(effective)).observation, atol=1e-6)


def test_the_arena_holds_the_robot_on_all_four_sides():
    for heading, expected in [
        (0.0, (6.0, 1.0)),
        (math.pi / 2, (1.0, 6.0)),
        (math.pi, (-6.0, 1.0)),
        (-math.pi / 2, (1.0, -6.0)),
    ]:
        outcome = step(place({}, position=(1.0, 1.0), heading=heading), jnp.asarray([50.0, 0.0]))
        np.testing.assert_allclose(outcome.observation[:2], expected, atol=1e-4)


def test_the_heading_is_never_wrapped():
    state = place({})
    for _ in range(5):
        state = step(state, jnp.asarray([0.0, 2.0])).state
    assert float(state.heading) == 10.0
    assert float(observe(state)[2]) == 10.0


def test_the_velocity_stays_as_it_was_drawn(resets):
    drawn = resets.velocity[0]
    state = place({}, velocity=drawn)
    for action in np.random.default_rng(0).normal(size=(10, 2)):
        outcome = step(state, jnp.asarray(action, dtype=jnp.float32))
        state = outcome.state
        np.testing.assert_array_equal(outcome.observation[3:6], drawn)
    assert len(np.unique(resets.velocity, axis=0)) == len(resets.velocity)


# Catching


STILL = jnp.zeros(2)


def test_an_object_is_caught_strictly_within_1_of_the_centre_of_mass():
    for distance, caught in [(1.0, False), (1.001, False), (0.999, True)]:
        outcome = step(with_centre_at_origin({0: (distance, 0.0)}), STILL)
        assert float(outcome.reward) == (10.0 if caught else 0.0)
        assert bool(outcome.state.remaining[0]) != caught
    # 1.02 ahead of the body's position is within reach of its centre of mass, 0.98 behind it is not.
    assert float(step(place({0: (1.02, 0.0)}), STILL).reward) == 10.0
    assert float(step(place({0: (-0.98, 0.0)}), STILL).reward) == 0.0


def test_apples_give_reward_and_bombs_give_cost_once_each():
    state = place({0: (0.5, 0.0), 1: (0.0, 0.5), 2: (0.0, -0.5), 9: (-0.5, 0.0), 5: (3.0, 0.0)})
    outcome = step(state, STILL)
    assert (float(outcome.reward), float(outcome.cost[0])) == (20.0, 2.0)
    np.testing.assert_array_equal(outcome.state.remaining, [number not in (0, 1, 2, 9) for number in range(10)])
    again = step(outcome.state, STILL)
    assert (float(again.reward), float(again.cost[0])) == (0.0, 0.0)


def test_the_bomb_penalty_comes_off_the_reward_and_leaves_the_cost():
    state = place({0: (0.5, 0.0), 2: (0.0, -0.5), 9: (-0.5, 0.0)})
    outcome = jax.jit(lambda state: PointGather(bomb_penalty=1.5).step(state, STILL, KEY))(state)
    assert (float(outcome.reward), float(outcome.cost[0])) == (7.0, 2.0)
    assert PointGather().bomb_penalty == 0.0


def test_an_episode_terminates_exactly_when_nothing_is_left():
    one_apple = place({0: (0.5, 0.0)})
    for remaining, terminated in [([0], True), ([0, 1], False), ([0, 9], False), ([], True), ([4], False)]:
        flags = jnp.asarray([number in remaining for number in range(10)])
        outcome = step(eqx.tree_at(lambda s: s.remaining, one_apple, flags), STILL)
        assert bool(outcome.terminated) == terminated, remaining


# Sensing


def test_an_object_at_exactly_a_right_angle_is_seen_in_the_outermost_bin():
    left = with_centre_at_origin({0: (0.0, 2.0)})
    # The case must be the exact one: the bearing is the float32 π/2, at which the published index is 10.
    assert np.arctan2(np.float32(2.0), np.float32(observe(left)[6])) == np.float32(math.pi / 2)
    np.testing.assert_allclose(bins(left)[0], [0.0] * 9 + [1 - 2 / 6], atol=1e-6)
    right = with_centre_at_origin({2: (0.0, -3.0)})
    np.testing.assert_allclose(bins(right)[1], [1 - 3 / 6] + [0.0] * 9, atol=1e-6)


def test_an_object_behind_or_beyond_the_sensors_range_is_not_seen():
    for spot in [(-0.001, 2.0), (-0.001, -2.0), (-3.0, 0.0), (6.001, 0.0)]:
        assert not np.any(bins(with_centre_at_origin({0: spot, 2: spot})))
    for spot in [(0.001, 2.0), (0.001, -2.0), (5.999, 0.001)]:
        apples, bombs = bins(with_centre_at_origin({0: spot, 2: spot}))
        assert (apples > 0).sum() == (bombs > 0).sum() == 1


def test_each_of_the_ten_bins_covers_a_tenth_of_the_span_from_right_to_left_whatever_the_heading():
    for heading in (0.0, 2.5, -40.0):
        for number in range(10):
            for within in (0.02, 0.5, 0.98):
                angle = heading - math.pi / 2 + (number + within) * math.pi / 10
                spot = (3.0 * math.cos(angle), 3.0 * math.sin(angle))
                expected = np.where(np.arange(10) == number, 0.5, 0.0)
                np.testing.assert_allclose(bins(with_centre_at_origin({4: spot}, heading))[1], expected, atol=1e-5)


@pytest.mark.parametrize("near", [3, 7])
def test_the_nearest_of_a_kind_wins_in_a_bin_and_the_other_shows_once_it_is_gone(near):
    far = 10 - near
    state = with_centre_at_origin({near: (2.0, 0.1), far: (4.0, 0.2), 0: (5.0, 0.3)})
    apples, bombs = bins(state)
    np.testing.assert_allclose(bombs, np.where(np.arange(10) == 5, 1 - math.hypot(2.0, 0.1) / 6, 0.0), atol=1e-6)
    np.testing.assert_allclose(apples, np.where(np.arange(10) == 5, 1 - math.hypot(5.0, 0.3) / 6, 0.0), atol=1e-6)
    gone = eqx.tree_at(lambda s: s.remaining, state, jnp.asarray([number != near for number in range(10)]))
    np.testing.assert_allclose(bins(gone)[1][5], 1 - math.hypot(4.0, 0.2) / 6, atol=1e-6)


def test_the_task_is_the_papers():
    task = PointGather()
    assert (task.observation_size, task.action_size, task.horizon, task.discount) == (29, 2, 15, 0.995)
    assert task.horizon_terminates
    assert (len(task.cost_names), len(task.limits)) == (1, 1)
    assert not task.clip_actions
    assert abs(CENTRE_AHEAD - 0.0425835) < 5e-8
    assert observe(place({})).shape == (29,)
    assert float(observe(place({}))[8]) == 0.5
