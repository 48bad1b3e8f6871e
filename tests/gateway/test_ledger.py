"""The ledger: one row an operation, moved only by steps that join up."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from sqlite_utils import Database

from codespace import limits
from codespace.drive import Motion, Stale
from codespace.gateway import audit
from codespace.gateway.audit import Audit
from codespace.gateway.ledger import KeyTaken, Ledger, Operation
from codespace.gateway.store import Store
from statemachines.approval import Approval
from statemachines.execution import Execution
from statemachines.patch import Patch

NOW = 1_700_000_000.5


@dataclasses.dataclass
class Bench:
    store: Store
    ledger: Ledger

    async def mint(self, **fields: Any) -> Operation:
        made = operation(**fields)
        await self.ledger.mint(made)
        return made

    async def hold(self, hold_id: str, state: str, key: str | None = None) -> Motion:
        row = {
            "id": hold_id,
            "tool": "apply_patch",
            "workspace_id": "w",
            "operation_key": key,
            "fingerprint": "print",
            "state": state,
            "body": '{"patch": "canary"}',
            "shown": "{}",
            "caller": "stdio",
            "expires_at": NOW + 900,
            "created_at": NOW,
            "instance_id": "inst-1",
        }
        await self.store.write(lambda db: db["holds"].insert(row).last_rowid)
        return Motion(Approval, hold_id, state, self.ledger.recorder("hold"))

    async def row(self, table: str, subject: str) -> Mapping[str, Any]:
        return await self.store.read(lambda db: dict(db[table].get(subject)))

    def patch(self, made: Operation) -> Motion:
        return Motion(Patch, made.id, made.state, self.ledger.recorder("operation"))


@asynccontextmanager
async def open_bench(path: Path | str, instance_id: str = "inst-1") -> AsyncIterator[Bench]:
    store = Store.open(str(path))
    try:
        yield Bench(store, Ledger(store, lambda: NOW, instance_id, Audit(lambda: NOW, instance_id)))
    finally:
        store.close()


def operation(**fields: Any) -> Operation:
    base = Operation("op-1", "patch", "apply_patch", "w", "/root", None, "print", "minted", "inst-1", NOW)
    return dataclasses.replace(base, **fields)


async def test_a_minted_operation_is_read_back_as_it_was_given() -> None:
    full = operation(
        kind="exec",
        operation_key="key",
        work_id="work-1",
        process_id="proc-1",
        files=("a", "ö", "\udcff"),
        changes=({"path": "a", "kind": "add"},),
        outcome={"exit_code": 3},
        approval_id="appr-1",
    )
    async with open_bench(":memory:") as bench:
        await bench.ledger.mint(full)
        assert await bench.ledger.get("op-1") == full
        assert await bench.ledger.by_key("key") == full
        assert await bench.ledger.by_process("proc-1") == full


async def test_what_is_not_there_is_none() -> None:
    async with open_bench(":memory:") as bench:
        assert await bench.ledger.get("op-1") is None
        assert await bench.ledger.by_key("key") is None
        assert await bench.ledger.by_process("proc-1") is None
        assert await bench.ledger.events("op-1") == ()
        assert await bench.ledger.recorder("operation").look("op-1") is None


async def test_minting_is_the_first_event_of_the_operation() -> None:
    async with open_bench(":memory:") as bench:
        await bench.mint()
        (event,) = await bench.ledger.events("op-1")
        assert (event.kind, event.event, event.source, event.target) == ("patch", "minted", None, "minted")
        assert (event.at, event.instance_id) == (NOW, "inst-1")
        assert event.details == {"tool": "apply_patch", "workspace_id": "w"}


async def test_a_key_names_one_operation_across_workspaces_and_kinds() -> None:
    async with open_bench(":memory:") as bench:
        first = await bench.mint(operation_key="key")
        with pytest.raises(KeyTaken) as caught:
            await bench.mint(id="op-2", kind="exec", workspace_id="elsewhere", operation_key="key")
        assert caught.value.existing == first
        assert await bench.ledger.get("op-2") is None
        assert await bench.ledger.events("op-2") == ()


async def test_operations_without_a_key_do_not_meet() -> None:
    async with open_bench(":memory:") as bench:
        await bench.mint()
        await bench.mint(id="op-2")
        assert len(await bench.ledger.list()) == 2


async def test_of_two_daemons_that_mint_one_key_at_once_exactly_one_wins(tmp_path: Path) -> None:
    path = tmp_path / "operations.sqlite"
    async with open_bench(path, "inst-1") as one, open_bench(path, "inst-2") as other:
        won, lost = list[str](), list[str]()

        async def mint(bench: Bench, operation_id: str, key: str) -> None:
            try:
                await bench.mint(id=operation_id, operation_key=key)
                won.append(operation_id)
            except KeyTaken as taken:
                lost.append(taken.existing.id)

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(mint, one, f"op-{number}-one", f"key-{number}")
                nursery.start_soon(mint, other, f"op-{number}-other", f"key-{number}")
        assert sorted(won) == sorted(lost)
        assert len(won) == 20
        assert (await one.store.read(audit.verify)).ok


async def test_a_step_moves_row_and_chain_together_and_a_final_state_says_when() -> None:
    async with open_bench(":memory:") as bench:
        motion = bench.patch(await bench.mint())
        await motion.move("admitted")
        await motion.move("planned", changes={"files": ["a"], "changes": [{"path": "a"}]}, details={"files": 1})
        halfway = await bench.ledger.get("op-1")
        assert halfway is not None
        assert (halfway.state, halfway.files, halfway.finished_at) == ("snapshotting", ("a",), None)

        await motion.move("refused", changes={"outcome": {"code": "VERSION_CONFLICT"}})
        ended = await bench.ledger.get("op-1")
        assert ended is not None
        assert (ended.state, ended.outcome, ended.finished_at) == ("rejected", {"code": "VERSION_CONFLICT"}, NOW)
        assert [event.event for event in await bench.ledger.events("op-1")] == [
            "minted",
            "admitted",
            "planned",
            "refused",
        ]
        assert (await bench.ledger.events("op-1"))[2].details == {"files": 1}


async def test_unknown_is_not_an_end() -> None:
    async with open_bench(":memory:") as bench:
        motion = bench.patch(await bench.mint(state="applying"))
        await motion.move("sight_lost")
        assert [found.state for found in await bench.ledger.unfinished()] == ["unknown"]
        await motion.move("found_rolled_back")
        assert await bench.ledger.unfinished() == ()


async def test_a_stale_step_changes_neither_row_nor_chain_and_says_what_is_recorded() -> None:
    async with open_bench(":memory:") as bench:
        made = await bench.mint()
        mine, theirs = bench.patch(made), bench.patch(made)
        await theirs.move("admitted")
        before = await bench.store.read(audit.head)
        with pytest.raises(Stale) as caught:
            await mine.move("refused", changes={"outcome": {"code": "TIMEOUT"}})
        assert (caught.value.expected, caught.value.actual) == ("minted", "planning")
        assert await bench.store.read(audit.head) == before
        assert (await bench.row("operations", "op-1"))["outcome"] is None


async def test_a_step_of_a_row_that_is_not_there_is_stale() -> None:
    async with open_bench(":memory:") as bench:
        with pytest.raises(Stale, match="op-1 is not recorded"):
            await bench.patch(operation()).move("admitted")


async def test_of_two_daemons_that_move_one_row_at_once_exactly_one_does(tmp_path: Path) -> None:
    path = tmp_path / "operations.sqlite"
    async with open_bench(path, "inst-1") as one, open_bench(path, "inst-2") as other:
        made = [await one.mint(id=f"op-{number}") for number in range(20)]
        moved, stale = list[str](), list[str]()

        async def settle(bench: Bench, found: Operation) -> None:
            try:
                await bench.patch(found).move("refused")
                moved.append(found.id)
            except Stale:
                stale.append(found.id)

        async with trio.open_nursery() as nursery:
            for found in made:
                nursery.start_soon(settle, one, found)
                nursery.start_soon(settle, other, found)
        assert sorted(moved) == sorted(stale) == sorted(found.id for found in made)
        verdict = await one.store.read(audit.verify)
        assert (verdict.ok, verdict.events) == (True, 40)


async def test_steps_of_several_subjects_are_one_transaction() -> None:
    async with open_bench(":memory:") as bench:
        hold = await bench.hold("appr-1", "granted", key="key")
        patch = bench.patch(operation(operation_key="key", approval_id="appr-1"))
        steps = [*hold.steps("resume_begun", changes={"operation_id": "op-1"}), *patch.steps("admitted")]
        await bench.ledger.mint(operation(operation_key="key", approval_id="appr-1"), also_move=steps)
        for motion in (hold, patch):
            motion.adopt(steps)
        assert (hold.state, patch.state) == ("resuming", "planning")
        assert (await bench.row("holds", "appr-1"))["operation_id"] == "op-1"

        both = [*patch.steps("refused"), *hold.steps("request_ended", changes={"body": None, "result": {"ok": {}}})]
        await bench.ledger.apply(both)
        assert (await bench.row("operations", "op-1"))["state"] == "rejected"
        ended = await bench.row("holds", "appr-1")
        assert (ended["state"], ended["body"], ended["result"]) == ("consumed", None, '{"ok": {}}')


async def test_one_stale_step_undoes_the_mint_and_every_other_step() -> None:
    async with open_bench(":memory:") as bench:
        hold = await bench.hold("appr-1", "granted")
        steps = hold.steps("resume_begun")
        await hold.move("grant_refused")
        before = await bench.store.read(audit.head)
        with pytest.raises(Stale):
            await bench.ledger.mint(operation(), also_move=steps)
        assert await bench.ledger.get("op-1") is None
        assert await bench.store.read(audit.head) == before


@pytest.mark.parametrize("column", ["id", "state", "operation_key", "fingerprint", "created_at", "state = 'x' --"])
async def test_a_step_may_not_change_what_an_operation_is(column: str) -> None:
    async with open_bench(":memory:") as bench:
        motion = bench.patch(await bench.mint())
        with pytest.raises(ValueError, match="may not change operations"):
            await motion.move("admitted", changes={column: "x"})
        assert (await bench.row("operations", "op-1"))["state"] == motion.state == "minted"


async def test_a_recorder_moves_rows_of_its_own_table_only() -> None:
    async with open_bench(":memory:") as bench:
        await bench.hold("appr-1", "pending")
        with pytest.raises(ValueError, match="approval does not move rows of operations"):
            await Motion(Approval, "appr-1", "pending", bench.ledger.recorder("operation")).move("grant_given")
        assert (await bench.row("holds", "appr-1"))["state"] == "pending"


async def test_an_active_hold_owns_its_key_and_an_ended_one_gives_it_back() -> None:
    async with open_bench(":memory:") as bench:
        first = await bench.hold("appr-1", "pending", key="key")
        with pytest.raises(Exception, match="UNIQUE"):
            await bench.hold("appr-2", "pending", key="key")
        await first.move("grant_refused")
        await bench.hold("appr-3", "pending", key="key")


async def test_unfinished_operations_are_told_by_instance_oldest_first() -> None:
    async with open_bench(":memory:") as bench:
        await bench.mint(id="op-new", created_at=NOW + 1)
        await bench.mint(id="op-old", instance_id="inst-2")
        await bench.patch(await bench.mint(id="op-done")).move("refused")
        await bench.mint(id="op-exec", kind="exec", instance_id="inst-3", created_at=NOW + 2)

        async def found(ids: list[str] | None = None) -> list[str]:
            return [each.id for each in await bench.ledger.unfinished(ids)]

        assert await found() == ["op-old", "op-new", "op-exec"]
        assert await found(["inst-2", "inst-3"]) == ["op-old", "op-exec"]
        assert await found([]) == []


async def test_a_listing_is_newest_first_filtered_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_bench(":memory:") as bench:
        for number in range(5):
            kind, workspace = ("exec", "v") if number % 2 else ("patch", "w")
            await bench.mint(id=f"op-{number}", kind=kind, workspace_id=workspace, created_at=NOW + number)

        async def found(**filters: Any) -> list[str]:
            return [each.id for each in await bench.ledger.list(**filters)]

        assert await found() == ["op-4", "op-3", "op-2", "op-1", "op-0"]
        assert await found(kind="exec") == ["op-3", "op-1"]
        for number in range(5):
            await bench.store.write(partial(_finish, operation_id=f"op-{number}"))
        assert await found(kind="patch", limit=2) == ["op-4", "op-2"]
        monkeypatch.setattr(limits, "LIST_ROWS", 3)
        assert len(await found(limit=10)) == 3
        assert len(await found(limit=-1)) == 1


def _finish(db: Database, operation_id: str) -> None:
    db.execute("UPDATE operations SET finished_at = created_at WHERE id = ?", (operation_id,))


async def test_what_has_no_end_is_in_every_listing_however_much_came_behind_it() -> None:
    async with open_bench(":memory:") as bench:
        for number, kind in enumerate(["patch", "exec", "patch", "patch", "exec", "exec"]):
            await bench.mint(id=f"op-{number}", kind=kind, created_at=NOW + number)
        for finished in ("op-2", "op-3", "op-5"):
            await bench.store.write(partial(_finish, operation_id=finished))

        async def found(**filters: Any) -> list[str]:
            return [each.id for each in await bench.ledger.list(limit=2, **filters)]

        assert await found() == ["op-5", "op-4", "op-1", "op-0"]
        assert await found(kind="exec") == ["op-5", "op-4", "op-1"]
        assert await found(kind="patch") == ["op-3", "op-2", "op-0"]


async def test_a_fact_that_moves_nothing_is_in_the_chain() -> None:
    async with open_bench(":memory:") as bench:
        await bench.ledger.note("daemon", "inst-1", "started", "A daemon began.", {"pid": 1})
        (event,) = await bench.ledger.events("inst-1")
        assert (event.event, event.source, event.target, event.details) == ("started", None, None, {"pid": 1})


async def test_an_execution_is_moved_by_its_own_law() -> None:
    async with open_bench(":memory:") as bench:
        made = await bench.mint(kind="exec")
        motion = Motion(Execution, made.id, made.state, bench.ledger.recorder("operation"))
        await motion.move("start_ordered", "started", changes={"process_id": "proc-1"})
        await motion.move("ended", "drained", changes={"outcome": {"exit_code": 0}})
        stored = await bench.ledger.by_process("proc-1")
        assert stored is not None
        assert (stored.state, stored.finished_at) == ("exited", NOW)
        assert [event.kind for event in await bench.ledger.events("op-1")] == ["execution"] * 5


async def test_a_cancelled_mint_is_recorded_whole_or_not_at_all(tmp_path: Path) -> None:
    async with open_bench(tmp_path / "operations.sqlite") as bench:
        outcomes = set[bool]()
        for turns in (None, *range(40), 10_000_000):  # cancelled before, at any moment, and too late
            made, told = operation(id=f"op-{turns}", operation_key=f"key-{turns}"), False
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    if turns is None:
                        scope.cancel()
                    else:
                        nursery.start_soon(_cancel_after, scope, turns)
                    await bench.ledger.mint(made)
                    told = True
                    nursery.cancel_scope.cancel()
            stored = await bench.ledger.get(made.id)
            assert (stored is not None) == told
            assert len(await bench.ledger.events(made.id)) == int(told)
            outcomes.add(told)
        assert outcomes == {True, False}
        assert (await bench.store.read(audit.verify)).ok


async def _cancel_after(scope: trio.CancelScope, turns: int) -> None:
    for _ in range(turns):
        await trio.lowlevel.checkpoint()
    scope.cancel()


async def test_a_chain_that_two_daemons_wrote_at_once_is_sound(tmp_path: Path) -> None:
    path = tmp_path / "operations.sqlite"
    async with open_bench(path, "inst-1") as one, open_bench(path, "inst-2") as other:
        began = {"one": trio.Event(), "other": trio.Event()}

        async def work(bench: Bench, name: str) -> None:
            for number in range(25):
                made = await bench.mint(id=f"op-{name}-{number}")
                began[name].set()
                for event in began.values():
                    await event.wait()
                await bench.patch(made).move("admitted", "refused")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(work, one, "one")
            nursery.start_soon(work, other, "other")

        def authors(db: Database) -> list[str]:
            return [author for (author,) in db.execute("SELECT instance_id FROM events ORDER BY seq")]

        order = await one.store.read(authors)
        assert sum(before != after for before, after in itertools.pairwise(order)) >= 2  # they overlapped
        verdict = await other.store.read(audit.verify)
        assert (verdict.ok, verdict.events) == (True, 150)


async def test_no_patch_and_no_command_looks_through_all_of_history() -> None:
    """By how SQLite would find what it is asked: among a hundred thousand operations each look would take 50 ms."""
    asked: list[str] = []
    async with open_bench(":memory:") as bench:
        await bench.store.write(lambda db: db.conn.set_trace_callback(asked.append))
        await bench.ledger.mint(operation(), tolerated=())
        await bench.ledger.by_approval("appr-1")
        await bench.ledger.unfinished(["inst-1"])
        await bench.store.write(lambda db: db.conn.set_trace_callback(None))
        looks = [sql for sql in asked if "FROM operations WHERE" in sql]

        def plan(db: Database, sql: str) -> str:
            return " ".join(row[-1] for row in db.execute(f"EXPLAIN QUERY PLAN {sql}"))

        plans = [await bench.store.read(partial(plan, sql=sql)) for sql in looks]
    assert [next((name for name in FAST if name in each), each) for each in plans] == [
        "operations_unfinished",
        "operations_approval",
        "operations_unfinished",
    ]


FAST = ("operations_unfinished", "operations_approval")


async def test_a_listing_of_giants_is_shorter_and_never_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LIST_CHARACTERS", 2500)
    async with open_bench(":memory:") as bench:
        for number in range(5):
            await bench.mint(id=f"op-{number}", created_at=NOW + number, files=("x" * 1000,))
            await bench.store.write(partial(_finish, operation_id=f"op-{number}"))
        assert [each.id for each in await bench.ledger.list()] == ["op-4", "op-3", "op-2"]
        await bench.mint(id="op-giant", created_at=NOW + 9, files=("x" * 5000,))
        await bench.store.write(partial(_finish, operation_id="op-giant"))
        await bench.mint(id="op-open", created_at=NOW - 1)
        assert [each.id for each in await bench.ledger.list()] == ["op-giant", "op-open"]
