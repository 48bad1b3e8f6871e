"""Asking the client's user about a hold, where the client has a way to: an extra beside approval_resolve.

Only in `confirm` mode, in which the caller may grant anyway: a pause, not a boundary. The question carries the
same preview that the hold is bound to. No answer in time or before a stop, or none that is understood, leaves the hold
as it is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final, Literal

import mcp_types as types

from codespace import limits, log
from codespace.display import display, display_json
from codespace.errors import Refusal

Decision = Literal["grant", "deny"]
Ask = Callable[[str], Awaitable[Decision | None]]
"""Puts a question to the client's user; None: there is no decision."""
Wait = Callable[[float], AbstractContextManager[object]]
"""Runs a block for at most so many seconds, and no longer than until a stop."""

_HELD: Final = frozenset({"apply_patch", "exec_command", "operation_undo"})
_USUAL: Final[Mapping[str, Any]] = {
    **{"env": {}, "stdin": None, "open_stdin": False, "tty": False, "rows": 24, "cols": 80},
    "network": {"policy": "restricted", "allowed_domains": []},
}
# What a command is run with that asks for nothing else; only what differs is put into a question.
_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "decision": {"type": "string", "title": "Decision", "enum": ["grant", "deny"], "description": "What to do."}
    },
    "required": ["decision"],
}


def asks(context: Any, wait: Wait) -> Ask | None:
    """Return how to ask the user behind a request; None where its client cannot be asked.

    Args:
        context: The SDK's request context.
        wait: Bounds the time that the user has.
    """
    session = context.session
    elicits = types.ClientCapabilities(elicitation=types.ElicitationCapability())
    if not session.can_send_request or not session.check_client_capability(elicits):
        return None

    async def ask(question: str) -> Decision | None:
        with wait(limits.ASK_SECONDS):
            try:
                answer = await session.elicit_form(question, _SCHEMA, context.request_id)
            except Exception as problem:  # whatever a client answers with: the hold is there all the same
                log.get_logger().info("a client did not ask its user", problem=repr(problem))
                return None
            return _decision(answer)
        return None

    return ask


def question(tool: str, refusal: Refusal) -> str | None:
    """Return what to ask about a request that was held; None where the caller may not decide it."""
    details = refusal.details or {}
    if tool not in _HELD:
        return None  # one that asks for another request's hold has no result of its own behind a grant
    if refusal.code != "APPROVAL_REQUIRED" or details.get("approvals") == "operator" or "shown" not in details:
        return None
    place = ", ".join(display(str(details[name])) for name in ("workspace_id", "root") if details.get(name))
    preview = _preview(details["shown"])
    return f"{tool} in workspace {place}: held until it is granted. It would do exactly this:\n\n{preview}"


def _preview(shown: Mapping[str, Any]) -> str:
    if "diff" in shown:
        notes = "".join(f"note: {display(note)}\n" for note in shown.get("notes", ()))
        return f"{notes}{display(shown['diff'], newlines=True)}"
    told = {name: value for name, value in shown.items() if name not in _USUAL or value != _USUAL[name]}
    return "\n".join(f"{name}: {display_json(value)}" for name, value in told.items())


def _decision(answer: types.ElicitResult) -> Decision | None:
    if answer.action == "decline":
        return "deny"
    chosen = (answer.content or {}).get("decision") if answer.action == "accept" else None
    if chosen == "grant":
        return "grant"
    return "deny" if chosen == "deny" else None
