"""Files: all or nothing, sealed, bounded."""

import errno
import json
import os

import pytest

from apdo import files
from apdo.errors import InvalidInput, StorageFailure

ROW = {"epoch": 3, "seed": 7, "return": 1.25, "cost": [0.5, -1e-9]}


def test_a_seal_notices_every_change_of_every_single_byte():
    line, page = files.seal_line(ROW)[:-1].encode(), files.seal_page(ROW).encode()
    assert files.line_is_whole(line)
    assert files.page_is_whole(page)
    for text, is_whole in ((line, files.line_is_whole), (page, files.page_is_whole)):
        for place in range(len(text)):
            for other in {0, 32, 48, 49, 255, text[place] ^ 1, text[place] ^ 128} - {text[place]}:
                assert not is_whole(text[:place] + bytes([other]) + text[place + 1 :]), (place, other)
        for end in range(len(text)):
            assert not is_whole(text[:end])


def test_sealed_objects_are_ordinary_json_and_floats_come_back_exactly():
    value = 0.1 + 0.2
    assert json.loads(files.seal_line({"x": value}))["x"] == value
    assert json.loads(files.seal_page(ROW)) == ROW | {"crc32": json.loads(files.seal_page(ROW))["crc32"]}


def test_sealing_again_replaces_the_seal():
    once = json.loads(files.seal_page(ROW))
    assert files.seal_page(once) == files.seal_page(ROW)


def test_nothing_that_is_no_number_is_written():
    with pytest.raises(ValueError, match="JSON compliant"):
        files.seal_line({"x": float("nan")})


@pytest.mark.parametrize("fault", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt(), ValueError()])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, fault):
    path = tmp_path / "file"
    path.write_text("old")

    def write():
        with files.replacing(path) as file:
            file.write(b"new")
            raise fault

    with pytest.raises(StorageFailure if isinstance(fault, OSError) else type(fault)):
        write()
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("file", "old")]


def test_a_file_that_is_too_large_or_no_file_is_refused_unread(tmp_path):
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(2**40)  # a hole: it takes no space, and reading it would take all memory
    with pytest.raises(InvalidInput, match="at most 1,000 are read"):
        files.read(large, 1000)
    with pytest.raises(InvalidInput, match="cannot be read"):
        files.read(tmp_path, 1000)
    with pytest.raises(InvalidInput, match="cannot be read"):
        files.read(tmp_path / "nothing", 1000)
    with pytest.raises(InvalidInput, match="not a regular file"):
        files.read(type(tmp_path)(os.devnull), 1000)


@pytest.mark.parametrize("text", [b"{", b"[]", b"12", b"\xff", b"[" * 10**5, b'{"a":' * 10**5, b"9" * 10**5, b""])
def test_what_is_no_object_is_refused_in_one_sentence(text):
    with pytest.raises(InvalidInput, match=r"place: (not|nested)"):
        files.parse(text, "place")
