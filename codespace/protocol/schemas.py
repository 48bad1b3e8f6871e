"""JSON Schemas and the documentation page, printed from the table. Imports neither the SDK nor trio."""

from __future__ import annotations

from typing import Any, Final

from codespace.protocol.arguments import Argument
from codespace.protocol.tool import Tool
from codespace.protocol.tools import GROUPS, TABLE

_TYPES: Final = {
    "text": "string",
    "integer": "integer",
    "number": "number",
    "flag": "boolean",
    "text_list": "array",
    "text_map": "object",
    "object": "object",
}
_BOUNDS: Final = {
    "text": ("minLength", "maxLength"),
    "integer": ("minimum", "maximum"),
    "number": ("minimum", "maximum"),
    "text_list": ("minItems", "maxItems"),
    "text_map": ("minProperties", "maxProperties"),
}
_WRITTEN_AS: Final = {
    "text": "text",
    "integer": "integer",
    "number": "number",
    "flag": "true/false",
    "text_list": "list of texts",
    "text_map": "object of texts",
    "object": "object",
}


def input_schema(tool: Tool) -> dict[str, Any]:
    """Return the tool's input schema: a plain object, so that no client drops it.

    It does not forbid unknown properties: the server itself names the ignored ones.
    """
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {argument.name: _property(argument) for argument in tool.arguments},
    }
    required = [argument.name for argument in tool.arguments if argument.required]
    return schema | {"required": required} if required else schema


def output_schema(tool: Tool) -> dict[str, Any]:
    """Return the schema that every success result of the tool satisfies."""
    return dict(tool.result)


def markdown() -> str:
    """Return docs/tools.md."""
    lines = [
        "# Tools",
        "",
        "Printed by the code; a test compares this page. Every result may also carry `ignored_arguments`: names that",
        "were sent and mean nothing here. `work_id` is offered where the group `work` is. Errors are listed in",
        "errors.md.",
    ]
    for group in GROUPS:
        lines += ["", f"## Group `{group}`"]
        for tool in TABLE.values():
            if tool.group == group:
                lines += ["", *_section(tool)]
    return "\n".join(lines) + "\n"


def _property(argument: Argument) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": _TYPES[argument.kind], "description": argument.description}
    if argument.choices:
        schema["enum"] = list(argument.choices)
    if argument.kind == "text_list":
        schema["items"] = {"type": "string"}
    if argument.kind == "text_map":
        schema["additionalProperties"] = {"type": "string"}
    for key, bound in zip(_BOUNDS.get(argument.kind, ()), (argument.minimum, argument.maximum), strict=False):
        if bound is not None:
            schema[key] = int(bound) if bound == int(bound) else bound
    if argument.default is not None:
        schema["default"] = argument.default
    return schema


def _section(tool: Tool) -> list[str]:
    hints = tool.hints
    said = {
        "read-only": hints.read_only,
        "destructive": hints.destructive,
        "idempotent": hints.idempotent,
        "open world": hints.open_world,
    }
    properties = tool.result["properties"]
    return [
        f"### {tool.name}",
        "",
        tool.description,
        "",
        f"Hints: {', '.join(f'{name} {str(value).lower()}' for name, value in said.items())}.",
        "",
        "| argument | type | default | meaning |",
        "|---|---|---|---|",
        *map(_row, tool.arguments),
        "",
        f"Result: {', '.join(_field(name, tool.result.get('required', ())) for name in properties)}.",
    ]


def _row(argument: Argument) -> str:
    kind = " or ".join(f"`{value}`" for value in argument.choices) or _WRITTEN_AS[argument.kind]
    if argument.kind != "flag" and (argument.minimum is not None or argument.maximum is not None):
        unit = {"text": " characters", "text_list": " items"}.get(argument.kind, "")
        kind += f", {argument.bounds()}{unit}"
    default = "required" if argument.required else "" if argument.default is None else f"`{argument.default}`"
    if argument.kind == "flag":
        default = default.lower()
    return f"| `{argument.name}` | {kind} | {default} | {argument.description} |"


def _field(name: str, required: Any) -> str:
    return f"`{name}`" if name in required else f"`{name}`?"
