"""Patch text to operations: the grammar, and nothing of the files it is about.

Line numbers count from 1 at the `*** Begin Patch` line. Only `Refusal` is ever raised.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple, NoReturn

from codespace import limits
from codespace.errors import Refusal
from codespace.v4a.lines import right_trimmed, trimmed

BEGIN: Final = "*** Begin Patch"
END: Final = "*** End Patch"
END_OF_FILE: Final = "*** End of File"
ADD: Final = "*** Add File: "
DELETE: Final = "*** Delete File: "
UPDATE: Final = "*** Update File: "
MOVE: Final = "*** Move to: "
ENVIRONMENT: Final = "*** Environment ID:"
_HEREDOC: Final = ("<<EOF", "<<'EOF'", '<<"EOF"')
_HEADERS: Final = "'*** Add File: PATH', '*** Delete File: PATH', '*** Update File: PATH' or '*** End Patch'"
_LIKE: Final = (
    f"between '{BEGIN}' and '{END}', begin each file with '*** Update File: PATH' and each chunk with a bare '@@'."
)
_FRAME_ALONE: Final = f"send the lines from '{BEGIN}' to '{END}' alone."
_OTHERS: Final = (
    (
        re.compile(r"diff --git |(?:---|\+\+\+) |index [0-9a-f]+\.\.|@@ -\d"),
        f"It looks like a unified diff. Here, {_LIKE}",
    ),
    (re.compile(r"(?:<{7}|>{7})(?: |$)|={7}$"), f"It looks like search and replace, or a conflict. Here, {_LIKE}"),
    (re.compile(r"```|~~~"), f"It seems to stand in the fence of a code block: {_FRAME_ALONE}"),
    (re.compile(r".*<<-?\s*['\"]?[A-Z_]+['\"]?$"), f"It seems to stand in the heredoc of a shell: {_FRAME_ALONE}"),
)
"""How lines of other formats begin, and the next step where one of them is in the way."""
_FIRST_LINES: Final = 4  # that may say which other format it is: a name or a sentence can stand before its marks
_DIRECTORY_EFFORT: Final = 80  # of a look at a directory, in steps to it
_SHOWN_CHARACTERS: Final = 200  # of a line quoted in a message; the caller has the whole one

Kind = Literal[" ", "+", "-"]


class Chunk(NamedTuple):
    """One `@@` part of an update.

    Attributes:
        line: Patch line where the chunk begins.
        body_line: Patch line of `lines[0]`; the others follow without a gap.
        anchor: The text behind `@@`, a whole line of the file, or None.
        lines: (kind, text) as written: context, added or removed.
        end_of_file: Whether the chunk is marked to lie at the end of the file.
    """

    line: int
    body_line: int
    anchor: str | None
    lines: tuple[tuple[Kind, str], ...]
    end_of_file: bool = False


class Add(NamedTuple):
    """Create a file. `line` is the patch line of the header, as in the other operations."""

    path: str
    data: bytes
    line: int


class Delete(NamedTuple):
    """Remove a file."""

    path: str
    line: int


class Update(NamedTuple):
    """Change a file's lines, and move it where `move_to` is a path."""

    path: str
    move_to: str | None
    chunks: tuple[Chunk, ...]
    line: int


Operation = Add | Delete | Update


class Patch(NamedTuple):
    """A well-formed patch; its paths are as written. No operations at all is well-formed too."""

    operations: tuple[Operation, ...]


def parse(text: str) -> Patch:
    """Return the operations of a patch text.

    Raises: Refusal INVALID_PATCH with `details.line`; LIMIT_REACHED for a text beyond limits.PATCH_LINES
        or limits.PATCH_OPERATIONS, or whose paths are too deep together.
    """
    reader = _Reader(_framed(text))
    reader.read()
    return Patch(tuple(reader.operations))


def _framed(text: str) -> list[str]:
    """Return the lines from Begin to End, freed of a heredoc and of carriage returns before LF."""
    bare = trimmed(text)
    count = bare.count("\n") + 1
    if count > limits.PATCH_LINES:
        raise Refusal(
            "LIMIT_REACHED",
            f"The patch has {count} lines, the limit is {limits.PATCH_LINES}. Nothing was written.",
            next_step="Send it as several smaller patches.",
            details={"limit": "PATCH_LINES", "maximum": limits.PATCH_LINES, "actual": count},
        )
    _check_encodable(bare)
    lines = bare.split("\n") if bare else []
    returns = "\r" in bare
    if returns:
        lines = _without_returns(lines)
    fault = _frame_fault(lines)
    if fault and len(lines) >= 4 and lines[0] in _HEREDOC and lines[-1].endswith("EOF"):
        lines = lines[1:-1]
        fault = _frame_fault(lines)
    if fault:
        _refuse(
            *fault,
            like=lines[:_FIRST_LINES] if fault[0] == 1 else [each for each in lines[-1:] if each[:1] not in "+- "],
        )
    return _without_returns(lines[:-1]) + lines[-1:] if returns else lines


def _without_returns(lines: list[str]) -> list[str]:
    return [line.removesuffix("\r") for line in lines]


def _check_encodable(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        line = text.count("\n", 0, error.start) + 1
        _refuse(line, "has a lone surrogate, which no UTF-8 file can hold")


def _frame_fault(lines: list[str]) -> tuple[int, str] | None:
    if lines and trimmed(lines[0]) != BEGIN:
        return 1, f"must be '{BEGIN}', it is {_quoted(lines[0])}"
    if not lines or trimmed(lines[-1]) != END:
        return max(len(lines), 1), f"is the last one and must be '{END}'" + (
            f", it is {_quoted(lines[-1])}" if lines else "; the patch is empty"
        )
    return None


class _Reader:
    """The states between Begin and End: before any header, add, delete, update, ended."""

    def __init__(self, lines: list[str]) -> None:
        self.operations: list[Operation] = []
        self._lines = lines
        self._read = 1
        """How many lines were taken; the first one is Begin."""
        self._feed: Callable[[int, str], None] = self._body
        """Takes one line; the state is which method that is."""
        self._environment = False
        self._depth_effort = 0
        self._path = ""
        self._line = 0
        self._added: list[str] = []
        self._move_to: str | None = None
        self._chunks: list[Chunk] = []
        self._open: _OpenChunk | None = None

    def read(self) -> None:
        """Take every line."""
        last = len(self._lines) - 1
        while self._read < last:
            self._read += 1
            self._feed(self._read, self._lines[self._read - 1])
        self._close(len(self._lines), END)

    def _close(self, number: int, marker: str) -> None:
        """End the operation at hand; `marker` is the line that does it."""
        if self._feed == self._add:
            self._added.append("")
            self.operations.append(Add(self._path, "\n".join(self._added).encode(), self._line))
        elif self._feed == self._delete:
            self.operations.append(Delete(self._path, self._line))
        elif self._feed == self._update:
            self._close_update(number, marker)

    def _close_update(self, number: int, marker: str) -> None:
        if self._open is None:
            _refuse(self._line, f"begins an update of {_quoted(self._path)} that has no chunk")
        if not self._open.lines:
            if marker == END:
                _refuse(number, "ends an update whose last chunk has no lines")
            _refuse_bare_chunk(number, marker)
        self._chunks.append(self._open.finished())
        self.operations.append(Update(self._path, self._move_to, tuple(self._chunks), self._line))

    def _header(self, number: int, line: str) -> bool:
        """Begin the next operation if `line`, trimmed by the caller, is a header or End."""
        if not line.startswith("*** "):
            return False
        for prefix, state in ((ADD, self._add), (DELETE, self._delete), (UPDATE, self._update)):
            if line.startswith(prefix) and len(line) > len(prefix):
                self._close(number, line)
                self._check_count()
                self._path, self._line, self._feed = line[len(prefix) :], number, state
                self._check_depth(self._path)
                self._added, self._move_to, self._chunks, self._open = [], None, [], None
                return True
        if line == END:
            self._close(number, line)
            self._feed = self._ended
            return True
        return False

    def _check_count(self) -> None:
        if len(self.operations) >= limits.PATCH_OPERATIONS:
            raise Refusal(
                "LIMIT_REACHED",
                f"The patch has more than {limits.PATCH_OPERATIONS} operations. Nothing was written.",
                next_step="Send it as several smaller patches.",
                details={"limit": "PATCH_OPERATIONS", "maximum": limits.PATCH_OPERATIONS},
            )

    def _check_depth(self, path: str) -> None:
        depth = path.count("/")
        self._depth_effort += depth * (depth + _DIRECTORY_EFFORT)
        if self._depth_effort > limits.PATCH_DEPTH_EFFORT:
            raise Refusal(
                "LIMIT_REACHED",
                "The paths of the patch lead through more directories than one patch may have looked at. "
                "Nothing was written.",
                next_step="Send it as several smaller patches.",
                details={"limit": "PATCH_DEPTH_EFFORT", "maximum": limits.PATCH_DEPTH_EFFORT},
            )

    def _body(self, number: int, line: str) -> None:
        bare = trimmed(line)
        if self._header(number, bare):
            return
        if not bare.startswith(ENVIRONMENT):
            _refuse_header(number, bare)
        if not trimmed(bare[len(ENVIRONMENT) :]):
            _refuse(number, "names no environment id; leave the line out")
        if self._environment:
            _refuse(number, "names a second environment id; leave the line out")
        self._environment = True

    def _add(self, number: int, line: str) -> None:
        if line.startswith("+"):
            self._take_added(number)
        elif not self._header(number, bare := trimmed(line)):
            _refuse_header(number, bare, " (each line of a file to add begins with '+', empty ones too)")

    def _take_added(self, number: int) -> None:
        """Take line `number` and all that go on like it at once: a new file may have many. End is none of them."""
        lines, end = self._lines, number
        while lines[end].startswith("+"):
            end += 1
        self._added += [line[1:] for line in lines[number - 1 : end]]
        self._read = end

    def _delete(self, number: int, line: str) -> None:
        if not self._header(number, bare := trimmed(line)):
            _refuse_header(number, bare)

    def _ended(self, number: int, line: str) -> None:
        if trimmed(line):
            _refuse(number, f"stands behind '{END}', which must be the last line")

    def _update(self, number: int, line: str) -> None:
        right = right_trimmed(line)
        chunk = self._open
        if self._header(number, right):
            return
        opens = right == "@@" or right.startswith("@@ ")
        if chunk is not None and chunk.end_of_file and not opens:
            if right:
                _refuse_needs_marker(number, line)
        elif chunk is None and self._move_to is None and right.startswith(MOVE):
            self._move_to = right[len(MOVE) :]
            self._check_depth(self._move_to)
        elif opens:
            self._open_chunk(number, line, right)
        elif right == END_OF_FILE:
            self._mark_end_of_file(number)
        elif line == "" or line[0] in " +-":
            self._chunk_line(number, line)
        elif chunk is not None and chunk.lines:
            _refuse_needs_marker(number, line)
        else:
            _refuse_bare_chunk(number, line)

    def _open_chunk(self, number: int, line: str, right: str) -> None:
        if self._open is not None:
            if not self._open.lines:
                _refuse_bare_chunk(number, line)
            self._chunks.append(self._open.finished())
        self._open = _OpenChunk(number, number + 1, right[3:] or None)

    def _mark_end_of_file(self, number: int) -> None:
        if self._open is not None:
            if not self._open.lines:
                _refuse(number, "marks the end of the file in a chunk that has no lines")
            self._open.end_of_file = True

    def _chunk_line(self, number: int, line: str) -> None:
        if self._open is None:
            self._open = _OpenChunk(number, number, None)
        kind: Kind = "+" if line[:1] == "+" else "-" if line[:1] == "-" else " "
        self._open.lines.append((kind, line[1:]))


class _OpenChunk:
    """A chunk that still takes lines."""

    __slots__ = ("anchor", "body_line", "end_of_file", "line", "lines")

    def __init__(self, line: int, body_line: int, anchor: str | None) -> None:
        self.line = line
        self.body_line = body_line
        self.anchor = anchor
        self.lines: list[tuple[Kind, str]] = []
        self.end_of_file = False

    def finished(self) -> Chunk:
        return Chunk(self.line, self.body_line, self.anchor, tuple(self.lines), self.end_of_file)


def _quoted(line: str) -> str:
    shown = line if len(line) <= _SHOWN_CHARACTERS else line[:_SHOWN_CHARACTERS] + "…"
    return f"'{shown}'"


def _refuse(line: int, problem: str, like: Sequence[str] = ()) -> NoReturn:
    """Refuse the patch; the next step is that for the format whose mark one of the lines `like` is."""
    bare = [trimmed(each[:_SHOWN_CHARACTERS]) for each in like]
    usual = "Correct the patch text and send it again; the files need not be read again."
    raise Refusal(
        "INVALID_PATCH",
        f"Line {line} of the patch {problem}. Nothing was written.",
        next_step=next((told for each in bare for mark, told in _OTHERS if mark.match(each)), usual),
        details={"line": line},
    )


def _refuse_header(line: int, text: str, hint: str = "") -> NoReturn:
    _refuse(line, f"is {_quoted(text)} where {_HEADERS} is needed{hint}", [text])


def _refuse_needs_marker(line: int, text: str) -> NoReturn:
    _refuse(
        line,
        f"is {_quoted(text)}, which continues no chunk: a line begins with ' ', '+' or '-', a chunk with '@@'",
        [text],
    )


def _refuse_bare_chunk(line: int, text: str) -> NoReturn:
    _refuse(
        line,
        f"is {_quoted(text)} where a chunk needs its first line, beginning with ' ' (context), '+' or '-'",
        [text],
    )
