"""Processes of other daemons on the same database, of dead ones, and those that memory let go of."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from codespace import limits
from codespace.errors import Refusal
from codespace.gateway import elsewhere, processes
from codespace.runner.inprocess import open_runner
from codespace.testing import Bench, open_bench
from codespace.testing.bench import Bench as Daemon
from codespace.testing.site import Site


@asynccontextmanager
async def beside(bench: Bench, site: Site | None = None) -> AsyncIterator[Daemon]:
    """Run a second daemon on the same folders."""
    async with trio.open_nursery() as nursery:
        other = Daemon(site or bench.site, "legacy", nursery, open_runner)
        await other.start()
        try:
            yield other
        finally:
            # Protects the stop of the second daemon, which has limits.STOP_SECONDS for itself.
            with trio.CancelScope(shield=True, deadline=trio.current_time() + limits.STOP_SECONDS + 60):
                await other.stop()


async def refused(code: str, bench: Bench, tool: str, **arguments: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        await bench.call(tool, **arguments)
    assert caught.value.code == code, caught.value
    return caught.value


async def spooled(bench: Bench, process_id: str, text: str) -> str:
    """Return the output that another daemon reads, once `text` is in it."""
    seen, cursor = "", 0
    with trio.fail_after(60):
        while text not in seen:
            chunk = await bench.call("read_process", process_id=process_id, cursor=cursor, wait_seconds=10)
            seen, cursor = seen + chunk["chunk"], chunk["cursor"]
    return seen


async def test_any_daemon_lists_reads_and_ends_a_process_of_another() -> None:
    async with open_bench() as bench, beside(bench) as other:
        script = "echo one; read line; echo two"
        started = await bench.call("exec_command", command=["sh", "-c", script], open_stdin=True, wait_seconds=0)
        process_id = started["process_id"]
        assert await spooled(other, process_id, "one\n") == "one\n"
        (listed,) = (await other.call("list_processes"))["processes"]
        assert (listed["process_id"], listed["state"]) == (process_id, "running")
        assert "Another daemon" in listed["notes"][0]
        assert (await other.call("process_status", process_id=process_id))["state"] == "running"
        ended = await other.call("terminate_process", process_id=process_id, grace_seconds=1)
        assert (ended["state"], ended["termination"]) == ("exited", "terminated")
        own = await bench.call("process_status", process_id=process_id)
        assert own["termination"] == "terminated"


async def test_a_process_of_another_daemon_is_listed_however_many_commands_came_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "LIST_ROWS", 2)
    async with open_bench(occupancy="shared") as bench, beside(bench) as other:
        lives = await bench.call("exec_command", command=["sleep", "600"], wait_seconds=0)
        behind = [await bench.call("exec_command", command=["true"]) for _ in range(3)]
        listed = (await other.call("list_processes"))["processes"]
        assert [(each["process_id"], each["state"]) for each in listed] == [
            (lives["process_id"], "running"),
            *((each["process_id"], "exited") for each in reversed(behind[1:])),
        ]


async def test_a_reader_at_another_daemon_is_woken_by_new_output_and_by_the_end() -> None:
    async with open_bench() as bench, beside(bench) as other:
        started = await bench.call("exec_command", command=["cat"], open_stdin=True, wait_seconds=0)
        process_id = started["process_id"]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(spooled, other, process_id, "typed later")
            await bench.call("write_stdin", process_id=process_id, data="typed later")
        await bench.call("write_stdin", process_id=process_id, data="", eof=True)
        with trio.fail_after(60):
            chunk = await other.call("read_process", process_id=process_id, cursor=11, wait_seconds=50)
        assert (chunk["state"], chunk["exit_code"], chunk["eof"], chunk["chunk"]) == ("exited", 0, True, "")


async def test_only_the_owner_can_write_to_a_process_or_resize_it() -> None:
    async with open_bench() as bench, beside(bench) as other:
        started = await bench.call("exec_command", command=["cat"], tty=True, wait_seconds=0)
        process_id = started["process_id"]
        for tool, arguments in (("write_stdin", {"data": "x"}), ("resize_process", {"rows": 10, "cols": 10})):
            assert (
                "Another daemon"
                in (await refused("PROCESS_NOT_FOUND", other, tool, process_id=process_id, **arguments)).message
            )
        await bench.call("terminate_process", process_id=process_id)
        said = await refused("PROCESS_EXITED", other, "write_stdin", process_id=process_id, data="x")
        assert (said.details or {})["termination"] == "terminated"


async def test_a_process_in_a_root_that_is_not_registered_here_is_not_told_of(tmp_path: Path) -> None:
    async with open_bench() as bench:
        strange = Site(tmp_path)
        strange.add_workspace("main")
        strange.extra_environ["CODESPACE_OPERATIONS_DB"] = bench.daemon.settings.database
        async with beside(bench, strange) as other:
            started = await bench.call("exec_command", command=["echo", "x"])
            await refused("PROCESS_NOT_FOUND", other, "read_process", process_id=started["process_id"])
            assert (await other.call("list_processes"))["processes"] == []


async def test_a_hold_of_another_directory_with_the_same_id_is_neither_shown_nor_decided_here(tmp_path: Path) -> None:
    async with open_bench(approvals="confirm") as bench:
        strange = Site(tmp_path)
        strange.add_workspace("main", approvals="confirm")
        strange.extra_environ["CODESPACE_OPERATIONS_DB"] = bench.daemon.settings.database
        async with beside(bench, strange) as other:
            patch = "*** Begin Patch\n*** Add File: a.txt\n+CANARY\n*** End Patch\n"
            hold = (await refused("APPROVAL_REQUIRED", bench, "apply_patch", patch=patch)).approval_id
            for tool, more in (
                ("approval_status", {}),
                ("approval_resolve", {"decision": "grant"}),
                ("operation_resume", {}),
            ):
                said = await refused("APPROVAL_CONFLICT", other, tool, approval_id=hold, **more)
                assert "CANARY" not in str(said.body())
            assert (await bench.call("approval_status", approval_id=hold))["state"] == "pending"


async def test_a_read_only_registration_reads_and_does_not_end(tmp_path: Path) -> None:
    async with open_bench() as bench:
        site = Site(tmp_path)
        site.add_workspace("main", root=bench.root, profile="read-only")
        site.extra_environ["CODESPACE_OPERATIONS_DB"] = bench.daemon.settings.database
        async with beside(bench, site) as other:
            started = await bench.call("exec_command", command=["sleep", "600"], wait_seconds=0)
            await refused("UNAUTHORIZED", other, "terminate_process", process_id=started["process_id"])
            assert (await other.call("process_status", process_id=started["process_id"]))["state"] == "running"


async def test_output_and_exit_record_stay_readable_after_a_restart() -> None:
    async with open_bench() as bench:
        script = "seq 100000; echo err >&2; exit 3"
        first = await bench.call("exec_command", command=["sh", "-c", script])
        await bench.restart()
        status = await bench.call("process_status", process_id=first["process_id"])
        for name in ("exit_code", "started_at", "ended_at", "resources", "termination"):
            assert status[name] == first[name]
        text, cursor, eof = "", 0, False
        while not eof:
            chunk = await bench.call("read_process", process_id=first["process_id"], cursor=cursor, stream="stdout")
            text, cursor, eof = text + chunk["chunk"], chunk["cursor"], chunk["eof"]
        assert text == "".join(f"{number}\n" for number in range(1, 100_001))
        assert [each["process_id"] for each in (await bench.call("list_processes"))["processes"]] == [
            first["process_id"]
        ]


async def test_output_that_is_on_the_disk_no_more_is_told_as_lost_after_a_restart() -> None:
    async with open_bench() as bench:
        script = "seq 900000"  # more than one segment
        first = await bench.call("exec_command", command=["sh", "-c", script], wait_seconds=50)
        total = first["output_total"]
        await bench.restart()
        head, *rest = sorted(bench.site.state.glob("spool/*/*/*"))
        for segment in rest:
            segment.unlink()
        got, lost, cursor, eof = 0, 0, 0, False
        while not eof:
            chunk = await bench.call("read_process", process_id=first["process_id"], cursor=cursor)
            got, lost = got + len(chunk["chunk"]), lost + chunk["output_lost"]
            cursor, eof = chunk["cursor"], chunk["eof"]
        assert 0 < got < total
        assert (got + lost, cursor) == (total, total)
        head.unlink()
        chunk = await bench.call("read_process", process_id=first["process_id"], cursor=5)
        assert (chunk["chunk"], chunk["output_lost"], chunk["cursor"], chunk["eof"]) == ("", total - 5, total, True)


async def test_past_its_retention_a_process_is_not_found_and_its_end_still_is() -> None:
    async with open_bench(options={"retention_seconds": 60}) as bench:
        first = await bench.call("exec_command", command=["echo", "x"])
        await bench.restart()
        bench.advance(61)
        said = await refused("PROCESS_NOT_FOUND", bench, "read_process", process_id=first["process_id"])
        assert "operation_status" in said.next_step
        status = await bench.call("operation_status", operation_id=said.operation_id)
        assert status["outcome"]["exit_code"] == 0
        assert (await bench.call("list_processes"))["processes"] == []


@pytest.mark.parametrize("restart", [False, True], ids=["one daemon", "the next daemon"])
async def test_past_its_retention_a_key_repeats_how_the_process_ended_and_counts_its_output_as_lost(
    restart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RETAINED_PROCESSES", 1)
    async with open_bench(options={"retention_seconds": 60}) as bench:
        asked = {"command": ["sh", "-c", "echo x; exit 7"], "operation_key": "once"}
        first = await bench.call("exec_command", **asked)
        await bench.call("exec_command", command=["true"])  # memory lets go of the first
        bench.advance(61)
        if restart:
            await bench.restart()
        again = await bench.call("exec_command", **asked)
        for name in ("process_id", "operation_id", "exit_code", "termination", "sandbox", "network", "output_total"):
            assert again[name] == first[name], name
        assert (again["replayed"], again["dispatch_status"]) == (True, "confirmed")
        assert (again["chunk"], again["eof"], again["cursor"], again["output_lost"]) == ("", True, 2, 2)
        assert again["notes"] == [
            "It ended more than 60 seconds ago: how it ended is recorded, its output is not kept any more.",
            "Its operation_key repeats this end: to run it again, send it with a new one.",
        ]
        said = await refused("PROCESS_NOT_FOUND", bench, "read_process", process_id=first["process_id"])
        assert "more than 60 seconds ago" in said.message


async def test_a_command_that_its_daemons_stop_ended_says_so_and_its_key_says_how_to_run_it_again() -> None:
    async with open_bench() as bench:
        asked = {"command": ["sleep", "1000"], "operation_key": "once", "wait_seconds": 0}
        started = await bench.call("exec_command", **asked)
        assert not [note for note in started["notes"] if "operation_key" in note]
        await bench.restart()
        again = await bench.call("exec_command", **asked)
        assert (again["termination"], again["replayed"]) == ("terminated", True)
        assert again["notes"] == [elsewhere.STOPPED, processes.KEPT]
        assert (await bench.call("process_status", process_id=started["process_id"]))["notes"] == [elsewhere.STOPPED]
        asked["operation_key"] = "again"
        ended = await bench.call("exec_command", **asked)
        await bench.call("terminate_process", process_id=ended["process_id"], grace_seconds=0)
        bench.advance(60)
        await bench.restart()  # long after: the stop was not what ended it
        assert (await bench.call("exec_command", **asked))["notes"] == [processes.KEPT]


async def test_what_memory_lets_go_of_is_read_from_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RETAINED_PROCESSES", 2)
    async with open_bench() as bench:
        ids = [(await bench.call("exec_command", command=["echo", str(number)]))["process_id"] for number in range(5)]
        for number, process_id in enumerate(ids):
            chunk = await bench.call("read_process", process_id=process_id)
            assert (chunk["chunk"], chunk["exit_code"], chunk["eof"]) == (f"{number}\n", 0, True)
