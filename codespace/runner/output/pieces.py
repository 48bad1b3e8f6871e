"""Cutting output for a reader: whole characters as text, what is no text at all as base64, every loss counted."""

from __future__ import annotations

import base64
import codecs
from dataclasses import dataclass
from typing import Final

from codespace import limits
from codespace.contract import Encoding

CHARACTER_BYTES: Final = 4
"""The longest UTF-8 character."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Output from a cursor on; see contract.Chunk for the fields."""

    text: str
    encoding: Encoding
    cursor: int
    eof: bool
    retained_from: int
    retained_head: int
    output_lost: int
    replaced: int = 0


@dataclass(frozen=True, slots=True)
class Span:
    """Where a reader can go on: from `start` up to `stop` there is no hole.

    Attributes:
        is_last: Nothing is kept behind it.
        retained_from: From here on everything up to the end is kept.
        retained_head: So many bytes at the start are kept beside that; 0 where no middle is lost.
    """

    start: int
    stop: int
    is_last: bool
    retained_from: int
    retained_head: int


def span(ranges: list[tuple[int, int]], wanted: int) -> Span:
    """Return where a reader who wants `wanted` goes on.

    Args:
        ranges: What is kept, as (first, behind the last); they may overlap. One, which may be empty, ends at
            the end of the output.
    """
    first, *rest = sorted(ranges)
    joined = [first]
    for start, stop in rest:
        if start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], stop))
        else:
            joined.append((start, stop))
    last = joined[-1]
    head = joined[0][1] if len(joined) > 1 and joined[0][0] == 0 else 0
    for start, stop in joined:
        if wanted < stop:
            return Span(max(wanted, start), stop, (start, stop) == last, last[0], head)
    return Span(last[1], last[1], True, last[0], head)


def limit_of(limit_bytes: int, encoding: Encoding) -> int:
    """Return how many bytes to fetch: as text at least one character fits."""
    return max(limit_bytes, CHARACTER_BYTES if encoding == "text" else 1)


def cut(block: bytes, where: Span, wanted: int, *, encoding: Encoding, closed: bool) -> Piece:
    """Return `block`, which was kept from `where.start` on, as a reader gets it.

    Args:
        wanted: The cursor that was asked for.
        closed: Nothing will follow the last span.
    """
    final = where.start + len(block) == where.stop and (closed or not where.is_last)
    start, text, used, replaced = where.start, None, len(block), 0
    if encoding == "text":
        torn = _torn_front(block) if start > wanted else 0
        text, used, replaced = characters(block[torn:], final=final)
        if _is_binary(block[torn : torn + used], replaced):
            text, used, replaced = None, torn + used, 0
        else:
            start += torn
    end = start + used
    return Piece(
        base64.b64encode(block[:used]).decode("ascii") if text is None else text,
        "base64" if text is None else "text",
        end,
        closed and where.is_last and end == where.stop,
        where.retained_from,
        where.retained_head,
        max(0, start - wanted),
        replaced,
    )


def characters(block: bytes, *, final: bool) -> tuple[str, int, int]:
    """Return the whole characters at the front, their bytes, and how many of these are no UTF-8 and came as U+FFFD.

    An incomplete last character is left out, as its rest may follow; with `final` nothing can complete it.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(block, final)
    used = len(block) - len(decoder.getstate()[0])
    return text, used, used - len(block[:used].decode("utf-8", "ignore").encode())


def _is_binary(block: bytes, replaced: int) -> bool:
    """Return whether a block of which `replaced` bytes are no UTF-8 is no readable text but for them."""
    most = max(limits.OUTPUT_STRANGE_BYTES, len(block) * limits.OUTPUT_STRANGE_PERCENT // 100)
    return bool(replaced) and replaced + block.count(0) > most


def _torn_front(block: bytes) -> int:
    """Return how many bytes at the front continue a character that began before it."""
    torn = 0
    while torn < min(len(block), CHARACTER_BYTES - 1) and block[torn] & 0xC0 == 0x80:
        torn += 1
    return torn
