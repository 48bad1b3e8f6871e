"""Why a chunk has no place: what differs first, where something like it is, and whether it is done already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from codespace.errors import Refusal
from codespace.v4a.lines import Text, folded, trimmed
from codespace.v4a.nearest import Neighbourhood, Place
from codespace.v4a.parse import Chunk

_TEXT_LINES: Final = 40  # of a block that is quoted in details
_TEXT_CHARACTERS: Final = 4_000  # of the same
_LINE_CHARACTERS: Final = 240  # of a line that is quoted
_NOTED_CHARACTERS: Final = 100_000  # of the longest line whose difference is said in words
_LEAD_CHARACTERS: Final = 80  # kept in front of the first difference of a long line
_OUTCOME_LINES: Final = 2_000  # of a chunk that is looked for as done already
_MARK: Final = "\ufeff"
_TELLING_CHARACTERS: Final = 4  # a replacement shorter than this, such as `}`, is in every file


@dataclass(frozen=True, slots=True)
class Unplaced:
    """A chunk that was searched for in vain.

    Attributes:
        number: Of the chunk in its update, from 1.
        text: The whole file.
        cursor: The first line, from 0, where the chunk could have begun.
        anchor_missing: Whether it was the line behind `@@` that was not found.
    """

    path: str
    number: int
    chunk: Chunk
    text: Text
    cursor: int
    anchor_missing: bool


def explain(unplaced: Unplaced) -> Refusal:
    """Return the refusal that says why; its details are bounded whatever the file holds.

    The effort is bounded too: about 40 ms for any file.
    """
    chunk = unplaced.chunk
    around = Neighbourhood(unplaced.text.lines, unplaced.cursor)
    wanted = _wanted(unplaced)
    found = _found(wanted, unplaced.text.lines, around)
    near = Place(found, found + len(wanted), 1.0) if found is not None else around.nearest(wanted)
    applied = _applied(chunk, unplaced.text.lines, around)
    difference = _first_difference(unplaced, wanted, near, around)
    details: dict[str, Any] = {
        "path": unplaced.path,
        "chunk": unplaced.number,
        "chunk_line": chunk.line,
        "expected": _quoted_block(wanted),
        "first_difference": difference,
        "nearest": None if near is None else _nearest(unplaced.text, near),
        "already_applied": applied is not None,
    }
    if applied is not None:
        details["applied_at_line"] = unplaced.text.number(applied)
    reason, next_step = _reason(unplaced, found, difference)
    if applied is not None:
        reason += f" The change seems to be in the file already, at line {unplaced.text.number(applied)}."
        next_step = "If the file is as you want it, leave this chunk out; else read the file again."
    where = f"Chunk {unplaced.number} (patch line {chunk.line}) has no place in {unplaced.path}"
    return Refusal("INVALID_PATCH", f"{where}: {reason} Nothing was written.", next_step=next_step, details=details)


def _wanted(unplaced: Unplaced) -> list[str]:
    if unplaced.anchor_missing:
        return [unplaced.chunk.anchor or ""]
    return [line for kind, line in unplaced.chunk.lines if kind != "+"]


def _found(wanted: Sequence[str], lines: Sequence[str], around: Neighbourhood) -> int | None:
    """Return where the whole block is, from 0, with lines compared to their end."""
    at = around.block(wanted)
    if at is None or not all(map(_alike, wanted, lines[at : at + len(wanted)])):
        return None
    return at


def _reason(unplaced: Unplaced, found: int | None, difference: dict[str, Any] | None) -> tuple[str, str | None]:
    """Return what is wrong in a sentence, and the next step where the usual one is not the best."""
    chunk, number = unplaced.chunk, unplaced.text.number
    if found is not None and found < unplaced.cursor:
        what = "the line behind its '@@' is" if unplaced.anchor_missing else "its lines are"
        last = number(unplaced.cursor - 1)
        before = f"{what} at line {number(found)}, but what comes before it in the patch ends at line {last}."
        return (
            before,
            "Put the chunks in file order; a chunk cannot use lines again that an earlier one or its '@@' used.",
        )
    if found is not None and chunk.end_of_file:
        ends = f"its lines are at line {number(found)}, but '*** End of File' says that they are the file's last."
        return ends, "Leave '*** End of File' out, or give the last lines of the file."
    if unplaced.anchor_missing:
        return _anchor_reason(unplaced, difference)
    if difference is None or difference["line"] is None:
        shown = difference["expected"] if difference else ""
        return f"its line '{shown}' is not in the file.", None
    first = f"its line '{difference['expected']}' (patch line {difference['patch_line']}) is"
    note = f" ({difference['note']})" if "note" in difference else ""
    if difference["actual"] is None:
        return f"{first} not there: the file ends before line {difference['line']}.", None
    return f"{first} '{difference['actual']}' at line {difference['line']} of the file{note}.", None


def _anchor_reason(unplaced: Unplaced, difference: dict[str, Any] | None) -> tuple[str, str]:
    anchor, first = unplaced.chunk.anchor or "", unplaced.text.number(unplaced.cursor)
    reason = f"'{_cut(anchor)}' behind '@@' is no whole line of the file from line {first} on."
    if difference is not None and difference["line"] is not None:
        reason += f" Most like it is line {difference['line']}, '{difference['actual']}'."
    if anchor.startswith("-") and "@@" in anchor:  # behind them git says which function it is
        return reason, "Write '@@' without line numbers; they are not part of this format."
    return reason, "Write a whole line of the file behind '@@', or nothing."


def _first_difference(
    unplaced: Unplaced, wanted: Sequence[str], near: Place | None, around: Neighbourhood
) -> dict[str, Any] | None:
    """Return the first line that differs at the nearest place; without one, the first that is nowhere."""
    first = unplaced.chunk.line if unplaced.anchor_missing else None
    patch_lines = [first] if first else _patch_lines(unplaced.chunk)
    if near is None:
        number = next((number for number, line in enumerate(wanted) if not around.has(line)), 0)
        return {"line": None, "patch_line": patch_lines[number], "expected": _cut(wanted[number]), "actual": None}
    for number, line in enumerate(wanted):
        at = near.start + number
        actual = unplaced.text.lines[at] if at < len(unplaced.text.lines) else None
        if actual is None or not _alike(line, actual):
            return _difference(unplaced.text.number(at), patch_lines[number], line, actual)
    return None


def _alike(one: str, other: str) -> bool:
    """Return whether two lines are equal once folded, which keeps the length: a line of a gigabyte is not copied."""
    if one == other:
        return True
    bare, other_bare = trimmed(one), trimmed(other)
    return len(bare) == len(other_bare) and folded([bare]) == folded([other_bare])


def _patch_lines(chunk: Chunk) -> list[int]:
    return [number for number, (kind, _) in enumerate(chunk.lines, chunk.body_line) if kind != "+"]


def _difference(line: int, patch_line: int, expected: str, actual: str | None) -> dict[str, Any]:
    if actual is None:
        return {"line": line, "patch_line": patch_line, "expected": _cut(expected), "actual": None}
    from_character = _common(expected, actual)
    shown = {"expected": _cut(expected, from_character), "actual": _cut(actual, from_character)}
    difference: dict[str, Any] = {"line": line, "patch_line": patch_line, **shown}
    if "\r" in expected:
        difference["note"] = "the patch has a carriage return inside the line"
    elif actual.startswith(_MARK) and _alike(expected, actual[1:_NOTED_CHARACTERS]):
        difference["note"] = "the file's line begins with a byte order mark: write U+FEFF in front of yours too"
    elif max(len(expected), len(actual)) <= _NOTED_CHARACTERS:
        if "".join(expected.split()) == "".join(actual.split()):
            difference["note"] = "only white space inside the line differs"
        elif expected.casefold() == actual.casefold():
            difference["note"] = "only letter case differs"
    return difference


def _common(one: str, other: str) -> int:
    """Return how many characters both begin with."""
    known, end = 0, min(len(one), len(other))
    while known < end:
        middle = (known + end + 1) // 2
        if one[known:middle] == other[known:middle]:
            known = middle
        else:
            end = middle - 1
    return known


def _applied(chunk: Chunk, lines: Sequence[str], around: Neighbourhood) -> int | None:
    """Return where the chunk's outcome is, from 0, if it says enough to tell."""
    if len(chunk.lines) > _OUTCOME_LINES:
        return None
    outcome = [line for kind, line in chunk.lines if kind != "-"]
    pattern = [line for kind, line in chunk.lines if kind != "+"]
    added = sum(len(trimmed(line)) for kind, line in chunk.lines if kind == "+")
    removed = any(trimmed(line) for kind, line in chunk.lines if kind == "-")
    if added < _TELLING_CHARACTERS and (added or not removed or not _surrounded(chunk)):
        return None
    if not outcome or folded(outcome) == folded(pattern):
        return None
    return _found(outcome, lines, around)


def _surrounded(chunk: Chunk) -> bool:
    """Whether the removed lines have telling context on both sides, which now would touch."""
    removed = [number for number, (kind, _) in enumerate(chunk.lines) if kind == "-"]
    before, behind = chunk.lines[: removed[0]], chunk.lines[removed[-1] + 1 :]
    return all(any(len(trimmed(line)) >= _TELLING_CHARACTERS for _, line in side) for side in (before, behind))


def _nearest(text: Text, near: Place) -> dict[str, Any]:
    end = min(near.end, len(text.lines))
    return {
        "start_line": text.number(near.start),
        "end_line": text.number(end - 1),
        "text": _quoted_block(text.lines[near.start : end]),
        "similarity": near.similarity,
    }


def _quoted_block(lines: Sequence[str]) -> str:
    """Return lines for details, bounded in number and length; the last line says what is missing."""
    shown: list[str] = []
    free = _TEXT_CHARACTERS
    for line in lines[:_TEXT_LINES]:
        if len(line) > free:
            break
        shown.append(_cut(line))
        free -= len(shown[-1]) + 1
    if len(shown) < len(lines):
        shown.append(f"… (+{len(lines) - len(shown)} lines)")
    return "\n".join(shown)


def _cut(line: str, difference: int = 0) -> str:
    """Return a line, or of a long one the part around its first difference."""
    if len(line) <= _LINE_CHARACTERS:
        return line
    start = max(0, difference - _LEAD_CHARACTERS)
    end = start + _LINE_CHARACTERS
    return ("…" if start else "") + line[start:end] + ("…" if end < len(line) else "")
