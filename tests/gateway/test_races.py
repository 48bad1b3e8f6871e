"""Callers that come at the same moment, leave in the middle, or ask for what the daemon is about to give up."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from codespace import limits
from codespace.contract import Caller
from codespace.daemon import open_daemon
from codespace.errors import Refusal
from codespace.gateway.hold import Hold
from codespace.gateway.holds import Holds
from codespace.gateway.instances import _held
from codespace.gateway.ledger import Ledger, Operation
from codespace.settings import load
from codespace.testing import Bench, open_bench
from codespace.testing.faulty import Faults
from codespace.testing.site import tree

FILES = {"log.txt": "first\n", "tool.sh": "echo ran >> ran.txt\n"}
APPEND = "*** Begin Patch\n*** Update File: log.txt\n@@\n+CANARY line\n*** End Patch\n"
TAMPER = (
    "*** Begin Patch\n*** Update File: tool.sh\n@@\n-echo ran >> ran.txt\n+echo tampered >> ran.txt\n*** End Patch\n"
)


@pytest.fixture(autouse=True)
def _patiently(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a request wait behind a patch for as long as a slow machine takes for that."""
    monkeypatch.setattr(limits, "PATCH_WAIT_SECONDS", 60.0)


async def answer(bench: Bench, called: str, /, **arguments: Any) -> tuple[str, dict[str, Any]]:
    """Return ("ok", result) or (code, error body)."""
    try:
        return "ok", await bench.call(called, **arguments)
    except Refusal as refusal:
        return refusal.code, refusal.body()


async def at_once(*calls: Callable[[], Awaitable[Any]]) -> list[Any]:
    """Run calls side by side and return what each gave, in order."""
    given: list[Any] = [None] * len(calls)

    async def one(number: int) -> None:
        given[number] = await calls[number]()

    async with trio.open_nursery() as nursery:
        for number in range(len(calls)):
            nursery.start_soon(one, number)
    return given


class Gatekeeper:
    """A fault that only waits: the test sees that a verb was reached, and lets it go on."""

    def __init__(self) -> None:
        self.reached = trio.Event()
        self.go_on = trio.Event()

    async def __call__(self) -> None:
        self.reached.set()
        await self.go_on.wait()


async def run_patch(bench: Bench, patch: str, key: str | None = None) -> dict[str, Any]:
    """Call the gate itself, so that a cancel reaches it at once."""
    return await bench.daemon.tools.apply_patch(
        Caller("memory"),
        workspace_id="main",
        patch=patch,
        expected_versions=None,
        operation_key=key,
        check_only=False,
        work_id=None,
    )


async def run_command(bench: Bench, caller: Caller, **arguments: Any) -> dict[str, Any]:
    filled: dict[str, Any] = {
        "workspace_id": "main",
        "cwd": ".",
        "env": None,
        "stdin": None,
        "open_stdin": False,
        "timeout_seconds": None,
        "wait_seconds": 0.0,
        "operation_key": None,
        "work_id": None,
    }
    taken = bench.daemon.tools.exec_command.__code__.co_varnames
    extra = {name: value for name, value in {"tty": False, "rows": 24, "cols": 80}.items() if name in taken}
    return await bench.daemon.tools.exec_command(caller, **(filled | extra | arguments))


@pytest.mark.parametrize("key", [None, "k"])
async def test_the_same_request_sent_several_times_at_once_is_held_once(key: str | None) -> None:
    async with open_bench(files=FILES, approvals="confirm") as bench:
        named = {} if key is None else {"operation_key": key}
        answers = await at_once(*[lambda: answer(bench, "apply_patch", patch=APPEND, **named)] * 4)
        assert [code for code, _ in answers] == ["APPROVAL_REQUIRED"] * 4
        assert len({body["approval_id"] for _, body in answers}) == 1


async def test_two_requests_that_take_one_key_at_once_are_one_hold_and_one_conflict() -> None:
    async with open_bench(files=FILES, approvals="confirm") as bench:
        answers = await at_once(
            lambda: answer(bench, "apply_patch", patch=APPEND, operation_key="k"),
            lambda: answer(bench, "apply_patch", patch=TAMPER, operation_key="k"),
        )
        assert sorted(code for code, _ in answers) == ["APPROVAL_REQUIRED", "OPERATION_KEY_CONFLICT"]


async def test_a_hold_that_expires_under_several_looks_is_expired_to_each_of_them() -> None:
    async with open_bench(files=FILES, approvals="confirm", options={"approval_expiry_seconds": 60}) as bench:
        _, body = await answer(bench, "apply_patch", patch=APPEND)
        bench.advance(61)
        looks = [lambda: answer(bench, "approval_status", approval_id=body["approval_id"])] * 4
        for code, status in await at_once(*looks):
            assert (code, status["state"], status["reason"]) == ("ok", "denied", "expired")


async def test_a_wait_for_a_decision_sees_one_that_another_program_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DECISION_LOOK_SECONDS", 0.02)
    async with open_bench(files=FILES, approvals="confirm") as bench:
        _, body = await answer(bench, "apply_patch", patch=APPEND)

        async def wait() -> str:
            waited = await bench.call("approval_status", approval_id=body["approval_id"], wait_seconds=50)
            return str(waited["state"])

        async def grant() -> None:
            await trio.testing.wait_all_tasks_blocked(0.005)
            with sqlite3.connect(bench.daemon.settings.database) as db:
                db.execute("UPDATE holds SET state = 'granted'")
            db.close()

        with trio.fail_after(60):
            assert (await at_once(wait, grant))[0] == "granted"


async def test_one_key_sent_twice_at_once_to_an_exclusive_workspace_starts_one_process_for_both() -> None:
    async with open_bench(files=FILES) as bench:
        call = {"command": ["sh", "tool.sh"], "operation_key": "k"}
        answers = await at_once(*[lambda: answer(bench, "exec_command", **call)] * 4)
        assert [code for code, _ in answers] == ["ok"] * 4
        assert sorted(body["replayed"] for _, body in answers) == [False, True, True, True]
        assert tree(bench.root)["ran.txt"] == b"ran\n"


async def test_a_patch_goes_on_while_somebody_still_waits_for_it() -> None:
    faults, gate = Faults(), Gatekeeper()
    async with open_bench(files=FILES, runner=faults.open_runner) as bench:
        faults.order("before", "stage", gate)
        given: list[dict[str, Any]] = []
        first = trio.CancelScope()

        async def leave() -> None:
            with first:
                await run_patch(bench, APPEND, "k")

        async def stay() -> None:
            given.append(await run_patch(bench, APPEND, "k"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(leave)
            await gate.reached.wait()
            nursery.start_soon(stay)
            await trio.testing.wait_all_tasks_blocked(0.01)
            first.cancel()
            await trio.testing.wait_all_tasks_blocked(0.01)
            gate.go_on.set()
        assert (given[0]["status"], given[0]["replayed"]) == ("applied", True)


async def test_a_command_whose_caller_left_while_it_waited_for_the_root_is_not_started() -> None:
    faults, gate = Faults(), Gatekeeper()
    async with open_bench(files=FILES, runner=faults.open_runner) as bench:
        faults.order("before", "install", gate)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_patch, bench, APPEND)
            await gate.reached.wait()
            with trio.move_on_after(0.1):
                await run_command(bench, Caller("memory"), command=["touch", "never"], operation_key="k")
            gate.go_on.set()
        assert (await answer(bench, "operation_status", operation_key="k"))[0] == "OPERATION_NOT_FOUND"
        assert (await bench.call("exec_command", command=["true"]))["exit_code"] == 0
        assert "never" not in tree(bench.root)


async def test_a_replay_waits_as_long_as_it_asks_and_not_as_the_first_call_did() -> None:
    async with open_bench() as bench:
        call = {"command": ["sleep", "1000"], "operation_key": "k"}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: bench.call("exec_command", wait_seconds=50, **call))
            while not (await bench.call("list_processes"))["processes"]:
                await trio.lowlevel.checkpoint()
            with trio.fail_after(60):
                again = await bench.call("exec_command", wait_seconds=0, **call)
            assert (again["state"], again["replayed"]) == ("running", True)
            await bench.call("terminate_process", process_id=again["process_id"])


async def test_a_client_that_takes_no_progress_still_gets_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PROGRESS_INTERVAL_SECONDS", 0.01)
    tried = 0

    async def progress(seconds: float, message: str) -> None:
        nonlocal tried
        tried += 1
        raise trio.BrokenResourceError

    async with open_bench() as bench:
        caller = Caller("memory", progress=progress)
        ended = await run_command(bench, caller, command=["sleep", "0.1"], wait_seconds=10.0)
    assert (ended["exit_code"], tried) == (0, 1)


async def test_more_commands_than_are_retained_keep_the_workspace_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RETAINED_PROCESSES", 3)
    async with open_bench() as bench:
        for number in range(8):
            assert (await bench.call("exec_command", command=["sh", "-c", f"exit {number}"]))["exit_code"] == number
        listed = (await bench.call("list_processes"))["processes"]
        assert listed[0]["exit_code"] == 7
        execution: Any = bench.daemon.tools._admission._drivers["exec_command"]  # type: ignore[attr-defined]
        assert len(list(execution._runs)) <= 4  # what was forgotten by the runner is not kept here either


async def test_a_long_command_is_run_whole_and_listed_cut() -> None:
    async with open_bench() as bench:
        ended = await bench.call("exec_command", command=["sh", "-c", "echo ${#1} $#", "sh", "x" * 50_000, *"y" * 4000])
        assert ended["chunk"] == "50000 4001\n"
        (listed,) = (await bench.call("list_processes"))["processes"]
        assert listed["command"][:3] == ["sh", "-c", "echo ${#1} $#"]
        assert len(json.dumps(listed)) < 2 * limits.COMMAND_SHOWN_CHARACTERS


async def test_a_granted_command_is_compared_with_its_hold_once_nobody_else_can_change_it() -> None:
    faults, gate = Faults(), Gatekeeper()
    async with open_bench(files=FILES, approvals="confirm", runner=faults.open_runner) as bench:
        _, patch = await answer(bench, "apply_patch", patch=TAMPER)
        _, command = await answer(bench, "exec_command", command=["sh", "tool.sh"])
        for each in (patch, command):
            await bench.call("approval_resolve", approval_id=each["approval_id"], decision="grant")
        faults.order("before", "install", gate)

        async def run() -> tuple[str, dict[str, Any]]:
            await gate.reached.wait()
            return await answer(bench, "operation_resume", approval_id=command["approval_id"])

        async def let_go() -> None:
            await gate.reached.wait()
            await trio.testing.wait_all_tasks_blocked(0.05)
            gate.go_on.set()

        resumed = await at_once(
            lambda: answer(bench, "operation_resume", approval_id=patch["approval_id"]), run, let_go
        )
        assert (resumed[0][0], resumed[1][0]) == ("ok", "APPROVAL_CONFLICT")
        assert "ran.txt" not in tree(bench.root)


async def test_a_hold_that_is_given_back_and_resumed_again_while_leftovers_are_looked_for_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = Gatekeeper(), Gatekeeper()
    read, mint = Holds._all, Ledger.mint

    async def slow_mint(self: Ledger, *arguments: Any, **named: Any) -> None:
        if not first.reached.is_set():
            await first()
            raise Refusal("STORE_UNAVAILABLE", "The database was locked.", details={"outcome": "nothing"})
        await second()
        await mint(self, *arguments, **named)

    async with open_bench(files=FILES, approvals="confirm") as bench, trio.open_nursery() as nursery:
        _, body = await answer(bench, "apply_patch", patch=APPEND)
        hold = body["approval_id"]
        await bench.call("approval_resolve", approval_id=hold, decision="grant")
        answers: list[tuple[str, dict[str, Any]]] = []
        given = trio.Event()

        async def resume() -> None:
            answers.append(await answer(bench, "operation_resume", approval_id=hold))
            given.set()

        async def overtaken(self: Holds, where: str, value: Any) -> list[Hold]:
            found = await read(self, where, value)
            assert [each.id for each in found] == [hold]
            first.go_on.set()
            await given.wait()
            return found

        class SlowLedger:
            async def by_approval(self, approval_id: str) -> Operation | None:
                operation = await gate._ledger.by_approval(approval_id)
                nursery.start_soon(resume)
                await second.reached.wait()
                return operation  # type: ignore[no-any-return]

        gate: Any = bench.daemon.tools
        monkeypatch.setattr(Ledger, "mint", slow_mint)
        nursery.start_soon(resume)
        await first.reached.wait()
        with monkeypatch.context() as patched:
            patched.setattr(Holds, "_all", overtaken)
            assert await gate._holds.settle(gate._holds._instance_id, SlowLedger())
        second.go_on.set()
        await gate._holds.wait_idle()
        told = await bench.call("approval_status", approval_id=hold)
        assert (told["state"], told["result"]["ok"]["status"]) == ("consumed", "applied")
    assert [code for code, _ in answers] == ["STORE_UNAVAILABLE", "ok"]


async def test_a_request_that_the_stop_overtakes_before_it_entered_does_nothing() -> None:
    faults, gate = Faults(), Gatekeeper()
    async with open_bench(files=FILES, runner=faults.open_runner) as bench:
        faults.order("before", "command_sandbox", gate)

        async def send() -> tuple[str, dict[str, Any]]:
            return await answer(bench, "exec_command", command=["touch", "x"], operation_key="k")

        async def stop() -> None:
            await gate.reached.wait()
            bench.daemon.begin_stop()
            gate.go_on.set()

        assert (await at_once(send, stop))[0][0] == "SHUTTING_DOWN"
        await bench.restart()
        assert (await answer(bench, "operation_status", operation_key="k"))[0] == "OPERATION_NOT_FOUND"


async def test_a_patch_that_waits_for_the_root_when_the_stop_begins_does_nothing() -> None:
    faults, gate = Faults(), Gatekeeper()
    async with open_bench(files=FILES, runner=faults.open_runner) as bench:
        faults.order("before", "install", gate)

        async def second() -> tuple[str, dict[str, Any]]:
            await gate.reached.wait()
            return await answer(bench, "apply_patch", patch=APPEND)

        async def stop() -> None:
            await gate.reached.wait()
            await trio.testing.wait_all_tasks_blocked(0.05)
            bench.daemon.begin_stop()
            gate.go_on.set()

        answers = await at_once(lambda: answer(bench, "apply_patch", patch=TAMPER), second, stop)
        assert (answers[0][0], answers[1][0]) == ("ok", "SHUTTING_DOWN")
        assert tree(bench.root)["log.txt"] == b"first\n"


async def test_a_cancelled_daemon_still_records_how_its_commands_ended() -> None:
    async with open_bench() as bench:
        await bench.stop()
        settings = load(bench.site.environ)
        running = trio.Event()

        async def live(task_status: trio.TaskStatus[trio.CancelScope]) -> None:
            with trio.CancelScope() as scope:
                async with open_daemon(settings) as bench.daemon:
                    task_status.started(scope)
                    await run_command(bench, Caller("memory"), command=["sleep", "1000"], operation_key="k")
                    running.set()
                    await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            scope = await nursery.start(live)
            await running.wait()
            scope.cancel()
        await bench.start()
        status = await bench.call("operation_status", operation_key="k")
        assert (status["status"], status["outcome"]["termination"]) == ("exited", "terminated")


async def test_a_decided_holds_body_is_gone_from_the_log_too() -> None:
    async with open_bench(files=FILES, approvals="confirm") as bench:
        _, body = await answer(bench, "apply_patch", patch=APPEND)
        await bench.call("approval_resolve", approval_id=body["approval_id"], decision="deny")
        database = bench.daemon.settings.database
        with trio.fail_after(60):
            while any(b"CANARY" in Path(database + end).read_bytes() for end in ("", "-wal")):
                await trio.lowlevel.checkpoint()


async def test_a_diff_that_cannot_be_shown_whole_is_not_held() -> None:
    async with open_bench(files=FILES, approvals="confirm") as bench:
        lines = "".join(f"+{number:070}\n" for number in range(2000))
        patch = f"*** Begin Patch\n*** Add File: big.txt\n{lines}*** End Patch\n"
        code, body = await answer(bench, "apply_patch", patch=patch)
        assert (code, "approval_id" in body) == ("LIMIT_REACHED", False)


async def test_reading_many_files_ends_in_time_and_says_which_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_bench(files=FILES) as bench:
        monkeypatch.setattr(limits, "READ_MANY_SECONDS", 0.0)
        first, second = (await bench.call("read_many", paths=["log.txt", "tool.sh"]))["entries"]
        assert (first["content"], second["error"]["code"]) == ("first\n", "TIMEOUT")


async def test_a_preview_cannot_be_held() -> None:
    async with open_bench(files=FILES, approvals="confirm") as bench:
        arguments = {"patch": APPEND, "check_only": True}
        code, body = await answer(bench, "approval_create", tool="apply_patch", arguments=arguments)
        assert (code, body["details"]["argument"]) == ("INVALID_ARGUMENT", "arguments.check_only")


async def test_what_is_recorded_is_told_also_where_the_files_cannot_be_seen() -> None:
    async with open_bench(files=FILES) as bench:
        done = await bench.call("apply_patch", patch=APPEND, operation_key="k")
        bench.root.rename(bench.root.with_name("away"))
        status = await bench.call("operation_status", operation_id=done["operation_id"])
        assert (status["status"], status.get("still_current")) == ("applied", None)


async def test_what_is_recorded_of_a_directory_is_not_told_of_another_that_has_its_id_by_now() -> None:
    async with open_bench(files=FILES) as bench:
        done = await bench.call("apply_patch", patch=APPEND, operation_key="k")
        await bench.stop()
        other = bench.site.folder / "roots" / "other"
        other.mkdir()
        bench.site.workspaces["main"]["root"] = str(other)
        bench.site.write()
        await bench.start()
        for named in ({"operation_id": done["operation_id"]}, {"operation_key": "k"}):
            assert (await answer(bench, "operation_status", **named))[0] == "OPERATION_NOT_FOUND"
        with pytest.raises(Refusal) as caught:  # "applied" would be said of a directory that never was patched
            await bench.call("apply_patch", patch=APPEND, operation_key="k")
        assert (caught.value.code, caught.value.operation_id) == ("OPERATION_KEY_CONFLICT", done["operation_id"])
        assert tree(other) == {}


def test_a_lock_that_cannot_be_looked_at_counts_as_held(tmp_path: Path) -> None:
    os.symlink(tmp_path / "nowhere", tmp_path / "a.lock")
    assert _held(str(tmp_path / "a.lock"))
    assert not _held(str(tmp_path / "none.lock"))
