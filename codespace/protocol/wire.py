"""Serving one connection of newline-delimited JSON-RPC: between a door's lines and the SDK's streams.

The SDK's own stdio transport reads in a thread that cannot be cancelled, and has no limit on a line.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import mcp_types as types
import trio
from mcp.server.lowlevel import Server
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from codespace import limits
from codespace.protocol.message import NoMessage, read, refusal, seen_id

Send = Callable[[bytes], Awaitable[None]]
IsClosed = Callable[[], bool]


class TooLong:
    """A line over limits.REQUEST_BYTES, which was thrown away but for both its ends."""

    def __init__(self, head: bytes, tail: bytes) -> None:
        self.head = head
        self.tail = tail


Line = bytes | TooLong


async def serve_lines(
    server: Server[Any],
    lines: AsyncIterator[Line],
    send: Send,
    *,
    stop: trio.Event,
    is_closed: IsClosed = lambda: False,
) -> None:
    """Answer one client until its lines end or `stop` is set; then give what is under way a moment.

    Args:
        lines: One message each, without the line feed.
        send: Writes one whole message with its line feed. Called by one task only.
        is_closed: Says whether the client has closed its end, also where lines before that were not read yet.
    Cancel: what was not sent is lost; the work behind it goes on in the gateway.
    Source: limits.STDIO_FLUSH_SECONDS.
    """
    to_server, from_client = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    to_client, from_server = anyio.create_memory_object_stream[SessionMessage](0)
    with to_server, from_server, to_client.clone() as errors:
        async with trio.open_nursery() as serving:
            serving.start_soon(server.run, from_client, to_client, server.create_initialization_options())
            try:
                await _converse(lines, to_server, errors, from_server, send, stop, is_closed)
            finally:
                # What the server says on being cancelled has no reader any more, and must not wait for one.
                from_server.close()
            serving.cancel_scope.cancel()


async def _converse(
    lines: AsyncIterator[Line],
    to_server: Any,
    errors: Any,
    from_server: Any,
    send: Send,
    stop: trio.Event,
    is_closed: IsClosed,
) -> None:
    pending = _Pending(lambda: from_server.statistics().tasks_waiting_send)
    async with trio.open_nursery() as writing:
        writing.start_soon(_write, from_server, send, pending)
        async with trio.open_nursery() as reading:
            reading.start_soon(_cancel_when, stop, reading.cancel_scope)
            await _read(lines, to_server, errors, pending, is_closed)
            reading.cancel_scope.cancel()
        # to_server is still open: closing it would cancel what is under way
        with trio.move_on_after(limits.STDIO_FLUSH_SECONDS):
            await pending.wait_answered()
        writing.cancel_scope.cancel()


class _Pending:
    """The requests that were read and whose answers are not yet written.

    By their ids as text: a request `7` may be cancelled as `"7"`, to which the SDK gives no answer either.

    Args:
        waiting: Says how many messages wait to be written, whatever the ids say: one may be used twice, and the cancel
            of a request come when its answer waits already.
    """

    def __init__(self, waiting: Callable[[], int]) -> None:
        self._waiting = waiting
        self._ids: set[str] = set()
        self._fewer = trio.Event()
        self.messages_written = 0

    def read(self, message: types.JSONRPCMessage) -> None:
        match message:
            case types.JSONRPCRequest():
                self._ids.add(str(message.id))
            case types.JSONRPCNotification(method="notifications/cancelled", params={"requestId": str() | int() as id}):
                self._settled(id)

    def written(self, message: types.JSONRPCMessage) -> None:
        self.messages_written += 1
        if isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
            self._settled(message.id)
        self._tell()

    async def wait_room(self) -> None:
        """Return once another request may be read: a client that asks and takes no answer must not fill our memory."""
        while max(len(self._ids), self._waiting()) >= limits.STDIO_UNANSWERED:
            await self._fewer.wait()

    async def wait_answered(self) -> None:
        while self._ids:
            await self._fewer.wait()

    def _settled(self, id: types.RequestId | None) -> None:
        if id is not None:
            self._ids.discard(str(id))
            self._tell()

    def _tell(self) -> None:
        self._fewer.set()
        self._fewer = trio.Event()


async def _cancel_when(stop: trio.Event, scope: trio.CancelScope) -> None:
    await stop.wait()
    scope.cancel()


async def _read(
    lines: AsyncIterator[Line], to_server: Any, errors: Any, pending: _Pending, is_closed: IsClosed
) -> None:
    async for line in lines:
        if isinstance(line, bytes) and not line.strip():
            continue
        message, is_answer = _understood(line)
        if not is_answer:
            pending.read(message)
        hand_over = partial((errors if is_answer else to_server).send, SessionMessage(message))
        for step in (hand_over, pending.wait_room):
            if not await _done_unless_left(step, pending, is_closed):
                return


def _understood(line: Line) -> tuple[types.JSONRPCMessage, bool]:
    """Return what a line says to the server; or the answer to a line that says nothing, and True."""
    if isinstance(line, TooLong):
        why = f"The message is over {limits.REQUEST_BYTES} bytes."
        return refusal(seen_id(line.head, line.tail), types.INVALID_REQUEST, why), True
    try:
        return read(line), False
    except NoMessage as problem:
        return problem.answer, True


async def _done_unless_left(step: Callable[[], Awaitable[None]], pending: _Pending, is_closed: IsClosed) -> bool:
    """Take a step that waits for a client which takes no answers.

    Returns: False where it takes none and has closed its end, which lies behind what is not read.
    """
    while True:
        before = pending.messages_written
        with trio.move_on_after(limits.STDIO_LOOK_SECONDS):
            await step()  # cancelled, it has not been taken
            return True
        if pending.messages_written == before and is_closed():
            return False


async def _write(from_server: Any, send: Send, pending: _Pending) -> None:
    async for session_message in from_server:
        message = session_message.message
        await send(jsonrpc_message_adapter.dump_json(message, by_alias=True, exclude_unset=True) + b"\n")
        pending.written(message)
