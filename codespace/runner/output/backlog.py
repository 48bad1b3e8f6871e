"""Output that waits in memory to be written to its spool, within a bound.

While the head is written the process has to wait where the disk is slower than it. Behind the head only
the latest output is worth writing: a flood then drops the oldest that waits, and is not written at all
until it calms, so that it runs at its own speed.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from codespace import limits
from codespace.runner.output.segment import START, Offsets, ahead
from codespace.runner.output.spool import Block

_GATHERED_BYTES: Final = 8_192
# Smaller writes are gathered, so that a million one-byte writes are no million frames.


class Backlog:
    """What waits.

    Attributes:
        starts: The offsets of its first byte.
        size_bytes: How much waits.
        dropped: Something was dropped since this was last set to False.
    """

    def __init__(self) -> None:
        self.starts = START
        self.size_bytes = 0
        self.dropped = False
        self._blocks: deque[Block] = deque()

    def add(self, index: int, block: bytes, *, may_drop: bool) -> None:
        """Add bytes of stdout (1) or stderr (2); with `may_drop` the oldest go where it is too much."""
        last_index, last = self._blocks[-1] if self._blocks else (0, b"")
        if last_index == index and isinstance(last, bytearray) and len(last) + len(block) <= limits.PIPE_READ_BYTES:
            last += block
        else:
            self._blocks.append((index, bytearray(block) if len(block) < _GATHERED_BYTES else block))
        self.size_bytes += len(block)
        if may_drop and self.size_bytes > limits.SPOOL_FLOOD_BYTES:
            self._drop()

    @property
    def is_full(self) -> bool:
        """Whether as much waits as may."""
        return self.size_bytes > limits.SPOOL_PENDING_BYTES

    def take(self) -> tuple[Offsets, list[Block]]:
        """Return where it starts, and all of it; nothing waits afterwards."""
        starts, blocks = self.starts, list(self._blocks)
        for index, block in blocks:
            self._step(index, len(block))
        self._blocks.clear()
        return starts, blocks

    def _drop(self) -> None:
        while self.size_bytes > limits.SPOOL_FLOOD_BYTES // 2:
            index, block = self._blocks.popleft()
            self._step(index, len(block))
        self.dropped = True

    def _step(self, index: int, length: int) -> None:
        self.starts = ahead(self.starts, index, length)
        self.size_bytes -= length
