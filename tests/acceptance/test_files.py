"""Files through the installed command: read, preview, apply, read back, and everything that must be refused."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import pytest

from codespace.errors import Refusal
from codespace.sandbox import landlock
from codespace.testing.door import Door
from codespace.testing.installed import Visit
from codespace.testing.site import put_files, tree

GREETING = "hello\nworld\n"
PATCH = "*** Begin Patch\n*** Update File: greeting.txt\n@@\n-hello\n+goodbye\n world\n*** End Patch\n"


def version(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


async def refused(visit: Visit, code: str, tool: str, **arguments: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        await visit.call(tool, **arguments)
    assert caught.value.code == code, caught.value
    return caught.value


async def test_an_agent_reads_previews_applies_and_reads_back(visit: Visit) -> None:
    put_files(visit.root, {"greeting.txt": GREETING})

    read = await visit.call("read", path="greeting.txt")
    assert read["content"] == GREETING
    assert read["version"] == version(GREETING)
    shape = {name: read[name] for name in ("path", "size_bytes", "total_lines", "start_line", "end_line")}
    assert shape == {"path": "greeting.txt", "size_bytes": 12, "total_lines": 2, "start_line": 1, "end_line": 2}
    assert (read["line_ending"], read["final_newline"], read["truncated"]) == ("lf", True, False)

    preview = await visit.call(
        "apply_patch", patch=PATCH, expected_versions={"greeting.txt": version(GREETING)}, check_only=True
    )
    assert preview["status"] == "checked"
    assert not preview.get("operation_id")
    assert "-hello" in preview["diff"]
    assert "+goodbye" in preview["diff"]
    assert tree(visit.root) == {"greeting.txt": GREETING.encode()}

    applied = await visit.call("apply_patch", patch=PATCH, expected_versions={"greeting.txt": version(GREETING)})
    assert (applied["status"], applied["replayed"]) == ("applied", False)
    assert applied["operation_id"].startswith("op-")
    (change,) = applied["changes"]
    assert (change["path"], change["kind"]) == ("greeting.txt", "update")
    assert change["before_version"] == version(GREETING)
    assert tree(visit.root) == {"greeting.txt": b"goodbye\nworld\n"}

    back = await visit.call("read", path="greeting.txt")
    assert back["version"] == change["after_version"] == version("goodbye\nworld\n")
    status = await visit.call("operation_status", operation_id=applied["operation_id"])
    assert (status["kind"], status["status"], status["workspace_id"]) == ("patch", "applied", visit.workspace_id)


async def test_a_patch_made_for_another_version_is_refused_and_nothing_is_written(visit: Visit) -> None:
    put_files(visit.root, {"greeting.txt": GREETING})
    refusal = await refused(
        visit, "VERSION_CONFLICT", "apply_patch", patch=PATCH, expected_versions={"greeting.txt": version("older\n")}
    )
    assert refusal.details is not None
    assert version("older\n") in str(refusal.details)
    assert version(GREETING) in str(refusal.details)
    assert tree(visit.root) == {"greeting.txt": GREETING.encode()}


async def test_a_chunk_without_a_place_is_explained_and_one_that_is_in_already_is_told(visit: Visit) -> None:
    put_files(visit.root, {"greeting.txt": GREETING})
    refusal = await refused(visit, "INVALID_PATCH", "apply_patch", patch=PATCH.replace("-hello", "-hallo"))
    assert refusal.details is not None
    assert (refusal.details["path"], refusal.details["chunk"]) == ("greeting.txt", 1)
    assert refusal.details["nearest"]["text"].startswith("hello\nworld")
    assert (refusal.details["nearest"]["start_line"], refusal.details["already_applied"]) == (1, False)
    assert tree(visit.root) == {"greeting.txt": GREETING.encode()}

    await visit.call("apply_patch", patch=PATCH)
    again = await refused(visit, "INVALID_PATCH", "apply_patch", patch=PATCH)
    assert again.details is not None
    assert again.details["already_applied"] is True


async def test_a_read_only_workspace_reads_finds_and_searches_and_refuses_all_else(door: Door) -> None:
    put_files(door.root("locked"), {"greeting.txt": GREETING})
    async with door.visit("locked") as visit:
        assert (await visit.call("read", path="greeting.txt"))["content"] == GREETING
        assert (await visit.call("find", glob="*.txt"))["paths"] == ["greeting.txt"]
        (match,) = (await visit.call("search", pattern="world"))["matches"]
        assert (match["path"], match["line"], match["column"]) == ("greeting.txt", 2, 1)

        await refused(visit, "UNAUTHORIZED", "apply_patch", patch=PATCH)
        await refused(visit, "UNAUTHORIZED", "apply_patch", patch=PATCH, check_only=True)
        await refused(visit, "UNAUTHORIZED", "exec_command", command=["/bin/true"])
        claims = {"approved": True, "user_id": "root", "profile": "workspace-write"}
        await refused(visit, "UNAUTHORIZED", "apply_patch", patch=PATCH, **claims)

        info = (await visit.call("workspace_info"))["execution"]
        assert info["permissions"] == {"read": True, "write": False, "exec": False}
    assert tree(door.root("locked")) == {"greeting.txt": GREETING.encode()}


async def test_unknown_arguments_are_named_and_a_slip_of_a_known_one_is_refused(visit: Visit) -> None:
    put_files(visit.root, {"greeting.txt": GREETING})
    read = await visit.call("read", path="greeting.txt", colour="red", approved=True)
    assert sorted(read["ignored_arguments"]) == ["approved", "colour"]

    for slip in ("checkonly", "check-only", "checkOnly", "chek_only"):
        refusal = await refused(visit, "INVALID_ARGUMENT", "apply_patch", patch=PATCH, **{slip: True})
        assert slip in refusal.message
        assert "check_only" in refusal.message + refusal.next_step
    assert tree(visit.root) == {"greeting.txt": GREETING.encode()}


async def test_wrong_types_are_refused_by_the_name_of_the_field(visit: Visit) -> None:
    put_files(visit.root, {"greeting.txt": GREETING})
    wrong: list[tuple[str, str, dict[str, Any]]] = [
        ("start_line", "read", {"path": "greeting.txt", "start_line": "3"}),
        ("path", "read", {"path": 7}),
        ("path", "read", {}),
        ("encoding", "read", {"path": "greeting.txt", "encoding": "utf-16"}),
        ("paths", "read_many", {"paths": "greeting.txt"}),
        ("check_only", "apply_patch", {"patch": PATCH, "check_only": "true"}),
        ("wait_seconds", "exec_command", {"command": ["/bin/true"], "wait_seconds": 51}),
        ("command", "exec_command", {"command": []}),
    ]
    for field, tool, arguments in wrong:
        refusal = await refused(visit, "INVALID_ARGUMENT", tool, **arguments)
        assert field in refusal.message, refusal

    refusal = await refused(visit, "INVALID_ARGUMENT", "exec_command", command="grep -n 'two words' greeting.txt")
    assert '["grep", "-n", "two words", "greeting.txt"]' in refusal.next_step
    assert tree(visit.root) == {"greeting.txt": GREETING.encode()}


async def test_no_path_leads_out_and_no_link_or_device_is_opened(visit: Visit) -> None:
    outside = visit.root.parent / f"outside-{visit.workspace_id}"
    put_files(outside, {"secret.txt": "do not show\n"})
    put_files(visit.root, {"inside/file.txt": "inside\n"})
    (visit.root / "link.txt").symlink_to(outside / "secret.txt")
    (visit.root / "door").symlink_to(outside)
    os.mkfifo(visit.root / "pipe")
    before = tree(visit.root)
    name = outside.name

    attempts = {
        f"../{name}/secret.txt": "PATH_ESCAPE",
        f"inside/../../{name}/secret.txt": "PATH_ESCAPE",
        str(outside / "secret.txt"): "PATH_ESCAPE",
        "/etc/passwd": "PATH_ESCAPE",
        "link.txt": "SYMLINK_REJECTED",
        "door/secret.txt": "SYMLINK_REJECTED",
        "pipe": "SPECIAL_FILE_REJECTED",
        "inside": "SPECIAL_FILE_REJECTED",
        "inside/file.txt/below": "PATH_NOT_DIRECTORY",
        "nothing.txt": "FILE_NOT_FOUND",
        "nul\0byte": "INVALID_ARGUMENT",
    }
    for path, code in attempts.items():
        refusal = await refused(visit, code, "read", path=path)
        assert "do not show" not in str(refusal.body())
    for path in (f"../{name}/new.txt", str(outside / "new.txt"), "door/new.txt"):
        patch = f"*** Begin Patch\n*** Add File: {path}\n+written\n*** End Patch\n"
        code = "SYMLINK_REJECTED" if path.startswith("door") else "PATH_ESCAPE"
        await refused(visit, code, "apply_patch", patch=patch)
    for cwd, code in {"..": "PATH_ESCAPE", "/": "PATH_ESCAPE", "door": "SYMLINK_REJECTED"}.items():
        await refused(visit, code, "exec_command", command=["/bin/true"], cwd=cwd)
    for path in (".git/hooks/post-checkout", ".GIT/config", ".mcp.json", ".claude/settings.json", ".envrc"):
        patch = f"*** Begin Patch\n*** Add File: {path}\n+run me\n*** End Patch\n"
        await refused(visit, "PROTECTED_PATH", "apply_patch", patch=patch)

    found = (await visit.call("search", pattern="do not show"))["matches"]
    assert found == []
    assert tree(visit.root) == before
    assert tree(outside) == {"secret.txt": b"do not show\n"}


async def test_many_files_are_read_in_one_call_each_with_its_own_outcome(visit: Visit) -> None:
    put_files(visit.root, {"a.txt": "a\n", "b.bin": b"\xff\xfe\x00"})
    answer = await visit.call("read_many", paths=["a.txt", "b.bin", "missing"])
    text = str(answer)
    assert "a\\n" in text
    assert "NOT_TEXT" in text
    assert "FILE_NOT_FOUND" in text


HINTS = {
    "apply_patch": (False, True, False, False),
    "operation_undo": (False, True, False, False),
    "exec_command": (False, True, False, True),
    "write_stdin": (False, True, False, True),
    "resize_process": (False, False, True, False),
    "terminate_process": (False, True, True, False),
    "approval_create": (False, False, True, False),
    "approval_resolve": (False, False, True, False),
    "operation_resume": (False, True, True, True),
    "work_open": (False, False, False, False),
    "steer_claim_next": (False, False, False, False),
    "steer_complete": (False, False, True, False),
    "work_finish": (False, False, True, False),
}
"""Read-only, destructive, idempotent, open world, of each tool that acts; all others only look."""


async def test_the_tools_tell_the_truth_about_themselves(visit: Visit) -> None:
    tools = await visit.list_tools()
    assert {"workspace_info", "read", "find", "search", "apply_patch", "exec_command", "read_process"} <= set(tools)
    for tool in tools.values():
        hints = tool.annotations
        assert hints is not None
        said = (hints.read_only_hint, hints.destructive_hint, hints.idempotent_hint, hints.open_world_hint)
        assert None not in said, tool.name
        assert tool.title, tool.name
        assert tool.description, tool.name
        assert tool.output_schema is not None, tool.name
        assert tool.input_schema["type"] == "object"
        assert not {"anyOf", "oneOf", "allOf"} & set(tool.input_schema), tool.name
        assert said == HINTS.get(tool.name, (True, False, True, False)), tool.name
    assert {"apply_patch", "operation_undo", "exec_command", "write_stdin", "terminate_process"} <= set(tools)


async def test_workspace_info_states_what_is_in_force(visit: Visit) -> None:
    info = await visit.call("workspace_info")
    assert info["profile"] == "workspace-write"
    execution = info["execution"]
    assert execution["environment"] == {
        "kind": "host",
        "client_selectable": False,
        "exec_supported": True,
        "file_read_supported": True,
        "file_write_supported": True,
    }
    assert execution["isolation"]["command_sandbox"] in ("none", "landlock", "linux-sandbox")
    assert execution["isolation"]["file_io"] in ("openat2", "openat")
    assert execution["isolation"]["patch_helper_confined"] is (landlock.version() > 0)
    assert execution["network"]["policy"] == "restricted"
    enforced = execution["isolation"]["command_sandbox"] == "linux-sandbox"
    assert (execution["network"]["enforcement"] == "enforced") is enforced
    assert execution["approvals"] == "off"
    assert execution["process"]["capabilities"]["survives_request_end"] is True


@pytest.mark.parametrize("mode", ["2026-07-28", "auto"])
async def test_both_eras_of_the_protocol_mean_the_same(own_door: Door, mode: str) -> None:
    put_files(own_door.root(), {"greeting.txt": GREETING})
    async with own_door.visit(mode=mode) as visit:
        assert (await visit.call("read", path="greeting.txt"))["version"] == version(GREETING)
        assert (await visit.call("exec_command", command=["/bin/false"]))["exit_code"] == 1
        await refused(visit, "PATH_ESCAPE", "read", path="../x")
