"""Bytes to lines: however they are cut, and however long a line is."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from contextlib import aclosing
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from codespace import limits
from codespace.protocol.wire import Line, TooLong
from codespace.stdio.lines import is_closed, read_lines


class Pieces:
    """A stream that gives the pieces it was made of."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = [piece for piece in pieces if piece]

    async def receive_some(self, max_bytes: int) -> bytes:
        await trio.lowlevel.checkpoint()
        return self._pieces.pop(0) if self._pieces else b""

    async def send_all(self, data: bytes) -> None:
        raise AssertionError

    async def aclose(self) -> None:
        raise AssertionError


def lines_of(pieces: Iterable[bytes]) -> list[Line]:
    async def collect() -> list[Line]:
        async with aclosing(read_lines(Pieces(pieces))) as lines:
            return [line async for line in lines]

    return trio.run(collect)


@given(st.lists(st.binary(max_size=8).map(lambda data: data.replace(b"x", b"\n")), max_size=12))
def test_lines_do_not_depend_on_how_the_bytes_arrive(pieces: list[bytes]) -> None:
    whole = b"".join(pieces).split(b"\n")
    expected = whole[:-1] + ([whole[-1]] if whole[-1] else [])
    assert lines_of(pieces) == expected


def test_a_line_over_the_limit_is_thrown_away_but_for_its_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REQUEST_BYTES", 5000)
    long = b"head" + b"." * 20_000 + b"tail"
    pieces = [long[index : index + 700] for index in range(0, len(long), 700)]
    before, line, after = lines_of([b"a\n", *pieces, b"\nb"])
    assert (before, after) == (b"a", b"b")
    assert isinstance(line, TooLong)
    assert line.head.startswith(b"head")
    assert line.tail.endswith(b"tail")
    assert len(line.head) + len(line.tail) <= 2048


def test_a_line_of_exactly_the_limit_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REQUEST_BYTES", 10)
    assert lines_of([b"0123456789\n"]) == [b"0123456789"]
    (line,) = lines_of([b"0123456789a\n"])
    assert isinstance(line, TooLong)


def test_a_closed_end_is_seen_behind_what_still_lies_in_a_pipe_or_socket_and_never_of_a_file(tmp_path: Path) -> None:
    for mine, theirs in (os.pipe(), tuple(end.detach() for end in socket.socketpair())):
        os.write(theirs, b"unread")
        assert not is_closed(mine)
        os.close(theirs)
        assert is_closed(mine)
        os.close(mine)
    with open(tmp_path / "file", "wb+") as file:
        assert not is_closed(file.fileno())
