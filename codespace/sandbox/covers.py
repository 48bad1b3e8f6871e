"""What is laid over places: secrets of /etc, what /proc tells of the host or would have turned, and masks of a root."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from codespace.sandbox import system
from codespace.sandbox.plan import Plan, within

MASKS: Final = ("empty", "nothing")
"""The kinds of mounts that show nothing of what is below them."""


@dataclass(frozen=True, slots=True)
class Covers:
    """Absolute paths."""

    directories: tuple[str, ...]
    """Covered by an empty one that nobody may enter."""
    files: tuple[str, ...]
    """Covered by nothing."""
    read_only: tuple[str, ...]
    """Covered by themselves."""
    masked_directories: tuple[str, ...] = ()
    masked_files: tuple[str, ...] = ()
    """The same of what is given to the run, where commands under way may move it at any moment."""

    def __iter__(self) -> Iterator[str]:
        yield from (*self.directories, *self.files, *self.read_only, *self.masked_directories, *self.masked_files)

    def masking(self, plan: Plan) -> Covers:
        """Return them with the masks of a plan.

        bubblewrap makes what is missing where it is to mount, along a link that has taken a name's place, and while it
        mounts, the host's own tree is below `/oldroot`: so it must not lay what lies below a root.
        """
        masks = {kind: tuple(mount.path for mount in plan.mounts if mount.kind == kind) for kind in MASKS}
        return replace(self, masked_directories=masks["empty"], masked_files=masks["nothing"])


def covers(plan: Plan) -> Covers:
    """Return what is to be covered, as this machine is now."""
    return Covers(plan.etc.directories, (*plan.etc.files, *system.proc_masked()), tuple(system.proc_read_only()))


def may_come_last(plan: Plan) -> bool:
    """Return whether covers may be laid behind all that a run is given: what it is given in /etc lies above them."""
    given = (plan.root, *plan.readable, *plan.writable)
    return not any(within(path, place) or within(place, path) for path in given for place in ("/etc", "/proc"))
