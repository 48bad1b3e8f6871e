"""One connection of the door: HTTP/1.1 and nothing else, and a fault in it is the end of it alone.

Hypercorn runs every connection in the nursery of the whole server and lets out whatever its protocols raise, so that
a few bytes of a stranger, sent before any guard is asked, would end the daemon. And without TLS it changes to HTTP/2
for whoever says so, which no MCP client and no browser does unasked: a second parser, and connections that no idle
time ends. RFC 9110, section 7.8: a server may go on in the protocol that it was spoken to in.
"""

from __future__ import annotations

import resource
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

import h11
import hypercorn.trio.run
import structlog
import trio
from hypercorn.events import Closed, Event, Updated
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.protocol.ws_stream import WSStream
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext

from codespace import limits, watches

log = structlog.get_logger("codespace.http.connection")

_open: WeakKeyDictionary[WorkerContext, dict[Connection, None]] = WeakKeyDictionary()
"""The connections of each server, in the order in which they came."""
_current: ContextVar[Connection | None] = ContextVar("connection", default=None)


class _Plain(H11Protocol):
    """HTTP/1.1, whatever else a request offers."""

    async def _check_protocol(self, event: object) -> None:
        """Leave out the look for HTTP/2."""

    async def _create_stream(self, request: h11.Request) -> None:
        """End the connection behind a websocket's handshake that is none: answered, and then waited at for ever."""
        await super()._create_stream(request)
        if isinstance(self.stream, WSStream) and self.stream.closed:
            await self.send(Closed())


class _Patient:
    """A connection's stream, read also while the account has no watch left for it; see watches.

    Once it was read it is watched, and what is sent finds its watch there.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def receive_some(self, most: int) -> bytes:
        while True:
            try:
                return bytes(await self._stream.receive_some(most))
            except trio.BrokenResourceError as broken:  # by a wait: nothing was taken
                if not watches.is_short(broken.__cause__):
                    raise
            await trio.sleep(limits.WATCH_RETRY_SECONDS)


class Connection(TCPServer):
    """Hypercorn's connection, kept to itself."""

    is_known = False
    """Whether a caller has shown here that it may come in."""
    is_left = False
    """Whether the client has gone: what ends after that leaves no idle connection."""

    async def run(self) -> None:
        """Serve it until it ends. Never raises; a fault is logged by its kind, since its text may quote a request.

        Of too many one whose client has left makes room, else the one that was a stranger's for longest; where there is
        none, this one does.
        Source: limits.HTTP_CONNECTIONS, limits.HTTP_CONNECTIONS_LEAST.
        """
        others = _open.setdefault(self.context, {})
        if len(others) >= _most() and not _make_room(others):
            await self.stream.aclose()
            return
        others[self] = None
        self.stream = _Patient(self.stream)  # type: ignore[assignment]
        _current.set(self)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._cut_when_cancelled)
                await super().run()
                nursery.cancel_scope.cancel()
        except* Exception as faults:
            log.warning("a connection ended by a fault", faults=sorted({type(each).__name__ for each in _flat(faults)}))
        finally:
            others.pop(self, None)

    async def _cut_when_cancelled(self) -> None:
        """Close the socket under a send, which Hypercorn shields: who takes little, or nothing, would hold a stop."""
        try:
            await trio.sleep_forever()
        finally:
            self.stream.socket.close()

    async def protocol_send(self, event: Event) -> None:
        """Send what there is to say. Where the client has left meanwhile, there is nobody to say it to."""
        if self.is_left and isinstance(event, Updated):
            return
        try:
            await super().protocol_send(event)
        except trio.BusyResourceError:  # who reads has noticed it at this moment, and is closing
            await self.protocol.handle(Closed())

    async def _read_data(self) -> None:
        offered = self.protocol
        offered.protocol = _Plain(
            offered.app,
            offered.config,
            offered.context,
            offered.task_group,
            offered.state,
            offered.ssl,
            offered.client,
            offered.server,
            offered.send,
        )
        await super()._read_data()
        self.is_left = True
        await self.idle_task.stop()  # it would be counted among the open ones for its whole idle time


def install() -> None:
    """Have Hypercorn make its connections of this kind: it has no setting for that."""
    hypercorn.trio.run.TCPServer = Connection  # type: ignore[attr-defined]


def vouch() -> None:
    """Say that the connection of this request is of somebody who may come in: no stranger takes its place."""
    if (connection := _current.get()) is not None:
        connection.is_known = True


def cut() -> None:
    """Close the connection of this request, whose answer was cut off: Hypercorn would read no other from it."""
    if (connection := _current.get()) is not None:
        connection.stream.socket.close()


def _most() -> int:
    """Return how many there may be: half of the files that can be open here, but for those that one command takes."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    share = max((soft - limits.DESCRIPTORS) // 2, limits.HTTP_CONNECTIONS_LEAST)
    return min(share, limits.HTTP_CONNECTIONS)


def _make_room(others: dict[Connection, None]) -> bool:
    gone = (each for each in others if each.is_left)  # its call is served to the end, and keeps no place for that
    last = next(gone, None) or next((each for each in others if not each.is_known), None)
    if last is None:
        return False
    del others[last]
    last.stream.socket.close()  # it ends by that, whatever it waits for
    return True


def _flat(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    for each in group.exceptions:
        found.extend(_flat(each) if isinstance(each, BaseExceptionGroup) else [each])
    return found
