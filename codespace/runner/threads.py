"""Threads for what has to be done and nobody asks for again: while none can be had, it waits.

The account, its service or its container may have as many threads and processes as it may have, and a command
can bring that about. A call is refused then; what a running command needs must not end it, or the daemon, for that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import trio

from codespace import limits

T = TypeVar("T")

_NONE_LEFT: Final = "can't start new thread"  # Python has no exception of its own for it


def is_shortage(error: RuntimeError) -> bool:
    """Return whether an error says that no thread was to be had; nothing was begun then."""
    return str(error) == _NONE_LEFT


async def run_patiently(
    act: Callable[..., T], *arguments: object, limiter: trio.CapacityLimiter | None = None, abandon: bool = True
) -> T:
    """Run `act` in a thread, once one can be had; return what it returns.

    Args:
        abandon: A cancel leaves the thread to itself, else waits for it.
    Cancel: nothing was begun, or it goes on in its thread.
    """
    while True:
        try:
            return await trio.to_thread.run_sync(act, *arguments, limiter=limiter, abandon_on_cancel=abandon)
        except RuntimeError as error:
            if not is_shortage(error):
                raise
        await trio.sleep(limits.THREAD_RETRY_SECONDS)
