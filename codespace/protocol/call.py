"""One tool call: check its arguments, ask the gateway, and turn what comes back into an answer.

Whatever goes wrong becomes an error body; no exception of ours reaches the SDK, no traceback the client.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from typing import Any, Final

import mcp_types as types

from codespace import limits
from codespace.contract import Caller, Tools
from codespace.display import display
from codespace.errors import Refusal
from codespace.protocol.results import Results, failure, success
from codespace.protocol.tool import Tool
from codespace.protocol.tools import TABLE

_log: Final = logging.getLogger("codespace.protocol")


class Calls:
    """Answers the calls of one server; counts them, so that a client cannot pile up work without end."""

    def __init__(self, tools: Tools, results: Results) -> None:
        self._tools = tools
        self._results: Results = results
        self._under_way = 0

    async def answer(self, caller: Caller, tool: Tool, sent: Mapping[str, Any]) -> types.CallToolResult:
        """Return the result of a call, errors included.

        Cancel: passed on to the gateway, whose drivers outlive the request.
        """
        try:
            return await self._counted(caller, tool, sent)
        except Refusal as refusal:
            return failure(refusal)
        except Exception as error:
            return failure(_internal(tool, error))

    async def _counted(self, caller: Caller, tool: Tool, sent: Mapping[str, Any]) -> types.CallToolResult:
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
            result = await getattr(self._tools, tool.name)(caller, **arguments)
        finally:
            self._under_way -= 1
        return success(tool.name, result, ignored, self._results)


def _take(tool: Tool, sent: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    arguments, ignored = tool.take(sent)
    if tool.name == "approval_create":  # what is held must be as well-formed as what is called
        held, held_ignored = TABLE[arguments["tool"]].take(arguments["arguments"], "arguments.")
        arguments["arguments"] = held
        ignored += held_ignored
    return arguments, ignored


def _internal(tool: Tool, error: Exception) -> Refusal:
    """Log a fault under a name that the caller can report.

    Only the kinds and places of the exceptions are logged: their texts may hold file contents.
    """
    reference = secrets.token_hex(4)
    _log.error("fault %s in tool %s: %s", reference, tool.name, display("; ".join(_places(error)), limit=2_000))
    return Refusal(
        "INTERNAL",
        f"{tool.name} met a fault of CodeSpace itself; what was done before it is not known here. "
        f"The log names it as {reference}.",
    )


def _places(error: BaseException) -> list[str]:
    if isinstance(error, BaseExceptionGroup):
        return [place for inner in error.exceptions for place in _places(inner)]
    place = type(error).__name__
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        place = f"{type(error).__name__} at {code.co_filename.rsplit('/', 1)[-1]}:{trace.tb_lineno} in {code.co_name}"
        trace = trace.tb_next
    return [place]
