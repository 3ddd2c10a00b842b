"""The complete state of a run in one file: named arrays and a manifest, without pickles, written completely or not.

The file is an uncompressed .npz, so that any tool can read it. Its zip comment is the SHA-256 of everything before it.
Reading trusts nothing: first the checksum is checked, then names, sizes, types and shapes are compared with what the
run's settings require. Arrays are allocated only after that.
"""

import contextlib
import hashlib
import json
import os
import re
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from apdo import files
from apdo.errors import InvalidInput

FORMAT = 6
_EARLIER = (1, 2, 3)
"""Formats without the best policy, or without the batch statistics that judge it. Neither can be added afterwards."""
_DROPPED: dict[int, tuple[str, ...]] = {4: (".best.excess",), 5: ()}
"""Earlier formats that can be read, and the arrays that they have besides, which are not used any more."""
_ADDED = (".algorithm.noise",)
"""Arrays that earlier formats do not have. They begin as zeros."""
_MANIFEST = "manifest"
_MOST_MANIFEST = 2**24
_DIGEST = 64
_NAME = re.compile(r"epoch-(\d{1,12})\.npz")
_Leaf = jax.Array | np.ndarray | jax.ShapeDtypeStruct
_savez: Callable[..., None] = np.savez  # to type checkers, any of its keywords could be `allow_pickle`


class Earlier(InvalidInput):
    """A whole checkpoint in a format that is no longer read. It is not damaged, and must not be replaced."""


def save(path: Path, state: PyTree, epoch: int) -> None:
    """Write the state's leaves under their tree paths and a checksum to a temporary file; then rename it."""
    arrays = {name: to_numpy(leaf) for name, leaf in named(state)}
    manifest = {
        "format": FORMAT,
        "epoch": epoch,
        "leaves": {name: {"shape": array.shape, "dtype": array.dtype.str} for name, array in arrays.items()},
    }
    text = np.frombuffer(json.dumps(manifest).encode(), dtype=np.uint8)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise files.storage_failure(path, error) from error
    with files.replacing(path) as file:
        _savez(file, **{_MANIFEST: text}, **arrays)
        with zipfile.ZipFile(file, "a") as archive:
            archive.comment = b"0" * _DIGEST
        end = file.seek(-_DIGEST, os.SEEK_END)
        digest = _digest_of_file(file, end)
        file.seek(end)
        file.write(digest)


def load(path: Path, like: PyTree) -> PyTree:
    """The state in a file, with the structure, shapes and dtypes of `like` (arrays or their shapes), checked."""
    try:
        with path.open("rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InvalidInput(f"{path} is not a regular file.")
            leaves = _read(path, file, like)
    except InvalidInput:
        raise
    # A file of unknown origin can make the zip and array readers fail in many ways. None may end in a traceback.
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise InvalidInput(f"{path} is not a whole checkpoint: {reason}.") from None
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _read(path: Path, file: BinaryIO, like: PyTree) -> list[jax.Array]:
    wanted = {name: _stored_as(leaf) for name, leaf in named(like)}
    with zipfile.ZipFile(file) as archive:
        size = file.seek(0, os.SEEK_END)
        sealed = len(archive.comment) == _DIGEST
        if sealed and _digest_of_file(file, size - _DIGEST) != archive.comment:
            raise InvalidInput(f"{path} is damaged: its checksum does not match.")
        _check_members(path, archive, size)
        manifest = _manifest(path, archive)
        if manifest.get("format") in _EARLIER:
            raise Earlier(
                f"{path} has checkpoint format {manifest['format']}, from before a run kept what its batches say of "
                "its policies, and cannot be used; take the version of apdo that wrote it, or train again into another "
                "folder."
            )
        form = manifest.get("format")
        if not isinstance(form, int) or form not in (FORMAT, *_DROPPED):
            raise InvalidInput(f"{path} has checkpoint format {form}; this version reads {FORMAT}.")
        if not sealed:
            raise InvalidInput(f"{path} is damaged: it has lost its checksum.")
        stored = {name: each for name, each in wanted.items() if form == FORMAT or name not in _ADDED}
        if set(archive.namelist()) != {f"{name}.npy" for name in (_MANIFEST, *stored, *_DROPPED.get(form, ()))}:
            raise InvalidInput(f"{path} is not a whole checkpoint of this run: it holds other arrays.")
        # Check every header before reading any array.
        for name, expected in stored.items():
            _check_header(path, archive, name, expected)
        arrays = {name: _array(archive, name, expected) for name, expected in stored.items()}
        arrays |= {name: np.zeros(each.shape, each.dtype) for name, each in wanted.items() if name not in stored}
    return [_from_numpy(arrays[name], leaf) for name, leaf in named(like)]


def _check_members(path: Path, archive: zipfile.ZipFile, size: int) -> None:
    """Check that nothing is compressed, as in the files that we write: nothing can unpack to more than the file."""
    members = archive.infolist()
    for member in members:
        if member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size:
            raise InvalidInput(f"{path} holds a compressed array, {member.filename!r}, as no checkpoint does.")
        if member.filename.startswith("/") or ".." in member.filename.split("/") or "\\" in member.filename:
            raise InvalidInput(f"{path} holds an array under the path {member.filename!r}, which is none of ours.")
    if len({member.filename for member in members}) != len(members):
        raise InvalidInput(f"{path} holds two arrays of one name.")
    if sum(member.file_size for member in members) > size:
        raise InvalidInput(f"{path} says that it holds more bytes than it has.")


def _manifest(path: Path, archive: zipfile.ZipFile) -> dict[str, Any]:
    member = archive.getinfo(f"{_MANIFEST}.npy")
    if member.file_size > _MOST_MANIFEST:
        raise InvalidInput(f"{path} has a manifest of {member.file_size:,} bytes, more than {_MOST_MANIFEST:,}.")
    with archive.open(member) as file:
        shape, dtype = _header(file)
        if dtype != np.dtype(np.uint8) or len(shape) != 1:
            raise InvalidInput(f"{path} has a manifest that is no text.")
        return files.parse(file.read(), f"{path}, its manifest")


@runtime_checkable
class _Readable(Protocol):
    """A file in an archive. Its real class is another one than `zipfile` declares."""

    def read(self, size: int = -1, /) -> bytes: ...


def _header(file: _Readable) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    if version != (1, 0):
        raise ValueError(f"array header of version {version}")
    shape, by_columns, dtype = np.lib.format.read_array_header_1_0(file)
    if by_columns or dtype.hasobject:
        raise ValueError("an array that is no plain one")
    return shape, dtype


def _check_header(path: Path, archive: zipfile.ZipFile, name: str, expected: jax.ShapeDtypeStruct) -> None:
    member = archive.getinfo(f"{name}.npy")
    with archive.open(member) as file:
        shape, dtype = _header(file)
        header = file.tell()
    if shape != expected.shape or dtype != expected.dtype:
        raise InvalidInput(
            f"{path} holds {name} as {dtype}{list(shape)}, "
            f"but this run's settings make it {expected.dtype}{list(expected.shape)}."
        )
    if member.file_size - header != expected.size * np.dtype(expected.dtype).itemsize:
        raise InvalidInput(f"{path} is damaged: {name} has another size than its shape asks for.")


def _array(archive: zipfile.ZipFile, name: str, expected: jax.ShapeDtypeStruct) -> np.ndarray:
    with archive.open(f"{name}.npy") as file:
        _header(file)
        return np.frombuffer(file.read(), dtype=expected.dtype).reshape(expected.shape)


def found(folder: Path) -> list[tuple[int, Path]]:
    """The checkpoints in a run folder with the epochs in their names, the newest first."""
    named = [(path, _NAME.fullmatch(path.name)) for path in (folder / "checkpoints").glob("epoch-*.npz")]
    return sorted(((int(match[1]), path) for path, match in named if match), reverse=True)


def latest(folder: Path) -> Path:
    """The newest checkpoint in a run folder, by the epoch in its name."""
    if there := found(folder):
        return there[0][1]
    raise InvalidInput(f"{folder} has no checkpoint yet.")


def prune(folder: Path, keep: int) -> None:
    """Remove all checkpoints but the newest `keep`."""
    for _, path in found(folder)[keep:]:
        with contextlib.suppress(OSError):
            path.unlink()


def set_aside(path: Path) -> None:
    """Rename a file that cannot be used, without destroying it."""
    with contextlib.suppress(OSError):
        path.replace(path.with_name(path.name + ".unusable"))


def path_of(folder: Path, epoch: int) -> Path:
    """The file for the state after so many epochs."""
    return folder / "checkpoints" / f"epoch-{epoch:06d}.npz"


def learner_path(folder: Path, epoch: int) -> Path:
    """The file for the learner of the adjustment after so many epochs, while it works."""
    return folder / "checkpoints" / f"learner-{epoch:06d}.npz"


def named(tree: PyTree) -> list[tuple[str, Any]]:
    """A state's leaves with their names in a file."""
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def _is_key(leaf: _Leaf) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _stored_as(leaf: _Leaf) -> jax.ShapeDtypeStruct:
    if _is_key(leaf):
        return jax.eval_shape(jax.random.key_data, leaf)
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)


def to_numpy(leaf: jax.Array | np.ndarray) -> np.ndarray:
    """A leaf as it is stored in a file."""
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf, order="C")


def _from_numpy(array: np.ndarray, like: _Leaf) -> jax.Array:
    # A copy, because the run gives its state away to be overwritten, and the memory of the file must stay as it is.
    own = jnp.array(array, copy=True)
    return jax.random.wrap_key_data(own) if _is_key(like) else own


def _digest_of_file(file: BinaryIO, end: int) -> bytes:
    """The SHA-256, in hexadecimal, of the first `end` bytes."""
    digest, left = hashlib.sha256(), end
    file.seek(0)
    while left > 0 and (part := file.read(min(left, 2**20))):
        digest.update(part)
        left -= len(part)
    return digest.hexdigest().encode()
