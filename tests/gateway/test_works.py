"""Works and the inbox: what the agent sees and when, what is frozen, and how a work ends."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from sqlite_utils import Database

from codespace import limits
from codespace.contract import Workspace
from codespace.drive import Stale
from codespace.errors import Refusal
from codespace.gateway import audit
from codespace.gateway import intent as intents
from codespace.gateway.inbox import STOP_TEXT
from codespace.gateway.store import Store
from codespace.gateway.work import Work

from .desk import OTHER, WORKSPACE, Desk, code_of, open_desk

SECRET = "CANARY the text of an intent"


@pytest.fixture
async def desk() -> Any:
    async with open_desk() as desk:
        yield desk


def nothing(work_id: str, queued: int = 0, claimed: int = 0) -> dict[str, Any]:
    return {"work_id": work_id, "queued": queued, "claimed": claimed}


# --- what the agent sees ---


async def test_a_draft_is_invisible_until_it_is_queued_and_its_text_until_it_is_claimed(desk: Desk) -> None:
    work = await desk.open()
    draft = await desk.draft(work, SECRET)
    assert await desk.works.status(work) == nothing(work) | {"state": "active"}
    assert await desk.works.claim_next(work) == nothing(work)
    assert await desk.works.coordination(work) is None
    assert await code_of(desk.works.complete(work, draft, "done", None)) == "INTENT_NOT_FOUND"

    await desk.inbox.queue(intent_id=draft, revision=None)
    status = await desk.works.status(work)
    assert status == nothing(work, queued=1) | {"state": "active"}
    assert await desk.works.coordination(work) == {"queued": 1, "claimed": 0}
    assert await code_of(desk.works.complete(work, draft, "done", None)) == "INTENT_NOT_FOUND"

    claimed = await desk.works.claim_next(work)
    assert claimed["intent"] == {"intent_id": draft, "kind": "follow_up", "state": "claimed", "text": SECRET}
    assert await desk.works.coordination(work) is None


async def test_a_claim_whose_answer_was_lost_is_told_again_and_not_claimed_again(desk: Desk) -> None:
    work = await desk.open()
    intent = await desk.queue(work, SECRET)
    await desk.works.claim_next(work)
    again = await desk.works.claim_next(work)
    assert "intent" not in again
    assert [each["intent_id"] for each in again["undone"]] == [intent]
    assert again["undone"][0]["text"] == SECRET


async def test_a_claimed_intent_is_frozen_for_every_verb_of_the_operator(desk: Desk) -> None:
    work = await desk.open()
    intent = await desk.queue(work)
    other = await desk.draft(work)
    successor = await desk.draft(work, supersedes=intent)
    assert await desk.claim(work) == intent
    before = await desk.intent(intent)
    inbox = desk.inbox
    for call in (
        inbox.edit(intent_id=intent, revision=1, text="x", kind=None, delivery=None),
        inbox.queue(intent_id=intent, revision=None),
        inbox.cancel(intent_id=intent, revision=None),
        inbox.reorder(work_id=work, intent_ids=[other, intent]),
        inbox.queue(intent_id=successor, revision=None),
        desk.draft(work, supersedes=intent),
    ):
        assert await code_of(call) == "INTENT_ALREADY_CLAIMED"
    assert await desk.intent(intent) == before
    assert await desk.state(successor) == "draft"
    await desk.done(work, intent)
    assert await code_of(inbox.cancel(intent_id=intent, revision=None)) == "INTENT_NOT_EDITABLE"


class Meeting(Store):
    """A store in which writes wait until as many of them have come as `meet` says."""

    meet = 0
    arrived = 0
    together: trio.Event

    async def write(self, fn: Any, *, durable: bool = False) -> Any:
        if self.meet:
            self.arrived += 1
            if self.arrived == self.meet:
                self.together.set()
            await self.together.wait()
        return await super().write(fn, durable=durable)


@asynccontextmanager
async def closing_desk(store: Store) -> AsyncIterator[Desk]:
    with closing(store):
        async with open_desk(store=store) as desk:
            yield desk


async def test_of_two_claims_at_the_same_moment_one_wins_and_the_other_is_told() -> None:
    store = Meeting.open(":memory:")
    assert isinstance(store, Meeting)
    async with closing_desk(store) as desk:
        work = await desk.open()
        first = await desk.queue(work, delivery="next_checkpoint")
        second = await desk.queue(work, delivery="next_checkpoint")
        store.meet, store.together = 2, trio.Event()
        won, lost = list[str | None](), list[str]()

        async def claim() -> None:
            try:
                won.append(await desk.claim(work))
            except Refusal as refusal:
                lost.append(refusal.code)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(claim)
            nursery.start_soon(claim)
        assert store.arrived == 2  # both had seen the same intent due
        assert (won, lost) == ([first], ["INTENT_ALREADY_CLAIMED"])
        assert await desk.state(second) == "queued"


async def test_two_daemons_on_one_database_never_claim_the_same_intent(tmp_path: Path) -> None:
    path = str(tmp_path / "operations.sqlite")
    async with open_desk(path) as one, open_desk(path) as two:
        work = await one.open()
        queued = [await one.queue(work, delivery="next_checkpoint") for _ in range(8)]
        won: list[str] = []

        async def claim_all(desk: Desk) -> None:
            while len(won) < len(queued):
                answer = await code_of(take(desk))
                assert answer in ("ok", "INTENT_ALREADY_CLAIMED")

        async def take(desk: Desk) -> None:
            claimed = await desk.claim(work)
            won.extend([] if claimed is None else [claimed])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(claim_all, one)
            nursery.start_soon(claim_all, two)
        assert sorted(won) == sorted(queued)
        assert await two.verified()


async def test_a_claim_is_a_compare_and_set_on_the_state_itself(desk: Desk) -> None:
    work = await desk.open()
    intent = await desk.queue(work)
    stale = await desk.store.read(lambda db: intents.one(db, intent))
    assert stale is not None
    await desk.claim(work)
    with pytest.raises(Stale):
        await desk.works.write(lambda db: desk.works.move(db, stale, "taken"))


# --- when it is due ---


async def test_after_current_work_waits_for_what_is_claimed_and_next_checkpoint_does_not(desk: Desk) -> None:
    work = await desk.open()
    first, later = await desk.queue(work), await desk.queue(work)
    assert await desk.claim(work) == first
    assert await desk.claim(work) is None
    urgent = await desk.queue(work, delivery="next_checkpoint")
    assert await desk.claim(work) == urgent
    await desk.done(work, first)
    assert await desk.claim(work) is None
    await desk.works.complete(work, urgent, "blocked", "no such file")
    assert await desk.claim(work) == later
    assert (await desk.intent(urgent))["note"] == "no such file"


async def test_next_work_is_delivered_in_the_next_work_of_its_workspace_only(desk: Desk) -> None:
    work = await desk.open()
    intent = await desk.queue(work, SECRET, delivery="next_work")
    draft = await desk.draft(work, delivery="next_work")
    assert await desk.claim(work) is None
    assert await desk.works.status(work) == nothing(work) | {"state": "active"}
    beside = await desk.open()
    assert await desk.claim(beside) is None  # opened while the first was not finished
    assert (await desk.works.finish(work))["closed"] is True
    assert [await desk.state(each) for each in (intent, draft)] == ["queued", "draft"]

    elsewhere = await desk.open(workspace=OTHER)
    assert await desk.claim(elsewhere) is None
    following = await desk.open()
    assert (await desk.works.status(following))["queued"] == 1
    assert await desk.claim(following) == intent
    moved = await desk.intent(draft)
    assert (moved["work_id"], moved["carried_from"], moved["state"]) == (following, work, "draft")
    await desk.inbox.queue(intent_id=draft, revision=None)
    await desk.done(following, intent)
    assert await desk.claim(following) == draft


async def test_carried_and_then_put_off_again_it_waits_for_one_more_work(desk: Desk) -> None:
    work = await desk.open()
    intent = await desk.queue(work, delivery="next_work")
    await desk.works.finish(work)
    second = await desk.open()
    edit = desk.inbox.edit
    await edit(intent_id=intent, revision=1, text=None, kind=None, delivery="after_current_work")
    await edit(intent_id=intent, revision=2, text=None, kind=None, delivery="next_work")
    assert await desk.claim(second) is None
    await desk.works.finish(second)
    assert await desk.claim(await desk.open()) == intent


async def test_the_operators_order_is_the_order_of_delivery_and_what_was_claimed_keeps_its_place(desk: Desk) -> None:
    work = await desk.open()
    a, b, c, d = [await desk.queue(work, delivery="next_checkpoint") for _ in range(4)]
    assert await desk.claim(work) == a
    told = await desk.inbox.reorder(work_id=work, intent_ids=[d, c])
    assert [each["intent_id"] for each in told["intents"]] == [d, c, b]
    listed = (await desk.inbox.intents(work_id=work))["intents"]
    assert [each["intent_id"] for each in listed] == [a, d, c, b]
    assert [await desk.claim(work) for _ in range(3)] == [d, c, b]


# --- what the operator may change ---


async def test_an_edit_made_for_another_revision_is_refused_and_changes_nothing(desk: Desk) -> None:
    work = await desk.open()
    intent = await desk.queue(work, "one")
    edit = desk.inbox.edit
    edited = await edit(intent_id=intent, revision=1, text="two", kind="note", delivery="next_checkpoint")
    assert (edited["revision"], edited["text"], edited["kind"], edited["state"]) == (2, "two", "note", "queued")
    with pytest.raises(Refusal) as caught:
        await edit(intent_id=intent, revision=1, text="three", kind=None, delivery=None)
    assert caught.value.code == "INTENT_REVISION_CONFLICT"
    assert caught.value.details == {"expected": 1, "actual": 2}
    for verb in (desk.inbox.queue, desk.inbox.cancel):
        assert await code_of(verb(intent_id=intent, revision=1)) == "INTENT_REVISION_CONFLICT"
    assert (await desk.works.claim_next(work))["intent"]["text"] == "two"


async def test_queue_and_cancel_said_twice_change_nothing_the_second_time(desk: Desk) -> None:
    work = await desk.open()
    intent = await desk.draft(work)
    queued = await desk.inbox.queue(intent_id=intent, revision=1)
    assert await desk.inbox.queue(intent_id=intent, revision=1) == queued
    cancelled = await desk.inbox.cancel(intent_id=intent, revision=1)
    assert await desk.inbox.cancel(intent_id=intent, revision=1) == cancelled
    assert await code_of(desk.inbox.queue(intent_id=intent, revision=None)) == "INTENT_NOT_EDITABLE"
    assert await desk.claim(work) is None


async def test_what_supersedes_takes_the_place_once_it_is_queued_and_not_before(desk: Desk) -> None:
    work = await desk.open()
    old, behind = await desk.queue(work, "old"), await desk.queue(work)
    new = await desk.draft(work, "new", supersedes=old)
    assert await desk.state(old) == "queued"
    await desk.inbox.queue(intent_id=new, revision=None)
    assert await desk.state(old) == "superseded"
    assert await desk.claim(work) == new
    await desk.done(work, new)
    assert await desk.claim(work) == behind


async def test_an_intent_of_another_work_cannot_be_superseded_ordered_or_completed_here(desk: Desk) -> None:
    work, other = await desk.open(), await desk.open()
    intent = await desk.queue(other)
    assert await code_of(desk.draft(work, supersedes=intent)) == "INTENT_NOT_FOUND"
    assert await code_of(desk.inbox.reorder(work_id=work, intent_ids=[intent])) == "INTENT_NOT_FOUND"
    assert await code_of(desk.inbox.reorder(work_id=other, intent_ids=[intent, intent])) == "INVALID_ARGUMENT"
    await desk.claim(other)
    assert await code_of(desk.works.complete(work, intent, "done", None)) == "INTENT_NOT_FOUND"


async def test_a_stop_notice_is_ordered_and_never_written_or_edited(desk: Desk) -> None:
    work = await desk.open()
    assert await code_of(desk.draft(work, kind="stop_notice")) == "INVALID_ARGUMENT"
    intent = await desk.draft(work)
    edit = desk.inbox.edit
    asked = edit(intent_id=intent, revision=1, text=None, kind="stop_notice", delivery=None)
    assert await code_of(asked) == "INTENT_NOT_EDITABLE"
    notice = (await desk.inbox.stop(work_id=work, text=None))["notice"]["intent_id"]
    asked = edit(intent_id=notice, revision=1, text="go on", kind=None, delivery=None)
    assert await code_of(asked) == "INTENT_NOT_EDITABLE"


async def test_the_list_of_what_waits_and_of_works_is_bounded(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "INTENTS_WAITING", 2)
    monkeypatch.setattr(limits, "WORKS_OPEN", 2)
    work = await desk.open()
    await desk.draft(work)
    await desk.queue(work)
    assert await code_of(desk.draft(work)) == "LIMIT_REACHED"
    await desk.open()
    assert await code_of(desk.open()) == "LIMIT_REACHED"
    assert await code_of(desk.open(workspace=OTHER)) == "ok"
    assert await code_of(desk.open(workspace=Workspace(id="w", root="/elsewhere"))) == "ok"


# --- how it ends ---


async def test_a_work_is_not_finished_while_input_is_queued_or_claimed_and_undone(desk: Desk) -> None:
    work = await desk.open()
    intent = await desk.queue(work)
    refused = await desk.works.finish(work)
    assert (refused["closed"], refused["reason"]) == (False, "pending_user_input")
    await desk.claim(work)
    assert (await desk.works.finish(work))["reason"] == "pending_user_input"
    assert (await desk.works.status(work))["state"] == "active"
    await desk.done(work, intent)
    assert await desk.works.finish(work) == {"work_id": work, "closed": True}
    assert await desk.works.finish(work) == {"work_id": work, "closed": True}


async def test_a_closed_work_takes_nothing_and_its_drafts_are_kept_as_superseded(desk: Desk) -> None:
    work = await desk.open()
    draft = await desk.draft(work, SECRET)
    await desk.works.finish(work)
    kept = await desk.intent(draft)
    assert (kept["state"], kept["text"]) == ("superseded", SECRET)
    assert await code_of(desk.draft(work)) == "WORK_CLOSED"
    assert await code_of(desk.works.claim_next(work)) == "WORK_CLOSED"
    assert await code_of(desk.inbox.stop(work_id=work, text=None)) == "WORK_CLOSED"
    assert await code_of(desk.works.require_active(work, WORKSPACE)) == "WORK_CLOSED"
    assert await code_of(desk.run_command(work)) == "WORK_CLOSED"


async def test_a_work_closes_only_once_its_commands_have_ended(desk: Desk) -> None:
    work = await desk.open()
    await desk.run_command(work)
    finished = await desk.works.finish(work)
    assert finished == {"work_id": work, "closed": False, "reason": "commands_running"}
    assert (await desk.works.status(work))["state"] == "closing"
    assert await code_of(desk.run_command(work, "op-2")) == "WORK_CLOSED"
    await desk.store.write(lambda db: _end(db, "op-1"))
    assert (await desk.works.status(work))["state"] == "closed"


async def test_a_work_that_only_waited_for_commands_of_a_dead_daemon_is_closed_at_the_start(desk: Desk) -> None:
    work = await desk.open()
    await desk.run_command(work)
    await desk.works.finish(work)
    await desk.store.write(lambda db: _end(db, "op-1"))
    await desk.works.settle_all()
    states = [each["state"] for each in (await desk.inbox.works())["works"]]
    assert states == ["closed"]


def _end(db: Database, operation_id: str) -> None:
    db.execute("UPDATE operations SET finished_at = 1.0 WHERE id = ?", (operation_id,))


async def test_a_stop_ends_commands_and_leaves_a_notice_that_is_claimed_first(desk: Desk) -> None:
    work = await desk.open()
    current, waiting = await desk.queue(work), await desk.queue(work)
    later = await desk.queue(work, delivery="next_work")
    await desk.claim(work)
    told = await desk.inbox.stop(work_id=work, text=None)
    assert (told["state"], told["notice"]["text"], desk.stopped) == ("closing", STOP_TEXT, ["w"])
    assert await desk.state(waiting) == "superseded"
    assert await desk.state(later) == "queued"
    with pytest.raises(Refusal) as refused:
        await desk.works.require_active(work, WORKSPACE)
    assert refused.value.code == "WORK_CLOSED"
    assert "complete what is claimed (steer_complete)" in refused.value.next_step
    assert await code_of(desk.draft(work)) == "WORK_CLOSED"
    assert (await desk.works.finish(work))["reason"] == "pending_user_input"

    notice = (await desk.works.claim_next(work))["intent"]
    assert (notice["kind"], notice["intent_id"]) == ("stop_notice", told["notice"]["intent_id"])
    await desk.done(work, notice["intent_id"])
    assert (await desk.works.status(work))["state"] == "closing"
    await desk.works.complete(work, current, "blocked", "stopped")
    assert (await desk.works.status(work))["state"] == "closed"
    assert await desk.claim(await desk.open()) == later


async def test_a_stop_ordered_again_ends_commands_again_and_leaves_no_second_notice(desk: Desk) -> None:
    work = await desk.open()
    first = await desk.inbox.stop(work_id=work, text="enough")
    again = await desk.inbox.stop(work_id=work, text="enough")
    assert "notice" not in again
    assert desk.stopped == ["w", "w"]
    assert (await desk.works.claim_next(work))["intent"]["text"] == "enough"
    assert first["notice"]["kind"] == "stop_notice"


async def test_a_stop_notice_that_is_withdrawn_lets_the_work_close(desk: Desk) -> None:
    work = await desk.open()
    notice = (await desk.inbox.stop(work_id=work, text=None))["notice"]["intent_id"]
    await desk.inbox.cancel(intent_id=notice, revision=None)
    assert [each["state"] for each in (await desk.inbox.works())["works"]] == ["closed"]


async def test_a_stop_that_could_not_end_the_commands_says_so_and_harms_nothing_else(desk: Desk) -> None:
    async def fails(work: Work) -> bool:
        raise RuntimeError("the runner is gone")

    desk.inbox._stop_commands = fails
    told = await desk.inbox.stop(work_id=await desk.open(), text=None)
    assert (told["commands_ended"], told["state"]) == (False, "closing")


async def test_a_stop_goes_on_when_the_one_who_ordered_it_leaves(desk: Desk) -> None:
    work = await desk.open()
    with trio.CancelScope() as scope:
        scope.cancel()
        await desk.inbox.stop(work_id=work, text=None)
    # Cancelled before anything was recorded: nothing happened. Afterwards it is recorded, and commands end.
    assert (await desk.works.status(work))["state"] == "active"
    begun, asked = trio.Event(), trio.CancelScope()

    async def stop_commands(stopped: Work) -> bool:
        asked.cancel()
        begun.set()
        await trio.lowlevel.checkpoint()
        desk.stopped.append(stopped.workspace_id)
        return True

    desk.inbox._stop_commands = stop_commands
    with asked:
        await desk.inbox.stop(work_id=work, text=None)
    assert asked.cancelled_caught
    await begun.wait()
    await trio.testing.wait_all_tasks_blocked()
    assert desk.stopped == ["w"]
    assert (await desk.works.status(work))["state"] == "closing"


# --- what an answer may be said again, and what is nobody's business ---


async def test_a_completion_said_again_is_answered_and_another_one_refused(desk: Desk) -> None:
    work = await desk.open()
    intent = await desk.queue(work)
    await desk.claim(work)
    first = await desk.works.complete(work, intent, "blocked", "why")
    await desk.works.finish(work)
    assert await desk.works.complete(work, intent, "blocked", "why") == first
    assert await code_of(desk.works.complete(work, intent, "done", "why")) == "INTENT_NOT_EDITABLE"
    assert await code_of(desk.works.complete(work, intent, "blocked", "why not")) == "INTENT_NOT_EDITABLE"


@pytest.mark.parametrize("work_id", ["work-unknown", "", "%", "' OR 1 = 1 --"])
async def test_an_unknown_work_is_not_found_by_any_verb(desk: Desk, work_id: str) -> None:
    await desk.open()
    works, inbox = desk.works, desk.inbox
    for call in (
        works.status(work_id),
        works.claim_next(work_id),
        works.complete(work_id, "int-1", "done", None),
        works.finish(work_id),
        works.require_active(work_id, WORKSPACE),
        inbox.work(work_id=work_id),
        inbox.intents(work_id=work_id),
        inbox.stop(work_id=work_id, text=None),
        inbox.reorder(work_id=work_id, intent_ids=["int-1"]),
        desk.draft(work_id),
    ):
        assert await code_of(call) == "WORK_NOT_FOUND"


async def test_a_work_of_a_workspace_that_is_not_registered_here_is_not_there_for_agents(tmp_path: Path) -> None:
    path = str(tmp_path / "operations.sqlite")
    async with open_desk(path) as desk:
        work = await desk.open()
        await desk.queue(work, SECRET)
        desk.works._workspaces = {"v": OTHER}
        for call in (desk.works.status(work), desk.works.claim_next(work), desk.works.finish(work)):
            assert await code_of(call) == "WORK_NOT_FOUND"
        assert await code_of(desk.works.require_active(work, OTHER)) == "WORK_NOT_FOUND"


async def test_everything_is_in_the_chain_and_no_text_is(desk: Desk) -> None:
    work = await desk.open("CANARY title")
    intent = await desk.queue(work, SECRET)
    edit = desk.inbox.edit
    await edit(intent_id=intent, revision=1, text="CANARY again", kind=None, delivery=None)
    await desk.queue(work)
    other = await desk.queue(work)
    await desk.inbox.reorder(work_id=work, intent_ids=[other])
    await desk.inbox.cancel(intent_id=other, revision=None)
    await desk.claim(work)
    await desk.works.complete(work, intent, "blocked", "CANARY note")
    await desk.inbox.stop(work_id=work, text="CANARY stop")
    await desk.inbox.stop(work_id=work, text=None)
    rows = await desk.store.read(lambda db: list(db.query("SELECT * FROM events")))
    assert "CANARY" not in json.dumps(rows)
    events = [event.event for event in await desk.ledger.events(intent)]
    assert events == ["written", "released", "rewritten", "moved", "taken", "gave_up"]
    of_work = [event.event for event in await desk.ledger.events(work)]
    assert of_work == ["opened", "finish_begun", "stop_repeated"]
    verdict = await desk.store.read(audit.verify)
    assert (verdict.ok, verdict.events) == (True, len(rows))


async def test_counting_what_waits_never_turns_a_result_into_an_error(desk: Desk) -> None:
    work = await desk.open()
    await desk.queue(work)
    await desk.store.write(lambda db: db.execute("ALTER TABLE intents RENAME TO elsewhere").rowcount)
    assert await desk.works.coordination(work) is None


async def test_a_work_is_of_its_directory_and_says_nothing_to_another_of_the_same_id(tmp_path: Path) -> None:
    elsewhere = Workspace(id="w", root="/elsewhere")
    async with open_desk(str(tmp_path / "operations.sqlite")) as desk:
        work = await desk.open()
        await desk.queue(work, SECRET, delivery="next_work")
        await desk.works.finish(work)
        running = await desk.open(title="t2", workspace=elsewhere)
        assert (await desk.works.status(work))["state"] == "closed"
        desk.works._workspaces = {"w": elsewhere}
        told = await desk.works.claim_next(running)
        assert SECRET not in str(told)
        for call in (desk.works.status(work), desk.works.require_active(work, elsewhere)):
            assert await code_of(call) == "WORK_NOT_FOUND"
        desk.works._workspaces = {"w": WORKSPACE}
        assert await code_of(desk.works.status(running)) == "WORK_NOT_FOUND"
        assert (await desk.works.claim_next(await desk.open()))["intent"]["text"] == SECRET


async def test_a_work_from_before_its_directory_was_kept_is_one_of_its_id_wherever_that_is(tmp_path: Path) -> None:
    path = str(tmp_path / "operations.sqlite")
    async with open_desk(path) as desk:
        work = await desk.open()
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("ALTER TABLE works DROP COLUMN root")
        db.execute("DELETE FROM _sqlite_migrations WHERE name LIKE 'm005%'")
        db.execute("PRAGMA user_version = 4")
    async with open_desk(path) as desk:
        await desk.queue(work, SECRET)
        desk.works._workspaces = {"w": Workspace(id="w", root="/elsewhere")}
        assert (await desk.works.claim_next(work))["intent"]["text"] == SECRET
