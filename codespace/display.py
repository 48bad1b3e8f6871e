"""What makes hostile text safe to show on a terminal, a page or in a log.

Control characters act on terminals, bidirectional marks reorder what a person reads, and invisible
characters hide what differs. Each is written as an escape, so that what is shown is what is there.
It is for people's eyes: it is not HTML quoting (templates do that) and not for bytes that go back
to a program.
"""

from __future__ import annotations

import json
import unicodedata
from typing import Any, Final

_ESCAPED_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
# Categories whose members are invisible or act: controls, formats (bidirectional marks, zero-width
# characters, tags), surrogates, private use, unassigned, line and paragraph separators.
_LOOKS_EMPTY: Final = frozenset("\u115f\u1160\u3164\uffa0\u2800\u034f\u180b\u180c\u180d\u180f\u17b4\u17b5\u2d7f") | {
    chr(point) for point in (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0), 0x1107F, 0x16FE4, 0x1D159)
}
# Letters, marks and symbols that render as nothing: what is left of Default_Ignorable_Code_Point (Hangul fillers, the
# grapheme joiner, Khmer inherent vowels, variation selectors), the braille blank, joiners, a filler, a null notehead.
_SIGNS: Final = "+- "
# What a line of a diff begins with.


def display(text: str, *, limit: int | None = None, newlines: bool = False) -> str:
    """Return `text` with everything that acts or hides written as an escape.

    Args:
        text: Any text; lone surrogates (undecodable bytes of a file name) are escaped too.
        limit: Most characters of the result; a cut is shown by "… (+N characters)" behind it.
        newlines: Keep LF and TAB, for text that is shown as lines, and backslashes, which programs are full of: an
            escape is written `⟨U+202E⟩` there, and so is a `⟨` of the text's own, so that neither passes for the other.
    Returns: One line of printable characters (lines, with `newlines`). A combining mark is an escape where it would
        join what is not the text's own: the beginning of a line, or the sign there of a diff.
    """
    shown = "\n".join(_line(line, newlines) for line in (text.split("\n") if newlines else [text]))
    return shown if limit is None else _cut(shown, limit)


def display_json(value: Any, *, limit: int | None = None) -> str:
    """Return a plain JSON value in one line as `display` does; backslashes are JSON's own, which writes them twice."""
    shown = "\\".join(map(display, json.dumps(value, ensure_ascii=False).split("\\")))
    return shown if limit is None else _cut(shown, limit)


def _cut(shown: str, limit: int) -> str:
    return shown if len(shown) <= limit else f"{shown[:limit]}… (+{len(shown) - limit} characters)"


def _line(text: str, newlines: bool) -> str:
    if text.isascii() and text.isprintable() and (newlines or "\\" not in text):
        return text
    pieces, joinable = list[str](), False
    for number, character in enumerate(text):
        piece = _shown(character, newlines)
        if not joinable and piece == character > "\x7f" and unicodedata.category(character).startswith("M"):
            piece = _escape(ord(character), newlines)
        joinable = piece == character != "\t" and not (newlines and number == 0 and character in _SIGNS)
        pieces.append(piece)
    return "".join(pieces)


def _shown(character: str, newlines: bool) -> str:
    if newlines and character == "\t":
        return character
    if character == "\\":
        return character if newlines else "\\\\"
    point = ord(character)
    if 0x20 <= point < 0x7F:
        return character
    category = unicodedata.category(character)
    blank = category == "Zs"  # no-break and em spaces pass for a space
    quoted = newlines and character == "⟨"
    if character in _LOOKS_EMPTY or blank or quoted or category in _ESCAPED_CATEGORIES:
        return _escape(point, newlines)
    return character


def _escape(point: int, newlines: bool) -> str:
    if newlines:
        return {0x0D: "⟨CR⟩", 0x1B: "⟨ESC⟩"}.get(point, f"⟨U+{point:04X}⟩")
    short = {0x09: "\\t", 0x0A: "\\n", 0x0D: "\\r"}.get(point)
    if short is not None:
        return short
    if point <= 0xFF:
        return f"\\x{point:02x}"
    return f"\\u{point:04x}" if point <= 0xFFFF else f"\\U{point:08x}"
