"""Compiled programs are kept between runs, so that a second run of the same shape starts at once.

JAX has a cache of compiled programs, which finds a program by its text. For that, every process must trace and lower
the program again, which takes longer than loading it. So the loop's program is also kept under a name that is known
before tracing: a digest of everything that its text depends on (`name_of`). Only programs of built-in algorithms and
environments are kept in this way, and only for a CPU as one device. Every other program is traced.
"""

import contextlib
import dataclasses
import functools
import hashlib
import importlib
import json
import os
import platform
import sys
import tempfile
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import equinox
import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
import optax
from jax.experimental import serialize_executable
from jax.experimental.compilation_cache import compilation_cache

from apdo import arguments, loop

FORMAT = 1
MOST = 200
"""The most programs that are kept; the least recently used are deleted first."""
PLATFORMS = ("cpu",)
"""Platforms for which programs are kept in this way. Others use only JAX's own cache."""
_PACKAGE = "apdo"
_OUTSIDE = ("cli.py", "exact", "experiment", "report", "sweeps")
"""Parts of this package that do not affect any program: `apdo.loop` imports none of them."""
_LINEAR_ALGEBRA = "lapack_"
"""In a program's text, the names of the functions for inverses and linear systems begin like this."""
_ALONE = threading.Lock()
"""Held by a thread while JAX's own cache is switched off for it: the switch acts on all threads."""
_NO_MATTER = ("cache", "log", "traceback", "profiler", "dump", "distributed")
"""Parts of the names of JAX settings that do not affect any program."""


def keep_compiled_programs() -> None:
    """Switch on JAX's persistent compilation cache, unless the user has chosen its folder or switched it off.

    The folder is `apdo/jax` in the user's cache folder. JAX_COMPILATION_CACHE_DIR names another folder. An empty value,
    or JAX_ENABLE_COMPILATION_CACHE=false, switches the cache off.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ or _setting("jax_compilation_cache_dir"):
        return
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    jax.config.update("jax_compilation_cache_dir", str(home / "apdo" / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def folder() -> Path | None:
    """The folder of the loop's programs, inside that of JAX's own cache; None if that is switched off or not local."""
    above = _setting("jax_compilation_cache_dir")
    if not above or "://" in above or not _setting("jax_enable_compilation_cache"):
        return None
    return Path(above) / "programs"


def _setting(name: str) -> Any:  # noqa: ANN401
    return getattr(jax.config, name, None)


class Advance:
    """`loop.make_advance` with a cache: the program is loaded if an earlier process has saved it, and saved if not."""

    def __init__(self, training: loop.Training) -> None:
        self._training, self._traced = training, loop.make_advance(training)
        self._ready: Callable[..., loop.Chunk] | None = None
        self.loaded = False
        """Whether the program came from an earlier process."""

    def __call__(self, state: loop.State, *rest: Any) -> loop.Chunk:  # noqa: ANN401
        """The state after some epochs; all calls have arguments of the same shapes."""
        if self._ready is None:
            self._ready = self._find((state, *rest))
        return self._ready(state, *rest)

    def prepare(self, *given: Any) -> None:  # noqa: ANN401
        """Load or compile the program before its first call. Several threads may do this for different programs."""
        found = self._find(given)
        traced = cast(jax.stages.Wrapped, self._traced)
        self._ready = traced.lower(*given).compile() if found is self._traced else found

    def _find(self, given: tuple[Any, ...]) -> Callable[..., loop.Chunk]:
        place = folder()
        name = None if place is None else name_of(self._training, given)
        if place is None or name is None:
            return self._traced
        path = place / name
        if (found := _load(path, given)) is not None:
            self.loaded = True
            return found
        lowered = cast(jax.stages.Wrapped, self._traced).lower(*given)
        # A program from JAX's own cache cannot be saved again: it lacks some of its functions.
        with _ALONE, _without_the_cache():
            compiled = lowered.compile()
        _save(path, compiled)
        return compiled


def name_of(training: loop.Training, given: tuple[Any, ...]) -> str | None:
    """The name of a program that takes these arguments; None for a program that is not kept.

    Programs with the same name are the same.
    """
    if jax.default_backend() not in PLATFORMS:
        return None
    if loop.devices_for(given[0].key.shape[0]) > 1 or jax.process_count() > 1:
        return None
    try:
        # Numbers that are arguments of the program are not part of its text.
        arguing: dict[str, float] = dict.fromkeys(given[2] if len(given) > 2 else {}, 0.0)
        essentials = [_essentials(), plain(arguments.put(training, arguing)), _shapes(given)]
    except Unknown:
        return None
    return hashlib.sha256(json.dumps(essentials).encode()).hexdigest()


class Unknown(Exception):
    """Raised for a value that may not be the same in another process."""


def plain(value: Any) -> Any:  # noqa: ANN401
    """Nested configurations of this package as plain values, complete."""
    if value is None or isinstance(value, str | bool | int):
        return [type(value).__name__, value]
    if isinstance(value, float):
        return ["float", value.hex()]
    if isinstance(value, tuple):
        return ["tuple", *(plain(part) for part in value)]
    if isinstance(value, types.ModuleType) and _is_ours(value.__name__):
        return ["module", value.__name__]
    kind = type(value)
    fixed = getattr(sys.modules.get(kind.__module__), kind.__qualname__, None) is kind
    if not dataclasses.is_dataclass(value) or not fixed or not _is_ours(kind.__module__):
        raise Unknown
    parts = {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return [f"{kind.__module__}.{kind.__qualname__}", parts]


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == _PACKAGE


def _shapes(given: tuple[Any, ...]) -> list[Any]:
    leaves, structure = jax.tree.flatten(given)
    kinds = [(list(leaf.shape), str(leaf.dtype), bool(getattr(leaf, "weak_type", False))) for leaf in leaves]
    return [str(structure), kinds]


def _essentials() -> list[Any]:
    """What every program depends on: the code, the versions, the machine and JAX's settings."""
    device = jax.devices()[0]
    named = sorted(name for name in jax.config.values if not any(part in name for part in _NO_MATTER))
    settings = [(name, repr(_setting(name))) for name in named]
    surroundings = [(name, os.environ.get(name)) for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")]
    machine = [device.platform, device.device_kind, device.client.platform_version, *_processor()]
    return [FORMAT, _code(), _versions(), machine, settings, surroundings]


def _versions() -> list[str]:
    packages = (jax, jaxlib, equinox, optax, np)
    return [platform.python_version(), *(package.__version__ for package in packages)]


@functools.cache
def _code() -> str:
    """A digest of the source files that programs are made from."""
    root = importlib.import_module(_PACKAGE).__path__[0]
    digest = hashlib.sha256()
    for path in sorted(Path(root).rglob("*.py")):
        name = path.relative_to(root)
        if name.parts[0] not in _OUTSIDE:
            content = path.read_bytes()
            digest.update(f"{name} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()


@functools.cache
def _processor() -> tuple[str, ...]:
    """The properties of a CPU that its programs depend on: its instructions, and its number of threads."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    about = {line for line in lines if line.startswith(("model name", "flags", "Features"))}
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return (platform.machine(), platform.processor(), str(threads), *sorted(about))


def _load(path: Path, given: tuple[Any, ...]) -> Callable[..., loop.Chunk] | None:
    """A saved program; None if there is none, or if its file is damaged."""
    # If anything is wrong with a file, or JAX reads it differently, the program is compiled again.
    with contextlib.suppress(Exception):
        head, _, content = path.read_bytes().partition(b"\n")
        about = json.loads(head)
        if hashlib.sha256(content).hexdigest() != about["sha256"]:
            return None
        state, count, flags = given[0], given[1], jnp.asarray(np.zeros(given[0].key.shape, bool))
        metrics, finite = {name: count for name in about["metrics"]}, {name: flags for name in about["finite"]}
        chunk = loop.Chunk(state=state, metrics=metrics, done=count, finite=finite)  # only its structure is used
        trees = jax.tree.structure((given, {})), jax.tree.structure(chunk)
        if about["linear_algebra"]:
            # JAX looks up LAPACK's functions when it lowers a program that calls them. Without such a program in this
            # process, the loaded program would call functions that do not exist.
            jax.jit(jnp.linalg.inv).lower(jax.ShapeDtypeStruct((2, 2), jnp.float32))
        compiled = serialize_executable.deserialize_and_load(content, *trees, execution_devices=jax.devices()[:1])
        os.utime(path)
        return compiled
    return None


def _save(path: Path, compiled: jax.stages.Compiled) -> None:
    """Save a program if possible. If the disk is full or JAX cannot serialise it, the next run only takes longer."""
    with contextlib.suppress(Exception):
        content, _, _ = serialize_executable.serialize(compiled)
        chunk = compiled.out_info
        names = {"metrics": list(chunk.metrics), "finite": list(chunk.finite)}
        calls = _LINEAR_ALGEBRA in (compiled.as_text() or "")
        about = {**names, "linear_algebra": calls, "sha256": hashlib.sha256(content).hexdigest()}
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as file:
            file.write(json.dumps(about).encode() + b"\n" + content)
        Path(file.name).replace(path)
        _prune(path.parent)


def _prune(place: Path) -> None:
    by_use = sorted((path.stat().st_mtime, path) for path in place.iterdir())
    for _, path in by_use[:-MOST]:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _without_the_cache() -> Iterator[None]:
    """Switch JAX's cache off inside the context. JAX reads this setting only once unless its cache is reset."""
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", True)
        compilation_cache.reset_cache()
