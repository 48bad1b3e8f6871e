"""The kernel's table of mounts: what is mounted below a directory, and what a sandbox really has."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
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


def table(pid: int | str = "self") -> Iterator[Entry]:
    """Yield the mounts that a process sees, the later above the earlier. Raises: OSError. Source: proc(5)."""
    with open(f"/proc/{pid}/mountinfo", "rb") as lines:
        for line in lines:
            fields = line.split(b" ")
            yield Entry(fields[2].decode(), plain(fields[3]), plain(fields[4]), b"ro" in fields[5].split(b","))


def below(root: str) -> Found:
    """Return what is mounted below `root`."""
    prefix = root.rstrip("/") + "/"
    directories: set[str] = set()
    files: set[str] = set()
    for entry in table():
        if entry.point.startswith(prefix):
            (directories if os.path.isdir(entry.point) else files).add(entry.point[len(prefix) :])
    return Found(tuple(sorted(directories)), tuple(sorted(files)))


def plain(field: bytes) -> str:
    """Return a path of mountinfo as it is: spaces and such are octal there."""
    if b"\\" in field:
        field = _ESCAPE.sub(lambda found: bytes([int(found[1], 8)]), field)
    return os.fsdecode(field)
