"""Finite CMDPs as files: a NumPy .npz of named arrays (docs/ground-truth.md, "File format").

A file may come from anywhere. Nothing in it is executed (no pickles), and nothing is allocated before the headers agree
with each other and with the size of the file: members are stored as they are, so that the arrays together are no larger
than the file.
"""

import dataclasses
import io
import math
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from apdo.errors import InvalidInput, unknown
from apdo.exact.solution import Solution
from apdo.finite import FiniteCMDP

SPARSE = ("transition_data", "transition_indices", "transition_indptr")
AXES = {
    "transition": 3,
    **dict.fromkeys(SPARSE, 1),
    "reward": 2,
    "cost": 3,
    "start": 1,
    "discount": 0,
    "limits": 1,
    "ending": 2,
    "cost_names": 1,
}
"""The arrays that a file may hold, and how many axes each has."""
NEEDED = ("reward", "cost", "start", "discount", "limits")
_INTEGERS = ("transition_indices", "transition_indptr")


def save(cmdp: FiniteCMDP, path: str | os.PathLike[str]) -> None:
    """Write a CMDP, its transition sparse."""
    moves = cmdp.transition
    arrays: dict[str, Any] = {
        **dict(zip(SPARSE, (moves.data, moves.indices, moves.indptr), strict=True)),
        **{name: getattr(cmdp, name) for name in (*NEEDED, "ending")},
        "cost_names": np.asarray(cmdp.cost_names, dtype=np.str_),
    }
    _write(arrays, path)


def save_solution(solution: Solution, path: str | os.PathLike[str]) -> None:
    """Write an optimum: an array for each of its fields, the certificate's with certificate_ before their names."""
    fields = {f.name: getattr(solution, f.name) for f in dataclasses.fields(solution)}
    proof = dataclasses.asdict(fields.pop("certificate"))
    _write(fields | {f"certificate_{name}": value for name, value in proof.items()}, path)


def _write(arrays: dict[str, Any], path: str | os.PathLike[str]) -> None:
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as file:
            np.savez(file, **arrays)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror}.") from error


def load(path: str | os.PathLike[str]) -> FiniteCMDP:
    """Read a CMDP and check everything about it; an `InvalidInput` of one sentence says what is wrong."""
    try:
        with zipfile.ZipFile(path) as archive:
            arrays = _arrays(archive, Path(path).stat().st_size)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror or error}.") from error
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from error
    except (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError, RuntimeError) as error:
        raise InvalidInput(f"{path} is not an undamaged .npz file: {str(error).rstrip('.')}.") from error
    try:
        return _cmdp(arrays)
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from error


def _arrays(archive: zipfile.ZipFile, size: int) -> dict[str, np.ndarray]:
    """Every array, once all headers are in order."""
    members: dict[str, zipfile.ZipInfo] = {}
    for member in archive.infolist():
        name = member.filename.removesuffix(".npy")
        if name not in AXES:
            raise unknown("array", name, AXES)
        if name in members:
            raise InvalidInput(f"the array {name} is there twice.")
        if member.compress_type != zipfile.ZIP_STORED or member.compress_size != member.file_size:
            raise InvalidInput(f"the array {name} is compressed; save with numpy.savez, not savez_compressed.")
        members[name] = member
    missing = [name for name in NEEDED if name not in members]
    if missing:
        raise InvalidInput(f"the array {missing[0]} is missing.")
    if sum(member.file_size for member in members.values()) > size:
        raise InvalidInput("the arrays are declared larger than the file.")
    for name, member in members.items():
        _check_header(archive, name, member)
    return {name: _read(archive, member) for name, member in members.items()}


def _check_header(archive: zipfile.ZipFile, name: str, member: zipfile.ZipInfo) -> None:
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise InvalidInput(f"the array {name} is of an unknown version {version}.")
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
        declared = file.tell() + math.prod(shape) * dtype.itemsize
    wanted = {"cost_names": "U"}.get(name, "iu" if name in _INTEGERS else "fiu")
    if dtype.hasobject or dtype.kind not in wanted:
        said = {"U": "text", "iu": "whole numbers", "fiu": "real numbers"}[wanted]
        raise InvalidInput(f"the array {name} must hold {said}, and has dtype {dtype}.")
    if len(shape) != AXES[name]:
        raise InvalidInput(f"the array {name} must have {AXES[name]} axes, and has shape {list(shape)}.")
    if declared != member.file_size:
        raise InvalidInput(f"the array {name} declares {declared} bytes, and has {member.file_size}.")


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    return np.lib.format.read_array(io.BytesIO(archive.read(member)), allow_pickle=False)


def _cmdp(arrays: dict[str, np.ndarray]) -> FiniteCMDP:
    dense, sparse = "transition" in arrays, [name for name in SPARSE if name in arrays]
    if dense == bool(sparse):
        raise InvalidInput(f"transition must be given once: dense as transition, or sparse as {', '.join(SPARSE)}.")
    names = arrays.get("cost_names")
    return FiniteCMDP.of(
        arrays["transition"] if dense else _sparse(arrays),
        arrays["reward"],
        arrays["cost"],
        arrays["start"],
        float(arrays["discount"]),
        arrays["limits"],
        ending=arrays.get("ending"),
        cost_names=None if names is None else [str(name) for name in names],
    )


def _sparse(arrays: dict[str, np.ndarray]) -> scipy.sparse.csr_array:
    missing = [name for name in SPARSE if name not in arrays]
    if missing:
        raise InvalidInput(f"the array {missing[0]} is missing.")
    # No check of these is left to scipy, which would follow a bad index out of its arrays.
    data, indices, pointers = (arrays[name] for name in SPARSE)
    states, actions = arrays["reward"].shape
    if len(indices) != len(data):
        raise InvalidInput(f"there are {len(data)} transition_data and {len(indices)} transition_indices.")
    if len(pointers) != states * actions + 1:
        raise InvalidInput(
            f"transition_indptr must have {states}·{actions} + 1 entries, one more than there are rows, and has "
            f"{len(pointers)}."
        )
    # Compared, not subtracted: unsigned numbers would wrap around.
    if pointers[0] != 0 or pointers[-1] != len(data) or (pointers[1:] < pointers[:-1]).any():
        raise InvalidInput(f"transition_indptr must rise from 0 to the number of entries, {len(data)}.")
    if len(indices) and (indices.min() < 0 or indices.max() >= states):
        raise InvalidInput(f"transition_indices must be states, 0 to {states - 1}, and reach to {indices.max()}.")
    return scipy.sparse.csr_array(
        (data.astype(np.float64), indices.astype(np.int64), pointers.astype(np.int64)),
        shape=(states * actions, states),
    )
