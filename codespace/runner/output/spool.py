"""The spool of one process: its output on disk, within a limit; a lost middle leaves head and tail.

The first sixteenth of the limit keeps the head. Behind it the oldest segment of the rest makes room for the
next one. It blocks: one thread at a time calls `write`. A spool that fails keeps what it has, says
why, and takes no more; the process goes on with what is in memory.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from typing import Final

from codespace import limits
from codespace.runner.output.kept import Kept, Part, Run, segment_path
from codespace.runner.output.segment import FRAME_BYTES, HEADER_BYTES, START, Offsets, ahead, frame, header

Block = tuple[int, bytes | bytearray]
"""Bytes of stdout (1) or stderr (2)."""

_VECTORS: Final = 512  # well below IOV_MAX
_WHY: Final = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the account's share of the disk is used up",
    errno.EMFILE: "the daemon has as many files open as it may have",
}


class SpoolFull(OSError):
    """All spools together may take no more."""


class Spool:
    """One process's output on disk.

    Args:
        folder: Made when there is something to write.
        limit_bytes: Most bytes on disk, headers included.
        take: Asks for so many bytes of all spools' share; False where there are none.
        give: Gives bytes back.
    Attributes:
        kept: What can be read now; replaced, never changed, so that any thread may look at it.
        failure: Why it takes no more; None while it does.
    """

    def __init__(self, folder: str, limit_bytes: int, take: Callable[[int], bool], give: Callable[[int], None]) -> None:
        self.folder = folder
        self.kept = Kept()
        self.failure: str | None = None
        self.size_bytes = 0
        self._segment_bytes = max(limit_bytes // limits.SPOOL_SEGMENTS, HEADER_BYTES + FRAME_BYTES + 1)
        self._head: list[Part] = []
        self._tail: list[Part] = []
        self._head_ends: Offsets | None = None  # once something behind the head was given up
        self._ends = START
        self._take = take
        self._give = give
        self._descriptor: int | None = None
        self._used = 0
        self._next = 0
        self._busy = threading.Lock()
        self._closed = False
        self._is_gone = False

    @property
    def is_past_head(self) -> bool:
        """Whether the head is full: what is written from now on may be given up again."""
        return bool(self._tail)

    def write(self, starts: Offsets, blocks: Sequence[Block]) -> bool:
        """Append `blocks`, which begin at `starts`; what lies between the tail and them is lost, and the tail too.

        Returns: False where they were not all kept; `failure` says why.
        """
        with self._busy:
            if self._closed or self.failure is not None:
                return False
            try:
                if starts != self._ends:
                    self._skip(starts)
                self._append(blocks)
            except OSError as error:
                self._fail(error)
            finally:
                if self._closed:  # meanwhile, by someone who did not wait for us
                    self._let_go()
            self._look()
            return self.failure is None

    def _append(self, blocks: Sequence[Block]) -> None:
        vectors: list[bytes | memoryview] = []
        ends = self._ends
        for index, block in blocks:
            rest = memoryview(block)
            while rest:
                room = self._segment_bytes - self._used - FRAME_BYTES
                if self._descriptor is None or room <= 0 or len(vectors) >= _VECTORS:
                    self._flush(vectors, ends)
                    vectors = []
                    if self._descriptor is None or room <= 0:
                        self._begin()
                    continue
                part, rest = rest[:room], rest[room:]
                vectors += [frame(index, len(part)), part]
                self._used += FRAME_BYTES + len(part)
                ends = ahead(ends, index, len(part))
        self._flush(vectors, ends)

    def _flush(self, vectors: list[bytes | memoryview], ends: Offsets) -> None:
        if not vectors:
            return
        assert self._descriptor is not None
        size = sum(map(len, vectors))
        if not self._take(size):
            raise SpoolFull(errno.EDQUOT, "all spools together are at `spool_bytes`")
        self.size_bytes += size
        before = os.lseek(self._descriptor, 0, os.SEEK_CUR)
        try:
            written = os.writev(self._descriptor, vectors)
            if written < size:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # a regular file takes all, or the disk is full
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, before)
            raise
        self._ends = ends

    def _begin(self) -> None:
        """Begin the next segment; behind a full head the oldest of the tail goes."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        if not self._next:
            os.mkdir(self.folder, 0o700)
        if len(self._tail) >= limits.SPOOL_SEGMENTS - limits.SPOOL_HEAD_SEGMENTS:
            self._drop_oldest()
        if not self._take(HEADER_BYTES):
            raise SpoolFull(errno.EDQUOT, "all spools together are at `spool_bytes`")
        self.size_bytes += HEADER_BYTES
        path = segment_path(self.folder, self._next)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._next += 1
        if os.write(self._descriptor, header(self._ends)) < HEADER_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._used = HEADER_BYTES
        is_head = len(self._head) < limits.SPOOL_HEAD_SEGMENTS and self._head_ends is None
        (self._head if is_head else self._tail).append(Part(path, self._ends))

    def _skip(self, starts: Offsets) -> None:
        """Leave a hole: of what is kept, only the head stays."""
        if self._head_ends is None and not self._tail:
            self._head_ends = self._ends
        while self._tail:
            self._drop_oldest()
        self._let_go()
        self._ends = starts

    def _drop_oldest(self) -> None:
        oldest = self._tail.pop(0)
        if self._head_ends is None:
            self._head_ends = oldest.starts
        self._look()  # before it is gone: a reader that sees it must find it
        size = os.stat(oldest.path).st_size
        os.unlink(oldest.path)
        self.size_bytes -= size
        self._give(size)

    def _look(self) -> None:
        """Say what can be read now."""
        if self._is_gone:
            self.kept = Kept()
        elif self._head_ends is None:
            parts = (*self._head, *self._tail)
            self.kept = Kept((Run(parts, self._ends),) if parts else ())
        else:
            head = Run(tuple(self._head), self._head_ends)
            self.kept = Kept((head, Run(tuple(self._tail), self._ends)) if self._tail else (head,))

    def _fail(self, error: OSError) -> None:
        self.failure = str(error.strerror) if isinstance(error, SpoolFull) else _WHY.get(error.errno or 0)
        self.failure = self.failure or f"the disk refused it ({os.strerror(error.errno or 0)})"
        self._let_go()

    def give_up(self, failure: str) -> None:
        """Take no more, from outside of the thread that may hang in `write`; nothing can be read any more."""
        self.failure = failure
        self._is_gone = True
        self.kept = Kept()
        self.close()

    def close(self) -> None:
        """Let go of the file; a `write` that is under way does so at its end."""
        self._closed = True
        if self._busy.acquire(blocking=False):
            try:
                self._let_go()
            finally:
                self._busy.release()

    def _let_go(self) -> None:
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    def remove(self) -> None:
        """Remove it from the disk; what was read from it before stays valid."""
        self._is_gone = True
        self.kept = Kept()
        self.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        size, self.size_bytes = self.size_bytes, 0
        self._give(size)
