"""The root as the engine sees it: each path is read once, and all reads together are bounded."""

from __future__ import annotations

import os
import stat
from typing import Literal

from codespace import limits, v4a
from codespace.beneath import Root
from codespace.digest import ABSENT, version_of
from codespace.errors import Refusal


class Versions:
    """The contract's version of bytes, each hashed once: a large file is asked about several times."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[bytes, str]] = {}

    def of(self, data: bytes | None) -> str:
        """Return `absent` for None."""
        if data is None:
            return ABSENT
        known = self._known.get(id(data))
        if known is None:
            # The bytes are kept with their hash, so that nothing else can get their id meanwhile.
            known = self._known[id(data)] = (data, version_of(data))
        return known[1]


class Tree:
    """What one plan has read of a root, for `v4a.plan` and for everything that is decided after it."""

    def __init__(self, root: Root, file_bytes: int) -> None:
        self._root = root
        self._file_bytes = file_bytes
        self._left = limits.PATCH_TREE_BYTES
        self._seen: dict[str, v4a.File | v4a.Directory | None] = {}
        self.versions = Versions()

    def look(self, path: str) -> v4a.File | v4a.Directory | None:
        """Return what is at `path`, read whole where it is a file; None where nothing can be."""
        if path not in self._seen:
            self._seen[path] = self._look(path)
        return self._seen[path]

    def version(self, path: str) -> str:
        """Return the version of the file at `path`."""
        there = self.look(path)
        return self.versions.of(there.data if isinstance(there, v4a.File) else None)

    def bytes_at(self, path: str) -> bytes | None:
        """Return the bytes of the file at `path`."""
        there = self.look(path)
        return there.data if isinstance(there, v4a.File) else None

    def mode_at(self, path: str) -> int | None:
        """Return the permission bits of the file at `path`."""
        there = self.look(path)
        return there.mode if isinstance(there, v4a.File) else None

    def kind(self, path: str) -> Literal["directory", "absent", "file"]:
        """Say what is at `path` without reading it; a link or a special file is a file here."""
        there = self._seen[path] if path in self._seen else self._root.look(path)
        if there is None:
            return "absent"
        if isinstance(there, os.stat_result):
            return "directory" if stat.S_ISDIR(there.st_mode) else "file"
        return "directory" if isinstance(there, v4a.Directory) else "file"

    def _look(self, path: str) -> v4a.File | v4a.Directory | None:
        try:
            data, status = self._root.read(path, min(self._file_bytes, self._left))
        except Refusal as refused:
            if refused.code in ("FILE_NOT_FOUND", "PATH_NOT_DIRECTORY"):
                return None
            if refused.code == "SPECIAL_FILE_REJECTED" and (refused.details or {}).get("kind") == "directory":
                return v4a.Directory()
            raise
        self._left -= len(data)
        return v4a.File(data, stat.S_IMODE(status.st_mode))
