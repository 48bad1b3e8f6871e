"""Looks at roots in threads: how many at once in each, and for how long. It knows nothing of what they look at.

Counted for each root by itself: a thread that a hung filesystem holds never ends, and those that wait
for its turn must be of the same root.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TypeVar

import trio

from codespace import limits
from codespace.contract import Workspace
from codespace.errors import Refusal

T = TypeVar("T")


class Turns:
    """The limiters of all roots.

    Args:
        at_once: Most threads in one root.
    """

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._limiters: dict[str, trio.CapacityLimiter] = {}

    def of(self, workspace: Workspace) -> trio.CapacityLimiter:
        """Return the limiter of a workspace's root."""
        limiter = self._limiters.get(workspace.root)
        if limiter is None:
            limiter = self._limiters[workspace.root] = trio.CapacityLimiter(self._at_once)
        return limiter

    async def run(self, workspace: Workspace, work: Callable[[], T], subject: str, seconds: float | None = None) -> T:
        """Return what `work` returns, which changes nothing.

        Args:
            subject: What it looks at, in words for the caller.
            seconds: How long it may take; limits.READ_SECONDS where left out.
        Raises: Refusal TIMEOUT; whatever `work` raises.
        Cancel: at once, as when its time is over; the thread ends by itself.
        """
        most = limits.READ_SECONDS if seconds is None else seconds
        try:
            with trio.fail_after(most):
                return await trio.to_thread.run_sync(work, limiter=self.of(workspace), abandon_on_cancel=True)
        except trio.TooSlowError:
            raise Refusal("TIMEOUT", f"Reading {subject} took over {most:g} s. Nothing changed.") from None

    async def open(self, workspace: Workspace, opened: Callable[[], int], subject: str) -> int:
        """Return the descriptor that `opened` returns, as `run`; one that comes too late is closed."""
        late = _Descriptor(opened)
        try:
            return await self.run(workspace, late.open, subject)
        except BaseException:
            late.close()
            raise


class _Descriptor:
    """A descriptor that a thread opens, and that is closed where nobody takes it any more."""

    def __init__(self, opened: Callable[[], int]) -> None:
        self._opened = opened
        self._guard = threading.Lock()
        self._descriptor: int | None = None
        self._unwanted = False

    def open(self) -> int:
        descriptor = self._opened()
        with self._guard:
            self._descriptor = descriptor
            if self._unwanted:
                os.close(descriptor)
        return descriptor

    def close(self) -> None:
        with self._guard:
            if self._descriptor is not None:
                os.close(self._descriptor)
            self._unwanted = True
