"""Whether anything in a sandbox has tried to reach what it has no way to, by the kernel's own counters.

A program that waits for a network often says nothing of it for a minute. The network namespace of a run has loopback
and nothing else, so that each packet to anywhere is counted as one without a route; and one to a resolver that this
machine has on its loopback as one to a port where nobody is. The counters outlive the run in their descriptors.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Final

_FILES: Final = ("snmp", "snmp6")
_BYTES: Final = 16_384
# Far over both.
_COUNTERS: Final = frozenset({"Ip:OutNoRoutes", "Udp:NoPorts", "Ip6OutNoRoutes", "Udp6NoPorts"})


class Witness:
    """The counters of one network namespace."""

    def __init__(self, pid: int) -> None:
        """Open them; what cannot be opened counts nothing.

        Args:
            pid: A process in the namespace.
        """
        self._seen = False
        self._open: list[int] = []
        for name in _FILES:
            with contextlib.suppress(OSError):
                self._open.append(os.open(f"/proc/{pid}/net/{name}", os.O_RDONLY | os.O_CLOEXEC))

    def has_seen(self) -> bool:
        """Return whether something was tried; also behind `close`, as it was then. Takes some microseconds."""
        self._seen = self._seen or any(map(_counts, self._open))
        return self._seen

    def close(self) -> None:
        """Look for the last time, and let go of the counters."""
        self.has_seen()
        while self._open:
            os.close(self._open.pop())


def _counts(descriptor: int) -> bool:
    try:
        text = os.pread(descriptor, _BYTES, 0).decode("ascii", "replace")
    except OSError:
        return False
    return any(name in _COUNTERS and value != "0" for name, value in _pairs(text.splitlines()))


def _pairs(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Yield names and values: one a line, or a line of names and below it one of values."""
    names: list[str] = []
    for line in lines:
        first, *rest = line.split()
        if not first.endswith(":"):
            yield first, " ".join(rest)
        elif not names:
            names = [first + name for name in rest]
        else:
            yield from zip(names, rest, strict=False)
            names = []
