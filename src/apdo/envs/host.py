"""Environments that run on the host: N copies of one environment, stepped side by side outside of compiled programs.

The copies live in this process (`InProcess`), or in worker processes that share their arrays with it (`Workers`). Both
step them through `Slice`, so that the results are the same. An episode that ends is followed by the next one at once.
The seed of an episode depends only on the collection's own seed, the index of the copy and the number of the episode. A
third kind, only for MuJoCo's models, is in `mujoco_threads.py`.

This module does not import JAX, so that worker processes start quickly.
"""

import contextlib
import copy
import dataclasses
import json
import math
import mmap
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from apdo.envs import expressions, spaces
from apdo.envs.task import Task
from apdo.errors import InvalidInput

START_SECONDS = 120.0
"""The most seconds that a worker process may take to make its environments."""

_MOST_TRACE = 20_000
"""How many of a traceback's last characters are kept."""
_FLOATS = (float, np.float64, np.float32)

Env: TypeAlias = Any
"""A `gymnasium.Env`. Gymnasium is an extra, and a user's class need not derive from it if it behaves alike."""
CostFunction: TypeAlias = Callable[[Any, Any, Any, dict[str, Any]], Any]
"""(observation, action, next observation, info) ↦ a number or a vector."""


class Fault(Exception):
    """A copy broke its contract; the fault says which copy, at which step, and how."""

    def __init__(self, environment: int, step: int, what: str, *, numerical: bool = False, trace: str = "") -> None:
        super().__init__(environment, step, what)
        self.environment, self.step, self.what = environment, step, what
        self.numerical = numerical
        """Whether it returned NaN or infinity, rather than something of the wrong type."""
        self.trace = trace
        """The traceback of its error, if it raised one."""


@runtime_checkable
class Sizes(Protocol):
    """The numbers of entries that a copy takes and returns."""

    @property
    def observation_size(self) -> int:
        """The number of entries of an observation."""
        ...

    @property
    def action_size(self) -> int:
        """The number of entries of an action."""
        ...

    @property
    def cost_sizes(self) -> tuple[int, ...]:
        """The number of entries of each cost."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """Everything that is needed to make and step copies of an environment; it is sent to worker processes."""

    make: Callable[[], Env]
    observation_size: int
    action_size: int
    costs: tuple[CostFunction | str, ...]
    """Functions or expressions; empty if `info` has the costs."""
    cost_sizes: tuple[int, ...]
    """How many numbers each of them returns, or the entry of `info`."""
    info_name: str
    """The entry of `info` with the costs, if `costs` is empty."""
    horizon: int


@runtime_checkable
class HostTask(Task, Protocol):
    """A task whose environments run on the host."""

    @property
    def action_meaning(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """(shift, scale, low, high): the environment receives clip(shift + scale · action, low, high)."""
        ...

    def open(self, count: int) -> "Copies":
        """Make so many copies."""
        ...


@runtime_checkable
class Copies(Protocol):
    """N copies of an environment, and the arrays that they read and write."""

    arrays: "Arrays"

    def reset(self, entropy: Sequence[int]) -> None:
        """Begin an episode in each copy; `entropy` determines the seeds of all episodes until the next call.

        It has four words. A task with `steps_seeds_together` also accepts four words for each of several groups of
        equally many copies, one after the other. The copies of a group then do what they would do alone.
        """
        ...

    def step(self, *, last: bool) -> None:
        """Step each copy with `arrays.action`. After the `last` step, ended episodes are not followed by new ones."""
        ...

    def restart(self, which: np.ndarray) -> None:
        """Give up the episodes of some copies, an [N] array of bools, and begin their next ones."""
        ...

    def watched(self) -> contextlib.AbstractContextManager[None]:
        """A context in which a step that takes too long is a fault."""
        ...

    def close(self) -> None:
        """Close the environments."""
        ...


class Arrays:
    """The data that N copies and their user exchange; the first axis of every field are the copies."""

    def __init__(self, sizes: Sizes, count: int, buffer: mmap.mmap | None = None) -> None:
        self.count = count
        self.layout = _layout(sizes, count)
        memory = bytearray(_bytes(self.layout)) if buffer is None else buffer
        views, at = {}, 0
        for name, (shape, dtype) in self.layout.items():
            size = math.prod(shape) * dtype.itemsize
            views[name] = np.frombuffer(memory, dtype=dtype, count=math.prod(shape), offset=at).reshape(shape)
            at += -(-size // 8) * 8
        self.action, self.observation, self.next_observation = (
            views[name] for name in ("action", "observation", "next_observation")
        )
        """`observation` is what the next action responds to; `next_observation` is what the last one led to."""
        self.reward, self.cost = views["reward"], views["cost"]
        self.terminated, self.truncated = views["terminated"], views["truncated"]
        self.step = views["step"]
        """The index of the next step within its episode."""
        self.given_up = views["given_up"]
        """The copies whose episodes `restart` gives up."""
        self.entropy = views["entropy"]
        self.busy, self.since = views["busy"], views["since"]
        """For each worker: the copy that it is stepping (or -1), and the time when it began."""


def _layout(sizes: Sizes, count: int) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    single, o = np.dtype(np.float32), sizes.observation_size
    return {
        "action": ((count, sizes.action_size), single),
        "observation": ((count, o), single),
        "next_observation": ((count, o), single),
        "reward": ((count,), single),
        "cost": ((count, sum(sizes.cost_sizes)), single),
        "terminated": ((count,), np.dtype(bool)),
        "truncated": ((count,), np.dtype(bool)),
        "step": ((count,), np.dtype(np.int32)),
        "given_up": ((count,), np.dtype(bool)),
        "entropy": ((4,), np.dtype(np.uint32)),
        "busy": ((count,), np.dtype(np.int64)),
        "since": ((count,), np.dtype(np.float64)),
    }


def _bytes(layout: dict[str, tuple[tuple[int, ...], np.dtype[Any]]]) -> int:
    return sum(-(-math.prod(shape) * dtype.itemsize // 8) * 8 for shape, dtype in layout.values())


class Slice:
    """Steps the copies from `first` to `last` (exclusive) of a batch, and checks what they return."""

    def __init__(self, plan: Plan, first: int, last: int, arrays: Arrays, worker: int | None = None) -> None:
        self.plan, self.first, self.last, self.arrays, self.worker = plan, first, last, arrays, worker
        self.at: tuple[int, int] | None = None
        """The copy that is being stepped, and the step of its episode."""
        self.envs = [self._guarded(i, plan.make) for i in range(first, last)]
        self.space, self.action_space = self.envs[0].observation_space, self.envs[0].action_space
        size, self._write = spaces.flattener(self.space)
        meaning = spaces.actions(self.action_space)
        if (size, meaning.size) != (plan.observation_size, plan.action_size):
            raise Fault(first, 0, "its spaces are not those that it had when the run was planned")
        self._translate = meaning.translator()
        self._episode = [0] * (last - first)
        self._last_seen: list[Any] = [None] * (last - first)
        self._costs = [expressions.parse(cost) if isinstance(cost, str) else cost for cost in plan.costs]
        ends = np.cumsum(plan.cost_sizes).tolist()
        self._places = [slice(end - size, end) for size, end in zip(plan.cost_sizes, ends, strict=True)]
        self._functions = [
            (cost, place)
            for cost, place in zip(self._costs, self._places, strict=False)
            if not isinstance(cost, expressions.Expression)
        ]
        self._expressions = [
            (cost, place)
            for cost, place in zip(self._costs, self._places, strict=False)
            if isinstance(cost, expressions.Expression)
        ]

    def reset(self) -> None:
        """Begin the first episode of each copy."""
        self._episode = [0] * (self.last - self.first)
        for i in range(self.first, self.last):
            self._begin(i)
        self.at = None

    def step(self, *, last: bool) -> None:
        """Step each copy once."""
        arrays, first = self.arrays, self.first
        mine = slice(first, self.last)
        numbers, given = self._translate(arrays.action[mine])
        steps = arrays.step[mine].tolist()
        rewards, terminated, truncated = [], [], []
        for place, env in enumerate(self.envs):
            i = first + place
            self.at = (i, steps[place])
            if self.worker is not None:
                arrays.busy[self.worker], arrays.since[self.worker] = i, time.monotonic()
            try:
                outcome = env.step(given[place])
            except Exception as error:
                raise raised(i, steps[place], "it", error) from error
            reward, ends, is_cut = self._take(i, place, given[place], outcome, steps[place])
            rewards.append(reward)
            terminated.append(ends)
            truncated.append((is_cut or steps[place] + 1 >= self.plan.horizon) and not ends)
        arrays.reward[mine], arrays.terminated[mine], arrays.truncated[mine] = rewards, terminated, truncated
        for cost, columns in self._expressions:
            data = {
                "obs": arrays.observation[mine].astype(np.float64),
                "action": numbers,
                "next_obs": arrays.next_observation[mine].astype(np.float64),
            }
            arrays.cost[mine, columns.start] = cost(data)
        check_finite(arrays, steps, first)
        arrays.observation[mine] = arrays.next_observation[mine]
        arrays.step[mine] += 1
        if not last:
            self._begin_next(arrays.terminated[mine] | arrays.truncated[mine])
        self.at = None

    def restart(self) -> None:
        """Begin the next episodes of the copies in `arrays.given_up`."""
        self._begin_next(self.arrays.given_up[self.first : self.last])
        self.at = None

    def _begin_next(self, over: np.ndarray) -> None:
        for place in np.flatnonzero(over).tolist():
            self._episode[place] += 1
            self._begin(self.first + place)

    def _take(self, i: int, place: int, action: Any, outcome: Any, step: int) -> tuple[float, bool, bool]:  # noqa: ANN401
        """Check a step's result. Observation and costs go into the arrays; returns reward, terminated, truncated."""
        try:
            observation, reward, terminated, truncated, info = five_values(outcome)
        except NoStep as error:
            raise Fault(i, step, str(error)) from None
        self._read(observation, self.arrays.next_observation[i], i, step)
        if type(reward) not in _FLOATS:
            try:
                reward = _number(reward)
            except (TypeError, ValueError):
                raise Fault(i, step, f"the reward is {_brief(reward)}, which is no number") from None
        if (terminated is not True and terminated is not False) or (truncated is not True and truncated is not False):
            for name, flag in (("terminated", terminated), ("truncated", truncated)):
                if not isinstance(flag, bool | np.bool_):
                    raise Fault(i, step, f"{name} is {_brief(flag)}, which is neither true nor false")
        if self._functions or not self.plan.costs:
            self._charge(i, place, observation, action, info, step)
        return reward, bool(terminated), bool(truncated)

    def _charge(
        self,
        i: int,
        place: int,
        observation: Any,  # noqa: ANN401
        action: Any,  # noqa: ANN401
        info: Any,  # noqa: ANN401
        step: int,
    ) -> None:
        """Write the costs from functions or from `info` into the arrays."""
        row = self.arrays.cost[i]
        if not self.plan.costs:
            name = self.plan.info_name
            if not isinstance(info, dict) or name not in info:
                raise Fault(i, step, f"info has no {name!r}, though the environment's first step had")
            _enter(row, slice(0, len(row)), info[name], i, step, f"info[{name!r}]")
        for function, columns in self._functions:
            before = self._last_seen[place]
            value = self._guarded(
                i, lambda f=function, b=before: f(b, action, observation, info), step, "a cost function"
            )
            _enter(row, columns, value, i, step, "a cost function's value")
        if self._functions:
            self._last_seen[place] = _own(observation)

    def _begin(self, i: int) -> None:
        """Begin an episode of copy i, with the episode's own seed."""
        place = i - self.first
        env, arrays = self.envs[place], self.arrays
        self.at = (i, 0)
        if self.worker is not None:
            arrays.busy[self.worker], arrays.since[self.worker] = i, time.monotonic()
        seed = seed_of(arrays.entropy, i, self._episode[place])
        answer = self._guarded(i, lambda: env.reset(seed=seed), 0, "reset")
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise Fault(i, 0, "reset did not return (observation, info)")
        if env.observation_space is not self.space and env.observation_space != self.space:
            raise Fault(i, 0, f"the observation space has changed to {_brief(env.observation_space)}")
        if env.action_space is not self.action_space and env.action_space != self.action_space:
            raise Fault(i, 0, f"the action space has changed to {_brief(env.action_space)}")
        self._read(answer[0], arrays.observation[i], i, 0)
        if not np.isfinite(arrays.observation[i]).all():
            raise Fault(i, 0, "the observation of a reset is not finite", numerical=True)
        if self._functions:
            self._last_seen[place] = _own(answer[0])
        arrays.step[i] = 0

    def _read(self, observation: spaces.Observed, out: np.ndarray, i: int, step: int) -> None:
        try:
            self._write(observation, out)
        except spaces.Mismatch as mismatch:
            raise Fault(i, step, str(mismatch)) from None
        except (TypeError, ValueError) as error:
            raise Fault(i, step, f"the observation is {_brief(observation)}, which is not of its space") from error

    def _guarded(self, i: int, call: Callable[[], Any], step: int = 0, what: str = "") -> Any:  # noqa: ANN401
        try:
            return call()
        except (Fault, InvalidInput):
            raise
        except Exception as error:
            raise raised(i, step, what or "it", error) from error

    def close(self) -> None:
        """Close every environment; errors of a closing environment are ignored."""
        for env in self.envs:
            with contextlib.suppress(Exception):
                env.close()


def check_finite(arrays: Arrays, steps: Sequence[int], first: int = 0) -> None:
    """Raise a fault if one of the `len(steps)` copies from `first` on returned NaN or infinity."""
    mine = slice(first, first + len(steps))
    for name, values in (
        ("observation", arrays.next_observation),
        ("reward", arrays.reward),
        ("cost", arrays.cost),
    ):
        finite = np.isfinite(values[mine])
        if not finite.all():
            bad = int(np.argwhere(~finite)[0][0])
            value = values[mine][bad][~finite[bad]].reshape(-1)[0]
            raise Fault(first + bad, steps[bad], f"the {name} is {value}", numerical=True)


class NoStep(ValueError):
    """The result of a step has the wrong form; the message says how."""


def five_values(outcome: Any) -> tuple[Any, Any, Any, Any, Any]:  # noqa: ANN401
    """A step's (observation, reward, terminated, truncated, info).

    Safety-Gymnasium's steps have a sixth value, the cost, after the reward. It becomes `info["cost"]`.
    """
    if isinstance(outcome, tuple):
        if len(outcome) == 5:
            return outcome
        if len(outcome) == 6:
            observation, reward, cost, terminated, truncated, info = outcome
            said = info if isinstance(info, dict) else {}
            return observation, reward, terminated, truncated, {**said, "cost": cost}
    given = f"{len(outcome)} values" if isinstance(outcome, tuple) else f"a {type(outcome).__name__}"
    raise NoStep(f"step returned {given} where (observation, reward, terminated, truncated, info) are due")


def raised(i: int, step: int, what: str, error: Exception) -> Fault:
    """The fault of an environment that raised an error; an error that is a fault already is returned."""
    if isinstance(error, Fault):
        return error
    said = f"{type(error).__name__}: {_brief(error, quoted=False)}".rstrip(": ")
    trace = "".join(traceback.format_exception(error))
    return Fault(i, step, f"{what} raised {said}", trace=trace[-_MOST_TRACE:])


def seed_of(entropy: np.ndarray, environment: int, episode: int) -> int:
    """The seed of an episode, of 31 bits."""
    sequence = np.random.SeedSequence(entropy.tolist(), spawn_key=(environment, episode))
    return int(sequence.generate_state(1)[0] >> 1)


def _own(observation: spaces.Observed) -> spaces.Observed:
    """A copy, because an environment may reuse the array that it returned."""
    return observation.copy() if isinstance(observation, np.ndarray) else copy.deepcopy(observation)


def _number(value: Any) -> float:  # noqa: ANN401
    if isinstance(value, str | bytes) or np.ndim(value) != 0:
        raise TypeError
    return float(value)


def _enter(row: np.ndarray, columns: slice, value: Any, i: int, step: int, what: str) -> None:  # noqa: ANN401
    """Write a cost, which is a number or a vector of the right length, into its columns."""
    width = columns.stop - columns.start
    if width == 1 and type(value) in _FLOATS:
        row[columns.start] = value
        return
    try:
        given = np.asarray(value, dtype=np.float64).reshape(-1)
    except (TypeError, ValueError):
        raise Fault(i, step, f"{what} is {_brief(value)}, which is no number") from None
    if len(given) != width:
        raise Fault(i, step, f"{what} has {len(given)} numbers instead of {width}")
    row[columns] = given


def _brief(value: Any, *, quoted: bool = True) -> str:  # noqa: ANN401
    try:
        text = " ".join((repr(value) if quoted else str(value)).split())
    except Exception:
        text = f"a {type(value).__name__}"
    return text if len(text) <= 100 else text[:100] + "…"


class InProcess:
    """All copies in this process, stepped one after the other.

    A step that takes too long is noticed while Python code runs, such as a sleep or a loop. A step that hangs inside
    compiled code is not: only a worker process can be stopped then.
    """

    def __init__(self, plan: Plan, count: int, step_seconds: float = 0.0) -> None:
        self.arrays = Arrays(plan, count)
        self._slice = Slice(plan, 0, count, self.arrays)
        self.step_seconds = step_seconds

    def reset(self, entropy: Sequence[int]) -> None:
        """Begin an episode in each copy."""
        self.arrays.entropy[:] = entropy
        self._slice.reset()

    def step(self, *, last: bool) -> None:
        """Step each copy once."""
        self._slice.step(last=last)

    def restart(self, which: np.ndarray) -> None:
        """Give up the episodes of some copies, and begin their next ones."""
        self.arrays.given_up[:] = which
        self._slice.restart()

    def close(self) -> None:
        """Close the environments."""
        self._slice.close()

    def watched(self) -> contextlib.AbstractContextManager[None]:
        """A context in which a step of more than `step_seconds` is interrupted; it works only in the main thread."""
        return alarmed(self.step_seconds, lambda: (self._slice.at, int(self.arrays.step.sum())))


@contextlib.contextmanager
def alarmed(seconds: float, look: Callable[[], tuple[tuple[int, int] | None, int]]) -> Iterator[None]:
    """A context in which Python code of a step is interrupted if it takes too long; it works only in the main thread.

    `look` returns the copy and the step of its episode that are being computed (or None), and the number of steps
    taken.
    """
    if seconds <= 0.0:
        yield
        return
    stuck: list[Any] = [None]

    def wake(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        now = look()
        if now[0] is not None and now == stuck[0]:
            raise Fault(*now[0], f"it has not answered for {seconds:g} seconds")
        stuck[0] = now

    try:
        before = signal.signal(signal.SIGALRM, wake)
    except ValueError:  # not the main thread
        yield
        return
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


class Workers:
    """Copies in worker processes, which step their shares at the same time. A worker that hangs can be stopped."""

    def __init__(self, plan: Plan, count: int, workers: int, step_seconds: float = 0.0) -> None:
        import cloudpickle  # comes with Gymnasium

        workers = min(workers, count)
        self.step_seconds = step_seconds
        self._memory, size = _shared_file(), _bytes(_layout(plan, count))
        os.ftruncate(self._memory, size)
        self.arrays = Arrays(plan, count, mmap.mmap(self._memory, size))
        self._processes: list[subprocess.Popen[bytes]] = []
        self._to: list[int] = []
        self._from: list[int] = []
        bounds = [count * w // workers for w in range(workers + 1)]
        self._first = bounds[:-1]
        try:
            payload = cloudpickle.dumps(plan)
        except Exception as error:
            self.close()
            raise InvalidInput(
                f"the environment cannot be sent to worker processes ({_brief(error, quoted=False)}); use workers=0."
            ) from None
        try:
            for w in range(workers):
                self._start(w, bounds[w], bounds[w + 1], count, payload)
            for w in range(workers):
                self._answer(w, START_SECONDS)
        except BaseException:
            self.close()
            raise

    def _start(self, w: int, first: int, last: int, count: int, payload: bytes) -> None:
        (read_command, command), (answer, write_answer) = os.pipe(), os.pipe()
        arguments = [self._memory, w, first, last, count, read_command, write_answer]
        search = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        process = subprocess.Popen(
            [sys.executable, "-m", "apdo.envs.worker", *map(str, arguments)],
            pass_fds=(self._memory, read_command, write_answer),
            env={**os.environ, "PYTHONPATH": search, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the run, which then ends its workers
        )
        os.close(read_command)
        os.close(write_answer)
        self._processes.append(process)
        self._to.append(command)
        self._from.append(answer)
        data = len(payload).to_bytes(8, "little") + payload
        while data:
            data = data[os.write(command, data) :]

    def reset(self, entropy: Sequence[int]) -> None:
        """Begin an episode in each copy."""
        self.arrays.entropy[:] = entropy
        self._all(b"r")

    def step(self, *, last: bool) -> None:
        """Step each copy once."""
        self._all(b"l" if last else b"s")

    def restart(self, which: np.ndarray) -> None:
        """Give up the episodes of some copies, and begin their next ones."""
        self.arrays.given_up[:] = which
        self._all(b"n")

    def _all(self, command: bytes) -> None:
        now = time.monotonic()
        for w, pipe in enumerate(self._to):
            self.arrays.busy[w], self.arrays.since[w] = self._first[w], now
            with contextlib.suppress(BrokenPipeError):
                os.write(pipe, command)
        for w in range(len(self._from)):
            self._answer(w, self.step_seconds)

    def _answer(self, w: int, seconds: float) -> None:
        """Wait for a worker's answer, but no longer than one step may take."""
        pipe = self._from[w]
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        began = time.monotonic()
        while not poll.poll(1000.0 * seconds if seconds > 0.0 else None):
            since = max(began, float(self.arrays.since[w]))
            if time.monotonic() - since >= seconds:
                self._processes[w].kill()
                i = int(self.arrays.busy[w])
                raise Fault(i, int(self.arrays.step[i]), f"it has not answered for {seconds:g} seconds")
        answer = os.read(pipe, 1)
        if answer == b"k":
            return
        if answer == b"f":
            size = int.from_bytes(_read_all(pipe, 4), "little")
            said = json.loads(_read_all(pipe, size))
            if said["invalid"]:
                raise InvalidInput(said["what"])
            raise Fault(
                said["environment"], said["step"], said["what"], numerical=said["numerical"], trace=said["trace"]
            )
        i = int(self.arrays.busy[w])
        status = self._processes[w].wait()
        raise Fault(i, int(self.arrays.step[i]), f"its worker process ended by itself, with status {status}")

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Do nothing: workers are watched in every step."""
        yield

    def close(self) -> None:
        """End the processes and free the memory."""
        for pipe in self._to:
            with contextlib.suppress(OSError):
                os.write(pipe, b"q")
        for process in self._processes:
            try:
                process.wait(timeout=5.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for pipe in (*self._to, *self._from):
            with contextlib.suppress(OSError):
                os.close(pipe)
        self._to, self._from, self._processes = [], [], []
        with contextlib.suppress(OSError):
            os.close(self._memory)  # the mapping itself is freed with the arrays


def _shared_file() -> int:
    """A file without a name, which several processes map."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("apdo")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _read_all(pipe: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = os.read(pipe, size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def serve(arguments: Mapping[str, int]) -> None:
    """The main function of a worker process: obey one-letter commands until the pipe closes."""
    import pickle

    command, answer = arguments["command"], arguments["answer"]

    def attempt(work: Callable[[], Any]) -> tuple[bool, Any]:
        try:
            done = work()
        except (Fault, InvalidInput) as error:
            said = (
                {"invalid": True, "what": str(error)}
                if isinstance(error, InvalidInput)
                else {
                    "invalid": False,
                    "what": error.what,
                    "environment": error.environment,
                    "step": error.step,
                    "numerical": error.numerical,
                    "trace": error.trace,
                }
            )
            data = json.dumps(said).encode()
            os.write(answer, b"f" + len(data).to_bytes(4, "little") + data)
            return False, None
        os.write(answer, b"k")
        return True, done

    payload = _read_all(command, int.from_bytes(_read_all(command, 8), "little"))

    def prepare() -> Slice:
        # The bytes come from the parent process, through a pipe that only these two have.
        plan = pickle.loads(payload)
        count, memory = arguments["count"], arguments["memory"]
        arrays = Arrays(plan, count, mmap.mmap(memory, _bytes(_layout(plan, count))))
        return Slice(plan, arguments["first"], arguments["last"], arrays, arguments["worker"])

    fine, own = attempt(prepare)
    while fine:
        word = os.read(command, 1)
        if word in (b"", b"q"):
            break
        works = {b"r": own.reset, b"n": own.restart}
        attempt(works.get(word, lambda w=word: own.step(last=w == b"l")))
    if fine:
        own.close()
