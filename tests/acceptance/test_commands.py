"""Commands through the installed command: results, output by cursor, time limits, endings, occupancy."""

from __future__ import annotations

import base64
import secrets
from typing import Any

import pytest
import trio

from codespace.errors import Refusal
from codespace.testing import processes
from codespace.testing.door import Door
from codespace.testing.installed import Visit

PATCH = "*** Begin Patch\n*** Add File: new.txt\n+new\n*** End Patch\n"
NUMBERS = "".join(f"{number}\n" for number in range(1, 5001))


async def read_all(visit: Visit, process_id: str, **options: Any) -> tuple[str, int]:
    """Return everything from cursor 0 on until eof, and how many bytes were lost on the way."""
    text, lost, cursor = "", 0, 0
    while True:
        chunk = await visit.call("read_process", process_id=process_id, cursor=cursor, wait_seconds=20, **options)
        text += chunk["chunk"]
        lost += chunk["output_lost"]
        assert chunk["cursor"] >= cursor
        cursor = chunk["cursor"]
        if chunk["eof"]:
            return text, lost


async def start_sleeper(visit: Visit) -> tuple[str, list[int]]:
    """Start a command that would live for ever, with a child that left its session; return its pids."""
    seconds = f"1000.{secrets.randbelow(10**12):012}"
    script = f"setsid sleep {seconds} & echo $! ; echo $$; exec sleep {seconds}"
    started = await visit.call("exec_command", command=["sh", "-c", script], wait_seconds=0)
    assert started["state"] == "running"
    text, cursor = "", 0
    while text.count("\n") < 2:
        chunk = await visit.call("read_process", process_id=started["process_id"], cursor=cursor, wait_seconds=20)
        text, cursor = text + chunk["chunk"], chunk["cursor"]
        assert not chunk["eof"], text
    while len(pids := processes.of_command(f"sleep {seconds}")) < 2:  # both have spoken, one may not be `sleep` yet
        await trio.lowlevel.checkpoint()
    return started["process_id"], pids


async def test_one_byte_that_is_no_utf8_leaves_all_other_output_readable(visit: Visit) -> None:
    script = r"seq 1500; printf 'caf\351.c\n'; seq 1500"
    ran = await visit.call("exec_command", command=["sh", "-c", script])
    again = await visit.call("read_process", process_id=ran["process_id"], encoding="text")
    lines = "".join(f"{number}\n" for number in range(1, 1501))
    for told in (ran, again):
        assert (told["encoding"], told["chunk"], told["eof"]) == ("text", f"{lines}caf\ufffd.c\n{lines}", True)
        assert [note for note in told["notes"] if note.startswith("1 byte of this output is no UTF-8")], told["notes"]
    exact = await visit.call("read_process", process_id=ran["process_id"], encoding="base64")
    assert base64.b64decode(exact["chunk"]) == f"{lines}caf\xe9.c\n{lines}".encode("latin-1")


async def test_a_short_command_is_one_call_and_its_streams_are_kept_apart(visit: Visit) -> None:
    ran = await visit.call("exec_command", command=["sh", "-c", "echo out; echo err >&2; pwd"])
    assert ran["process_id"].startswith("proc-")
    assert ran["operation_id"].startswith("op-")
    assert (ran["dispatch_status"], ran["state"], ran["exit_code"]) == ("confirmed", "exited", 0)
    assert (ran["termination"], ran["eof"], ran["output_lost"]) == ("exited", True, 0)
    assert "out\n" in ran["chunk"]
    assert "err\n" in ran["chunk"]
    assert str(visit.root) in ran["chunk"]
    assert ran["ended_at"] is not None
    only = await visit.call("read_process", process_id=ran["process_id"], stream="stderr")
    assert (only["chunk"], only["eof"]) == ("err\n", True)
    only = await visit.call("read_process", process_id=ran["process_id"], stream="stdout", cursor=4)
    assert only["chunk"] == f"{visit.root}\n"


async def test_a_failing_command_is_a_result_and_not_an_error(visit: Visit) -> None:
    ran = await visit.call("exec_command", command=["sh", "-c", "echo no >&2; exit 3"])
    assert (ran["state"], ran["exit_code"], ran["termination"]) == ("exited", 3, "exited")
    assert "no\n" in ran["chunk"]
    status = await visit.call("operation_status", operation_id=ran["operation_id"])
    assert (status["kind"], status["status"], status["process_id"]) == ("exec", "exited", ran["process_id"])

    killed = await visit.call("exec_command", command=["sh", "-c", "kill -9 $$"])
    assert (killed["state"], killed["signal"]) == ("exited", "SIGKILL")
    assert killed.get("exit_code") is None


async def test_a_program_that_does_not_exist_is_a_refusal_and_starts_nothing(visit: Visit) -> None:
    with pytest.raises(Refusal) as caught:
        await visit.call("exec_command", command=["no-such-program-anywhere"])
    assert caught.value.code == "PROCESS_SPAWN_FAILED"
    assert "no-such-program-anywhere" in caught.value.message


async def test_output_is_collected_by_cursor_and_readers_do_not_steal(visit: Visit) -> None:
    ran = await visit.call("exec_command", command=["seq", "1", "5000"])
    assert await read_all(visit, ran["process_id"], limit_bytes=1000) == (NUMBERS, 0)
    assert await read_all(visit, ran["process_id"], stream="stdout") == (NUMBERS, 0)
    chunk = await visit.call("read_process", process_id=ran["process_id"], cursor=2, limit_bytes=4, encoding="base64")
    assert (base64.b64decode(chunk["chunk"]), chunk["cursor"], chunk["eof"]) == (b"2\n3\n", 6, False)
    assert chunk["output_total"] == len(NUMBERS)


async def test_characters_are_never_split_by_a_small_limit(visit: Visit) -> None:
    ran = await visit.call("exec_command", command=["printf", "%s", "日本語ñ€🐢" * 20])
    assert await read_all(visit, ran["process_id"], limit_bytes=5) == ("日本語ñ€🐢" * 20, 0)


async def test_an_oversized_log_is_bounded_and_its_loss_is_counted(visit: Visit) -> None:
    script = "head -c 3000000 /dev/zero | tr '\\0' x; echo; echo the end"
    ran = await visit.call("exec_command", command=["sh", "-c", script], wait_seconds=20)
    assert (ran["state"], ran["exit_code"]) == ("exited", 0)
    total = 3_000_000 + len("\nthe end\n")
    last = await visit.call("read_process", process_id=ran["process_id"])
    assert last["output_total"] == total
    assert last["output_lost"] == last["retained_from"]
    text, lost = await read_all(visit, ran["process_id"])
    assert text.endswith("\nthe end\n")
    assert len(text) + lost == total
    assert last["retained_from"] < total - 200_000


async def test_a_long_command_is_polled_and_terminated_with_its_whole_tree(visit: Visit) -> None:
    process_id, pids = await start_sleeper(visit)
    assert all(processes.is_alive(pid) for pid in pids)
    live = await visit.call("list_processes")
    assert process_id in str(live)
    ended = await visit.call("terminate_process", process_id=process_id, grace_seconds=1)
    assert (ended["state"], ended["termination"]) == ("exited", "terminated")
    assert not any(processes.is_alive(pid) for pid in pids)
    status = await visit.call("process_status", process_id=process_id)
    assert (status["state"], status["termination"]) == ("exited", "terminated")
    after = await visit.call("read_process", process_id=process_id)
    assert after["eof"] is True


async def test_a_command_over_its_time_limit_is_ended_and_says_so(visit: Visit) -> None:
    ran = await visit.call("exec_command", command=["sleep", "1000"], timeout_seconds=0.3, wait_seconds=20)
    assert (ran["state"], ran["termination"]) == ("exited", "timeout")


async def test_input_goes_in_whole_or_piece_by_piece(visit: Visit) -> None:
    ran = await visit.call("exec_command", command=["cat"], stdin="all at once\n")
    assert (ran["chunk"], ran["exit_code"]) == ("all at once\n", 0)
    silent = await visit.call("exec_command", command=["cat"])
    assert (silent["chunk"], silent["exit_code"]) == ("", 0)

    started = await visit.call("exec_command", command=["cat"], open_stdin=True, wait_seconds=0)
    process_id = started["process_id"]
    assert (await visit.call("write_stdin", process_id=process_id, data="one\n"))["bytes_written"] == 4
    first = await visit.call("read_process", process_id=process_id, wait_seconds=20)
    assert first["chunk"] == "one\n"
    encoded = base64.b64encode(b"\xfftwo").decode()
    await visit.call("write_stdin", process_id=process_id, data=encoded, encoding="base64", eof=True)
    rest = await visit.call(
        "read_process", process_id=process_id, cursor=first["cursor"], wait_seconds=20, encoding="base64"
    )
    assert base64.b64decode(rest["chunk"]) == b"\xfftwo"
    await read_all(visit, process_id)
    with pytest.raises(Refusal) as caught:
        await visit.call("write_stdin", process_id=process_id, data="late")
    assert caught.value.code == "PROCESS_EXITED"


async def test_the_environment_is_clean_and_loader_variables_are_refused(visit: Visit) -> None:
    ran = await visit.call("exec_command", command=["env"], env={"MINE": "yes"})
    names = {line.partition("=")[0] for line in ran["chunk"].splitlines()}
    assert "MINE" in names
    assert {"PATH", "HOME", "LANG"} <= names
    assert not {name for name in names if name.startswith("CODESPACE")}
    home = next(line for line in ran["chunk"].splitlines() if line.startswith("HOME="))
    assert home != f"HOME={visit.site.home}"
    for name in ("LD_PRELOAD", "PYTHONSTARTUP", "BASH_ENV", "SSH_AUTH_SOCK"):
        with pytest.raises(Refusal) as caught:
            await visit.call("exec_command", command=["env"], env={name: "/tmp/x"})
        assert caught.value.code == "INVALID_COMMAND"
        assert name in caught.value.message


async def test_while_a_command_lives_patches_are_busy_and_reads_go_on(visit: Visit) -> None:
    (visit.root / "file.txt").write_text("text\n")
    process_id, _ = await start_sleeper(visit)
    with pytest.raises(Refusal) as caught:
        await visit.call("apply_patch", patch=PATCH)
    busy = caught.value
    assert (busy.code, busy.retryable) == ("WORKSPACE_BUSY", True)
    assert process_id in str(busy.details)
    assert any("since" in name for name in busy.details or {})
    assert "terminate_process" in busy.next_step
    with pytest.raises(Refusal) as caught:
        await visit.call("exec_command", command=["/bin/true"])
    assert caught.value.code == "WORKSPACE_BUSY"

    assert (await visit.call("read", path="file.txt"))["content"] == "text\n"
    assert (await visit.call("find"))["paths"] == ["file.txt"]
    assert len((await visit.call("search", pattern="text"))["matches"]) == 1
    assert (await visit.call("apply_patch", patch=PATCH, check_only=True))["status"] == "checked"
    assert not (visit.root / "new.txt").exists()

    await visit.call("terminate_process", process_id=process_id)
    assert (await visit.call("apply_patch", patch=PATCH))["status"] == "applied"


async def test_a_shared_workspace_patches_while_a_command_lives(door: Door) -> None:
    async with door.visit("shared") as visit:
        process_id, _ = await start_sleeper(visit)
        assert (await visit.call("apply_patch", patch=PATCH))["status"] == "applied"
        assert (await visit.call("exec_command", command=["cat", "new.txt"]))["chunk"] == "new\n"
        assert (await visit.call("process_status", process_id=process_id))["state"] == "running"
        await visit.call("terminate_process", process_id=process_id)


async def test_a_cancelled_wait_leaves_the_command_running(visit: Visit) -> None:
    process_id, pids = await start_sleeper(visit)
    cursor = (await visit.call("process_status", process_id=process_id))["output_total"]
    assert isinstance(cursor, int)
    with trio.move_on_after(0.2) as waiting:
        await visit.call("read_process", process_id=process_id, cursor=cursor, wait_seconds=50)
    assert waiting.cancelled_caught
    assert (await visit.call("process_status", process_id=process_id))["state"] == "running"
    assert (await visit.call("terminate_process", process_id=process_id))["termination"] == "terminated"
    assert not any(processes.is_alive(pid) for pid in pids)
