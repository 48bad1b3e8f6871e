"""MCP over HTTP as one ASGI application: the SDK's session manager, bound to who asks, with an ordered end.

It checks no Host, Origin or token: a door stands before it, says in the scope who was let in, and bounds the body. What
the SDK would never answer is refused here: no message, and an id that another request of the session has at the moment.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any, Final

import mcp_types as types
import trio
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from codespace import limits
from codespace.protocol.large import Unstreamed
from codespace.protocol.message import NoMessage, read, refusal

IDENTITY: Final = "codespace.identity"
"""Key of the ASGI scope under which the door says who was let in: a name, never a token."""
_SESSION: Final = b"mcp-session-id"
_REVISION: Final = b"mcp-protocol-version"
_RESUMED: Final = b"last-event-id"
_LOST: Final = (
    "This session is not known: the daemon was started anew, or nothing was asked in it for long. Open one with "
    "`initialize`, or send the same once more, which is answered without a session."
)


class Sessions:
    """The ASGI application. Made by `open_sessions`."""

    def __init__(self, manager: StreamableHTTPSessionManager, apart: StreamableHTTPSessionManager) -> None:
        self._manager = manager
        self._apart = apart
        """Serves requests of sessions that are lost, each by itself."""
        self._told = dict[bytes, None]()
        """The lost sessions whose clients heard of it, oldest first."""
        self._under_way = set[tuple[bytes, str]]()
        """Session and id of the requests that are not answered yet."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one HTTP request; a session answers only the identity that opened it."""
        token = AccessToken(token="-", client_id=scope[IDENTITY], scopes=[])  # noqa: S106 - no token: a name
        # No event has an id here, and to one that is asked for the SDK gives no answer at all.
        headers = [(name, value) for name, value in scope["headers"] if name != _RESUMED]
        scope = {**scope, "user": AuthenticatedUser(token), "headers": headers}
        if _is_early(scope) and _session(scope) is None:
            send = _nameless(send)
        if scope["method"] != "POST":
            await self._manager.handle_request(scope, receive, send)
            return
        body = await _body(receive)
        if body is None:
            return
        try:
            await self._post(scope, body, receive, send)
        except NoMessage as problem:
            await _answer(send, problem.answer)

    async def _post(self, scope: Any, body: bytes, receive: Any, send: Any) -> None:
        """Serve the message that a body is.

        Raises: NoMessage where it is none, or asks under an id whose answer is under way, or in no session.
        """
        message, session = read(body), _session(scope)
        if session is None and _is_early(scope):
            _require_opening(message)
            await self._make_room()
        manager = self._manager
        if session is not None and session.decode("latin-1") not in manager._server_instances:
            if self._is_news(session):
                id = message.id if isinstance(message, types.JSONRPCRequest) else None
                await _answer(send, refusal(id, types.INVALID_REQUEST, _LOST), status=404)
                return
            manager = self._apart
        if session is None or not isinstance(message, types.JSONRPCRequest):
            await manager.handle_request(scope, _first(body, receive), Unstreamed(send))
            return
        key = session, str(message.id)  # as the SDK has them: it would give one answer to the other's request
        if key in self._under_way:
            why = "A request of this id is under way in this session."
            raise NoMessage(refusal(message.id, types.INVALID_REQUEST, why))
        with ExitStack() as answering:
            self._under_way.add(key)
            answering.callback(self._under_way.discard, key)

            async def tell(part: Any) -> None:
                if part["type"] == "http.response.body" and not part.get("more_body", False):
                    answering.close()  # before the client has it all, and may use the id again
                await send(part)

            # Not told that the client left: it would go on all the same, and give the answer to the next of this id.
            await manager.handle_request(scope, _first(body, trio.sleep_forever), Unstreamed(tell))

    def _is_news(self, session: bytes) -> bool:
        """Return whether the client of a lost session hears that for the first time.

        Many never open another one, so what they ask again is answered without: the daemon was started anew, perhaps.
        """
        if session in self._told:
            return False
        self._told[session] = None
        if len(self._told) > limits.HTTP_SESSIONS:
            del self._told[next(iter(self._told))]
        return True

    def close_streams(self) -> None:
        """End the streams on which clients only listen: they would hold an ordered stop to its deadline."""
        # Private, and without a public twin: nothing else knows the open sessions.
        for transport in list(self._manager._server_instances.values()):
            transport.close_standalone_sse_stream()

    async def _make_room(self) -> None:
        """End the session that was idle for the longest time where there are as many as there may be.

        Most clients leave without a word, and one that comes each minute would soon find no place until the others'
        idle time is over. Whose session was ended hears `404` and opens another one. One in use is never ended.
        """
        # Private, as above: the SDK only refuses the newest.
        open_now = self._manager._server_instances
        if len(open_now) < limits.HTTP_SESSIONS:
            return
        idle = [
            (transport.idle_scope.deadline, name, transport)
            for name, transport in open_now.items()
            if transport.idle_scope is not None and transport.idle_scope.deadline < math.inf
        ]
        if idle:
            _, name, transport = min(idle, key=lambda each: each[0])
            await self._manager._discard_session(name, transport)


@asynccontextmanager
async def open_sessions(server: Server[Any]) -> AsyncIterator[Sessions]:
    """Serve sessions while the block runs; leaving it cancels what is under way. Must outlive the listener.

    Source: limits.HTTP_SESSIONS, limits.HTTP_SESSION_IDLE_SECONDS, limits.REQUEST_BYTES.
    """
    # Said aloud: None would mean the same, and empty lists would refuse everyone. The door has checked.
    settings = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    manager = StreamableHTTPSessionManager(
        server,
        security_settings=settings,
        session_idle_timeout=limits.HTTP_SESSION_IDLE_SECONDS,
        max_sessions=limits.HTTP_SESSIONS,
        max_request_body_size=limits.REQUEST_BYTES,
    )
    apart = StreamableHTTPSessionManager(
        server, stateless=True, security_settings=settings, max_request_body_size=limits.REQUEST_BYTES
    )
    async with manager.run(), apart.run():
        yield Sessions(manager, apart)


async def _body(receive: Any) -> bytes | None:
    """Return the whole body; None where the client has left."""
    parts: list[bytes] = []
    more = True
    while more:
        part = await receive()
        if part["type"] != "http.request":
            return None
        parts.append(part.get("body", b""))
        more = part.get("more_body", False)
    return b"".join(parts)


def _first(body: bytes, receive: Any) -> Any:
    """Return a `receive` that gives the body, then whatever comes after it."""
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Any:
        return waiting.pop() if waiting else await receive()

    return again


async def _answer(send: Any, answer: types.JSONRPCError, status: int = 400) -> None:
    content = answer.model_dump_json(by_alias=True, exclude_unset=True).encode("utf-8")
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode("ascii"))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


def _nameless(send: Any) -> Any:
    """Return the `send` of a request without a session: what refuses to open one names none."""

    async def tell(part: Any) -> None:
        if part["type"] == "http.response.start" and part["status"] >= 400:
            part = {**part, "headers": [(name, value) for name, value in part["headers"] if name.lower() != _SESSION]}
        await send(part)

    return tell


def _require_opening(message: types.JSONRPCMessage) -> None:
    """Refuse what is asked without a session, but for the one request that opens one. Raises: NoMessage."""
    if isinstance(message, types.JSONRPCRequest) and message.method == "initialize":
        return
    id = message.id if isinstance(message, types.JSONRPCRequest) else None
    raise NoMessage(refusal(id, types.INVALID_REQUEST, "The id of the session is missing: `initialize` opens one."))


def _session(scope: Any) -> bytes | None:
    """Return the name of the session that a request belongs to; later revisions have none."""
    return _header(scope, _SESSION) if _is_early(scope) else None


def _is_early(scope: Any) -> bool:
    revision = _header(scope, _REVISION)
    return revision is None or revision.decode("latin-1") in HANDSHAKE_PROTOCOL_VERSIONS


def _header(scope: Any, wanted: bytes) -> bytes | None:
    """Return the first of that name, as the SDK does: of two it would go by another one."""
    return next((value for name, value in scope["headers"] if name == wanted), None)
