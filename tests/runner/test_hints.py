"""Guesses from a command's own words: what they find, and that no words make them slow."""

from __future__ import annotations

import time

import pytest

from codespace import limits
from codespace.runner import hints


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (b"fatal: Unable to create '/w/.git/index.lock': Read-only file system", hints.GIT),
        (b"ok\nrm: cannot remove '.GIT/a.git/hooks': Device or resource busy\nmore", hints.GIT),
        (b".git is there\ntouch: /usr/x: Read-only file system", hints.READ_ONLY),
        (b"Read-only file system: .git", hints.READ_ONLY),
        (b"x.gitignore: Read-only file system", hints.READ_ONLY),
    ],
)
def test_only_a_line_that_names_a_git_directory_first_is_about_one(said: bytes, told: str) -> None:
    assert hints.look(said, network="enabled", git="read_only") == [told]


@pytest.mark.parametrize(
    "word",
    [
        b".git ",
        b".git",
        b".git read-only file syste ",
        b"127.0.0.1 ",
        b"localhost",
        b"connection refused ",
        b"localhost connection refuse ",
        b"\n",
        b"\n.git",
    ],
)
def test_no_output_keeps_the_event_loop(word: bytes) -> None:
    tail = (word * limits.HINT_BYTES)[: limits.HINT_BYTES]

    def seconds() -> float:
        began = time.process_time()
        hints.look(tail, network="restricted", git="read_only")
        return time.process_time() - began

    assert any(seconds() < 0.1 for _ in range(5)), "others on the machine make even the processor slower, not each time"
