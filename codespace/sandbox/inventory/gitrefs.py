"""Branches and remotes that are called as something hidden is: git cannot work where their files say nothing.

Such a file is shown where it holds the name of an object that its repository has, or of another of its branches, and
nothing else; and so is a log of such objects, without which git would not commit. Where it lies says
nothing: a command can make a `refs` of its own and move a directory there, with what is hidden in it. Whoever can give
a repository an object or a branch of that name knows what the file holds.
"""

from __future__ import annotations

import itertools
import os
import posixpath
import re
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from codespace import limits
from codespace.beneath import Entry, Root
from codespace.beneath.walking import Kind, kind_of
from codespace.errors import Refusal
from codespace.sandbox import shortage

Answer = TypeVar("Answer")

_REFS: Final = "refs"
_LOGS: Final = "logs"
_SAID: Final = re.compile(rb"([0-9a-f]{40}|[0-9a-f]{64})\n")
_LED: Final = re.compile(rb"ref: (refs/[^\0\n]{1,1000})\n")
_LOGGED: Final = re.compile(rb"[0-9a-f]{40,64} ([0-9a-f]{40,64}) [^\n]{0,1000}> [0-9]+ [+-][0-9]{4}")
_BYTES: Final = 262_144
# Most of a log that is looked at, which is some thousand commits.
_PACKED_BYTES: Final = 1_048_576
# Most of the packed branches that are looked through, which is some ten thousand.
_PACKED_PRICE: Final = 32
# One such look counts as so many: that file can be long, and linked into many repositories.
_ASKED: Final = limits.SANDBOX_BINDS
# Most files that are looked at, and directories that are listed: with more of them masked a run would be refused.
_LOOKS: Final = 16 * _ASKED
# Most looks for an object or a branch, in a repository or in one of its packs: a second or two at the worst.
_PACKS: Final = 64
# Most packs of one repository that are looked into: git makes one of them when there are 50.
_MAGIC: Final = b"\xfftOc\x00\x00\x00\x02"
_FANOUT_BYTES: Final = 1_024
_NAMES_AT: Final = len(_MAGIC) + _FANOUT_BYTES


class Branches:
    """What one look at a root asks about branches; in all it asks so much and no more, and what is over that is none.

    Every method raises OSError and Refusal for a shortage, and what `look_at_clock` raises, which is called before
    each file, directory and pack.
    """

    def __init__(self, root: Root, look_at_clock: Callable[[], object] = lambda: None) -> None:
        self._root = root
        self._look_at_clock = look_at_clock
        self._left = _ASKED
        self._looks = _LOOKS
        self._known: set[str] = set()
        self._packs: dict[str, list[str]] = {}

    def hold(self, path: str, kind: Kind) -> bool:
        """Return whether a file or a directory is of branches and of nothing else."""
        if path in self._known:  # with the directory above it
            return True
        return (kind == "file" and self.is_one(path)) or (kind == "directory" and self.are_all(path))

    def are_all(self, directory: str) -> bool:
        """Return whether a directory has nothing below it but such files as `is_one` means.

        An empty one has nothing to hide: git leaves it where it packed the branches, and the next one goes there.
        """
        found = self._below(directory)
        if found is None:
            return False
        directories, files = found
        if not (all(map(self.is_one, files)) if files else any(map(self._is_repository, _repositories(directory)))):
            return False
        self._known.update(directories, files)
        return True

    def is_empty(self, directory: str) -> bool:
        """Return whether a directory has nothing below it but directories."""
        found = self._below(directory)
        return found is not None and not found[1]

    def is_one(self, path: str) -> bool:
        """Return whether a file lies below a repository's `refs` and says where a branch is, or is its log."""
        if not self._may_ask():
            return False
        data = _tried(_start, self._root, path, _BYTES + 1)
        if data is None:
            return False
        named, led, logged = _SAID.fullmatch(data), _LED.fullmatch(data), _last_logged(data)
        for repository, is_log in _places(path):
            name = logged if is_log else named
            if name and self._has(repository, name[1].decode()):
                return True
            if led and not is_log and self._has_branch(repository, led[1]):
                return True
        return False

    def _may_ask(self) -> bool:
        self._look_at_clock()
        self._left -= 1
        return self._left >= 0

    def _may_look(self, price: int = 1) -> bool:
        self._look_at_clock()
        self._looks -= price
        return self._looks >= 0

    def _below(self, directory: str) -> tuple[list[str], list[str]] | None:
        """Return the directories and the files below one; None where anything else is, or more than may be asked."""
        directories, files = [directory], list[str]()
        for listed, place in enumerate(directories, 1):  # and those that are found meanwhile
            entries = _tried(_listed, self._root, place, self._left + 1) if self._may_ask() else None
            if entries is None or any(kind not in ("directory", "file") for _, kind in entries):
                return None
            directories += [f"{place}/{name}" for name, kind in entries if kind == "directory"]
            files += [f"{place}/{name}" for name, kind in entries if kind == "file"]
            if len(directories) - listed + len(files) > self._left:
                return None
        return directories, files

    def _is_repository(self, path: str) -> bool:
        return self._may_look() and _tried(self._root.stamp, f"{path}/objects") is not None

    def _has(self, repository: str, name: str) -> bool:
        if not self._may_look():
            return False
        if _tried(self._root.stamp, f"{repository}/objects/{name[:2]}/{name[2:]}") is not None:
            return True
        packs = self._packs.get(repository)
        if packs is None:
            packs = self._packs[repository] = _packs(self._root, f"{repository}/objects/pack")
        return any(self._may_look() and _tried(_lists, self._root, pack, bytes.fromhex(name)) for pack in packs)

    def _has_branch(self, repository: str, name: bytes) -> bool:
        path = os.fsdecode(name)
        if not self._may_look() or posixpath.normpath(path) != path:
            return False
        if _tried(_start, self._root, f"{repository}/{path}", 1) is not None:
            return True
        if not self._may_look(_PACKED_PRICE):
            return False
        return b" %b\n" % name in (_tried(_start, self._root, f"{repository}/packed-refs", _PACKED_BYTES) or b"")


def _repositories(path: str) -> Iterator[str]:
    return (repository for repository, _ in _places(path))


def _places(path: str) -> Iterator[tuple[str, bool]]:
    """Yield each directory that a branch's file would belong to by its path, and whether it would be a log there."""
    parts = path.split("/")
    for at, part in enumerate(parts[:-1]):
        if part == _REFS:
            is_log = at > 0 and parts[at - 1] == _LOGS
            yield "/".join(parts[: at - is_log]) or ".", is_log


def _tried(act: Callable[..., Answer], *arguments: object) -> Answer | None:
    """Return what `act` does, None where what it looks at is not there or is not what it was."""
    try:
        return act(*arguments)
    except (OSError, Refusal) as problem:
        if shortage.is_behind(problem):
            raise
        return None


def _listed(root: Root, directory: str, most: int) -> list[tuple[str, Kind]]:
    descriptor = root.open_listing(directory)
    try:
        with os.scandir(descriptor) as entries:
            return [(entry.name, kind_of(entry)) for entry in itertools.islice(entries, most)]
    finally:
        os.close(descriptor)


def _packs(root: Root, directory: str) -> list[str]:
    """Return the paths of the indexes of packs; each pack has a few files."""
    names = (name for name, _ in _tried(_listed, root, directory, 8 * _PACKS) or ())
    return [f"{directory}/{name}" for name in names if name.endswith(".idx")][:_PACKS]


def _last_logged(data: bytes) -> re.Match[bytes] | None:
    """Return the last line of a log that has no other lines than such; the message behind each may be any."""
    *lines, rest = data.split(b"\n")
    if rest or len(data) > _BYTES:
        return None
    last = None
    for line in lines:
        last = _LOGGED.fullmatch(line.partition(b"\t")[0])
        if last is None:
            return None
    return last


def _start(root: Root, path: str, size: int) -> bytes:
    descriptor = root.open_entry(Entry(path, "file"))
    try:
        return os.read(descriptor, size)
    finally:
        os.close(descriptor)


def _lists(root: Root, index: str, name: bytes) -> bool:
    """Return whether the index of a pack lists an object. Source: gitformat-pack(5), version 2."""
    descriptor = root.open_entry(Entry(index, "file"))
    try:
        start = os.pread(descriptor, _NAMES_AT, 0)
        if len(start) < _NAMES_AT or not start.startswith(_MAGIC):
            return False
        counts = [int.from_bytes(start[at : at + 4], "big") for at in range(len(_MAGIC), _NAMES_AT, 4)]
        low, high = counts[name[0] - 1] if name[0] else 0, counts[name[0]]
        while low < high:
            middle = (low + high) // 2
            found = os.pread(descriptor, len(name), _NAMES_AT + middle * len(name))
            if found == name:
                return True
            low, high = (middle + 1, high) if found < name else (low, middle)
        return False
    finally:
        os.close(descriptor)
