"""What is laid over places of the machine: secrets of /etc, and what /proc tells of the host or would have turned."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from codespace.sandbox import system
from codespace.sandbox.plan import Plan, within


@dataclass(frozen=True, slots=True)
class Covers:
    """Absolute paths."""

    directories: tuple[str, ...]
    """Covered by an empty one that nobody may enter."""
    files: tuple[str, ...]
    """Covered by nothing."""
    read_only: tuple[str, ...]
    """Covered by themselves."""

    def __iter__(self) -> Iterator[str]:
        yield from (*self.directories, *self.files, *self.read_only)


def covers(plan: Plan) -> Covers:
    """Return what is to be covered, as this machine is now."""
    return Covers(plan.etc.directories, (*plan.etc.files, *system.proc_masked()), tuple(system.proc_read_only()))


def may_come_last(plan: Plan) -> bool:
    """Return whether covers may be laid behind all that a run is given: what it is given in /etc lies above them."""
    given = (plan.root, *plan.readable, *plan.writable)
    return not any(within(path, place) or within(place, path) for path in given for place in ("/etc", "/proc"))
