"""A commit that hangs in the disk and lands when all have given it up: no row that it wrote stays without an end."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import structlog.testing
import trio
from sqlite_utils import Database

from codespace import limits
from codespace.drive import UNKNOWN
from codespace.errors import Refusal
from codespace.gateway import audit
from codespace.gateway.database import connect
from codespace.gateway.recovery import Leftovers
from codespace.testing import Bench, open_bench
from codespace.testing.site import tree

OLD = {"a.txt": b"old a\n"}
PATCH = "*** Begin Patch\n*** Update File: a.txt\n@@\n-old a\n+new a\n*** End Patch\n"
FREE = "*** Begin Patch\n*** Add File: free.txt\n+free\n*** End Patch\n"
FINAL = {"applied", "rejected", "failed_rolled_back", "failed_partial", "exited", "spawn_failed", "lost"}


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give a commit up soon after it hangs, and try again soon."""
    for name, seconds in (("STORE_GRACE", 0.1), ("LOOK", 0.2), ("RECORD_RETRY", 0.02)):
        monkeypatch.setattr(limits, f"{name}_SECONDS", seconds)
    with structlog.testing.capture_logs():
        yield


class Late(Database):
    """A database in which the commit behind one event hangs until it is let go."""

    def __init__(self, connection: sqlite3.Connection, event: str) -> None:
        super().__init__(connection)
        self.event: str | None = event
        self.leave = threading.Event()

    def execute(self, sql: str, parameters: object = None) -> sqlite3.Cursor:
        if sql == "COMMIT" and self.event is not None:
            (last,) = super().execute("SELECT event FROM events ORDER BY seq DESC LIMIT 1").fetchone()
            if last == self.event:
                self.event = None
                assert self.leave.wait(60)
        return super().execute(sql, parameters)  # type: ignore[arg-type]


def hang_at(bench: Bench, event: str, monkeypatch: pytest.MonkeyPatch) -> Late:
    monkeypatch.setattr(limits, "STORE_WAIT_SECONDS", 2.0)
    lane = bench.daemon.tools._ledger._store._writer  # type: ignore[attr-defined]
    lane.db = Late(lane.db.conn, event)
    return lane.db  # type: ignore[no-any-return]


async def let_go(bench: Bench, late: Late, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the commit land once the daemon has looked for what is left, as it does at once.

    From then on no commit hangs: none is given up for being slow.
    """
    assert late.event is None
    leftovers: Leftovers = bench.daemon.tools._patching._left_over.__self__  # type: ignore[attr-defined]
    with trio.move_on_after(1):
        await leftovers.wait_none()
    monkeypatch.setattr(limits, "STORE_WAIT_SECONDS", 60.0)
    late.leave.set()


async def refusal(bench: Bench, tool: str, **arguments: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        await bench.call(tool, **arguments)
    return caught.value


async def final(bench: Bench) -> str:
    status: dict[str, Any] = {"status": "not looked for yet"}
    with trio.move_on_after(60):
        while status["status"] not in FINAL:
            with contextlib.suppress(Refusal):  # until it has landed there is no such operation
                status = await bench.call("operation_status", operation_key="k")
    return str(status["status"])


@pytest.mark.parametrize(
    ("event", "tool", "arguments", "end"),
    [
        ("planned", "apply_patch", {"patch": PATCH}, "rejected"),
        ("staged", "apply_patch", {"patch": PATCH}, "failed_rolled_back"),
        ("start_ordered", "exec_command", {"command": ["true"]}, "spawn_failed"),
    ],
)
async def test_an_operation_whose_step_was_given_up_and_landed_all_the_same_gets_its_end(
    event: str, tool: str, arguments: dict[str, Any], end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_bench(files={"a.txt": "old a\n"}) as bench:
        late = hang_at(bench, event, monkeypatch)
        told = await refusal(bench, tool, **arguments, operation_key="k")
        assert (told.code, (told.details or {})["outcome"]) == ("STORE_UNAVAILABLE", UNKNOWN)
        await let_go(bench, late, monkeypatch)
        assert await final(bench) == end
        assert tree(bench.root) == OLD
        assert (await bench.call("apply_patch", patch=FREE))["status"] == "applied"
        with connect(bench.daemon.settings.database) as db:
            assert audit.verify(db).ok


async def test_a_command_whose_row_was_given_up_and_landed_is_told_at_every_moment_as_not_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = {"command": ["touch", "made"], "operation_key": "k"}
    async with open_bench() as bench:
        late = hang_at(bench, "start_ordered", monkeypatch)
        for _ in range(2):  # while the commit hangs, the key is not taken for a process
            told = await refusal(bench, "exec_command", **command)
            assert (told.code, (told.details or {})["outcome"]) == ("STORE_UNAVAILABLE", UNKNOWN)
            assert (await bench.call("list_processes"))["processes"] == []
        await let_go(bench, late, monkeypatch)
        assert await final(bench) == "spawn_failed"
        again = await refusal(bench, "exec_command", **command)
        assert (again.code, again.retryable) == ("STORE_UNAVAILABLE", False)
        assert "nothing was started" in again.message
        assert "use a new one to try again" in (again.next_step or "")
        assert (await bench.call("list_processes"))["processes"] == []
        assert tree(bench.root) == {}
        assert (await bench.call("exec_command", command=["true"]))["exit_code"] == 0


async def test_a_command_whose_start_was_given_up_and_landed_all_the_same_is_recorded_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_bench() as bench:
        late = hang_at(bench, "started", monkeypatch)
        ran = await bench.call("exec_command", command=["sh", "-c", "exit 3"], operation_key="k", wait_seconds=50)
        assert ran["exit_code"] == 3
        await let_go(bench, late, monkeypatch)
        assert await final(bench) == "exited"


async def test_a_hold_whose_use_was_given_up_and_landed_all_the_same_gets_its_grant_back_and_runs_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_bench(files={"a.txt": "old a\n"}, approvals="confirm") as bench:
        hold = (await refusal(bench, "apply_patch", patch=PATCH)).approval_id
        await bench.call("approval_resolve", approval_id=hold, decision="grant")
        late = hang_at(bench, "resume_begun", monkeypatch)
        told = await refusal(bench, "operation_resume", approval_id=hold)
        assert (told.code, told.details) == ("STORE_UNAVAILABLE", {"outcome": UNKNOWN})
        again = await refusal(bench, "operation_resume", approval_id=hold)
        assert again.code == "STORE_UNAVAILABLE"  # while it is not known, nothing is begun
        await let_go(bench, late, monkeypatch)
        with trio.fail_after(60):
            while (await bench.call("approval_status", approval_id=hold))["state"] != "granted" or not _is_free(bench):
                await trio.lowlevel.checkpoint()
        assert tree(bench.root) == OLD
        ran = await bench.call("operation_resume", approval_id=hold)
        assert (ran["state"], ran["apply_patch"]["replayed"]) == ("consumed", False)
        assert tree(bench.root) == {"a.txt": b"new a\n"}


def _is_free(bench: Bench) -> bool:
    return not bench.daemon.tools._holds._running  # type: ignore[attr-defined]


def _states(bench: Bench) -> list[str]:
    with connect(bench.daemon.settings.database) as db:
        return [state for (state,) in db.execute("SELECT state FROM operations ORDER BY rowid")]


async def test_a_hold_is_settled_by_what_its_grant_was_used_for_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_bench(files={"a.txt": "old a\n"}, approvals="confirm") as bench:
        hold = (await refusal(bench, "apply_patch", patch=PATCH)).approval_id
        assert hold is not None
        await bench.call("approval_resolve", approval_id=hold, decision="grant")
        late = hang_at(bench, "planned", monkeypatch)
        assert (await refusal(bench, "operation_resume", approval_id=hold)).code == "STORE_UNAVAILABLE"
        await let_go(bench, late, monkeypatch)
        with trio.fail_after(60):
            while (await bench.call("approval_status", approval_id=hold))["state"] != "granted" or not _is_free(bench):
                await trio.lowlevel.checkpoint()
        ran = await bench.call("operation_resume", approval_id=hold)
        last = await bench.daemon.tools._ledger.by_approval(hold)  # type: ignore[attr-defined]
        assert (last.id, last.state) == (ran["apply_patch"]["operation_id"], "applied")
        with trio.fail_after(60):  # what the first use left waits while the second one has the root
            while _states(bench) != ["rejected", "applied"]:
                await trio.lowlevel.checkpoint()
