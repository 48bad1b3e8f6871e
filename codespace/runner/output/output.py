"""What a process wrote: the last bytes in memory, more behind them on disk, absolute cursors, any number of readers.

Readers look and never take, so none can steal from another, and none can slow the writer: what is
over the limits is given up and counted. It knows nothing of processes or pipes, and writes nothing
itself: what arrives waits here until its spool has taken it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Final

import trio

from codespace import limits
from codespace.contract import Encoding, Stream
from codespace.runner.output.backlog import Backlog
from codespace.runner.output.pieces import CHARACTER_BYTES, Piece, characters, cut, limit_of, span
from codespace.runner.output.segment import INDEX, Offsets
from codespace.runner.output.spool import Block, Spool

_BLOCK_BYTES: Final = 8_192
# Smaller writes are gathered in blocks of this size, so that a million one-byte writes are no million objects.
_reading = trio.CapacityLimiter(limits.SPOOL_THREADS)


class Ring:
    """The last `capacity_bytes` of one stream, addressed by absolute offset since its start.

    Exactly the last `capacity_bytes` are retained, however they were written, and what is behind
    `unspooled` before them. A large block is kept by reference, so a byte that is in two rings is in
    memory once.
    """

    def __init__(self, capacity_bytes: int = limits.OUTPUT_RING_BYTES) -> None:
        self.total = 0
        """Bytes since the start."""
        self.closed = False
        """Nothing will follow."""
        self.unspooled: int | None = None
        """Where the spool ends: nothing behind it is dropped. None: there is no spool to wait for."""
        self._capacity = capacity_bytes
        self._blocks: deque[bytes | bytearray] = deque()
        self._first = 0  # the offset of the first block, at or before `retained_from`

    @property
    def retained_from(self) -> int:
        """The first offset that can still be read."""
        first = max(0, self.total - self._capacity)
        return first if self.unspooled is None else min(first, self.unspooled)

    def append(self, block: bytes) -> None:
        """Add `block`; drop from the front what no longer fits."""
        last = self._blocks[-1] if self._blocks else None
        if len(block) >= _BLOCK_BYTES:
            self._blocks.append(block)
        elif isinstance(last, bytearray) and len(last) < _BLOCK_BYTES:
            last += block
        else:
            self._blocks.append(bytearray(block))
        self.total += len(block)
        self.trim()

    def trim(self) -> None:
        """Drop from the front what is not retained any more."""
        while self._blocks and self._first + len(self._blocks[0]) <= self.retained_from:
            self._first += len(self._blocks.popleft())

    def slice(self, start: int, stop: int) -> bytes:
        """Return the bytes from `start` to `stop`; both lie between retained_from and total."""
        return b"".join(self._parts(start, stop))

    def _parts(self, start: int, stop: int) -> Iterator[bytes]:
        at = self._first
        for block in self._blocks:
            if at >= stop:
                return
            if at + len(block) > start:
                yield bytes(block[max(0, start - at) : stop - at])
            at += len(block)


class Output:
    """The output of one process: stdout, stderr, and both as they arrived.

    Attributes:
        spool: Where `take` is written to, and older output is read from; None where there is none.
    """

    def __init__(self, capacity_bytes: int = limits.OUTPUT_RING_BYTES, spool: Spool | None = None) -> None:
        self.spool = spool
        self._rings: Mapping[Stream, Ring] = {stream: Ring(capacity_bytes) for stream in INDEX}
        self._news = trio.lowlevel.ParkingLot()  # readers; woken by every write
        self._work = trio.lowlevel.ParkingLot()  # the spool; woken by the first write after it had all
        self._room = trio.lowlevel.ParkingLot()  # the writer
        self._ends = trio.lowlevel.ParkingLot()  # who waits for the end
        self._backlog = None if spool is None else Backlog()
        if self._backlog is not None:
            self._mark(self._backlog.starts)

    @property
    def totals(self) -> dict[str, int]:
        """Bytes since the start, by stream."""
        return {stream: ring.total for stream, ring in self._rings.items()}

    def tail(self, limit_bytes: int) -> bytes:
        """Return the end of what came, as far as it is in memory."""
        ring = self._rings["combined"]
        return ring.slice(max(ring.retained_from, ring.total - limit_bytes), ring.total)

    def append(self, stream: Stream, block: bytes) -> None:
        """Add what arrived on `stdout` or `stderr`."""
        if self._backlog is not None and self.spool is not None:
            self._add_to_backlog(self._backlog, self.spool, INDEX[stream], block)
        for ring in (self._rings[stream], self._rings["combined"]):
            ring.append(block)
        self._news.unpark_all()

    def close(self, stream: Stream) -> None:
        """Say that nothing will follow on `stdout` or `stderr`; with both, `combined` ends too."""
        self._rings[stream].closed = True
        self._rings["combined"].closed = self._rings["stdout"].closed and self._rings["stderr"].closed
        for waiting in (self._news, self._work, self._ends):
            waiting.unpark_all()

    def is_closed(self, stream: Stream) -> bool:
        """Return whether nothing will follow on `stream`."""
        return self._rings[stream].closed

    async def wait_closed(self) -> None:
        """Return once both streams have ended."""
        while not self.is_closed("combined"):
            await self._ends.park()

    # --- the spool ---

    def _add_to_backlog(self, backlog: Backlog, spool: Spool, index: int, block: bytes) -> None:
        starts = backlog.starts
        if not backlog.size_bytes:
            self._work.unpark_all()
        backlog.add(index, block, may_drop=spool.is_past_head)
        if backlog.starts is not starts:
            self._mark(backlog.starts)

    async def wait_pending(self) -> bool:
        """Return once something waits for the spool; False once nothing does and nothing will."""
        while (backlog := self._backlog) is not None:
            if backlog.dropped and not self.is_closed("combined"):
                backlog.dropped = False  # a flood: nothing is written before it calms, as nothing of it would stay
                with trio.move_on_after(limits.SPOOL_CALM_SECONDS):
                    await self.wait_closed()
            elif backlog.size_bytes or self.is_closed("combined"):
                return backlog.size_bytes > 0
            else:
                await self._work.park()
        return False

    async def wait_room(self) -> None:
        """Return once not too much waits for the spool, so that a flood stays on its side of the pipe."""
        while self._backlog is not None and self._backlog.is_full:
            await self._room.park()

    def take(self) -> tuple[Offsets, list[Block]]:
        """Return what waits, and where it starts; it stays readable until `spooled` says that the spool has it."""
        assert self._backlog is not None
        return self._backlog.take()

    def spooled(self) -> None:
        """Say that the spool has all that was taken last.

        What was dropped meanwhile lies behind that, and is in memory no more: the spool's own end would say that it is.
        """
        if self._backlog is not None:
            self._mark(self._backlog.starts)
        self._room.unpark_all()

    def stop_spooling(self) -> None:
        """Wait for the spool no more: from now on only the last bytes are kept."""
        self._backlog = None
        self._mark((None, None, None))
        self._work.unpark_all()
        self._room.unpark_all()

    def _mark(self, written: Offsets | tuple[None, None, None]) -> None:
        for stream, ring in self._rings.items():
            ring.unspooled = written[INDEX[stream]]
            ring.trim()

    # --- readers ---

    async def read(self, cursor: int, *, stream: Stream, limit_bytes: int, encoding: Encoding) -> Piece:
        """Return output from byte `cursor` on; empty if there is none yet.

        Args:
            cursor: Absolute byte offset in `stream`; 0 is its start. One behind the end reads as the end.
            limit_bytes: Most bytes to return; as text less than 4 counts as 4, the longest character.
            encoding: `text` gives whole UTF-8 characters and holds back one that is not complete yet. Bytes that
                are not UTF-8 come as U+FFFD and are counted; where they are many it is base64, and the piece says so.
        Returns: Piece. `output_lost` counts the bytes between `cursor` and the first byte of the piece:
            what was given up and, as text, the rest of a character whose start was given up.
        Cancel: nothing is consumed.
        """
        wanted, ring = max(0, cursor), self._rings[stream]
        await trio.lowlevel.checkpoint()
        for _ in range(limits.SPOOL_READ_TRIES):
            where = span(self._ranges(stream), wanted)
            stop = min(where.stop, where.start + limit_of(limit_bytes, encoding))
            closed = ring.closed
            block = await self._block(stream, where.start, stop)
            if block or where.start == where.stop:
                break  # else it was given up while we read
        else:  # the disk does not give it: a reader who was sent there again and again would never come further
            where = span([(ring.retained_from, ring.total)], wanted)
            block = ring.slice(where.start, min(where.stop, where.start + limit_of(limit_bytes, encoding)))
        return cut(block, where, wanted, encoding=encoding, closed=closed)

    def _ranges(self, stream: Stream) -> list[tuple[int, int]]:
        ring = self._rings[stream]
        on_disk = [] if self.spool is None else self.spool.kept.ranges(INDEX[stream])
        return [*((start, min(stop, ring.total)) for start, stop in on_disk), (ring.retained_from, ring.total)]

    async def _block(self, stream: Stream, start: int, stop: int) -> bytes:
        """Return what is kept between `start` and `stop`: from memory where it is, else from disk, or both."""
        ring, found = self._rings[stream], b""
        while start + len(found) < stop:
            at = start + len(found)
            if at >= ring.retained_from:
                return found + ring.slice(at, stop)
            assert self.spool is not None  # nothing else keeps what the ring does not
            part = await trio.to_thread.run_sync(
                self.spool.kept.read, INDEX[stream], at, stop - at, limiter=_reading, abandon_on_cancel=True
            )
            if not part:
                break
            found += part
        return found

    async def wait(self, cursor: int, *, stream: Stream) -> None:
        """Return once a whole character lies behind `cursor`, or the stream has ended.

        Cancel: nothing is consumed; ask again with the same cursor.
        """
        while not self._readable(cursor, stream):
            await self._news.park()
        await trio.lowlevel.checkpoint_if_cancelled()

    def _readable(self, cursor: int, stream: Stream) -> bool:
        ring = self._rings[stream]
        behind = ring.total - max(cursor, ring.retained_from)
        if ring.closed or behind >= CHARACTER_BYTES:
            return True
        return behind > 0 and characters(ring.slice(ring.total - behind, ring.total), final=False)[1] > 0
