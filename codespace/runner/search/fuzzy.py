"""Names ranked by how well they answer a few remembered letters."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

_Rank = tuple[int, int, int, str]


def best(query: str, paths: Iterable[str], limit: int) -> tuple[list[str], int]:
    """Return the `limit` best paths for `query`, best first, and how many there were.

    A path answers when the letters of the query appear in it in that order; blanks in the query do
    not count, nor does letter case. Better is: in the last name, in one piece, at its start, short.
    """
    letters = _lower("".join(query.split()))
    ranked = [rank for path in paths if (rank := _rank(letters, path))]
    return [rank[-1] for rank in heapq.nsmallest(limit, ranked)], len(ranked)


def _rank(letters: str, path: str) -> _Rank | None:
    """Return a key, the smaller the better, or None where the letters are not there in order."""
    lowered = _lower(path)
    start = lowered.rfind("/") + 1
    position = lowered.find(letters, start)
    if position >= 0:
        whole = len(lowered) - start == len(letters)
        return (0 if whole else 1 if position == start else 2 if _edge(path, position) else 3), 0, len(path), path
    if letters in lowered:
        return 4, 0, len(path), path
    span = _span(letters, lowered, start)
    if span is not None:
        return 5, span, len(path), path
    span = _span(letters, lowered, 0)
    return None if span is None else (6, span, len(path), path)


def _lower(text: str) -> str:
    """Return small letters, one for each: the Turkish `İ` is made two by Python, and places would be others' then."""
    lowered = text.lower()
    return lowered if len(lowered) == len(text) else "".join(character.lower()[0] for character in text)


def _edge(path: str, position: int) -> bool:
    """Return whether a word begins at `position`: behind a mark, or at a capital."""
    return not path[position - 1].isalnum() or (path[position].isupper() and path[position - 1].islower())


def _span(letters: str, text: str, start: int) -> int | None:
    """Return how many characters the letters are spread over, taking each at its first place."""
    first = position = -1
    at = start
    for letter in letters:
        position = text.find(letter, at)
        if position < 0:
            return None
        if first < 0:
            first = position
        at = position + 1
    return position - first
