"""Errors of a moment: descriptors or memory were short, and what was asked for may well be there.

Whoever looks for what is to be hidden or protected must not take one for "nothing is there": the command that is
about to start would see it, or write it. So it is raised, and the command is refused.
"""

from __future__ import annotations

import errno
from typing import Final

from codespace.errors import Refusal

ERRORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
NEXT_STEP: Final = (
    "End commands that are not needed, and call again; if it repeats, ask the operator to give the daemon more "
    "(`ulimit -n`, LimitNOFILE and MemoryMax of its unit)."
)


def is_behind(problem: Exception) -> bool:
    """Return whether an error is a shortage, or a refusal is for one."""
    cause = problem.__cause__ if isinstance(problem, Refusal) else problem
    return isinstance(cause, OSError) and cause.errno in ERRORS


def advise(refused: Refusal) -> None:
    """Say in a refusal what helps against a shortage, where one is behind it: what it names is not what is wrong."""
    if is_behind(refused):
        refused.next_step = NEXT_STEP
        refused.retryable = True
