"""The server as a client sees it, in both protocol eras, in memory."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import jsonschema
import pytest
import structlog.testing
import trio
from mcp import Client, MCPError
from mcp_types import Implementation

from codespace.protocol.server import build_server
from codespace.protocol.tools import TABLE

from .fake import PNG, FakeTools, as_tools, version

ERAS = pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])


@asynccontextmanager
async def connected(fake: FakeTools, mode: str, **options: Any) -> AsyncIterator[Client]:
    async with Client(build_server(as_tools(fake), version="0", **options), mode=mode) as client:
        yield client


async def call(client: Client, tool: str, /, **arguments: Any) -> dict[str, Any]:
    """Call a tool that must succeed; its structure is checked against the advertised schema."""
    answer = await client.call_tool(tool, arguments)
    assert not answer.is_error, answer.content
    assert answer.structured_content is not None
    listed = {listed.name: listed for listed in (await client.list_tools()).tools}
    jsonschema.validate(answer.structured_content, listed[tool].output_schema)
    assert answer.content
    assert answer.content[0].type == "text"
    return {"text": answer.content[0].text, "blocks": answer.content, **answer.structured_content}


async def refused(client: Client, tool: str, /, **arguments: Any) -> dict[str, Any]:
    """Call a tool that must refuse; return the error body."""
    answer = await client.call_tool(tool, arguments)
    assert answer.is_error
    assert answer.structured_content is None
    assert len(answer.content) == 1
    assert answer.content[0].type == "text"
    body: dict[str, Any] = json.loads(answer.content[0].text)
    assert {"code", "message", "next_step", "retryable"} <= body.keys()
    return body


@ERAS
async def test_every_tool_is_listed_with_title_description_schemas_and_four_true_hints(mode: str) -> None:
    async with connected(FakeTools(), mode) as client:
        listed = (await client.list_tools()).tools
    assert [tool.name for tool in listed] == list(TABLE)
    for tool in listed:
        assert tool.title
        assert tool.description
        assert tool.input_schema["type"] == "object"
        assert not {"anyOf", "oneOf", "allOf"} & set(json.dumps(tool.input_schema).replace('"', " ").split())
        hints = tool.annotations
        assert hints is not None
        said = (hints.read_only_hint, hints.destructive_hint, hints.idempotent_hint, hints.open_world_hint)
        assert all(isinstance(value, bool) for value in said)
        assert not (hints.read_only_hint and hints.destructive_hint)


@ERAS
async def test_files_are_read_found_searched_and_patched(mode: str) -> None:
    fake = FakeTools()
    async with connected(fake, mode) as client:
        info = await call(client, "workspace_info", workspace_id="w")
        assert info["execution"] == {"approvals": "off"}
        read = await call(client, "read", path="a.txt")
        assert read["text"].endswith("\none\ntwo\n")
        assert read["version"] == version(b"one\ntwo\n")
        assert read["version"] in read["text"]
        part = await call(client, "read", path="a.txt", start_line=1, line_count=1)
        assert "start_line 2" in part["text"]
        many = await call(client, "read_many", paths=["a.txt", "gone"])
        assert many["entries"][1]["error"]["code"] == "FILE_NOT_FOUND"
        assert "FILE_NOT_FOUND" in many["text"]
        found = await call(client, "find", query="a", limit=1)
        assert found["paths"] == ["a.txt"]
        hit = await call(client, "search", pattern="two", context_lines=1)
        assert hit["matches"][0]["before"] == ["one"]
        assert "a.txt:2:1:two" in hit["text"]
        patch = "*** Begin Patch\n*** Add File: b.txt\n+new\n*** End Patch"
        checked = await call(client, "apply_patch", patch=patch, check_only=True)
        assert "nothing was written" in checked["text"]
        assert "operation_id" not in checked
        applied = await call(
            client, "apply_patch", patch=patch, operation_key="k", expected_versions={"b.txt": "absent"}
        )
        assert applied["operation_id"] in applied["text"]
        again = await call(client, "apply_patch", patch=patch, operation_key="k")
        assert again["replayed"]
        assert "nothing was done again" in again["text"]
        status = await call(client, "operation_status", operation_key="k")
        assert status["status"] == "applied"
    assert fake.files["b.txt"] == b"new\n"


@ERAS
async def test_a_command_is_run_polled_fed_and_ended(mode: str) -> None:
    async with connected(FakeTools(), mode) as client:
        echoed = await call(client, "exec_command", command=["echo", "hello"])
        assert "exit code 0" in echoed["text"]
        assert echoed["text"].endswith("hello\n")
        failed = await call(client, "exec_command", command=["false"])
        assert failed["exit_code"] == 1
        running = await call(client, "exec_command", command=["cat"], open_stdin=True, wait_seconds=0)
        assert "read_process with cursor 0" in running["text"]
        process = running["process_id"]
        await call(client, "write_stdin", process_id=process, data="fed")
        fed = await call(client, "read_process", process_id=process, wait_seconds=50)
        assert fed["chunk"] == "fed"
        assert fed["cursor"] == 3
        assert (await call(client, "process_status", process_id=process))["state"] == "running"
        assert len((await call(client, "list_processes"))["processes"]) == 3
        ended = await call(client, "terminate_process", process_id=process)
        assert ended["termination"] == "terminated"
        assert "SIGTERM" in ended["text"]


@ERAS
async def test_a_held_patch_is_created_granted_and_resumed(mode: str) -> None:
    fake = FakeTools()
    async with connected(fake, mode) as client:
        patch = "*** Begin Patch\n*** Add File: c\n+c\n*** End Patch"
        held = await call(client, "approval_create", tool="apply_patch", arguments={"patch": patch, "wish": 1})
        assert held["ignored_arguments"] == ["arguments.wish"]
        approval = held["approval_id"]
        assert (await call(client, "approval_status", approval_id=approval))["state"] == "pending"
        assert (await call(client, "approval_resolve", approval_id=approval, decision="grant"))["state"] == "granted"
        resumed = await call(client, "operation_resume", approval_id=approval)
        assert resumed["apply_patch"]["status"] == "applied"
        assert "applied" in resumed["text"]
    assert fake.files["c"] == b"c\n"
    assert fake.calls[0][2]["arguments"]["check_only"] is False


@ERAS
async def test_an_image_comes_as_an_image_block_too(mode: str) -> None:
    import base64

    async with connected(FakeTools(), mode) as client:
        read = await call(client, "read", path="dot.png")
        image = read["blocks"][1]
        assert image.type == "image"
        assert image.mime_type == "image/png"
        assert base64.b64decode(image.data) == PNG
        assert read["content"] not in read["text"]


@ERAS
async def test_a_refusal_is_its_body_in_one_text_block_with_outside_text_escaped(mode: str) -> None:
    async with connected(FakeTools(), mode) as client:
        body = await refused(client, "read", path="x\u202e\x1b[31m")
    assert body["code"] == "FILE_NOT_FOUND"
    assert "\x1b" not in body["message"]
    assert "\u202e" not in json.dumps(body, ensure_ascii=False)


@ERAS
async def test_a_fault_is_internal_without_its_text_and_the_log_knows_its_reference(mode: str) -> None:
    fake = FakeTools()

    def fail() -> None:
        raise RuntimeError("CANARY of file contents")

    fake.inside = fail
    with structlog.testing.capture_logs() as logged:
        async with connected(fake, mode) as client:
            body = await refused(client, "read", path="a.txt")
    assert body["code"] == "INTERNAL"
    assert "CANARY" not in json.dumps(body)
    (event,) = logged
    assert event["tool"] == "read"
    assert event["reference"] in body["message"]
    assert isinstance(event.pop("exc_info"), RuntimeError)
    assert "CANARY" not in str(event)


@ERAS
async def test_an_unknown_tool_is_a_clear_protocol_error_naming_the_known_ones(mode: str) -> None:
    async with connected(FakeTools(), mode) as client:
        with pytest.raises(MCPError, match="There is no tool bash here") as caught:
            await client.call_tool("bash", {})
    assert caught.value.error.code == -32602
    assert "exec_command" in caught.value.error.data["next_step"]


@ERAS
async def test_probes_for_what_is_not_offered_are_answered_method_not_found(mode: str) -> None:
    async with connected(FakeTools(), mode) as client:
        for probe in (client.list_resources, client.list_prompts, client.list_resource_templates):
            with pytest.raises(MCPError) as caught:
                await probe()
            assert caught.value.error.code == -32601


async def test_progress_reaches_only_a_client_that_asked_for_it() -> None:
    fake = FakeTools()
    told: list[tuple[float, str | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, message))

    async with connected(fake, "legacy") as client:
        arguments = {"command": ["sleep"], "wait_seconds": 0.05}
        await client.call_tool("exec_command", arguments)
        assert fake.calls[-1][1].progress is None
        await client.call_tool("exec_command", arguments, progress_callback=hear)
        assert fake.calls[-1][1].progress is not None
    assert told == [(1.0, "running")]


@ERAS
async def test_a_cancelled_call_cancels_the_wait_and_the_server_goes_on(mode: str) -> None:
    fake = FakeTools()
    async with connected(fake, mode) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "exec_command", {"command": ["sleep"], "wait_seconds": 50})
            await fake.waiting.wait()
            nursery.cancel_scope.cancel()
        with trio.fail_after(60):
            await fake.cancelled.wait()
        assert (await call(client, "read", path="a.txt"))["content"] == "one\ntwo\n"


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_the_callers_transport_and_escaped_name_reach_the_gateway(mode: str) -> None:

    fake = FakeTools()
    server = build_server(as_tools(fake), version="0", transport="http")
    async with Client(server, mode=mode, client_info=Implementation(name="evil\x1b", version="1")) as client:
        await client.call_tool("workspace_info", {})
    caller = fake.calls[0][1]
    assert caller.transport == "http"
    assert caller.client == "evil\\x1b"


async def test_text_only_servers_send_no_structure_and_promise_none() -> None:
    async with connected(FakeTools(), "legacy", results="text") as client:
        assert all(tool.output_schema is None for tool in (await client.list_tools()).tools)
        answer = await client.call_tool("read", {"path": "a.txt"})
    assert answer.structured_content is None
    assert answer.content


@ERAS
@pytest.mark.parametrize("name", ["claude-code", "codex-mcp-client"])
async def test_a_client_that_would_show_its_model_only_the_structure_is_sent_the_readable_form(
    mode: str, name: str
) -> None:
    server = build_server(as_tools(FakeTools()), version="0")
    async with Client(server, mode=mode, client_info=Implementation(name=name, version="1")) as client:
        assert all(tool.output_schema is None for tool in (await client.list_tools()).tools)
        answer = await client.call_tool("read", {"path": "dot.png", "encoding": "base64"})
    assert answer.structured_content is None
    assert [block.type for block in answer.content] == ["text", "image"]
    assert base64.b64encode(PNG).decode() not in str(answer.content[0])


async def test_such_a_client_is_sent_the_structure_where_the_operator_wants_nothing_else() -> None:
    server = build_server(as_tools(FakeTools()), version="0", results="structured")
    async with Client(server, mode="legacy", client_info=Implementation(name="claude-code", version="1")) as client:
        assert all(tool.output_schema is not None for tool in (await client.list_tools()).tools)
        assert (await client.call_tool("read", {"path": "a.txt"})).structured_content is not None


async def test_structured_only_servers_send_no_text() -> None:
    async with connected(FakeTools(), "legacy", results="structured") as client:
        answer = await client.call_tool("read", {"path": "a.txt"})
    assert answer.content == []
    assert answer.structured_content is not None


async def test_a_group_that_is_not_exposed_is_neither_listed_nor_callable() -> None:
    async with connected(FakeTools(), "legacy", exposed=("files",)) as client:
        assert {tool.name for tool in (await client.list_tools()).tools} == {
            tool.name for tool in TABLE.values() if tool.group == "files"
        }
        with pytest.raises(MCPError, match="no tool exec_command"):
            await client.call_tool("exec_command", {"command": ["echo"]})


async def test_where_works_are_hidden_no_tool_takes_one_and_it_is_named_as_ignored() -> None:
    for exposed, expected in ((("files", "exec"), False), (("files", "exec", "work"), True)):
        async with connected(FakeTools(), "legacy", exposed=exposed) as client:
            listed = {tool.name: tool.input_schema["properties"] for tool in (await client.list_tools()).tools}
            takes = {name for name, properties in listed.items() if "work_id" in properties}
            assert ({"apply_patch", "exec_command"} <= takes) is expected
            assert bool(takes) is expected
            ran = await call(client, "exec_command", command=["echo"], work_id="work-1")
            assert (ran.get("ignored_arguments") == ["work_id"]) is not expected


async def test_a_misspelt_group_is_refused_at_start() -> None:
    with pytest.raises(ValueError, match="flies"):
        build_server(as_tools(FakeTools()), version="0", exposed=("flies",))


async def test_calls_beyond_the_limit_are_refused_and_earlier_ones_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from codespace import limits

    monkeypatch.setattr(limits, "CONCURRENT_CALLS", 1)
    fake = FakeTools()
    async with connected(fake, "legacy") as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.call_tool, "exec_command", {"command": ["sleep"], "wait_seconds": 50})
        await fake.waiting.wait()
        body = await refused(client, "workspace_info")
        assert body["code"] == "LIMIT_REACHED"
        next(iter(fake.commands.values())).change(termination="exited", exit_code=0)


async def test_building_a_server_leaves_logging_as_it_was() -> None:
    root = logging.getLogger()
    before = list(root.handlers), root.level
    build_server(as_tools(FakeTools()), version="0")
    assert (list(root.handlers), root.level) == before
    assert not logging.getLogger("mcp").handlers
