"""The MCP server over the SDK's low-level class: lists the table, passes calls on, answers nothing else.

The low-level class, because the other one configures logging and validates loosely.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Literal

import mcp_types as types
import trio
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from codespace import limits
from codespace.contract import Caller, Tools
from codespace.display import display
from codespace.protocol.asking import Wait, asks
from codespace.protocol.call import Calls
from codespace.protocol.results import Results, form_for
from codespace.protocol.schemas import input_schema, output_schema
from codespace.protocol.tool import Tool
from codespace.protocol.tools import GROUPS, offered

INSTRUCTIONS: Final = (
    "Reads, searches, patches and runs commands in directories that the operator registered. Start with "
    "workspace_info. Read before you patch, and give the version you read in expected_versions. Give apply_patch and "
    "exec_command an operation_key: after a lost answer the same call repeats its result, never its effect. "
    "Errors are JSON with code, message and next_step: do what next_step says."
)

McpServer = Server[Any]
"""What the doors serve; they need not know the SDK."""
Context = Any  # the SDK's request context; its type arguments say nothing here
Transport = Literal["stdio", "http", "memory"]


def build_server(
    tools: Tools,
    *,
    version: str,
    results: Results = "both",
    exposed: Sequence[str] = GROUPS,
    transport: Transport = "memory",
    wait: Wait = trio.move_on_after,
) -> McpServer:
    """Return a server of both protocol eras. It owns nothing: one server may serve any number of connections.

    Args:
        exposed: Groups of tools to offer.
        transport: What the gateway is told of where a call came from.
        wait: Bounds a wait for a client's user, who may think for longer than a stop may take.
    Raises: ValueError for a group that does not exist.
    """
    table = {tool.name: tool for tool in offered(exposed)}
    listed = {
        form: types.ListToolsResult(tools=[_described(tool, form) for tool in table.values()])
        for form in {results, "text"}
    }
    calls = Calls(tools, results)

    async def list_tools(context: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return listed[form_for(_name(context), results)]

    async def call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        tool = table.get(params.name)
        if tool is None:
            raise _unknown(params.name, table)
        return await calls.answer(_caller(context, transport), tool, params.arguments or {}, asks(context, wait))

    schemas = {name: input_schema(tool) for name, tool in table.items()}
    server: McpServer = Server(
        "codespace",
        version=version,
        title="CodeSpace",
        instructions=INSTRUCTIONS,
        get_tool_input_schema=schemas.get,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )
    server.middleware.append(_asking_for_a_beginning)
    return server


async def _asking_for_a_beginning(ctx: Context, call_next: Callable[[Context], Awaitable[Any]]) -> Any:
    """Tell a client that calls before it has initialized to do that: the SDK says that its parameters are wrong."""
    try:
        return await call_next(ctx)
    except MCPError as problem:
        told = problem.error
        if told.code != types.INVALID_PARAMS or told.data != "":  # those of the calls have more to say
            raise
        why = "The connection has not begun: send `initialize` first. Nothing was done."
        raise MCPError(code=types.INVALID_REQUEST, message=why) from None


def _described(tool: Tool, results: Results) -> types.Tool:
    hints = tool.hints
    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=input_schema(tool),
        # a tool with an output schema must send structured content, so text-only servers have none
        output_schema=None if results == "text" else output_schema(tool),
        annotations=types.ToolAnnotations(
            title=tool.title,
            read_only_hint=hints.read_only,
            destructive_hint=hints.destructive,
            idempotent_hint=hints.idempotent,
            open_world_hint=hints.open_world,
        ),
    )


def _unknown(name: str, table: dict[str, Tool]) -> MCPError:
    """An unknown tool is a fault of the protocol, not a result: no operation, no id."""
    shown = display(name, limit=limits.SHOWN_NAME_CHARACTERS)
    body = {
        "code": "INVALID_ARGUMENT",
        "message": f"There is no tool {shown} here. Nothing was done.",
        "next_step": f"Call one of: {', '.join(table)}.",
        "retryable": False,
    }
    return MCPError(code=types.INVALID_PARAMS, message=f"{body['message']} {body['next_step']}", data=body)


def _caller(context: Context, transport: Transport) -> Caller:
    meta = context.meta or {}
    wants_progress = meta.get("progress_token") is not None or meta.get("progressToken") is not None
    return Caller(
        transport=transport,
        client=_name(context),
        progress=_progress(context) if wants_progress else None,
    )


def _name(context: Context) -> str:
    client = context.session.client_params
    name = "unknown" if client is None or client.client_info is None else client.client_info.name
    return display(name, limit=limits.SHOWN_NAME_CHARACTERS)


def _progress(context: Context) -> Callable[[float, str], Awaitable[None]]:
    async def tell(seconds: float, message: str) -> None:
        # A client that does not take its news in time loses it; the work does not wait for it.
        with trio.move_on_after(limits.PROGRESS_SECONDS):
            await context.session.report_progress(seconds, None, display(message))

    return tell
