"""Environments stepped by actors of Ray, some of which die. `make test-ray` runs these."""

import contextlib
import os
import time

import numpy as np
import pytest

import apdo
from apdo.envs import gymnasium_tasks, host, ray_workers
from apdo.errors import InvalidInput

cluster_utils = pytest.importorskip("ray.cluster_utils", reason="Ray is not installed")
gymnasium = pytest.importorskip("gymnasium", reason="Gymnasium is not installed")
ray = pytest.importorskip("ray", reason="Ray is not installed")

MEMORY = {"object_store_memory": 80_000_000}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A head without processors, and three nodes with one each; RAY_ADDRESS names it."""
    before = {name: os.environ.get(name) for name in ("HOME", "XDG_CACHE_HOME", "RAY_ADDRESS")}
    # Ray keeps a token at home; the persistent compilation cache stays where it was.
    os.environ |= {"XDG_CACHE_HOME": before["XDG_CACHE_HOME"] or f"{before['HOME']}/.cache"}
    os.environ["HOME"] = str(tmp_path_factory.mktemp("home"))
    made = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **MEMORY})
    made.spare = [made.add_node(num_cpus=1, **MEMORY) for _ in range(3)]
    os.environ["RAY_ADDRESS"] = made.address
    yield made
    ray.shutdown()
    made.shutdown()
    for name, value in before.items():
        os.environ.pop(name)
        if value is not None:
            os.environ[name] = value


def walking(dies_at=0, marks=None):
    """A maker of a random walk that is told its seed alone; at a step its process dies, until there are two marks.

    The process that made the maker never does.
    """
    here = os.getpid()

    class Walk(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.at, self.steps = self.np_random.normal(size=2), 0
            return self.at.astype(np.float32), {}

        def step(self, action):
            self.steps += 1
            if marks and dies_at == self.steps and os.getpid() != here and len(list(marks.iterdir())) < 2:
                (marks / str(os.getpid())).touch()
                os._exit(7)
            self.at = 0.9 * self.at + 0.1 * self.np_random.normal(size=2) + 0.1 * float(action[0])
            cost = float(np.abs(self.at).max())
            return self.at.astype(np.float32), float(self.at[0]), cost > 2.5, False, {"cost": cost}

    return Walk


def task_of(make, **options):
    return gymnasium_tasks.of_object(make)(max_episode_steps=6, **options)


def played(copies, steps=12, between=lambda t: None, given_up=()):
    copies.reset([1, 2, 3, 4])
    rows, actions = [], np.random.default_rng(0).normal(size=(steps, *copies.arrays.action.shape))
    for t in range(steps):
        between(t)
        copies.arrays.action[:] = actions[t]
        copies.step(last=t + 1 == steps)
        rows.append([getattr(copies.arrays, name).copy() for name in ray_workers._BACK])
        if t in given_up:
            copies.restart(np.arange(copies.arrays.count) % 2 == 0)
    return [np.stack(column) for column in zip(*rows, strict=True)]


def wait_for_the_end_of(actor, seconds=60.0):
    """Ray notices the end of a node some time after it."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with contextlib.suppress(ray.exceptions.GetTimeoutError):
            try:
                ray.get(actor.__ray_call__.remote(lambda _: None), timeout=1.0)
            except ray.exceptions.RayActorError:
                return
        time.sleep(0.1)
    raise AssertionError("the actor outlives its node")


def test_actors_that_die_and_a_node_that_dies_change_nothing(cluster):
    local = task_of(walking(), workers="0").open(5)
    expected = played(local, given_up=(2, 6))
    copies = task_of(walking(), workers="ray:2").open(5)
    assert isinstance(copies, ray_workers.RayWorkers)

    def disturb(t):
        if t == 4:
            ray.kill(copies.actors[1])
        if t == 8:
            where = ray.get(copies.actors[0].__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id()))
            [node] = [one for one in cluster.spare if one.node_id == where]
            cluster.spare.remove(node)
            cluster.remove_node(node, allow_graceful=False)
            wait_for_the_end_of(copies.actors[0])

    try:
        found = played(copies, between=disturb, given_up=(2, 6))
        assert copies.replaced >= 2
        again = played(copies, given_up=(2, 6))
    finally:
        copies.close()
    for name, ours, theirs, third in zip(ray_workers._BACK, expected, found, again, strict=True):
        np.testing.assert_array_equal(ours, theirs, err_msg=name)
        np.testing.assert_array_equal(ours, third, err_msg=name)


def test_a_run_whose_actors_die_has_the_metrics_of_a_local_one(cluster, tmp_path):
    options = {"epochs": 2, "batch": 60, "environments": 4, "max_episode_steps": 6, "limits": 5.0}
    options |= {"policy__hidden": (4,), "critic__hidden": (4,), "critic__passes": 1, "quiet": True}
    marks = tmp_path / "marks"
    marks.mkdir()
    found = []
    for workers, make in (("0", walking()), ("ray:2", walking(5, marks))):
        out = tmp_path / workers.replace(":", "-")
        if workers == "0":
            assert not ray.is_initialized()
        found.append(apdo.train("pdo", make, out=out, workers=workers, **options).metrics)
    assert len(list(marks.iterdir())) == 2, "no actor has died in the middle of the run"
    assert found[0].keys() == found[1].keys()
    for name, values in found[0].items():
        np.testing.assert_array_equal(found[1][name], values, err_msg=name)


def test_an_environment_that_ends_every_actor_is_told_of(cluster):
    def make():
        env = walking()()

        def end(_):
            os._exit(7)

        env.__dict__["step"] = end if os.getpid() != here else env.step
        return env

    here = os.getpid()
    copies = task_of(make, workers="ray:1").open(2)
    try:
        with pytest.raises(host.Fault) as told:
            played(copies)
    finally:
        copies.close()
    assert (told.value.environment, told.value.what) == (0, "its actor has died 3 times in a row")


def test_faults_of_an_environment_come_back_by_their_names(cluster):
    def make():
        env = walking()()
        calm, count = env.step, [0]

        def step(action):
            count[0] += 1
            if count[0] > 7:
                raise RuntimeError("the motor is on fire")
            return calm(action)

        env.__dict__["step"] = step
        return env

    copies = task_of(make, workers="ray:2").open(2)
    try:
        with pytest.raises(host.Fault, match="RuntimeError: the motor is on fire") as told:
            played(copies)
    finally:
        copies.close()
    assert "raise RuntimeError" in told.value.trace
    assert told.value.step == 1


def test_more_actors_than_the_cluster_has_processors_are_refused(cluster):
    with pytest.raises(InvalidInput, match=r"--workers ray:9 needs 9 CPUs, and the Ray cluster has [23]\."):
        task_of(walking(), workers="ray:9").open(20)


def test_a_node_that_lacks_a_package_is_told_of(cluster):
    here = os.getpid()

    def make():
        if os.getpid() != here:
            raise ModuleNotFoundError("No module named 'simulator'")
        return walking()()

    def broken():
        raise ImportError("No module named 'simulator'")

    found = ray_workers.Share(b"", 0, 1, 1)._result_or_fault(broken)
    assert "lacks what the environment needs: No module named 'simulator'." in found["invalid"]
    with pytest.raises(host.Fault, match="raised ModuleNotFoundError: No module named 'simulator'"):
        task_of(make, workers="ray:1").open(2)
