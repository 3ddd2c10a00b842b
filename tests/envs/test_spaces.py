"""Spaces as vectors: a brute-force twin that walks the space, and actions that mean what is written."""

import functools
import itertools
import json

import numpy as np
import pytest

from apdo.envs import spaces as ours
from apdo.errors import InvalidInput

gymnasium = pytest.importorskip("gymnasium", reason="Gymnasium is not installed")
spaces = gymnasium.spaces

SPACES = [
    spaces.Box(-1.0, 1.0, (3,), np.float32),
    spaces.Box(0, 255, (2, 3), np.uint8),
    spaces.Box(-1.0, 1.0, (), np.float64),
    spaces.Discrete(4),
    spaces.Discrete(4, start=-2),
    spaces.MultiDiscrete([2, 5, 3]),
    spaces.MultiDiscrete([[2, 3], [4, 1]]),
    spaces.MultiDiscrete([2, 3], start=[5, -1]),
    spaces.MultiBinary(5),
    spaces.MultiBinary([2, 2]),
    spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (2,)), spaces.Tuple((spaces.MultiBinary(2),)))),
    spaces.Dict(
        b=spaces.Discrete(2),
        a=spaces.Box(-1, 1, (2, 2)),
        c=spaces.Dict(z=spaces.MultiDiscrete([3, 2]), y=spaces.Discrete(2)),
    ),
]


def walk(space, sample):
    """Number by number, straight from the definition."""
    if isinstance(space, spaces.Dict):
        return [number for key in space.spaces for number in walk(space.spaces[key], sample[key])]
    if isinstance(space, spaces.Tuple):
        return [number for part, own in zip(space.spaces, sample, strict=True) for number in walk(part, own)]
    if isinstance(space, spaces.Discrete):
        return [float(k == sample - space.start) for k in range(space.n)]
    if isinstance(space, spaces.MultiDiscrete):
        flat = zip(space.nvec.flatten(), space.start.flatten(), np.asarray(sample).flatten(), strict=True)
        return [float(k == chosen - start) for n, start, chosen in flat for k in range(n)]
    return [float(number) for number in np.asarray(sample).flatten()]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_a_flattened_observation_is_that_of_the_definition_and_of_gymnasium(space):
    size, write = ours.flattener(space)
    space.seed(0)
    for _ in range(20):
        sample = space.sample()
        out = np.full(size, np.nan, np.float32)
        write(sample, out)
        np.testing.assert_array_equal(out, np.array(walk(space, sample), np.float32))
        np.testing.assert_allclose(out, spaces.flatten(space, sample), rtol=1e-6)


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_an_observation_is_read_from_what_a_file_says_of_its_space_as_from_the_space(space):
    size, write = ours.flattener(space)
    again, from_file = ours.writer(json.loads(json.dumps(ours.layout(space))))
    space.seed(1)
    one, other = np.zeros(size, np.float32), np.ones(again, np.float32)
    sample = space.sample()
    write(sample, one)
    from_file(sample, other)
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "layout",
    [
        {},
        {"numbers": 3},
        {"numbers": [True]},
        {"counts": [2], "start": [0, 1], "shape": []},
        {"counts": [2]},
        {"dict": [["a", {"numbers": []}], ["b"]]},
        {"tuple": [[1]]},
        {"numbers": [10**9]},
        functools.reduce(lambda inner, _: {"tuple": [inner]}, range(50), {"numbers": []}),
    ],
    ids=str,
)
def test_what_is_no_layout_is_refused(layout):
    with pytest.raises(InvalidInput, match="observations consist of"):
        ours.writer(layout)


def test_a_stack_of_frames_is_flattened_with_the_newest_last():
    """As docs/environments.md has it, for an environment whose newest observation hides the state."""
    env = gymnasium.wrappers.FrameStackObservation(gymnasium.make("Pendulum-v1"), 4)
    size, write = ours.flattener(env.observation_space)
    env.reset(seed=0)
    frames = [env.step(np.array([1.0], np.float32))[0] for _ in range(5)][-1]
    out = np.zeros(size, np.float32)
    write(frames, out)
    assert size == 12
    assert out[11] == np.float32(env.unwrapped.state[1])
    np.testing.assert_array_equal(out[:3], frames[0])


@pytest.mark.parametrize(
    ("space", "sample", "says"),
    [
        (SPACES[0], np.zeros(4), r"shape \[4\] instead of \[3\]"),
        (SPACES[0], np.array(["a", "b", "c"]), "instead of numbers"),
        (SPACES[0], None, "shape"),
        (SPACES[3], 4, "none of its choices"),
        (SPACES[3], 1.5, "whole numbers"),
        (SPACES[5], np.array([0, 5, 0]), "none of its choices"),
        (SPACES[10], {"a": 1}, "a dict instead of a Tuple"),
        (SPACES[11], (1, 2), "a tuple instead of a Dict"),
        (SPACES[11], {"a": np.zeros((2, 2)), "b": 0}, "2 parts instead of 3"),
        (SPACES[11], {"a": np.zeros((2, 2)), "b": 0, "d": 0}, "no part 'c'"),
        (SPACES[11], {"a": np.zeros((2, 3)), "b": 0, "c": {}}, r"observation\['a'\] has the shape"),
    ],
)
def test_an_observation_that_is_not_of_its_space_is_described(space, sample, says):
    size, write = ours.flattener(space)
    with pytest.raises(ours.Mismatch, match=says):
        write(sample, np.zeros(size, np.float32))


@pytest.mark.parametrize("space", [spaces.Text(5), spaces.Graph(spaces.Discrete(2), None), spaces.Sequence(SPACES[0])])
def test_other_observation_spaces_are_refused_by_name(space):
    with pytest.raises(InvalidInput, match=f"a {type(space).__name__} space, which is not supported"):
        ours.flattener(space)
    with pytest.raises(InvalidInput, match=r"observations\['x'\] are a"):
        ours.flattener(spaces.Dict(x=space))


@pytest.mark.parametrize("space", [spaces.Text(3), SPACES[10], SPACES[11]])
def test_other_action_spaces_are_refused_by_name(space):
    with pytest.raises(InvalidInput, match=f"a {type(space).__name__} space, which is not supported"):
        ours.actions(space)


SEVERAL = [space for space in SPACES if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary)]


@pytest.mark.parametrize("space", SEVERAL, ids=str)
def test_every_combination_of_choices_is_one_choice_and_its_entries_are_what_costs_see(space):
    counts = space.nvec if isinstance(space, spaces.MultiDiscrete) else np.full(space.shape, 2)
    first = space.start if isinstance(space, spaces.MultiDiscrete) else np.zeros(space.shape, int)
    kinds = [range(lowest, lowest + n) for n, lowest in zip(counts.flatten(), first.flatten(), strict=True)]
    wanted = [list(each) for each in itertools.product(*kinds)]
    found = ours.actions(space)
    assert (found.size, found.entries, found.discrete) == (len(wanted), counts.size, True)
    numbers, given = found.translator()(np.eye(found.size, dtype=np.float32))
    assert numbers.tolist() == wanted
    assert [action.flatten().tolist() for action in given] == wanted
    assert all(space.contains(action) for action in given)
    assert found.choices is not None
    np.testing.assert_array_equal(ours.Choices.of_plain(found.choices.plain()).table(), given)


def test_too_many_combinations_are_refused_and_as_many_as_are_allowed_are_not():
    assert ours.actions(spaces.MultiBinary(12)).size == ours.MOST_COMBINATIONS
    with pytest.raises(InvalidInput, match=r"MultiBinary space with 8,192 combinations.*at most 4,096"):
        ours.actions(spaces.MultiBinary(13))
    with pytest.raises(InvalidInput, match="MultiDiscrete space with 10,000 combinations"):
        ours.actions(spaces.MultiDiscrete([100, 100]))


@pytest.mark.parametrize("plain", [None, {}, {"counts": [2], "start": [0]}, {"counts": 2, "start": [0], "shape": []}])
def test_choices_that_a_run_does_not_tell_are_refused(plain):
    with pytest.raises(InvalidInput, match="does not say what its environment's choices are"):
        ours.Choices.of_plain(plain)


def test_actions_of_whole_numbers_are_refused():
    with pytest.raises(InvalidInput, match="Box of uint8"):
        ours.actions(spaces.Box(0, 255, (2,), np.uint8))


def test_plus_and_minus_one_are_the_bounds_and_beyond_them_is_clipped():
    space = spaces.Box(np.array([-2.0, 0.0, -np.inf], np.float32), np.array([4.0, np.inf, np.inf], np.float32))
    policys = np.array([[-1, 3, -7], [1, -3, 7], [0, 0, 0], [9, 0, 0]], np.float32)
    numbers, given = ours.actions(space).translator()(policys)
    np.testing.assert_allclose(numbers, [[-2, 3, -7], [4, 0, 7], [1, 0, 0], [4, 0, 0]])
    assert given.dtype == np.float32
    assert all(space.contains(action) for action in given)


def test_a_choice_is_the_largest_entry_counted_from_the_spaces_start():
    numbers, given = ours.actions(spaces.Discrete(3, start=5)).translator()(np.eye(3, dtype=np.float32)[[2, 0]])
    assert given == [7, 5]
    np.testing.assert_array_equal(numbers, np.eye(3)[[2, 0]])
