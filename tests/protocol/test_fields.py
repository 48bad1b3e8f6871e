"""What real results carry and what docs/tools.md says that they carry are the same fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from codespace.protocol.tools import TABLE
from codespace.testing import open_bench
from codespace.testing.calls import structured

PATCH = "*** Begin Patch\n*** Update File: a.txt\n@@\n-one\n+two\n*** End Patch\n"
HELD = {"command": ["true"]}


def unknown(result: Mapping[str, Any], shape: Mapping[str, Any], where: str) -> Iterator[str]:
    """Yield the fields of a result, however deep, that its shape does not name."""
    for name, value in result.items():
        known = shape["properties"].get(name)
        if known is None:
            yield f"{where}.{name}"
        for item in value if isinstance(value, list) else [value]:
            inner = (known or {}).get("items", known) or {}
            if isinstance(item, dict) and "properties" in inner:
                yield from unknown(item, inner, f"{where}.{name}")


async def test_no_result_has_a_field_that_is_documented_nowhere() -> None:
    environ = {"CODESPACE_OPERATOR_TOKEN": "of-the-operator-0123456789"}
    surplus: list[str] = []
    async with open_bench(files={"a.txt": "one\n"}, environ=environ, options={"tools": ["approvals"]}) as bench:

        async def call(name: str, /, **arguments: Any) -> dict[str, Any]:
            result = structured(await bench.client.call_tool(name, arguments))
            surplus.extend(unknown(result, TABLE[name].result, name))
            return result

        await call("workspace_info")
        await call("read", path="a.txt")
        await call("read_many", paths=["a.txt", "none"])
        await call("find")
        await call("search", pattern="one", context_lines=1)
        work = (await call("work_open", title="t"))["work_id"]
        await call("apply_patch", patch=PATCH, check_only=True)
        patch = await call("apply_patch", patch=PATCH, operation_key="k", work_id=work)
        await call("apply_patch", patch=PATCH, operation_key="k")
        await call("operation_status", operation_key="k")
        await call("operation_undo", operation_id=patch["operation_id"])
        ended = await call("exec_command", command=["sh", "-c", "echo out; exit 3"], work_id=work)
        await call("operation_status", operation_id=ended["operation_id"])
        await call("read_process", process_id=ended["process_id"])
        await call("process_status", process_id=ended["process_id"])
        typed = (await call("exec_command", command=["cat"], tty=True, wait_seconds=0))["process_id"]
        await call("list_processes")
        await call("write_stdin", process_id=typed, data="x\r")
        await call("resize_process", process_id=typed, rows=30, cols=100)
        await call("terminate_process", process_id=typed)
        hold = (await call("approval_create", tool="exec_command", arguments=HELD))["approval_id"]
        await call("approval_resolve", approval_id=hold, decision="grant")
        await call("operation_resume", approval_id=hold)
        await call("approval_status", approval_id=hold)
        await call("steer_status", work_id=work)
        draft = {"text": "t", "kind": "note", "delivery": "next_checkpoint", "supersedes": None}
        intent = (await bench.daemon.inbox.draft(work_id=work, **draft))["intent_id"]  # type: ignore[arg-type]
        await bench.daemon.inbox.queue(intent_id=intent, revision=None)
        await call("work_finish", work_id=work)
        await call("steer_claim_next", work_id=work)
        await call("steer_claim_next", work_id=work)
        await call("steer_complete", work_id=work, intent_id=intent, outcome="done", note="n")
        await call("work_finish", work_id=work)
    assert surplus == []


async def test_a_match_has_lines_around_it_only_where_they_were_asked_for() -> None:
    async with open_bench(files={"a.txt": "one\ntwo\n"}) as bench:
        (bare,) = (await bench.call("search", pattern="two"))["matches"]
        assert bare == {"path": "a.txt", "line": 2, "column": 1, "text": "two"}
        (match,) = (await bench.call("search", pattern="two", context_lines=1))["matches"]
        assert match == bare | {"before": ["one"], "after": []}


async def test_a_runner_without_a_sandbox_says_so_in_the_form_of_one_with_it() -> None:
    async with open_bench(sandbox=False) as bench:
        said = (await bench.call("workspace_info"))["execution"]["isolation"]["sandbox"]
        assert said["filesystem"] == {"enforcement": "none", "writable": [], "hidden": []}
