"""Where this process stands in the kernel's hierarchies of cgroups, v1 and v2: by what is mounted, not by custom.

A machine may have either kind, or both (systemd's hybrid mode); and a container may see its own part of one
under the usual path, though its cgroup has a longer name. It reads /proc and decides nothing.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from codespace.sandbox.submounts import plain

_SECOND: Final = "cgroup2"


@dataclass(frozen=True, slots=True)
class Mount:
    """A hierarchy, or a part of one, as it is mounted."""

    source: str
    """Which of its cgroups is seen at `point`."""
    point: str
    controllers: frozenset[str] | None
    """Those of a v1 hierarchy; None for v2."""

    def folder(self, path: str) -> str | None:
        """Return where the cgroup `path` of this hierarchy is seen; None where it is outside of what is mounted."""
        prefix = self.source.rstrip("/") + "/"
        inside = f"{path.rstrip('/')}/"
        # `..` is a namespace's word for what is above it: nobody inside can say where that is seen.
        if not inside.startswith(prefix) or ".." in (*prefix.split("/"), *inside.split("/")):
            return None
        return posixpath.normpath(posixpath.join(self.point, inside.removeprefix(prefix)))


@dataclass(frozen=True, slots=True)
class Place:
    """A cgroup of ours in which a controller's folders could be made."""

    folder: str
    is_second: bool
    """Whether its hierarchy is v2."""


def places(controller: str, proc: str = "/proc/self") -> list[Place]:
    """Return where folders for runs could be limited by `controller`, v1 before v2, the best first; maybe none.

    In v2 also beside our own cgroup: one that has processes of its own can hand no controller down, and where a
    user's manager has put us, it has done so above.

    Args:
        proc: Where `cgroup` and `mountinfo` are read. Source: cgroups(7), proc(5).
    """
    try:
        seen = list(_mounts(f"{proc}/mountinfo"))
        own = list(_own(f"{proc}/cgroup"))
    except (OSError, ValueError):
        return []
    found: list[Place] = []
    for controllers, path in own:
        if controller in controllers:
            first = [mount for mount in seen if mount.controllers is not None and controller in mount.controllers]
            found += [Place(folder, False) for folder in _folders(first, path)]
    for controllers, path in own:
        if not controllers:
            second = [mount for mount in seen if mount.controllers is None]
            above = [posixpath.dirname(path)] if path != "/" else []
            found += [Place(folder, True) for each in (path, *above) for folder in _folders(second, each)]
    return found


def _folders(mounts: list[Mount], path: str) -> Iterator[str]:
    for mount in mounts:
        folder = mount.folder(path)
        if folder is not None:
            yield folder


def _mounts(path: str) -> Iterator[Mount]:
    """Yield the hierarchies of a mountinfo, the later above the earlier."""
    with open(path, "rb") as lines:
        for line in lines:
            mounted, _, filesystem = line.rstrip(b"\n").partition(b" - ")
            kind, _, options = filesystem.split(b" ", 2)
            if kind not in (b"cgroup", _SECOND.encode()):
                continue
            source, point = map(plain, mounted.split(b" ")[3:5])
            named = frozenset(os.fsdecode(options).split(","))
            yield Mount(source, point, None if kind == _SECOND.encode() else named)


def _own(path: str) -> Iterator[tuple[frozenset[str], str]]:
    """Yield controllers (none for v2) and path of each cgroup of a process."""
    with open(path, encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            _, names, where = line.rstrip("\n").split(":", 2)
            yield frozenset(filter(None, names.split(","))), where
