"""ripgrep's JSON lines made into matches, as they arrive and within bounds."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from typing import Any, Final

from codespace import limits
from codespace.contract import Match

_LINE_BYTES: Final = 4 * 1_048_576  # of one JSON line: a match in a longer line of a file is dropped, and said
_LEAD_CHARACTERS: Final = 100  # shown before the match in a line that is cut


class Matches:
    """Takes ripgrep's output block by block.

    Args:
        named: Gives the path as the caller knows it, or None for a file that it may not see.
        context_lines: How many lines before and after each match were asked for.
    """

    def __init__(self, named: Callable[[str], str | None], context_lines: int) -> None:
        self.found: list[Match] = []
        self.files_searched = 0
        """Said by ripgrep at its end; until then, files with matches: at least so many."""
        self.whole = False
        """Whether ripgrep came to its end."""
        self.too_long = 0
        self.files: dict[str, bool] = {}
        """Files that match, by path; whether a NUL byte was found in one."""
        self.behind: list[str] = []
        """Paths of files that match behind their first NUL byte too: ripgrep takes each of these for the end of a line,
        so that the numbers of lines are no longer true."""
        self._named = named
        self._context = context_lines
        self._rest = b""
        self._dropping = False
        self._taken_bytes = 0
        self._lines: list[tuple[int, str, int | None, int]] = []  # number, text, column of a match, where it ends
        self._path: dict[str, str] = {}
        self._files = 0

    def take(self, block: bytes) -> bool:
        """Take output; return False once there is enough for any answer."""
        self._taken_bytes += len(block)
        *lines, rest = (self._rest + block).split(b"\n")
        for line in lines:
            if self._dropping:
                self._dropping = False  # the end of the long line
            else:
                self._line(line)
        if len(rest) > _LINE_BYTES:
            self.too_long += not self._dropping
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
            raw, column = _bytes(content["lines"]), None
            if kind == "match":
                start = content["submatches"][0]["start"] if content["submatches"] else 0
                column = len(raw[:start].decode(errors="replace")) + 1
            self._lines.append((content["line_number"], _text(raw), column, content["absolute_offset"] + len(raw)))
        elif kind == "begin":
            self._lines, self._path = [], content["path"]
        elif kind == "end":
            self._file(content)
        elif kind == "summary":
            self.whole = True
            self.files_searched += content["stats"]["searches"] - self._files
            self._files = 0

    def _file(self, content: dict[str, Any]) -> None:
        """Keep a file's matches, as far as it is text, unless it is not to be seen."""
        self._files += 1
        self.files_searched += 1
        lines, self._lines = self._lines, []
        path = self._named(os.fsdecode(_bytes(content["path"])))
        if path is None:
            return
        binary = content.get("binary_offset")
        self.files[path] = binary is not None
        if binary is not None:
            if any(column is not None and end > binary for _, _, column, end in lines):
                self.behind.append(path)
            lines = [line for line in lines if line[-1] <= binary]
        # Cut once and for all: each line is in the context of many matches.
        texts = {number: _cut(text, 1) for number, text, _, _ in lines} if self._context else {}
        for number, text, column, _ in lines:
            if column is not None:
                self.found.append(
                    Match(
                        path=path,
                        line=number,
                        column=column,
                        text=_cut(text, column),
                        before=_around(texts, range(number - self._context, number)),
                        after=_around(texts, range(number + 1, number + self._context + 1)),
                    )
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
