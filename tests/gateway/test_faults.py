"""A runner that crashes or hangs, a database that is away: each answer is still true, each row still gets its end."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
import trio
from sqlite_utils import Database

from codespace import limits
from codespace.drive import UNKNOWN, Step
from codespace.errors import Refusal
from codespace.gateway import audit
from codespace.gateway.database import connect
from codespace.gateway.holds import Holds
from codespace.gateway.ledger import Ledger, Operation
from codespace.testing import Bench, open_bench
from codespace.testing.faulty import Act, Faults, When, crash, hang
from codespace.testing.site import tree

BEFORE = {"a.txt": "old a\n", "gone.txt": "x\n"}
PATCH = (
    "*** Begin Patch\n*** Update File: a.txt\n@@\n-old a\n+new a\n*** Delete File: gone.txt\n"
    "*** Add File: deep/b.txt\n+b\n*** End Patch\n"
)
OLD = {"a.txt": b"old a\n", "gone.txt": b"x\n"}
AFTER = {"a.txt": b"new a\n", "deep/b.txt": b"b\n"}
FREE = "*** Begin Patch\n*** Add File: free.txt\n+free\n*** End Patch\n"
PATCH_VERBS = ("plan", "stage", "install", "verify", "finish")
FINAL = {"applied", "rejected", "failed_rolled_back", "failed_partial", "exited", "spawn_failed", "lost"}


@pytest.fixture(autouse=True)
def _quietly() -> Iterator[None]:
    """Keep the log: printing hundreds of ordered tracebacks takes longer than the plays."""
    with structlog.testing.capture_logs():
        yield


@pytest.fixture(autouse=True)
def _quickly(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Try again soon, and give up soon on a verb where one hangs; elsewhere a slow machine makes none be given up."""
    parameters = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    seconds = 3.0 if parameters.get("fault") is hang else 60.0
    monkeypatch.setattr(limits, "RECORD_RETRY_SECONDS", 0.02)
    monkeypatch.setattr(limits, "VERB_SECONDS", seconds)
    monkeypatch.setattr(limits, "TIDY_SECONDS", seconds)


@asynccontextmanager
async def bench_with(faults: Faults, **options: Any) -> AsyncIterator[Bench]:
    async with open_bench(files=BEFORE, runner=faults.open_runner, **options) as bench:
        yield bench
        with connect(bench.daemon.settings.database) as db:
            assert audit.verify(db).ok


async def answer(bench: Bench, tool: str = "apply_patch", **arguments: Any) -> tuple[str, dict[str, Any]]:
    """Return ("ok", result) or (code, error body)."""
    try:
        return "ok", await bench.call(tool, **arguments)
    except Refusal as refusal:
        return refusal.code, refusal.body()


async def final(bench: Bench, operation_id: str) -> dict[str, Any]:
    """Return the operation's status once it is final; the daemon sees to it while it lives."""
    with trio.fail_after(60):
        while True:
            status = await bench.call("operation_status", operation_id=operation_id)
            if status["status"] in FINAL:
                return status
            await trio.lowlevel.checkpoint()


async def database(bench: Bench, *, writable: bool) -> None:
    """Have SQLite itself refuse every write of this daemon, or take them again."""
    lane = bench.daemon.tools._ledger._store._writer  # type: ignore[attr-defined]
    await lane.run(lambda call: lane.db.execute(f"PRAGMA query_only = {'OFF' if writable else 'ON'}"))


def away(bench: Bench) -> Act:
    async def act() -> None:
        await database(bench, writable=False)

    return act


@pytest.mark.parametrize("fault", [crash, hang])
@pytest.mark.parametrize("verb", PATCH_VERBS)
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_runner_that_fails_in_any_verb_of_a_patch_leaves_a_whole_tree_a_free_root_and_a_true_row(
    when: When, verb: str, fault: Act
) -> None:
    faults = Faults()
    async with bench_with(faults) as bench:
        faults.order(when, verb, fault)
        code, body = await answer(bench, patch=PATCH, operation_key="k")
        assert faults.met == [(when, verb)]
        status = await final(bench, body["operation_id"])
        with trio.fail_after(60):
            while tree(bench.root) != (AFTER if status["status"] == "applied" else OLD):
                await trio.lowlevel.checkpoint()
        assert (code == "ok") == (status["status"] == "applied")
        if code != "ok":
            assert body["details"]["status"] == status["status"]
            assert (await answer(bench, patch=PATCH, operation_key="k"))[0] == code
        assert (await bench.call("apply_patch", patch=FREE))["status"] == "applied"


async def test_a_plan_that_cannot_be_dropped_holds_up_neither_its_answer_nor_a_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "FORGET_SECONDS", 0.1)
    faults = Faults()
    async with bench_with(faults) as bench:
        faults.order("before", "finish", hang)
        with trio.fail_after(limits.STOP_SECONDS):
            assert (await bench.call("apply_patch", patch=PATCH, check_only=True))["status"] == "checked"
        assert faults.met == [("before", "finish")]
        assert (await bench.call("apply_patch", patch=PATCH))["status"] == "applied"


@pytest.mark.parametrize("fault", [crash, hang])
async def test_where_nothing_can_be_seen_the_answer_is_unknown_and_the_daemon_settles_it_later(fault: Act) -> None:
    faults = Faults()
    async with bench_with(faults) as bench:
        faults.order("after", "install", crash)
        faults.order("before", "settle", fault)
        code, body = await answer(bench, patch=PATCH, operation_key="k")
        assert (code, body["details"]["status"]) == ("OUTCOME_UNKNOWN", "unknown")
        assert (await final(bench, body["operation_id"]))["status"] == "applied"
        assert tree(bench.root) == AFTER
        assert (await bench.call("apply_patch", patch=PATCH, operation_key="k"))["replayed"] is True


ON_TOP = "*** Begin Patch\n*** Update File: a.txt\n@@\n-new a\n+newer a\n*** End Patch\n"
NEWER = AFTER | {"a.txt": b"newer a\n"}


async def test_a_patch_on_top_of_one_whose_end_nobody_could_see_or_record_lets_that_one_be_settled_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "RECORD_RETRY_SECONDS", 1000.0)  # the next patch comes first
    faults = Faults()
    async with bench_with(faults) as bench:

        async def full() -> None:  # a disk, of which journal and database have no room
            await database(bench, writable=False)
            raise Refusal("FILE_OPERATION_FAILED", "No space left on device.")

        faults.order("before", "verify", full)
        faults.order("before", "settle", crash)
        code, body = await answer(bench, patch=PATCH)
        assert code == "OUTCOME_UNKNOWN"
        await database(bench, writable=True)
        assert (await bench.call("apply_patch", patch=ON_TOP))["status"] == "applied"
        assert (await bench.call("operation_status", operation_id=body["operation_id"]))["status"] == "applied"
        assert tree(bench.root) == NEWER


async def test_no_patch_is_made_on_top_of_one_that_a_passing_reason_keeps_from_being_settled_but_a_command_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def passing() -> None:
        raise Refusal("FILE_OPERATION_FAILED", "No space left on device.", retryable=True)

    monkeypatch.setattr(limits, "RECORD_RETRY_SECONDS", 1000.0)  # the next patch comes first
    faults = Faults()
    async with bench_with(faults) as bench:
        faults.order("before", "verify", passing)
        faults.order("before", "settle", passing)
        _, body = await answer(bench, patch=PATCH)
        for _ in range(2):
            faults.order("before", "settle", passing)
            assert (await bench.call("exec_command", command=["true"]))["exit_code"] == 0
            faults.order("before", "settle", passing)
            code, busy = await answer(bench, patch=ON_TOP)
            assert (code, busy["retryable"]) == ("WORKSPACE_BUSY", True)
            assert busy["details"]["operation_id"] == body["operation_id"]
            assert (bench.root / "a.txt").read_text() == "new a\n"
        assert (await bench.call("apply_patch", patch=ON_TOP))["status"] == "applied"
        assert (await bench.call("operation_status", operation_id=body["operation_id"]))["status"] == "applied"
        assert tree(bench.root) == NEWER


async def test_a_patch_whose_end_its_driver_still_records_is_left_to_it_by_who_comes_next() -> None:
    faults = Faults()
    async with bench_with(faults) as bench:
        faults.order("after", "stage", away(bench))
        _, body = await answer(bench, patch=PATCH)
        gate: Any = bench.daemon.tools
        assert body["operation_id"] in gate._patching.under_way
        lane = gate._ledger._store._writer
        lane.db.execute("PRAGMA query_only = OFF")
        assert (await bench.call("exec_command", command=["true"]))["exit_code"] == 0
        assert (await final(bench, body["operation_id"]))["outcome"]["code"] == "STORE_UNAVAILABLE"


async def test_a_fault_while_the_daemon_settles_what_it_left_ends_it_not_and_that_is_settled_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settle, faults = Holds.settle, Faults()
    async with bench_with(faults) as bench:

        async def fault(self: Holds, instance_id: str, ledger: Ledger) -> bool:
            monkeypatch.setattr(Holds, "settle", settle)
            return await crash()  # type: ignore[func-returns-value]

        monkeypatch.setattr(Holds, "settle", fault)
        faults.order("after", "install", crash)
        faults.order("before", "settle", crash)
        _, body = await answer(bench, patch=PATCH)
        assert (await final(bench, body["operation_id"]))["status"] == "applied"
        with trio.fail_after(60):
            while Holds.settle is fault:
                await trio.lowlevel.checkpoint()
        assert (await bench.call("apply_patch", patch=FREE))["status"] == "applied"


async def test_a_command_whose_end_waited_too_long_for_the_database_has_its_exit_code_in_the_ledger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    apply, slow = Ledger.apply, [trio.sleep_forever]

    async def too_slow(self: Ledger, steps: Sequence[Step]) -> None:
        if slow and steps[-1].event == "drained":
            monkeypatch.setattr(limits, "RECORD_SECONDS", 60.0)  # this one has its time already
            await slow.pop()()
        await apply(self, steps)

    async with bench_with(Faults()) as bench:
        monkeypatch.setattr(limits, "RECORD_SECONDS", 3.0)
        monkeypatch.setattr(Ledger, "apply", too_slow)
        ended = await bench.call("exec_command", command=["sh", "-c", "exit 3"], wait_seconds=50)
        assert ended["exit_code"] == 3
        status = await final(bench, ended["operation_id"])
        assert (status["status"], status["outcome"]["exit_code"]) == ("exited", 3)


async def test_a_database_that_goes_away_behind_the_plan_takes_no_key_and_the_patch_can_be_sent_again() -> None:
    faults = Faults()
    async with bench_with(faults) as bench:
        faults.order("after", "plan", away(bench))
        code, body = await answer(bench, patch=PATCH, operation_key="k")
        assert (code, body["details"]["outcome"]) == ("STORE_UNAVAILABLE", "nothing")
        assert tree(bench.root) == OLD
        await database(bench, writable=True)
        with pytest.raises(Refusal, match="OPERATION_NOT_FOUND"):
            await bench.call("operation_status", operation_key="k")
        done = await bench.call("apply_patch", patch=PATCH, operation_key="k")
        assert (done["status"], done["replayed"]) == ("applied", False)
        assert tree(bench.root) == AFTER


@pytest.mark.parametrize(
    ("tool", "arguments", "end"),
    [("apply_patch", {"patch": PATCH}, "rejected"), ("exec_command", {"command": ["true"]}, "spawn_failed")],
)
async def test_a_row_whose_commit_was_not_seen_to_end_gets_its_end_all_the_same(
    tool: str, arguments: dict[str, Any], end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mint = Ledger.mint

    async def unseen(self: Ledger, operation: Operation, *rest: Any, **named: Any) -> None:
        await mint(self, operation, *rest, **named)
        raise Refusal("STORE_UNAVAILABLE", "Whether it was written cannot be said.", details={"outcome": UNKNOWN})

    async with bench_with(Faults()) as bench:
        with monkeypatch.context() as patched:
            patched.setattr(Ledger, "mint", unseen)
            assert (await answer(bench, tool, **arguments, operation_key="k"))[0] == "STORE_UNAVAILABLE"
        with trio.fail_after(60):
            while (status := await bench.call("operation_status", operation_key="k"))["status"] not in FINAL:
                await trio.lowlevel.checkpoint()
        assert status["status"] == end
        assert tree(bench.root) == OLD
        assert (await bench.call("apply_patch", patch=FREE))["status"] == "applied"


@pytest.mark.parametrize("verb", ["stage", "install", "verify"])
async def test_an_answer_is_true_when_the_database_goes_away_behind_a_verb_and_the_row_follows(verb: str) -> None:
    faults = Faults()
    async with bench_with(faults) as bench:
        faults.order("after", verb, away(bench))
        code, body = await answer(bench, patch=PATCH, operation_key="k")
        assert code == "STORE_UNAVAILABLE"
        applied = verb in ("install", "verify")
        assert body["details"]["status"] == ("applied" if applied else "rejected")
        assert tree(bench.root) == (AFTER if applied else OLD)
        assert (await answer(bench, patch=PATCH, operation_key="k"))[1]["operation_id"] == body["operation_id"]
        await database(bench, writable=True)
        assert (await final(bench, body["operation_id"]))["status"] == ("applied" if applied else "rejected")
        assert (await bench.call("apply_patch", patch=FREE))["status"] == "applied"


async def test_a_patch_that_is_put_back_while_the_database_is_away_says_so_and_is_recorded_so() -> None:
    faults = Faults()
    async with bench_with(faults) as bench:

        async def third_party() -> None:
            Path(bench.root, "deep/b.txt").write_text("not what was written\n")
            Path(bench.root, "deep/b.txt").write_text("b\n")
            Path(bench.root, "a.txt").write_text("somebody else\n")
            await database(bench, writable=False)

        faults.order("after", "install", third_party)
        code, body = await answer(bench, patch=PATCH)
        assert (code, body["details"]["status"]) == ("PATCH_PARTIAL", "failed_partial")
        assert tree(bench.root) == {"a.txt": b"somebody else\n", "gone.txt": b"x\n"}
        await database(bench, writable=True)
        assert (await final(bench, body["operation_id"]))["status"] == "failed_partial"


async def test_a_database_that_stays_away_until_the_end_leaves_the_row_to_the_next_start() -> None:
    faults = Faults()
    async with bench_with(faults) as bench:
        faults.order("after", "install", away(bench))
        _, body = await answer(bench, patch=PATCH)
        await bench.restart()
        status = await bench.call("operation_status", operation_id=body["operation_id"])
        assert status["status"] == "applied"
        assert tree(bench.root) == AFTER


async def test_a_row_that_a_fault_left_is_settled_by_the_next_start_also_after_an_ordered_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "RECORD_RETRY_SECONDS", 1000.0)  # this daemon does not come to it
    faults = Faults()
    async with bench_with(faults) as bench:
        faults.order("after", "install", crash)
        faults.order("before", "settle", crash)
        _, body = await answer(bench, patch=PATCH)
        await bench.restart()
        status = await bench.call("operation_status", operation_id=body["operation_id"])
        assert status["status"] == "applied"
        assert tree(bench.root) == AFTER


@pytest.mark.parametrize("fault", [crash, hang])
@pytest.mark.parametrize(("when", "verb"), [("before", "spawn"), ("after", "spawn"), ("before", "wait_exit")])
async def test_a_runner_that_fails_to_run_a_command_leaves_no_process_a_free_root_and_a_row_with_an_end(
    when: When, verb: str, fault: Act
) -> None:
    if verb == "wait_exit" and fault is hang:
        return  # a wait for an end is as long as the command may take
    faults = Faults()
    async with bench_with(faults) as bench:
        faults.order(when, verb, fault)
        code, body = await answer(bench, "exec_command", command=["sleep", "1000"], operation_key="k", wait_seconds=0)
        assert code in ("INTERNAL", "ok")
        assert (await final(bench, body["operation_id"]))["status"] == "lost"
        assert all(each["state"] == "exited" for each in (await bench.call("list_processes"))["processes"])
        assert (await bench.call("exec_command", command=["true"]))["exit_code"] == 0


async def test_a_command_whose_end_the_runner_refuses_to_tell_has_an_end_in_the_ledger() -> None:
    async def forgotten() -> None:
        raise Refusal("PROCESS_NOT_FOUND", "It ended, and so many ended behind it that it is not kept any more.")

    faults = Faults()
    async with bench_with(faults) as bench:
        faults.order("before", "wait_exit", forgotten)
        _, body = await answer(bench, "exec_command", command=["sleep", "1000"], operation_key="k", wait_seconds=0)
        assert (await final(bench, body["operation_id"]))["status"] == "lost"
        assert (await bench.call("exec_command", command=["true"]))["exit_code"] == 0


async def test_a_command_is_followed_to_its_end_while_the_database_is_away() -> None:
    faults = Faults()
    async with bench_with(faults) as bench:
        faults.order("after", "spawn", away(bench))
        ended = await bench.call("exec_command", command=["sh", "-c", "echo out; exit 3"], operation_key="k")
        assert (ended["exit_code"], ended["chunk"], ended["state"]) == (3, "out\n", "exited")
        assert any("could not record" in note for note in ended["notes"])
        again = await bench.call("exec_command", command=["sh", "-c", "echo out; exit 3"], operation_key="k")
        assert (again["replayed"], again["process_id"]) == (True, ended["process_id"])
        await database(bench, writable=True)
        status = await final(bench, ended["operation_id"])
        assert (status["status"], status["outcome"]["exit_code"]) == ("exited", 3)


async def test_a_live_process_keeps_its_root_though_its_start_could_not_be_recorded() -> None:
    faults = Faults()
    async with bench_with(faults) as bench:
        faults.order("after", "spawn", away(bench))
        running = await bench.call("exec_command", command=["sleep", "1000"], wait_seconds=0)
        assert running["state"] == "running"
        await database(bench, writable=True)
        assert (await answer(bench, patch=FREE))[0] == "WORKSPACE_BUSY"
        await bench.call("terminate_process", process_id=running["process_id"])
        assert (await final(bench, running["operation_id"]))["outcome"]["termination"] == "terminated"


async def test_nothing_starts_and_no_key_is_burned_where_the_database_is_away_from_the_first() -> None:
    faults = Faults()
    async with bench_with(faults) as bench:
        await database(bench, writable=False)
        for tool, arguments in (("apply_patch", {"patch": PATCH}), ("exec_command", {"command": ["touch", "x"]})):
            code, body = await answer(bench, tool, operation_key=tool, **arguments)
            assert (code, "operation_id" in body) == ("STORE_UNAVAILABLE", False)
        assert tree(bench.root) == OLD
        await database(bench, writable=True)
        assert (await bench.call("exec_command", command=["touch", "x"], operation_key="exec_command"))[
            "exit_code"
        ] == 0


async def test_a_daemon_with_another_state_dir_settles_a_patch_from_the_journal_of_the_dead_one() -> None:
    faults = Faults()
    async with bench_with(faults) as bench:
        faults.order("after", "install", crash)
        faults.order("before", "settle", away(bench))
        _, body = await answer(bench, patch=PATCH)
        await bench.stop()
        shared = {"CODESPACE_OPERATIONS_DB": bench.daemon.settings.database}
        async with open_bench(workspace={"root": bench.root}, environ=shared) as successor:
            status = await successor.call("operation_status", operation_id=body["operation_id"])
            assert status["status"] == "applied"
            assert tree(bench.root) == AFTER
        await bench.start()


async def test_what_a_daemon_that_died_behind_the_record_left_set_aside_is_swept_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "RECORD_RETRY_SECONDS", 1000.0)  # this daemon does not come to it
    faults = Faults()
    async with bench_with(faults) as bench:
        faults.order("before", "finish", crash)
        assert (await bench.call("apply_patch", patch=PATCH))["status"] == "applied"
        assert tree(bench.root) != AFTER
        await database(bench, writable=False)  # so that its end is not recorded, as if it had been killed
        await bench.restart()
        assert tree(bench.root) == AFTER


@pytest.mark.parametrize("verb", ["install", "verify"])
async def test_a_hold_whose_run_outlived_the_database_is_consumed_once_it_is_back(verb: str) -> None:
    faults = Faults()
    async with bench_with(faults, approvals="confirm") as bench:
        _, body = await answer(bench, patch=PATCH)
        hold = body["approval_id"]
        await bench.call("approval_resolve", approval_id=hold, decision="grant")
        faults.order("after", verb, away(bench))
        code, body = await answer(bench, "operation_resume", approval_id=hold)
        assert (code, body["details"]["status"]) == ("STORE_UNAVAILABLE", "applied")
        assert tree(bench.root) == AFTER
        again = await answer(bench, "operation_resume", approval_id=hold)
        assert again[1]["operation_id"] == body["operation_id"]  # it ran once, whatever is recorded
        await database(bench, writable=True)
        with trio.fail_after(60):
            while (await bench.call("approval_status", approval_id=hold))["state"] != "consumed":
                await trio.lowlevel.checkpoint()


async def test_a_stop_with_a_hanging_verb_ends_in_time_and_the_next_start_settles_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "VERB_SECONDS", 1000.0)
    monkeypatch.setattr(limits, "STOP_SECONDS", 1.0)
    faults = Faults()
    async with bench_with(faults) as bench:
        installed = trio.Event()

        async def installed_and_hangs() -> None:
            installed.set()
            await hang()

        faults.order("after", "install", installed_and_hangs)
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                with pytest.raises(Exception):  # noqa: B017, PT011 - the client is gone before there is an answer
                    await bench.call("apply_patch", patch=PATCH, operation_key="k")

            nursery.start_soon(send)
            await installed.wait()
            with trio.fail_after(60):
                await bench.restart()
        assert (await bench.call("operation_status", operation_key="k"))["status"] == "applied"
        assert tree(bench.root) == AFTER


async def held_and_unsettled(bench: Bench, code: str) -> tuple[str, dict[str, Any]]:
    """Run a patch by its hold, have it answered with `code`, and settled; return hold and its status then."""
    _, body = await answer(bench, patch=PATCH)
    hold = body["approval_id"]
    await bench.call("approval_resolve", approval_id=hold, decision="grant")
    told, body = await answer(bench, "operation_resume", approval_id=hold)
    assert told == code
    await database(bench, writable=True)
    await final(bench, body["operation_id"])
    with trio.fail_after(60):
        while (status := await bench.call("approval_status", approval_id=hold))["state"] != "consumed":
            await trio.lowlevel.checkpoint()
    return hold, status


@pytest.mark.parametrize("code", ["STORE_UNAVAILABLE", "OUTCOME_UNKNOWN"])
async def test_a_hold_tells_that_its_patch_is_applied_though_its_run_could_not(code: str) -> None:
    faults = Faults()
    async with bench_with(faults, approvals="confirm") as bench:
        if code == "STORE_UNAVAILABLE":
            faults.order("after", "verify", away(bench))
        else:
            faults.order("after", "install", crash)
            faults.order("before", "settle", crash)
        hold, status = await held_and_unsettled(bench, code)
        assert status["result"]["ok"]["status"] == "applied"
        resumed = (await bench.call("operation_resume", approval_id=hold))["apply_patch"]
        assert (resumed["status"], resumed["replayed"], resumed["still_current"]) == ("applied", True, True)


async def test_a_hold_tells_that_its_patch_was_taken_back_though_its_run_could_not() -> None:
    faults = Faults()
    async with bench_with(faults, approvals="confirm") as bench:
        faults.order("before", "install", crash)
        faults.order("before", "settle", crash)
        hold, status = await held_and_unsettled(bench, "OUTCOME_UNKNOWN")
        assert status["result"]["refusal"]["code"] == "PATCH_ROLLED_BACK"
        code, body = await answer(bench, "operation_resume", approval_id=hold)
        assert (code, body["approval_id"]) == ("PATCH_ROLLED_BACK", hold)
        assert tree(bench.root) == OLD


class Blind(Database):
    """A reader that fails as long as one event is the last that is recorded."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__(connection, recursive_triggers=False)  # the lane's thread may be in a transaction of its own
        self.event: str | None = None

    def execute(self, sql: str, parameters: object = None) -> sqlite3.Cursor:
        if sql == "BEGIN":
            (last,) = super().execute("SELECT event FROM events ORDER BY seq DESC LIMIT 1").fetchone()
            if last == self.event:
                raise sqlite3.OperationalError("disk I/O error")
        return super().execute(sql, parameters)  # type: ignore[arg-type]


@asynccontextmanager
async def blinded(**options: Any) -> AsyncIterator[tuple[Bench, Callable[[str], AbstractContextManager[None]]]]:
    """Yield a bench, and what makes its daemon read nothing from one event on."""
    async with bench_with(Faults(), **options) as bench:
        lane = bench.daemon.tools._ledger._store._reader  # type: ignore[attr-defined]
        lane.db = reader = Blind(lane.db.conn)

        @contextmanager
        def behind(event: str) -> Iterator[None]:
            reader.event = event
            yield
            reader.event = None

        yield bench, behind


@pytest.mark.parametrize("decision", ["grant", "deny"])
async def test_a_decision_that_is_recorded_is_told_so_where_it_cannot_be_read_back(decision: str) -> None:
    async with blinded(approvals="operator") as (bench, behind):
        _, body = await answer(bench, patch=PATCH)
        operator = bench.daemon.operator
        recorded = {"grant": "grant_given", "deny": "grant_refused"}[decision]
        with behind(recorded):
            if decision == "grant":
                told, _ = await operator.grant(body["approval_id"], by="console")
            else:
                told = await operator.deny(body["approval_id"], by="console")
            with pytest.raises(Refusal, match="STORE_UNAVAILABLE"):
                await operator.hold(body["approval_id"])
        assert told == await operator.hold(body["approval_id"])


async def test_a_hold_that_is_placed_and_one_that_ran_are_told_so_where_they_cannot_be_read_back() -> None:
    async with blinded(approvals="confirm") as (bench, behind):
        with behind("held"):
            code, body = await answer(bench, patch=PATCH)
        assert code == "APPROVAL_REQUIRED"
        await bench.call("approval_resolve", approval_id=body["approval_id"], decision="grant")
        with behind("request_ended"):
            resumed = await bench.call("operation_resume", approval_id=body["approval_id"])
        assert resumed["apply_patch"]["status"] == "applied"
        assert tree(bench.root) == AFTER


async def test_what_a_work_records_is_told_where_it_cannot_be_read_back() -> None:
    async with blinded(options={"tools": ["work"]}) as (bench, behind):
        with behind("opened"):
            opened = await bench.call("work_open", title="build it")
        work_id = opened["work_id"]
        assert await bench.call("steer_status", work_id=work_id) == opened | {"state": "active"}
        inbox = bench.daemon.inbox
        drafted = await inbox.draft(
            work_id=work_id, text="use tabs", kind="follow_up", delivery="after_current_work", supersedes=None
        )
        await inbox.queue(intent_id=drafted["intent_id"], revision=None)
        with behind("taken"):
            claimed = await bench.call("steer_claim_next", work_id=work_id)
        assert (claimed["intent"]["text"], claimed["queued"], claimed["claimed"]) == ("use tabs", 0, 1)
        intent_id = claimed["intent"]["intent_id"]
        with behind("completed"):
            ended = await bench.call("steer_complete", work_id=work_id, intent_id=intent_id, outcome="done")
        assert (ended["intent"]["state"], ended["queued"], ended["claimed"]) == ("done", 0, 0)
