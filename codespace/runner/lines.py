"""One pass over a file's bytes: its version, its lines, and the lines asked for.

Memory is bounded by one block and the limit, whatever the size of the file. Nothing here opens
anything: bytes come in blocks.
"""

from __future__ import annotations

import codecs
from typing import Literal

from codespace.digest import Digest

LineEnding = Literal["lf", "crlf", "mixed", "none"]


class Scan:
    """Feed it the whole file block by block, then ask.

    Args:
        first: The first line wanted, from 1.
        count: How many lines at most; None for all that follow.
        limit_bytes: Most bytes to keep of them.
    """

    def __init__(self, first: int, count: int | None, limit_bytes: int) -> None:
        self.size = 0
        self.is_text = True
        self.cut = False
        """Whether wanted bytes were left out because of the limit."""
        self._first = first
        self._end = None if count is None else first + count  # the first line that is not wanted
        self._limit = limit_bytes
        self._digest = Digest()
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._decoding = False  # a character may be cut by the end of the block before
        self._newlines = 0
        self._pairs = 0
        self._last = b""
        self._kept: list[bytes] = []
        self._kept_bytes = 0

    def feed(self, block: bytes) -> None:
        """Take the next block."""
        self._digest.update(block)
        self._check_text(block)
        newlines = block.count(b"\n")
        if b"\r" in block:  # looking for one is eighty times as fast as counting pairs that are not there
            self._pairs += block.count(b"\r\n")
        self._pairs += self._last == b"\r" and block.startswith(b"\n")
        self._keep(block, newlines)
        self._newlines += newlines
        self.size += len(block)
        self._last = block[-1:]

    def finish(self) -> None:
        """Say that the file has ended: a character cut there is no text."""
        if self._decoding and self.is_text:
            self._decode(b"", final=True)

    @property
    def version(self) -> str:
        return self._digest.version

    @property
    def total_lines(self) -> int:
        return self._newlines + (self.size > 0 and not self.final_newline)

    @property
    def final_newline(self) -> bool:
        return self._last == b"\n"

    @property
    def line_ending(self) -> LineEnding:
        if not self._newlines:
            return "none"
        if not self._pairs:
            return "lf"
        return "crlf" if self._pairs == self._newlines else "mixed"

    def wanted(self) -> bytes:
        """Return the wanted bytes, cut to the limit: behind a whole line if one fits, else behind a whole character."""
        data = b"".join(self._kept)
        if not self.cut:
            return data
        whole = data.rfind(b"\n") + 1
        return data[:whole] if whole else data[: _character_end(data)]

    def raw(self) -> bytes:
        """Return the wanted bytes cut at exactly the limit."""
        return b"".join(self._kept)

    def _keep(self, block: bytes, newlines: int) -> None:
        line = self._newlines + 1  # of the block's first byte
        if line + newlines < self._first or (self._end is not None and line >= self._end):
            return
        start = _behind_newline(block, self._first - line) if line < self._first else 0
        wanted_newlines = None if self._end is None else self._end - line
        stop = len(block) if wanted_newlines is None else _behind_newline(block, wanted_newlines, newlines)
        room = self._limit - self._kept_bytes
        if stop - start > room:
            self.cut = True
            stop = start + room
        if stop > start:
            part = block if stop - start == len(block) else block[start:stop]
            self._kept.append(part)
            self._kept_bytes += stop - start

    def _check_text(self, block: bytes) -> None:
        if self.is_text and (self._decoding or not block.isascii()):
            self._decode(block, final=False)

    def _decode(self, block: bytes, *, final: bool) -> None:
        try:
            self._decoder.decode(block, final)
        except UnicodeDecodeError:
            self.is_text = False
            return
        self._decoding = bool(self._decoder.getstate()[0])


def _behind_newline(block: bytes, number: int, newlines: int | None = None) -> int:
    """Return the position behind the `number`-th newline of `block`, or its length where there are fewer.

    Found by halves, since counting is much faster than finding one by one.
    """
    if (block.count(b"\n") if newlines is None else newlines) < number:
        return len(block)
    low, high = 0, len(block)
    before = 0  # newlines before `low`
    while high - low > 1:
        middle = (low + high) // 2
        there = block.count(b"\n", low, middle)
        if before + there >= number:
            high = middle
        else:
            low, before = middle, before + there
    return high


def _character_end(data: bytes) -> int:
    """Return where the last whole UTF-8 character of `data` ends; only its last three bytes can belong to a cut one."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte < 0x80:
            return len(data)
        if byte >= 0xC0:
            width = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) if width == back else len(data) - back
    return len(data)
