"""A walk over everything below a directory, each directory reached anew from the root.

Reaching anew costs a few microseconds and keeps one descriptor open at a time, so that depth and
swaps of directories for links are no concern.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["file", "directory", "link", "special"]

GONE: Final = (errno.EXDEV, errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""What the primitives say of a mount, and of what was removed or swapped since it was listed."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One name below the root. `path` is decoded with surrogateescape where it is no Unicode text."""

    path: str
    kind: Kind


class Walk:
    """An iteration over `Entry`.

    Args:
        start: A cleaned path.
        listing: Opens a directory for listing, or raises OSError.
        skip: Whether an entry, and so everything below it, is left out.
    """

    def __init__(self, start: str, listing: Callable[[str], int], skip: Callable[[Entry], bool]) -> None:
        self.unreadable = 0
        """Directories that could not be listed, by permission or for being too deep to name.

        One that is a mount is left out by rule, and one that was removed or swapped meanwhile is not there.
        """
        self.closed: list[str] = []
        """Those directories by their paths."""
        self._start = start
        self._listing = listing
        self._skip = skip

    def __iter__(self) -> Iterator[Entry]:
        left = [] if self._skip(Entry(self._start, "directory")) else [self._start]
        while left:
            directory = left.pop()
            entries = self._entries(directory)
            yield from entries
            left.extend(entry.path for entry in reversed(entries) if entry.kind == "directory")

    def _entries(self, directory: str) -> list[Entry]:
        prefix = "" if directory == "." else directory + "/"
        found: list[Entry] = []
        try:
            descriptor = self._listing(directory)
        except OSError as error:
            self._count(directory, error)
            return found
        try:
            with os.scandir(descriptor) as names:
                found.extend(Entry(prefix + name.name, kind_of(name)) for name in names)
        except OSError as error:
            self._count(directory, error)
        finally:
            os.close(descriptor)
        found.sort(key=lambda entry: entry.path)
        return [entry for entry in found if not self._skip(entry)]

    def _count(self, directory: str, error: OSError) -> None:
        if error.errno not in GONE:
            self.unreadable += 1
            self.closed.append(directory)


def kind_of(name: os.DirEntry[str]) -> Kind:
    """Return what a listing says of a name itself, never of where it leads."""
    if name.is_file(follow_symlinks=False):
        return "file"
    if name.is_symlink():
        return "link"
    return "directory" if name.is_dir(follow_symlinks=False) else "special"
