"""The velocity tasks: MuJoCo's robots are rewarded for running, and every step in which they run too fast costs 1.

They are Safety-Gymnasium's Velocity-v1 tasks, with its robots (Gymnasium's v4), its thresholds, and its limit of 25
steps in an episode. Gymnasium's v5 is an option. Models are read from Gymnasium's files. Gymnasium's classes are the
reference (`reference`): this module steps all copies at once, with the same bits as those classes one by one.

Since MuJoCo 3.5 a contact begins at the sum of the margins of two geoms. Before, and in Safety-Gymnasium's MuJoCo
2.3.3, it began at the larger of them. So the margins of v4 are halved, and Ant, Hopper and Humanoid touch the ground at
the same distance as before. v5 is the same as in Gymnasium.
"""

import dataclasses
import functools
import importlib
import importlib.util
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from apdo.envs import gymnasium_tasks, host, mujoco_package
from apdo.envs.mujoco_package import Model
from apdo.envs.mujoco_threads import MujocoTask, Start, Step, ThreadedTask, normal_start, uniform_start
from apdo.envs.simulations import State
from apdo.options import one_of, option

SOURCE = "Safety-Gymnasium"
_ADDED = (3, 5)
"""The release of MuJoCo since which margins add up."""


@dataclasses.dataclass(frozen=True, eq=False)
class Robot:
    """One of Gymnasium's robots, in both versions, as functions over arrays of copies."""

    title: str
    threshold: float
    """The published speed above which a step costs 1."""
    file: dict[str, str]
    """The model, by version."""
    frame_skip: int
    start: Start
    observe: Callable[[State], np.ndarray]
    """Positions without those in the plane, and velocities."""
    position: Callable[[State], np.ndarray]
    """The position from whose change the speed is computed, [N, 1] forwards or [N, 2] in the plane."""
    control: float
    """The weight of the squared action in the reward."""
    forward: float = 1.0
    """The weight of the speed forwards."""
    alive: float = 0.0
    """A constant reward per step. In v5 only healthy steps get it."""
    healthy: Callable[[State], np.ndarray] | None = None
    """Whether the robot is healthy. An episode ends when it is not."""
    fields: tuple[str, ...] = ()
    contact: Callable[[State], np.ndarray] | None = None
    """The penalty on the reward for contacts in v5, [N]."""
    more: dict[str, Callable[[State], list[np.ndarray]]] = dataclasses.field(default_factory=dict)
    """Further observations, by version."""
    more_fields: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    precise: bool = False
    """Whether actions are squared in double precision."""

    def velocity(self, step: Step) -> np.ndarray:
        """The velocity, [N, 1] forwards or [N, 2] in the plane."""
        return (self.position(step.after) - self.position(step.before)) / step.dt

    def speed(self, step: Step) -> np.ndarray:
        """The speed that the threshold applies to, [N]."""
        velocity = self.velocity(step)
        return velocity[:, 0] if velocity.shape[1] == 1 else np.sqrt((velocity**2).sum(axis=1))

    def observation(self, version: str, state: State) -> np.ndarray:
        """The observations, [N, O]."""
        more = self.more[version](state) if version in self.more else []
        return np.concatenate([self.observe(state), *more], axis=1)

    def reward(self, version: str, step: Step) -> np.ndarray:
        """The rewards, [N]."""
        alive: Any = self.alive
        if version != "v4" and self.healthy is not None:
            alive = self.alive * self.healthy(step.after)
        action = step.action.astype(np.float64) if self.precise else step.action
        paid = self.control * np.square(action).sum(axis=1)
        if version != "v4" and self.contact is not None:
            paid = paid + self.contact(step.after)
        return self.forward * self.velocity(step)[:, 0] + alive - paid

    def task(self, version: str, threshold: float) -> MujocoTask:
        """The robot as a task."""
        healthy = self.healthy
        return MujocoTask(
            model=_assets() / self.file[version],
            reward=functools.partial(self.reward, version),
            cost=lambda step: self.speed(step) > threshold,
            observation=functools.partial(self.observation, version),
            terminated=None if healthy is None else lambda step: ~healthy(step.after),
            start=self.start,
            frame_skip=self.frame_skip,
            fields=(*self.fields, *self.more_fields.get(version, ())),
            cost_names=(f"speed above {threshold:g}",),
            name=self.title,
            breakdown="ignore",
            prepare=with_larger_margins if version == "v4" else None,
        )


def with_larger_margins(model: Model) -> None:
    """Let a contact begin at the larger of two geoms' margins, as before MuJoCo 3.5, if all margins are the same."""
    version = importlib.import_module("mujoco").__version__
    if mujoco_package.numbers(version) >= _ADDED:
        model.geom_margin[:] *= 0.5


def _assets() -> Path:
    gymnasium_tasks.require()
    found = importlib.util.find_spec("gymnasium")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "envs" / "mujoco" / "assets"


def _both(file: str) -> dict[str, str]:
    return {"v4": file, "v5": file}


def _without(places: int, bound: float = np.inf) -> Callable[[State], np.ndarray]:
    """Positions without the first few, and velocities clipped to a bound."""

    def observe(state: State) -> np.ndarray:
        velocities = state.qvel if bound == np.inf else np.clip(state.qvel, -bound, bound)
        return np.concatenate([state.qpos[:, places:], velocities], axis=1)

    return observe


def _forwards(state: State) -> np.ndarray:
    return state.qpos[:, :1]


def _torso(state: State) -> np.ndarray:
    return state.fields["xpos"][:, 1, :2]


def _centre_of_mass(state: State) -> np.ndarray:
    mass = state.model.body_mass
    return (np.einsum("b,nbj->nj", mass, state.fields["xipos"]) / mass.sum())[:, :2]


def _upright(low: float, high: float, angle: float) -> Callable[[State], np.ndarray]:
    def healthy(state: State) -> np.ndarray:
        height, lean = state.qpos[:, 1], state.qpos[:, 2]
        return (low < height) & (height < high) & (-angle < lean) & (lean < angle)

    return healthy


def _hopper_healthy(state: State) -> np.ndarray:
    inner = np.concatenate([state.qpos[:, 2:], state.qvel], axis=1)
    return ((inner > -100.0) & (inner < 100.0)).all(axis=1) & _upright(0.7, np.inf, 0.2)(state)


def _ant_healthy(state: State) -> np.ndarray:
    finite = np.isfinite(state.qpos).all(axis=1) & np.isfinite(state.qvel).all(axis=1)
    return finite & (state.qpos[:, 2] >= 0.2) & (state.qpos[:, 2] <= 1.0)


def _humanoid_healthy(state: State) -> np.ndarray:
    return (state.qpos[:, 2] > 1.0) & (state.qpos[:, 2] < 2.0)


def _flat(array: np.ndarray) -> np.ndarray:
    return array.reshape(len(array), -1)


def _touch(state: State) -> np.ndarray:
    return np.clip(state.fields["cfrc_ext"], -1.0, 1.0)


def _body_quantities(state: State) -> list[np.ndarray]:
    """Inertia, velocity, actuator force and contact force of every body, the world included."""
    return [_flat(state.fields[name]) for name in _HUMANOID]


def _bodies_quantities(state: State) -> list[np.ndarray]:
    """The same quantities without the world, and without the forces on the free joint, which are all 0."""
    first = {"qfrc_actuator": 6}
    return [_flat(state.fields[name][:, first.get(name, 1) :]) for name in _HUMANOID]


_HUMANOID = ("cinert", "cvel", "qfrc_actuator", "cfrc_ext")

ROBOTS = {
    "halfcheetah-velocity": Robot(
        title="HalfCheetah",
        threshold=3.2096,
        file=_both("half_cheetah.xml"),
        frame_skip=5,
        start=normal_start(0.1),
        observe=_without(1),
        position=_forwards,
        control=0.1,
    ),
    "ant-velocity": Robot(
        title="Ant",
        threshold=2.6222,
        file=_both("ant.xml"),
        frame_skip=5,
        start=normal_start(0.1),
        observe=_without(2),
        position=_torso,
        control=0.5,
        alive=1.0,
        healthy=_ant_healthy,
        fields=("xpos",),
        contact=lambda state: 5e-4 * _flat(np.square(_touch(state))).sum(axis=1),
        more={"v5": lambda state: [_flat(_touch(state)[:, 1:])]},
        more_fields={"v5": ("cfrc_ext",)},
    ),
    "hopper-velocity": Robot(
        title="Hopper",
        threshold=0.7402,
        file=_both("hopper.xml"),
        frame_skip=4,
        start=uniform_start(5e-3),
        observe=_without(1, 10.0),
        position=_forwards,
        control=1e-3,
        alive=1.0,
        healthy=_hopper_healthy,
    ),
    "walker2d-velocity": Robot(
        title="Walker2d",
        threshold=2.3415,
        file={"v4": "walker2d.xml", "v5": "walker2d_v5.xml"},
        frame_skip=4,
        start=uniform_start(5e-3),
        observe=_without(1, 10.0),
        position=_forwards,
        control=1e-3,
        alive=1.0,
        healthy=_upright(0.8, 2.0, 1.0),
    ),
    "swimmer-velocity": Robot(
        title="Swimmer",
        threshold=0.2282,
        file=_both("swimmer.xml"),
        frame_skip=4,
        start=uniform_start(0.1),
        observe=_without(2),
        position=_forwards,
        control=1e-4,
    ),
    "humanoid-velocity": Robot(
        title="Humanoid",
        threshold=1.4149,
        file=_both("humanoid.xml"),
        frame_skip=5,
        start=uniform_start(1e-2),
        observe=_without(2),
        position=_centre_of_mass,
        control=0.1,
        forward=1.25,
        alive=5.0,
        healthy=_humanoid_healthy,
        fields=("xipos", *_HUMANOID),
        contact=lambda state: np.minimum(5e-7 * _flat(np.square(state.fields["cfrc_ext"])).sum(axis=1), 10.0),
        more={"v4": _body_quantities, "v5": _bodies_quantities},
        precise=True,
    ),
}
"""Names and thresholds: Safety-Gymnasium 1.0, Velocity-v1."""


@dataclasses.dataclass(frozen=True)
class VelocityTask(ThreadedTask):
    """A robot under a speed limit."""

    version: str = option("v4", "which of Gymnasium's robots", SOURCE, choices=one_of("v4", "v5"))
    threshold: float = option(0.0, "the speed above which a step costs 1; 0: as published", SOURCE, within=(0.0, 1e6))

    limits: ClassVar[tuple[float, ...]] = (25.0,)
    packages: ClassVar[tuple[str, ...]] = ("gymnasium", "mujoco")

    def described(self) -> MujocoTask:
        """The robot of this version, with this threshold."""
        robot = ROBOTS[type(self).name]
        return robot.task(self.version, self.threshold or robot.threshold)


def reference(task: VelocityTask) -> gymnasium_tasks.GymnasiumTask:
    """The same task with Gymnasium's own class for the robot, which steps one copy at a time."""
    robot = ROBOTS[type(task).name]
    threshold = task.threshold or robot.threshold
    members = {
        "name": type(task).name,
        "make": functools.partial(_make, f"{robot.title}-{task.version}"),
        "functions": (functools.partial(_too_fast, threshold, robot.position is not _forwards),),
        "function_names": (f"speed above {threshold:g}",),
        "limits": VelocityTask.limits,
        "packages": VelocityTask.packages,
    }
    kind = gymnasium_tasks.subclass(gymnasium_tasks.GymnasiumTask, members)
    shared = {field.name: getattr(task, field.name) for field in dataclasses.fields(gymnasium_tasks.GymnasiumTask)}
    return kind(**shared)


def _make(name: str) -> host.Env:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is out of date", category=DeprecationWarning)
        env = gymnasium_tasks.make_registered(name)
    if name.endswith("-v4"):
        with_larger_margins(env.unwrapped.model)
    return env


def _too_fast(threshold: float, planar: bool, before: Any, action: Any, after: Any, info: dict[str, Any]) -> float:  # noqa: ANN401, ARG001
    speed = np.sqrt(info["x_velocity"] ** 2 + info["y_velocity"] ** 2) if planar else info["x_velocity"]
    return float(speed > threshold)


HalfCheetahVelocity, AntVelocity, HopperVelocity, Walker2dVelocity, SwimmerVelocity, HumanoidVelocity = (
    gymnasium_tasks.subclass(VelocityTask, {"name": name}) for name in ROBOTS
)
