"""What a dead daemon left unfinished is settled by the next one, from every recorded state."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
import trio

from codespace import limits
from codespace.drive import Step
from codespace.errors import Refusal
from codespace.gateway import audit
from codespace.gateway.database import connect
from codespace.gateway.ledger import Ledger
from codespace.testing import Bench, open_bench
from codespace.testing.site import tree

BEFORE_THE_FIRST_RENAME = ["planning", "snapshotting"]
BEHIND_IT = ["applying", "verifying", "restoring", "unknown"]
EXEC_STATES = {"spawning": "lost", "running": "lost", "draining": "lost", "unknown": "lost"}


def execute(database: str, sql: str, *values: Any) -> None:
    with sqlite3.connect(database) as db:
        db.execute(sql, values)
    db.close()


def insert(database: str, table: str, **row: Any) -> None:
    columns = ", ".join(row)
    execute(database, f"INSERT INTO {table} ({columns}) VALUES ({', '.join('?' * len(row))})", *row.values())


def leave_behind(
    bench: Bench,
    kind: str,
    state: str,
    *,
    root: str | None = None,
    approval_id: str | None = None,
    process_id: str | None = None,
) -> str:
    """Write what a daemon that was killed in `state` has in the database; return the operation's id."""
    database = bench.daemon.settings.database
    operation_id = f"op-{kind}-{state}"
    insert(
        database,
        "instances",
        id=f"inst-{kind}-{state}",
        pid=1,
        started_at=1.0,
        state_dir=bench.daemon.settings.state_dir,
        lock_path=os.path.join(bench.daemon.settings.state_dir, "no-such-lock"),
        roots="[]",
    )
    insert(
        database,
        "operations",
        id=operation_id,
        kind=kind,
        tool="apply_patch" if kind == "patch" else "exec_command",
        workspace_id="main",
        root=root or str(bench.root),
        operation_key=f"key {kind} {state}",
        fingerprint="f",
        state=state,
        instance_id=f"inst-{kind}-{state}",
        created_at=1.0,
        files="[]",
        changes="[]",
        approval_id=approval_id,
        process_id=process_id,
    )
    return operation_id


def recorded(bench: Bench, operation_id: str) -> str:
    """Return the state of an operation in the database, which tells of every directory's."""
    with connect(bench.daemon.settings.database) as db:
        return str(db.table("operations").get(operation_id)["state"])


def leave_resuming(bench: Bench, tool: str, instance_id: str) -> str:
    approval_id = f"appr-{tool}"
    insert(
        bench.daemon.settings.database,
        "holds",
        id=approval_id,
        tool=tool,
        workspace_id="main",
        fingerprint="f",
        state="resuming",
        body=json.dumps({"secret": "CANARY"}),
        shown="{}",
        caller="stdio",
        expires_at=1e12,
        created_at=1.0,
        instance_id=instance_id,
        root=str(bench.root),
    )
    return approval_id


@pytest.mark.parametrize("state", BEFORE_THE_FIRST_RENAME)
async def test_a_patch_that_was_cut_off_before_the_first_rename_is_rejected(state: str) -> None:
    async with open_bench(files={"a.txt": "a\n"}) as bench:
        await bench.stop()
        operation_id = leave_behind(bench, "patch", state)
        await bench.start()
        status = await bench.call("operation_status", operation_id=operation_id)
        assert status["status"] == status["outcome"]["details"]["status"] == "rejected"
        assert "finished_at" in status
        assert tree(bench.root) == {"a.txt": b"a\n"}


@pytest.mark.parametrize("state", BEHIND_IT)
async def test_behind_it_nothing_is_claimed_without_a_journal(state: str) -> None:
    async with open_bench(files={"a.txt": "a\n"}) as bench:
        await bench.stop()
        operation_id = leave_behind(bench, "patch", state)
        await bench.start()
        status = await bench.call("operation_status", operation_id=operation_id)
        assert status["status"] == "unknown"
        assert "finished_at" not in status
        assert tree(bench.root) == {"a.txt": b"a\n"}


@pytest.mark.parametrize(("state", "ends_as"), EXEC_STATES.items())
async def test_a_command_of_a_dead_daemon_is_lost_and_never_started_again(state: str, ends_as: str) -> None:
    async with open_bench() as bench:
        await bench.stop()
        operation_id = leave_behind(bench, "exec", state)
        await bench.start()
        status = await bench.call("operation_status", operation_id=operation_id)
        assert (status["status"], status["outcome"]) == (ends_as, {"termination": "lost"})
        assert (await bench.call("list_processes"))["processes"] == []


async def test_a_patch_of_a_root_that_is_not_registered_waits_until_it_is_back(tmp_path: Path) -> None:
    async with open_bench() as bench:
        await bench.stop()
        operation_id = leave_behind(bench, "patch", "planning", root=str(tmp_path))
        await bench.start()
        assert recorded(bench, operation_id) == "planning"
        await bench.stop()
        bench.site.add_workspace("back", root=tmp_path)
        await bench.start()
        assert (await bench.call("operation_status", operation_id=operation_id))["status"] == "rejected"


async def test_a_granted_command_that_was_being_started_is_ambiguous_and_its_body_is_gone() -> None:
    async with open_bench(approvals="confirm") as bench:
        await bench.stop()
        leave_behind(bench, "exec", "spawning")
        hold = leave_resuming(bench, "exec_command", "inst-exec-spawning")
        await bench.start()
        with pytest.raises(Refusal) as caught:
            await bench.call("operation_resume", approval_id=hold)
        assert caught.value.code == "APPROVAL_AMBIGUOUS"
        assert "was being started, or ran" in caught.value.message
        assert (await bench.call("approval_status", approval_id=hold))["state"] == "consumed"


async def test_a_granted_command_that_ran_when_its_daemon_died_is_told_so() -> None:
    async with open_bench(approvals="confirm") as bench:
        await bench.stop()
        operation_id = leave_behind(bench, "exec", "running", approval_id="appr-exec_command")
        execute(bench.daemon.settings.database, "UPDATE operations SET spool = '/nowhere'")
        hold = leave_resuming(bench, "exec_command", "inst-exec-running")
        await bench.start()
        with pytest.raises(Refusal, match="while the granted request ran; it is never started twice") as caught:
            await bench.call("operation_resume", approval_id=hold)
        assert (caught.value.code, caught.value.operation_id) == ("APPROVAL_AMBIGUOUS", operation_id)


async def test_what_a_daemon_leaves_that_dies_beside_a_living_one_does_not_wait_for_a_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "NEIGHBOURS_SECONDS", 0.02)
    async with open_bench(approvals="confirm") as bench:
        operation_id = leave_behind(bench, "exec", "running", approval_id="appr-exec_command")
        approval_id = leave_resuming(bench, "exec_command", "inst-exec-running")
        with trio.fail_after(30):
            while not ended(bench, "inst-exec-running"):
                await trio.lowlevel.checkpoint()
        assert (await bench.call("approval_status", approval_id=approval_id))["state"] == "consumed"
        assert (await bench.call("operation_status", operation_id=operation_id))["status"] == "lost"
        with pytest.raises(Refusal, match="APPROVAL_AMBIGUOUS"):
            await bench.call("operation_resume", approval_id=approval_id)


async def test_what_a_dead_neighbour_left_and_cannot_be_settled_is_tried_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "NEIGHBOURS_SECONDS", 0.02)
    async with open_bench() as bench:
        with structlog.testing.capture_logs() as log:
            leave_behind(bench, "patch", "applying", root=str(tmp_path / "not-registered"))
            leave_behind(bench, "exec", "running")
            with trio.fail_after(30):
                while not ended(bench, "inst-exec-running"):
                    await trio.lowlevel.checkpoint()
            leave_behind(bench, "exec", "spawning")
            with trio.fail_after(30):
                while not ended(bench, "inst-exec-spawning"):
                    await trio.lowlevel.checkpoint()
        assert not ended(bench, "inst-patch-applying")
        waits = [entry for entry in log if entry["event"] == "a patch waits for its root to be registered again"]
        assert len(waits) == 1


async def test_what_a_dead_neighbour_left_is_tried_again_where_the_database_did_not_take_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    apply, away = Ledger.apply, [Refusal("STORE_UNAVAILABLE", "It is full.", details={"outcome": "nothing"})]

    async def full_once(self: Ledger, steps: Sequence[Step]) -> None:
        if away:
            raise away.pop()
        await apply(self, steps)

    monkeypatch.setattr(limits, "NEIGHBOURS_SECONDS", 0.02)
    async with open_bench() as bench:
        monkeypatch.setattr(Ledger, "apply", full_once)
        operation_id = leave_behind(bench, "exec", "running")
        with trio.fail_after(30):
            while not ended(bench, "inst-exec-running"):
                await trio.lowlevel.checkpoint()
        assert (away, recorded(bench, operation_id)) == ([], "lost")


def ended(bench: Bench, instance_id: str) -> bool:
    with connect(bench.daemon.settings.database) as db:
        (at,) = db.execute("SELECT ended_at FROM instances WHERE id = ?", (instance_id,)).fetchone()
    return at is not None


async def test_a_granted_patch_that_was_being_applied_gets_the_end_of_its_operation() -> None:
    async with open_bench(approvals="confirm") as bench:
        await bench.stop()
        leave_behind(bench, "patch", "planning", approval_id="appr-apply_patch")
        hold = leave_resuming(bench, "apply_patch", "inst-patch-planning")
        await bench.start()
        with pytest.raises(Refusal) as caught:
            await bench.call("operation_resume", approval_id=hold)
        assert caught.value.operation_id == "op-patch-planning"
        assert caught.value.details is not None
        assert caught.value.details["status"] == "rejected"


async def test_a_granted_patch_that_was_not_begun_says_that_nothing_was_written() -> None:
    async with open_bench(approvals="confirm") as bench:
        await bench.stop()
        leave_behind(bench, "exec", "spawning")  # its daemon is dead, and the patch has no row
        hold = leave_resuming(bench, "apply_patch", "inst-exec-spawning")
        await bench.start()
        with pytest.raises(Refusal, match="before the granted patch was begun; nothing was written") as caught:
            await bench.call("operation_resume", approval_id=hold)
        assert caught.value.code == "TIMEOUT"
        assert (await bench.call("approval_status", approval_id=hold))["state"] == "consumed"


async def test_a_living_daemons_work_is_left_alone() -> None:
    async with open_bench(files={"a.txt": "a\n"}) as bench:
        running = await bench.call("exec_command", command=["sleep", "1000"], wait_seconds=0)
        other = open_bench(environ={"CODESPACE_OPERATIONS_DB": bench.daemon.settings.database})
        async with other as second:
            assert recorded(second, running["operation_id"]) == "running"
        await bench.call("terminate_process", process_id=running["process_id"])


async def test_what_recovery_writes_is_in_the_chain() -> None:
    async with open_bench() as bench:
        await bench.stop()
        operation_id = leave_behind(bench, "patch", "planning")
        await bench.start()
        events = (await bench.call("operation_status", operation_id=operation_id))["events"]
        assert [event["event"] for event in events] == ["refused"]
        with connect(bench.daemon.settings.database) as db:
            assert audit.verify(db).ok


@pytest.mark.parametrize("name", ["inst-exec-running.lock", "another.txt"])
async def test_the_lock_file_of_a_dead_daemon_goes_with_its_last_operation_and_no_other_file_does(name: str) -> None:
    async with open_bench() as bench:
        await bench.stop()
        leave_behind(bench, "exec", "running")
        left = Path(bench.daemon.settings.state_dir, "instances", name)
        left.write_bytes(b"")
        with connect(bench.daemon.settings.database) as db:
            db.execute("UPDATE instances SET lock_path = ? WHERE id = 'inst-exec-running'", (str(left),))
        await bench.start()
        assert ended(bench, "inst-exec-running")
        assert left.exists() == (name == "another.txt")


class Hung:
    """A directory of another daemon that does not answer; `looks` counts the threads that wait in it."""

    def __init__(self) -> None:
        self.looks = threading.Semaphore(0)
        self._let_go = threading.Event()
        self._reach = os.open

    def reach(self, path: str, flags: int, *rest: int, **named: int) -> int:
        if str(path).endswith("no-such-lock"):
            self.looks.release()
            assert self._let_go.wait(60)
        return self._reach(path, flags, *rest, **named)

    def let_go(self) -> None:
        self._let_go.set()


@pytest.fixture
def hung(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hung]:
    directory = Hung()
    monkeypatch.setattr(os, "open", directory.reach)
    yield directory
    directory.let_go()


async def test_a_directory_of_another_daemon_that_does_not_answer_keeps_neither_a_start_nor_a_stop(
    monkeypatch: pytest.MonkeyPatch, hung: Hung
) -> None:
    monkeypatch.setattr(limits, "RECOVERY_SECONDS", 0.2)
    monkeypatch.setattr(limits, "NEIGHBOURS_SECONDS", 0.2)
    async with open_bench(sandbox=False) as bench:
        leave_behind(bench, "patch", "planning")
        try:
            with trio.fail_after(40):
                await bench.restart()
                for _ in range(2):  # at the start, and as it looks for neighbours
                    assert await trio.to_thread.run_sync(hung.looks.acquire, True, 30)
                await bench.stop()
        finally:
            hung.let_go()
        await bench.start()


async def test_a_command_of_a_daemon_whose_directory_does_not_answer_is_told_as_running_and_asked_for_once(
    monkeypatch: pytest.MonkeyPatch, hung: Hung
) -> None:
    monkeypatch.setattr(limits, "LOCK_SECONDS", 0.2)
    async with open_bench(sandbox=False) as bench:
        try:
            leave_behind(bench, "exec", "running", process_id="proc-1")
            with trio.fail_after(40):
                for _ in range(20):
                    (told,) = (await bench.call("list_processes"))["processes"]
                    assert (told["process_id"], told["state"]) == ("proc-1", "running")
            assert hung.looks.acquire(timeout=30)
            assert not hung.looks.acquire(blocking=False)
        finally:
            hung.let_go()


async def test_a_start_that_cannot_be_recorded_leaves_no_lock_behind() -> None:
    async with open_bench() as bench:
        await bench.stop()
        database = bench.daemon.settings.database
        execute(database, "CREATE TRIGGER no BEFORE INSERT ON instances BEGIN SELECT raise(ABORT, 'no'); END")
        with pytest.raises(sqlite3.IntegrityError):
            await bench.start()
        assert os.listdir(os.path.join(bench.daemon.settings.state_dir, "instances")) == []
        execute(database, "DROP TRIGGER no")
        await bench.start()
