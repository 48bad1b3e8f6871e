"""A lost reply is not a lost fact: keys, killed clients, and what the next client finds."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from codespace.errors import Refusal
from codespace.testing import processes
from codespace.testing.door import Door
from codespace.testing.installed import Visit, over_stdio
from codespace.testing.site import Site, put_files, tree
from codespace.testing.watching import watching
from codespace.testing.wire import Wire

APPEND = "*** Begin Patch\n*** Update File: log.txt\n@@\n+one more line\n*** End Patch\n"
MANY = 150
BEFORE = {f"file-{number:03}.txt": f"before {number}\n".encode() for number in range(MANY)}
AFTER = {f"file-{number:03}.txt": f"after {number}\n".encode() for number in range(MANY)}
REWRITE = "".join(
    [
        "*** Begin Patch\n",
        *(f"*** Update File: {name}\n@@\n-before {n}\n+after {n}\n" for n, name in enumerate(BEFORE)),
        "*** End Patch\n",
    ]
)


def start_client(door: Door, tool: str, arguments: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start an official client in a process of its own that makes one call."""
    order = {
        "door": door.name,
        "folder": str(door.site.folder),
        "environ": door.site.environ,
        "tool": tool,
        "arguments": {"workspace_id": door.workspace_id(), **arguments},
    }
    if door.daemon is not None:
        order |= {"url": door.daemon.url, "token": door.daemon.token}
    return subprocess.Popen(
        [sys.executable, "-m", "codespace.testing.mortal", json.dumps(order)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


@asynccontextmanager
async def mortal(door: Door, tool: str, **arguments: Any) -> AsyncIterator[subprocess.Popen[bytes]]:
    """Run a client that the test may kill; it is past its handshake, and dead behind the block."""
    with start_client(door, tool, arguments) as client:
        try:
            assert client.stdout is not None
            with trio.fail_after(60):
                said = await trio.to_thread.run_sync(client.stdout.readline, abandon_on_cancel=True)
            assert said == b"connected\n"
            yield client
        finally:
            client.kill()


def is_staged(name: str) -> bool:
    """Return whether a name is one that a patch uses until it is done."""
    return name.startswith(".codespace-")


async def outcome_of(visit: Visit, tool: str, **arguments: Any) -> str:
    """Return the patch status that a call ends with, whether it is a result or an error."""
    try:
        status = (await visit.call(tool, **arguments))["status"]
    except Refusal as refusal:
        status = (refusal.details or {}).get("status", refusal.code)
    return str(status)


async def test_a_patch_whose_reply_was_lost_is_found_by_its_key(own_door: Door) -> None:
    door = own_door
    put_files(door.root(), {"log.txt": "first line\n"})
    key = f"append {door.workspace_id()} {door.name}"
    async with door.visit() as visit:
        first = await visit.call("apply_patch", patch=APPEND, operation_key=key)
        assert (first["status"], first["replayed"]) == ("applied", False)
    async with door.visit() as visit:
        status = await visit.call("operation_status", operation_key=key)
        assert (status["status"], status["kind"]) == ("applied", "patch")
        again = await visit.call("apply_patch", patch=APPEND, operation_key=key)
        assert (again["status"], again["replayed"]) == ("applied", True)
        assert again["operation_id"] == first["operation_id"]
        assert again["still_current"] is True
        assert tree(visit.root) == {"log.txt": b"first line\none more line\n"}

        put_files(visit.root, {"log.txt": "changed since\n"})
        assert (await visit.call("apply_patch", patch=APPEND, operation_key=key))["still_current"] is False

        other = APPEND.replace("one more", "another")
        with pytest.raises(Refusal) as caught:
            await visit.call("apply_patch", patch=other, operation_key=key)
        assert caught.value.code == "OPERATION_KEY_CONFLICT"
        with pytest.raises(Refusal) as caught:
            await visit.call("exec_command", command=["/bin/true"], operation_key=key)
        assert caught.value.code == "OPERATION_KEY_CONFLICT"
        assert tree(visit.root) == {"log.txt": b"changed since\n"}


async def test_a_command_with_a_key_is_started_at_most_once(door: Door) -> None:
    command = ["sh", "-c", "echo ran >> trace.txt; cat trace.txt"]
    key = f"run {door.workspace_id()} {door.name}"
    async with door.visit() as visit:
        first = await visit.call("exec_command", command=command, operation_key=key)
        again = await visit.call("exec_command", command=command, operation_key=key)
        assert again["process_id"] == first["process_id"]
        assert again["operation_id"] == first["operation_id"]
        assert again["chunk"] == first["chunk"] == "ran\n"
        assert tree(visit.root) == {"trace.txt": b"ran\n"}


async def test_a_refusal_burns_no_key_and_leaves_no_row(door: Door) -> None:
    put_files(door.root(), {"log.txt": "first line\n"})
    key = f"unburned {door.workspace_id()} {door.name}"
    async with door.visit() as visit:
        with pytest.raises(Refusal):
            await visit.call("exec_command", command=["/bin/true"], cwd="../..", operation_key=key)
        with pytest.raises(Refusal) as caught:
            await visit.call("operation_status", operation_key=key)
        assert caught.value.code == "OPERATION_NOT_FOUND"
        assert (await visit.call("apply_patch", patch=APPEND, operation_key=key))["status"] == "applied"


async def test_a_client_killed_in_the_middle_of_a_patch_leaves_it_whole_or_absent(own_door: Door) -> None:
    door = own_door
    put_files(door.root(), BEFORE)
    key = f"rewrite {door.workspace_id()} {door.name}"
    with watching(door.root()) as watch:
        async with mortal(door, "apply_patch", patch=REWRITE, operation_key=key) as client:
            daemons = processes.children(client.pid) if door.daemon is None else frozenset()
            with trio.fail_after(60):
                await watch.wait_name(is_staged)
            client.kill()  # staged files are there: the transaction has begun and has not answered
        with trio.fail_after(60):
            await processes.wait_gone(daemons)

    async with door.visit() as visit:
        # The same call again waits for the one in flight, or replays what became of it.
        outcome = await outcome_of(visit, "apply_patch", patch=REWRITE, operation_key=key)
        assert outcome in ("applied", "rejected", "failed_rolled_back")
        assert tree(visit.root) == (AFTER if outcome == "applied" else BEFORE)
        status = await visit.call("operation_status", operation_key=key)
        assert status["status"] == outcome


async def test_a_client_killed_in_the_middle_of_a_command_does_not_end_it(http_door: Door) -> None:
    door = http_door
    script = "echo started > started.txt; read line; echo got $line"
    key = f"survive {door.workspace_id()}"
    with watching(door.root()) as watch:
        arguments = {"command": ["sh", "-c", script], "open_stdin": True, "wait_seconds": 50, "operation_key": key}
        async with mortal(door, "exec_command", **arguments) as client:
            with trio.fail_after(60):
                await watch.wait_name(lambda name: name == "started.txt")
            client.kill()

    async with door.visit() as visit:
        status = await visit.call("operation_status", operation_key=key)
        assert (status["kind"], status["status"]) == ("exec", "running")
        process_id = status["process_id"]
        await visit.call("write_stdin", process_id=process_id, data="a line\n", eof=True)
        done = await visit.call("read_process", process_id=process_id, wait_seconds=20)
        assert "got a line\n" in done["chunk"]


async def test_a_client_killed_at_the_stdio_door_takes_daemon_and_command_with_it(stdio_door: Door) -> None:
    door = stdio_door
    script = "setsid sleep 1000 & echo started > started.txt; exec sleep 1000"
    with watching(door.root()) as watch:
        arguments = {"command": ["sh", "-c", script], "wait_seconds": 50, "operation_key": "goes too"}
        async with mortal(door, "exec_command", **arguments) as client:
            with trio.fail_after(60):
                await watch.wait_name(lambda name: name == "started.txt")
            everything = processes.descendants(client.pid)
            assert any("sleep 1000" in processes.command_line(pid) for pid in everything)
            client.kill()
        with trio.fail_after(60):
            await processes.wait_gone(everything)

    async with door.visit() as visit:
        status = await visit.call("operation_status", operation_key="goes too")
        assert status["status"] in ("exited", "lost")


@pytest.mark.parametrize("moment", ["staging", "last rename"])
async def test_a_daemon_killed_in_the_middle_of_a_patch_is_settled_by_its_successor_without_a_trace(
    site: Site, moment: str
) -> None:
    put_files(site.root(), BEFORE)
    last = max(BEFORE)
    wanted: Callable[[str], bool] = is_staged if moment == "staging" else last.__eq__
    with watching(site.root()) as watch:
        wire = await trio.to_thread.run_sync(Wire(site).__enter__)
        # It waits for the probe of the sandbox, whose folder a kill would leave in the tests' own.
        await trio.to_thread.run_sync(wire.call, "workspace_info")
        arguments = {"workspace_id": "main", "patch": REWRITE, "operation_key": "cut off"}
        wire.post("tools/call", {"name": "apply_patch", "arguments": arguments})
        with trio.fail_after(60):
            await watch.wait_name(wanted)
        below = processes.descendants(wire.process.pid)
        wire.process.kill()
        with trio.fail_after(60):
            await processes.wait_gone(below)
        await trio.to_thread.run_sync(wire.close)

    async with over_stdio(site) as visit:
        status = (await visit.call("operation_status", operation_key="cut off"))["status"]
        assert status in ("applied", "rejected", "failed_rolled_back")
        assert tree(visit.root) == (AFTER if status == "applied" else BEFORE)
        assert await outcome_of(visit, "apply_patch", patch=REWRITE, operation_key="cut off") == status
