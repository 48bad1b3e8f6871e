"""What one line or one posted body says: a message for the SDK, or what is to be answered where it is none.

The SDK leaves a line that is no JSON-RPC unanswered, and takes a request whose id is neither text nor integer for a
notification; its client would wait for ever. Both doors read by this, so that both answer alike. And it makes objects
of whatever it reads: a message of `[],[],` within the bounds of its length would take ninety times as much memory,
and half a minute in which nobody else is served.
"""

from __future__ import annotations

import json
import re
from typing import Final

import mcp_types as types
from mcp_types import jsonrpc_message_adapter
from pydantic import ValidationError

from codespace import limits

_NUMBER: Final = rb"(-?(?:0|[1-9]\d{0,17}))(?![\w.])"
# One that goes on is another number, and its beginning may be the id of another request.
_TEXT: Final = rb'"([^"\\]{1,200})"'
_ID: Final = rb'"id"\s*:\s*(?:' + _NUMBER + rb"|" + _TEXT + rb")"
_ID_FIRST: Final = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?' + _ID)
_ID_LAST: Final = re.compile(_ID + rb"\s*\}\s*\Z")
# Where clients put a request's id; both can only match the outermost object of a well-formed line.
_END_BYTES: Final = 1024


class NoMessage(Exception):
    """What was sent is no message; `answer` says so, to its id where that can be seen."""

    def __init__(self, answer: types.JSONRPCError) -> None:
        super().__init__(answer.error.message)
        self.answer = answer


def read(data: bytes) -> types.JSONRPCMessage:
    """Return the one message that `data` is. Raises: NoMessage. Source: limits.MESSAGE_VALUES."""
    if _has_too_many_values(data):
        raise NoMessage(
            _answer_to(
                data, types.INVALID_REQUEST, f"The message has over {limits.MESSAGE_VALUES} commas and brackets."
            )
        )
    try:
        message = jsonrpc_message_adapter.validate_json(data, by_name=False)
    except ValidationError as problem:
        raise NoMessage(_unreadable(data, problem)) from None
    if isinstance(message, types.JSONRPCNotification) and _asks_for_an_answer(data):
        raise NoMessage(refusal(None, types.INVALID_REQUEST, "A request's id is a text or an integer."))
    return message


def refusal(id: types.RequestId | None, code: int, why: str) -> types.JSONRPCError:
    """Return the answer to what was not handed on."""
    return types.JSONRPCError(
        jsonrpc="2.0", id=id, error=types.ErrorData(code=code, message=f"{why} Nothing was done.")
    )


def seen_id(head: bytes, tail: bytes) -> types.RequestId | None:
    """Return the id of a message of which only both ends are known, or that is none; None where it cannot be seen."""
    found = _ID_FIRST.match(head) or _ID_LAST.search(tail)
    if found is None:
        return None
    return int(found[1]) if found[1] else _text(found[2])


def _text(id: bytes) -> str | None:
    try:
        return id.decode()
    except UnicodeDecodeError:  # nothing that was sent is called by what it would be replaced with
        return None


def _unreadable(data: bytes, problem: ValidationError) -> types.JSONRPCError:
    first = problem.errors(include_url=False, include_context=False, include_input=False)[0]
    code = types.PARSE_ERROR if first["type"] == "json_invalid" else types.INVALID_REQUEST
    return _answer_to(data, code, "This is no JSON-RPC message.")


def _answer_to(data: bytes, code: int, why: str) -> types.JSONRPCError:
    return refusal(seen_id(data[:_END_BYTES], data[-_END_BYTES:]), code, why)


def _has_too_many_values(data: bytes) -> bool:
    """Return whether a message has too many values, in lists and objects, by limits.MESSAGE_VALUES.

    Counted are commas and brackets that are in no text: at least one of them stands before each value.
    """
    if len(data) <= limits.MESSAGE_VALUES or _values(data) <= limits.MESSAGE_VALUES:  # with those in texts
        return False
    unescaped = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    if unescaped.count(b'"') > 4 * limits.MESSAGE_VALUES:  # a text is a value or its name; a split would make as many
        return True
    return sum(map(_values, unescaped.split(b'"')[::2])) > limits.MESSAGE_VALUES


def _values(data: bytes) -> int:
    return len(data) - len(data.translate(None, b",[{"))


def _asks_for_an_answer(data: bytes) -> bool:
    """Return whether what reads as a notification has an id all the same: one that is neither text nor integer."""
    return (b'"id"' in data or b"\\u00" in data) and "id" in json.loads(data)  # a name may be escaped
