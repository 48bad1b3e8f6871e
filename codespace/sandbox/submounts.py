"""The kernel's table of mounts: what is mounted below a directory, and what a sandbox really has."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

_ESCAPE: Final = re.compile(rb"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Found:
    """Mounts below a root, relative to it."""

    directories: tuple[str, ...]
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of mountinfo."""

    device: str
    source: str
    """The path, within its filesystem, of what is mounted."""
    point: str
    read_only: bool
    name: str = ""
    """What the filesystem calls it: a device, or a place on a server."""


def table(pid: int | str = "self") -> Iterator[Entry]:
    """Yield the mounts that a process sees, the later above the earlier. Raises: OSError. Source: proc(5)."""
    with open(f"/proc/{pid}/mountinfo", "rb") as lines:
        yield from entries(lines)


def entries(lines: Iterable[bytes]) -> Iterator[Entry]:
    """Yield what the lines of a table say."""
    for line in lines:
        mounted, _, filesystem = line.partition(b" - ")
        fields = mounted.split(b" ")
        read_only = b"ro" in fields[5].split(b",")
        name = plain(filesystem.split(b" ")[1])
        yield Entry(fields[2].decode(), plain(fields[3]), plain(fields[4]), read_only, name)


def below(root: str) -> Found:
    """Return what is mounted below `root`."""
    prefix = root.rstrip("/") + "/"
    directories: set[str] = set()
    files: set[str] = set()
    for entry in table():
        if entry.point.startswith(prefix):
            (directories if _is_directory(entry.point) else files).add(entry.point[len(prefix) :])
    return Found(tuple(sorted(directories)), tuple(sorted(files)))


def _is_directory(point: str) -> bool:
    """Return whether a mount is one of a directory, without a word to its filesystem: a dead one has no answer, one of
    another account's (FUSE) refuses root's, and a hung one never comes back."""
    try:
        os.close(os.open(point, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC))
    except OSError:
        return False
    return True


class Host:
    """Our own table of mounts: where a path lies that no link is on."""

    def __init__(self) -> None:
        """Read the table. Raises: OSError."""
        self._mounts = list(table())

    def holds(self, path: str, found: Entry) -> bool:
        """Return whether `found` shows exactly what lies at the absolute `path`, and not where a link there leads.

        Mounts that others cover count too: nobody reaches through a name what they show.
        """
        return any(
            entry.device == found.device and _shows(found, entry, below)
            for entry in self._mounts
            if (below := _below(path, entry.point)) is not None
        )


def _shows(found: Entry, entry: Entry, below: str) -> bool:
    """Return whether `found` is what lies at `below` in another mount of the same filesystem."""
    if found.source == entry.source == "/" and found.name != entry.name:
        # NFS: whatever is mounted is `/` there, and its place on the server is part of the name.
        return posixpath.join(entry.name, below) == found.name
    return posixpath.join(entry.source, below).rstrip("/") == found.source.rstrip("/")


def _below(path: str, point: str) -> str | None:
    """Return the way from `point` to `path`; None where it does not lead down."""
    prefix = point.rstrip("/") + "/"
    return f"{path}/"[len(prefix) :].rstrip("/") if f"{path}/".startswith(prefix) else None


def plain(field: bytes) -> str:
    """Return a path of mountinfo as it is: spaces and such are octal there."""
    if b"\\" in field:
        field = _ESCAPE.sub(lambda found: bytes([int(found[1], 8)]), field)
    return os.fsdecode(field)
