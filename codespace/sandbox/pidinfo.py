"""How a process ended that is not our own child: the kernel tells who holds a pidfd of it, since Linux 6.15.

Source: linux/pidfd.h, PIDFD_GET_INFO.
"""

from __future__ import annotations

import fcntl
import os
import struct
from typing import Final

_FORMAT: Final = struct.Struct("=QQ11Ii")  # mask, cgroup, eleven ids, exit_code
_GET_INFO: Final = (3 << 30) | (_FORMAT.size << 16) | (0xFF << 8) | 11
_EXIT: Final = 1 << 3


def exit_code(pidfd: int) -> int | None:
    """Return the exit code of an ended process, negative for a signal; None where it or the kernel does not say."""
    asked = bytearray(_FORMAT.pack(_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(pidfd, _GET_INFO, asked)
    except OSError:
        return None
    mask, *_, status = _FORMAT.unpack(asked)
    return os.waitstatus_to_exitcode(status) if mask & _EXIT else None
