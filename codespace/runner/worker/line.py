"""The worker's socket as a trio task sees it: messages in, messages out, neither side able to hold up the other.

It knows no verbs. What is sent never waits and is never cut by a cancelled task; it goes at once where
the socket takes it, else by the writer. A peer that sends or takes too slowly ends the connection.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import trio

from codespace import limits, watches
from codespace.runner.worker.frames import BadFrame, Unpacker, pack


class Line:
    """One end of the connection.

    Args:
        connection: A connected stream socket; closing it is this object's.
        limit_bytes: The longest frame that is taken, until `open_up`.
    """

    def __init__(self, connection: socket.socket, limit_bytes: int = limits.WORKER_FRAME_BYTES) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._unpacker = Unpacker(limit_bytes)
        self._frame_until: float | None = None
        self._outbox: deque[memoryview] = deque()
        self._queued_bytes = 0
        self._work = trio.lowlevel.ParkingLot()
        self._room = trio.lowlevel.ParkingLot()
        self._broken = False
        self._closed = False

    def open_up(self) -> None:
        """Take frames of the full size: the other side has said who it is."""
        self._unpacker.limit_bytes = limits.WORKER_FRAME_BYTES

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message, None at the end.

        Raises: BadFrame, also where a frame was cut off or took longer than limits.WORKER_FRAME_SECONDS.
        Cancel: nothing is lost.
        """
        while True:
            message = self._unpacker.take()
            if message is not None:
                self._frame_until = None
                return message
            data = await self._receive_some()
            if not data:
                if self._unpacker.is_partial:
                    raise BadFrame("a frame was cut off")
                return None
            self._unpacker.feed(data)

    async def _receive_some(self) -> bytes:
        if not self._unpacker.is_partial:
            return await self._arrival()
        if self._frame_until is None:
            self._frame_until = trio.current_time() + limits.WORKER_FRAME_SECONDS
        with trio.move_on_at(self._frame_until):
            return await self._arrival()
        raise BadFrame(f"a frame took longer than {limits.WORKER_FRAME_SECONDS:g} s")

    async def _arrival(self) -> bytes:
        while True:
            await watches.wait_readable(self._socket)
            try:
                return self._socket.recv(limits.WORKER_READ_BYTES)
            except BlockingIOError:
                continue
            except OSError:
                return b""  # reset: the end, only less polite

    def send_nowait(self, message: Mapping[str, Any]) -> bool:
        """Send a message; what the socket does not take at once goes by the writer.

        Returns: False where certainly nothing of it was sent, because the connection is broken.
        Raises: TooLarge.
        """
        left = memoryview(pack(message))
        if self._broken or self._closed:
            return False
        if not self._outbox:
            left = self._write(left)
            if self._broken:
                return False
        if left:
            self._outbox.append(left)
            self._queued_bytes += len(left)
            self._work.unpark_all()
        return True

    async def wait_room(self) -> None:
        """Return once not too much waits to be sent."""
        while self._queued_bytes > limits.WORKER_OUTBOX_BYTES and not self._closed:
            await self._room.park()

    async def write(self) -> None:
        """Send what is queued, until cancelled; one task does this.

        Raises: BadFrame where the other side takes nothing for limits.WORKER_SEND_SECONDS.
        """
        while True:
            while not self._outbox:
                await self._work.park()
            with trio.move_on_after(limits.WORKER_SEND_SECONDS) as patience:
                await watches.wait_writable(self._socket)
            if patience.cancelled_caught:
                raise BadFrame(f"nothing was taken for {limits.WORKER_SEND_SECONDS:g} s")
            self._write_next()

    async def flush(self) -> None:
        """Return once all is sent; `write` must run."""
        while self._outbox and not self._closed:
            await self._room.park()

    def _write_next(self) -> None:
        first = self._outbox.popleft()
        left = self._write(first)
        self._queued_bytes -= len(first) - len(left)
        if left:
            self._outbox.appendleft(left)
        self._room.unpark_all()

    def _write(self, data: memoryview) -> memoryview:
        """Write what the socket takes now and return the rest; nothing is left for a broken one."""
        try:
            return data[self._socket.send(data, socket.MSG_NOSIGNAL) :]
        except BlockingIOError:
            return data
        except OSError:
            self._broken = True
            return data[len(data) :]

    def close(self) -> None:
        """Close the socket; who waits for room goes on, and what they send goes nowhere."""
        if self._closed:
            return
        self._closed = True
        with suppress(OSError):
            trio.lowlevel.notify_closing(self._socket)
        self._socket.close()
        self._room.unpark_all()
