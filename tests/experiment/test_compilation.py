"""Programs that an earlier process has kept: loaded where they are the same, and nowhere else."""

import dataclasses
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from apdo import loop
from apdo.experiment import compilation, opening, settings
from apdo.report.runs import read
from problems import Reach

TINY = {"epochs": 2, "batch": 200, "critic.passes": 1, "policy.hidden": (4,), "critic.hidden": (4,)}


@pytest.fixture
def cache(tmp_path):
    """An empty folder for compiled programs."""
    before = compilation._setting("jax_compilation_cache_dir")
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    yield tmp_path
    jax.config.update("jax_compilation_cache_dir", before)


def training(**changes):
    return opening.training_of(settings.make_experiment("pdo", "two-state", TINY | changes))


def two_epochs(training, numbers=()):
    """What two calls of one epoch each give, and whether their program was loaded."""
    advance = compilation.Advance(training)
    state, metrics = loop.start(training, [3], *numbers), []
    for _ in range(2):
        chunk = advance(state, jnp.asarray(1, dtype=jnp.int32), *numbers)
        state = chunk.state
        metrics.append({name: np.asarray(value[0]) for name, value in chunk.metrics.items()})
    return metrics, jax.tree.leaves(jax.device_get((state.algorithm, state.best, state.epoch))), advance.loaded


def kept(cache):
    return sorted((cache / "programs").iterdir())


def test_a_program_is_kept_once_and_gives_the_same_bits_when_it_is_loaded(cache):
    metrics, state, loaded = two_epochs(training())
    assert not loaded
    assert len(kept(cache)) == 1
    again, state_again, loaded = two_epochs(training())
    assert loaded
    assert len(kept(cache)) == 1
    for one, other in zip(metrics, again, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)
    for one, other in zip(state, state_again, strict=True):
        np.testing.assert_array_equal(one, other)
    traced = loop.make_advance(training())(loop.start(training(), [3]), jnp.asarray(1, dtype=jnp.int32))
    np.testing.assert_array_equal(traced.metrics["return"][0], again[0]["return"])


def test_a_damaged_program_is_made_anew(cache):
    metrics, _, _ = two_epochs(training())
    [path] = kept(cache)
    whole, given = path.read_bytes(), (loop.start(training(), [3]), jnp.asarray(1, dtype=jnp.int32))
    for damaged in (b"", b"{}\n" + whole, whole[:-1] + bytes([whole[-1] ^ 1]), whole[:1000]):
        path.write_bytes(damaged)
        assert compilation._load(path, given) is None
    again, _, loaded = two_epochs(training())
    assert not loaded
    assert compilation._load(path, given) is not None
    np.testing.assert_array_equal(again[1]["return"], metrics[1]["return"])


def name(training, seeds=1, *numbers):
    state = loop.start(training, list(range(seeds)), *numbers)
    return compilation.name_of(training, (state, jnp.asarray(1, dtype=jnp.int32), *numbers))


def test_whatever_changes_a_program_changes_its_name(monkeypatch):
    known = name(training())
    assert known is not None
    assert known == name(training())
    others = {name(training(limits=0.3)), name(training(batch=400)), name(training(), 2)}
    with jax.numpy_rank_promotion("allow"):
        others.add(name(training()))
    monkeypatch.setattr(compilation, "_code", lambda: "changed")
    others.add(name(training()))
    assert len({known, *others}) == 6
    assert None not in others


def test_numbers_that_are_arguments_change_no_name():
    def limit(value):
        return {"problem.limits.0": jnp.asarray([value], dtype=jnp.float32)}

    found = {name(training(limits=value), 1, limit(value)) for value in (0.1, 0.3)}
    assert len(found) == 1
    assert found != {name(training(limits=0.1))}


def test_what_is_not_of_this_package_is_not_kept(cache):
    own = dataclasses.replace(training(), environment=Reach())
    assert name(own) is None
    kind = type(training().environment)
    made = type(kind.__name__, (kind,), {"__module__": kind.__module__})
    assert name(dataclasses.replace(training(), environment=made())) is None


def test_nothing_is_kept_where_the_cache_is_off(cache):
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        two_epochs(training())
    finally:
        jax.config.update("jax_enable_compilation_cache", True)
    assert not (cache / "programs").exists()


def test_the_programs_that_were_not_used_for_longest_go_first(tmp_path, monkeypatch):
    monkeypatch.setattr(compilation, "MOST", 2)
    for i, used in enumerate((3, 1, 2)):
        path = tmp_path / str(i)
        path.touch()
        compilation.os.utime(path, (used, used))
    compilation._prune(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "2"]


def test_programs_come_from_no_module_that_their_names_leave_out():
    code = (
        "import sys; from apdo import algorithms, loop; [algorithms.find(n) for n in algorithms.ALGORITHMS]; "
        "from apdo import envs; [envs.find(n) for n in ('point-gather', 'two-state', 'wind-turbine')]; "
        "print(*(m for m in sys.modules if m.startswith('apdo.')))"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    outside = {f"apdo.{part.removesuffix('.py')}" for part in compilation._OUTSIDE}
    wrong = [module for module in found if any(module == one or module.startswith(one + ".") for one in outside)]
    assert "apdo.algorithms.pdo" in found
    assert wrong == []


def test_a_process_that_has_traced_nothing_runs_a_kept_program_that_calls_lapack(tmp_path):
    """CPO's small problem is solved there, whose functions a process looks up when it first lowers a call of one."""
    command = [sys.executable, "-m", "apdo.cli", "train", "cpo", "two-state", "--quiet", "--epochs", "2"]
    command += ["--batch", "200", "--critic.passes", "1", "--policy.hidden", "4", "--out"]
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"), "JAX_PLATFORMS": "cpu"}
    for name in ("first", "second"):
        done = subprocess.run([*command, str(tmp_path / name)], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-500:]
    assert len(kept(tmp_path / "cache")) == 1
    first, second = (read(tmp_path / name).metrics for name in ("first", "second"))
    np.testing.assert_array_equal(first["return"], second["return"])
