"""MCP over HTTP as one ASGI application: the SDK's session manager, bound to who asks, with an ordered end.

It checks no Host, Origin or token: a door stands before it and says in the scope who was let in.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings

from codespace import limits

IDENTITY: Final = "codespace.identity"
"""Key of the ASGI scope under which the door says who was let in: a name, never a token."""


class Sessions:
    """The ASGI application. Made by `open_sessions`."""

    def __init__(self, manager: StreamableHTTPSessionManager) -> None:
        self._manager = manager

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one HTTP request; a session answers only the identity that opened it."""
        token = AccessToken(token="-", client_id=scope[IDENTITY], scopes=[])  # noqa: S106 - no token: a name
        await self._manager.handle_request({**scope, "user": AuthenticatedUser(token)}, receive, send)

    def close_streams(self) -> None:
        """End the streams on which clients only listen: they would hold an ordered stop to its deadline."""
        # Private, and without a public twin: nothing else knows the open sessions.
        for transport in list(self._manager._server_instances.values()):
            transport.close_standalone_sse_stream()


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
