"""The routes behind the guard: MCP, and the pages of a Quart application."""

from __future__ import annotations

from typing import Any, cast

from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException

from codespace.contract import Inbox
from codespace.gateway.operator import Operator
from codespace.http.approvals import approval_routes
from codespace.http.body import Receive
from codespace.http.console import Console, console_routes
from codespace.http.guard import App, Guard, Rules, Send
from codespace.http.inbox import inbox_routes


def build_app(
    mcp: App | None,
    rules: Rules,
    inbox: Inbox | None = None,
    operator: Operator | None = None,
    console: Console | None = None,
) -> Guard:
    """Return the whole door as one ASGI application.

    Args:
        mcp: What answers at /mcp; None: nothing.
        inbox: What is behind /inbox; None: nothing.
        operator: What decides the approvals of /inbox; None: they are not there.
        console: What is behind /console; None: nothing.
    """
    quart = QuartTrio("codespace")
    quart.config["MAX_CONTENT_LENGTH"] = None  # the guard has bounded every body

    @quart.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    if inbox is not None:
        quart.register_blueprint(inbox_routes(inbox))
    if operator is not None:
        quart.register_blueprint(approval_routes(operator))
    if console is not None:
        quart.register_blueprint(console_routes(console))

    @quart.errorhandler(HTTPException)
    async def transport_failure(failure: HTTPException) -> tuple[dict[str, str], int]:
        return {"error": failure.name.lower()}, failure.code or 500  # JSON here too, not a page that names the library

    pages: App = cast(App, quart)  # the same calls, spelt with Hypercorn's own types of messages

    async def dispatch(scope: Any, receive: Receive, send: Send) -> None:
        if mcp is not None and scope["type"] == "http" and scope["path"] == "/mcp":
            await mcp(scope, receive, send)
        else:
            await pages(scope, receive, send)

    return Guard(dispatch, rules)
