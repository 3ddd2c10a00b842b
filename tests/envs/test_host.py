"""Copies of host environments: terminated, truncated and final observations to the step; every fault by its name."""

import time

import numpy as np
import pytest

from apdo.envs import gymnasium_tasks, host, of_object
from apdo.errors import InvalidInput

pytest.importorskip("gymnasium", reason="Gymnasium is not installed")

from host_environments import Broken, Counting


def task_of(make, costs=None, **options):
    _, kind, changes = of_object(make, costs)
    return kind(**(changes | options))


def played(copies, steps, action=None):
    """Every array after every step, and the observations before it."""
    copies.reset([1, 2, 3, 4])
    rows = []
    for t in range(steps):
        before = copies.arrays.observation.copy(), copies.arrays.step.copy()
        copies.arrays.action[:] = 0.0 if action is None else action
        copies.step(last=t + 1 == steps)
        arrays = copies.arrays
        names = ("next_observation", "reward", "cost", "terminated", "truncated", "observation", "step")
        rows.append((*before, *(getattr(arrays, name).copy() for name in names)))
    return [np.stack(column) for column in zip(*rows, strict=True)]


@pytest.mark.parametrize("workers", ["0", "2"])
def test_episodes_end_restart_and_show_their_last_observation(workers):
    """By hand: episodes of 3 steps that terminate, in copies that are reset with seeds of their own."""
    task = task_of(lambda: Counting(length=3), max_episode_steps=5, workers=workers)
    copies = task.open(3)
    try:
        seen, step, after, reward, cost, terminated, truncated, *_ = played(copies, 7)
    finally:
        copies.close()
    expected = np.array([0, 1, 2, 0, 1, 2, 0])
    for n in range(3):
        np.testing.assert_array_equal(step[:, n], expected)
        np.testing.assert_array_equal(seen[:, n, 1], expected)
        np.testing.assert_array_equal(after[:, n, 1], expected + 1)
        np.testing.assert_array_equal(reward[:, n], expected + 1)
        np.testing.assert_array_equal(cost[:, n, 0], 0.5 * (expected + 1))
        np.testing.assert_array_equal(terminated[:, n], expected == 2)
        entropy = np.array([1, 2, 3, 4], np.uint32)
        seeds = [host.seed_of(entropy, n, episode) % 1000 for episode in (0, 0, 0, 1, 1, 1, 2)]
        np.testing.assert_array_equal(seen[:, n, 0], seeds)
        np.testing.assert_array_equal(after[:, n, 0], seeds)
    assert not truncated.any()


@pytest.mark.parametrize(
    ("length", "cut", "horizon", "terminates", "truncates"),
    [
        (9, 9, 4, [], [3]),  # our time limit cuts off
        (9, 2, 4, [], [1, 3]),  # the environment's own comes first
        (4, 9, 4, [3], []),  # an end in the last step is an end
        (2, 2, 9, [1, 3], []),  # terminated and truncated at once: terminated
    ],
)
def test_terminated_and_truncated_are_kept_apart(length, cut, horizon, terminates, truncates):
    copies = task_of(lambda: Counting(length, cut), max_episode_steps=horizon, workers="0").open(1)
    terminated, truncated = played(copies, 5)[5:7]
    assert np.flatnonzero(terminated).tolist() == terminates
    assert np.flatnonzero(truncated).tolist() == truncates


def test_workers_give_what_one_process_gives():
    results = []
    for workers in ("0", "1", "3"):
        task = task_of(lambda: Counting(length=4), ["obs[1] + action[0]", "next_obs[1] > 2"], max_episode_steps=9)
        kind = host.InProcess if workers == "0" else host.Workers
        task = type(task)(cost=task.cost, max_episode_steps=9, workers=workers)
        copies = task.open(4)
        assert isinstance(copies, kind)
        results.append(played(copies, 10, action=0.5))
        copies.close()
    for other in results[1:]:
        for ours, theirs in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    cost = results[0][4]
    np.testing.assert_allclose(cost[:, 0, 0], [1, 2, 3, 4, 1, 2, 3, 4, 1, 2])  # ±1 means ±2: 0.5 is 1
    np.testing.assert_array_equal(cost[:, 0, 1], [0, 0, 1, 1, 0, 0, 1, 1, 0, 0])


def test_cost_functions_see_what_the_environment_saw_and_may_give_vectors():
    def both(observation, action, after, info):
        assert action.shape == (2,)
        return [after[1] - observation[1], info["cost"]]

    task = task_of(Counting, [both, "obs[1]"], max_episode_steps=5, workers="0")
    assert task.cost_names == ("both 1", "both 2", "obs[1]")
    cost = played(task.open(2), 4)[4]
    np.testing.assert_array_equal(cost[:, 1], [[1, 0.5, 0], [1, 1.0, 1], [1, 1.5, 2], [1, 0.5, 0]])


FAULTS = {
    "nan observation": ("the observation is nan", True),
    "nan reward": ("the reward is nan", True),
    "infinite cost": ("the cost is inf", True),
    "huge observation": ("the observation is inf", True),
    "shape": ("the shape [3] instead of [2]", False),
    "dtype": ("the type <U1 instead of numbers", False),
    "reward text": ("the reward is 'much', which is no number", False),
    "terminated": ("terminated is 'yes', which is neither true nor false", False),
    "four": ("step returned 4 values", False),
    "no cost": ("info has no 'cost'", False),
    "two costs": ("info['cost'] has 2 numbers instead of 1", False),
    "raises": ("it raised RuntimeError: the motor is on fire", False),
    "space": ("the observation space has changed to Box(-1.0, 1.0", False),
    "reset nan": ("the observation of a reset is not finite", True),
    "reset bare": ("reset did not return (observation, info)", False),
}


@pytest.mark.parametrize("what", FAULTS)
@pytest.mark.filterwarnings("ignore:overflow")
def test_every_fault_is_named_with_its_environment_and_step(what):
    """The third copy breaks; the others do not. The first look, which takes five steps, sees nothing of it."""
    made = []

    def make():
        made.append(Broken(what if len(made) == 3 else ""))
        return made[-1]

    copies = task_of(make, max_episode_steps=9, workers="0").open(3)
    with pytest.raises(host.Fault) as raised:
        played(copies, 8)
    says, numerical = FAULTS[what]
    assert says in raised.value.what
    assert raised.value.environment == 2
    assert raised.value.step == (0 if what in ("space", "reset nan", "reset bare") else 3)
    assert raised.value.numerical == numerical


def test_a_fault_in_a_worker_is_told_by_it():
    for what in ("raises", "nan reward"):
        copies = task_of(lambda w=what: Broken(w, after=7), max_episode_steps=9, workers="2").open(4)
        with pytest.raises(host.Fault) as raised:
            played(copies, 8)
        copies.close()
        assert FAULTS[what][0] in raised.value.what
        assert raised.value.numerical == FAULTS[what][1]
        assert (raised.value.environment, raised.value.step) == (0, 1)
        assert ("in _burn\n" in raised.value.trace) == (what == "raises")


@pytest.mark.parametrize(("workers", "what"), [("1", "hangs"), ("0", "hangs"), ("1", "exits")])
def test_an_environment_that_hangs_or_dies_is_named_in_time(workers, what):
    task = task_of(lambda: Broken(what, after=7), max_episode_steps=9, workers=workers, step_seconds=1.0)
    copies = task.open(2)
    began = time.monotonic()
    with pytest.raises(host.Fault) as raised, copies.watched():
        played(copies, 8)
    copies.close()
    assert time.monotonic() - began < 15.0
    says = {"hangs": "not answered for 1 seconds", "exits": "ended by itself, with status 7"}[what]
    assert says in raised.value.what
    assert (raised.value.environment, raised.value.step) == (0, 1)


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("nan observation", "first observation of step is not finite"),
        ("shape", r"shape \[3\] instead of \[2\]"),
        ("four", "step returned 4 values"),
        ("no cost", r"gives no info\['cost'\]"),
        ("raises", "step raised RuntimeError: the motor is on fire"),
    ],
)
def test_what_a_first_look_shows_is_refused_before_a_run(what, says):
    with pytest.raises(InvalidInput, match=says):
        task_of(lambda: Broken(what, after=1), max_episode_steps=9).horizon  # noqa: B018


def test_an_environment_without_a_time_limit_needs_one():
    with pytest.raises(InvalidInput, match="--max-episode-steps"):
        task_of(Counting).horizon  # noqa: B018


def test_things_that_are_no_environment_are_refused():
    with pytest.raises(InvalidInput, match="no observation_space"):
        task_of(lambda: object()).horizon  # noqa: B018
    with pytest.raises(InvalidInput, match="cannot be made: ZeroDivisionError"):
        task_of(lambda: 1 / 0).horizon  # noqa: B018
    with pytest.raises(InvalidInput, match="a function or an expression, not 3"):
        task_of(Counting, [3])
    with pytest.raises(InvalidInput, match="has its own costs"):
        of_object("point-gather", "obs[0]")


def test_an_object_is_copied_and_an_id_with_text_costs_stays_an_id():
    copies = task_of(Counting(length=2), max_episode_steps=5, workers="0").open(2)
    np.testing.assert_array_equal(played(copies, 2)[5][:, 1], [False, True])
    name, kind, changes = of_object("Pendulum-v1", ["obs[0]", "obs[1]"])
    assert (name, changes) == ("Pendulum-v1", {"cost": "obs[0]; obs[1]"})
    assert kind is of_object("Pendulum-v1")[1]
    assert of_object("Pendulum-v1", lambda *_: 0.0)[0] == "object:Pendulum-v1"


def test_workers_are_chosen_where_a_step_is_slow(monkeypatch):
    task = task_of(Counting, max_episode_steps=5)
    assert task.worker_count(16, cores=4) == 0
    slow = gymnasium_tasks.dataclasses.replace(gymnasium_tasks.probe(task), seconds=0.01)
    monkeypatch.setattr(gymnasium_tasks, "probe", lambda _: slow)
    assert task.worker_count(16, cores=4) == 4
    assert task.worker_count(2, cores=4) == 2
    assert task.worker_count(1, cores=4) == 0
    with pytest.raises(InvalidInput, match="auto or a number"):
        task_of(Counting, workers="many")
