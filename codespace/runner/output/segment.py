"""One file of a spool: what a process wrote, in the order it arrived, as frames behind a header.

Header: a mark, and the offsets (combined, stdout, stderr) of what follows. Frame: stream, length, bytes.
A file that was cut off anywhere, by a full disk or a killed daemon, is read up to where it was cut; also one that
becomes shorter meanwhile, for which it is never mapped into memory: a look behind the new end would kill the reader.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from codespace.contract import Stream

Offsets = tuple[int, int, int]
"""Bytes since the start of combined, stdout and stderr."""

INDEX: Final[dict[Stream, int]] = {"combined": 0, "stdout": 1, "stderr": 2}
START: Final[Offsets] = (0, 0, 0)

_MARK: Final = b"CSSPOOL1"
_HEADER: Final = struct.Struct(">8sQQQ")
_FRAME: Final = struct.Struct(">BI")
HEADER_BYTES: Final = _HEADER.size
FRAME_BYTES: Final = _FRAME.size
_BLOCK_BYTES: Final = 16_384
# Read for a frame's header: it holds those of many small frames, and is quickly read for that of a large one.


def header(starts: Offsets) -> bytes:
    """Return the first bytes of a segment that begins at `starts`."""
    return _HEADER.pack(_MARK, *starts)


def frame(index: int, length: int) -> bytes:
    """Return what goes before `length` bytes of stdout (1) or stderr (2)."""
    return _FRAME.pack(index, length)


def ahead(offsets: Offsets, index: int, length: int) -> Offsets:
    """Return the offsets behind `length` bytes of stdout (1) or stderr (2)."""
    combined, stdout, stderr = offsets
    return (combined + length, stdout + length * (index == 1), stderr + length * (index == 2))


class Segment:
    """An existing segment, open for reading."""

    def __init__(self, descriptor: int, size: int) -> None:
        """Raises: OSError, ValueError where it is none."""
        content = os.pread(descriptor, HEADER_BYTES, 0)
        mark, *starts = _HEADER.unpack(content) if len(content) == HEADER_BYTES else (b"",)
        if mark != _MARK:
            raise ValueError("not a segment of a spool")
        self.starts: Offsets = (starts[0], starts[1], starts[2])
        self._descriptor = descriptor
        self._size = size

    def _frames(self) -> Iterator[tuple[int, int, int]]:
        """Give stream, position and length of each frame; the last one may be shorter than it says."""
        at, size = HEADER_BYTES, self._size
        block, begin, last = b"", 0, 0
        while at + FRAME_BYTES < size:
            if at > last:
                block, begin = os.pread(self._descriptor, _BLOCK_BYTES, at), at
                last = at + len(block) - FRAME_BYTES  # where a header may begin that is wholly in the block
                if at > last:
                    return  # it was cut off meanwhile
            index, length = _FRAME.unpack_from(block, at - begin)
            at += FRAME_BYTES
            yield index, at, min(length, size - at)
            at += length

    def ends(self) -> Offsets:
        """Return the offsets behind its last byte."""
        offsets = self.starts
        for index, _, length in self._frames():
            offsets = ahead(offsets, index, length)
        return offsets

    def read(self, wanted: int, offset: int, limit_bytes: int) -> bytes:
        """Return up to `limit_bytes` of one stream from `offset` on; fewer where the segment ends."""
        parts = []
        begin = self.starts[wanted]
        for index, at, length in self._frames():
            if wanted not in (0, index):
                continue
            skipped = max(0, offset - begin)
            if skipped < length and limit_bytes > 0:
                wanted_bytes = min(length - skipped, limit_bytes)
                part = os.pread(self._descriptor, wanted_bytes, at + skipped)
                parts.append(part)
                limit_bytes -= len(part)
                if len(part) < wanted_bytes:
                    break  # it was cut off meanwhile
            elif limit_bytes <= 0:
                break
            begin += length
        return b"".join(parts)


@contextmanager
def opened(path: str) -> Iterator[Segment]:
    """Lend a segment. Raises: OSError, ValueError where it is none."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("not a regular file")
        yield Segment(descriptor, status.st_size)
    finally:
        os.close(descriptor)
