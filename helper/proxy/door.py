"""The door of one run: takes connections from its listener for as long as the daemon holds the other end."""

from __future__ import annotations

import contextlib
import socket
import traceback

import trio

from codespace import limits, watches
from helper.proxy.connection import Rules, Unheard, serve
from helper.proxy.decision import Refused

_FULL = Refused(503, "too-many", "This run has too many connections at once.", "Close some, or open fewer.").answer()


async def receive(listener: socket.socket, rules: Rules) -> None:
    """Serve every connection until cancelled; owns and closes the listener.

    Raises: Unheard (in an exception group).
    Cancel: all connections are closed.
    """
    inside = trio.SocketListener(trio.socket.from_stdlib_socket(listener))

    async def admit(client: trio.SocketStream) -> None:
        if rules.traffic.connections >= rules.bounds.connections:
            rules.traffic.turned_away += 1
            turn_away(client)
            return
        rules.traffic.connections += 1
        try:
            await serve(client, rules)
        except Unheard:
            raise
        except Exception:  # a fault of ours in one connection: the others go on, this one is closed
            traceback.print_exc()
        finally:
            rules.traffic.connections -= 1

    await trio.serve_listeners(admit, [_Patient(inside)])


class _Patient(trio.abc.Listener[trio.SocketStream]):
    """A listener that goes on while no watch of it is to be had: it looks again then."""

    def __init__(self, inside: trio.SocketListener) -> None:
        self._inside = inside

    async def accept(self) -> trio.SocketStream:
        while True:
            try:
                return await self._inside.accept()
            except OSError as error:
                if not watches.is_short(error):
                    raise
            await trio.sleep(limits.WATCH_RETRY_SECONDS)

    async def aclose(self) -> None:
        await self._inside.aclose()


def turn_away(client: trio.SocketStream) -> None:
    """Say that it is full and close, without waiting for anybody."""
    with contextlib.suppress(OSError), socket.socket(fileno=socket.dup(client.socket.fileno())) as raw:
        raw.send(_FULL, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    client.socket.close()
