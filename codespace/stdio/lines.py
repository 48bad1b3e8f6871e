"""Descriptors as cancellable streams of lines, bounded in length."""

from __future__ import annotations

import errno
import os
import select
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Final, Protocol

import trio

from codespace import limits, watches
from codespace.protocol.wire import Line, TooLong

_END_BYTES: Final = 1024
# How much of both ends of a line that is too long is kept: enough to find the id to answer to.
_file_limiter: Final = trio.CapacityLimiter(2)
# Regular files only: one thread for either direction.


class ByteStream(Protocol):
    """What lines are read from and written to."""

    async def receive_some(self, max_bytes: int) -> bytes | bytearray: ...
    async def send_all(self, data: bytes) -> None: ...
    async def aclose(self) -> None: ...


def open_stream(fd: int) -> ByteStream:
    """Return a stream over `fd`, which it owns: polled where it can be, threads for a plain file."""
    return _Polled(fd) if _can_be_polled(fd) else _File(fd)


def is_closed(fd: int) -> bool:
    """Return whether the other end of a pipe or socket is closed, whatever still lies in it. Never of a file."""
    poll = select.poll()
    poll.register(fd, select.POLLRDHUP)
    return bool(poll.poll(0))


async def read_lines(stream: ByteStream) -> AsyncGenerator[Line, None]:
    """Yield lines without their line feed until the end; a last line without one counts.

    A line over limits.REQUEST_BYTES is thrown away as it arrives and yielded as TooLong.
    Cancel: what was read of an unfinished line is lost.
    """
    collected = _Collected()
    while data := await _receive(stream):
        *ends, rest = data.split(b"\n")
        for end in ends:
            collected.add(end)
            yield collected.take()
        collected.add(rest)
    if collected:
        yield collected.take()


class _Collected:
    """The line that is arriving."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._over: TooLong | None = None

    def __bool__(self) -> bool:
        return self._size > 0

    def add(self, part: bytes) -> None:
        self._size += len(part)
        self._parts.append(part)
        if self._size > limits.REQUEST_BYTES:
            self._shrink()

    def take(self) -> Line:
        """Return the line and start over."""
        line = b"".join(self._parts) if self._over is None else self._over
        self._parts, self._size, self._over = [], 0, None
        return line

    def _shrink(self) -> None:
        """Keep both ends only."""
        joined = b"".join(self._parts)
        head = joined[:_END_BYTES] if self._over is None else self._over.head
        tail = joined if self._over is None else self._over.tail + joined
        self._over = TooLong(head, tail[-_END_BYTES:])
        self._parts = []


async def _receive(stream: ByteStream) -> bytes:
    """Return the next bytes; a client that went away without a goodbye is the end like any other."""
    try:
        return bytes(await stream.receive_some(limits.STDIO_CHUNK_BYTES))
    except (trio.BrokenResourceError, OSError):
        return b""


def _can_be_polled(fd: int) -> bool:
    with select.epoll() as poll:
        try:
            poll.register(fd, select.EPOLLIN)
        except PermissionError:  # a regular file or /dev/null
            return False
    return True


class _Polled:
    """A pipe, a socket or a terminal as a stream."""

    def __init__(self, fd: int) -> None:
        self._stream = trio.lowlevel.FdStream(fd)

    async def receive_some(self, max_bytes: int) -> bytes:
        return await watches.read(self._stream, max_bytes)

    async def send_all(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        await watches.write(self._stream, data)  # FdStream's own would not know how much was taken before it failed

    async def aclose(self) -> None:
        await self._stream.aclose()


class _File:
    """A regular file or /dev/null as a stream: always ready, so a thread does not wait in it."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    async def receive_some(self, max_bytes: int) -> bytes:
        return await trio.to_thread.run_sync(os.read, self._fd, max_bytes, limiter=_file_limiter)

    async def send_all(self, data: bytes) -> None:
        await trio.to_thread.run_sync(self._write, data, limiter=_file_limiter)

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(self._fd, left) :]
            except OSError as error:
                if error.errno in (errno.EPIPE, errno.ENOSPC):
                    raise trio.BrokenResourceError from error
                raise

    async def aclose(self) -> None:
        fd, self._fd = self._fd, -1
        with suppress(OSError):
            os.close(fd)
        await trio.lowlevel.checkpoint()
