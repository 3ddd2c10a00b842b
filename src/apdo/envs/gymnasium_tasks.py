"""Gymnasium environments as tasks: by id, as an object, or by a function that makes one.

A task is probed once before a run: its environment is made, reset and stepped a few times. So its observations, its
actions, its costs and the time of a step are known before the run starts, and anything unsuitable is refused then.
"""

import contextlib
import copy
import dataclasses
import functools
import importlib
import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias, TypeVar, cast

import numpy as np

from apdo import own
from apdo.envs import OBJECT, expressions, host, mujoco_package, ray_workers, safety, spaces
from apdo.envs.host_options import HostOptions
from apdo.errors import InvalidInput, unknown

EXTRA = "pip install 'apdo[gymnasium]'"
GAIN_SECONDS = 1e-3
"""Worker processes are used if they save about this much time in each step of the batch; a round trip costs a fifth."""
_TIMED_STEPS = 5

T = TypeVar("T")
RGB = "rgb_array"
"""The `render_mode` of an environment that renders itself as an array."""
EnvLike: TypeAlias = Any
"""A `gymnasium.Env`, its id, or a function that makes one."""


@dataclasses.dataclass(frozen=True, eq=False)
class Probe:
    """What a first look at an environment has found."""

    observation_size: int
    actions: spaces.Actions
    costs: tuple[host.CostFunction | str, ...]
    cost_sizes: tuple[int, ...]
    cost_names: tuple[str, ...]
    info_name: str
    horizon: int
    seconds: float
    """The time of a step, in seconds."""
    image: tuple[int, int, int] | None = None
    """Height, width and channels if an observation is an image; else None."""
    layout: spaces.Layout | None = None
    """What an observation consists of; None if it is a vector or an image."""


@dataclasses.dataclass(frozen=True)
class GymnasiumTask(HostOptions):
    """A Gymnasium environment. A subclass says which one, and perhaps what its costs are."""

    name: ClassVar[str] = ""
    make: ClassVar[Any]
    """A function without arguments that makes the environment."""
    functions: ClassVar[tuple[host.CostFunction | str, ...]] = ()
    """The task's own costs; the option `cost` replaces them."""
    function_names: ClassVar[tuple[str, ...]] = ()
    limits: ClassVar[tuple[float, ...]] = ()
    horizon_terminates: ClassVar[bool] = False
    packages: ClassVar[tuple[str, ...]] = ("gymnasium",)
    """The packages whose versions results depend on, besides this library's own."""
    bookkeeping: ClassVar[tuple[str, ...]] = ("workers", "step_seconds")
    """Options that affect no result."""
    defaults: ClassVar[dict[str, Any]] = {
        "constrain": "total",
        "normalise": True,
    }
    """Settings of a run that suit such tasks."""
    copies: ClassVar[int] = 16
    """About how many environments side by side suit such tasks."""

    def own_costs(self) -> tuple[tuple[host.CostFunction | str, ...], tuple[str, ...]]:
        """The costs that are given as expressions or functions, and their names."""
        given = expressions.split(self.cost)
        return (given, given) if given else (type(self).functions, type(self).function_names)

    @property
    def observation_size(self) -> int:
        """The number of entries of an observation, flattened."""
        return probe(self).observation_size

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """Height, width and channels if an observation is an image; else None."""
        return probe(self).image

    @property
    def observation_layout(self) -> spaces.Layout | None:
        """What an observation consists of; None if it is a vector or an image."""
        return probe(self).layout

    @property
    def action_size(self) -> int:
        """The number of entries of an action."""
        return probe(self).actions.size

    @property
    def discrete_actions(self) -> bool:
        """Whether an action is a choice."""
        return probe(self).actions.discrete

    @property
    def action_choices(self) -> spaces.Choices | None:
        """The choices if an action is a choice; else None."""
        return probe(self).actions.choices

    @property
    def cost_names(self) -> tuple[str, ...]:
        """The expressions, the names of the functions, or the name of the entry of info."""
        return probe(self).cost_names

    @property
    def horizon(self) -> int:
        """The most steps in an episode."""
        return probe(self).horizon

    @property
    def action_meaning(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """(shift, scale, low, high) of the actions."""
        return probe(self).actions.meaning

    def plan(self) -> host.Plan:
        """The plan from which copies are made and stepped."""
        found = probe(self)
        return host.Plan(
            make=type(self).make,
            observation_size=found.observation_size,
            action_size=found.actions.size,
            costs=found.costs,
            cost_sizes=found.cost_sizes,
            info_name=found.info_name,
            horizon=found.horizon,
        )

    def open(self, count: int) -> host.Copies:
        """Make copies: in this process, or in worker processes if a step is slow enough to be worth it."""
        if self.workers.startswith(ray_workers.PREFIX):
            actors = int(self.workers.removeprefix(ray_workers.PREFIX))
            return ray_workers.RayWorkers(self.plan(), count, actors, self.step_seconds)
        workers = self.worker_count(count, os.cpu_count() or 1)
        if workers == 0:
            return host.InProcess(self.plan(), count, self.step_seconds)
        return host.Workers(self.plan(), count, workers, self.step_seconds)

    def worker_count(self, count: int, cores: int) -> int:
        """The number of worker processes."""
        if self.workers != "auto":
            return min(int(self.workers), count)
        workers = min(cores, count)
        saved = probe(self).seconds * (count - math.ceil(count / workers))
        return workers if saved > GAIN_SECONDS else 0


@functools.lru_cache(maxsize=64)
def probe(task: GymnasiumTask) -> Probe:
    """Look at the environment for the first time, and refuse anything unsuitable before a run starts."""
    name = type(task).name.removeprefix(OBJECT)
    try:
        env = type(task).make()
    except InvalidInput:
        raise
    except Exception as error:
        raise InvalidInput(f"{name} cannot be made: {_said(error)}.") from error
    try:
        return _look(task, name, env)
    finally:
        with contextlib.suppress(Exception):
            env.close()


def _look(task: GymnasiumTask, name: str, env: host.Env) -> Probe:
    for part in ("observation_space", "action_space", "reset", "step"):
        if getattr(env, part, None) is None:
            raise InvalidInput(f"{name} has no {part}, and is no Gymnasium environment.")
    try:
        size, write = spaces.flattener(env.observation_space)
        actions = spaces.actions(env.action_space)
    except InvalidInput as error:
        raise InvalidInput(f"{name}: {error}") from None
    horizon = task.max_episode_steps or getattr(getattr(env, "spec", None), "max_episode_steps", None)
    if not horizon:
        raise InvalidInput(f"{name} does not say how long an episode is; give --max-episode-steps.")
    costs, names = task.own_costs()
    for cost in costs:
        if isinstance(cost, str):
            expressions.parse(cost).check({"obs": size, "action": actions.entries, "next_obs": size})
    observation, action = _first_reset(name, env, write, size)
    after, info, seconds = _first_steps(name, env, action)
    _check_observation(name, write, size, after, "step")
    values = [
        None if isinstance(cost, str) else _call(name, lambda f=cost: f(observation, action, after, info), repr(called))
        for cost, called in zip(costs, names, strict=True)
    ]
    info_name = "" if costs else _promised(name, info)
    if info_name:
        names, values = (info_name,), [info[info_name]]
    cost_sizes = [
        1 if value is None else _width(name, value, f"the cost {called!r}")
        for called, value in zip(names, values, strict=True)
    ]
    return Probe(
        observation_size=size,
        actions=actions,
        costs=costs,
        cost_sizes=tuple(cost_sizes),
        cost_names=numbered(names, cost_sizes),
        info_name=info_name,
        horizon=int(horizon),
        seconds=seconds,
        image=(image := spaces.image(env.observation_space)),
        layout=None if image or (told := spaces.layout(env.observation_space)) == {"numbers": [size]} else told,
    )


def _promised(name: str, info: object) -> str:
    """The entry of info that holds the costs."""
    for key in ("cost", "costs"):
        if isinstance(info, dict) and key in info:
            return key
    raise InvalidInput(
        f"{name} gives no info['cost']: say what costs, as in --cost 'abs(obs[0]) > 1' --limit 25 "
        "(in Python costs=..., limits=...)."
    )


def _first_steps(name: str, env: host.Env, action: Any) -> tuple[Any, Any, float]:  # noqa: ANN401
    """The results of a few steps, and the seconds of the fastest."""
    after, info, seconds = None, None, []
    for _ in range(_TIMED_STEPS):
        began = time.perf_counter()
        outcome = _call(name, lambda: env.step(action), "step")
        seconds.append(time.perf_counter() - began)
        try:
            after, _, terminated, truncated, info = host.five_values(outcome)
        except host.NoStep as error:
            raise InvalidInput(f"{name}: {error}.") from None
        if terminated or truncated:
            break
    return after, info, min(seconds)


def _first_reset(name: str, env: host.Env, write: spaces.Write, size: int) -> tuple[Any, Any]:
    """The first observation, and an action to try."""
    answer = _call(name, lambda: env.reset(seed=0), "reset(seed=...)")
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise InvalidInput(f"{name}: reset must return (observation, info), and returned a {type(answer).__name__}.")
    _check_observation(name, write, size, answer[0], "reset")
    env.action_space.seed(0)
    return answer[0], env.action_space.sample()


def _check_observation(name: str, write: spaces.Write, size: int, observation: spaces.Observed, source: str) -> None:
    vector = np.zeros(size, dtype=np.float32)
    try:
        write(observation, vector)
    except spaces.Mismatch as mismatch:
        raise InvalidInput(f"{name}: {mismatch} ({source}).") from None
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{name}: the observation of {source} is not of its space: {_said(error)}.") from None
    if not np.isfinite(vector).all():
        raise InvalidInput(f"{name}: the first observation of {source} is not finite.")


def _call(name: str, call: Callable[[], Any], what: str) -> Any:  # noqa: ANN401
    try:
        return call()
    except Exception as error:
        raise InvalidInput(f"{name}: {what} raised {_said(error)}.") from error


def _width(name: str, value: Any, what: str) -> int:  # noqa: ANN401
    try:
        width = np.asarray(value, dtype=np.float64).size
    except (TypeError, ValueError):
        raise InvalidInput(f"{name}: {what} must be a number or a vector of them, not {value!r}.") from None
    if not 1 <= width <= 64:
        raise InvalidInput(f"{name}: {what} has {width} numbers, and 1 to 64 are allowed.")
    return width


def numbered(names: Sequence[str], sizes: Sequence[int]) -> tuple[str, ...]:
    """A name for each number of each cost."""
    return tuple(
        name if size == 1 else f"{name} {i + 1}" for name, size in zip(names, sizes, strict=True) for i in range(size)
    )


def _said(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}".rstrip(": .")


def require() -> None:
    """Raise InvalidInput if Gymnasium is not installed."""
    try:
        importlib.import_module("gymnasium")
    except ImportError:
        raise InvalidInput(f"this needs Gymnasium, which is not installed: {EXTRA}") from None


def drawing(task: GymnasiumTask) -> host.Env:
    """Make one of the task's environments with `render_mode` "rgb_array"."""
    name = type(task).name.removeprefix(OBJECT)
    try:
        try:
            env = type(task).make(render_mode=RGB)
        except TypeError:
            env = type(task).make()  # a function without that argument made it; it may still render itself
    except InvalidInput:
        raise
    except Exception as error:
        raise InvalidInput(f"{name} cannot be made with render_mode={RGB!r}: {_said(error)}.") from error
    if getattr(env, "render_mode", None) != RGB:
        with contextlib.suppress(Exception):
            env.close()
        raise InvalidInput(
            f"{name} does not draw itself: a video needs an environment with render_mode={RGB!r}, or a function that "
            "makes one and takes render_mode."
        )
    return env


def picture(env: host.Env, name: str) -> np.ndarray:
    """The rendered picture of an environment, [H, W, 3] bytes."""
    try:
        shown = np.asarray(env.render())
    except Exception as error:
        raise InvalidInput(f"{name} could not be drawn: render() raised {_said(error)}.") from error
    if shown.dtype != np.uint8 or shown.ndim != 3 or shown.shape[2] != 3:
        raise InvalidInput(
            f"{name} could not be drawn: render() must give [height, width, 3] bytes, not {shown.dtype} {shown.shape}."
        )
    return shown


def make_registered(name: str, **options: object) -> host.Env:
    """Make the environment of an id, without Gymnasium's checks in every step: our own replace them."""
    family = safety.family_of(name)
    if family is not None:
        safety.load(family, name)
    require()
    import gymnasium

    if "apdo/" in name:
        importlib.import_module("apdo.envs.native")
    if family is not None and name.rpartition(":")[2] not in gymnasium.registry:
        raise unknown("environment", name, _ids_of(family))
    try:
        with _prepared(name, family):
            if family is not None:
                return safety.make(family, name, **options)
            return gymnasium.make(name, disable_env_checker=True, **cast(dict[str, Any], options))
    except (gymnasium.error.UnregisteredEnv, ModuleNotFoundError, gymnasium.error.DependencyNotInstalled) as error:
        if isinstance(error, gymnasium.error.UnregisteredEnv):
            raise unknown("environment", name, gymnasium.registry) from None
        raise InvalidInput(f"{name} needs a package that is not installed: {_said(error)}.") from None


def _prepared(name: str, family: safety.Family | None) -> contextlib.AbstractContextManager[None]:
    """The context for making an environment. For Gymnasium's own MuJoCo robots, it suppresses MuJoCo's notices."""
    import gymnasium

    registered = gymnasium.registry.get(name)
    if family is not None or not str(getattr(registered, "entry_point", "")).startswith("gymnasium.envs.mujoco"):
        return contextlib.nullcontext()
    return mujoco_package.without_notices(mujoco_package.load(name, oldest=(2, 0)))


def _ids_of(family: safety.Family) -> list[str]:
    """The ids in Gymnasium's registry that belong to a package."""
    import gymnasium

    return [known for known in gymnasium.registry if safety.family_of(known) is family]


@functools.lru_cache(maxsize=256)
def of_id(name: str) -> type[GymnasiumTask]:
    """The task of a Gymnasium id."""
    family = safety.family_of(name)
    packages = GymnasiumTask.packages if family is None else family.packages
    make = functools.partial(make_registered, name)
    return subclass(GymnasiumTask, {"name": name, "make": make, "packages": packages})


@functools.lru_cache(maxsize=256)
def of_file(name: str) -> type[GymnasiumTask]:
    """The task of a Gymnasium class in a user's file."""
    require()
    return subclass(GymnasiumTask, {"name": name, "make": functools.partial(_made_of_file, name)})


def _made_of_file(name: str, **options: object) -> host.Env:
    """Make the environment by its name, so that a worker process can find it too."""
    return own.load(name, "environment")(**options)


def of_object(given: EnvLike, costs: Sequence[host.CostFunction | str] = ()) -> type[GymnasiumTask]:
    """The task of an environment, an id, or a function that makes one; some of the costs are functions."""
    if isinstance(given, str):
        name, make = OBJECT + given, functools.partial(make_registered, given)
    elif callable(given):
        name, make = OBJECT + getattr(given, "__name__", type(given).__name__), given
    else:
        name, make = OBJECT + type(getattr(given, "unwrapped", given)).__name__, _copier(given)
    names = tuple(cost if isinstance(cost, str) else getattr(cost, "__name__", "cost") for cost in costs)
    members = {"name": name, "make": staticmethod(make), "functions": tuple(costs), "function_names": names}
    return subclass(GymnasiumTask, members)


def _copier(env: host.Env) -> Callable[[], host.Env]:
    """A function that makes environments like this one: by its registration if it has one, otherwise by copying it."""
    spec = getattr(env, "spec", None)
    family = None if spec is None else safety.family_of(spec.id)
    if family is not None:
        return functools.partial(safety.make_again, family, spec)
    if spec is not None:
        require()
        import gymnasium

        return functools.partial(gymnasium.make, spec, disable_env_checker=True)

    def again() -> host.Env:
        try:
            return copy.deepcopy(env)
        except Exception as error:
            raise InvalidInput(
                f"the environment cannot be copied ({_said(error)}); give a function that makes one instead."
            ) from None

    return again


def remembered(name: str, problem: Mapping[str, Any], base: type[T]) -> type[T]:
    """The task from a run's description, without its environment. This suffices to load what was learned.

    `base` is the class that has the options of this kind of task.
    """
    sizes = [problem.get(key) for key in ("observation_size", "action_size", "horizon")]
    names, discrete = problem.get("cost_names"), problem.get("discrete_actions")
    if (
        not all(isinstance(size, int) and 0 < size <= spaces.MOST_ENTRIES for size in sizes[:2])
        or not isinstance(sizes[2], int)
        or not isinstance(names, list)
        or not isinstance(discrete, bool)
    ):
        raise InvalidInput("the run does not say what its environment's observations and actions are.")
    nothing = np.zeros(sizes[1] or 0)
    members = {
        "name": name,
        "observation_size": sizes[0],
        "image_shape": _image_of(problem.get("image"), sizes[0] or 0),
        "action_size": sizes[1],
        "horizon": sizes[2],
        "cost_names": tuple(str(called) for called in names),
        "discrete_actions": discrete,
        "observation_layout": _layout_of(problem.get("observation_layout"), sizes[0] or 0),
        "action_choices": spaces.Choices.of_plain(problem["action_choices"]) if "action_choices" in problem else None,
        "action_meaning": (nothing,) * 4,
    }
    return subclass(base, members)


def _layout_of(layout: Any, size: int) -> spaces.Layout | None:  # noqa: ANN401
    """What observations consist of, in a run's description."""
    if layout is not None and spaces.writer(layout)[0] != size:
        raise InvalidInput("what the run says of its observations does not fit their size.")
    return layout


def _image_of(shape: object, size: int) -> tuple[int, int, int] | None:
    """The shape of image observations in a run's description."""
    if shape is None:
        return None
    if not isinstance(shape, list) or len(shape) != 3 or not all(type(one) is int and one > 0 for one in shape):
        raise InvalidInput("the run does not say what its environment's images are.")
    height, width, channels = shape
    if min(height, width) < spaces.LEAST_SIDE or height * width * channels > size:
        raise InvalidInput("the run's images do not fit its observations.")
    return height, width, channels


def subclass(base: type[T], members: dict[str, Any]) -> type[T]:
    """Make a subclass of a class of tasks with these members, one of which is its name."""
    return cast(type[T], type(re.sub(r"\W", "_", members["name"]), (base,), members))
