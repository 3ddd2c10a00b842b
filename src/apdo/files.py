"""Writes and reads files that may be incomplete, damaged or hostile: atomic writes, checksums, bounded reading.

A seal is the last entry of a JSON object, `"crc32": "xxxxxxxx"`: the CRC-32 of the object's text without that entry.
Because it is computed from the text, it detects a changed space as well as a changed digit.
"""

import contextlib
import errno
import json
import os
import re
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from apdo.errors import InvalidInput, StorageFailure

PARTIAL = ".partial"
"""The ending of a file while it is being written."""
SEAL = "crc32"
_LINE_SEAL = re.compile(rb', "crc32": "([0-9a-f]{8})"(\})\Z')
_PAGE_SEAL = re.compile(rb',\n  "crc32": "([0-9a-f]{8})"(\n\}\n)\Z')


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that will replace `path` as soon as it is whole and on the disk.

    If anything goes wrong, the old file stays, and nothing of the new one is left.
    """
    temporary = path.with_name(path.name + PARTIAL)
    try:
        with temporary.open("w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise storage_failure(path, error) from error
        raise


def storage_failure(path: Path, error: OSError) -> StorageFailure:
    """The error for a file that could not be written."""
    hint = "; free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else ""
    return StorageFailure(f"{path} could not be written: {(error.strerror or str(error)).lower()}{hint}.")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(path: Path, most: int) -> bytes:
    """The content of a regular file of at most `most` bytes. The size is checked before anything is read."""
    try:
        with path.open("rb") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise InvalidInput(f"{path} is not a regular file.")
            if about.st_size > most:
                raise InvalidInput(f"{path} has {about.st_size:,} bytes, and at most {most:,} are read.")
            return file.read(most + 1)[:most]
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror or error}.") from None


def parse(text: bytes, what: str) -> dict[str, Any]:
    """Parse a JSON object; `what` names the text in an error."""
    try:
        found = json.loads(text)
    except RecursionError:
        raise InvalidInput(f"{what}: nested too deeply to be read.") from None
    except ValueError as error:
        raise InvalidInput(f"{what}: not valid JSON ({error}).") from None
    if not isinstance(found, dict):
        raise InvalidInput(f"{what}: not a JSON object.")
    return found


def seal_line(row: dict[str, Any]) -> str:
    """An object as one line with a seal."""
    body = json.dumps(row, allow_nan=False)
    return f'{body[:-1]}, "{SEAL}": "{_checksum(body.encode())}"}}\n'


def seal_page(content: dict[str, Any]) -> str:
    """An object as indented text with a seal, which replaces the object's old one."""
    body = json.dumps({name: value for name, value in content.items() if name != SEAL}, indent=2) + "\n"
    return f'{body[:-3]},\n  "{SEAL}": "{_checksum(body.encode())}"\n}}\n'


def line_is_whole(line: bytes) -> bool:
    """Whether a line, without its line break, has the seal that fits its text."""
    return _is_whole(line, _LINE_SEAL)


def page_is_whole(text: bytes) -> bool:
    """Whether a page has the seal that fits its text."""
    return _is_whole(text, _PAGE_SEAL)


def _is_whole(text: bytes, seal: re.Pattern[bytes]) -> bool:
    found = seal.search(text[-64:])
    if found is None:
        return False
    body = text[: len(text) - len(found[0])] + found[2]
    return _checksum(body).encode() == found[1]


def _checksum(text: bytes) -> str:
    return f"{zlib.crc32(text):08x}"
