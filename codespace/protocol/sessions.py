"""MCP over HTTP as one ASGI application: the SDK's session manager, bound to who asks, with an ordered end.

It checks no Host, Origin or token: a door stands before it and says in the scope who was let in.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from codespace import limits

IDENTITY: Final = "codespace.identity"
"""Key of the ASGI scope under which the door says who was let in: a name, never a token."""
_SESSION: Final = b"mcp-session-id"
_REVISION: Final = b"mcp-protocol-version"


class Sessions:
    """The ASGI application. Made by `open_sessions`."""

    def __init__(self, manager: StreamableHTTPSessionManager) -> None:
        self._manager = manager

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one HTTP request; a session answers only the identity that opened it."""
        token = AccessToken(token="-", client_id=scope[IDENTITY], scopes=[])  # noqa: S106 - no token: a name
        if _opens_a_session(scope):
            await self._make_room()
        await self._manager.handle_request({**scope, "user": AuthenticatedUser(token)}, receive, send)

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
    manager = StreamableHTTPSessionManager(
        server,
        # Said aloud: None would mean the same, and empty lists would refuse everyone. The door has checked.
        security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        session_idle_timeout=limits.HTTP_SESSION_IDLE_SECONDS,
        max_sessions=limits.HTTP_SESSIONS,
        max_request_body_size=limits.REQUEST_BYTES,
    )
    async with manager.run():
        yield Sessions(manager)


def _opens_a_session(scope: Any) -> bool:
    """Return whether the SDK will: later revisions have none."""
    headers = dict(scope["headers"])
    revision = headers.get(_REVISION)
    is_early = revision is None or revision.decode("latin-1") in HANDSHAKE_PROTOCOL_VERSIONS
    return scope["method"] == "POST" and is_early and _SESSION not in headers
