"""The journal on a disk that takes a part of what is written: nothing half written counts, and nothing of it stays."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from helper.patch.journal import Journal

OPERATION = "op-aaaaaaaaaaaaaaaaaaaaaaaa"
PRECIOUS = b"precious" * 2_000


@contextmanager
def room_for(file_bytes: int) -> Iterator[None]:
    """Let no file be larger; the write that meets the limit takes a part, as on a disk that gets full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    opened = Journal.create(str(tmp_path), OPERATION)
    yield opened
    opened.close()


def test_bytes_that_could_not_be_rescued_leave_nothing_that_looks_like_them(journal: Journal) -> None:
    for _ in range(3):
        with room_for(4096), pytest.raises(OSError, match="too large"):
            journal.rescue(0, PRECIOUS)
    assert journal.rescued() == ()
    assert journal.rescue(0, PRECIOUS) == "rescued/0-0"
    assert (Path(journal.path) / "rescued/0-0").read_bytes() == PRECIOUS


def test_a_mark_that_could_not_be_written_whole_was_not_left(journal: Journal) -> None:
    with room_for(4096), pytest.raises(OSError, match="too large"):
        journal.mark("restoring", list(range(5_000)))
    assert not journal.marked("restoring")
    journal.mark("restoring", [1, 2])
    assert journal.numbers("restoring") == {1, 2}
