"""Ring and spool together: exactly the bytes, or an exact count of what was lost; and what a disk can do to it."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path
from typing import get_args

import hypothesis.strategies as st
import pytest
import trio
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from codespace import limits
from codespace.contract import Encoding, Stream
from codespace.runner.output import kept
from codespace.runner.output.output import Output
from codespace.runner.output.pieces import Piece
from codespace.runner.output.segment import FRAME_BYTES, HEADER_BYTES, INDEX, Offsets, opened
from codespace.runner.output.spool import Block, Spool
from codespace.runner.output.spooling import keep
from codespace.runner.output.spools import Spools

from .test_output import bytes_of

RING = 64
FLOOD = 200
SEGMENT = HEADER_BYTES + 2 * FRAME_BYTES + 40
streams = st.sampled_from(get_args(Stream))
sources = st.sampled_from(("stdout", "stderr"))
encodings = st.sampled_from(get_args(Encoding))
blocks = st.one_of(
    st.binary(min_size=1, max_size=3 * RING),
    st.text(min_size=1, max_size=40).map(str.encode),
    st.sampled_from([b"\xe2", b"\x82", b"\xac", "€😀".encode() * 9]),
    st.integers(8_192, 8_300).map(lambda size: ("é" * size).encode()[:size]),
)


class Shelf:
    """The limit of all spools, as tests want it."""

    def __init__(self) -> None:
        self.used = 0
        self.most = 10**9

    def take(self, size: int) -> bool:
        if self.used + size > self.most:
            return False
        self.used += size
        return True

    def give(self, size: int) -> None:
        self.used -= size


class Cursors(RuleBasedStateMachine):
    """Any interleaving of writes, spooling, reads, a full disk and a removal, against plain byte strings."""

    @initialize(segments_bytes=st.sampled_from([SEGMENT, 3 * SEGMENT]))
    def begin(self, segments_bytes: int) -> None:
        self.flood, limits.SPOOL_FLOOD_BYTES = limits.SPOOL_FLOOD_BYTES, FLOOD  # type: ignore[misc]
        self.above = tempfile.mkdtemp()
        self.shelf = Shelf()
        self.spool = Spool(os.path.join(self.above, "spool"), 16 * segments_bytes, self.shelf.take, self.shelf.give)
        self.output = Output(RING, self.spool)
        self.written: dict[Stream, bytes] = dict.fromkeys(get_args(Stream), b"")
        self.closed: set[Stream] = set()
        self.cursors: dict[tuple[Stream, Encoding], int] = {}
        self.retained: dict[Stream, int] = dict.fromkeys(get_args(Stream), 0)
        self.taken: tuple[Offsets, list[Block]] | None = None  # on its way to the disk, in a thread

    def teardown(self) -> None:
        if hasattr(self, "above"):
            limits.SPOOL_FLOOD_BYTES = self.flood  # type: ignore[misc]
            self.spool.close()
            shutil.rmtree(self.above)

    @rule(stream=sources, block=blocks)
    def write(self, stream: Stream, block: bytes) -> None:
        if stream not in self.closed:
            self.output.append(stream, block)
            self.written[stream] += block
            self.written["combined"] += block

    @rule()
    def take_what_waits(self) -> None:
        backlog = self.output._backlog
        if self.taken is None and backlog is not None and backlog.size_bytes:
            self.taken = self.output.take()

    @rule()
    def spool_what_was_taken(self) -> None:
        self.take_what_waits()
        if self.taken is None:
            return
        taken, self.taken = self.taken, None
        if self.spool.write(*taken):
            self.output.spooled()
        else:
            assert self.spool.failure is not None
            self.output.stop_spooling()

    @rule(stream=sources)
    def close(self, stream: Stream) -> None:
        self.output.close(stream)
        self.closed |= {stream}
        if {"stdout", "stderr"} <= self.closed:
            self.closed.add("combined")

    @rule(room=st.integers(0, 300))
    def all_spools_are_nearly_full(self, room: int) -> None:
        self.shelf.most = self.shelf.used + room

    @rule()
    def room_is_needed_for_others(self) -> None:
        if "combined" in self.closed and not self.output_waits():
            self.spool.remove()

    def output_waits(self) -> bool:
        backlog = self.output._backlog
        return self.taken is not None or (backlog is not None and backlog.size_bytes > 0)

    @rule(stream=streams, encoding=encodings, limit=st.integers(1, 3 * RING))
    def read_on(self, stream: Stream, encoding: Encoding, limit: int) -> None:
        piece = self.read(stream, self.cursors.get((stream, encoding), 0), encoding, limit)
        self.cursors[stream, encoding] = piece.cursor

    @rule(stream=streams, encoding=encodings, cursor=st.integers(-5, 20_000), limit=st.integers(1, 20_000))
    def read_anywhere(self, stream: Stream, encoding: Encoding, cursor: int, limit: int) -> None:
        self.read(stream, cursor, encoding, limit)

    def read(self, stream: Stream, cursor: int, encoding: Encoding, limit: int) -> Piece:
        whole = self.written[stream]
        piece = trio.run(lambda: self.output.read(cursor, stream=stream, limit_bytes=limit, encoding=encoding))
        block = bytes_of(piece, whole, cursor)
        start, wanted = piece.cursor - len(block), min(max(cursor, 0), len(whole))
        assert len(block) <= (max(limit, 4) if encoding == "text" else limit)
        assert piece.output_lost == max(0, start - max(cursor, 0))
        assert piece.eof == (stream in self.closed and piece.cursor == len(whole))
        # What is said to be kept is given, and only what is not said to be is lost.
        assert piece.retained_from >= self.retained[stream]
        self.retained[stream] = piece.retained_from
        assert piece.retained_from <= max(0, len(whole) - RING)
        assert piece.retained_head < piece.retained_from or piece.retained_head == 0
        if wanted >= piece.retained_from or wanted < piece.retained_head:
            assert start == wanted
        else:
            assert wanted <= start < piece.retained_from + 4  # before it: what a flood will soon have given up
        if not block and start == wanted < len(whole):
            assert encoding == "text"
            assert stream not in self.closed
            assert len(whole) - wanted < 4
        return piece

    @invariant()
    def any_other_daemon_sees_the_same_on_disk(self) -> None:
        if hasattr(self, "spool"):
            for index in INDEX.values():
                assert kept.look(self.spool.folder).ranges(index) == self.spool.kept.ranges(index)

    @invariant()
    def the_disk_holds_no_more_than_the_limit_and_what_was_counted(self) -> None:
        if hasattr(self, "spool"):
            folder = Path(self.spool.folder)
            size = sum(path.stat().st_size for path in folder.iterdir()) if folder.exists() else 0
            assert size <= self.spool.size_bytes == self.shelf.used
            assert size <= 16 * self.spool._segment_bytes


TestCursors = Cursors.TestCase
# It writes files: how long a step takes says something about the machine, and nothing about the spool.
TestCursors.settings = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


# --- on a loop, in threads ---


async def spooled(output: Output, spool: Spool, *writes: tuple[Stream, bytes]) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep, output, spool)
        for stream, block in writes:
            output.append(stream, block)
            await trio.lowlevel.checkpoint()
        output.close("stdout")
        output.close("stderr")
    spool.close()


@pytest.fixture
def spools(tmp_path: Path) -> Spools:
    return Spools(str(tmp_path), spool_bytes=1_000_000, process_spool_bytes=400_000)


async def test_what_the_ring_cannot_hold_is_read_from_disk_and_all_of_it_in_order(spools: Spools) -> None:
    spool = spools.open("proc-1")
    assert spool is not None
    output = Output(1_000, spool)
    whole = b"".join(b"%d\n" % number for number in range(50_000))
    await spooled(output, spool, *(("stdout", whole[at : at + 777]) for at in range(0, len(whole), 777)))
    got, cursor = b"", 0
    while not (piece := await output.read(cursor, stream="stdout", limit_bytes=65_536, encoding="text")).eof:
        got, cursor = got + piece.text.encode(), piece.cursor
    assert got + piece.text.encode() == whole
    assert piece.retained_from == piece.output_lost == 0
    spools.close()


async def test_a_reader_of_what_went_from_the_disk_is_told_how_much_is_lost_and_comes_to_the_end(
    spools: Spools,
) -> None:
    spool = spools.open("proc-1")
    assert spool is not None
    output = Output(1_000, spool)
    whole = b"".join(b"%d\n" % number for number in range(5_000))
    await spooled(output, spool, ("stdout", whole))
    shutil.rmtree(spool.folder)
    piece = await output.read(0, stream="stdout", limit_bytes=65_536, encoding="text")
    assert piece.text.encode() == whole[-1_000:]
    assert (piece.output_lost, piece.cursor, piece.eof) == (len(whole) - 1_000, len(whole), True)
    spools.close()


async def test_head_and_tail_of_a_lost_middle_are_kept(spools: Spools) -> None:
    spool = spools.open("proc-1")
    assert spool is not None
    output = Output(1_000, spool)
    whole = b"".join(b"%09d\n" % number for number in range(100_000))
    # In blocks that are large beside what frames them on disk, however many the writer finds at once.
    await spooled(output, spool, *(("stdout", whole[at : at + 777]) for at in range(0, len(whole), 777)))
    head = await output.read(0, stream="stdout", limit_bytes=65_536, encoding="text")
    assert head.text.startswith("000000000\n")
    assert 20_000 < head.retained_head <= 25_000
    behind = await output.read(head.retained_head, stream="stdout", limit_bytes=65_536, encoding="text")
    assert behind.output_lost == behind.retained_from - head.retained_head > 0
    assert 330_000 < 1_000_000 - behind.retained_from <= 375_000
    spools.close()


async def test_what_a_flood_drops_during_a_write_is_said_to_be_lost_and_nothing_else_stands_in_its_place(
    spools: Spools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SPOOL_FLOOD_BYTES", 40_000)
    spool = spools.open("proc-1")
    assert spool is not None
    output = Output(1_000, spool)
    whole = b"".join(b"%09d\n" % number for number in range(20_000))
    output.append("stdout", whole[:60_000])  # past the head
    assert spool.write(*output.take())
    output.spooled()
    output.append("stdout", whole[60_000:70_000])
    on_its_way = output.take()
    for at in range(70_000, 200_000, 1_000):
        output.append("stdout", whole[at : at + 1_000])
    assert spool.write(*on_its_way)
    output.spooled()
    piece = await output.read(70_000, stream="stdout", limit_bytes=1_000, encoding="text")
    assert piece.output_lost == piece.retained_from - 70_000 > 0
    assert piece.text.encode() == whole[piece.retained_from : piece.retained_from + 1_000]
    spool.close()
    spools.close()


async def test_a_full_disk_costs_the_spool_and_not_the_output(spools: Spools, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = spools.open("proc-1")
    assert spool is not None
    output = Output(1_000, spool)
    await spooled(output, spool, ("stdout", b"before\n"))
    full = Output(1_000, other := spools.open("proc-2"))
    assert other is not None

    def writev(descriptor: int, blocks: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "writev", writev)
    await spooled(full, other, ("stdout", b"x" * 5_000), ("stderr", b"the reason"))
    assert other.failure == "the disk is full"
    assert (await full.read(0, stream="stderr", limit_bytes=100, encoding="text")).text == "the reason"
    piece = await full.read(0, stream="stdout", limit_bytes=65_536, encoding="text")
    assert (piece.output_lost, len(piece.text)) == (4_000, 1_000)
    assert (await output.read(0, stream="stdout", limit_bytes=100, encoding="text")).text == "before\n"
    spools.close()


async def test_a_disk_that_hangs_holds_up_nobody(spools: Spools, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = spools.open("proc-1")
    assert spool is not None
    output = Output(1_000, spool)
    reading, writing = os.pipe()
    monkeypatch.setattr(limits, "SPOOL_STALL_SECONDS", 0.1)
    monkeypatch.setattr(os, "writev", lambda descriptor, blocks: os.read(reading, 1) and 0)
    with trio.fail_after(60):
        await spooled(output, spool, ("stdout", b"x" * 5_000))
    assert "did not take it" in str(spool.failure)
    assert (await output.read(0, stream="stdout", limit_bytes=65_536, encoding="text")).output_lost == 4_000
    os.close(writing)  # the disk comes back: the thread ends and lets go of its file
    with trio.fail_after(60):
        await trio.to_thread.run_sync(spool._busy.acquire)
    os.close(reading)
    spools.close()


# --- all spools ---


def fill(spools: Spools, process_id: str, size: int) -> Spool:
    spool = spools.open(process_id)
    assert spool is not None
    spool.write((0, 0, 0), [(1, bytes(size))])
    return spool


def test_the_one_that_ended_first_makes_room_and_a_living_one_never_does(tmp_path: Path) -> None:
    spools = Spools(str(tmp_path), spool_bytes=100_000, process_spool_bytes=60_000)
    first, second = fill(spools, "proc-1", 40_000), fill(spools, "proc-2", 40_000)
    spools.end("proc-1")
    third = fill(spools, "proc-3", 40_000)
    assert not first.kept.runs
    assert third.failure is None
    fourth = fill(spools, "proc-4", 40_000)
    assert "spool_bytes" in str(fourth.failure)
    assert second.kept.ranges(0) == [(0, 40_000)]
    spools.close()


def test_there_are_never_more_spools_than_may_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SPOOLS_KEPT", 3)
    spools = Spools(str(tmp_path))
    for number in range(10):
        spool = fill(spools, f"proc-{number}", 10)
        spools.end(f"proc-{number}")
        spool.close()
    assert len(list(tmp_path.rglob("*.spool"))) <= 4
    spools.close()


def test_what_a_dead_daemon_left_is_kept_for_its_retention_and_counted(tmp_path: Path) -> None:
    now = [1e10]
    dead = Spools(str(tmp_path), wall_clock=lambda: now[0])
    left = fill(dead, "proc-1", 40_000)
    folder = left.folder
    fill(dead, "proc-2", 10).remove()
    dead.close()
    for path in Path(folder).iterdir():
        os.utime(path, (1e10, 1e10))
    spools = Spools(
        str(tmp_path), spool_bytes=50_000, process_spool_bytes=50_000, retention_seconds=60, wall_clock=lambda: now[0]
    )
    spools.sweep()
    assert kept.look(folder).read(0, 39_990, 100) == bytes(10)
    now[0] += 61
    spools.sweep()
    assert not os.path.exists(os.path.dirname(folder))
    last = fill(spools, "proc-3", 45_000)
    assert last.failure is None
    spools.close()


def test_a_living_daemon_s_spools_are_left_alone_by_others(tmp_path: Path) -> None:
    living = Spools(str(tmp_path))
    spool = fill(living, "proc-1", 1_000)
    folder = spool.folder
    other = Spools(str(tmp_path), retention_seconds=0.0, wall_clock=lambda: 1e12)
    other.sweep()
    assert kept.look(folder).ranges(1) == [(0, 1_000)]
    for spools in (living, other):
        spools.close()


def test_a_spool_is_private_and_nothing_is_made_before_there_is_output(tmp_path: Path) -> None:
    spools = Spools(str(tmp_path))
    spool = spools.open("proc-1")
    assert spool is not None
    assert not os.path.exists(spool.folder)
    spool.write((0, 0, 0), [(1, b"secret")])
    modes = [os.stat(path).st_mode & 0o777 for path in (spool.folder, kept.segment_path(spool.folder, 0))]
    assert modes == [0o700, 0o600]
    spools.close()


def test_no_spool_is_kept_where_the_operator_wants_none(tmp_path: Path) -> None:
    spools = Spools(str(tmp_path), process_spool_bytes=0)
    assert spools.open("proc-1") is None
    spools.close()


@pytest.mark.parametrize("cut", [0, 5, HEADER_BYTES, HEADER_BYTES + 3, HEADER_BYTES + FRAME_BYTES + 7])
def test_a_segment_that_was_cut_off_is_read_up_to_there(tmp_path: Path, cut: int) -> None:
    spools = Spools(str(tmp_path))
    spool = fill(spools, "proc-1", 100)
    os.truncate(kept.segment_path(spool.folder, 0), cut)
    there = max(0, cut - HEADER_BYTES - FRAME_BYTES)
    assert kept.look(spool.folder).read(0, 0, 1_000) == bytes(there)
    spools.close()


@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
def test_what_is_no_segment_is_passed_over(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "00000000.spool"
    if kind == "link":
        path.symlink_to("/etc/passwd")
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    assert kept.look(str(tmp_path)).runs == ()


def test_a_segment_that_is_cut_off_while_it_is_read_is_read_up_to_there(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path / "spool"), 1_000_000, lambda size: True, lambda size: None)
    assert spool.write((0, 0, 0), [(1, bytes(30_000)), (2, bytes(30_000))])
    spool.close()
    (path,) = (tmp_path / "spool").iterdir()
    with opened(str(path)) as segment:
        os.truncate(path, HEADER_BYTES + FRAME_BYTES + 10_000)  # as its writer does where the disk is full
        assert segment.read(INDEX["combined"], 0, 60_000) == bytes(10_000)
        assert segment.ends() == (30_000, 30_000, 0)  # by its header; a later look sees the new end
    assert kept.look(str(tmp_path / "spool")).runs[0].ends == (10_000, 10_000, 0)
