"""Work in a thread that a cancelled caller can end, and whose children it then waits for."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TypeVar

import trio

from codespace import limits

T = TypeVar("T")


class Stop:
    """Said once, from any thread; a thread that waits in poll(2) hears it through `fd`."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.said = False
        self._open = True
        self._lock = threading.Lock()

    def say(self) -> None:
        """Wake whoever waits; nothing happens where the work has ended."""
        with self._lock:
            self.said = True
            if self._open:
                os.eventfd_write(self.fd, 1)

    def close(self) -> None:
        """Free the descriptor; a second time does nothing."""
        with self._lock:
            if self._open:
                self._open = False
                os.close(self.fd)


async def run_stoppable(work: Callable[[Stop], T], limiter: trio.CapacityLimiter) -> T:
    """Run `work` in a thread and return what it returns.

    Args:
        work: Ends soon after `Stop` was said, with no child left.
        limiter: Bounds how many run at once.
    Cancel: the stop is said and the thread waited for, limits.REAP_SECONDS at most; a thread that a
        hung filesystem holds even then is left behind and ends by itself.
    """
    stop = Stop()
    ended = trio.Event()
    token = trio.lowlevel.current_trio_token()
    started = finished = False

    def body() -> T | None:
        nonlocal started, finished
        started = True
        try:
            return None if stop.said else work(stop)
        finally:
            stop.close()
            finished = True  # before the look below: whoever reads False after saying the stop will be told
            if stop.said:
                _tell(token, ended)

    try:
        result = await trio.to_thread.run_sync(body, limiter=limiter, abandon_on_cancel=True)
    except trio.Cancelled:
        stop.say()
        if started and not finished:
            # Protects the killing and reaping of the children; when time runs out the thread goes on alone.
            with trio.move_on_after(limits.REAP_SECONDS, shield=True):
                await ended.wait()
        raise
    finally:
        if not started:  # cancelled in the queue, or no thread was to be had
            stop.close()
    assert result is not None  # only a stop that was said ends without a result, and then we were cancelled
    return result


def _tell(token: trio.lowlevel.TrioToken, ended: trio.Event) -> None:
    try:
        token.run_sync_soon(ended.set)
    except trio.RunFinishedError:
        return  # the loop has ended meanwhile: nobody waits
