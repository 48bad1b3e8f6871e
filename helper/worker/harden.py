"""What the worker gives up before anything else is imported. Standard library only, and little of that."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_PR_SET_NO_NEW_PRIVS: Final = 38


class Orphaned(Exception):
    """The process that started this one is gone already."""


def harden(parent: int) -> None:
    """Die with the parent, gain no privileges, leave no memory to be read, hold nothing that was not meant for us.

    Args:
        parent: The process id of who started this program.
    Raises: Orphaned; OSError where the kernel refuses.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above: the signal will never come
        raise Orphaned
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_SET_DUMPABLE, 0)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))  # limits.CORE_BYTES, which its commands need too
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.environ.clear()
    os.chdir("/")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is the daemon's affair


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")
