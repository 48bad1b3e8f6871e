"""The socket between a door and the daemon: one order with the listener, then news, ended by EOF.

One JSON object a line. To the door, once: {rules: [{host, port, address}]}, the listening socket by
SCM_RIGHTS with its first bytes. From it: {event: open, landlock} or {event: refused, problem}; one
{event: decision, ...} a request (decision.py); {event: end, turned_away, sent_bytes, received_bytes}
once the daemon has closed its side. There is no verb to change anything.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Mapping
from typing import Any, Final

import trio

from codespace import limits, watches
from helper.proxy.connection import Unheard
from helper.proxy.decision import Decision
from helper.proxy.policy import Policy

_ORDER_BYTES: Final = 4 * 1_048_576
# A list of 10,000 names fits ten times.


class BadOrder(Exception):
    """The door cannot be opened as asked."""


async def receive_order(control: socket.socket) -> tuple[Policy, socket.socket]:
    """Return the policy and the listening socket. A spare door waits for them as long as there is a daemon.

    Raises: BadOrder; EOFError, OSError where the daemon gave up, or took longer than limits.PROXY_START_SECONDS.
    """
    control.setblocking(False)
    data, descriptors = await _begin(control)
    try:
        with trio.move_on_after(limits.PROXY_START_SECONDS):
            while not data.endswith(b"\n"):
                more = await watches.receive(control, 65_536)
                if not more or len(data) > _ORDER_BYTES:
                    raise EOFError
                data += more
        if len(descriptors) != 1:
            raise BadOrder("There is not exactly one socket.")
        policy = Policy.load(json.loads(data)["rules"])
    except (KeyError, TypeError, ValueError) as error:  # BadPolicy too
        _close(descriptors)
        raise BadOrder(str(error)) from error
    except BaseException:
        _close(descriptors)
        raise
    listener = socket.socket(fileno=descriptors[0])
    if not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        listener.close()
        raise BadOrder("The socket does not listen.")
    return policy, listener


async def _begin(control: socket.socket) -> tuple[bytes, list[int]]:
    while True:
        await watches.wait_readable(control)
        with contextlib.suppress(BlockingIOError):
            data, descriptors, _, _ = socket.recv_fds(control, 65_536, 2)
            return data, descriptors


def _close(descriptors: list[int]) -> None:
    """Close what was received and is of no use."""
    for descriptor in descriptors:
        os.close(descriptor)


class Daemon:
    """The daemon's end, as a door sees it."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(control))
        self._turn = trio.Lock()

    async def tell(self, event: Mapping[str, Any]) -> None:
        """Return once the line is in the socket. Raises: Unheard, after which nothing more can be told."""
        line = json.dumps(event, separators=(",", ":")).encode() + b"\n"
        # A line that was begun must be ended, or the next one is nonsense: shielded for as long as a line may take.
        with trio.CancelScope(shield=True, deadline=trio.current_time() + limits.PROXY_TELL_SECONDS):
            try:
                async with self._turn:
                    await self._stream.send_all(line)
                return
            except trio.BrokenResourceError:
                pass
        raise Unheard

    async def tell_decision(self, decision: Decision) -> None:
        """Tell a decision. Raises: Unheard."""
        await self.tell(decision.event())

    async def wait_closed(self) -> None:
        """Return once the daemon has closed its side, or is gone."""
        with contextlib.suppress(OSError):
            while await watches.receive(self._control, 1):
                pass  # it has nothing more to say
