"""Branches and remotes that are called as something hidden is: git cannot work where their files say nothing.

Such a file is shown where it holds the name of an object that its repository has, and nothing else; and so is a log of
such names, without which git would not commit. Where it lies says
nothing: a command can make a `refs` of its own and move a directory there, with what is hidden in it. Whoever can give
a repository an object of that name knows what the file holds.
"""

from __future__ import annotations

import itertools
import os
import posixpath
import re
from typing import Final

from codespace.beneath import Entry, Root
from codespace.beneath.walking import Kind, kind_of
from codespace.errors import Refusal
from codespace.sandbox import shortage

_REFS: Final = "refs"
_LOGS: Final = "logs"
_SAID: Final = re.compile(rb"([0-9a-f]{40}|[0-9a-f]{64})\n")
_LOGGED: Final = re.compile(rb"[0-9a-f]{40,64} ([0-9a-f]{40,64}) [^\n]{0,1000}> [0-9]+ [+-][0-9]{4}")
_BYTES: Final = 262_144
# Most of a log that is looked at, which is some thousand commits.
_FILES: Final = 64
# Most below one directory of a hidden name.
_INDEXES: Final = 256
# Most packs of one repository that are looked into: git makes one of all long before.
_MAGIC: Final = b"\xfftOc\x00\x00\x00\x02"
_FANOUT_BYTES: Final = 1_024
_NAMES_AT: Final = len(_MAGIC) + _FANOUT_BYTES


def are_all(root: Root, directory: str) -> bool:
    """Return whether a directory has files below it, few enough to be looked at, and nothing else than such as `is_one`
    means."""
    left = [directory]
    files: list[str] = []
    while left:
        place = left.pop()
        try:
            kinds = _listed(root, place)
        except OSError as error:
            if shortage.is_behind(error):
                raise
            return False
        left += [f"{place}/{name}" for name, kind in kinds if kind == "directory"]
        files += [f"{place}/{name}" for name, kind in kinds if kind == "file"]
        if len(left) + len(files) > _FILES or any(kind not in ("directory", "file") for _, kind in kinds):
            return False
    return bool(files) and all(is_one(root, path) for path in files)


def _listed(root: Root, directory: str, most: int = _FILES + 1) -> list[tuple[str, Kind]]:
    descriptor = root.open_listing(directory)
    try:
        with os.scandir(descriptor) as entries:
            return [(entry.name, kind_of(entry)) for entry in itertools.islice(entries, most)]
    finally:
        os.close(descriptor)


def is_one(root: Root, path: str) -> bool:
    """Return whether a file lies below a repository's `refs` and holds the name of one of its objects, or is its log.

    Raises: OSError, Refusal for a shortage.
    """
    parts = path.split("/")
    places = [at for at, part in enumerate(parts[:-1]) if part == _REFS]
    if not places:
        return False
    try:
        data = _start(root, path, _BYTES + 1)
        named = _SAID.fullmatch(data)
        logged = _last_logged(data)
        for at in places:
            is_log = at > 0 and parts[at - 1] == _LOGS
            name = logged if is_log else named
            if name and _has(root, "/".join(parts[: at - is_log]) or ".", name[1].decode()):
                return True
        return False
    except (OSError, Refusal) as problem:
        if shortage.is_behind(problem):
            raise
        return False


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


def _has(root: Root, repository: str, name: str) -> bool:
    objects = posixpath.join(repository, "objects")
    if root.stamp(f"{objects}/{name[:2]}/{name[2:]}") is not None:
        return True
    indexes = [name for name, _ in _listed(root, f"{objects}/pack", 4 * _INDEXES) if name.endswith(".idx")]
    return any(_lists(root, f"{objects}/pack/{index}", bytes.fromhex(name)) for index in indexes[:_INDEXES])


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
