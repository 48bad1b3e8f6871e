"""Landlock for our own helpers: a process gives up what it will never need, for itself and its children.

It locks in a program that is ours and may be tricked; it is no cage for a program that is hostile
(SANDBOX: chmod, chown, datagrams and path sockets pass it by). Only the calling thread is restricted,
so call it before there are others. Raw system calls, because a binding costs 70 ms to import.

Source: linux/landlock.h, landlock(7).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import Final

_CREATE: Final = 444
_ADD_RULE: Final = 445
_RESTRICT: Final = 446
# The same numbers on every architecture.
_VERSION: Final = 1
_PATH_BENEATH: Final = 1
_PR_SET_NO_NEW_PRIVS: Final = 38

EXECUTE: Final = 1 << 0
_WRITE_FILE: Final = 1 << 1
_READ: Final = 1 << 2 | 1 << 3  # files and directories
_CHANGE_DIRECTORY: Final = sum(1 << bit for bit in range(4, 13))  # remove and make, each kind
_REFER: Final = 1 << 13
_TRUNCATE: Final = 1 << 14
_BIND_TCP: Final = 1 << 0
_CONNECT_TCP: Final = 1 << 1
_SCOPES: Final = 0b11  # abstract sockets and signals of processes outside

_libc = ctypes.CDLL(None, use_errno=True)


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed", ctypes.c_uint64), ("directory", ctypes.c_int32))


def version() -> int:
    """Return the kernel's Landlock version, 0 where there is none."""
    return max(0, int(_libc.syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))))


def restrict(
    *,
    writable: Sequence[int] = (),
    readable: Sequence[int] | None = None,
    execute: bool = False,
    connect: bool = False,
) -> int:
    """Give up writing to files, but below `writable`; taking new privileges; listening; signals to outsiders.

    Args:
        writable: Descriptors of directories; what is there may be moved between them too.
        readable: Descriptors of what may still be opened for reading, beside `writable`; None for everything.
        execute: Whether programs may still be started.
        connect: Whether TCP connections may still be opened.
    Returns: The version in force; 0 where the kernel has none and only new privileges were given up. Older
        versions restrict less: no renaming across directories before 2, truncation after 3, TCP after 4,
        signals and abstract sockets after 6.
    Raises: OSError.
    """
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise _error("PR_SET_NO_NEW_PRIVS")
    found = version()
    if not found:
        return 0
    writing = _WRITE_FILE | _CHANGE_DIRECTORY | (_REFER if found >= 2 else 0) | (_TRUNCATE if found >= 3 else 0)
    network = (_BIND_TCP | (0 if connect else _CONNECT_TCP)) if found >= 4 else 0
    reading = 0 if readable is None else _READ
    asked = _Ruleset(reading | writing | (0 if execute else EXECUTE), network, _SCOPES if found >= 6 else 0)
    size = ctypes.sizeof(asked) if found >= 6 else 16 if found >= 4 else 8
    ruleset = _libc.syscall(_CREATE, ctypes.byref(asked), ctypes.c_size_t(size), ctypes.c_uint32(0))
    if ruleset < 0:
        raise _error("landlock_create_ruleset")
    try:
        rules = [(reading | writing, held) for held in writable] + [(_READ, held) for held in readable or ()]
        for allowed, held in rules:
            rule = _PathBeneath(allowed, held)
            if _libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(rule), ctypes.c_uint32(0)):
                raise _error("landlock_add_rule")
        if _libc.syscall(_RESTRICT, ruleset, ctypes.c_uint32(0)):
            raise _error("landlock_restrict_self")
    finally:
        os.close(ruleset)
    return found


def _error(call: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{call}: {os.strerror(number)}")
