"""The one function that makes hostile text safe to show on a terminal, a page or in a log.

Control characters act on terminals, bidirectional marks reorder what a person reads, and invisible
characters hide what differs. Each is written as an escape, so that what is shown is what is there.
It is for people's eyes: it is not HTML quoting (templates do that) and not for bytes that go back
to a program.
"""

from __future__ import annotations

import unicodedata
from typing import Final

_ESCAPED_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
# Categories whose members are invisible or act: controls, formats (bidirectional marks, zero-width
# characters, tags), surrogates, private use, unassigned, line and paragraph separators.
_LOOKS_EMPTY: Final = frozenset("\u115f\u1160\u3164\uffa0\u2800\u034f\u180b\u180c\u180d\u180f") | {
    chr(point) for point in (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))
}
# Letters and marks that render as nothing: Hangul fillers, the braille blank, variation selectors.


def display(text: str, *, limit: int | None = None, newlines: bool = False) -> str:
    """Return `text` with everything that acts or hides written as an escape.

    Args:
        text: Any text; lone surrogates (undecodable bytes of a file name) are escaped too.
        limit: Most characters of the result; a cut is shown by "… (+N characters)" behind it.
        newlines: Keep LF and TAB, for text that is shown as lines.
    Returns: One line of printable characters (lines, with `newlines`).
    """
    if text.isascii() and text.isprintable() and "\\" not in text:
        shown = text
    else:
        shown = "".join(_shown(character, newlines) for character in text)
    if limit is not None and len(shown) > limit:
        return f"{shown[:limit]}… (+{len(shown) - limit} characters)"
    return shown


def _shown(character: str, newlines: bool) -> str:
    if newlines and character in "\n\t":
        return character
    if character == "\\":
        return character if newlines else "\\\\"
    point = ord(character)
    if 0x20 <= point < 0x7F:
        return character
    blank = unicodedata.category(character) == "Zs"  # no-break and em spaces pass for a space
    if character in _LOOKS_EMPTY or blank or unicodedata.category(character) in _ESCAPED_CATEGORIES:
        return _escape(point)
    return character


def _escape(point: int) -> str:
    short = {0x09: "\\t", 0x0A: "\\n", 0x0D: "\\r"}.get(point)
    if short is not None:
        return short
    if point <= 0xFF:
        return f"\\x{point:02x}"
    return f"\\u{point:04x}" if point <= 0xFFFF else f"\\U{point:08x}"
