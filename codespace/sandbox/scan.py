"""One walk over a root that finds everything a command's sandbox must treat apart.

It is done before each run, because the run before it may have made new ones, and after it, so that
what a run has planted is named. It opens nothing but directories, all through `beneath`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from codespace import limits
from codespace.beneath import Entry, Hidden, Root
from codespace.beneath.names import fold
from codespace.errors import Refusal

GitKind = Literal["directory", "gitfile", "bare"]

_GIT_NAMES: Final = frozenset({".git", "git~1"})  # the second is the short name of the first on FAT and NTFS
_IGNORED_AT_THE_END: Final = ". "  # FAT and NTFS drop them from a name
_PARTS: Final = frozenset({"HEAD", "commondir", "objects", "refs"})
_LOOK_AT_CLOCK: Final = 1024  # entries between two looks at the clock


@dataclass(frozen=True, slots=True)
class GitDirectory:
    """Something that git takes for a repository, or for the way to one."""

    path: str
    kind: GitKind


@dataclass(frozen=True, slots=True)
class Inventory:
    """What was found; all paths are relative to the root and sorted."""

    git: tuple[GitDirectory, ...] = ()
    protected: tuple[str, ...] = ()
    hidden_directories: tuple[str, ...] = ()
    hidden_files: tuple[str, ...] = ()
    sockets: tuple[str, ...] = ()
    """Sockets and other special files: each may lead to a program outside."""
    unreadable: tuple[str, ...] = ()
    """Directories that cannot be looked into now; a command of the same owner could open them."""
    links: tuple[str, ...] = ()
    """Links under the name of a git directory or a protected path: nothing can be mounted on them."""
    entries: int = 0


def is_git_name(name: str) -> bool:
    """Return whether git, on some filesystem, takes `name` for `.git`."""
    return fold(name).rstrip(_IGNORED_AT_THE_END) in _GIT_NAMES


def scan(root: Root, *, hidden: Sequence[str], protected: Sequence[str]) -> Inventory:
    """Return what lies below `root`, which shows hidden names (it was opened without globs).

    Args:
        hidden: Globs of what no command may see.
        protected: Globs of what no command may change, in any letter case.
    Raises: Refusal SANDBOX_UNAVAILABLE where the tree is too large to be looked at.
    """
    return _Scan(root, hidden, protected).run()


class _Scan:
    def __init__(self, root: Root, hidden: Sequence[str], protected: Sequence[str]) -> None:
        self._root = root
        self._hidden = _Globs(hidden)
        self._protected = _Globs(protected)
        self._git: list[GitDirectory] = []
        self._parts: dict[str, set[str]] = {}
        self._found: dict[str, list[str]] = {name: [] for name in ("protected", "directories", "files", "special")}
        self._links: list[str] = []
        self._entries = 0
        self._deadline = time.monotonic() + limits.SANDBOX_SCAN_SECONDS

    def run(self) -> Inventory:
        walk = self._root.walk(skip=self._leave_out)
        for _ in walk:
            pass  # all is done in `_leave_out`, which sees each entry once
        bare = [
            GitDirectory(directory, "bare")
            for directory, parts in self._parts.items()
            if "HEAD" in parts and ("commondir" in parts or {"objects", "refs"} <= parts)
        ]
        return Inventory(
            git=tuple(sorted((*self._git, *bare), key=lambda found: found.path)),
            protected=tuple(sorted(self._found["protected"])),
            hidden_directories=tuple(sorted(self._found["directories"])),
            hidden_files=tuple(sorted(self._found["files"])),
            sockets=tuple(sorted(self._found["special"])),
            unreadable=tuple(sorted(walk.closed)),
            links=tuple(sorted(self._links)),
            entries=self._entries,
        )

    def _leave_out(self, entry: Entry) -> bool:
        """Take note of an entry; returns whether the walk has no business below it."""
        self._count()
        path = entry.path
        above, _, name = path.rpartition("/")
        if name in _PARTS:
            self._parts.setdefault(above or ".", set()).add(name)
        if entry.kind == "special":
            self._found["special"].append(path)
        first = path.partition("/")[0]
        if self._hidden.cover(first, path):
            if entry.kind != "link":  # a link tells only where it leads; that is visible or is not by itself
                self._found["directories" if entry.kind == "directory" else "files"].append(path)
            return True
        if is_git_name(name):
            self._note_git(entry)
            return True
        if self._protected.cover_folded(first, path):
            (self._links if entry.kind == "link" else self._found["protected"]).append(path)
            # Below a protected directory nothing can be changed; a hidden file must still be found there.
            return not self._hidden
        return False

    def _note_git(self, entry: Entry) -> None:
        if entry.kind == "link":
            self._links.append(entry.path)
        elif entry.kind != "special":
            self._git.append(GitDirectory(entry.path, "directory" if entry.kind == "directory" else "gitfile"))

    def _count(self) -> None:
        self._entries += 1
        if self._entries % _LOOK_AT_CLOCK == 0 and time.monotonic() > self._deadline:
            raise Refusal(
                "SANDBOX_UNAVAILABLE",
                f"The workspace has more than {self._entries:,} entries, and looking for git directories and protected "
                f"files took over {limits.SANDBOX_SCAN_SECONDS:g} s. Nothing was started.",
                next_step="Ask the operator to register a smaller directory, or to move build output elsewhere.",
            )


class _Globs:
    """Globs, with those that cannot match below a name at the root left out by that name."""

    def __init__(self, globs: Sequence[str]) -> None:
        self._globs = tuple(globs)
        self._below: dict[str, Hidden] = {}

    def __bool__(self) -> bool:
        return bool(self._globs)

    def cover(self, first: str, path: str) -> bool:
        """Return whether `path`, whose first component is `first`, matches by its exact letters."""
        chosen = self._chosen(first)
        return bool(chosen) and chosen.covers(path)

    def cover_folded(self, first: str, path: str) -> bool:
        """Return whether it matches in any letter case."""
        chosen = self._chosen(first)
        return bool(chosen) and chosen.covers_folded(path)

    def _chosen(self, first: str) -> Hidden:
        known = self._below.get(first)
        if known is None:
            known = Hidden([glob for glob in self._globs if _may_match(glob, first)])
            if len(self._below) < limits.SANDBOX_BINDS:
                self._below[first] = known
        return known


def _may_match(glob: str, first: str) -> bool:
    body = glob.rstrip("/")
    if "/" not in body or "**" in body:
        return True
    pattern = body.removeprefix("/").partition("/")[0]
    return Hidden(["/" + pattern]).covers_folded(first)
