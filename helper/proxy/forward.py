"""Plain HTTP: one request to the server, one answer back, both written anew by h11.

The answer is passed on whatever it says. A redirect is just an answer: the client's next request is
decided like its first.
"""

from __future__ import annotations

from typing import Final

import h11
import trio

from codespace import limits
from helper.proxy.bounds import Bounds
from helper.proxy.line import Idle, Traffic, idle
from helper.proxy.request import Headers, Request, end_to_end

_CLOSE: Final = (b"Connection", b"close")


class BadAnswer(Exception):
    """The server said nothing, or no HTTP; nothing of it was passed on."""


class BadBody(Exception):
    """The client's body broke off or is framed wrongly; nothing was answered yet."""


async def forward(
    request: Request, client: trio.SocketStream, server: trio.SocketStream, bounds: Bounds, traffic: Traffic
) -> None:
    """Carry the request and its answer; returns when the answer is whole, or was cut.

    Raises: BadAnswer, BadBody (only while nothing was answered); trio.BrokenResourceError.
    """
    exchange = _Exchange(request, client, server, traffic)
    with idle(bounds) as watch:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(exchange.ask, watch, nursery.cancel_scope)
            await exchange.answer(watch)
            nursery.cancel_scope.cancel()  # an answer may come before the body has ended
    if exchange.problem is not None:
        raise exchange.problem
    if watch.scope.cancelled_caught and not exchange.answered:
        raise BadAnswer("did not answer in time")


class _Exchange:
    def __init__(
        self, request: Request, client: trio.SocketStream, server: trio.SocketStream, traffic: Traffic
    ) -> None:
        self._request = request
        self._client = client
        self._server = server
        self._traffic = traffic
        self._asked = h11.Connection(h11.CLIENT, max_incomplete_event_size=limits.PROXY_HEAD_BYTES)
        self._turn = trio.Lock()
        """Whose turn it is to write to the client."""
        self.answered = False
        self.problem: Exception | None = None

    async def ask(self, watch: Idle, everything: trio.CancelScope) -> None:
        """Send the head and the body; a broken body ends the exchange."""
        try:
            await self._send(
                h11.Request(method=self._request.method, target=self._request.path, headers=self._request.headers)
            )
            while True:
                event = await self._client_event(watch)
                if isinstance(event, h11.EndOfMessage):
                    await self._send(h11.EndOfMessage())  # trailers are not passed on
                    return
                await self._send(event)
                watch.touch()
        except trio.BrokenResourceError:
            pass  # the server wants no more of it; what it answers decides
        except h11.ProtocolError as error:
            self.problem = None if self.answered else BadBody(str(error))
            everything.cancel()

    async def _client_event(self, watch: Idle) -> h11.Event:
        connection = self._request.connection
        while (event := connection.next_event()) is h11.NEED_DATA:
            await self._let_go_on()
            connection.receive_data(await self._client.receive_some(limits.PROXY_BLOCK_BYTES))
            watch.touch()
        assert isinstance(event, (h11.Data, h11.EndOfMessage))
        return event

    async def _let_go_on(self) -> None:
        connection = self._request.connection
        async with self._turn:  # the answer may be under way meanwhile, and then says it all
            if connection.they_are_waiting_for_100_continue:
                go_on = connection.send(h11.InformationalResponse(status_code=100, headers=[]))
                await self._client.send_all(go_on or b"")

    async def _send(self, event: h11.Event) -> None:
        data = self._asked.send(event)
        if data:
            await self._server.send_all(data)
            self._traffic.sent_bytes += len(data)

    async def answer(self, watch: Idle) -> None:
        """Pass the answer on."""
        try:
            while True:
                event = await self._server_event(watch)
                if isinstance(event, h11.InformationalResponse):
                    continue  # this hop's own: we asked for none
                if isinstance(event, h11.Response):
                    event = h11.Response(status_code=event.status_code, reason=event.reason, headers=_headers(event))
                await self._reply(event)
                watch.touch()
                if isinstance(event, h11.EndOfMessage):
                    return
        except (h11.ProtocolError, trio.BrokenResourceError) as error:
            if not self.answered and self.problem is None:
                self.problem = BadAnswer(f"did not answer in HTTP ({type(error).__name__})")
            # Else it is cut here, and the missing end tells the client so.

    async def _server_event(self, watch: Idle) -> h11.Event:
        while (event := self._asked.next_event()) is h11.NEED_DATA:
            block = await self._server.receive_some(limits.PROXY_BLOCK_BYTES)
            watch.touch()
            self._traffic.received_bytes += len(block)
            self._asked.receive_data(block)
        if not isinstance(event, h11.Event):
            raise h11.RemoteProtocolError("the server goes on behind its answer")
        return event

    async def _reply(self, event: h11.Event) -> None:
        if isinstance(event, h11.EndOfMessage):
            event = h11.EndOfMessage()
        async with self._turn:
            data = self._request.connection.send(event)
            self.answered = True
            if data:
                await self._client.send_all(data)


def _headers(answer: h11.Response) -> Headers:
    """Return what is passed on; a length beside chunks would be a second opinion on where the answer ends."""
    chunked = any(name == b"transfer-encoding" for name, _ in answer.headers)
    kept = end_to_end(answer.headers.raw_items())
    return [*((name, value) for name, value in kept if not (chunked and name.lower() == b"content-length")), _CLOSE]
