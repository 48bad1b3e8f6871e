"""Waiting for a descriptor, also while none can be watched: it is looked at again and again then.

An account may have so many watches of epoll and no more (/proc/sys/fs/epoll/max_user_watches), and one command can
use them up. What waits must not end for that, and the daemon least of all.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

import trio

from codespace import limits

_SHORTAGES: Final = (errno.ENOSPC, errno.ENOMEM)


class Described(Protocol):
    """What has a descriptor, as long as it is open: a number by itself may be another's after a wait."""

    def fileno(self) -> int: ...


def is_short(problem: BaseException | None) -> bool:
    """Return whether an error says that no watch was to be had."""
    return isinstance(problem, OSError) and problem.errno in _SHORTAGES


async def patiently(wait: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
    """Await `wait(*arguments)`, or for a moment where no watch is to be had: who calls looks, and waits again.

    Args:
        wait: What waits for a descriptor and takes nothing of it.
    Raises: OSError, trio.ClosedResourceError.
    Source: limits.WATCH_RETRY_SECONDS.
    """
    try:
        await wait(*arguments)
    except OSError as error:
        if not is_short(error):
            raise
        await trio.sleep(limits.WATCH_RETRY_SECONDS)


async def wait_readable(source: int | socket.socket) -> None:
    """Return once there may be something to read; see `patiently`."""
    await patiently(trio.lowlevel.wait_readable, source)


async def wait_writable(sink: int | socket.socket) -> None:
    """Return once something may be taken; see `patiently`."""
    await patiently(trio.lowlevel.wait_writable, sink)


async def receive(source: socket.socket, most: int) -> bytes:
    """Return what has come to a non-blocking socket, once there is some; b"" at the end.

    Raises: OSError, trio.ClosedResourceError. Cancel: nothing is lost.
    """
    while True:
        try:
            return source.recv(most)
        except BlockingIOError:
            await wait_readable(source)


async def read(source: Described, most: int) -> bytes:
    """Return what has come to a non-blocking file; as `receive`, but it waits first."""
    while True:
        await wait_readable(source.fileno())
        try:
            return os.read(source.fileno(), most)
        except BlockingIOError:
            continue


async def write(sink: Described, data: bytes) -> None:
    """Write all of `data` to a non-blocking file.

    Raises: OSError, trio.ClosedResourceError; a part may have been written. Cancel: as an error.
    """
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(sink.fileno(), left) :]
        except BlockingIOError:
            await wait_writable(sink.fileno())
