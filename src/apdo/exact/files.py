"""Finite CMDPs as files: a NumPy .npz of named arrays (docs/ground-truth.md, "File format").

A file may come from anywhere: `apdo.npz` reads it, and everything in it is checked.
"""

import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from apdo import npz
from apdo.errors import InvalidInput
from apdo.exact.solution import Solution
from apdo.finite import FiniteCMDP

SPARSE = ("transition_data", "transition_indices", "transition_indptr")
ENTRIES = {
    "transition": npz.Entry((3,)),
    "transition_data": npz.Entry((1,)),
    "transition_indices": npz.Entry((1,), npz.WHOLE),
    "transition_indptr": npz.Entry((1,), npz.WHOLE),
    "reward": npz.Entry((2,)),
    "cost": npz.Entry((3,)),
    "start": npz.Entry((1,)),
    "discount": npz.Entry((0,)),
    "limits": npz.Entry((1,)),
    "ending": npz.Entry((2,)),
    "cost_names": npz.Entry((1,), npz.TEXT),
}
"""The arrays that a file may contain."""
NEEDED = ("reward", "cost", "start", "discount", "limits")


def save(cmdp: FiniteCMDP, path: str | os.PathLike[str]) -> None:
    """Write a CMDP, with sparse transitions."""
    moves = cmdp.transition
    arrays: dict[str, Any] = {
        **dict(zip(SPARSE, (moves.data, moves.indices, moves.indptr), strict=True)),
        **{name: getattr(cmdp, name) for name in (*NEEDED, "ending")},
        "cost_names": np.asarray(cmdp.cost_names, dtype=np.str_),
    }
    _write(arrays, path)


def save_solution(solution: Solution, path: str | os.PathLike[str]) -> None:
    """Write an optimum: an array for each of its fields. Names of the certificate's fields begin with certificate_."""
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
    """Read and check a CMDP. `InvalidInput` says in one sentence what is wrong."""
    arrays = npz.read(path, ENTRIES, NEEDED)
    try:
        return _cmdp(arrays)
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from error


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
    # Everything is checked here, because scipy would use a bad index to read outside its arrays.
    data, indices, pointers = (arrays[name] for name in SPARSE)
    states, actions = arrays["reward"].shape
    if len(indices) != len(data):
        raise InvalidInput(f"there are {len(data)} transition_data and {len(indices)} transition_indices.")
    if len(pointers) != states * actions + 1:
        raise InvalidInput(
            f"transition_indptr must have {states}·{actions} + 1 entries, one more than there are rows, and has "
            f"{len(pointers)}."
        )
    # Differences of unsigned numbers would wrap around, hence comparisons.
    if pointers[0] != 0 or pointers[-1] != len(data) or (pointers[1:] < pointers[:-1]).any():
        raise InvalidInput(f"transition_indptr must rise from 0 to the number of entries, {len(data)}.")
    if len(indices) and (indices.min() < 0 or indices.max() >= states):
        raise InvalidInput(f"transition_indices must be states, 0 to {states - 1}, and reach to {indices.max()}.")
    return scipy.sparse.csr_array(
        (data.astype(np.float64), indices.astype(np.int64), pointers.astype(np.int64)),
        shape=(states * actions, states),
    )
