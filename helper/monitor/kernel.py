"""System calls that Python does not have."""

from __future__ import annotations

import ctypes
from typing import Final

PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36
PR_SET_NO_NEW_PRIVS: Final = 38
CLONE_NEWNS: Final = 0x0002_0000
CLONE_NEWUSER: Final = 0x1000_0000
NS_GET_USERNS: Final = 0xB701
MS_RDONLY: Final = 1
MS_NOSUID: Final = 2
MS_NODEV: Final = 4
MS_NOEXEC: Final = 8
MS_REMOUNT: Final = 32
MS_BIND: Final = 4096
MS_REC: Final = 16384
MS_PRIVATE: Final = 1 << 18
SYS_CLOSE_RANGE: Final = 436
SYS_LANDLOCK_RESTRICT_SELF: Final = 446
# The same numbers on every architecture.

libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Become the subreaper of everything that is forked below; a fork does not inherit it."""
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")


def enter(namespace: int, kind: int) -> None:
    """Enter the namespace of a descriptor, for good. Raises: OSError."""
    if libc.setns(namespace, kind):
        raise OSError(ctypes.get_errno(), "setns")


def mount(source: bytes, target: bytes, kind: bytes | None, flags: int, data: bytes | None = None) -> None:
    """Mount something. Raises: OSError."""
    if libc.mount(source, target, kind, ctypes.c_ulong(flags), data):
        raise OSError(ctypes.get_errno(), "mount")
