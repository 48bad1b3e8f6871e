"""ripgrep's JSON lines made into matches, as they arrive and within bounds."""

from __future__ import annotations

import base64
import codecs
import json
import os
from collections.abc import Callable, Sequence
from typing import Any, Final

from codespace import limits
from codespace.contract import Match

_LINE_BYTES: Final = 4 * 1_048_576  # of one JSON line: a match in a longer line of a file is dropped, and said
_LEAD_CHARACTERS: Final = 100  # shown before the match in a line that is cut

Lines = Sequence[tuple[int, bytes]]
"""Where each line begins, behind a mark of the encoding, and its bytes as ripgrep tells them."""


class Matches:
    """Takes ripgrep's output block by block.

    Args:
        named: Gives the path as the caller knows it, or None for a file that has not these lines.
        context_lines: How many lines before and after each match were asked for.
        wanted: Whether a file was asked for and may be seen, by its path as ripgrep has it. Of one that is not nothing
            is kept and nothing counts.
    """

    def __init__(
        self,
        named: Callable[[str, Lines], str | None],
        context_lines: int,
        wanted: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self.found: list[Match] = []
        self.files_searched = 0
        """Said by ripgrep at its end; until then, files with matches: at least so many."""
        self.whole = False
        """Whether ripgrep came to its end."""
        self.too_long = 0
        """Matches in lines that are too long to be taken, of files that may be seen."""
        self.behind: list[str] = []
        """Paths of files that match behind their first NUL byte too: ripgrep takes each of these for the end of a line,
        so that the numbers of lines are no longer true."""
        self._named = named
        self._wanted = wanted
        self._context = context_lines
        self._rest = b""
        self._dropping = False
        self._dropped = 0  # lines of this file that are too long
        self._taken_bytes = self._kept_bytes = 0  # of all files so far, and without those that may not be seen
        self._lines: list[tuple[int, bytes, int | None, int]] = []  # number, bytes, column of a match, where they begin
        self._path: dict[str, str] = {}
        self._is_wanted = True  # what comes is of a file that is
        self._files = 0

    def take(self, block: bytes) -> bool:
        """Take output; return False once there is enough for any answer, of files that may be seen."""
        *lines, rest = (self._rest + block).split(b"\n")
        for line in lines:
            if self._dropping:
                self._dropping = False  # the end of the long line
            else:
                self._line(line)
        if len(rest) > _LINE_BYTES:
            self._dropped += not self._dropping
            self._taken_bytes += len(rest) if self._is_wanted else 0
            self._dropping, rest = True, b""
        self._rest = b"" if self._dropping else rest
        return len(self.found) < limits.SEARCH_MATCHES and self._taken_bytes < limits.SEARCH_OUTPUT_BYTES

    def are_enough(self, most: int | None) -> bool:
        """Return whether nobody would be shown more."""
        return most is not None and len(self.found) >= most

    def cut_off(self) -> None:
        """Keep what came of a file whose end did not: it may be all that there is."""
        if self._lines:
            self._file({"path": self._path})

    def _line(self, line: bytes) -> None:
        if not line:
            return
        message: dict[str, Any] = json.loads(line)
        kind, content = message["type"], message["data"]
        if kind in ("match", "context"):
            if not self._is_wanted:
                return
            self._taken_bytes += len(line)
            raw, column = _bytes(content["lines"]), None
            if kind == "match":
                start = content["submatches"][0]["start"] if content["submatches"] else 0
                column = len(raw[:start].decode(errors="replace")) + 1
            self._lines.append((content["line_number"], raw, column, content["absolute_offset"]))
        elif kind == "begin":
            self._lines, self._path, self._dropped = [], content["path"], 0
            self._is_wanted = self._wanted(os.fsdecode(_bytes(self._path)))
        elif kind == "end":
            self._file(content)
        elif kind == "summary":
            self.whole = True
            self.files_searched += content["stats"]["searches"] - self._files
            self._files = 0

    def _file(self, content: dict[str, Any]) -> None:
        """Keep the matches of a file that is wanted, as far as it is text."""
        self._files += 1
        self.files_searched += 1
        lines, self._lines = self._lines, []
        if not self._is_wanted:
            return
        path = self._named(os.fsdecode(_bytes(content["path"])), [(start, raw) for _, raw, _, start in lines])
        if path is None:
            self._taken_bytes = self._kept_bytes
            return
        self._kept_bytes = self._taken_bytes
        self.too_long += self._dropped
        binary = content.get("binary_offset")
        if binary is not None:
            if any(column is not None and start + len(raw) > binary for _, raw, column, start in lines):
                self.behind.append(path)
            lines = [line for line in lines if line[-1] + len(line[1]) <= binary]
        # Cut once and for all: each line is in the context of many matches.
        texts = {number: _cut(_text(raw), 1) for number, raw, _, _ in lines} if self._context else {}
        for number, raw, column, _ in lines:
            if column is not None:
                self.found.append(
                    Match(
                        path=path,
                        line=number,
                        column=column,
                        text=_cut(_text(raw), column),
                        before=_around(texts, range(number - self._context, number)),
                        after=_around(texts, range(number + 1, number + self._context + 1)),
                    )
                )


def has(descriptor: int, lines: Lines) -> bool:
    """Return whether an open file has these lines where they are said to be.

    ripgrep tells UTF-16 as UTF-8, and behind the first NUL byte a line feed for each. Blocks. Raises: OSError.
    """
    mark = os.pread(descriptor, len(codecs.BOM_UTF8), 0)
    if mark.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        end = max((start + len(raw) for start, raw in lines), default=0)
        if end > limits.SEARCH_OUTPUT_BYTES:
            return False
        there = os.pread(descriptor, 4 + 2 * end, 0).decode("utf-16", "replace").removeprefix("\ufeff").encode()
        return all(there[start : start + len(raw)] == raw for start, raw in lines)
    behind = len(mark) if mark == codecs.BOM_UTF8 else 0
    return all(
        (there := os.pread(descriptor, len(raw), behind + start)) == raw or there.replace(b"\0", b"\n") == raw
        for start, raw in lines
    )


def _around(texts: dict[int, str], numbers: range) -> tuple[str, ...]:
    return tuple(texts[number] for number in numbers if number in texts)


def _bytes(said: dict[str, str]) -> bytes:
    """Return what ripgrep calls `text` where it is UTF-8, and `bytes` (base64) where it is not."""
    text = said.get("text")
    return base64.b64decode(said["bytes"]) if text is None else text.encode()


def _text(raw: bytes) -> str:
    return raw.removesuffix(b"\n").removesuffix(b"\r").decode(errors="replace")


def _cut(text: str, column: int) -> str:
    """Return a window of the line that begins somewhat before the match, marked where it was cut."""
    most = limits.SEARCH_LINE_CHARACTERS
    if len(text) <= most:
        return text
    start = max(min(column - 1 - _LEAD_CHARACTERS, len(text) - most), 0)
    window = text[start : start + most]
    return ("…" if start else "") + window + ("…" if start + most < len(text) else "")
