"""Cursors: every reader gets exactly the bytes, or an exact count of what was lost."""

from __future__ import annotations

import base64
import codecs
import itertools
import tracemalloc
from typing import get_args

import hypothesis.strategies as st
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from codespace.contract import Encoding, Stream
from codespace.runner.output.output import Output, Ring
from codespace.runner.output.pieces import Piece

CAPACITY = 64
streams = st.sampled_from(get_args(Stream))
sources = st.sampled_from(("stdout", "stderr"))
encodings = st.sampled_from(get_args(Encoding))
blocks = st.one_of(
    st.binary(min_size=1, max_size=3 * CAPACITY),
    st.text(min_size=1, max_size=40).map(str.encode),
    st.sampled_from([b"\xe2", b"\x82", b"\xac", b"\xf0\x9f", b"\x98\x80", "€😀".encode()]),
    st.integers(8_000, 9_000).map(bytes),  # kept by reference, not gathered
)


def read(output: Output, cursor: int, *, stream: Stream, limit_bytes: int, encoding: Encoding) -> Piece:
    """Read outside of a loop, as everything here is in memory."""
    return trio.run(lambda: output.read(cursor, stream=stream, limit_bytes=limit_bytes, encoding=encoding))


def bytes_of(piece: Piece, whole: bytes, cursor: int) -> bytes:
    """Return which bytes of all that was written a piece is for, and see that it gives them."""
    block = whole[min(max(cursor, 0) + piece.output_lost, piece.cursor) : piece.cursor]
    if piece.encoding == "base64":
        assert (base64.b64decode(piece.text, validate=True), piece.replaced) == (block, 0)
    else:
        assert piece.text == block.decode(errors="replace")
        assert piece.replaced == len(block) - len(block.decode(errors="ignore").encode())
    return block


class Cursors(RuleBasedStateMachine):
    """Any interleaving of writes, drops, reads and stream choices, against plain byte strings."""

    @initialize()
    def begin(self) -> None:
        self.output = Output(CAPACITY)
        self.written: dict[Stream, bytes] = dict.fromkeys(get_args(Stream), b"")
        self.closed: set[Stream] = set()
        self.cursors: dict[tuple[Stream, Encoding], int] = {}

    @rule(stream=sources, block=blocks)
    def write(self, stream: Stream, block: bytes) -> None:
        if stream not in self.closed:
            self.output.append(stream, block)
            self.written[stream] += block
            self.written["combined"] += block

    @rule(stream=sources)
    def close(self, stream: Stream) -> None:
        self.output.close(stream)
        self.closed |= {stream}
        if {"stdout", "stderr"} <= self.closed:
            self.closed.add("combined")

    @rule(stream=streams, encoding=encodings, limit=st.integers(1, 2 * CAPACITY))
    def read_on(self, stream: Stream, encoding: Encoding, limit: int) -> None:
        cursor = self.cursors.get((stream, encoding), 0)
        piece = self.read(stream, cursor, encoding, limit)
        assert piece.cursor >= cursor
        self.cursors[stream, encoding] = piece.cursor

    @rule(stream=streams, encoding=encodings, cursor=st.integers(-5, 500), limit=st.integers(1, 2 * CAPACITY))
    def read_anywhere(self, stream: Stream, encoding: Encoding, cursor: int, limit: int) -> None:
        self.read(stream, cursor, encoding, limit)

    def read(self, stream: Stream, cursor: int, encoding: Encoding, limit: int) -> Piece:
        whole = self.written[stream]
        piece = read(self.output, cursor, stream=stream, limit_bytes=limit, encoding=encoding)
        block = bytes_of(piece, whole, cursor)
        start = piece.cursor - len(block)
        retained = max(0, len(whole) - CAPACITY)
        assert len(block) <= (max(limit, 4) if encoding == "text" else limit)
        assert piece.retained_from == retained
        first = min(max(cursor, 0), len(whole))
        torn = start - max(first, retained)
        assert torn == 0 or (encoding == "text" and cursor < retained and 0 < torn < 4)
        assert piece.output_lost == max(0, start - max(cursor, 0))
        assert piece.eof == (stream in self.closed and piece.cursor == len(whole))
        if not block and not torn:
            self.explain_nothing(whole[first:], stream, encoding, limit)
        return piece

    def explain_nothing(self, rest: bytes, stream: Stream, encoding: Encoding, limit: int) -> None:
        """An empty piece is right at the end, and where a last character is not complete yet."""
        if rest:
            assert encoding == "text"
            assert stream not in self.closed
            assert codecs.getincrementaldecoder("utf-8")().decode(rest) == ""

    @invariant()
    def totals_are_exact(self) -> None:
        if hasattr(self, "output"):
            assert self.output.totals == {stream: len(whole) for stream, whole in self.written.items()}


TestCursors = Cursors.TestCase


@given(text=st.text(max_size=200), cuts=st.lists(st.integers(0, 800), max_size=20), limit=st.integers(1, 50))
def test_text_cut_anywhere_comes_back_as_the_same_text(text: str, cuts: list[int], limit: int) -> None:
    whole = text.encode()
    edges = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    output, cursor, got = Output(), 0, ""
    for first, last in itertools.pairwise(edges):
        output.append("stdout", whole[first:last])
        while (piece := read(output, cursor, stream="combined", limit_bytes=limit, encoding="text")).cursor > cursor:
            assert piece.encoding == "text"
            cursor, got = piece.cursor, got + piece.text
    assert got == text


LINES = b"".join(b"compiling module %d ... ok\n" % number for number in range(1_500))


@pytest.mark.parametrize(
    ("written", "encoding"),
    [
        (LINES + b"warning: caf\xe9.c\n" + LINES, "text"),
        (b"caf\xe9", "text"),
        (b"lib/module/file.c\0" * 2_000 + b"caf\xe9.c\0", "text"),
        (b"\0" * 2_000, "text"),
        ((("bl" + "\u00e4" * 6) * 50).encode("latin-1"), "base64"),
        (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "base64"),
        (b"SQLite format 3\0\xff" + b"table\0\0\0" * 2_000, "base64"),
    ],
    ids=["a name in lines", "short", "names between zeros", "UTF-8", "half of it", "an image", "mostly zeros"],
)
def test_text_with_some_bytes_that_are_none_is_text_and_only_what_has_many_is_base64(
    written: bytes, encoding: Encoding
) -> None:
    output = Output()
    output.append("stdout", written)
    output.close("stdout")
    piece = read(output, 0, stream="stdout", limit_bytes=100_000, encoding="text")
    assert (piece.encoding, bytes_of(piece, written, 0)) == (encoding, written)


@pytest.mark.parametrize("limit", range(4, 20))
def test_one_wrong_byte_costs_itself_and_no_text_around_it(limit: int) -> None:
    output = Output()
    before, behind = "나é" * 5, "가é😀나" * 50
    written = before.encode() + b"\xff" + behind.encode()
    output.append("stdout", written)
    output.close("stdout")
    pieces = [read(output, 0, stream="stdout", limit_bytes=limit, encoding="text")]
    while not pieces[-1].eof:
        pieces.append(read(output, pieces[-1].cursor, stream="stdout", limit_bytes=limit, encoding="text"))
    assert "".join(piece.text for piece in pieces) == f"{before}\ufffd{behind}"
    assert sum(piece.replaced for piece in pieces) == 1


def test_half_a_character_is_held_back_until_its_rest_comes() -> None:
    output = Output()
    output.append("stdout", b"caf\xc3")
    assert read(output, 0, stream="stdout", limit_bytes=100, encoding="text").text == "caf"
    assert read(output, 3, stream="stdout", limit_bytes=100, encoding="text").text == ""
    output.append("stdout", b"\xa9")
    assert read(output, 3, stream="stdout", limit_bytes=100, encoding="text").text == "é"


def test_half_a_character_at_the_end_is_counted_among_the_text() -> None:
    output = Output()
    output.append("stdout", b"caf\xc3")
    for stream in ("stdout", "stderr"):
        output.close(stream)
    piece = read(output, 0, stream="combined", limit_bytes=100, encoding="text")
    assert (piece.text, piece.replaced, piece.cursor, piece.eof) == ("caf\ufffd", 1, 4, True)


def test_after_a_loss_text_goes_on_at_a_whole_character_and_the_rest_counts_as_lost() -> None:
    output = Output(4)
    output.append("stdout", "€€".encode())
    piece = read(output, 0, stream="stdout", limit_bytes=100, encoding="text")
    assert (piece.text, piece.retained_from, piece.output_lost) == ("€", 2, 3)


def test_a_flood_on_stdout_leaves_stderr_where_it_was() -> None:
    output = Output(CAPACITY)
    output.append("stderr", b"the reason")
    output.append("stdout", bytes(100 * CAPACITY))
    assert read(output, 0, stream="stderr", limit_bytes=100, encoding="text").text == "the reason"


@pytest.mark.parametrize("block", [b"x", b"y" * 100, b"z" * 30_000], ids=len)
def test_memory_is_bounded_however_it_is_written(block: bytes) -> None:
    ring = Ring(65_536)
    tracemalloc.start()
    try:
        for _ in range(150_000 // len(block)):
            ring.append(bytes(bytearray(block)))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 3 * 65_536 + 20_000


async def test_a_waiter_wakes_for_its_own_stream_only() -> None:
    output = Output()
    async with trio.open_nursery() as nursery:

        async def wait_stderr() -> None:
            await output.wait(0, stream="stderr")
            assert output.totals["stderr"]
            seen.set()

        seen = trio.Event()
        nursery.start_soon(wait_stderr)
        await trio.testing.wait_all_tasks_blocked()
        output.append("stdout", b"not mine")
        await trio.testing.wait_all_tasks_blocked()
        assert not seen.is_set()
        output.append("stderr", b"mine")
        with trio.fail_after(60):
            await seen.wait()


async def test_a_waiter_is_not_woken_by_half_a_character() -> None:
    output = Output()
    output.append("stdout", b"\xf0\x9f")
    with trio.move_on_after(0) as patience:
        await output.wait(0, stream="stdout")
    assert patience.cancelled_caught
    output.append("stdout", b"\x98\x80")
    with trio.fail_after(60):
        await output.wait(0, stream="stdout")


async def test_a_waiter_is_woken_by_the_end() -> None:
    output = Output()
    async with trio.open_nursery() as nursery:
        with trio.fail_after(60):
            nursery.start_soon(lambda: output.wait(10, stream="combined"))
            await trio.testing.wait_all_tasks_blocked()
            output.close("stdout")
            output.close("stderr")


async def test_a_cancelled_waiter_consumes_nothing_and_stops_nobody() -> None:
    output = Output()
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            nursery.start_soon(lambda: output.wait(0, stream="stdout"))
            scope.cancel()
            await output.wait(0, stream="stdout")
        assert scope.cancelled_caught
        output.append("stdout", b"all of it")
    assert (await output.read(0, stream="stdout", limit_bytes=100, encoding="text")).text == "all of it"
