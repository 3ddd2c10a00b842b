"""N simulations of one MuJoCo model, advanced side by side on threads, with the same bits as one after the other.

There are two ways. `Batched` uses MuJoCo's own `mujoco.batch`, which exists since release 3.17: each simulation is a
row of numbers, including the solver's warm start, which a pool of threads loads, advances and saves. `Looped` has an
`MjData` for each simulation and Python threads, because MuJoCo's steps can run in parallel. It is for older releases,
and for the forces that only `mj_rnePostConstraint` computes after a step. (`mujoco.rollout` would be a third way. But
it does not return the warm start: called step by step, its trajectories are not those of `mj_step`.)
"""

import contextlib
import dataclasses
import importlib
import importlib.util
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

import numpy as np

from apdo.envs.mujoco_package import Model
from apdo.errors import InvalidInput

FORCES = ("cacc", "cfrc_int", "cfrc_ext")
"""Fields that a step does not compute: the accelerations and forces of bodies, including contacts."""
_UNSTABLE = ("mjWARN_BADQPOS", "mjWARN_BADQVEL", "mjWARN_BADQACC")


class Broken(Exception):
    """MuJoCo stopped a simulation with an error: the simulation's index and the message."""

    def __init__(self, simulation: int, said: str) -> None:
        super().__init__(simulation, said)
        self.simulation, self.said = simulation, said


@dataclasses.dataclass(frozen=True, eq=False)
class State:
    """N simulations at one moment. The first axis of every array are the simulations; they must not be changed."""

    qpos: np.ndarray
    """Positions, [N, nq]."""
    qvel: np.ndarray
    """Velocities, [N, nv]."""
    fields: Mapping[str, np.ndarray]
    """Other arrays of `mjData` that were asked for. After a step they are from before its last substep."""
    model: Model
    """The `MjModel`."""


@runtime_checkable
class Simulations(Protocol):
    """N simulations of a model."""

    def begin(self, which: np.ndarray, qpos: np.ndarray, qvel: np.ndarray) -> None:
        """Restart some of them, given by index, from positions [K, nq] and velocities [K, nv]; raises `Broken`."""
        ...

    def advance(self, controls: np.ndarray) -> None:
        """Take the simulation steps of one action in each, [N, nu]; raises `Broken`."""
        ...

    def state(self) -> State:
        """The present state, in new arrays."""
        ...

    def unstable(self) -> np.ndarray:
        """Which simulations MuJoCo has reset to the model's start since they began, as it does after NaN, [N]."""
        ...

    def close(self) -> None:
        """End the threads."""
        ...


def simulate(
    package: ModuleType, model: Model, count: int, threads: int, frame_skip: int, fields: Sequence[str]
) -> Simulations:
    """Make so many simulations, in the faster of the two ways that has these fields."""
    check_fields(package, model, fields)
    has_batch = importlib.util.find_spec("mujoco.batch") is not None
    kind = Batched if has_batch and not set(fields) & set(FORCES) else Looped
    return kind(package, model, count, threads, frame_skip, fields)


def check_fields(package: ModuleType, model: Model, fields: Sequence[str]) -> None:
    """Raise InvalidInput for a name that is not an array of fixed size in `mjData`."""
    data = package.MjData(model)
    for name in fields:
        found = getattr(data, name, None)
        if not isinstance(found, np.ndarray) or name.startswith(("_", "efc_", "contact", "island", "iefc_")):
            raise InvalidInput(f"{name!r} is none of mjData's arrays of fixed size, such as 'sensordata' or 'xpos'.")


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Batched:
    """Uses `mujoco.batch`: states are rows of an array, and MuJoCo's own threads advance them."""

    def __init__(
        self, package: ModuleType, model: Model, count: int, threads: int, frame_skip: int, fields: Sequence[str]
    ) -> None:
        module = importlib.import_module("mujoco.batch")
        self._error, self._model, self._frame_skip = module.SimulationError, model, frame_skip
        self._batch: Any = module.Batch(model, count, threads)
        self._start = package.mjtStage.mjSTAGE_NONE.value
        self._qpos, self._qvel, self._ctrl = (self._batch.bind(name) for name in ("qpos", "qvel", "ctrl"))
        self._fields = {name: self._batch.bind(name) for name in fields}
        self._warnings = _unstable(package)

    def begin(self, which: np.ndarray, qpos: np.ndarray, qvel: np.ndarray) -> None:
        """Reset, set positions and velocities, and compute what follows from them, with the first warm start."""
        with self._error_as_broken():
            self._batch.reset(which, stage=self._start)
            self._qpos[which], self._qvel[which] = qpos, qvel
            self._batch.forward(which)

    def advance(self, controls: np.ndarray) -> None:
        """Advance all simulations in one call."""
        self._ctrl[:] = controls
        with self._error_as_broken():
            self._batch.step(nstep=self._frame_skip)

    @contextlib.contextmanager
    def _error_as_broken(self) -> Iterator[None]:
        try:
            yield
        except self._error as error:
            first = int(error.ids[0])
            raise Broken(first, self._batch.error(first)) from None

    def state(self) -> State:
        """The present state, in copies of the rows."""
        fields = {name: _kept(live.copy()) for name, live in self._fields.items()}
        return State(_kept(self._qpos.copy()), _kept(self._qvel.copy()), fields, self._model)

    def unstable(self) -> np.ndarray:
        """From MuJoCo's counts of warnings, which a reset clears."""
        return self._batch.warning[:, self._warnings, 1].sum(axis=1) > 0

    def close(self) -> None:
        """Drop the last reference, which ends the threads."""
        self._batch = None


class Looped:
    """Has an `MjData` for each simulation; this thread and its helpers take the next one in turn."""

    def __init__(
        self, package: ModuleType, model: Model, count: int, threads: int, frame_skip: int, fields: Sequence[str]
    ) -> None:
        self._package, self._model, self._frame_skip = package, model, frame_skip
        self._forces = bool(set(fields) & set(FORCES))
        self._datas = [package.MjData(model) for _ in range(count)]
        self._live = {name: self._views(name) for name in ("qpos", "qvel", "ctrl", *fields)}
        self._fields = tuple(fields)
        self._counts = [data.warning.number for data in self._datas]
        self._warnings = _unstable(package)
        self._helpers = max(min(threads, count) - 1, 0)
        self._pool = ThreadPoolExecutor(self._helpers) if self._helpers else None

    def _views(self, name: str) -> list[np.ndarray]:
        return [getattr(data, name) for data in self._datas]

    def begin(self, which: np.ndarray, qpos: np.ndarray, qvel: np.ndarray) -> None:
        """Reset, set positions and velocities, and compute what follows from them, with the first warm start."""
        for place, i in enumerate(which.tolist()):
            self._package.mj_resetData(self._model, self._datas[i])
            self._live["qpos"][i][:], self._live["qvel"][i][:] = qpos[place], qvel[place]
            try:
                self._package.mj_forward(self._model, self._datas[i])
            except self._package.FatalError as error:
                raise Broken(i, str(error)) from None

    def advance(self, controls: np.ndarray) -> None:
        """Advance all simulations; a thread that is free takes the next one."""
        for control, given in zip(self._live["ctrl"], controls, strict=True):
            control[:] = given
        todo = iter(range(len(self._datas)))
        helping = [self._pool.submit(self._work, todo) for _ in range(self._helpers)] if self._pool else []
        try:
            self._work(todo)
        finally:
            for helper in helping:
                helper.result()

    def _work(self, todo: Iterator[int]) -> None:
        step, forces = self._package.mj_step, self._package.mj_rnePostConstraint
        for i in todo:
            try:
                step(self._model, self._datas[i], self._frame_skip)
                if self._forces:
                    forces(self._model, self._datas[i])
            except self._package.FatalError as error:
                raise Broken(i, str(error)) from None

    def state(self) -> State:
        """The present state, gathered from all simulations."""
        fields = {name: _kept(np.stack(self._live[name])) for name in self._fields}
        qpos, qvel = (_kept(np.stack(self._live[name])) for name in ("qpos", "qvel"))
        return State(qpos, qvel, fields, self._model)

    def unstable(self) -> np.ndarray:
        """From MuJoCo's counts of warnings, which a reset clears."""
        counts = np.stack(self._counts)[:, self._warnings]
        return counts.sum(axis=1) > 0

    def close(self) -> None:
        """End the helper threads."""
        if self._pool:
            self._pool.shutdown()


def _unstable(package: ModuleType) -> list[int]:
    kinds: Any = package.mjtWarning
    return [getattr(kinds, name).value for name in _UNSTABLE]


def _kept(array: np.ndarray) -> np.ndarray:
    """The array, made read-only."""
    array.flags.writeable = False
    return array
