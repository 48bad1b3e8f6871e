"""What a process wrote: the last bytes in memory, absolute cursors, any number of readers.

Readers look and never take, so none can steal from another, and none can slow the writer: what
does not fit any more is dropped from the front and counted. It knows nothing of processes, pipes or
files; a spool behind the ring will be asked for what the ring no longer has.
"""

from __future__ import annotations

import base64
import codecs
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import trio

from codespace import limits
from codespace.contract import Encoding, Stream

STREAMS: Final[tuple[Stream, ...]] = ("combined", "stdout", "stderr")
_BLOCK_BYTES: Final = 8_192
# Smaller writes are gathered in blocks of this size, so that a million one-byte writes are no million objects.
_CHARACTER_BYTES: Final = 4
# The longest UTF-8 character.


@dataclass(frozen=True, slots=True)
class Piece:
    """Output from a cursor on; see contract.Chunk for the fields."""

    text: str
    encoding: Encoding
    cursor: int
    eof: bool
    retained_from: int
    output_lost: int


class Ring:
    """The last `capacity_bytes` of one stream, addressed by absolute offset since its start.

    Exactly the last `capacity_bytes` are retained, however they were written. A large block is kept
    by reference, so a byte that is in two rings is in memory once.
    """

    def __init__(self, capacity_bytes: int = limits.OUTPUT_RING_BYTES) -> None:
        self.total = 0
        """Bytes since the start."""
        self.closed = False
        """Nothing will follow."""
        self._capacity = capacity_bytes
        self._blocks: deque[bytes | bytearray] = deque()
        self._first = 0  # the offset of the first block, at or before `retained_from`

    @property
    def retained_from(self) -> int:
        """The first offset that can still be read."""
        return max(0, self.total - self._capacity)

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
    """The output of one process: stdout, stderr, and both as they arrived."""

    def __init__(self, capacity_bytes: int = limits.OUTPUT_RING_BYTES) -> None:
        self._rings: Mapping[str, Ring] = {stream: Ring(capacity_bytes) for stream in STREAMS}
        self._news = trio.lowlevel.ParkingLot()

    @property
    def totals(self) -> dict[str, int]:
        """Bytes since the start, by stream."""
        return {stream: ring.total for stream, ring in self._rings.items()}

    def append(self, stream: Stream, block: bytes) -> None:
        """Add what arrived on `stdout` or `stderr`."""
        for ring in (self._rings[stream], self._rings["combined"]):
            ring.append(block)
        self._news.unpark_all()

    def close(self, stream: Stream) -> None:
        """Say that nothing will follow on `stdout` or `stderr`; with both, `combined` ends too."""
        self._rings[stream].closed = True
        self._rings["combined"].closed = self._rings["stdout"].closed and self._rings["stderr"].closed
        self._news.unpark_all()

    def is_closed(self, stream: Stream) -> bool:
        """Return whether nothing will follow on `stream`."""
        return self._rings[stream].closed

    async def wait_closed(self) -> None:
        """Return once both streams have ended."""
        while not self.is_closed("combined"):
            await self._news.park()

    def read(self, cursor: int, *, stream: Stream, limit_bytes: int, encoding: Encoding) -> Piece:
        """Return output from byte `cursor` on; empty if there is none yet.

        Args:
            cursor: Absolute byte offset in `stream`; 0 is its start. One behind the end reads as the end.
            limit_bytes: Most bytes to return; as text less than 4 counts as 4, the longest character.
            encoding: `text` gives whole UTF-8 characters and holds back one that is not complete yet.
                Bytes that are not UTF-8 come as base64, and the piece says so.
        Returns: Piece. `output_lost` counts the bytes between `cursor` and the first byte of the piece:
            what was dropped and, as text, the rest of a character whose start was dropped.
        """
        ring = self._rings[stream]
        wanted = max(0, cursor)
        start = min(max(wanted, ring.retained_from), ring.total)
        stop = min(ring.total, start + max(limit_bytes, _CHARACTER_BYTES if encoding == "text" else 1))
        block = ring.slice(start, stop)
        if encoding == "text":
            torn = _torn_front(block) if start > wanted else 0
            text, used = _characters(block[torn:], final=ring.closed and stop == ring.total)
            if text is not None:
                return self._piece(ring, text, "text", start + torn, used, wanted)
        return self._piece(ring, base64.b64encode(block).decode("ascii"), "base64", start, len(block), wanted)

    @staticmethod
    def _piece(ring: Ring, text: str, encoding: Encoding, start: int, used: int, wanted: int) -> Piece:
        end = start + used
        eof = ring.closed and end == ring.total
        return Piece(text, encoding, end, eof, ring.retained_from, max(0, start - wanted))

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
        if ring.closed or behind >= _CHARACTER_BYTES:
            return True
        return behind > 0 and _characters(ring.slice(ring.total - behind, ring.total), final=False)[1] > 0


def _characters(block: bytes, *, final: bool) -> tuple[str | None, int]:
    """Return the whole characters at the front and their bytes; None and all where it is not UTF-8.

    An incomplete last character is left out. With `final` nothing can complete it: it is given as
    bytes, but only once it stands alone, so that the text before it still comes as text.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        text = decoder.decode(block)
    except UnicodeDecodeError:
        return None, len(block)
    used = len(block) - len(decoder.getstate()[0])
    return (None, len(block)) if final and block and not used else (text, used)


def _torn_front(block: bytes) -> int:
    """Return how many bytes at the front continue a character that began before it."""
    torn = 0
    while torn < min(len(block), _CHARACTER_BYTES - 1) and block[torn] & 0xC0 == 0x80:
        torn += 1
    return torn
