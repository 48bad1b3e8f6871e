"""What goes back over the wire: a success as text and structure, a refusal as its body in one text block."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import mcp_types as types

from codespace import limits
from codespace.display import display
from codespace.errors import Refusal
from codespace.protocol import prose

Results = Literal["both", "text", "structured"]
"""The operator's `results` setting: which of the two forms are sent."""
_SHOW_STRUCTURE: Final = frozenset({"claude-code", "codex-mcp-client"})
# Clients that give their model the structured form alone where there is one: lines as `\n` in JSON, images as base64.


def form_for(client: str, results: Results) -> Results:
    """Return which forms one client is sent; `both` is the readable one alone where its model would not see that.

    Args:
        client: Its own name for itself, which is believed: nothing but the form depends on it.
    """
    return "text" if results == "both" and client in _SHOW_STRUCTURE else results


def success(tool: str, result: Mapping[str, Any], ignored: Sequence[str], results: Results) -> types.CallToolResult:
    """Return a result with the forms that `results` asks for; images always go along as blocks."""
    kept = _without_nulls(result)
    if ignored:
        kept["ignored_arguments"] = list(ignored)
    content: list[types.ContentBlock] = []
    if results != "structured":
        content.append(types.TextContent(type="text", text=prose.write(tool, kept)))
    content += map(_image, filter(prose.is_image, [kept, *kept.get("entries", ())]))
    structured = None if results == "text" else kept
    return types.CallToolResult(content=content, structured_content=structured, is_error=False)


def failure(refusal: Refusal) -> types.CallToolResult:
    """Return the error body as JSON in one text block.

    Without structured content: clients check that against the tool's output schema, errors included.
    """
    text = json.dumps(_safe(refusal.body()), ensure_ascii=False)
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=True)


def _image(result: Mapping[str, Any]) -> types.ImageContent:
    return types.ImageContent(type="image", data=result["content"], mime_type=result["media_type"])


def _without_nulls(value: Any) -> Any:
    """Drop absent fields: the contract's optional fields are left out, never null."""
    if isinstance(value, Mapping):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_without_nulls(item) for item in value]
    return value


def _safe(value: Any) -> Any:
    """Pass every text of an error body through the escaping function: much of it came from outside."""
    if isinstance(value, str):
        return display(value, limit=limits.ERROR_TEXT_CHARACTERS, newlines=True)
    if isinstance(value, Mapping):
        return {_safe(str(name)): _safe(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_safe(item) for item in value]
    return value
