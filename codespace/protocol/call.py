"""One tool call: check its arguments, ask the gateway, and turn what comes back into an answer.

Whatever goes wrong becomes an error body; no exception of ours reaches the SDK, no traceback the client.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import mcp_types as types

from codespace import limits, log
from codespace.contract import Caller, Tools
from codespace.errors import Refusal
from codespace.protocol.asking import Ask, question
from codespace.protocol.results import Results, failure, form_for, success
from codespace.protocol.tool import Tool
from codespace.protocol.tools import TABLE


class Calls:
    """Answers the calls of one server; counts them, so that a client cannot pile up work without end."""

    def __init__(self, tools: Tools, results: Results) -> None:
        self._tools = tools
        self._results: Results = results
        self._under_way = 0

    async def answer(
        self, caller: Caller, tool: Tool, sent: Mapping[str, Any], ask: Ask | None = None
    ) -> types.CallToolResult:
        """Return the result of a call, errors included.

        Args:
            ask: How the client's user is asked, where that can be done.
        Cancel: passed on to the gateway, whose drivers outlive the request.
        """
        try:
            return await self._counted(caller, tool, sent, ask)
        except Refusal as refusal:
            return failure(refusal)
        except Exception as error:
            return failure(_internal(tool, error))

    async def _counted(
        self, caller: Caller, tool: Tool, sent: Mapping[str, Any], ask: Ask | None
    ) -> types.CallToolResult:
        if self._under_way >= limits.CONCURRENT_CALLS:
            raise Refusal(
                "LIMIT_REACHED",
                f"{limits.CONCURRENT_CALLS} calls are under way already. Nothing was done.",
                next_step="Wait for some of them to be answered, then call again.",
                retryable=True,
                details={"limit": "CONCURRENT_CALLS"},
            )
        self._under_way += 1
        try:
            arguments, ignored = _take(tool, sent)
            try:
                result = await getattr(self._tools, tool.name)(caller, **arguments)
            except Refusal as held:
                result = await self._decided(caller, tool, held, ask)
        finally:
            self._under_way -= 1
        return success(tool.name, result, ignored, form_for(caller.client, self._results))

    async def _decided(self, caller: Caller, tool: Tool, held: Refusal, ask: Ask | None) -> dict[str, Any]:
        """Ask the client's user about a hold; run it if it is granted. Raises: `held`, where there is no decision."""
        asked = None if ask is None else question(tool.name, held)
        decision = None if ask is None or asked is None else await ask(asked)
        if decision is None or held.approval_id is None:
            raise held
        await self._tools.approval_resolve(caller, approval_id=held.approval_id, decision=decision)
        return dict((await self._tools.operation_resume(caller, approval_id=held.approval_id))[tool.name])


def _take(tool: Tool, sent: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    arguments, ignored = tool.take(sent)
    if tool.name == "approval_create":  # what is held must be as well-formed as what is called
        held, held_ignored = TABLE[arguments["tool"]].take(arguments["arguments"], "arguments.")
        arguments["arguments"] = held
        ignored += held_ignored
    return arguments, ignored


def _internal(tool: Tool, error: Exception) -> Refusal:
    """Log a fault under a name that the caller can report."""
    reference = secrets.token_hex(4)
    log.get_logger().error("tool_fault", tool=tool.name, reference=reference, exc_info=error)
    return Refusal(
        "INTERNAL",
        f"{tool.name} met a fault of CodeSpace itself; what was done before it is not known here. "
        f"The log names it as {reference}.",
    )
