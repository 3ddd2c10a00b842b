"""Every test runs with checked shape annotations and without implicit rank promotion."""

import gc
import json
import os
from pathlib import Path

# Most of the suite's time is the compiler's: programs are compiled for seconds and run for milliseconds. So it is asked
# not to optimise, which takes a quarter of the time, unless a level is given (`make test-optimised`).
# What it made is kept in the checkout, for the other worker, for processes that tests start and for the next run, and
# found by the program's text, JAX's version and XLA's flags. Before JAX is imported, and in the environment, so that
# nothing is written to the user's own cache.
if "optimization_level" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = (
        "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
        "--xla_cpu_parallel_codegen_split_count=1 --xla_cpu_use_fusion_emitters=false --xla_disable_hlo_passes="
        "simplify-while-loops,while-loop-invariant-code-motion,while-loop-constant-sinking,reshape-mover "
    ) + os.environ.get("XLA_FLAGS", "")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent.parent / "build" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

import jax
import numpy as np
import pytest
from jaxtyping import install_import_hook

# Traced programs consist of many objects that stay. Searching them for garbage takes a tenth of the time.
gc.set_threshold(100_000, 50, 100)
jax.config.update("jax_numpy_rank_promotion", "raise")
# Before anything of apdo is imported.
install_import_hook("apdo", "checking.checked")


@pytest.fixture(autouse=True, scope="module")
def few_memory_maps():
    """Drop compiled programs before the process has as many memory maps as Linux allows by default, 65,530.

    Each program of the CPU needs some maps. A program that cannot get any crashes the process.
    """
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > 25_000:
        jax.clear_caches()


@pytest.fixture(autouse=True, scope="module")
def traced():
    """The programs of runs that tests of this module have traced, by the run's whole description."""
    return {}


@pytest.fixture(autouse=True)
def programs_are_traced_once(request, traced):
    """Never load or save the programs of `compilation`. Trace a run's programs once for all tests of a module.

    A test with `monkeypatch` may replace what programs are made from, so all of its own are traced. The tests of
    `compilation` are excepted.
    """
    from apdo import hosted, loop
    from apdo.experiment import compilation

    with pytest.MonkeyPatch.context() as patch:
        if request.module.__name__.rpartition(".")[2] != "test_compilation":
            patch.setattr(compilation, "folder", lambda: None)
            if "monkeypatch" not in request.fixturenames:
                for place, name in (
                    (loop, "make_start"),
                    (loop, "make_advance"),
                    (loop, "make_adjuster"),
                    (hosted, "make_learn"),
                ):
                    patch.setattr(place, name, _once(traced, name, getattr(place, name)))
        yield


def _once(traced, name, make):
    """`make` for a training, or what it gave for an equal one."""
    from apdo.experiment import compilation

    def found(training):
        try:
            key = name, json.dumps(compilation.plain(training))
        except compilation.Unknown:
            return make(training)
        if key not in traced:
            traced[key] = make(training)
        return traced[key]

    return found


@pytest.fixture
def double_precision():
    """Floats have 64 bits during the test."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def random_batch():
    """A function that makes random batches [T, N], in which episodes begin, terminate and are truncated at random."""
    return _random_batch


def _random_batch(rng, steps, environments, *, observations=3, actions=2, constraints=2, terminate=0.15, truncate=0.15):
    from apdo.core.data import Transition

    def normal(*shape):
        return rng.normal(size=(steps, environments, *shape)).astype(np.float32)

    fate = rng.uniform(size=(steps, environments))
    terminated, truncated = fate < terminate, (fate >= terminate) & (fate < terminate + truncate)
    index = np.zeros((steps, environments), dtype=np.int32)
    index[0] = np.arange(environments) % 2  # every other environment begins in the middle of an episode
    for t in range(1, steps):
        index[t] = np.where(terminated[t - 1] | truncated[t - 1], 0, index[t - 1] + 1)
    fields = dict(
        observation=normal(observations),
        action=normal(actions),
        reward=normal(),
        cost=normal(constraints),
        next_observation=normal(observations),
        terminated=terminated,
        truncated=truncated,
        step=index,
    )
    return Transition(**{name: jax.numpy.asarray(field) for name, field in fields.items()})
