"""Files of a root that have another name outside it: what a command writes into one, it writes there too.

A hard link has no inside: mounts and Landlock keep names apart, and this file is one under all its names.
Package stores make them (pnpm, uv, conda), and local clones. Nothing is prevented here and nothing is
opened but directories, all through `beneath`; the files are counted, so that nobody believes that there are none.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from codespace import limits
from codespace.beneath import Hidden, Root
from codespace.contract import HardLinks, Workspace
from codespace.display import display
from codespace.sandbox.inventory.scan import is_git_name

_FILES: Final = 100_000
# Most files with names still to be found that are remembered at once: some 40 MB.
_PARTLY: Final = "the root was too large or too slow to be looked at whole, or parts of it are closed."

Pace = Callable[[], None]
"""Called every limits.HARD_LINK_BATCH entries; may wait, and raises what ends the count."""


def count(workspace: Workspace, protected: Sequence[str], pace: Pace, *, sandboxed: bool) -> HardLinks:
    """Return how many files below the root of a workspace commands can write under a name outside it. Blocks.

    A file all of whose names are below the root is none of them, nor is one that commands cannot write: hidden,
    protected, or in a git directory that is read-only.

    Args:
        protected: Globs of the protected paths in force.
        sandboxed: Whether commands are locked into the sandbox: only then are there paths that they cannot write.
    Raises: Refusal where the root cannot be opened; whatever `pace` raises.
    Source: limits.HARD_LINK_SECONDS, limits.HARD_LINK_ENTRIES.
    """
    closed = _Closed(workspace, protected) if sandboxed else None
    with Root.open(workspace.root, allow_submounts=workspace.allow_submounts) as root:
        return _Count(root, closed, pace).run()


def sentence(found: HardLinks) -> str | None:
    """Return what is to be said of a count, None where nothing was found in a root that was wholly looked at."""
    if not found.outside:
        return None if found.complete else f"Whether files have names outside of it is not known: {_PARTLY}"
    named = ", ".join(found.examples) + (", ..." if found.outside > len(found.examples) else "")
    number = "1 file has" if found.outside == 1 else f"{found.outside:,} files have"
    told = f"{number} another name outside the root (hard links), and a command that writes one changes it there too"
    return f"{told}: {named}." + ("" if found.complete else f" There may be more, or fewer: {_PARTLY}")


@dataclass(slots=True)
class _File:
    names: int
    """As the filesystem counts them."""
    path: str | None = None
    """The first that was seen below the root and that commands can write; None while there is none."""
    seen: int = 0


class _Closed:
    """Names under which no command can write."""

    def __init__(self, workspace: Workspace, protected: Sequence[str]) -> None:
        self._hidden = Hidden(workspace.hidden_paths)
        self._protected = Hidden(protected)
        self._git = workspace.git == "read_only"

    def cover(self, path: str) -> bool:
        if self._hidden.may_cover(path) or self._protected.covers_folded(path):
            return True
        return self._git and any(is_git_name(name) for name in path.split("/"))


class _Count:
    def __init__(self, root: Root, closed: _Closed | None, pace: Pace) -> None:
        self._root = root
        self._closed = closed
        self._pace = pace
        self._files: dict[tuple[int, int], _File] = {}
        self._entries = 0
        self._complete = True
        self._room = True
        """Whether it may go on: time, entries and memory are bounded."""
        self._deadline = time.monotonic() + limits.HARD_LINK_SECONDS

    def run(self) -> HardLinks:
        left = ["."]
        while left and self._room:
            left.extend(self._look_into(left.pop()))
        outside = sorted(file.path for file in self._files.values() if file.path is not None)
        shown = tuple(display(path, limit=200) for path in outside[: limits.SANDBOX_SHOWN])
        return HardLinks(len(outside), shown, self._complete and self._room)

    def _look_into(self, directory: str) -> list[str]:
        """Count the names in a directory and return the directories in it."""
        prefix = "" if directory == "." else directory + "/"
        below: list[str] = []
        try:
            for entry in self._entries_of(directory):
                if entry.is_dir(follow_symlinks=False):
                    below.append(prefix + entry.name)
                elif entry.is_file(follow_symlinks=False):
                    self._see(prefix + entry.name, entry)
        except OSError as error:
            # A mount is another filesystem, where none of these files can have a name; what was removed or swapped
            # meanwhile is not there.
            self._complete &= error.errno in (errno.EXDEV, errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
        return below

    def _entries_of(self, directory: str) -> Iterator[os.DirEntry[str]]:
        descriptor = self._root.open_listing(directory)
        try:
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    self._entries += 1
                    if self._entries % limits.HARD_LINK_BATCH == 0:
                        self._pace()
                        self._look_at_bounds()
                    if not self._room:
                        return
                    yield entry
        finally:
            os.close(descriptor)

    def _look_at_bounds(self) -> None:
        is_late = time.monotonic() > self._deadline
        self._room = not is_late and self._entries < limits.HARD_LINK_ENTRIES and len(self._files) < _FILES

    def _see(self, path: str, entry: os.DirEntry[str]) -> None:
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            return  # it was removed meanwhile
        if status.st_nlink < 2:
            return
        key = status.st_dev, status.st_ino
        file = self._files.setdefault(key, _File(status.st_nlink))
        file.seen += 1
        if file.seen >= file.names:
            del self._files[key]  # all of it is below the root
        elif file.path is None and (self._closed is None or not self._closed.cover(path)):
            file.path = path
