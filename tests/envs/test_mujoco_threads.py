"""A user's own MuJoCo model: a cart that can be computed by hand, and every fault by its name."""

import time

import numpy as np
import pytest

import apdo
from apdo.envs import budget, host, of_object, simulations
from apdo.envs.mujoco_threads import MujocoTask, Threads, normal_start, uniform_start
from apdo.errors import EnvironmentFailure, Interrupted, InvalidInput, NumericalFailure
from apdo.experiment import runner
from apdo.report import runs

pytest.importorskip("mujoco", reason="MuJoCo is not installed")

CART = """
<mujoco>
  <option timestep="0.01" gravity="0 0 0"/>
  <worldbody>
    <body>
      <joint name="rail" type="slide" axis="1 0 0"/>
      <geom type="sphere" size="0.1" mass="2"/>
    </body>
  </worldbody>
  <actuator><motor joint="rail" ctrlrange="-4 4" ctrllimited="true"/></actuator>
  <sensor><jointpos joint="rail"/></sensor>
</mujoco>
"""
"""A mass of 2 on a rail, pushed with up to 4: acceleration 2 at full action."""
H, SKIP = 0.01, 5
WAYS = [simulations.Batched, simulations.Looped]
SMALL = {"policy__hidden": (4,), "critic__hidden": (4,), "critic__passes": 1, "critic__minibatches": 2}
SMALL |= {"primal": "reinforce", "epochs": 4, "batch": 60, "quiet": True}


def progress(step):
    return (step.after.qpos[:, 0] - step.before.qpos[:, 0]) / step.dt


def fast(step):
    return np.abs(step.after.qvel[:, 0]) > 0.3


def cart(**changes):
    given = {"model": CART, "reward": progress, "cost": fast, "frame_skip": SKIP, "horizon": 12, "name": "cart"}
    return MujocoTask(**(given | changes))


def task_of(task, costs=None, **options):
    _, kind, changes = of_object(task, costs)
    return kind(**(changes | options))


def played(copies, steps, actions):
    copies.reset([1, 2, 3, 4])
    rows = []
    for t in range(steps):
        before = copies.arrays.observation.copy(), copies.arrays.step.copy()
        copies.arrays.action[:] = actions[t]
        copies.step(last=t + 1 == steps)
        names = ("next_observation", "reward", "cost", "terminated", "truncated")
        rows.append((*before, *(getattr(copies.arrays, name).copy() for name in names)))
    return [np.stack(column) for column in zip(*rows, strict=True)]


@pytest.fixture(params=WAYS, ids=["batched", "looped"])
def way(request, monkeypatch):
    """Both ways of simulating."""
    if request.param is simulations.Batched:
        pytest.importorskip("mujoco.batch", reason="this MuJoCo has no batches")
    else:
        monkeypatch.setattr(simulations, "Batched", request.param)
    return request.param


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """MuJoCo writes its log where it runs."""
    monkeypatch.chdir(tmp_path)


def test_a_cart_moves_earns_costs_ends_and_starts_anew_as_computed_by_hand(way):
    """Semi-implicit Euler of five substeps; out of bounds at 0.12; starts by the episode's own seed."""
    task = task_of(
        cart(
            terminated=lambda step: np.abs(step.after.qpos[:, 0]) > 0.12,
            start=lambda rng, qpos, qvel: (qpos + rng.uniform(-0.1, 0.1), qvel),
        ),
        workers="2",
    )
    copies = task.open(5)
    assert isinstance(copies._sight._simulations, way)
    actions = np.random.default_rng(0).uniform(-1.5, 1.5, (40, 5, 1))
    seen, step, after, reward, cost, terminated, truncated = played(copies, 40, actions)
    copies.close()
    entropy = np.array([1, 2, 3, 4], np.uint32)
    for n in range(5):
        episode, t_in, v = 0, 0, 0.0
        x = np.random.default_rng(host.seed_of(entropy, n, 0)).uniform(-0.1, 0.1)
        for t in range(40):
            np.testing.assert_allclose(seen[t, n], [x, v], rtol=1e-5, atol=1e-6)
            assert step[t, n] == t_in
            before = x
            for _ in range(SKIP):
                v += H * 2.0 * np.clip(actions[t, n, 0], -1.0, 1.0)
                x += H * v
            np.testing.assert_allclose(after[t, n], [x, v], rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(reward[t, n], (x - before) / (SKIP * H), rtol=1e-4, atol=1e-6)
            assert cost[t, n, 0] == float(abs(v) > 0.3)
            assert terminated[t, n] == (abs(x) > 0.12)
            assert truncated[t, n] == (t_in == 11 and abs(x) <= 0.12)
            t_in += 1
            if terminated[t, n] or truncated[t, n]:
                episode, t_in, v = episode + 1, 0, 0.0
                x = np.random.default_rng(host.seed_of(entropy, n, episode)).uniform(-0.1, 0.1)
    assert terminated.any()
    assert truncated.any()


def test_several_costs_further_fields_and_an_observation_of_ones_own(way):
    """A sensor shows where the cart was before the last substep, as MuJoCo leaves it."""
    task = task_of(
        cart(
            cost=lambda step: np.stack([step.after.fields["sensordata"][:, 0], step.action[:, 0]], axis=1),
            observation=lambda state: state.qpos * 3.0,
            fields=("sensordata",),
            cost_names=("place", "push"),
        )
    )
    assert (task.observation_size, task.action_size, task.cost_names) == (1, 1, ("place", "push"))
    copies = task.open(3)
    assert isinstance(copies._sight._simulations, way)
    after, cost = (played(copies, 2, np.full((2, 3, 1), 0.5))[i] for i in (2, 4))
    copies.close()
    n = np.arange(1, 11)
    x = np.cumsum(H * H * 1.0 * n)  # acceleration 1
    np.testing.assert_allclose(after[:, 0, 0], 3.0 * x[[4, 9]], rtol=1e-5)
    np.testing.assert_allclose(cost[:, 0], [[x[3], 2.0], [x[8], 2.0]], rtol=1e-5)


def test_costs_are_named_after_their_function_or_numbered():
    assert task_of(cart()).cost_names == ("fast",)
    assert task_of(cart(cost=lambda step: step.after.qpos)).cost_names == ("cost",)
    assert task_of(cart(cost=lambda step: step.after.qpos[:, [0, 0]])).cost_names == ("cost 1", "cost 2")


def test_expressions_take_the_place_of_a_cost_or_stand_for_one():
    for task in (cart(), cart(cost=None)):
        with_text = task_of(task, ["abs(obs[0]) > 0.001", "action[0] ** 2"])
        copies = with_text.open(2)
        assert with_text.cost_names == ("abs(obs[0]) > 0.001", "action[0] ** 2")
        cost = played(copies, 2, np.full((2, 2, 1), 0.5))[4]
        np.testing.assert_array_equal(cost[:, 0], [[0.0, 4.0], [1.0, 4.0]])


def test_an_actuator_without_a_range_takes_any_number():
    free = task_of(cart(model=CART.replace('ctrlrange="-4 4" ctrllimited="true"', "")))
    after = played(free.open(1), 1, np.full((1, 1, 1), 10.0))[2]
    np.testing.assert_allclose(after[0, 0, 1], 0.25, rtol=1e-6)  # 10 / 2 · 0.05


@pytest.mark.parametrize("start", [uniform_start(0.2), normal_start(0.2)])
def test_starts_are_off_the_models_own_by_their_scale(start):
    qpos, qvel = zip(*(start(np.random.default_rng(i), np.ones(2), np.zeros(3)) for i in range(2000)), strict=True)
    assert np.abs(np.asarray(qpos) - 1.0).max() <= 0.2
    np.testing.assert_allclose(np.std(qpos), 0.2 / np.sqrt(3.0), rtol=0.05)
    np.testing.assert_allclose(np.std(qvel), 0.2 if np.abs(qvel).max() > 0.2 else 0.2 / np.sqrt(3.0), rtol=0.05)


def nan_in_the_second(step):
    return np.where(np.arange(3) == 1, np.nan, progress(step))


def burn(about):
    raise RuntimeError("the motor\nis on fire")


def scribble(step):
    step.after.qpos[:] = 0.0
    return progress(step)


FAULTS = {
    ("reward", "a column"): (
        lambda step: progress(step)[:, None],
        "reward function gave the shape [3, 1] instead of [3]",
    ),
    ("reward", "a scalar"): (lambda step: 1.0, "the reward function gave the shape [] instead of [3]"),
    ("reward", "nothing"): (lambda step: None, "the reward function gave the type object instead of numbers"),
    ("reward", "text"): (
        lambda step: np.array(["a", "b", "c"]),
        "the reward function gave the type <U1 instead of numbers",
    ),
    ("reward", "nan"): (nan_in_the_second, "the reward is nan"),
    ("reward", "huge"): (lambda step: progress(step) + 1e300, "the reward is inf"),
    ("reward", "raises"): (burn, "the reward function raised RuntimeError: the motor is on fire"),
    ("reward", "writes"): (scribble, "the reward function raised ValueError: assignment destination is read-only"),
    ("cost", "too many"): (lambda step: np.zeros((3, 3, 3)), "the cost function gave the shape [3, 3, 3]"),
    ("cost", "infinite"): (lambda step: fast(step) + np.inf, "the cost is inf"),
    ("cost", "raises"): (burn, "the cost function raised RuntimeError: the motor is on fire"),
    ("terminated", "numbers"): (
        lambda step: np.zeros(3),
        "the terminated function gave the type float64 instead of bool",
    ),
    ("terminated", "two"): (
        lambda step: np.zeros(2, bool),
        "the terminated function gave the shape [2] instead of [3]",
    ),
    ("observation", "flat"): (lambda state: state.qpos[:, 0], "the observation function gave the shape [3]"),
    ("observation", "nan"): (lambda state: np.full((3, 2), np.nan), "is nan"),
    ("observation", "raises"): (burn, "the observation function raised RuntimeError: the motor is on fire"),
}
"""(which function, what it does) ↦ what it gives of three copies, what is said."""
RIGHT = {"reward": progress, "cost": fast, "terminated": lambda step: np.zeros(len(step.action), bool)}
RIGHT |= {"observation": lambda state: np.concatenate([state.qpos, state.qvel], axis=1)}


@pytest.mark.parametrize(("which", "what"), FAULTS)
@pytest.mark.filterwarnings("ignore:overflow")
def test_a_function_that_goes_wrong_is_named_with_the_copy_and_the_step(which, what):
    wrong, says = FAULTS[which, what]
    broken = []
    task = task_of(cart(**{which: lambda about: (wrong if broken else RIGHT[which])(about)}))
    copies = task.open(3)
    played(copies, 4, np.zeros((4, 3, 1)))
    broken.append(True)
    with pytest.raises(host.Fault) as raised:
        copies.step(last=False)
    copies.close()
    assert says in raised.value.what
    assert raised.value.environment == (1 if wrong is nan_in_the_second else 0)
    assert raised.value.step == 4
    assert raised.value.numerical == (what in ("nan", "huge", "infinite"))


@pytest.mark.parametrize(("which", "what"), FAULTS)
@pytest.mark.filterwarnings("ignore:overflow")
def test_what_is_wrong_from_the_start_is_refused_before_a_run(which, what, tmp_path):
    wrong, says = FAULTS[which, what]
    with pytest.raises(InvalidInput) as raised:
        apdo.train("pdo", cart(**{which: wrong}), limits=1.0, out=tmp_path / "run", **SMALL)
    told = "the observation of a reset is not finite" if (which, what) == ("observation", "nan") else says
    assert str(raised.value).startswith("cart: ")
    assert told in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"model": "<mujoco><worldbody><bone/></worldbody></mujoco>"},
            "cart: MuJoCo cannot read the model: .*unrecognized",
        ),
        ({"model": "nowhere.xml", "name": ""}, "nowhere: there is no file 'nowhere.xml'"),
        (
            {"model": CART.split("<actuator>")[0] + "</mujoco>"},
            "cart: the model has no actuator, and nothing can be done",
        ),
        ({"cost": None}, "cart has no cost: give cost="),
        ({"cost_names": ("a", "b")}, "cart: there are 1 costs and 2 names for them"),
        ({"fields": ("xpoz",)}, "'xpoz' is none of mjData's arrays of fixed size"),
        ({"fields": ("efc_force",)}, "'efc_force' is none of mjData's arrays of fixed size"),
        ({"start": lambda rng, qpos, qvel: (qpos[:0], qvel)}, r"gave positions of the shape \[0\] instead of \[1\]"),
        ({"start": lambda rng, qpos, qvel: qpos}, "cart: the start function raised"),
        ({"start": lambda rng, qpos, qvel: (qpos * np.nan, qvel)}, "gave positions that are not finite"),
        ({"prepare": burn}, "cart: the prepare function raised RuntimeError: the motor is on fire"),
        ({"frame_skip": 0}, "frame_skip must be a whole number above 0, not 0"),
        ({"horizon": -1}, "horizon must be a whole number above 0, not -1"),
        ({"breakdown": "cry"}, "breakdown must be raise or ignore, not 'cry'"),
    ],
)
def test_a_task_that_does_not_fit_is_refused_in_one_sentence(changes, says):
    with pytest.raises(InvalidInput, match=says) as raised:
        task_of(cart(**changes)).horizon  # noqa: B018
    assert len(str(raised.value).splitlines()) == 1


def test_cost_functions_belong_to_the_task_and_expressions_are_checked():
    with pytest.raises(InvalidInput, match="takes its cost function itself"):
        of_object(cart(), fast)
    with pytest.raises(InvalidInput, match="obs has 2 entries, 0 to 1"):
        task_of(cart(), "obs[2]").horizon  # noqa: B018
    with pytest.raises(InvalidInput, match="takes costs as expressions, such as"):
        of_object("hopper-velocity", fast)


SPRING = CART.replace('axis="1 0 0"', 'axis="1 0 0" stiffness="-100"').replace('timestep="0.01"', 'timestep="0.1"')
"""A spring that pushes: whatever is not exactly at rest is beyond all bounds within a second or two."""


def test_a_simulation_that_breaks_down_is_a_fault_or_starts_anew_as_asked(way):
    def off_one(rng, qpos, qvel):
        return qpos + 1e-3 * (rng.uniform() > 0.5), qvel

    spring = {"model": SPRING, "start": off_one, "horizon": 100}
    copies = task_of(cart(**spring)).open(8)
    copies.reset([1, 2, 3, 4])
    moved = np.flatnonzero(copies.arrays.observation[:, 0])
    assert 0 < len(moved) < 8
    with pytest.raises(host.Fault, match="its simulation broke down") as raised:
        played(copies, 100, np.zeros((100, 8, 1)))
    copies.close()
    assert isinstance(copies._sight._simulations, way)
    assert raised.value.environment == moved[0]
    assert raised.value.step == copies.arrays.step[0]
    assert raised.value.numerical
    others = task_of(cart(**spring, breakdown="ignore", observation=lambda state: state.qpos * 0.0)).open(8)
    others.reset([1, 2, 3, 4])
    for _ in range(30):
        others.step(last=False)
    np.testing.assert_array_equal(others._sight.now.qpos, 0.0)
    others.close()


def test_a_simulation_that_mujoco_gives_up_on_is_named(way):
    """Twelve boxes in a row, which the second collection puts in one place: too many contacts for a small memory."""
    pytest.importorskip("mujoco.batch", reason="older releases drop contacts instead")
    boxes = "".join(
        f"<body pos='{i} 0 1'><freejoint/><geom type='box' size='.1 .1 .1' mass='1'/></body>" for i in range(1, 13)
    )
    heaped = []
    task = cart(
        model=CART.replace("<worldbody>", f"<size memory='64K'/><worldbody>{boxes}"),
        start=lambda rng, qpos, qvel: (qpos * 0.0 if heaped else qpos, qvel),
    )
    copies = task_of(task).open(2)
    assert isinstance(copies._sight._simulations, way)
    copies.reset([1, 2, 3, 4])
    copies.step(last=False)
    heaped.append(True)
    with pytest.raises(host.Fault, match="MuJoCo gave up on it: mj_stackAlloc: out of memory") as raised:
        copies.reset([1, 2, 3, 4])
    assert (raised.value.environment, raised.value.step) == (0, 0)


def test_a_function_that_hangs_is_named_in_time():
    broken = []
    task = task_of(cart(reward=lambda step: (time.sleep(30.0 * len(broken)), progress(step))[1]), step_seconds=0.5)
    copies = task.open(2)
    copies.reset([1, 2, 3, 4])
    broken.append(True)
    began = time.monotonic()
    with pytest.raises(host.Fault, match=r"not answered for 0\.5 seconds"), copies.watched():
        copies.step(last=False)
    assert time.monotonic() - began < 10.0


def test_a_model_whose_budget_is_used_up_begins_the_episode_that_is_next_by_its_seed():
    """At full thrust a cart is too fast from the third step on; two such steps are allowed, and the third ends it."""
    task = budget.wrap(task_of(cart(start=uniform_start(0.05))), "early-termination", (2.0,), 1.0, -7.0)
    copies = task.open(3)
    _, step, after, reward, _, terminated, truncated = played(copies, 10, np.ones((10, 3, 1)))
    copies.close()
    fast_enough = np.abs(after[..., 1]) > 0.3
    for i in range(3):
        ends = np.flatnonzero(terminated[:, i])
        assert len(ends) >= 1
        starts = [0, *(ends + 1)]
        for begin, end in zip(starts, ends, strict=False):
            assert fast_enough[begin : end + 1, i].sum() == 3
            assert reward[end, i] == -7.0
            np.testing.assert_array_equal(step[begin : end + 1, i], np.arange(end + 1 - begin))
    assert not truncated.any()


def test_a_copy_that_gives_up_its_episode_begins_the_one_that_it_would_have_begun_next():
    copies = task_of(cart(start=uniform_start(0.05), horizon=2)).open(3)
    ended = played(copies, 3, np.zeros((3, 3, 1)))[0][2]
    copies.reset([1, 2, 3, 4])
    first = copies.arrays.observation.copy()
    copies.restart(np.array([True, False, True]))
    np.testing.assert_array_equal(copies.arrays.observation[[0, 2]], ended[[0, 2]])
    np.testing.assert_array_equal(copies.arrays.observation[1], first[1])
    assert not np.array_equal(first, ended)
    copies.close()


def test_a_model_trains_is_resumed_with_the_same_bits_and_loaded_without_it(tmp_path, monkeypatch):
    file = tmp_path / "rail.xml"
    file.write_text(CART)
    task = MujocoTask(file, progress, fast, frame_skip=SKIP, horizon=12, start=normal_start(0.1))
    whole = apdo.train("pdo", task, limits=1.0, out=tmp_path / "whole", **SMALL)
    np.testing.assert_allclose(whole.metrics["episode_length"], 12.0, rtol=1e-5)
    described = runs.read_description(tmp_path / "whole")
    assert described["environment"] == "object:rail"
    assert described["problem"]["cost_names"] == ["fast"]
    assert "mujoco" in described["versions"]

    class Stopping(runner.Stop):
        looks = 0

        @property
        def asked(self):
            Stopping.looks += 1
            return Stopping.looks >= 2

    with monkeypatch.context() as patch:
        patch.setattr(runner, "Stop", Stopping)
        with pytest.raises(Interrupted):
            apdo.train("pdo", task, limits=1.0, out=tmp_path / "part", **SMALL)
    with pytest.raises(InvalidInput, match="trained on a Python object, 'rail'"):
        apdo.resume(tmp_path / "part", quiet=True)
    resumed = apdo.resume(tmp_path / "part", quiet=True, environment=task)
    for name, values in whole.metrics.items():
        if name != "seconds":
            np.testing.assert_array_equal(values, resumed.metrics[name], err_msg=name)
    policy = apdo.load(tmp_path / "part")
    assert np.abs(policy(np.full((50, 2), 1e6))).max() <= 4.0
    np.testing.assert_array_equal(policy(np.ones(2), deterministic=True), whole.policy(np.ones(2), deterministic=True))


@pytest.mark.parametrize(("wrong", "kind"), [(nan_in_the_second, NumericalFailure), (burn, EnvironmentFailure)])
def test_a_fault_in_a_run_is_told_with_its_epoch_and_the_state_before_it_is_saved(wrong, kind, tmp_path):
    """3 calls in the first look, then 24 in an epoch: the 34th of these is in step 9 of an episode of 12."""
    calls = []

    def reward(step):
        calls.append(step)
        return wrong(step) if len(calls) > 3 + 33 else progress(step)

    with pytest.raises(kind) as raised:
        apdo.train("pdo", cart(reward=reward), limits=1.0, out=tmp_path / "run", environments=3, **SMALL)
    saved = tmp_path / "run" / "checkpoints" / "epoch-000001.npz"
    says = (
        "the reward is nan"
        if kind is NumericalFailure
        else "the reward function raised RuntimeError: the motor is on fire (the traceback is in "
        f"{tmp_path / 'run' / 'environment-error.txt'})"
    )
    assert str(raised.value) == (
        f"epoch 1, cart, environment {int(kind is NumericalFailure)}, step 9 of its episode: {says}; "
        f"the state before that epoch is saved in {saved}."
    )
    assert saved.exists()
    assert len(runs.read(tmp_path / "run").epochs) == 1


def test_threads_are_copies_as_the_host_knows_them():
    copies = task_of(cart(), workers="1").open(2)
    assert isinstance(copies, Threads)
    assert isinstance(copies, host.Copies)
    assert isinstance(task_of(cart()), host.HostTask)
    copies.close()
    copies.close()
