"""Where a chunk belongs in a file: the search in four passes, and the replacements it gives.

Exact text first, then ever more forgiving; a pass looks at the whole range before the next begins.
Effort is counted, so that a hostile patch ends in LIMIT_REACHED and not in hours.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from codespace import limits
from codespace.errors import Refusal
from codespace.v4a.lines import Text, folded, right_trimmed, trimmed
from codespace.v4a.parse import Chunk, Kind

_FORMS: Final[tuple[Callable[[Sequence[str]], list[str]], ...]] = (
    list,
    lambda lines: [right_trimmed(line) for line in lines],
    lambda lines: [trimmed(line) for line in lines],
    folded,
)
# What both sides of a comparison go through, pass by pass.
_FORM_EFFORT: Final = 8  # one line transformed costs as much as this many compared
_LENIENCIES: Final = (
    ("white space at line ends ignored", None),
    ("white space ignored", "indentation"),
    ("white space ignored, and typographic quotes, dashes and spaces taken as plain ones", "characters"),
)
# What each pass behind the first does not look at, and what of the added lines is not the file's therefore.
_INDEX_AFTER: Final = 4  # whole-file scans before an index of all lines pays off
_DEADLINE_EVERY: Final = 250_000  # effort between two looks at the clock; a few milliseconds


class Effort:
    """What one patch may cost, counted in line comparisons.

    Args:
        deadline: Returns True when time is up; asked every few milliseconds of work.
    """

    def __init__(self, deadline: Callable[[], bool] | None = None, budget: int = limits.PATCH_EFFORT) -> None:
        self._deadline = deadline
        self._left = budget
        self._unchecked = 0

    def spend(self, amount: int) -> None:
        """Count work that is about to be done. Raises: Refusal LIMIT_REACHED when it is too much."""
        self._left -= amount
        self._unchecked += amount
        if self._left < 0:
            raise _too_much("PATCH_EFFORT", "more line comparisons than one patch may cost")
        if self._unchecked >= _DEADLINE_EVERY:
            self.look_at_clock()

    def has(self, amount: int) -> bool:
        """Whether so much may still be spent."""
        return self._left >= amount

    def look_at_clock(self) -> None:
        """Raises: Refusal LIMIT_REACHED when the deadline has passed."""
        self._unchecked = 0
        if self._deadline is not None and self._deadline():
            raise _too_much("deadline", "longer than its time limit")


class Notes:
    """What a caller should know of the chunks that were not placed to the letter, or at the first of several places.

    Looking for another place has an effort of its own, so that no patch is refused for it.
    """

    def __init__(self) -> None:
        self.effort = Effort(budget=limits.PATCH_NOTES_EFFORT)
        self._told: list[str] = []
        self._more = 0

    def tell(self, path: str, number: int, what: str) -> None:
        """Note `what` of the chunk with this number, from 1; behind limits.PATCH_NOTES it is only counted."""
        if len(self._told) < limits.PATCH_NOTES:
            self._told.append(f"{path}, chunk {number}: {what}")
        else:
            self._more += 1

    def told(self) -> tuple[str, ...]:
        others = (
            f"and of {self._more} more chunk{'' if self._more == 1 else 's'} there is the like to tell: see the diff"
        )
        return (*self._told, others) if self._more else tuple(self._told)


def _too_much(limit: str, what: str) -> Refusal:
    return Refusal(
        "LIMIT_REACHED",
        f"Placing the patch takes {what}. Nothing was written.",
        next_step="Send smaller patches, with fewer chunks and with context that is rare in the file.",
        details={"limit": limit},
    )


class Replacement(NamedTuple):
    """`removed` lines of the file, from `start` on, give way to `added`."""

    start: int
    removed: int
    added: list[str]


class Finder:
    """Finds blocks of lines in one file."""

    def __init__(self, lines: list[str], effort: Effort) -> None:
        self._lines = lines
        self._effort = effort
        self._passes: dict[int, _Pass] = {}

    def find(self, pattern: Sequence[str], start: int) -> int | None:
        """Return where `pattern` begins, at or behind `start`, or None."""
        if start + len(pattern) > len(self._lines):
            return None
        for number, form in enumerate(_FORMS):
            found = self._pass(number).find(form(pattern), start)
            if found is not None:
                return found
        return None

    def matches_at(self, pattern: Sequence[str], at: int) -> bool:
        """Whether `pattern` fits at this one place."""
        if at + len(pattern) > len(self._lines):
            return False
        self._effort.spend(len(pattern) * _FORM_EFFORT)
        there = self._lines[at : at + len(pattern)]
        return there == list(pattern) or folded(there) == folded(
            pattern
        )  # whatever an earlier pass accepts, the last one does too

    def places(self, number: int, at: int, length: int) -> str | None:
        """Say at how many places from `at` on the lines there stand in a form, if at several and if that is cheap."""
        with suppress(Refusal):
            form = self._pass(number)
            return form.count(form.lines[at : at + length], at)
        return None

    def _pass(self, number: int) -> _Pass:
        if number not in self._passes:
            lines = self._lines
            if number > 0:
                self._effort.spend(len(lines) * _FORM_EFFORT)
                lines = _FORMS[number](lines)
            self._passes[number] = _Pass(lines, self._effort)
        return self._passes[number]


class _Pass:
    """One form of all lines, scanned at first and indexed once scanning has cost enough."""

    def __init__(self, lines: list[str], effort: Effort) -> None:
        self.lines = lines
        self._effort = effort
        self._scanned = 0
        self._index: dict[str, list[int]] | None = None

    def find(self, pattern: list[str], start: int) -> int | None:
        if self._index is None and self._scanned > _INDEX_AFTER * len(self.lines):
            self._build_index()
        if self._index is None:
            return self._scan(pattern, start)
        return self._look_up(self._index, pattern, start)

    def _scan(self, pattern: list[str], start: int) -> int | None:
        lines, first, last, length = self.lines, pattern[0], pattern[-1], len(pattern)
        stop = len(lines) - length + 1
        at = start
        while at < stop:
            try:
                found = lines.index(first, at, stop)
            except ValueError:
                found = stop
            self._scanned += found - at + 1
            self._effort.spend(found - at + 1)
            if found < stop and lines[found + length - 1] == last and self._fits(pattern, found):
                return found
            at = found + 1
        return None

    def count(self, pattern: list[str], at: int) -> str | None:
        """Say at how many places from `at` on, where it stands, `pattern` does, if at several and if that is cheap."""
        count, found = 1, at
        with suppress(Refusal):
            while count < limits.PATCH_PLACES and self._effort.has(len(self.lines) - found):
                again = self.find(pattern, found + 1)
                if again is None:
                    return f"{count} places" if count > 1 else None
                count, found = count + 1, again
        return f"{count} places or more" if count > 1 else None

    def _fits(self, pattern: list[str], at: int) -> bool:
        if len(pattern) <= 2:
            return self.lines[at : at + len(pattern)] == pattern
        self._scanned += len(pattern)
        self._effort.spend(len(pattern))
        return self.lines[at : at + len(pattern)] == pattern

    def _build_index(self) -> None:
        self._effort.spend(len(self.lines) * _FORM_EFFORT)
        index: dict[str, list[int]] = {}
        for number, line in enumerate(self.lines):
            index.setdefault(line, []).append(number)
        self._index = index

    def _look_up(self, index: dict[str, list[int]], pattern: list[str], start: int) -> int | None:
        """Try the places of the pattern's rarest line only."""
        self._effort.spend(len(pattern))
        places = [index.get(line, []) for line in pattern]
        rarest = min(range(len(pattern)), key=lambda position: len(places[position]))
        candidates = places[rarest]
        for number in range(bisect_left(candidates, start + rarest), len(candidates)):
            self._effort.spend(1)
            at = candidates[number] - rarest
            if at + len(pattern) > len(self.lines):
                return None
            if self._fits(pattern, at):
                return at
        return None


def place(path: str, chunks: Sequence[Chunk], text: Text, effort: Effort, notes: Notes) -> list[Replacement]:
    """Return the replacements of all chunks, in file order; `notes` is told what is not plain about their places.

    Raises: Refusal INVALID_PATCH that explains the first chunk without a place; LIMIT_REACHED.
    """
    finder = Finder(text.lines, effort)
    again = Finder(text.lines, notes.effort)
    replacements: list[Replacement] = []
    cursor = 0
    for number, chunk in enumerate(chunks, 1):
        effort.spend(1)
        if chunk.anchor is not None:
            anchor_at = finder.find([chunk.anchor], cursor)
            if anchor_at is None:
                raise _unplaced(path, number, chunk, text, cursor, anchor_missing=True)
            cursor = anchor_at + 1
        pattern = pattern_of(chunk.lines)
        if not pattern:
            replacements.append(Replacement(len(text.lines), 0, [line for _, line in chunk.lines]))
            if chunk.anchor is not None and cursor < len(text.lines):
                notes.tell(
                    path, number, "it has new lines alone, so they stand at the end of the file, not behind its @@ line"
                )
            continue
        placed = _placed(chunk, pattern, finder, cursor, len(text.lines))
        if placed is None:
            raise _unplaced(path, number, chunk, text, cursor, anchor_missing=False)
        at, lines = placed
        replacements += _runs(lines, at)
        note = _note(chunk, lines, at, cursor, again, text)
        if note is not None:
            notes.tell(path, number, note)
        cursor = at + len(pattern_of(lines))
    replacements.sort(key=lambda replacement: replacement.start)
    return replacements


def pattern_of(lines: Sequence[tuple[Kind, str]]) -> list[str]:
    """Return the removed and context lines: what must be in the file."""
    return [line for kind, line in lines if kind != "+"]


def _note(
    chunk: Chunk, lines: Sequence[tuple[Kind, str]], at: int, cursor: int, again: Finder, text: Text
) -> str | None:
    """Say how a chunk was placed, if not to the letter at the only place from the cursor on.

    Nothing of its anchor: that is not written, and may be repeated in the file as long as what follows it is not.
    """
    adds = any(kind == "+" for kind, _ in lines)
    pattern = pattern_of(lines)
    if not pattern:
        where = f"behind line {text.number(cursor - 1)}" if cursor else "at the top"
        return f"its empty line is not there; its new lines stand {where}" if adds else None
    told: list[str] = []
    there = text.lines[at : at + len(pattern)]
    number = next(number for number, form in enumerate(_FORMS) if form(there) == form(pattern))
    if number > 0:
        lenient, own = _LENIENCIES[number - 1]
        told.append(f"placed with {lenient}" + (f"; its new lines keep the patch's own {own}" if adds and own else ""))
    follows = 0 < at == cursor
    if not chunk.end_of_file and not (follows and chunk.anchor is None):  # else one place is meant, and no other
        first = at - follows  # an anchor right above belongs to it
        places = again.places(number, first, at + len(pattern) - first)
        stand = "with its @@ line it stands" if follows else "its lines stand"
        behind = f" behind line {text.number(cursor - 1)}" if cursor and not follows else ""
        if places is not None:
            told.append(f"{stand} at {places}{behind}; the first, line {text.number(at)}, was taken")
    return "; ".join(told) or None


def _placed(
    chunk: Chunk, pattern: list[str], finder: Finder, cursor: int, line_count: int
) -> tuple[int, Sequence[tuple[Kind, str]]] | None:
    """Return where the chunk goes and its lines, shortened by a last empty line where that helps."""

    def search(wanted: list[str]) -> int | None:
        if not chunk.end_of_file:
            return finder.find(wanted, cursor)
        only = max(line_count - len(wanted), cursor)
        return only if finder.matches_at(wanted, only) else None

    found = search(pattern)
    if found is not None:
        return found, chunk.lines
    if pattern[-1] != "":
        return None
    shortened = _without_last_empty(chunk.lines)
    if len(pattern) == 1:
        return cursor, shortened
    found = search(pattern[:-1])
    return None if found is None else (found, shortened)


def _without_last_empty(lines: Sequence[tuple[Kind, str]]) -> list[tuple[Kind, str]]:
    """Drop the pattern's last line, and the replacement's last line if that is empty too.

    A context line is in both. Where it loses its place in one of them, it is no context any more: what is
    left is a line to add, or one to remove.
    """
    pattern = [number for number, (kind, _) in enumerate(lines) if kind != "+"]
    replacement = [number for number, (kind, _) in enumerate(lines) if kind != "-"]
    unmatched = pattern[-1]
    unwritten = replacement[-1] if replacement and lines[replacement[-1]][1] == "" else None
    kept: list[tuple[Kind, str]] = []
    for number, (kind, line) in enumerate(lines):
        matched = kind != "+" and number != unmatched
        written = kind != "-" and number != unwritten
        if matched or written:
            kept.append((" " if matched and written else "-" if matched else "+", line))
    return kept


def _runs(lines: Sequence[tuple[Kind, str]], at: int) -> list[Replacement]:
    """Return one replacement for each run of removed and added lines between context lines."""
    runs: list[Replacement] = []
    start, count, added = at, 0, list[str]()
    for kind, line in (*lines, (" ", "")):
        if kind == "+":
            added.append(line)
        elif kind == "-":
            count += 1
        else:
            if count or added:
                runs.append(Replacement(start, count, added))
            start, count, added = start + count + 1, 0, []
    return runs


def _unplaced(path: str, number: int, chunk: Chunk, text: Text, cursor: int, *, anchor_missing: bool) -> Refusal:
    from codespace.v4a.explain import Unplaced, explain  # only a refusal needs it

    return explain(Unplaced(path, number, chunk, text, cursor, anchor_missing))
