"""Looks at roots in threads: how many at once in each, and for how long. It knows nothing of what they look at.

Counted for each root by itself: a thread that a hung filesystem holds never ends, and those that wait
for its turn must be of the same root.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from functools import partial
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

    async def run(
        self,
        workspace: Workspace,
        work: Callable[[], T],
        subject: str,
        seconds: float | None = None,
        next_step: str | None = None,
    ) -> T:
        """Return what `work` returns, which changes nothing.

        Args:
            subject: What it looks at, in words for the caller.
            seconds: How long it may take; limits.READ_SECONDS where left out.
            next_step: What the caller may do when it took longer.
        Raises: Refusal TIMEOUT; whatever `work` raises.
        Cancel: at once, as when its time is over; the thread ends by itself.
        """
        most = limits.READ_SECONDS if seconds is None else seconds
        try:
            with trio.fail_after(most):
                return await trio.to_thread.run_sync(work, limiter=self.of(workspace), abandon_on_cancel=True)
        except trio.TooSlowError:
            message = f"Reading {subject} took over {most:g} s. Nothing changed."
            raise Refusal("TIMEOUT", message, next_step=next_step) from None

    async def run_in(
        self,
        workspace: Workspace,
        work: Callable[[int], T],
        directory: int,
        subject: str,
        seconds: float | None = None,
        next_step: str | None = None,
    ) -> T:
        """Return what `work` returns of a copy of the descriptor `directory`, as `run`.

        The copy is the thread's own: however late it ends, it never looks at what another has opened meanwhile.
        Raises: OSError where there is no descriptor for the copy.
        """
        lent = _Lent(os.dup(directory))
        try:
            return await self.run(workspace, partial(lent.use, work), subject, seconds, next_step)
        finally:
            lent.let_go()

    async def open(
        self,
        workspace: Workspace,
        opened: Callable[[], int],
        subject: str,
        seconds: float | None = None,
        next_step: str | None = None,
    ) -> int:
        """Return the descriptor that `opened` returns, as `run`; one that comes too late is closed."""
        late = _Descriptor(opened)
        try:
            return await self.run(workspace, late.open, subject, seconds, next_step)
        except BaseException:
            late.close()
            raise


class _Lent:
    """A descriptor for one thread, closed by whoever is done with it last: the thread, or who gave it up."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._guard = threading.Lock()
        self._holders = 1

    def use(self, work: Callable[[int], T]) -> T:
        with self._guard:
            if not self._holders:
                raise OSError(errno.EBADF, "it was given up before its thread began")
            self._holders += 1
        try:
            return work(self._descriptor)
        finally:
            self.let_go()

    def let_go(self) -> None:
        with self._guard:
            self._holders -= 1
            if not self._holders:
                os.close(self._descriptor)


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
