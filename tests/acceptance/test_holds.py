"""Approvals `confirm` through the installed command: held, granted, resumed exactly once; denied for good."""

from __future__ import annotations

from typing import Any

import pytest

from codespace.errors import Refusal
from codespace.testing.door import Door
from codespace.testing.installed import Visit
from codespace.testing.site import put_files, tree

APPEND = "*** Begin Patch\n*** Update File: log.txt\n@@\n+one more line\n*** End Patch\n"


async def held(visit: Visit, tool: str, **arguments: Any) -> str:
    """Send a request that must be held; return the id of its hold."""
    with pytest.raises(Refusal) as caught:
        await visit.call(tool, **arguments)
    assert caught.value.code == "APPROVAL_REQUIRED", caught.value
    assert caught.value.approval_id is not None
    assert caught.value.approval_id.startswith("appr-")
    return caught.value.approval_id


async def test_a_held_patch_is_granted_and_resumed_exactly_once(door: Door) -> None:
    put_files(door.root("held"), {"log.txt": "first line\n"})
    before = tree(door.root("held"))
    async with door.visit("held") as visit:
        approval_id = await held(visit, "apply_patch", patch=APPEND, operation_key=f"append {visit.workspace_id}")
        assert tree(visit.root) == before
        again = await held(visit, "apply_patch", patch=APPEND, operation_key=f"append {visit.workspace_id}")
        assert again == approval_id

        status = await visit.call("approval_status", approval_id=approval_id)
        assert (status["state"], status["tool"], status["workspace_id"]) == (
            "pending",
            "apply_patch",
            visit.workspace_id,
        )
        with pytest.raises(Refusal):
            await visit.call("operation_resume", approval_id=approval_id)
        assert tree(visit.root) == before

        granted = await visit.call("approval_resolve", approval_id=approval_id, decision="grant")
        assert granted["state"] == "granted"
        assert tree(visit.root) == before

        resumed = await visit.call("operation_resume", approval_id=approval_id)
        assert resumed["state"] == "consumed"
        assert resumed["apply_patch"]["status"] == "applied"
        once = tree(visit.root)
        assert once == {"log.txt": b"first line\none more line\n"}

        replayed = await visit.call("operation_resume", approval_id=approval_id)
        assert replayed["apply_patch"]["operation_id"] == resumed["apply_patch"]["operation_id"]
        assert tree(visit.root) == once
        same = await visit.call("apply_patch", patch=APPEND, operation_key=f"append {visit.workspace_id}")
        assert same["replayed"] is True
        assert tree(visit.root) == once


async def test_a_denied_patch_never_runs(door: Door) -> None:
    put_files(door.root("held"), {"log.txt": "first line\n"})
    before = tree(door.root("held"))
    async with door.visit("held") as visit:
        approval_id = await held(visit, "apply_patch", patch=APPEND)
        denied = await visit.call("approval_resolve", approval_id=approval_id, decision="deny")
        assert denied["state"] == "denied"
        with pytest.raises(Refusal):
            await visit.call("approval_resolve", approval_id=approval_id, decision="grant")
        with pytest.raises(Refusal):
            await visit.call("operation_resume", approval_id=approval_id)
        assert (await visit.call("approval_status", approval_id=approval_id))["state"] == "denied"
    assert tree(door.root("held")) == before


async def test_a_grant_is_for_what_was_shown_and_for_nothing_newer(door: Door) -> None:
    put_files(door.root("held"), {"log.txt": "first line\n"})
    async with door.visit("held") as visit:
        approval_id = await held(visit, "apply_patch", patch=APPEND)
        await visit.call("approval_resolve", approval_id=approval_id, decision="grant")
        put_files(visit.root, {"log.txt": "somebody else's line\n"})
        with pytest.raises(Refusal) as caught:
            await visit.call("operation_resume", approval_id=approval_id)
        assert caught.value.code == "APPROVAL_CONFLICT"
        assert tree(visit.root) == {"log.txt": b"somebody else's line\n"}


async def test_a_held_command_is_started_once_after_its_grant(door: Door) -> None:
    async with door.visit("held") as visit:
        command = ["sh", "-c", "echo ran >> trace.txt"]
        approval_id = await held(visit, "exec_command", command=command)
        assert tree(visit.root) == {}
        await visit.call("approval_resolve", approval_id=approval_id, decision="grant")
        resumed = await visit.call("operation_resume", approval_id=approval_id)
        process_id = resumed["exec_command"]["process_id"]
        again = await visit.call("operation_resume", approval_id=approval_id)
        assert again["exec_command"]["process_id"] == process_id
        done = await visit.call("read_process", process_id=process_id, wait_seconds=20)
        assert (done["state"], done["exit_code"]) == ("exited", 0)
        assert tree(visit.root) == {"trace.txt": b"ran\n"}


async def test_a_preview_and_a_read_are_not_held(door: Door) -> None:
    put_files(door.root("held"), {"log.txt": "first line\n"})
    async with door.visit("held") as visit:
        assert (await visit.call("apply_patch", patch=APPEND, check_only=True))["status"] == "checked"
        assert (await visit.call("read", path="log.txt"))["content"] == "first line\n"


async def test_a_hold_may_be_made_ahead_of_the_request(door: Door) -> None:
    put_files(door.root("held"), {"log.txt": "first line\n"})
    async with door.visit("held") as visit:
        arguments = {"workspace_id": visit.workspace_id, "patch": APPEND}
        made = await visit.call("approval_create", tool="apply_patch", arguments=arguments)
        assert made["state"] == "pending"
        assert await held(visit, "apply_patch", patch=APPEND) == made["approval_id"]
        assert made["expires_at"] is not None
