"""What ripgrep says of a file, held against the file that is opened under its name."""

from __future__ import annotations

import codecs
import os
from pathlib import Path

import pytest

from codespace.runner.search.matches import Lines, has


@pytest.mark.parametrize(
    ("content", "lines", "there"),
    [
        (b"one\ntwo\n", [(0, b"one\n"), (4, b"two\n")], True),
        (b"one\ntwo", [(4, b"two")], True),
        (b"one\r\ntwo\r\n", [(5, b"two\r\n")], True),
        (b"one \xff\n", [(0, b"one \xff\n")], True),
        (b"one\nx\0two\0", [(0, b"one\n"), (6, b"two\n")], True),  # a NUL byte ends a line behind the first
        (codecs.BOM_UTF8 + b"one\ntwo\n", [(0, b"one\n"), (4, b"two\n")], True),
        ("one \u00e9\ntwo\n".encode("utf-16"), [(0, "one \u00e9\n".encode()), (7, b"two\n")], True),
        ("\ufeffone\n".encode("utf-16"), [(0, b"one\n")], True),  # ripgrep drops a second mark as well
        ("one\n".encode("utf-16-be"), [(0, b"one\n")], False),  # no mark says what it is
        (b"one\ntwo\n", [(0, b"one\n"), (4, b"key\n")], False),
        (b"one\ntwo\n", [(8, b"two\n")], False),
        (b"", [(0, b"key\n")], False),
        ("one\n".encode("utf-16"), [(0, b"key\n")], False),
        ("one\n".encode("utf-16"), [(1 << 40, b"key\n")], False),
        (b"anything", [], True),
    ],
)
def test_lines_are_believed_where_the_file_has_them(tmp_path: Path, content: bytes, lines: Lines, there: bool) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        assert has(descriptor, lines) is there
    finally:
        os.close(descriptor)
