"""The complete state of a run in one file: named arrays and a manifest, no pickles, written all or nothing."""

import hashlib
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree
from numpy.lib.npyio import NpzFile

from apdo.errors import InvalidInput

FORMAT = 1
_MANIFEST = "manifest"
_Leaf = jax.Array | np.ndarray | jax.ShapeDtypeStruct
_savez: Callable[..., None] = np.savez  # to type checkers, any of its keywords could be `allow_pickle`


def save(path: Path, state: PyTree, epoch: int) -> None:
    """Write the state's leaves under their tree paths, with a checksum each, to a temporary name; then rename."""
    arrays = {name: _to_numpy(leaf) for name, leaf in _named(state)}
    manifest = {
        "format": FORMAT,
        "epoch": epoch,
        "leaves": {name: {"shape": a.shape, "dtype": a.dtype.str, "sha256": _digest(a)} for name, a in arrays.items()},
    }
    text = np.frombuffer(json.dumps(manifest).encode(), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".partial")
    with temporary.open("wb") as file:
        _savez(file, **{_MANIFEST: text}, **arrays)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def load(path: Path, like: PyTree) -> PyTree:
    """The state in a file, with the structure, shapes and dtypes of `like` (arrays or their shapes), all checked."""
    try:
        with np.load(path, allow_pickle=False) as file:
            manifest = json.loads(bytes(file[_MANIFEST]))
            if manifest["format"] != FORMAT:
                raise InvalidInput(f"{path} has checkpoint format {manifest['format']}; this version reads {FORMAT}.")
            leaves = [
                _from_numpy(_checked(path, file, manifest["leaves"], name, leaf), leaf) for name, leaf in _named(like)
            ]
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"{path} is not a whole checkpoint: {error}.") from None
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def latest(folder: Path) -> Path:
    """The newest checkpoint of a run folder, by the epoch in its name."""
    found = sorted((folder / "checkpoints").glob("epoch-*.npz"), key=lambda path: int(path.stem.split("-")[1]))
    if not found:
        raise InvalidInput(f"{folder} has no checkpoint yet.")
    return found[-1]


def path_of(folder: Path, epoch: int) -> Path:
    """Where the state after so many epochs is kept."""
    return folder / "checkpoints" / f"epoch-{epoch:06d}.npz"


def _named(tree: PyTree) -> list[tuple[str, Any]]:
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def _checked(path: Path, file: NpzFile, manifest: dict[str, Any], name: str, like: _Leaf) -> np.ndarray:
    array = file[name]
    wanted = jax.eval_shape(jax.random.key_data, like) if _is_key(like) else like
    if array.shape != wanted.shape or array.dtype != wanted.dtype:
        raise InvalidInput(
            f"{path} holds {name} as {array.dtype}{list(array.shape)}, "
            f"but this run's settings make it {wanted.dtype}{list(wanted.shape)}."
        )
    if _digest(array) != manifest[name]["sha256"]:
        raise InvalidInput(f"{path} is damaged: the checksum of {name} does not match.")
    return array


def _is_key(leaf: _Leaf) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _to_numpy(leaf: jax.Array) -> np.ndarray:
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _from_numpy(array: np.ndarray, like: _Leaf) -> jax.Array:
    return jax.random.wrap_key_data(jnp.asarray(array)) if _is_key(like) else jnp.asarray(array)


def _digest(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()
