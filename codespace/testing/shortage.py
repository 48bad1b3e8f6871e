"""A process that has no more of something than it is left.

Of descriptors the kernel itself has no more; of watches of epoll, which the whole account has together, trio's epoll
says so.
"""

from __future__ import annotations

import errno
import os
import resource
import select
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import trio


@contextmanager
def descriptors(left: int) -> Iterator[None]:
    """Leave this process `left` new descriptors for the block; other threads take from them too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    above = max(map(int, os.listdir("/proc/self/fd"))) + 1
    held = []
    while (filler := os.dup(0)) < above:
        held.append(filler)
    os.close(filler)
    resource.setrlimit(resource.RLIMIT_NOFILE, (filler + left, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for each in held:
            os.close(each)


class Full:
    """An epoll that watches nothing that it does not watch already."""

    def __init__(self, epoll: select.epoll) -> None:
        self._epoll = epoll
        self.refused = False
        """Whether there was anything."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._epoll, name)

    def register(self, fd: int, mask: int) -> None:
        self.refused = True
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextmanager
def no_watches() -> Iterator[Full]:
    """Have this event loop watch no descriptor for the first time in the block."""
    io: Any = trio._core._run.GLOBAL_RUN_CONTEXT.runner.io_manager
    kept = io._epoll
    io._epoll = full = Full(kept)
    try:
        yield full
    finally:
        io._epoll = kept
