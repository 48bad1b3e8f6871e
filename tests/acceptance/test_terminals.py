"""Interactive programs and lasting output through the installed daemon, at each door."""

from __future__ import annotations

import re

import pytest
import trio

from codespace.errors import Refusal
from codespace.testing import processes
from codespace.testing.door import Door
from codespace.testing.installed import Visit
from codespace.testing.wire import Wire

from ..spooled import kept_bytes

PYTHON = ["python3", "-q"]


async def until(visit: Visit, process_id: str, *texts: str, cursor: int = 0) -> tuple[str, int]:
    """Return the output from `cursor` on once all `texts` are in it, one behind the other, and where it ends."""
    seen = ""
    wanted = re.compile(".*".join(map(re.escape, texts)), re.DOTALL)
    with trio.fail_after(60):
        while not wanted.search(seen):
            chunk = await visit.call("read_process", process_id=process_id, cursor=cursor, wait_seconds=10)
            seen, cursor = seen + chunk["chunk"], chunk["cursor"]
            assert not chunk["eof"] or wanted.search(seen), seen
    return seen, cursor


async def test_a_repl_is_driven_by_typing_and_resized_and_ended_by_its_own_key(visit: Visit) -> None:
    info = await visit.call("workspace_info")
    assert info["execution"]["process"]["capabilities"]["tty"]["supported"] is True
    started = await visit.call("exec_command", command=PYTHON, tty=True, rows=30, cols=100, wait_seconds=0)
    process_id = started["process_id"]
    _, cursor = await until(visit, process_id, ">>> ")
    question = "import os; print('size', *os.get_terminal_size(0))\r"
    await visit.call("write_stdin", process_id=process_id, data=question)
    _, cursor = await until(visit, process_id, "size 100 30", cursor=cursor)
    resized = await visit.call("resize_process", process_id=process_id, rows=40, cols=120)
    assert (resized["rows"], resized["cols"]) == (40, 120)
    await visit.call("write_stdin", process_id=process_id, data=question)
    # Its own key is one only where it is asked for at the prompt: before, the terminal is not yet the program's.
    await until(visit, process_id, "size 120 40", ">>> ", cursor=cursor)
    await visit.call("write_stdin", process_id=process_id, data="", eof=True)
    ended = await visit.call("read_process", process_id=process_id, cursor=10**6, wait_seconds=30)
    assert (ended["state"], ended["exit_code"], ended["termination"]) == ("exited", 0, "exited")
    assert ended["resources"]["max_memory_bytes"] > 1_000_000


async def test_ctrl_c_reaches_the_program_in_front(visit: Visit) -> None:
    script = "trap 'echo caught; exit 5' INT; echo ready; while :; do sleep 600 & wait $!; done"
    started = await visit.call("exec_command", command=["sh", "-c", script], tty=True, wait_seconds=0)
    await until(visit, started["process_id"], "ready")
    await visit.call("write_stdin", process_id=started["process_id"], data="\x03")
    text, _ = await until(visit, started["process_id"], "caught")
    ended = await visit.call("read_process", process_id=started["process_id"], cursor=10**6, wait_seconds=30)
    assert ended["exit_code"] == 5, text


async def test_a_command_without_a_terminal_refuses_another_size(visit: Visit) -> None:
    started = await visit.call("exec_command", command=["sleep", "600"], wait_seconds=0)
    with pytest.raises(Refusal) as caught:
        await visit.call("resize_process", process_id=started["process_id"], rows=40, cols=120)
    assert caught.value.code == "INVALID_ARGUMENT"
    await visit.call("terminate_process", process_id=started["process_id"], grace_seconds=0)


async def test_output_far_over_the_ring_is_read_back_whole(visit: Visit) -> None:
    ran = await visit.call("exec_command", command=["seq", "200000"], wait_seconds=50)
    text, cursor, eof = "", 0, False
    while not eof:
        chunk = await visit.call("read_process", process_id=ran["process_id"], cursor=cursor)
        assert chunk["output_lost"] == chunk["retained_from"] == 0
        text, cursor, eof = text + chunk["chunk"], chunk["cursor"], chunk["eof"]
    assert text == "".join(f"{number}\n" for number in range(1, 200_001))


async def test_what_a_command_wrote_is_there_after_its_daemon_was_killed(stdio_door: Door) -> None:
    door = stdio_door
    command = ["sh", "-c", "seq 100000; exec sleep 1000"]
    written = "".join(f"{number}\r\n" for number in range(1, 100_001))
    with Wire(door.site) as wire:
        arguments = {"workspace_id": door.workspace_id(), "command": command, "tty": True, "operation_key": "kept"}
        wire.call("exec_command", **arguments, wait_seconds=0)
        with trio.fail_after(60):
            while kept_bytes(door.site.state) < len(written):  # noqa: ASYNC110 - files of another process
                await trio.sleep(0.01)
            tree = frozenset[int]()
            while not any("sleep 1000" in processes.command_line(pid) for pid in tree):
                await trio.sleep(0.01)
                tree = processes.descendants(wire.process.pid)
        wire.process.kill()
        with trio.fail_after(60):
            await processes.wait_gone(tree)

    async with door.visit() as visit:
        status = await visit.call("operation_status", operation_key="kept")
        assert status["status"] == "lost"
        process_id = status["process_id"]
        state = await visit.call("process_status", process_id=process_id)
        assert (state["state"], state["termination"]) == ("exited", "lost")
        text, _ = await until(visit, process_id, "\r\n100000\r\n")
        assert text == written
        assert process_id in [each["process_id"] for each in (await visit.call("list_processes"))["processes"]]
