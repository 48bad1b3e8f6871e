"""System calls that Python does not have."""

from __future__ import annotations

import ctypes
from typing import Final

PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36
PR_SET_NO_NEW_PRIVS: Final = 38
SYS_CLOSE_RANGE: Final = 436
SYS_LANDLOCK_RESTRICT_SELF: Final = 446
# The same numbers on every architecture.

libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Become the subreaper of everything that is forked below; a fork does not inherit it."""
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")
