"""Where a path leads that git would follow, as the kernel walks it, and the links on that way that lie in the root.

A link cannot be mounted on, so whoever may write the directory that it lies in chooses where the path leads. Nothing is
opened here: links are read, one component after another, and outside of the root nothing but links and what kind of
thing a name is.
"""

from __future__ import annotations

import os
import posixpath
import stat
from dataclasses import dataclass
from typing import Final

from codespace.beneath import Root

_LINKS: Final = 40  # the kernel gives up behind as many
_COMPONENTS: Final = 4_096
# Most components of one way, those of its links among them: a path has at most half as many.


@dataclass(frozen=True, slots=True)
class Way:
    """One way; what lies in the root is relative to it, `.` the root itself."""

    end: str | None
    """Where it ends; None for a place outside of the root, and where links lead around in a circle."""
    links: tuple[str, ...]
    """The links on it that lie in the root, in order."""
    outside: str | None
    """Where it ends outside of the root, absolute; no component is a link, but in /proc, where none is followed."""

    is_endless: bool = False
    """Whether it was given up: the kernel walks further. What is behind may be anywhere."""

    @property
    def is_anybodys(self) -> bool:
        """Whether who follows it decides where it ends, as by `/proc/self/cwd`: it may lead back into the root."""
        return self.is_endless or (self.outside is not None and self.outside.startswith("/proc/"))


def pointed(text: str, behind: str = "\r\n") -> str:
    """Return the path that a gitfile, a `commondir` or a `gitdir` has as its `text`, as git reads it: a line end in the
    middle belongs to it, and a NUL ends it.

    Args:
        behind: What does not belong to it at the end; of a `gitdir` white space.
    """
    return text.rstrip(behind).partition("\0")[0]


def follow(root: Root, path: str) -> Way:
    """Return where the absolute `path` leads. What does not exist is taken for a directory: it may be made.

    Source: path_resolution(7).
    """
    return _Walk(root).along(path)


class _Walk:
    def __init__(self, root: Root) -> None:
        self._root = root
        self._left: list[str] = []
        """Components that are still to be walked, the next one last."""
        self._at: list[str] = []
        self._inside = False
        self._links: list[str] = []
        self._followed = 0

    def along(self, path: str) -> Way:
        self._lead(path)
        for _ in range(_COMPONENTS):
            if not self._left:
                return self._way()
            self._step(self._left.pop())
            if self._followed > _LINKS:
                return Way(None, tuple(self._links), None)
            if not self._inside and self._at[:1] == ["proc"] and self._at[1:]:
                return Way(None, tuple(self._links), "/" + "/".join((*self._at, *reversed(self._left))))
        return Way(None, tuple(self._links), None, is_endless=True)

    def _way(self) -> Way:
        at = "/".join(self._at)
        if self._inside:
            return Way(at or ".", tuple(self._links), None)
        return Way(None, tuple(self._links), f"/{at}")

    def _lead(self, target: str) -> None:
        """Go on at `target`, which is taken from where the walk is."""
        own = self._root.path.rstrip("/") + "/"
        if posixpath.isabs(target):
            self._at = []
            self._inside = f"{target}/".startswith(own)
            target = target[len(own) :] if self._inside else target
        self._left.extend(name for name in reversed(target.split("/")) if name not in ("", "."))

    def _step(self, name: str) -> None:
        if name == "..":
            self._climb()
            return
        here = [*self._at, name]
        target = self._look("/".join(here))
        if target is None:
            self._at = here
            self._enter()
            return
        if self._inside:
            self._links.append("/".join(here))
        self._followed += 1
        self._lead(target)

    def _climb(self) -> None:
        if self._inside and not self._at:
            self._inside = False
            self._at = self._root.path.strip("/").split("/")
        self._at = self._at[:-1]

    def _look(self, path: str) -> str | None:
        """Return where the link at `path` leads; None for anything else, and for nothing."""
        try:
            return os.readlink(path, dir_fd=self._root.fd) if self._inside else os.readlink(f"/{path}")
        except (OSError, ValueError):
            return None

    def _enter(self) -> None:
        """Notice that the walk has come to the root, under whatever name: it may be mounted elsewhere too."""
        if self._inside:
            return
        path = "/" + "/".join(self._at)
        try:
            status = os.lstat(path)
        except (OSError, ValueError):
            found = None
        else:
            found = (status.st_dev, status.st_ino) if stat.S_ISDIR(status.st_mode) else None
        if found == self._root.identity or path == self._root.path:
            self._inside, self._at = True, []
