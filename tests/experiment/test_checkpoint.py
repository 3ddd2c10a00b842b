"""Checkpoints: what is written comes back; what a stranger wrote is refused before anything is made of it."""

import dataclasses
import errno
import hashlib
import io
import json
import pickle
import tracemalloc
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from apdo.errors import InvalidInput, StorageFailure
from apdo.experiment import checkpoint


@pytest.fixture
def state():
    return {
        "weights": jnp.arange(12.0).reshape(3, 4).T,
        "key": jax.random.split(jax.random.key(3), 2),
        "count": jnp.asarray(7),
        "none": jnp.zeros((0, 3)),
        "flag": jnp.asarray([True, False]),
    }


@pytest.fixture
def saved(tmp_path, state):
    path = tmp_path / "epoch-000005.npz"
    checkpoint.save(path, state, 5)
    return path


def like(state):
    return jax.eval_shape(lambda: state)


def archive(path, members, compression=zipfile.ZIP_STORED, manifest=None, seal=True):
    """A file as a stranger with our source could make it: its checksum is right."""
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, data in members:
            file.writestr(name, data)
        text = json.dumps(manifest or {"format": 6, "epoch": 5, "leaves": {}}).encode()
        file.writestr("manifest.npy", npy(np.frombuffer(text, dtype=np.uint8)))
        file.comment = b"0" * 64 if seal else b""
    if seal:
        data = path.read_bytes()[:-64]
        path.write_bytes(data + hashlib.sha256(data).hexdigest().encode())


def npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def members(state, **changes):
    found = {f"{name}.npy": npy(checkpoint.to_numpy(leaf)) for name, leaf in checkpoint.named(state)}
    return list((found | changes).items())


def test_every_leaf_comes_back_as_it_was_and_may_be_given_away(saved, state):
    loaded = checkpoint.load(saved, like(state))
    for (name, ours), (_, theirs) in zip(checkpoint.named(loaded), checkpoint.named(state), strict=True):
        np.testing.assert_array_equal(checkpoint.to_numpy(ours), checkpoint.to_numpy(theirs), err_msg=name)
        assert ours.dtype == theirs.dtype
    given = jax.jit(lambda x: x + 1, donate_argnums=0)(loaded["weights"])
    np.testing.assert_array_equal(given, state["weights"] + 1)


def test_every_single_byte_of_the_file_is_watched(saved, state):
    data, shapes = saved.read_bytes(), like(state)
    for place in range(0, len(data), 7):
        for change in (1, 255):
            saved.write_bytes(data[:place] + bytes([data[place] ^ change]) + data[place + 1 :])
            with pytest.raises(InvalidInput, match=r"epoch-000005\.npz"):
                checkpoint.load(saved, shapes)
    for end in range(0, len(data), 11):
        saved.write_bytes(data[:end])
        with pytest.raises(InvalidInput, match=r"epoch-000005\.npz"):
            checkpoint.load(saved, shapes)


def test_a_strangers_file_without_a_fault_is_read(tmp_path, state):
    archive(tmp_path / "c.npz", members(state))
    assert int(checkpoint.load(tmp_path / "c.npz", like(state))["count"]) == 7


class Boom:
    def __reduce__(self):
        return (pytest.fail, ("code from the file was run",))


def header(shape, descr="<f4"):
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": descr, "fortran_order": False, "shape": shape})
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"['weights'].npy": header((10**6, 10**6))}, r"as float32\[1000000, 1000000\], but this run's settings"),
        ({"['weights'].npy": header((4, 3))}, "another size than its shape"),
        ({"['weights'].npy": header((4, 3)) + b"x" * 10**4}, "another size than its shape"),
        ({"['weights'].npy": header((4, 3), "<f8") + b"x" * 96}, "float64"),
        ({"['weights'].npy": header((4, 3), "|O") + pickle.dumps(Boom())}, "no plain one"),
        ({"['weights'].npy": b""}, "not a whole checkpoint"),
        ({"['weights'].npy": b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 65535}, "not a whole checkpoint"),
        ({"['weights'].npy": b"\x93NUMPY\x01\x00\x00\x20" + b"(" * 8192}, "not a whole checkpoint"),
        ({"['weights'].npy": b"\x93NUMPY\x09\x00"}, "not a whole checkpoint"),
        ({"../../escape.npy": b"x"}, r"under the path '\.\./\.\./escape\.npy'"),
        ({"/etc/passwd": b"x"}, "under the path"),
        ({"more.npy": b"x"}, "holds other arrays"),
    ],
)
def test_a_hostile_array_is_refused_before_it_is_made(tmp_path, state, changes, complaint):
    path, shapes = tmp_path / "c.npz", like(state)
    archive(path, members(state, **changes))
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInput, match=complaint) as caught:
            checkpoint.load(path, shapes)
        assert tracemalloc.get_traced_memory()[1] < 10**7
    finally:
        tracemalloc.stop()
    assert "\n" not in str(caught.value)


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path, state):
    path, shapes = tmp_path / "c.npz", like(state)
    bomb = {"['weights'].npy": header((4, 3)) + bytes(10**8)}
    archive(path, members(state, **bomb), zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 10**6
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInput, match="holds a compressed array"):
            checkpoint.load(path, shapes)
        assert tracemalloc.get_traced_memory()[1] < 10**7
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("manifest", "complaint"),
    [
        ({"format": 7}, "has checkpoint format 7; this version reads 6"),
        ({"format": None}, "has checkpoint format None"),
        ({"format": [2]}, "has checkpoint format"),
        ({"a": "deep"}, "has checkpoint format None"),
    ],
)
def test_a_manifest_of_another_kind_is_refused(tmp_path, state, manifest, complaint):
    archive(tmp_path / "c.npz", members(state), manifest=manifest)
    with pytest.raises(InvalidInput, match=complaint):
        checkpoint.load(tmp_path / "c.npz", like(state))


@pytest.mark.parametrize("form", [1, 2, 3])
def test_a_format_without_the_best_policy_is_named_and_refused(tmp_path, state, form):
    archive(tmp_path / "c.npz", members(state), manifest={"format": form}, seal=form > 1)
    with pytest.raises(checkpoint.Earlier, match="from before a run kept what its batches say") as caught:
        checkpoint.load(tmp_path / "c.npz", like(state))
    assert "\n" not in str(caught.value)


def test_format_4_is_read_without_the_array_that_it_has_besides(tmp_path, state):
    more = members(state, **{".best.excess.npy": npy(np.zeros((), np.float32))})
    archive(tmp_path / "c.npz", more, manifest={"format": 4})
    loaded = checkpoint.load(tmp_path / "c.npz", like(state))
    for (name, ours), (_, theirs) in zip(checkpoint.named(loaded), checkpoint.named(state), strict=True):
        np.testing.assert_array_equal(checkpoint.to_numpy(ours), checkpoint.to_numpy(theirs), err_msg=name)
    for extra, form in ((more, 5), (more, 6), (members(state), 4)):
        archive(tmp_path / "c.npz", extra, manifest={"format": form})
        with pytest.raises(InvalidInput, match="holds other arrays"):
            checkpoint.load(tmp_path / "c.npz", like(state))


def test_format_5_is_read_with_zeros_for_the_array_that_it_lacks(tmp_path, state):
    @dataclasses.dataclass
    class Algorithm:
        noise: jax.Array

    jax.tree_util.register_dataclass(Algorithm, data_fields=["noise"], meta_fields=[])

    @dataclasses.dataclass
    class Whole:
        algorithm: Algorithm
        rest: dict

    jax.tree_util.register_dataclass(Whole, data_fields=["algorithm", "rest"], meta_fields=[])
    whole = Whole(Algorithm(jnp.asarray([3.0, 4.0])), state)
    older = [(name, data) for name, data in members(whole) if name != ".algorithm.noise.npy"]
    assert len(older) == len(members(whole)) - 1
    archive(tmp_path / "c.npz", older, manifest={"format": 5})
    loaded = checkpoint.load(tmp_path / "c.npz", like(whole))
    np.testing.assert_array_equal(loaded.algorithm.noise, np.zeros(2, np.float32))
    for (name, ours), (_, theirs) in zip(checkpoint.named(loaded.rest), checkpoint.named(state), strict=True):
        np.testing.assert_array_equal(checkpoint.to_numpy(ours), checkpoint.to_numpy(theirs), err_msg=name)
    archive(tmp_path / "c.npz", older, manifest={"format": 6})
    with pytest.raises(InvalidInput, match="holds other arrays"):
        checkpoint.load(tmp_path / "c.npz", like(whole))


def test_a_checkpoint_cannot_lose_its_checksum(tmp_path, state):
    archive(tmp_path / "c.npz", members(state), seal=False)
    with pytest.raises(InvalidInput, match="lost its checksum"):
        checkpoint.load(tmp_path / "c.npz", like(state))


def test_a_full_disk_leaves_the_checkpoint_that_was_there(saved, state, monkeypatch):
    before = saved.read_bytes()

    def half(file, **_):
        file.write(before[:100])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "_savez", half)
    with pytest.raises(StorageFailure, match="could not be written: no space left on device"):
        checkpoint.save(saved, state, 5)
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]
    assert saved.read_bytes() == before


def test_files_with_strange_names_are_no_checkpoints(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    for name in ("epoch-abc.npz", "epoch-.npz", "epoch-5.npz.partial", "epoch--1.npz", "epoch-1-2.npz"):
        (tmp_path / "checkpoints" / name).touch()
    assert checkpoint.found(tmp_path) == []
    with pytest.raises(InvalidInput, match="no checkpoint yet"):
        checkpoint.latest(tmp_path)
