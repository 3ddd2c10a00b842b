"""Ids of Safety-Gymnasium and of Bullet-Safety-Gym: finds the package of an id, imports it, and makes environments.

Both packages are extras that need a Python of their own, and neither has had a release for years. Safety-Gymnasium
cannot be imported under Python 3.11 without help: its dataclasses have arrays as defaults, which `dataclasses` refuses
since then. `load` imports it nevertheless. A worker process makes environments by their ids, so it uses this module
too.

Its navigation tasks compile their model again in every reset. Most of that time is spent on decoding six pictures of a
starry sky, which only a camera sees. `make` leaves the pictures out if there is no camera; nothing else changes.
"""

import contextlib
import ctypes
import dataclasses
import functools
import importlib
import importlib.util
import inspect
import io
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import IO, Any, TypeAlias, TypeVar

import numpy as np

from apdo.errors import InvalidInput

T = TypeVar("T")
Spec: TypeAlias = Any
"""A `gymnasium.envs.registration.EnvSpec`."""
Env: TypeAlias = Any
"""A `gymnasium.Env` whose steps may return six values."""
_NEWEST = (3, 11)
"""The newest Python for which both packages have their dependencies."""


@dataclasses.dataclass(frozen=True)
class Family:
    """A package of safe tasks."""

    title: str
    module: str
    ids: re.Pattern[str]
    parts: tuple[str, ...]
    """The modules to import."""
    stderr: Callable[[], IO[str] | None]
    """Makes what replaces `sys.stderr` during the import."""
    install: str
    """The pip commands that install it."""
    packages: tuple[str, ...]
    """The packages that results depend on."""


SAFETY_GYMNASIUM = Family(
    title="Safety-Gymnasium",
    module="safety_gymnasium",
    ids=re.compile(r"Safety\w+-v\d+", re.ASCII),
    parts=("safety_gymnasium",),
    # Its dependencies print notices about other tasks of theirs, again in every worker.
    stderr=io.StringIO,
    install="pip install 'apdo[safety-gymnasium-pip]' && "
    "pip install --no-deps safety-gymnasium==1.0.0 gymnasium-robotics==1.2.2",
    packages=("gymnasium", "safety-gymnasium", "mujoco", "numpy"),
)
BULLET = Family(
    title="Bullet-Safety-Gym",
    module="bullet_safety_gym",
    ids=re.compile(r"Safety(?:Ball|Car|Drone|Ant)(?:Reach|Push|Circle|Run|Gather)-v\d+", re.ASCII),
    parts=("bullet_safety_gym", "bullet_safety_gym.envs.builder"),
    # To suppress its engine's output, it needs the stream's file descriptor, which streams of notebooks and tests lack.
    stderr=lambda: sys.__stderr__,
    install="pip install pybullet && pip install --no-deps bullet-safety-gym==1.4.0",
    packages=("gymnasium", "bullet-safety-gym", "pybullet"),
)
FAMILIES = (BULLET, SAFETY_GYMNASIUM)
"""The narrower pattern comes first: SafetyCarCircle-v0 belongs to Bullet, SafetyCarCircle1-v0 does not."""


def family_of(name: str) -> Family | None:
    """The package that an id belongs to; None for any other id, and for an id that another package has registered."""
    module, _, own = name.rpartition(":")
    for family in FAMILIES:
        if module in ("", family.module) and family.ids.fullmatch(own):
            return None if _registered_by_another(own, family) else family
    return None


def _registered_by_another(name: str, family: Family) -> bool:
    registered = getattr(sys.modules.get("gymnasium"), "registry", {}).get(name)
    return registered is not None and not str(registered.entry_point).startswith(family.module)


def installed(family: Family) -> bool:
    """Whether the package is installed; its import may still fail."""
    return importlib.util.find_spec(family.module) is not None


def load(family: Family, name: str = "") -> ModuleType:
    """Import the package. InvalidInput says what needs it and how to install it."""
    needs = f"{name or 'this'} needs {family.title}"
    if family.module in sys.modules:
        return sys.modules[family.module]
    if not installed(family):
        newest, this = ".".join(map(str, _NEWEST)), ".".join(map(str, sys.version_info[:2]))
        where = "" if sys.version_info[:2] <= _NEWEST else f" (in Python {newest}; this is {this})"
        raise InvalidInput(f"{needs}, which is not installed: {family.install}{where}")
    try:
        with array_defaults(), contextlib.redirect_stderr(family.stderr()):
            for part in family.parts:
                importlib.import_module(part)
            if family is BULLET:
                vars(importlib.import_module(family.parts[-1]))["RedirectStream"] = _silent
    except Exception as error:
        said = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}".rstrip(": .")
        raise InvalidInput(
            f"{needs}, which is installed but cannot be imported ({said}); "
            f"what it goes with is brought, into an environment of its own, by: {family.install}"
        ) from error
    return sys.modules[family.module]


def make(family: Family, name: str, **options: object) -> Env:
    """Make the environment of an id, without its package's checks in every step."""
    own = name.rpartition(":")[2]
    return _made(_maker(load(family, name), own), own, **options)


def make_again(family: Family, spec: Spec, **options: object) -> Env:
    """Make another environment with the same specification."""
    return _made(_maker(load(family, spec.id), spec.id), spec, **options)


def _maker(package: ModuleType, name: str) -> Callable[..., Env]:
    """Safety-Gymnasium's own `make` if steps return six values: Gymnasium's time limit would not accept them."""
    gymnasium = importlib.import_module("gymnasium")
    is_safe = package.__name__ == SAFETY_GYMNASIUM.module and "Gymnasium-" not in name
    return package.make if is_safe else gymnasium.make


def _made(maker: Callable[..., Env], what: str | Spec, **options: object) -> Env:
    with warnings.catch_warnings():
        # The bounds of Bullet's spaces are too large for their own type, and become infinite, as they should.
        warnings.filterwarnings("ignore", message="overflow encountered in cast", category=RuntimeWarning)
        return _settled(without_sky(maker(what, disable_env_checker=True, **options)))


def _settled(env: Env) -> Env:
    """The environment after a first reset, if that reset computes one step of physics less than all later ones.

    The difference is only in the last bits. But a resumed run begins with a first reset, and must give the same
    results.
    """
    if hasattr(getattr(env.unwrapped, "task", None), "_build"):
        env.reset(seed=0)
    return env


def without_sky(env: Env) -> Env:
    """The same environment with a sky of one colour, unless a camera looks at it."""
    task: Any = getattr(env.unwrapped, "task", None)
    build = getattr(task, "_build", None)
    if build is None or getattr(task, "observe_vision", True) or env.render_mode is not None:
        return env
    world: Any = importlib.import_module("safety_gymnasium.world")

    def quicker() -> None:
        real, world.yaml = world.yaml, _PlainSky
        try:
            build()
        finally:
            world.yaml = real

    task._build = quicker
    return env


class _PlainSky:
    """Replaces the module `yaml` while a world is built; `load` returns the content of the file with a plain sky."""

    FullLoader = None

    @staticmethod
    def load(file: IO[str], **_: object) -> dict[str, Any]:
        return _assets(file.name)


@functools.cache
def _assets(path: str) -> dict[str, Any]:
    yaml = importlib.import_module("yaml")
    with open(path, encoding="utf-8") as file:
        assets = yaml.safe_load(file)
    assets["textures"]["skybox"] = {"@type": "skybox", "@builtin": "flat", "@width": "8", "@height": "48"}
    return assets


@contextlib.contextmanager
def _silent(stream: IO[str]) -> Iterator[None]:  # noqa: ARG001
    """A context in which output of compiled code to the standard output is dropped, whatever `sys.stdout` is."""
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        ctypes.CDLL(None).fflush(None)
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


@contextlib.contextmanager
def array_defaults() -> Iterator[None]:
    """A context in which a dataclass may have an array as a default. All its instances then share the array.

    Python up to 3.10 treats such classes in this way.
    """
    strict: Any = dataclasses.dataclass

    def lenient(cls: type[T] | None = None, /, **options: bool) -> Any:  # noqa: ANN401
        if cls is None:
            return functools.partial(lenient, **options)
        own = vars(cls)
        arrays = {name: own[name] for name in inspect.get_annotations(cls) if isinstance(own.get(name), np.ndarray)}
        for name, array in arrays.items():
            setattr(cls, name, dataclasses.field(default_factory=functools.partial(_same, array)))
        made = strict(cls, **options)
        for name, array in arrays.items():
            setattr(made, name, array)
        return made

    dataclasses.dataclass = lenient
    try:
        yield
    finally:
        dataclasses.dataclass = strict


def _same(thing: T) -> T:
    return thing
