"""The daemon's end of one monitor's control socket: a request, events back, the terminate verb.

Closing it ends the command's whole tree. The wire is described in helper/monitor.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import trio

from codespace import limits, watches


class Monitor:
    """One monitor that has not been asked yet, or the one that owns a command."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        control.setblocking(False)
        self._unread = b""
        self.ready = False
        """The monitor was there to take the order."""

    async def start(self, order: Mapping[str, Any], descriptors: Sequence[int]) -> dict[str, Any] | None:
        """Have the command started; returns `started` or `failed`, None where the monitor ended.

        Args:
            descriptors: stdin, stdout, stderr, directory; copies are sent.
        After None, `ready` says whether the monitor was there at all: where not, nothing was started.
        Raises: OSError where the kernel does not take the descriptors; trio.TooSlowError where the monitor does not
            take the order within limits.MONITOR_SECONDS.
        Cancel: close it; nothing of the command is left.
        """
        with trio.fail_after(limits.MONITOR_SECONDS):
            with contextlib.suppress(ConnectionError):  # it ended; what it had said before can still be read
                await self._send(json.dumps(order).encode() + b"\n", descriptors)
            event = await self.event()
        if event is not None and event["event"] == "ready":
            self.ready = True
            event = await self.event()
        return event

    async def _send(self, data: bytes, descriptors: Sequence[int]) -> None:
        # The descriptors travel with the first bytes; a send to an empty socket takes at least some.
        sent = socket.send_fds(self._control, [data], descriptors, socket.MSG_NOSIGNAL)
        rest = memoryview(data)[sent:]
        while rest:
            try:
                rest = rest[self._control.send(rest, socket.MSG_NOSIGNAL) :]
            except BlockingIOError:
                await watches.wait_writable(self._control)

    async def event(self) -> dict[str, Any] | None:
        """Return the next event, None once the monitor is gone.

        Raises: OSError where its socket cannot be read; the monitor may be there.
        Cancel: no event is lost.
        """
        while b"\n" not in self._unread:
            try:
                data = await watches.receive(self._control, 4096)
            except ConnectionResetError:
                data = b""
            if not data:
                return None
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        event: dict[str, Any] = json.loads(line)
        return event

    async def cover(self) -> tuple[int, bool]:
        """Have the order's covers laid.

        Returns: 0, or the errno of what refused them; whether all of the machine's were laid by then.
        Raises: EOFError where the monitor or its command ended. Cancel: close it.
        """
        with contextlib.suppress(OSError):  # it ended: what it said before can still be read
            self._control.send(b'{"verb": "cover"}\n', socket.MSG_NOSIGNAL)
        event = await self.event()
        if event is None or event["event"] != "covered":
            raise EOFError
        return int(event["errno"]), bool(event["masking"])

    def watch(self, mounts: int) -> None:
        """Have changes of a table of mounts told as events, from the moment on in which it was opened; never blocks.

        Args:
            mounts: Its descriptor; a copy is sent.
        Raises: OSError; the monitor is gone.
        """
        socket.send_fds(self._control, [b'{"verb": "watch"}\n'], [mounts], socket.MSG_NOSIGNAL)

    def terminate(self, grace_seconds: float) -> None:
        """Have the whole tree asked to end, and killed after `grace_seconds`; never blocks."""
        line = json.dumps({"verb": "terminate", "grace": grace_seconds}).encode() + b"\n"
        try:
            self._control.send(line, socket.MSG_NOSIGNAL)
        except OSError:
            return  # it is gone, or has not taken hundreds of verbs: closing is what is left

    def close(self) -> None:
        """Let go of the monitor: whatever is left of its tree is killed."""
        with contextlib.suppress(OSError):
            trio.lowlevel.notify_closing(self._control)
        self._control.close()
