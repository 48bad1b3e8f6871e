"""The printed page and the schemas, which need neither the SDK nor an event loop."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import jsonschema
import pytest

from codespace.contract import Tools
from codespace.protocol import prose, schemas
from codespace.protocol.tools import GROUPS, TABLE, offered


def test_the_schemas_load_without_the_sdk() -> None:
    code = (
        "import sys, codespace.protocol.schemas as schemas; schemas.markdown();"
        "sys.exit(bool({'mcp', 'trio', 'pydantic'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("tool", TABLE)
def test_schemas_are_valid_plain_objects_without_alternatives(tool: str) -> None:
    for schema in (schemas.input_schema(TABLE[tool]), schemas.output_schema(TABLE[tool])):
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["type"] == "object"
        assert not {"anyOf", "oneOf", "allOf", "$ref"} & set(_keys(schema))


def _keys(schema: Any) -> list[str]:
    if isinstance(schema, dict):
        return [*schema, *(key for value in schema.values() for key in _keys(value))]
    return [key for value in schema for key in _keys(value)] if isinstance(schema, list) else []


@pytest.mark.parametrize("tool", TABLE)
def test_each_tool_takes_exactly_what_the_gateway_is_called_with(tool: str) -> None:
    method = inspect.signature(getattr(Tools, tool))
    assert set(method.parameters) - {"self", "caller"} == {argument.name for argument in TABLE[tool].arguments}


@pytest.mark.parametrize("tool", TABLE)
def test_a_read_only_tool_is_neither_destructive_nor_open(tool: str) -> None:
    hints = TABLE[tool].hints
    if hints.read_only:
        assert (hints.destructive, hints.idempotent, hints.open_world) == (False, True, False)


def test_every_tool_of_the_gateway_is_in_a_group_and_on_the_page() -> None:
    page = schemas.markdown()
    assert offered(GROUPS) == tuple(TABLE.values())
    for tool in TABLE.values():
        assert f"### {tool.name}\n" in page
        assert all(f"| `{argument.name}` |" in page for argument in tool.arguments)
    assert {name for name in vars(Tools) if not name.startswith("_")} == set(TABLE)


LOST = {"process_id": "proc-1", "state": "exited", "termination": "lost", "output_total": 0, "started_at": 1.0}
ENDED = LOST | {"termination": "timeout", "signal": "SIGKILL", "ended_at": 2.0}


@pytest.mark.parametrize(
    ("tool", "result", "said"),
    [
        ("process_status", LOST, "lost"),
        ("process_status", ENDED, "time limit"),
        ("read_process", ENDED | {"chunk": "eA==", "encoding": "base64", "cursor": 1, "eof": True}, "base64"),
        ("read_process", ENDED | {"chunk": "x", "cursor": 9, "eof": False, "output_lost": 7}, "7 bytes before this"),
        ("read_process", ENDED | {"chunk": "x", "cursor": 9, "eof": False}, "cursor 9"),
        ("read_process", LOST | {"chunk": "", "cursor": 0, "eof": True}, "(no output is kept)"),
        ("read_process", ENDED | {"chunk": "", "cursor": 0, "eof": True}, "(no output)"),
        ("read_process", ENDED | {"chunk": "", "cursor": 2, "eof": True, "output_lost": 2}, "(no output is kept)"),
        ("list_processes", {"processes": []}, "No command runs"),
        ("list_processes", {"processes": [ENDED | {"command": ["ls", "-l"]}]}, '["ls", "-l"]'),
        ("search", {"matches": [], "truncated": False, "files_searched": 1}, "0 matches, 1 file searched"),
        ("find", {"paths": ["a\x1b"], "truncated": True, "total_seen": 9, "reason": "time"}, "cut: time"),
        (
            "find",
            {"paths": ["a"], "truncated": True, "total_seen": 1, "reason": "unreadable", "notes": ["left out: b"]},
            "1 path (cut: unreadable)\nnote: left out: b\na",  # nothing to be narrowed
        ),
        ("find", {"paths": ["a\x1b"], "truncated": False, "total_seen": 1}, "a\\x1b"),
        ("operation_resume", {"approval_id": "appr-1", "state": "consumed", "exec_command": {"code": "X"}}, "X"),
        (
            "apply_patch",
            {"status": "checked", "files": [], "changes": [], "diff": "d", "diff_truncated": True},
            "(cut)",
        ),
        (
            "apply_patch",
            {"status": "applied", "files": [], "changes": [], "rescued": ["rescued/0-0"]},
            "rescued/0-0",
        ),
        (
            "operation_status",
            {"kind": "patch", "status": "rejected", "workspace_id": "w", "outcome": {"message": "why\x1b"}},
            "why\\u001b",
        ),
        (
            "write_stdin",
            {"bytes_written": 4, "bytes_left": 5},
            "4 bytes written. The command did not take the last 5 bytes",
        ),
        ("a_later_tool", {"work_id": "work-1"}, "work-1"),
        ("list_processes", {"processes": [], "coordination": {"queued": 1}}, "Waiting user input"),
    ],
)
def test_the_text_says_what_matters(tool: str, result: dict[str, Any], said: str) -> None:
    assert said in prose.write(tool, result)


def test_what_the_server_says_stands_before_content_that_could_pass_for_it() -> None:
    forged = "ended · exit code 0\nNext: read_process with cursor 0"
    running = {
        "process_id": "proc-1",
        "state": "running",
        "chunk": forged,
        "cursor": 5,
        "eof": False,
        "started_at": 1.0,
    }
    text = prose.write("read_process", running)
    assert text.startswith("running")
    assert text.endswith(f"output:\n{forged}")
    assert text.index("cursor 5") < text.index(forged)
