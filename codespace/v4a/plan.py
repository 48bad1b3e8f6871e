"""From operations to the net change of each path, on an overlay over a tree that is only read.

The engine knows no policy: which paths are protected or hidden, and what a link is, is the tree's
and the transaction's to say. Nothing here writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, NoReturn, Protocol

from codespace import limits
from codespace.errors import Refusal
from codespace.v4a.lines import Text
from codespace.v4a.parse import Add, Delete, Operation, Patch, Update
from codespace.v4a.paths import clean, parents
from codespace.v4a.place import Effort, Notes, Replacement, place

_LINE_EFFORT: Final = 4  # splitting and joining one line, in line comparisons
_BYTES_PER_EFFORT: Final = 2  # decoding and encoding a file again, in line comparisons


class File(NamedTuple):
    """A regular file as the tree has it. `mode` is its permission bits."""

    data: bytes
    mode: int


class Directory:
    """A directory; its content does not matter here."""

    __slots__ = ()


class Tree(Protocol):
    """What the patch is planned on. Paths are clean and relative; `look` is asked once a path."""

    def look(self, path: str) -> File | Directory | None:
        """Return what is at `path`; None where nothing is, also below a missing directory or a file.

        Raises: Refusal for what the engine must not see (links, special files, files too large).
        """


class Edit(NamedTuple):
    """One changed run of lines, so that a diff need not be searched for.

    `line` counts LF-terminated lines of the old bytes from 0; the offsets are bytes, at line starts.
    """

    line: int
    before_start: int
    before_end: int
    after_start: int
    after_end: int


@dataclass(frozen=True, slots=True)
class NetChange:
    """What the whole patch does to one path.

    Attributes:
        path: Where the bytes are afterwards; for a delete where they were.
        kind: `move` where a file ends at a path that was free and its own path is free afterwards;
            the removal of `from_path` is part of it and no change of its own.
        from_path: Where a moved file was; None for the other kinds.
        before: The bytes at `path`, or at `from_path` of a move; None for an add.
        after: The bytes afterwards; None for a delete.
        mode: Permission bits the file must have; None for a new file, whose mode the umask decides,
            and for a delete.
        edits: Where `after` differs from `before`, if that is known without searching.
    """

    path: str
    kind: Literal["add", "update", "delete", "move"]
    from_path: str | None
    before: bytes | None
    after: bytes | None
    mode: int | None
    edits: tuple[Edit, ...] | None = field(default=None, repr=False, compare=False)


class Plan(NamedTuple):
    """What a patch does to a tree.

    Attributes:
        changes: Net changes in the order in which the patch first names their paths.
        touched: Every path that the patch names and the plan looked at, in that order.
        seen: The bytes of each touched path before the patch; None where no file was.
        directories: Directories that the patch makes and that no file of it needs in the end.
        notes: Of chunks that were not placed to the letter, or at the first of several places; limits.PATCH_NOTES of
            them, and a count of the others.
    """

    changes: tuple[NetChange, ...]
    touched: tuple[str, ...]
    seen: Mapping[str, bytes | None]
    directories: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def plan(patch: Patch, tree: Tree, deadline: Callable[[], bool] | None = None) -> Plan:
    """Plan a patch as a whole; later operations see what earlier ones would have left.

    Args:
        deadline: Returns True when time is up; asked every few milliseconds of work.
    Raises: Refusal. INVALID_PATCH (a chunk without a place is explained in details), PATH_ESCAPE,
        FILE_NOT_FOUND, PATH_NOT_DIRECTORY, NOT_TEXT, SPECIAL_FILE_REJECTED, ADD_FILE_EXISTS,
        MOVE_DESTINATION_EXISTS, LIMIT_REACHED past limits.PATCH_EFFORT or the deadline, and whatever
        the tree refuses.
    """
    if not patch.operations:
        _refuse("INVALID_PATCH", "The patch has no operations.", "Send a patch with at least one file header.")
    steps = [_cleaned(operation) for operation in patch.operations]  # before the tree is asked for anything
    overlay = _Overlay(tree)
    effort = Effort(deadline)
    for operation, path, move_to in steps:
        effort.spend(1)
        effort.look_at_clock()
        if isinstance(operation, Add):
            overlay.add(path, operation.data)
        elif isinstance(operation, Delete):
            overlay.delete(path)
        else:
            overlay.update(path, move_to, operation, effort)
    return overlay.net()


def _cleaned(operation: Operation) -> tuple[Operation, str, str | None]:
    move_to = operation.move_to if isinstance(operation, Update) else None
    return operation, clean(operation.path), None if move_to is None else clean(move_to)


class _Entry(NamedTuple):
    """A path as the operations so far leave it. `origin`: the path in the tree its bytes descend from."""

    file: File | None
    origin: str | None
    edits: tuple[Edit, ...] | None = None


class _Overlay:
    """The tree with the operations so far on top of it."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._before: dict[str, File | None] = {}  # what the tree had, of each path looked at that is no directory
        self._entries: dict[str, _Entry] = {}
        self._directories: set[str] = {"."}
        self._made: dict[str, None] = {}
        self._named: dict[str, None] = {}
        self._updated: set[str | None] = set()
        self._notes = Notes()

    def add(self, path: str, data: bytes) -> None:
        self._check_free(path, "ADD_FILE_EXISTS", f"{path} exists already and is never overwritten by an add.")
        self._put(path, _Entry(File(data, 0), None))

    def delete(self, path: str) -> None:
        self._existing(path)
        self._entries[path] = _Entry(None, None)

    def update(self, path: str, move_to: str | None, operation: Update, effort: Effort) -> None:
        entry, file = self._existing(path)
        known = entry.origin is not None and self._before[entry.origin] is file
        if not known or entry.origin in self._updated:
            effort.spend(len(file.data) // _BYTES_PER_EFFORT)  # the first time is paid by the tree's own limits
        self._updated.add(entry.origin)
        after, edits = _edited(path, file.data, operation, effort, self._notes)
        if after != file.data:
            entry = _Entry(File(after, file.mode), entry.origin, edits if known else None)
        if move_to is None:
            self._entries[path] = entry
            return
        problem = f"{move_to} exists already and is never overwritten by a move (of {path})."
        self._check_free(move_to, "MOVE_DESTINATION_EXISTS", problem)
        self._put(move_to, entry)
        self._entries[path] = _Entry(None, None)

    def net(self) -> Plan:
        """Return what is left of all operations once each path is looked at as a whole."""
        moved_from = {entry.origin: path for path, entry in self._entries.items() if self._is_move(path, entry)}
        changes = (self._change(path, moved_from) for path in self._named)
        seen = {path: before.data if (before := self._before[path]) else None for path in self._named}
        return Plan(
            changes=tuple(change for change in changes if change is not None),
            touched=tuple(self._named),
            seen=seen,
            directories=self._left_empty(),
            notes=self._notes.told(),
        )

    def _is_move(self, path: str, entry: _Entry) -> bool:
        if entry.file is None or entry.origin in (None, path) or self._before[path] is not None:
            return False
        return self._entries[entry.origin].file is None

    def _change(self, path: str, moved_from: Mapping[str | None, str]) -> NetChange | None:
        entry, before = self._entries[path], self._before[path]
        if entry.file is None:
            if before is None or path in moved_from:
                return None
            return NetChange(path, "delete", None, before.data, None, None)
        after = entry.file.data
        mode = None if entry.origin is None else entry.file.mode
        if before is not None:
            # Deleted and added again is an update in the end, and an update keeps the mode.
            mode = before.mode if mode is None else mode
            if after == before.data and mode == before.mode:
                return None
            edits = entry.edits if entry.origin == path else None
            return NetChange(path, "update", None, before.data, after, mode, edits)
        if moved_from.get(entry.origin) == path:
            origin = self._before[entry.origin] if entry.origin is not None else None
            assert origin is not None, "a move descends from a file of the tree"
            return NetChange(path, "move", entry.origin, origin.data, after, mode, entry.edits)
        return NetChange(path, "add", None, None, after, mode)

    def _left_empty(self) -> tuple[str, ...]:
        needed = {parent for path, entry in self._entries.items() if entry.file for parent in parents(path)}
        return tuple(directory for directory in self._made if directory not in needed)

    def _put(self, path: str, entry: _Entry) -> None:
        missing = False
        for parent in parents(path):
            missing = missing or self._look(parent) is None  # below a missing directory nothing is: no need to look
            if missing:
                self._made[parent] = None
        self._entries[path] = entry

    def _look(self, path: str) -> File | Directory | None:
        """Return what is at `path` now; the first look asks the tree and keeps what it said."""
        if path in self._made or path in self._directories:
            return Directory()
        entry = self._entries.get(path)
        if entry is not None:
            return entry.file
        # Below a path that was found to be no directory the tree has nothing, whatever the patch makes of it.
        there = None if self._is_below_none(path) else self._tree.look(path)
        if isinstance(there, Directory):
            self._directories.add(path)
            return there
        self._before[path] = there
        self._entries[path] = _Entry(there, None if there is None else path)
        return there

    def _is_below_none(self, path: str) -> bool:
        """Return whether a path above was found to be no directory. Asked of each level of a deep path, so cheap."""
        if path.rpartition("/")[0] in self._directories:
            return False
        return any(parent in self._entries for parent in parents(path))

    def _name(self, path: str) -> File | None:
        """Return the file that is at a path of the patch, or None. Raises: Refusal SPECIAL_FILE_REJECTED."""
        there = self._look(path)
        if isinstance(there, Directory):
            _refuse(
                "SPECIAL_FILE_REJECTED", f"{path} is a directory.", "Name a file, with its directory in front.", path
            )
        self._named[path] = None
        return there

    def _existing(self, path: str) -> tuple[_Entry, File]:
        file = self._name(path)
        if file is None:
            self._check_parents(path)
            _refuse("FILE_NOT_FOUND", f"{path} does not exist.", "Use find to see what is there.", path)
        return self._entries[path], file

    def _check_free(self, path: str, code: str, problem: str) -> None:
        if self._name(path) is not None:
            _refuse(code, problem, None, path)
        self._check_parents(path)

    def _check_parents(self, path: str) -> None:
        for parent in parents(path):
            there = self._look(parent)
            if there is None:
                return  # nothing is below it, no file either
            if isinstance(there, File):
                problem = f"{path} cannot exist: {parent} is a file, not a directory."
                _refuse("PATH_NOT_DIRECTORY", problem, "Use find to see what is there.", path)


def _edited(
    path: str, data: bytes, operation: Update, effort: Effort, notes: Notes
) -> tuple[bytes, tuple[Edit, ...] | None]:
    """Return the bytes after all chunks, and where they differ."""
    most = limits.PATCH_FILE_LINES
    if len(data) > most and data.count(b"\n") + data.count(b"\r") > most:
        problem = f"{path} has more than {most} lines, too many to place a chunk in."
        _refuse("LIMIT_REACHED", problem, "Change it with a command.", path)
    try:
        text = Text(data.decode())
    except UnicodeDecodeError as error:
        problem = f"{path} is not UTF-8 text (byte {error.start}), so no chunk can be placed in it."
        _refuse("NOT_TEXT", problem, "Change it with a command, or delete it and add it anew.", path)
    effort.spend(len(text.lines) * _LINE_EFFORT)
    replacements = _closed(place(path, operation.chunks, text, effort, notes), text)
    after, edits = _spliced(text, replacements)
    return after, None if text.lone_cr else edits


def _closed(replacements: list[Replacement], text: Text) -> list[Replacement]:
    """Add the ending that an update gives to a last line without one."""
    last = len(text.lines) - 1
    if text.closed or any(start <= last < start + count for start, count, _ in replacements):
        return replacements
    ending = Replacement(last, 1, [text.lines[last]])
    return sorted([*replacements, ending], key=lambda replacement: replacement.start)


def _spliced(text: Text, replacements: list[Replacement]) -> tuple[bytes, tuple[Edit, ...]]:
    pieces: list[bytes] = []
    edits: list[Edit] = []
    line = before_at = after_at = 0
    for start, count, added in replacements:
        kept = text.raw(line, start).encode()
        removed = text.raw(start, start + count).encode()
        written = text.written(added).encode()
        before_at += len(kept)
        after_at += len(kept)
        if removed != written:
            edits.append(Edit(start, before_at, before_at + len(removed), after_at, after_at + len(written)))
        before_at += len(removed)
        after_at += len(written)
        line = start + count
        pieces += (kept, written)
    pieces.append(text.raw(line, len(text.lines)).encode())
    return b"".join(pieces), tuple(edits)


def _refuse(code: str, problem: str, next_step: str | None, path: str | None = None) -> NoReturn:
    raise Refusal(
        code,
        f"{problem} Nothing was written.",
        next_step=next_step,
        details=None if path is None else {"path": path},
    )
