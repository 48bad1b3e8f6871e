"""One tool call as a test wants to see it: the structured result, or the refusal it was answered with.

It also holds every answer to the shape of the contract, so that each test of the suite checks it.
"""

from __future__ import annotations

import json
from typing import Any

from mcp import Client
from mcp_types import CallToolResult, TextContent

from codespace.errors import CODES, Refusal


class Malformed(AssertionError):
    """An answer that is neither a result nor an error body of the contract."""


async def call(client: Client, tool: str, /, **arguments: Any) -> dict[str, Any]:
    """Call one tool and return its structured content.

    Args:
        client: An entered official client.
        tool: The tool's name.
        arguments: Its arguments, as they go over the wire.
    Returns: structuredContent of a success.
    Raises: Refusal rebuilt from the error body; Malformed where the answer breaks the contract.
    Cancel: the client tells the server; whether the work goes on is the server's promise.
    """
    return structured(await client.call_tool(tool, arguments))


def structured(result: CallToolResult) -> dict[str, Any]:
    """Return the structured content of a result, or raise the Refusal that it carries."""
    if result.is_error:
        raise Refusal.from_body(error_body(result))
    if not isinstance(result.structured_content, dict):
        raise Malformed(f"a success without structured content: {result}")
    if not any(isinstance(block, TextContent) and block.text for block in result.content):
        raise Malformed("a success without readable text")
    return result.structured_content


def error_body(result: CallToolResult) -> dict[str, Any]:
    """Return the error body of a failed call: one text block of JSON and nothing else."""
    if result.structured_content is not None:
        raise Malformed("an error with structured content; clients hold it to the output schema")
    if len(result.content) != 1 or not isinstance(result.content[0], TextContent):
        raise Malformed(f"an error is one text block, got {result.content}")
    try:
        body = json.loads(result.content[0].text)
    except ValueError as problem:
        raise Malformed(f"an error that is not JSON: {result.content[0].text[:200]!r}") from problem
    _check_body(body)
    return dict(body)


def _check_body(body: Any) -> None:
    if not isinstance(body, dict):
        raise Malformed(f"an error body is an object, got {body!r}")
    if body.get("code") not in CODES:
        raise Malformed(f"an unknown code: {body.get('code')!r}")
    for name, kind in {"message": str, "next_step": str, "retryable": bool}.items():
        if not isinstance(body.get(name), kind) or body[name] == "":
            raise Malformed(f"{body['code']}: {name} is missing or not {kind.__name__}")
    known = {"code", "message", "next_step", "retryable", "details", "operation_id", "approval_id", "process_id"}
    if not set(body) <= known:
        raise Malformed(f"{body['code']}: unknown fields {sorted(set(body) - known)}")
