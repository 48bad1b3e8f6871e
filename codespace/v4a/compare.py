"""Which lines differ between two texts, found within a fixed effort.

difflib is quadratic where lines repeat, which a hostile file can arrange. This is Myers' greedy
algorithm (An O(ND) Difference Algorithm and Its Variations, 1986) with a budget: past it, one block
replaces another, which is a true diff all the same.
"""

from __future__ import annotations

from codespace.v4a.plan import Edit

_Run = tuple[int, int, int, int]  # old from, old to, new from, new to


class Allowance:
    """The line comparisons that are left for one diff."""

    def __init__(self, comparisons: int) -> None:
        self.left = comparisons


def lines_of(text: bytes) -> list[bytes]:
    """Return the lines of `text` with their LF; the last one may lack it."""
    lines = [line + b"\n" for line in text.split(b"\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def edits_between(before: bytes, after: bytes, allowance: Allowance) -> list[Edit]:
    """Return the differing runs of lines of two texts, in order."""
    start = before.rfind(b"\n", 0, _common_prefix(before, after)) + 1
    before_end, after_end = _ends(before, after, start)
    old, new = lines_of(before[start:before_end]), lines_of(after[start:after_end])
    edits = []
    line = before.count(b"\n", 0, start)
    old_at = new_at = 0
    before_at = after_at = start
    for old_from, old_to, new_from, new_to in _runs(old, new, allowance):
        before_at += _size(old, old_at, old_from)
        after_at += _size(new, new_at, new_from)
        edit = Edit(
            line + old_from,
            before_at,
            before_at + _size(old, old_from, old_to),
            after_at,
            after_at + _size(new, new_from, new_to),
        )
        edits.append(edit)
        old_at, new_at, before_at, after_at = old_to, new_to, edit.before_end, edit.after_end
    return edits


def _size(lines: list[bytes], start: int, end: int) -> int:
    return sum(map(len, lines[start:end]))


def _common_prefix(before: bytes, after: bytes) -> int:
    """Return how many bytes both begin with, by halving: comparing slices is fast, bytes one by one is not."""
    known, end = 0, min(len(before), len(after))
    while known < end:
        middle = (known + end + 1) // 2
        if before[known:middle] == after[known:middle]:
            known = middle
        else:
            end = middle - 1
    return known


def _ends(before: bytes, after: bytes, start: int) -> tuple[int, int]:
    """Return where the lines that both end with begin in each."""
    known, end = 0, min(len(before), len(after)) - start
    while known < end:
        middle = (known + end + 1) // 2
        if before[len(before) - middle : len(before) - known] == after[len(after) - middle : len(after) - known]:
            known = middle
        else:
            end = middle - 1
    newline = before.find(b"\n", len(before) - known)
    common = 0 if newline < 0 else len(before) - newline - 1
    return len(before) - common, len(after) - common


def _runs(old: list[bytes], new: list[bytes], allowance: Allowance) -> list[_Run]:
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    old_middle, new_middle = old[head : len(old) - tail], new[head : len(new) - tail]
    if not old_middle and not new_middle:
        return []
    whole = [(0, len(old_middle), 0, len(new_middle))]
    runs = whole
    if old_middle and new_middle:
        trace = _trace(old_middle, new_middle, allowance)
        runs = whole if trace is None else _walk_back(trace, len(old_middle), len(new_middle))
    return [(a + head, b + head, c + head, d + head) for a, b, c, d in runs]


def _trace(old: list[bytes], new: list[bytes], allowance: Allowance) -> list[dict[int, int]] | None:
    """Return, for each number of edits, how far each diagonal reaches; None when it takes too much."""
    reach = {1: 0}
    trace: list[dict[int, int]] = []
    for edits in range(len(old) + len(new) + 1):
        allowance.left -= 2 * edits + 1  # the loop below, and the copy
        if allowance.left < 0:
            return None
        trace.append(dict(reach))
        for diagonal in range(-edits, edits + 1, 2):
            down = diagonal == -edits or (diagonal != edits and reach[diagonal - 1] < reach[diagonal + 1])
            first = x = reach[diagonal + 1] if down else reach[diagonal - 1] + 1
            y = x - diagonal
            while x < len(old) and y < len(new) and old[x] == new[y]:
                x, y = x + 1, y + 1
            allowance.left -= x - first
            reach[diagonal] = x
            if x >= len(old) and y >= len(new):
                return trace
    return None


def _walk_back(trace: list[dict[int, int]], x: int, y: int) -> list[_Run]:
    runs: list[_Run] = []
    for edits in range(len(trace) - 1, 0, -1):
        reach, diagonal = trace[edits], x - y
        down = diagonal == -edits or (diagonal != edits and reach[diagonal - 1] < reach[diagonal + 1])
        before = diagonal + 1 if down else diagonal - 1
        from_x = reach[before]
        from_y = from_x - before
        to_x, to_y = (from_x, from_y + 1) if down else (from_x + 1, from_y)
        if runs and runs[-1][0] == to_x and runs[-1][2] == to_y:
            runs[-1] = (from_x, runs[-1][1], from_y, runs[-1][3])
        else:
            runs.append((from_x, to_x, from_y, to_y))
        x, y = from_x, from_y
    runs.reverse()
    return runs
