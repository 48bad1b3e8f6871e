"""What the kernel tells of processes that are not our own children.

Source: linux/pidfd.h, PIDFD_GET_INFO (Linux 6.15); proc(5).
"""

from __future__ import annotations

import fcntl
import os
import struct
from typing import Final

_FORMAT: Final = struct.Struct("=QQ11Ii")  # mask, cgroup, eleven ids, exit_code
_GET_INFO: Final = (3 << 30) | (_FORMAT.size << 16) | (0xFF << 8) | 11
_EXIT: Final = 1 << 3


LISTS_CHILDREN: Final = os.path.exists("/proc/thread-self/children")
# CONFIG_PROC_CHILDREN: on in every common distribution; without it all of /proc is looked through.


def exit_code(pidfd: int) -> int | None:
    """Return the exit code of an ended process, negative for a signal; None where it or the kernel does not say."""
    asked = bytearray(_FORMAT.pack(_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(pidfd, _GET_INFO, asked)
    except OSError:
        return None
    mask, *_, status = _FORMAT.unpack(asked)
    return os.waitstatus_to_exitcode(status) if mask & _EXIT else None


def children(pid: int) -> list[int]:
    """Return the children of a process of one thread; none where it is gone."""
    if not LISTS_CHILDREN:
        return [child for child in map(int, filter(str.isdecimal, os.listdir("/proc"))) if _is_child(child, pid)]
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb") as listed:
            return [int(child) for child in listed.read().split()]
    except OSError:
        return []


def _is_child(pid: int, parent: int) -> bool:
    try:
        return parent_of(pid) == parent
    except OSError:  # it is gone, or another account's
        return False


def parent_of(pid: int) -> int:
    """Return the parent of a process. Raises: FileNotFoundError, ProcessLookupError where it is gone."""
    with open(f"/proc/{pid}/stat", "rb") as stat:
        return int(stat.read().rpartition(b")")[2].split()[1])
