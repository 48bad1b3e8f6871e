"""One walk over a root that finds everything a command's sandbox must treat apart.

It is done before each run, because the run before it may have made new ones, and after it, so that
what a run has planted is named. It opens nothing but directories, and what may be a branch though its
name is hidden, all through `beneath`. A directory that is as an earlier scan left it, by a time of
change that nobody can set, is not listed again.
"""

from __future__ import annotations

import errno
import functools
import itertools
import os
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from codespace import limits
from codespace.beneath import Hidden, Root
from codespace.beneath.kernel import is_encrypted
from codespace.beneath.names import fold
from codespace.beneath.reading import SETTLED_NANOSECONDS, Stamp, stamp_of
from codespace.beneath.walking import Kind, kind_of
from codespace.display import display
from codespace.errors import Refusal
from codespace.sandbox import shortage
from codespace.sandbox.inventory import gitrefs

GitKind = Literal["directory", "gitfile", "bare", "link"]

_GIT_NAMES: Final = frozenset({".git", "git~1"})  # the second is the short name of the first on FAT and NTFS
_IGNORED_AT_THE_END: Final = ". "  # FAT and NTFS drop them from a name
_PARTS: Final = frozenset({"HEAD", "commondir", "objects", "refs"})
_DATA: Final = "objects"
_WITH_DATA: Final = re.compile(r"|lfs|annex|modules/.+", re.DOTALL)
"""Where in a git directory that name is of data: elsewhere a branch, a remote or a worktree may be called so."""
_TELLING: Final = frozenset(letter for name in (*_GIT_NAMES, *_PARTS) for letter in (name[0].lower(), name[0].upper()))
"""First letters of every name that matters by itself, in plain letters."""
_LOOK_AT_CLOCK: Final = 1024  # entries between two looks at the clock


@dataclass(frozen=True, slots=True)
class GitDirectory:
    """Something that git takes for a repository, or for the way to one; or a link in one, which it writes through."""

    path: str
    kind: GitKind


@dataclass(frozen=True, slots=True)
class Inventory:
    """What was found; all paths are relative to the root and sorted.

    Of hidden directories, of hidden files and of sockets one more is told than can be mounted, of however many.
    """

    git: tuple[GitDirectory, ...] = ()
    protected: tuple[str, ...] = ()
    hidden_directories: tuple[str, ...] = ()
    hidden_files: tuple[str, ...] = ()
    hidden_links: tuple[str, ...] = ()
    sockets: tuple[str, ...] = ()
    """Sockets and other special files: each may lead to a program outside."""
    unreadable: tuple[str, ...] = ()
    """Directories that cannot be looked into now; a command of the same owner could open them."""
    links: tuple[str, ...] = ()
    """Links under the name of a git directory or a protected path: nothing can be mounted on them."""
    entries: int = 0


@dataclass(frozen=True, slots=True)
class _Listed:
    """What one directory holds that matters, as long as its stamp is the same."""

    stamp: Stamp
    count: int
    below: tuple[str, ...]
    """Paths of directories of which nothing is to be said but that they are to be looked into."""
    noted: tuple[tuple[str, Kind], ...]
    """Paths of which a note is taken."""
    size_bytes: int
    """What all those paths take in memory."""


@dataclass(slots=True)
class Memory:
    """What scans of one root with the same globs have seen, for the next one. Threads may share it."""

    _listed: Mapping[str, _Listed] = field(default_factory=dict)

    def recall(self) -> Mapping[str, _Listed]:
        return self._listed

    def keep(self, listed: Mapping[str, _Listed]) -> None:
        """Keep what a scan has just seen, in place of what was kept."""
        self._listed = listed


def is_git_name(name: str) -> bool:
    """Return whether git, on some filesystem, takes `name` for `.git`."""
    return fold(name).rstrip(_IGNORED_AT_THE_END) in _GIT_NAMES


@functools.lru_cache(maxsize=64)  # what lies in one directory is looked at together
def _lies_in_git(directory: str) -> bool:
    return any(map(is_git_name, directory.split("/")))


@functools.lru_cache(maxsize=64)
def _in_git(directory: str) -> str:
    """Return the path, in the outermost git directory, of what a directory that lies in one is; empty for itself."""
    names = itertools.dropwhile(lambda name: not is_git_name(name), directory.split("/"))
    return "/".join(itertools.islice(names, 1, None))


def scan(root: Root, *, hidden: Sequence[str], protected: Sequence[str], memory: Memory | None = None) -> Inventory:
    """Return what lies below `root`, which shows hidden names (it was opened without globs).

    Args:
        hidden: Globs of what no command may see.
        protected: Globs of what no command may change, in any letter case.
        memory: Of earlier scans of this root with the same globs; None to list every directory.
    Raises: Refusal SANDBOX_UNAVAILABLE where the tree is too large to be looked at, or its names to be kept in memory
        meanwhile; OSError for a shortage.
    """
    if memory is None or not root.tells_changes():
        return _Scan(root, hidden, protected, {}).run()
    current = _Scan(root, hidden, protected, memory.recall())
    inventory = current.run()
    memory.keep(current.listed)
    return inventory


class _Scan:
    def __init__(
        self, root: Root, hidden: Sequence[str], protected: Sequence[str], known: Mapping[str, _Listed]
    ) -> None:
        self.listed: dict[str, _Listed] = {}
        self._known = known
        self._room = limits.SANDBOX_KEPT_ENTRIES
        self._room_bytes = limits.SANDBOX_KEPT_BYTES
        self._root = root
        self._hidden = _Globs(hidden)
        self._hidden_places = _Globs([glob for glob in hidden if "/" in glob.removeprefix("**/").rstrip("/")])
        self._branches = gitrefs.Branches(root, self._look_at_clock)
        self._protected = _Globs(protected)
        names = (*self._hidden.of_names, *self._protected.of_names)
        self._named = Hidden([glob for glob in names if glob[0] not in _TELLING])  # the others are noticed anyway
        self._git: list[GitDirectory] = []
        self._parts: dict[str, set[str]] = {}
        self._found: dict[str, list[str]] = {
            name: [] for name in ("protected", "directories", "files", "links", "special")
        }
        self._links: list[str] = []
        self._closed: list[str] = []
        self._left: list[str] = []
        self._found_bytes = self._left_bytes = 0
        self._at = "."
        self._entries = 0
        self._deadline = time.monotonic() + limits.SANDBOX_SCAN_SECONDS

    def run(self) -> Inventory:
        self._see(".", "directory")
        while self._left:
            self._at = self._left.pop()
            self._left_bytes -= sys.getsizeof(self._at)
            self._look_into(self._at)
            self._look_at_clock()
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
            hidden_links=tuple(sorted(self._found["links"])),
            sockets=tuple(sorted(self._found["special"])),
            unreadable=tuple(sorted(self._closed)),
            links=tuple(sorted(set(self._links))),
            entries=self._entries,
        )

    def _look_into(self, directory: str) -> None:
        known = self._known.get(directory)
        if known is not None and self._root.stamp(directory) == known.stamp:
            self._see_again(directory, known)
            return
        try:
            descriptor = self._root.open_listing(directory)
        except OSError as error:
            self._note_closed(directory, error)
            return
        try:
            began = time.time_ns()
            stamp = stamp_of(os.fstat(descriptor))
            with os.scandir(descriptor) as names:
                listed = self._see_all(directory, stamp, names)
        except OSError as error:
            self._note_closed(directory, error)
        else:
            settled = stamp[0] == self._root.identity[0] and stamp[-1] < began - SETTLED_NANOSECONDS
            if settled and not is_encrypted(descriptor):
                self._keep(directory, listed)
        finally:
            os.close(descriptor)

    def _see_again(self, directory: str, known: _Listed) -> None:
        self._keep(directory, known)
        self._entries += known.count
        self._left.extend(known.below)
        self._left_bytes += sum(map(sys.getsizeof, known.below))
        for path, kind in known.noted:
            self._see(path, kind)

    def _keep(self, directory: str, listed: _Listed) -> None:
        room = self._room - 1 - len(listed.below) - len(listed.noted)
        room_bytes = self._room_bytes - sys.getsizeof(directory) - listed.size_bytes
        if room >= 0 and room_bytes >= 0:
            self._room, self._room_bytes = room, room_bytes
            self.listed[directory] = listed

    def _see_all(self, directory: str, stamp: Stamp, names: Iterable[os.DirEntry[str]]) -> _Listed:
        prefix = "" if directory == "." else directory + "/"
        first = directory.partition("/")[0]
        plain = bool(prefix) and not (self._hidden.name_places_below(first) or self._protected.name_places_below(first))
        count = size_bytes = 0
        below: list[str] = []
        noted: list[tuple[str, Kind]] = []
        while True:
            entries: list[os.DirEntry[str]] = []
            try:
                entries.extend(itertools.islice(names, _LOOK_AT_CLOCK))
            finally:  # what was listed before the disk failed counts too
                for entry in self._telling(entries) if plain else entries:
                    path, kind = prefix + entry.name, kind_of(entry)
                    if is_noted := self._see(path, kind):
                        noted.append((path, kind))
                    elif kind == "directory":
                        below.append(path)
                    if is_noted or kind == "directory":
                        size_bytes += sys.getsizeof(path)
                if size_bytes > self._room_bytes:  # it will not be kept
                    noted.clear()
            if not entries:
                return _Listed(stamp, count, tuple(below), tuple(noted), size_bytes)
            count += len(entries)
            self._entries += len(entries)
            self._look_at_clock()

    def _telling(self, entries: list[os.DirEntry[str]]) -> list[os.DirEntry[str]]:
        """Leave out files of which nothing could be said but for where they are; nearly everything is such a one.

        The kernel told a file's type with its name, so nothing is asked of the disk.
        """
        if not self._named:
            return [
                entry
                for entry in entries
                if (name := entry.name)[0] in _TELLING or not name.isascii() or not entry.is_file(follow_symlinks=False)
            ]
        named = self._named.may_cover
        return [
            entry
            for entry in entries
            if (name := entry.name)[0] in _TELLING
            or not name.isascii()
            or named(name)
            or not entry.is_file(follow_symlinks=False)
        ]

    def _note_closed(self, directory: str, error: OSError) -> None:
        if shortage.is_behind(error):  # in a moment the command could look into it
            raise error
        # A mount is left out by rule; what was removed or swapped meanwhile is not there.
        if error.errno not in (errno.EXDEV, errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            self._closed.append(directory)
            self._found_bytes += sys.getsizeof(directory)

    def _see(self, path: str, kind: Kind) -> bool:
        """Take note of an entry, and of what is to be looked into; returns whether any note was taken."""
        noted, has_more = self._note(path, kind)
        if has_more and kind == "directory":
            self._left.append(path)
            self._left_bytes += sys.getsizeof(path)
        if noted and kind != "special":
            self._found_bytes += sys.getsizeof(path)
        return noted

    def _note(self, path: str, kind: Kind) -> tuple[bool, bool]:
        """Take note of an entry; returns whether any was taken, and whether the walk has business below it.

        Both follow from path, kind and globs alone, so that they hold for as long as the entry is there; of what is
        hidden a note is always taken.
        """
        above, _, name = path.rpartition("/")
        noted = kind == "special"
        is_of_git = _lies_in_git(above)
        if name in _PARTS and not is_of_git:
            self._parts.setdefault(above or ".", set()).add(name)
            noted = True
        if kind == "special":
            self._add("special", path)
        first = path.partition("/")[0]
        is_hidden = self._hidden.cover(first, path)
        if is_hidden and not self._is_of_refs(first, path, kind):
            # Of a link nothing is masked: it tells only where it leads, and that is visible or is not by itself.
            if kind == "link":
                self._found["links"].append(path)
            else:
                self._add("directories" if kind == "directory" else "files", path)
            return True, False
        if is_of_git:
            if kind == "link":
                self._git.append(GitDirectory(path, "link"))
                return True, False
        elif is_git_name(name):
            self._note_git(path, kind)
            noted = True
        # Below a protected directory nothing can be changed, no link either; but a hidden file or a socket is one.
        if self._protected.cover_folded(first, path) and not (above and self._protected.cover_folded(first, above)):
            (self._links if kind == "link" else self._found["protected"]).append(path)
            noted = True
        noted = noted or is_hidden  # what such a file holds is looked at each time
        is_data = is_of_git and name == _DATA and bool(_WITH_DATA.fullmatch(_in_git(above)))  # it is much
        return noted or is_data, not is_data

    def _add(self, name: str, path: str) -> None:
        """Take note of what takes a mount each: where one more is known than there can be, no run begins."""
        if len(self._found[name]) <= limits.SANDBOX_BINDS:
            self._found[name].append(path)

    def _is_of_refs(self, first: str, path: str, kind: Kind) -> bool:
        """Return whether something is hidden only for a branch or a remote having a name that is."""
        if "/refs/" not in f"/{path}/" or self._hidden_places.cover(first, path):
            return False
        return self._branches.hold(path, kind)

    def _note_git(self, path: str, kind: Kind) -> None:
        if kind == "link":
            self._links.append(path)
        elif kind != "special":
            self._git.append(GitDirectory(path, "directory" if kind == "directory" else "gitfile"))

    def _look_at_clock(self) -> None:
        if time.monotonic() > self._deadline:
            raise _too_large(
                f"has more than {self._entries:,} entries, and looking for git directories and protected files took "
                f"over {limits.SANDBOX_SCAN_SECONDS:g} s"
            )
        if self._found_bytes > limits.SANDBOX_FOUND_BYTES or self._left_bytes > limits.SANDBOX_LEFT_BYTES:
            raise _too_large(
                "has too many directories, links, git directories or protected files with long paths to be kept in "
                f"memory while it is looked at; the last were in {display(self._at, limit=200)}"
            )


def _too_large(why: str) -> Refusal:
    return Refusal(
        "SANDBOX_UNAVAILABLE",
        f"The workspace {why}. Nothing was started.",
        next_step="Ask the operator to register a smaller directory, or to move build output elsewhere.",
    )


class _Globs:
    """Globs, with those that cannot match below a name at the root left out by that name."""

    def __init__(self, globs: Sequence[str]) -> None:
        self._globs = tuple(globs)
        self.of_names = tuple(glob for glob in globs if "/" not in glob.rstrip("/"))
        """Those that match a name wherever it is."""
        self._anywhere = tuple(glob for glob in globs if "/" in glob.rstrip("/") and "**" in glob)
        self._placed = tuple(
            (Hidden([start]), glob)
            for glob in globs
            if glob not in self.of_names and glob not in self._anywhere
            for start in ("/" + glob.strip("/").partition("/")[0],)
        )
        self._places = Hidden([start.globs[0] for start, _ in self._placed])
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

    def name_places_below(self, first: str) -> bool:
        """Return whether anything below `first`, a name at the root, could match for more than its name."""
        return bool(self._anywhere) or self._places.may_cover(first)

    def _chosen(self, first: str) -> Hidden:
        known = self._below.get(first)
        if known is None:
            placed = self._placed if self._places.may_cover(first) else ()
            known = Hidden(
                [*self.of_names, *self._anywhere, *(glob for start, glob in placed if start.may_cover(first))]
            )
            if len(self._below) < limits.SANDBOX_BINDS:
                self._below[first] = known
        return known
