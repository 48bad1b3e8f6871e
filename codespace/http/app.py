"""The routes behind the guard: MCP, and the pages of a Quart application."""

from __future__ import annotations

from typing import Any, cast

from quart_trio import QuartTrio

from codespace.http.body import Receive
from codespace.http.guard import App, Guard, Rules, Send


def build_app(mcp: App, rules: Rules) -> Guard:
    """Return the whole door as one ASGI application.

    Args:
        mcp: What answers at /mcp.
    """
    quart = QuartTrio("codespace")
    quart.config["MAX_CONTENT_LENGTH"] = None  # the guard has bounded every body

    @quart.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    pages: App = cast(App, quart)  # the same calls, spelt with Hypercorn's own types of messages

    async def dispatch(scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == "/mcp":
            await mcp(scope, receive, send)
        else:
            await pages(scope, receive, send)

    return Guard(dispatch, rules)
