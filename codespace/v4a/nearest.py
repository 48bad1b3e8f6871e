"""The place of a file that is most like a block of lines which is not in it. Bounded, so an estimate.

Lines are compared folded, as the most forgiving search pass does. Candidates come from lines that are
equal, then from pieces of lines; only a handful is compared in full.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from codespace.v4a.lines import folded

_WINDOW_LINES: Final = 40_000  # of the file that are looked at, a quarter of them before the cursor
_PATTERN_LINES: Final = 200  # of the block that vote for a place
_PLACES: Final = 100  # of one line that vote; a line more common than that says little
_CANDIDATES: Final = 8
_SCORED_LINES: Final = 60  # of the block that are compared with each candidate
_LINE_CHARACTERS: Final = 300  # of a line that are compared
_PIECE_LINES: Final = 4  # of the block that are cut into pieces, the longest ones
_PIECES: Final = 8  # of one line
_PIECE_CHARACTERS: Final = 8  # a third of a line that is shorter than three pieces
_VOTE: Final = 1_000_000
_PIECE_PLACES: Final = 20
_GOOD: Final = 0.6  # similarity above which pieces are not tried
_RELATED: Final = 0.35  # similarity below which a place is not worth naming
_BLOCK_LINES: Final = 2_000  # of a block that is looked for; a longer one is compared by its beginning
_BLOCK_COMPARISONS: Final = 200_000  # lines compared in looking for a block


class Place(NamedTuple):
    """Where a block would lie: from line `start`, counted from 0, up to `end`, which may be behind the file's.

    `similarity` goes from 0 to 1.
    """

    start: int
    end: int
    similarity: float


class Neighbourhood:
    """The part of a file around the cursor, folded."""

    def __init__(self, lines: Sequence[str], cursor: int) -> None:
        self._offset = max(0, min(cursor - _WINDOW_LINES // 4, len(lines) - _WINDOW_LINES))
        self._cursor = cursor - self._offset
        window = lines[self._offset : self._offset + _WINDOW_LINES]
        self._lines = _bare(window)
        self._places: dict[str, list[int]] = {}
        for number, line in enumerate(self._lines):
            self._places.setdefault(line, []).append(number)

    def has(self, line: str) -> bool:
        """Whether some line is like this one."""
        return _bare([line])[0] in self._places

    def block(self, wanted: Sequence[str]) -> int | None:
        """Return where the whole block is, the place at or behind the cursor first, or None.

        Of long lines only the beginning is compared: look again before you say that it is there.
        """
        if len(wanted) > _BLOCK_LINES:
            return None
        block = _bare(wanted)
        places = [self._places.get(line, []) for line in block]
        if not places:
            return None
        rarest = min(range(len(block)), key=lambda number: len(places[number]))
        starts = [place - rarest for place in places[rarest]]
        starts.sort(key=lambda start: (start < self._cursor, abs(start - self._cursor)))
        for start in starts[: _BLOCK_COMPARISONS // len(block)]:
            if start >= 0 and self._lines[start : start + len(block)] == block:
                return start + self._offset
        return None

    def nearest(self, wanted: Sequence[str]) -> Place | None:
        """Return the place that is most like the block, or None where nothing is related to it."""
        block = _bare(wanted[:_BLOCK_LINES])
        best = self._best(block, self._by_lines(block))
        if best is None or best[0] < _GOOD:
            other = self._best(block, self._by_pieces(block))
            if other is not None and (best is None or other[0] > best[0]):
                best = other
        if best is None or best[0] < _RELATED:
            return None
        similarity, start = best
        start += self._offset
        return Place(start, start + len(wanted), min(round(similarity, 2), 0.99))

    def _by_lines(self, block: list[str]) -> Counter[int]:
        votes: Counter[int] = Counter()
        for number, line in enumerate(block[:_PATTERN_LINES]):
            places = self._places.get(line, []) if line else []
            _vote(votes, [place - number for place in places[:_PLACES]])
        return votes

    def _by_pieces(self, block: list[str]) -> Counter[int]:
        votes: Counter[int] = Counter()
        text = "\n".join(self._lines)
        starts = list(accumulate((len(line) + 1 for line in self._lines), initial=0))
        longest = sorted(enumerate(block), key=lambda numbered: -len(numbered[1]))[:_PIECE_LINES]
        for number, line in longest:
            for piece in _pieces(line):
                found = _occurrences(text, piece)
                _vote(votes, [bisect_right(starts, at) - 1 - number for at in found])
        return votes

    def _best(self, block: list[str], votes: Counter[int]) -> tuple[float, int] | None:
        chosen = sorted(votes, key=lambda start: (-votes[start], self._distance(start)))[:_CANDIDATES]
        scored = [(self._similarity(block, start), -self._distance(start), start) for start in chosen]
        if not scored:
            return None
        similarity, _, start = max(scored)
        return similarity, start

    def _distance(self, start: int) -> int:
        """Return how far a place is from the cursor; one that chunks cannot reach any more counts double."""
        return start - self._cursor if start >= self._cursor else 2 * (self._cursor - start)

    def _similarity(self, block: list[str], start: int) -> float:
        step = max(1, len(block) // _SCORED_LINES)
        numbers = [number for number in range(0, len(block), step) if block[number]] or [0]
        total = 0.0
        for number in numbers:
            if 0 <= start + number < len(self._lines):
                total += line_similarity(block[number], self._lines[start + number])
        return total / len(numbers)


def _vote(votes: Counter[int], starts: list[int]) -> None:
    """Share one vote between places: what is rare says more. A block cannot begin before the file."""
    for start in starts:
        votes[max(start, 0)] += _VOTE // len(starts)


def _occurrences(text: str, piece: str) -> list[int]:
    found: list[int] = []
    at = text.find(piece)
    while at >= 0 and len(found) < _PIECE_PLACES:
        found.append(at)
        at = text.find(piece, at + 1)
    return found


def line_similarity(one: str, other: str) -> float:
    """Return how much two lines are alike, from 0 to 1: the share of character pairs that both have."""
    if one == other:
        return 1.0
    pairs, others = _pairs(one), _pairs(other)
    total = sum(pairs.values()) + sum(others.values())
    return 2 * sum((pairs & others).values()) / total if total else 0.0


def _pairs(line: str) -> Counter[str]:
    line = line[:_LINE_CHARACTERS]
    return Counter(map("".join, pairwise(line)))


def _pieces(line: str) -> list[str]:
    """Return evenly spaced pieces of a line, its end among them."""
    size = min(_PIECE_CHARACTERS, -(-len(line) // 3))
    last = len(line) - size
    step = max(1, last // _PIECES)
    return [line[at : at + size] for at in (*range(0, last, step), last)] if line else []


def _bare(lines: Sequence[str]) -> list[str]:
    return folded([line[:_LINE_CHARACTERS] for line in lines]) if lines else []
