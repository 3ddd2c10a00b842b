"""Environments by name, by Gymnasium id, and as Python objects."""

import importlib
import re
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from apdo import options, own
from apdo.errors import InvalidInput, unknown
from apdo.own import OBJECT

ENVIRONMENTS = {
    "point-gather": ("point_gather", "PointGather", "a point robot gathers apples (reward) and avoids bombs (cost)"),
    "two-state": ("tabular", "TwoState", "a machine that may work while hot; two states, solved in closed form"),
    "gridworld": ("tabular", "Gridworld", "a prize across hazardous ground; finite, solved exactly"),
    "garnet": ("tabular", "Garnet", "random sparse CMDPs with any number of constraints; finite, solved exactly"),
    "queueing": ("queueing", "QueueingNetwork", "admit and serve traffic; finite with small buffers, or large"),
    "halfcheetah-velocity": ("velocity", "HalfCheetahVelocity", "HalfCheetah, slower than 3.21; MuJoCo"),
    "ant-velocity": ("velocity", "AntVelocity", "Ant, slower than 2.62; MuJoCo"),
    "hopper-velocity": ("velocity", "HopperVelocity", "Hopper, slower than 0.74; MuJoCo"),
    "walker2d-velocity": ("velocity", "Walker2dVelocity", "Walker2d, slower than 2.34; MuJoCo"),
    "swimmer-velocity": ("velocity", "SwimmerVelocity", "Swimmer, slower than 0.23; MuJoCo"),
    "humanoid-velocity": ("velocity", "HumanoidVelocity", "Humanoid, slower than 1.41; MuJoCo"),
    "point-goal-0": ("safety_point", "PointGoal0", "SafetyPointGoal0 in JAX: go to goals, nothing in the way"),
    "point-goal-1": ("safety_point", "PointGoal1", "SafetyPointGoal1 in JAX: go to goals past eight hazards"),
    "point-circle-0": ("safety_point", "PointCircle0", "SafetyPointCircle0 in JAX: circle, nothing costs"),
    "point-circle-1": ("safety_point", "PointCircle1", "SafetyPointCircle1 in JAX: circle, between two walls"),
    "point-circle-2": ("safety_point", "PointCircle2", "SafetyPointCircle2 in JAX: circle, within four walls"),
    "navigation": (
        "navigation",
        "Navigation",
        "a point goes to a goal around two walls of hazards; episodes end early",
    ),
    "wind-turbine": ("wind_turbine", "WindTurbine", "a 5 MW turbine: energy under limits on fatigue and over-speed"),
}
"""Name ↦ (module, class, description)."""
_ID = re.compile(r"(?:[\w.]+:)?(?:[\w-]+/)?[\w.-]+-v\d{1,4}", re.ASCII)
"""The form of a Gymnasium id, optionally with a namespace and with the module that registers it."""


def is_gymnasium_id(name: str) -> bool:
    """Whether a name that is not one of ours looks like a Gymnasium id, such as Pendulum-v1 or module:Mine-v0."""
    return name not in ENVIRONMENTS and _ID.fullmatch(name) is not None


def remembered(name: str, problem: Mapping[str, Any]) -> type[Any] | None:
    """The class of a host task from a run's description alone, without its environment; None for other tasks."""
    if own.is_known(name):
        return None
    tasks = _gymnasium_tasks()
    if name.startswith(OBJECT) or is_gymnasium_id(name):
        return tasks.remembered(name, problem, tasks.GymnasiumTask)
    if ENVIRONMENTS.get(name, ("",))[0] != "velocity":
        return None
    return tasks.remembered(name, problem, find(name))


def check_name(name: str) -> None:
    """Raise InvalidInput if a name cannot be the name of an environment."""
    if own.is_known(name):
        return
    if name.startswith(OBJECT):
        raise InvalidInput(
            f"the run was trained on a Python object, {name.removeprefix(OBJECT)!r}, which no file can bring back; "
            "give it again, in Python: environment=..., costs=... of apdo.resume, apdo.evaluate or apdo.film."
        )
    if name not in ENVIRONMENTS and not is_gymnasium_id(name):
        others = ["a Gymnasium id such as Pendulum-v1", "a file of your own such as mine.py:Tank"]
        raise unknown("environment", name, [*ENVIRONMENTS, *others])


def find(name: str) -> type[Any]:
    """The environment's class, which is a frozen dataclass of options."""
    check_name(name)
    if own.is_known(name):
        found = own.load(name, "environment")
        if inside := _environments_in(found):
            short = own.short(name)
            others = " or ".join(f"{short}:{one}" for one in inside)
            raise InvalidInput(f"{short} is a file; say which environment in it is meant: {others}.")
        if all(hasattr(found, part) for part in ("reset", "step")) and not hasattr(found, "observe"):
            return _gymnasium_tasks().of_file(name)
        importlib.import_module("apdo.envs.checks").check(name, found)
        return found
    if is_gymnasium_id(name):
        return _gymnasium_tasks().of_id(name)
    module, kind, _ = ENVIRONMENTS[name]
    return getattr(importlib.import_module(f"apdo.tasks.{module}"), kind)


def _environments_in(module: object) -> list[str]:
    """The names of a file's own classes that have the functions of an environment; none if it is no file."""
    if not isinstance(module, ModuleType):
        return []
    own_classes = [thing for thing in vars(module).values() if getattr(thing, "__module__", "") == module.__name__]
    return [
        thing.__name__
        for thing in own_classes
        if isinstance(thing, type) and all(hasattr(thing, part) for part in ("reset", "step"))
    ]


def of_object(environment: object, costs: object = None) -> tuple[str, type[Any], dict[str, Any]]:
    """The name, class and options of an environment that is given in Python: by name, as an object, or by a function.

    Costs that are expressions become an option, which a file can hold. Costs that are functions belong to the class.
    """
    if not isinstance(environment, str) and hasattr(environment, "observe"):
        return _own_environment(environment, costs)
    parts = () if costs is None else (costs,) if isinstance(costs, str) or callable(costs) else tuple(costs)  # pyright: ignore[reportArgumentType]
    for part in parts:
        if not isinstance(part, str) and not callable(part):
            raise InvalidInput(f"a cost is a function or an expression, not {part!r}.")
    text = bool(parts) and all(isinstance(part, str) for part in parts)
    changes = {"cost": "; ".join(str(part) for part in parts)} if text else {}
    threads = importlib.import_module("apdo.envs.mujoco_threads")
    if isinstance(environment, threads.MujocoTask):
        if parts and not text:
            raise InvalidInput("a MujocoTask takes its cost function itself, as cost=..., and here only expressions.")
        task = threads.of_task(environment)
        return task.name, task, changes
    if isinstance(environment, str):
        environment = own.whole(environment)
        check_name(environment)
        if parts and environment in ENVIRONMENTS:
            _check_takes_costs(environment, text)
        if not parts or text:
            return environment, find(environment), changes
    task = _gymnasium_tasks().of_object(environment, () if text else parts)
    return task.name, task, changes


def _own_environment(environment: object, costs: object) -> tuple[str, type[Any], dict[str, Any]]:
    """A JAX environment of the user's own, given as a class, or as an instance whose options are used."""
    if costs is not None:
        raise InvalidInput("an environment in JAX has its own costs; costs=... is for Gymnasium environments.")
    given = isinstance(environment, type)
    name = own.name_of(environment if given else type(environment))
    task = find(name)
    return name, task, {} if given else options.flatten(environment)  # pyright: ignore[reportArgumentType]


def _check_takes_costs(name: str, text: bool) -> None:
    """Raise InvalidInput if one of our own environments does not take the given costs."""
    if not issubclass(find(name), importlib.import_module("apdo.envs.host_options").HostOptions):
        raise InvalidInput(f"{name} has its own costs; costs=... is for Gymnasium environments.")
    if not text:
        raise InvalidInput(f"{name} takes costs as expressions, such as 'abs(obs[0]) > 1', not as functions.")


def _gymnasium_tasks() -> Any:  # noqa: ANN401
    return importlib.import_module("apdo.envs.gymnasium_tasks")
