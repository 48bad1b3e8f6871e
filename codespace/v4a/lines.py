"""Text as lines: what counts as white space, where a line ends, and how it is written back.

The sets are spelled out because `str.strip()` and `str.splitlines()` know more separators than
the patch format does. Nothing here knows a patch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

WHITE_SPACE: Final = (
    "\t\n\x0b\x0c\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
)
# The Unicode property White_Space. Not U+001C-001F, which str.strip() takes too.

_LINE_END: Final = re.compile(r"\r\n|\n|\r")

_FOLDED: Final = {
    **dict.fromkeys(map(chr, (*range(0x2010, 0x2016), 0x2212)), "-"),
    **dict.fromkeys(map(chr, range(0x2018, 0x201C)), "'"),
    **dict.fromkeys(map(chr, range(0x201C, 0x2020)), '"'),
    **dict.fromkeys(map(chr, (0x00A0, *range(0x2002, 0x200B), 0x202F, 0x205F, 0x3000)), " "),
}


def trimmed(line: str) -> str:
    """Return `line` without white space at both ends."""
    return line.strip(WHITE_SPACE)


def right_trimmed(line: str) -> str:
    """Return `line` without white space at its end."""
    return line.rstrip(WHITE_SPACE)


def folded(lines: Sequence[str]) -> list[str]:
    """Return the lines trimmed, with typographic dashes, quotes and spaces made plain. None of them holds an LF."""
    bare = [line.strip(WHITE_SPACE) for line in lines]
    text = "\n".join(bare)
    if text.isascii():
        return bare
    for character, plain in _FOLDED.items():  # whole text at a time: several times faster than str.translate
        text = text.replace(character, plain)
    return text.split("\n")


class Text:
    """A file's lines, each with its own ending: CRLF, LF or a lone CR.

    Attributes:
        lines: The lines without their endings.
        preferred: The first ending in the file, which new lines get; LF where there is none.
        closed: Whether the last line has an ending (true of an empty file).
        lone_cr: Whether some line ends at a CR alone, so that other programs count lines otherwise.
    """

    __slots__ = ("_endings", "_numbers", "closed", "lines", "lone_cr", "preferred")

    def __init__(self, text: str) -> None:
        carriage_returns = text.count("\r")
        pairs = text.count("\r\n") if carriage_returns else 0
        self.lone_cr = carriage_returns != pairs
        self._endings: list[str] | None = None
        self._numbers: list[int] = []
        if not carriage_returns or (not self.lone_cr and pairs == text.count("\n")):
            self.preferred = "\r\n" if carriage_returns else "\n"
            self.lines = text.split(self.preferred)
        else:
            self.lines = _LINE_END.split(text)
            self._endings = _LINE_END.findall(text)
            self.preferred = self._endings[0]
        self.closed = self.lines[-1] == ""
        if self.closed:
            self.lines.pop()
        elif self._endings is not None:
            self._endings.append("")

    def raw(self, start: int, end: int) -> str:
        """Return the lines from `start` up to `end` as the file has them, endings included."""
        if end <= start:
            return ""
        if self._endings is not None:
            pairs = zip(self.lines[start:end], self._endings[start:end], strict=True)
            return "".join([line + ending for line, ending in pairs])
        joined = self.preferred.join(self.lines[start:end])
        return joined if end == len(self.lines) and not self.closed else joined + self.preferred

    def number(self, index: int) -> int:
        """Return the number of a line for those who end a line at LF alone, as read and search do: from 1."""
        if not self.lone_cr or self._endings is None:
            return index + 1
        if not self._numbers:
            self._numbers = list(accumulate((ending != "\r" for ending in self._endings), initial=1))
        return self._numbers[min(index, len(self._endings))]

    def written(self, added: list[str]) -> str:
        """Return new lines as they are written into this file."""
        return self.preferred.join(added) + self.preferred if added else ""
