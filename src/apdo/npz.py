"""Reads a NumPy .npz of named arrays from any source.

Nothing in it is executed (no pickles). Nothing is allocated before the headers agree with each other and with the size
of the file. Members are stored uncompressed, so the arrays together are no larger than the file.
"""

import dataclasses
import io
import math
import os
import stat
import zipfile
from collections.abc import Mapping, Sequence

import numpy as np

from apdo.errors import InvalidInput, unknown

REAL, WHOLE, TEXT, TRUTH = "fiu", "iu", "U", "biu"
"""The kinds of values that an array may hold, as NumPy's letters."""
_WORDS = {REAL: "real numbers", WHOLE: "whole numbers", TEXT: "text", TRUTH: "true and false, or 1 and 0"}


@dataclasses.dataclass(frozen=True)
class Entry:
    """The axes and the kind of values that an array may have."""

    axes: tuple[int, ...]
    """The numbers of axes that are allowed."""
    kind: str = REAL


def read(path: str | os.PathLike[str], entries: Mapping[str, Entry], needed: Sequence[str]) -> dict[str, np.ndarray]:
    """The arrays of a file. All their names must be in `entries`, and all that are in `needed` must be there."""
    try:
        with open(path, "rb") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise InvalidInput("it is not a regular file.")
            with zipfile.ZipFile(file) as archive:
                return _arrays(archive, about.st_size, entries, needed)
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from error
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror or error}.") from error
    # A file of unknown origin can make the zip and array readers fail in many ways. None may end in a traceback.
    except Exception as error:
        reason = " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
        raise InvalidInput(f"{path} is not an undamaged .npz file: {reason}.") from error


def _arrays(
    archive: zipfile.ZipFile, size: int, entries: Mapping[str, Entry], needed: Sequence[str]
) -> dict[str, np.ndarray]:
    """Read every array, after all headers have been checked."""
    members: dict[str, zipfile.ZipInfo] = {}
    for member in archive.infolist():
        name = member.filename.removesuffix(".npy")
        if name not in entries:
            raise unknown("array", name, entries)
        if name in members:
            raise InvalidInput(f"the array {name} is there twice.")
        if member.compress_type != zipfile.ZIP_STORED or member.compress_size != member.file_size:
            raise InvalidInput(f"the array {name} is compressed; save with numpy.savez, not savez_compressed.")
        members[name] = member
    missing = [name for name in needed if name not in members]
    if missing:
        raise InvalidInput(f"the array {missing[0]} is missing.")
    if sum(member.file_size for member in members.values()) > size:
        raise InvalidInput("the arrays are declared larger than the file.")
    for name, member in members.items():
        _check_header(archive, name, member, entries[name])
    return {name: _read(archive, member) for name, member in members.items()}


def _check_header(archive: zipfile.ZipFile, name: str, member: zipfile.ZipInfo, entry: Entry) -> None:
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise InvalidInput(f"the array {name} is of an unknown version {version}.")
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
        declared = file.tell() + math.prod(shape) * dtype.itemsize
    if dtype.hasobject or dtype.kind not in entry.kind:
        raise InvalidInput(f"the array {name} must hold {_WORDS[entry.kind]}, and has dtype {dtype}.")
    if len(shape) not in entry.axes:
        wanted = " or ".join(str(axes) for axes in entry.axes)
        raise InvalidInput(f"the array {name} must have {wanted} axes, and has shape {list(shape)}.")
    if declared != member.file_size:
        raise InvalidInput(f"the array {name} declares {declared} bytes, and has {member.file_size}.")


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    return np.lib.format.read_array(io.BytesIO(archive.read(member)), allow_pickle=False)
