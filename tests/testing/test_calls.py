"""Every answer that the harness looks at is held to the shape of the contract."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mcp_types import CallToolResult, TextContent

from codespace.errors import Refusal
from codespace.testing.calls import Malformed, structured

BODY = {"code": "FILE_NOT_FOUND", "message": "No a.txt.", "next_step": "Use find.", "retryable": False}


def result(text: str | None, structured: dict[str, Any] | None = None, *, is_error: bool = True) -> CallToolResult:
    content: list[Any] = [] if text is None else [TextContent(type="text", text=text)]
    return CallToolResult(content=content, structured_content=structured, is_error=is_error)


def test_a_success_is_its_structured_content() -> None:
    assert structured(result("text", {"a": 1}, is_error=False)) == {"a": 1}


def test_an_error_body_is_raised_as_the_refusal_it_was() -> None:
    with pytest.raises(Refusal) as caught:
        structured(result(json.dumps(BODY | {"details": {"path": "a.txt"}, "operation_id": "op-1"})))
    assert caught.value.body() == BODY | {"details": {"path": "a.txt"}, "operation_id": "op-1"}


@pytest.mark.parametrize(
    "answer",
    [
        result("text", None, is_error=False),
        result(None, {"a": 1}, is_error=False),
        result("", {"a": 1}, is_error=False),
        result("not json"),
        result("[]"),
        result(None),
        result(json.dumps(BODY), {"a": 1}),
        result(json.dumps(BODY | {"code": "NOT_A_CODE"})),
        result(json.dumps(BODY | {"message": ""})),
        result(json.dumps({name: value for name, value in BODY.items() if name != "next_step"})),
        result(json.dumps(BODY | {"retryable": "no"})),
        result(json.dumps(BODY | {"traceback": "..."})),
    ],
    ids=lambda answer: repr(answer.content)[:60],
)
def test_any_other_answer_fails_the_test_that_got_it(answer: CallToolResult) -> None:
    with pytest.raises(Malformed):
        structured(answer)
