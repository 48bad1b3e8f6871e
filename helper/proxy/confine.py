"""What the proxy gives up before it hears from anybody: it needs sockets and the resolver's files, no more."""

from __future__ import annotations

import contextlib
import ctypes
import resource
from typing import Final

from codespace import limits
from codespace.sandbox import landlock

_PR_SET_DUMPABLE: Final = 4
_CAPABILITY_VERSION: Final = 0x20080522
_SPARE_DESCRIPTORS: Final = 128
# For the resolver, the control socket, and connections that are just being turned away.

_libc = ctypes.CDLL(None, use_errno=True)


def confine() -> int:
    """Give up files, programs, privileges, core dumps; returns the Landlock version in force, 0 for none.

    Raises: OSError; the proxy must not serve then.
    """
    descriptors = 2 * limits.PROXY_CONNECTIONS + _SPARE_DESCRIPTORS
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    _limit(resource.RLIMIT_NOFILE, descriptors if most == resource.RLIM_INFINITY else min(descriptors, most))
    _limit(resource.RLIMIT_DATA, limits.PROXY_MEMORY_BYTES)
    _limit(resource.RLIMIT_CORE, limits.CORE_BYTES)
    drop_capabilities()
    found = landlock.restrict(connect=True)
    if _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0):  # nobody of this account may look into its memory
        raise OSError(ctypes.get_errno(), "PR_SET_DUMPABLE")
    return found


def connections() -> int:
    """Return how many connections the descriptors suffice for: each takes two."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, min(limits.PROXY_CONNECTIONS, (soft - _SPARE_DESCRIPTORS) // 2))


def drop_capabilities() -> None:
    """Give up what root has: a daemon that runs as root must not lend its rights to the network's words.

    Raises: OSError.
    """
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    nothing = (ctypes.c_uint32 * 6)()
    if _libc.capset(header, nothing):
        raise OSError(ctypes.get_errno(), "capset")


def _limit(kind: int, value: int) -> None:
    with contextlib.suppress(ValueError, OSError):  # a stricter limit is in force already
        resource.setrlimit(kind, (value, value))
