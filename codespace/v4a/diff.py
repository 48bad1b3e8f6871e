"""Net changes as a unified diff for people and models: bounded, and saying what it leaves out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from codespace import limits
from codespace.digest import version_of
from codespace.v4a.compare import Allowance, edits_between, lines_of
from codespace.v4a.plan import Edit, NetChange

_CONTEXT_LINES: Final = 3
_NOTICE_BYTES: Final = 160  # kept free for the sentence that says where the diff was cut
_NO_NEWLINE: Final = b"\\ No newline at end of file\n"


def unified_diff(changes: Sequence[NetChange], limit_bytes: int) -> tuple[str, bool]:
    """Return the diff of all changes, and whether something of it was left out.

    A whole file (add, delete) that does not fit is named with its size and hash; other changes are cut
    at the limit. Bytes that are not UTF-8 are never shown, only their size and hash.

    Args:
        limit_bytes: Most UTF-8 bytes of the text.
    """
    page = _Page(limit_bytes)
    allowance = Allowance(limits.DIFF_EFFORT)
    for number, change in enumerate(changes, 1):
        for piece in _file(change, page, allowance):
            page.put(piece)
            if page.cut:
                return page.closed(number, len(changes)), True
    return page.text(), page.left_out


class _Page:
    """Text up to a limit."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._pieces: list[bytes] = []
        self.free = max(0, limit_bytes - _NOTICE_BYTES)
        self.cut = False
        self.left_out = False

    def put(self, piece: bytes) -> None:
        """Add a piece, or its beginning if it does not fit."""
        if len(piece) > self.free:
            self.cut = True
            piece = piece[: self.free]
        self._pieces.append(piece)
        self.free -= len(piece)

    def closed(self, number: int, count: int) -> str:
        """Return the text of a page that was cut in change `number` of `count`."""
        end = b"" if self._pieces[-1].endswith(b"\n") else b"\n"
        notice = f"[diff cut here, in change {number} of {count}: it is over the limit of {self._limit} bytes]\n"
        self._pieces += (end, notice.encode())
        return self.text()

    def text(self) -> str:
        """Return what there is; a character that a cut went through is dropped."""
        return b"".join(self._pieces)[: max(0, self._limit)].decode("utf-8", "ignore")


def _file(change: NetChange, page: _Page, allowance: Allowance) -> Iterator[bytes]:
    old_path, new_path = change.from_path or change.path, change.path
    if change.kind == "move":
        yield f"rename from {old_path}\nrename to {new_path}\n".encode()
        if change.before == change.after:
            return
    yield b"--- /dev/null\n" if change.before is None else f"--- a/{old_path}\n".encode()
    yield b"+++ /dev/null\n" if change.after is None else f"+++ b/{new_path}\n".encode()
    before, after = change.before, change.after
    if before is not None and change.edits is None and not _is_text(before):
        yield _summary("old", "not UTF-8 text", before)
        before = None
    if after is not None and change.edits is None and not _is_text(after):  # an undo brings back whatever there was
        yield _summary("new", "not UTF-8 text", after)
        after = None
    if before is not None and after is not None:
        edits = _refined(before, after, change.edits, allowance)
        yield from _hunks(before, after, edits)
    elif after:
        yield from _whole(after, b"+", page)
    elif before:
        yield from _whole(before, b"-", page)


def _whole(content: bytes, sign: bytes, page: _Page) -> Iterator[bytes]:
    count = content.count(b"\n") + (not content.endswith(b"\n"))
    if len(content) + count + len(_NO_NEWLINE) + 40 > page.free:
        page.left_out = True
        yield _summary("new" if sign == b"+" else "old", f"{count} lines, too large to show here", content)
        return
    yield (f"@@ -0,0 +1,{count} @@\n" if sign == b"+" else f"@@ -1,{count} +0,0 @@\n").encode()
    yield _ended(sign + content[:-1].replace(b"\n", b"\n" + sign) + content[-1:])


def _summary(which: str, what: str, content: bytes) -> bytes:
    return f"[{which} content: {len(content)} bytes, {version_of(content)}, {what}]\n".encode()


def _is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _refined(before: bytes, after: bytes, known: tuple[Edit, ...] | None, allowance: Allowance) -> Iterator[Edit]:
    """Return edits without lines that a replacement takes out and puts back."""
    if known is None:
        yield from edits_between(before, after, allowance)
        return
    for whole in known:
        line, before_start, before_end, after_start, after_end = whole
        if before_start == before_end or after_start == after_end:
            yield whole
            continue
        old, new = before[before_start:before_end], after[after_start:after_end]
        for edit in edits_between(old, new, allowance):
            yield Edit(
                line + edit.line,
                before_start + edit.before_start,
                before_start + edit.before_end,
                after_start + edit.after_start,
                after_start + edit.after_end,
            )


def _hunks(before: bytes, after: bytes, edits: Iterable[Edit]) -> Iterator[bytes]:
    shift = 0  # new lines minus old lines before the hunk
    for group in _groups(before, edits):
        body, old_count, new_count = _body(before, after, group)
        leading = _lines_before(before, group[0].before_start)
        trailing = _lines_after(before, group[-1].before_end)
        context = len(leading) + len(trailing)
        first = group[0].line - len(leading)
        old_range = _range(first, old_count + context)
        new_range = _range(first + shift, new_count + context)
        yield f"@@ -{old_range} +{new_range} @@\n".encode()
        yield _signed(b" ", leading)
        yield from body
        yield _signed(b" ", trailing)
        shift += new_count - old_count


def _groups(before: bytes, edits: Iterable[Edit]) -> Iterator[list[Edit]]:
    """Put edits together whose context would touch."""
    group: list[Edit] = []
    for edit in edits:
        if group:
            gap = edit.line - group[-1].line - before.count(b"\n", group[-1].before_start, group[-1].before_end)
            if gap > 2 * _CONTEXT_LINES:
                yield group
                group = []
        group.append(edit)
    if group:
        yield group


def _body(before: bytes, after: bytes, group: list[Edit]) -> tuple[list[bytes], int, int]:
    pieces: list[bytes] = []
    old_count = new_count = 0
    at = group[0].before_start
    for edit in group:
        gap = lines_of(before[at : edit.before_start])
        old = lines_of(before[edit.before_start : edit.before_end])
        new = lines_of(after[edit.after_start : edit.after_end])
        pieces += (_signed(b" ", gap), _signed(b"-", old), _signed(b"+", new))
        old_count += len(gap) + len(old)
        new_count += len(gap) + len(new)
        at = edit.before_end
    return pieces, old_count, new_count


def _lines_before(content: bytes, end: int) -> list[bytes]:
    start = end
    for _ in range(_CONTEXT_LINES):
        start = content.rfind(b"\n", 0, max(start - 1, 0)) + 1
    return lines_of(content[start:end])


def _lines_after(content: bytes, start: int) -> list[bytes]:
    end = start
    for _ in range(_CONTEXT_LINES):
        newline = content.find(b"\n", end)
        end = len(content) if newline < 0 else newline + 1
    return lines_of(content[start:end])


def _range(first: int, count: int) -> str:
    """Return `start,count` as diff counts: from 1, and the line before where there are none."""
    return f"{first + 1 if count else first},{count}"


def _signed(sign: bytes, lines: list[bytes]) -> bytes:
    if not lines:
        return b""
    return _ended(sign + sign.join(lines))


def _ended(text: bytes) -> bytes:
    return text if text.endswith(b"\n") else text + b"\n" + _NO_NEWLINE
