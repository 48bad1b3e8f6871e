"""One connection between two ends: bytes with counters, an idle limit, and heads that arrive in time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import trio

from codespace import limits
from helper.proxy.bounds import Bounds


@dataclass(slots=True)
class Traffic:
    """Counters of one door, its whole life."""

    connections: int = 0
    turned_away: int = 0
    """Connections over the limit."""
    sent_bytes: int = 0
    """From the command to the network."""
    received_bytes: int = 0


class Idle:
    """A deadline that every byte moves; what it cuts ends quietly."""

    def __init__(self, bounds: Bounds) -> None:
        self.scope = trio.CancelScope()
        self._bounds = bounds
        self._seconds = bounds.idle_seconds
        self.touch()

    def touch(self) -> None:
        """A byte moved."""
        self.scope.deadline = trio.current_time() + self._seconds

    def halve(self) -> None:
        """One side has said that it will send no more."""
        self._seconds = self._bounds.half_seconds
        self.touch()


@contextmanager
def idle(bounds: Bounds) -> Iterator[Idle]:
    """Cut what is inside once no byte moves for `bounds.idle_seconds`."""
    watch = Idle(bounds)
    with watch.scope:
        yield watch


async def pump(source: trio.SocketStream, sink: trio.SocketStream, watch: Idle, count: Callable[[int], None]) -> None:
    """Carry bytes until `source` says that it will send no more, and say so to `sink`.

    Raises: trio.BrokenResourceError where either end is gone.
    """
    while block := await source.receive_some(limits.PROXY_BLOCK_BYTES):
        watch.touch()
        await sink.send_all(block)
        watch.touch()
        count(len(block))
    watch.halve()
    await sink.send_eof()


async def dismiss(stream: trio.SocketStream, answer: bytes, bounds: Bounds) -> None:
    """Send a last answer so that it arrives: what the client still sends is read and thrown away.

    A socket that is closed with unread bytes resets the connection, and the answer is lost with it.
    """
    with trio.move_on_after(bounds.head_seconds):
        try:
            await stream.send_all(answer)
            await stream.send_eof()
            read = 0
            while read < 16 * limits.PROXY_BLOCK_BYTES and (
                block := await stream.receive_some(limits.PROXY_BLOCK_BYTES)
            ):
                read += len(block)
        except trio.BrokenResourceError:
            pass  # it did not want to know
