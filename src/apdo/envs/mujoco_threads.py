"""A MuJoCo model as a task: threads advance all copies in one call, and rewards and costs are computed for all at once.

A `MujocoTask` is an XML file with functions over arrays whose first axis are the copies. The functions give the reward
and the cost of a step, and optionally the observation, the end and the start of an episode. `Threads` fulfils the
contract of `host.Copies`, with the same seeds, arrays and faults as the copies of a Gymnasium environment.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np

from apdo.envs import OBJECT, expressions, host, mujoco_package, simulations, spaces
from apdo.envs.host_options import HostOptions
from apdo.envs.mujoco_package import Model
from apdo.envs.simulations import State
from apdo.errors import InvalidInput
from apdo.options import OURS, option

Start: TypeAlias = Callable[[np.random.Generator, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""(random generator, the model's own positions [nq] and velocities [nv]) ↦ the first ones of an episode."""
_PROBED, _PROBE_STEPS = 3, 3
"""The number of copies and of steps in a first look."""


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """A step of N copies. The first axis of every array are the copies; the arrays must not be changed."""

    before: State
    action: np.ndarray
    """The actuators' inputs, [N, nu]."""
    after: State
    dt: float
    """The simulated seconds of the step."""


@dataclasses.dataclass(frozen=True, eq=False)
class MujocoTask:
    """A model with its reward, its costs, its observation, and where its episodes begin and end.

    def reward(step):
        return (step.after.qpos[:, 0] - step.before.qpos[:, 0]) / step.dt

    def too_fast(step):
        return np.abs(step.after.qvel[:, 1]) > 8.0

    apdo.train("pdo", MujocoTask("cart.xml", reward, too_fast, frame_skip=2, horizon=500), limits=25)
    """

    model: str | Path
    """An XML file, or an XML text."""
    reward: Callable[[Step], Any]
    """The reward of a step, [N]."""
    cost: Callable[[Step], Any] | None = None
    """The cost of a step, [N], or [N, M] for several costs."""
    observation: Callable[[State], Any] | None = None
    """The observation of a state, [N, O]; without it: positions, then velocities."""
    terminated: Callable[[Step], Any] | None = None
    """Whether an episode has ended, an [N] array of bools; without it, no episode ends before the horizon."""
    start: Start | None = None
    """The start of an episode; without it: the model's own. See `uniform_start` and `normal_start`."""
    frame_skip: int = 1
    """The number of simulation steps in one step of the task."""
    horizon: int = 1000
    """Steps after which an episode is cut off."""
    fields: tuple[str, ...] = ()
    """Further arrays of `mjData` that the functions need, such as "sensordata" or "xpos", in `state.fields`."""
    cost_names: tuple[str, ...] = ()
    """A name for each cost; without them: the function's name."""
    name: str = ""
    """The task's name; without it: the file's name."""
    breakdown: str = "raise"
    """What happens if a simulation breaks down, for example because the timestep is too long, and MuJoCo resets it to
    the model's start. "raise" ends the run. "ignore" continues the episode from there, as Gymnasium's robots do."""
    prepare: Callable[[Model], None] | None = None
    """A function that changes the compiled model."""

    def __post_init__(self) -> None:
        for what in ("frame_skip", "horizon"):
            number = getattr(self, what)
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise InvalidInput(f"{what} must be a whole number above 0, not {number!r}.")
        if self.breakdown not in ("raise", "ignore"):
            raise InvalidInput(f"breakdown must be raise or ignore, not {self.breakdown!r}.")
        for what in ("reward", "cost", "observation", "terminated", "start", "prepare"):
            given = getattr(self, what)
            if not callable(given) and (given is not None or what == "reward"):
                raise InvalidInput(f"{what} must be a function, not {given!r}.")

    @property
    def title(self) -> str:
        """The task's name, or the file's."""
        is_text = isinstance(self.model, str) and self.model.lstrip().startswith("<")
        return self.name or ("model" if is_text else Path(self.model).stem)


def uniform_start(scale: float) -> Start:
    """A start with positions and velocities that differ from the model's by up to `scale`, uniformly distributed."""

    def start(rng: np.random.Generator, qpos: np.ndarray, qvel: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return qpos + rng.uniform(-scale, scale, len(qpos)), qvel + rng.uniform(-scale, scale, len(qvel))

    return start


def normal_start(scale: float) -> Start:
    """A start with positions off by up to `scale`, uniformly distributed, and velocities by `scale` times a normal."""

    def start(rng: np.random.Generator, qpos: np.ndarray, qvel: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return qpos + rng.uniform(-scale, scale, len(qpos)), qvel + scale * rng.standard_normal(len(qvel))

    return start


@dataclasses.dataclass(frozen=True, eq=False)
class Look:
    """What a first look at a task has found."""

    described: MujocoTask
    model: Model
    actions: spaces.Actions
    observation_size: int
    costs: tuple[expressions.Expression, ...]
    """The costs that replace the task's own, if there are any."""
    cost_shape: tuple[int, ...]
    """The shape of the cost function's value for one copy: a number or a vector."""
    cost_sizes: tuple[int, ...]
    cost_names: tuple[str, ...]
    horizon: int

    @property
    def action_size(self) -> int:
        """The number of entries of an action."""
        return self.actions.size


@dataclasses.dataclass(frozen=True)
class ThreadedTask(HostOptions):
    """A `MujocoTask` with the options of a run. A subclass says which task."""

    cost: str = option(
        "",
        "costs as expressions over obs[i], action[i] and next_obs[i], with ; between them; empty: the task's own costs",
        OURS,
    )
    max_episode_steps: int = option(
        0, "steps after which an episode is cut off; 0: the task's own horizon", OURS, within=(0, 10**7)
    )
    workers: str = option("auto", "threads that step the copies: a number, or auto: one for each core", OURS)

    name: ClassVar[str] = ""
    task: ClassVar[MujocoTask]
    limits: ClassVar[tuple[float, ...]] = ()
    horizon_terminates: ClassVar[bool] = False
    discrete_actions: ClassVar[bool] = False
    packages: ClassVar[tuple[str, ...]] = ("mujoco",)
    bookkeeping: ClassVar[tuple[str, ...]] = ("workers", "step_seconds")
    steps_seeds_together: ClassVar[bool] = True
    """One call steps the copies of all seeds."""
    defaults: ClassVar[dict[str, Any]] = {"samples": 1_000_000, "constrain": "total", "normalise": True}

    def described(self) -> MujocoTask:
        """The task with these options applied."""
        return type(self).task

    @property
    def observation_size(self) -> int:
        """The number of entries of an observation."""
        return look(self).observation_size

    @property
    def action_size(self) -> int:
        """The number of entries of an action."""
        return look(self).action_size

    @property
    def cost_names(self) -> tuple[str, ...]:
        """The expressions, or the task's names for its costs."""
        return look(self).cost_names

    @property
    def horizon(self) -> int:
        """The most steps in an episode."""
        return look(self).horizon

    @property
    def action_meaning(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """(shift, scale, low, high) of the actions: ±1 are the ends of an actuator's range, if it has one."""
        return look(self).actions.meaning

    def open(self, count: int) -> "Threads":
        """Make so many copies."""
        if self.workers.startswith("ray:"):
            raise InvalidInput("this task steps its copies in threads: workers must be auto or a number.")
        threads = simulations.cores() if self.workers == "auto" else max(int(self.workers), 1)
        return Threads(look(self), count, threads, self.step_seconds)


def of_task(task: MujocoTask) -> type[ThreadedTask]:
    """The class of a task that is given in Python."""
    return type("Mujoco", (ThreadedTask,), {"name": OBJECT + task.title, "task": task})


@functools.lru_cache(maxsize=64)
def look(task: ThreadedTask) -> Look:
    """Look at the task for the first time, and refuse anything unsuitable before a run starts."""
    described = task.described()
    name = type(task).name.removeprefix(OBJECT) or described.title
    model = mujoco_package.compiled(mujoco_package.load(name), described.model, name)
    if described.prepare is not None:
        try:
            described.prepare(model)
        except Exception as error:
            raise InvalidInput(f"{name}: {host.raised(0, 0, 'the prepare function', error).what}.") from error
    if model.nu == 0 or model.nq == 0:
        raise InvalidInput(f"{name}: the model has no {'actuator' if model.nq else 'joint'}, and nothing can be done.")
    found = Look(
        described=described,
        model=model,
        actions=_actions(model),
        observation_size=0,
        costs=tuple(expressions.parse(text) for text in expressions.split(task.cost)),
        cost_shape=(),
        cost_sizes=(),
        cost_names=expressions.split(task.cost),
        horizon=task.max_episode_steps or described.horizon,
    )
    try:
        found = _sized(found, name)
        for cost in found.costs:
            size = found.observation_size
            cost.check({"obs": size, "action": found.action_size, "next_obs": size})
        _try_out(found)
    except host.Fault as fault:
        raise InvalidInput(f"{name}: {fault.what}.") from fault
    return found


def _actions(model: Model) -> spaces.Actions:
    """The action space. An actuator without a range accepts any number."""
    low, high = np.asarray(model.actuator_ctrlrange, dtype=np.float32).astype(np.float64).T
    limited = np.asarray(model.actuator_ctrllimited, dtype=bool)
    low, high = np.where(limited, low, -np.inf), np.where(limited, high, np.inf)
    return spaces.Actions(model.nu, None, (model.nu,), np.dtype(np.float32), low, high)


def _sized(found: Look, name: str) -> Look:
    """The look with the sizes of observations and costs, which are found by calling the functions."""
    sight = Sight(found.described, found.model, _PROBED, 1)
    try:
        sight.begin(np.arange(_PROBED), [np.random.default_rng(i) for i in range(_PROBED)])
        seen = sight.asked("observation", sight.observation, sight.now)
        if seen.ndim != 2 or len(seen) != _PROBED or not 0 < seen.shape[1] <= spaces.MOST_ENTRIES:
            raise host.Fault(0, 0, f"the observation function gave the shape {list(seen.shape)} for {_PROBED} copies")
        found = dataclasses.replace(found, observation_size=seen.shape[1])
        if found.costs:
            return dataclasses.replace(found, cost_sizes=(1,) * len(found.costs))
        cost = found.described.cost
        if cost is None:
            raise InvalidInput(
                f"{name} has no cost: give cost=..., or costs='abs(obs[0]) > 1' beside limits=... "
                "(--cost on the command line)."
            )
        step = sight.advance(np.zeros((_PROBED, found.action_size), dtype=np.float32))
        paid = sight.asked("cost", cost, step)
    finally:
        sight.close()
    if paid.ndim not in (1, 2) or len(paid) != _PROBED or not 1 <= paid[0].size <= 64:
        raise host.Fault(0, 0, f"the cost function gave the shape {list(paid.shape)} for {_PROBED} copies")
    names = _names(found.described, paid[0].size)
    return dataclasses.replace(found, cost_shape=paid.shape[1:], cost_sizes=(paid[0].size,), cost_names=names)


def _names(described: MujocoTask, costs: int) -> tuple[str, ...]:
    if described.cost_names:
        if len(described.cost_names) != costs:
            raise host.Fault(0, 0, f"there are {costs} costs and {len(described.cost_names)} names for them")
        return described.cost_names
    name = getattr(described.cost, "__name__", "cost")
    name = "cost" if name == "<lambda>" else name
    return (name,) if costs == 1 else tuple(f"{name} {i + 1}" for i in range(costs))


def _try_out(found: Look) -> None:
    """Take a few steps, with all checks of a run."""
    copies = Threads(found, _PROBED, 1)
    try:
        copies.reset([0, 0, 0, 0])
        rng = np.random.default_rng(0)
        for _ in range(_PROBE_STEPS):
            copies.arrays.action[:] = rng.uniform(-1.0, 1.0, copies.arrays.action.shape)
            copies.step(last=False)
    finally:
        copies.close()


class Sight:
    """Simulations together with a task's functions, which are called with checks."""

    def __init__(self, described: MujocoTask, model: Model, count: int, threads: int) -> None:
        package = mujoco_package.load(described.title)
        self._described, self._count = described, count
        self._own = np.array(model.qpos0, dtype=np.float64), np.zeros(model.nv)
        self._dt = float(model.opt.timestep * described.frame_skip)
        self._simulations = simulations.simulate(package, model, count, threads, described.frame_skip, described.fields)
        self.observation = described.observation or _positions_and_velocities
        self.now = self._simulations.state()
        self.steps = [0] * count
        """The step of the episode in each simulation."""
        self.first = 0
        """The copy that is named in a fault of all copies."""

    @property
    def at(self) -> tuple[int, int]:
        """The copy and the step of its episode that a fault of all copies names."""
        return self.first, self.steps[self.first]

    def begin(self, which: np.ndarray, generators: Sequence[np.random.Generator]) -> None:
        """Start an episode in some copies, given by index."""
        starts = [self._start(int(i), rng) for i, rng in zip(which, generators, strict=True)]
        with self._broken_as_fault():
            self._simulations.begin(which, *(np.stack(part) for part in zip(*starts, strict=True)))
        self.now = self._simulations.state()

    def _start(self, i: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        if self._described.start is None:
            return self._own
        try:
            qpos, qvel = self._described.start(rng, *(own.copy() for own in self._own))
            given = np.asarray(qpos, dtype=np.float64), np.asarray(qvel, dtype=np.float64)
        except Exception as error:
            raise host.raised(i, 0, "the start function", error) from error
        for what, new, own in zip(("positions", "velocities"), given, self._own, strict=True):
            if new.shape != own.shape:
                raise host.Fault(
                    i, 0, f"the start function gave {what} of the shape {list(new.shape)} instead of {list(own.shape)}"
                )
            if not np.isfinite(new).all():
                raise host.Fault(i, 0, f"the start function gave {what} that are not finite", numerical=True)
        return given

    def advance(self, controls: np.ndarray) -> Step:
        """Take one step in each copy."""
        with self._broken_as_fault():
            self._simulations.advance(controls)
        if self._described.breakdown == "raise" and (unstable := self._simulations.unstable()).any():
            i = int(np.argmax(unstable))
            raise host.Fault(
                i,
                self.steps[i],
                "its simulation broke down (a shorter timestep may help, or weaker actuators)",
                numerical=True,
            )
        before, self.now = self.now, self._simulations.state()
        return Step(before, controls, self.now, self._dt)

    @contextlib.contextmanager
    def _broken_as_fault(self) -> Iterator[None]:
        try:
            yield
        except simulations.Broken as broken:
            i, said = broken.simulation, " ".join(broken.said.split())
            raise host.Fault(i, self.steps[i], f"MuJoCo gave up on it: {said}") from None

    def asked(self, what: str, function: Callable[[Any], Any], about: Step | State) -> np.ndarray:
        """The value of one of the task's functions, checked to be an array of numbers."""
        try:
            value = np.asarray(function(about))
        except Exception as error:
            raise host.raised(*self.at, f"the {what} function", error) from error
        if value.dtype.kind not in "fiub":
            raise host.Fault(*self.at, f"the {what} function gave the type {value.dtype} instead of numbers")
        return value

    def shaped(
        self, what: str, function: Callable[[Any], Any], about: Step | State, shape: tuple[int, ...]
    ) -> np.ndarray:
        """The same, checked to have a given shape."""
        value = self.asked(what, function, about)
        if value.shape != shape:
            raise host.Fault(
                *self.at, f"the {what} function gave the shape {list(value.shape)} instead of {list(shape)}"
            )
        return value

    def close(self) -> None:
        """Close the simulations."""
        self._simulations.close()


def _positions_and_velocities(state: State) -> np.ndarray:
    return np.concatenate([state.qpos, state.qvel], axis=1)


class Threads:
    """Copies of a model, which other threads advance while this one waits."""

    def __init__(self, found: Look, count: int, threads: int, step_seconds: float = 0.0) -> None:
        self.arrays = host.Arrays(found, count)
        self.step_seconds = step_seconds
        self._found, self._task = found, found.described
        self._sight = Sight(found.described, found.model, count, threads)
        self._translate = found.actions.translator()
        self._episode = np.zeros(count, dtype=np.int64)
        self._entropy = np.zeros((1, 4), dtype=np.uint32)
        """Four words for each group of copies."""
        self._working = False

    def reset(self, entropy: Sequence[int]) -> None:
        """Begin an episode in each copy."""
        self._entropy = np.asarray(entropy, dtype=np.uint32).reshape(-1, 4)
        self._episode[:] = 0
        self._working = True
        self._begin(np.arange(self.arrays.count))
        self._working = False

    def step(self, *, last: bool) -> None:
        """Step each copy once."""
        arrays, sight = self.arrays, self._sight
        self._working = True
        sight.steps, sight.first = arrays.step.tolist(), 0
        numbers, given = self._translate(arrays.action)
        given.flags.writeable = False
        step = sight.advance(given)
        shape = (arrays.count,)
        arrays.next_observation[:] = sight.shaped(
            "observation", sight.observation, step.after, arrays.next_observation.shape
        )
        arrays.reward[:] = sight.shaped("reward", self._task.reward, step, shape)
        self._charge(step, numbers)
        arrays.terminated[:] = self._ended(step)
        arrays.truncated[:] = (arrays.step + 1 >= self._found.horizon) & ~arrays.terminated
        host.check_finite(arrays, sight.steps)
        arrays.observation[:] = arrays.next_observation
        arrays.step[:] += 1
        if not last:
            self._begin_next(arrays.terminated | arrays.truncated)
        self._working = False

    def restart(self, which: np.ndarray) -> None:
        """Give up the episodes of some copies, and begin their next ones."""
        self._working = True
        self._begin_next(which)
        self._working = False

    def _begin_next(self, over: np.ndarray) -> None:
        which = np.flatnonzero(over)
        if len(which):
            self._episode[which] += 1
            self._begin(which)

    def _charge(self, step: Step, numbers: np.ndarray) -> None:
        """Write the costs into the arrays: those of the expressions, or the task's own."""
        arrays = self.arrays
        if self._task.cost is not None and not self._found.costs:
            shape = (arrays.count, *self._found.cost_shape)
            arrays.cost[:] = self._sight.shaped("cost", self._task.cost, step, shape).reshape(arrays.cost.shape)
            return
        data = {
            "obs": arrays.observation.astype(np.float64),
            "action": numbers,
            "next_obs": arrays.next_observation.astype(np.float64),
        }
        for column, cost in enumerate(self._found.costs):
            arrays.cost[:, column] = cost(data)

    def _ended(self, step: Step) -> np.ndarray:
        if self._task.terminated is None:
            return np.zeros(self.arrays.count, dtype=bool)
        ended = self._sight.shaped("terminated", self._task.terminated, step, (self.arrays.count,))
        if ended.dtype != bool:
            raise host.Fault(*self._sight.at, f"the terminated function gave the type {ended.dtype} instead of bool")
        return ended

    def _begin(self, which: np.ndarray) -> None:
        """Begin an episode in some copies, each with its own seed."""
        arrays, sight = self.arrays, self._sight
        arrays.step[which] = 0
        sight.steps, sight.first = arrays.step.tolist(), int(which[0])
        seeds = [self._seed(int(i)) for i in which]
        sight.begin(which, [np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed))) for seed in seeds])
        seen = sight.shaped("observation", sight.observation, sight.now, arrays.observation.shape)
        arrays.observation[which] = seen[which]
        finite = np.isfinite(arrays.observation[which]).all(axis=1)
        if not finite.all():
            bad = int(which[np.argmin(finite)])
            raise host.Fault(bad, 0, "the observation of a reset is not finite", numerical=True)

    def _seed(self, i: int) -> int:
        """The seed of the episode that a copy begins; it depends on the copy's place in its group."""
        group, place = divmod(i, self.arrays.count // len(self._entropy))
        return host.seed_of(self._entropy[group], place, int(self._episode[i]))

    def watched(self) -> contextlib.AbstractContextManager[None]:
        """A context in which functions that take more than `step_seconds` are interrupted; only in the main thread."""
        arrays = self.arrays
        return host.alarmed(
            self.step_seconds, lambda: (self._sight.at if self._working else None, int(arrays.step.sum()))
        )

    def close(self) -> None:
        """Close the simulations."""
        self._sight.close()
