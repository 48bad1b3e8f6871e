"""The client of the demonstration: calls tools, and knows a result from a refusal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mcp import Client
from mcp_types import TextContent


class Wrong(Exception):
    """Something was not as promised; the text says what."""


class Agent:
    """An MCP client that works in the throw-away folder.

    Args:
        client: Entered, with the daemon behind it.
        folder: Holds the workspaces `notes` and `careful`; the agent looks there to see what is true.
    """

    def __init__(self, client: Client, folder: Path) -> None:
        self._client = client
        self.folder = folder
        self.known: dict[str, str] = {}
        """What an earlier step learnt: versions and ids."""

    async def call(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """Call a tool that must succeed; return its structured content. Raises: Wrong."""
        result = await self._client.call_tool(tool, arguments)
        if result.is_error or result.structured_content is None:
            raise Wrong(f"{tool} was refused: {_text(result.content)}")
        return dict(result.structured_content)

    async def refused(self, code: str, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """Call a tool that must be refused with `code`; return the error body. Raises: Wrong."""
        result = await self._client.call_tool(tool, arguments)
        if not result.is_error:
            raise Wrong(f"{tool} was not refused")
        body = json.loads(_text(result.content))
        if body.get("code") != code:
            raise Wrong(f"{tool} was refused with {body.get('code')} and not with {code}: {body.get('message')}")
        return dict(body)

    def on_disk(self, path: str) -> str:
        """Return what a file below the folder says now, read without the daemon."""
        return (self.folder / path).read_text()


def check(right: bool, what: str) -> None:
    """Raise Wrong with `what` unless it is right."""
    if not right:
        raise Wrong(what)


def _text(content: list[Any]) -> str:
    return "".join(block.text for block in content if isinstance(block, TextContent))
