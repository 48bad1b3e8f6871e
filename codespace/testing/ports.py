"""TCP ports of this machine's loopback for daemons that a test starts: no other test process gets the same ones.

A port is named before the daemon that is told of it can take it. So each process has some for itself for as long as it
lives, by a name in the same network namespace as the ports, which the kernel gives to one and takes back from the dead.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_LOWEST: Final = 10_000
# Below are those of well-known servers.
_EACH: Final = 128
# For one process. Some are not to be had for a minute after they were used.
_claimed: list[Iterator[int]] = []


def claim() -> None:
    """Take this process's ports, if it has none yet; before the leak guard looks, as a descriptor stays open for them.

    Raises: OSError where every port is some process's.
    """
    if not _claimed:
        _claimed.append(itertools.cycle(_take()))


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that was free a moment ago and that nobody else is given.

    One of the kernel's own choice could be given to another connection before the daemon has it, or to whoever
    tries whether the daemon is there, who would then talk to itself.
    """
    claim()
    for port in itertools.islice(_claimed[0], _EACH):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError(errno.EADDRINUSE, "none of this process's ports is free")


def _take() -> range:
    lowest_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    highest = lowest_given if lowest_given > _LOWEST + _EACH else 65_536
    starts = list(range(_LOWEST, highest - _EACH + 1, _EACH))
    random.shuffle(starts)  # what listens on this machine otherwise is not met by each process in turn
    for start in starts:
        name = socket.socket(socket.AF_UNIX)
        try:
            name.bind(f"\0codespace-testing-ports-{start}")
        except OSError:
            name.close()
            continue
        name.detach()  # held until this process ends
        return range(start, start + _EACH)
    raise OSError(errno.EADDRINUSE, "every port is some other process's")
