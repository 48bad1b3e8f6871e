"""Works and intents against a plain model, whatever operator and agents do, with restarts in between.

The model says in a few lines what the contract promises; the product must agree after every step,
on a real database file, and the audit chain must stay sound.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import trio
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from sqlite_utils import Database

from codespace.errors import Refusal
from codespace.gateway.store import Store

from .desk import Desk, open_desk

T = TypeVar("T")

DELIVERIES = ("next_checkpoint", "after_current_work", "next_work")
DICE = st.integers(0, 2**32)
# One number a step, mixed with the step's own: choices that Hypothesis draws one by one repeat each
# other so much that little comes to happen.
UNSEEN = ("draft", "queued")


@dataclass
class Wanted:
    """An intent in the model."""

    name: str
    work: str
    delivery: str
    text: str
    state: str = "draft"
    kind: str = "follow_up"
    carried: bool = False
    revision: int = 1
    supersedes: str | None = None

    @property
    def later(self) -> bool:
        return self.delivery == "next_work" and (self.state == "draft" or not self.carried)


@dataclass
class Model:
    """Everything, as lists in the order of delivery."""

    works: dict[str, str] = field(default_factory=dict)
    order: dict[str, list[Wanted]] = field(default_factory=dict)
    all: dict[str, Wanted] = field(default_factory=dict)

    def waiting(self, work: str) -> list[Wanted]:
        return [each for each in self.order[work] if each.state == "queued" and not each.later]

    def claimed(self, work: str) -> list[Wanted]:
        return [each for each in self.order[work] if each.state == "claimed"]

    def due(self, work: str) -> Wanted | None:
        waiting = self.waiting(work)
        stops = [each for each in waiting if each.kind == "stop_notice"]
        free = [each for each in waiting if each.delivery == "next_checkpoint" or not self.claimed(work)]
        return next(iter(stops or free), None)

    def add(self, wanted: Wanted) -> None:
        self.all[wanted.name] = wanted
        self.order[wanted.work].append(wanted)

    def close_to_new(self, work: str) -> None:
        self.works[work] = "closing"
        for each in self.order[work]:
            if each.state in UNSEEN and not each.later:
                each.state = "superseded"

    def settle(self, work: str) -> None:
        if self.works[work] == "closing" and not self.waiting(work) and not self.claimed(work):
            self.works[work] = "closed"

    def carry(self, to: str) -> None:
        for work in [each for each, state in self.works.items() if state != "active" and each != to]:
            for each in [each for each in self.order[work] if each.state in UNSEEN and each.later]:
                self.order[work].remove(each)
                each.work, each.carried = to, True
                self.order[to].append(each)

    def refusal(self, wanted: Wanted) -> str | None:
        """Why the operator cannot change it."""
        if wanted.state == "claimed":
            return "INTENT_ALREADY_CLAIMED"
        return None if wanted.state in UNSEEN else "INTENT_NOT_EDITABLE"

    def takes(self, work: str, delivery: str) -> bool:
        return self.works[work] == "active" or delivery == "next_work"


class Unflushed(Store):
    """A store that leaves flushing to the system: no power is lost here, and a busy disk would only take time."""

    async def write(self, fn: Callable[[Database], T], *, durable: bool = False) -> T:
        return await super().write(fn)


class Steering(RuleBasedStateMachine):
    """One operator and agents that call in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="steering-")
        self.path = str(Path(self.folder.name, "operations.sqlite"))
        self.store = Unflushed.open(self.path, inline=True)
        self.model = Model()
        self.steps = 0
        self.dice = random.Random(0)

    def ask(self, act: Callable[[Desk], Awaitable[Any]]) -> Any:
        """Return what the product answers, or the code of its refusal."""

        async def main() -> Any:
            async with open_desk(store=self.store) as desk:
                try:
                    return await act(desk)
                except Refusal as refusal:
                    return refusal.code

        return trio.run(main)

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.store = Unflushed.open(self.path, inline=True)

    @initialize()
    def begin(self) -> None:
        self.open_one()

    @rule(dice=DICE)
    def somebody_acts(self, dice: int) -> None:
        """Let the operator or an agent do something. Endings are rare: they end what could be seen of the rest."""
        self.steps += 1
        self.dice = random.Random(f"{dice} {self.steps}")
        if "active" not in self.model.works.values():
            self.open_one()
        of_operator = [self.draft, self.draft, self.edit, self.queue, self.cancel, self.reorder]
        of_agents = [self.claim, self.claim, self.complete_what_is_claimed, self.complete_anything]
        endings = [self.stop, self.finish, self.finish, self.open]
        act = self.dice.choice(endings if self.dice.random() < 0.12 else [*of_operator, *of_agents])
        if self.model.all or act not in (self.edit, self.queue, self.cancel, self.complete_anything):
            act()

    def open(self) -> None:
        if sum(state == "active" for state in self.model.works.values()) >= 2:
            return
        self.open_one()

    def open_one(self) -> None:
        work = str(self.ask(lambda desk: desk.open()))
        self.model.works[work], self.model.order[work] = "active", []
        self.model.carry(work)

    def a_work(self) -> str:
        """Draw a work, mostly one that is not closed: there the most can happen."""
        works = self.model.works
        some = [work for work, state in works.items() if state != "closed"] if self.dice.randrange(5) else []
        return self.dice.choice(some or list(works))

    def an_intent(self) -> str:
        """Draw an intent, mostly one that the agent has not seen."""
        known = self.model.all
        some = [each.name for each in known.values() if each.state in UNSEEN] if self.dice.randrange(4) else []
        return self.dice.choice(some or list(known))

    def draft(self) -> None:
        delivery, queued = self.dice.choice(DELIVERIES), self.dice.random() < 0.8
        work, model = self.a_work(), self.model
        other = self.an_intent() if model.all and not self.dice.randrange(5) else None
        text = f"text {len(model.all)}"
        answer = self.ask(lambda desk: desk.draft(work, text, delivery=delivery, supersedes=other))
        expected = None if model.works[work] == "active" else "WORK_CLOSED"
        if expected is None and other:
            target = model.all[other]
            expected = model.refusal(target) or (None if target.work == work else "INTENT_NOT_FOUND")
        if expected is not None:
            assert answer == expected
            return
        model.add(Wanted(answer, work, delivery, text, supersedes=other))
        if queued:
            self.queue_this(answer)

    def edit(self) -> None:
        delivery, behind = self.dice.choice([None, *DELIVERIES]), self.dice.randrange(2)
        intent = self.an_intent()
        wanted, text = self.model.all[intent], f"edited {intent}"
        revision = max(1, wanted.revision - behind)
        asked = {"text": text, "kind": None, "delivery": delivery, "revision": revision}
        answer = self.ask(lambda desk: desk.inbox.edit(intent_id=intent, **asked))
        expected = self.model.refusal(wanted)
        if expected is None and revision != wanted.revision:
            expected = "INTENT_REVISION_CONFLICT"
        if expected is None and wanted.kind == "stop_notice":
            expected = "INTENT_NOT_EDITABLE"
        moved = delivery is not None and delivery != wanted.delivery
        if expected is None and moved and not self.model.takes(wanted.work, str(delivery)):
            expected = "WORK_CLOSED"
        if expected is not None:
            assert answer == expected
            return
        wanted.text, wanted.revision = text, wanted.revision + 1
        if moved:
            wanted.delivery, wanted.carried = str(delivery), False

    def queue(self) -> None:
        self.queue_this(self.an_intent())

    def queue_this(self, intent: str) -> None:
        wanted, model = self.model.all[intent], self.model
        answer = self.ask(lambda desk: desk.inbox.queue(intent_id=intent, revision=None))
        expected = model.refusal(wanted)
        if expected is None and wanted.state == "draft":
            expected = None if model.takes(wanted.work, wanted.delivery) else "WORK_CLOSED"
            other = model.all[wanted.supersedes] if wanted.supersedes else None
            if expected is None and other is not None and other.state not in ("cancelled", "superseded"):
                expected = model.refusal(other)
        if expected is not None:
            assert answer == expected
            return
        if wanted.state == "draft":
            wanted.state = "queued"
            if other is not None and other.state in UNSEEN:
                other.state = "superseded"
                if other.work == wanted.work:
                    line = model.order[wanted.work]
                    line.remove(wanted)
                    line.insert(line.index(other), wanted)

    def cancel(self) -> None:
        intent = self.an_intent()
        wanted = self.model.all[intent]
        answer = self.ask(lambda desk: desk.inbox.cancel(intent_id=intent, revision=None))
        expected = None if wanted.state == "cancelled" else self.model.refusal(wanted)
        if expected is not None:
            assert answer == expected
            return
        wanted.state = "cancelled"
        self.model.settle(wanted.work)

    def reorder(self) -> None:
        work = self.a_work()
        line = self.model.order[work]
        unseen = [each for each in line if each.state in UNSEEN]
        if not unseen:
            return
        first = self.dice.sample(unseen, self.dice.randint(1, len(unseen)))
        names = [each.name for each in first]
        self.ask(lambda desk: desk.inbox.reorder(work_id=work, intent_ids=names))
        order = iter([*first, *(each for each in unseen if each not in first)])
        self.model.order[work] = [next(order) if each in unseen else each for each in line]

    def stop(self) -> None:
        work = self.a_work()
        answer = self.ask(lambda desk: desk.inbox.stop(work_id=work, text=None))
        model = self.model
        if model.works[work] == "closed":
            assert answer == "WORK_CLOSED"
        elif model.works[work] == "closing":
            assert "notice" not in answer
        else:
            model.close_to_new(work)
            notice = answer["notice"]
            model.add(
                Wanted(notice["intent_id"], work, "next_checkpoint", notice["text"], "queued", kind="stop_notice")
            )

    def claim(self) -> None:
        work = self.a_work()
        answer = self.ask(lambda desk: desk.works.claim_next(work))
        due = self.model.due(work)
        if self.model.works[work] == "closed":
            assert answer == "WORK_CLOSED"
        elif due is None:
            assert "intent" not in answer
            undone = [each["intent_id"] for each in answer.get("undone", [])]
            assert undone == [each.name for each in self.model.claimed(work)]
        else:
            assert (answer["intent"]["intent_id"], answer["intent"]["text"]) == (due.name, due.text)
            due.state = "claimed"

    def complete_what_is_claimed(self) -> None:
        outcome: Any = self.dice.choice(["done", "blocked"])
        work = self.a_work()
        claimed = self.model.claimed(work)
        if claimed:
            self.ask(lambda desk: desk.works.complete(work, claimed[0].name, outcome, None))
            claimed[0].state = outcome
            self.model.settle(work)

    def complete_anything(self) -> None:
        work, intent = self.a_work(), self.an_intent()
        wanted = self.model.all.get(intent)
        answer = self.ask(lambda desk: desk.works.complete(work, intent, "done", None))
        if wanted is None or wanted.work != work or wanted.state not in ("claimed", "done", "blocked"):
            assert answer == "INTENT_NOT_FOUND"
        elif wanted.state == "blocked":
            assert answer == "INTENT_NOT_EDITABLE"
        else:
            wanted.state = "done"
            self.model.settle(work)

    def finish(self) -> None:
        work = self.a_work()
        answer = self.ask(lambda desk: desk.works.finish(work))
        if self.model.waiting(work) or self.model.claimed(work):
            assert (answer["closed"], answer["reason"]) == (False, "pending_user_input")
            return
        assert answer["closed"] is True
        if self.model.works[work] == "active":
            self.model.close_to_new(work)
        self.model.settle(work)

    @invariant()
    def the_operator_sees_what_is_so_and_the_agent_only_counts_of_it(self) -> None:
        async def look(desk: Desk) -> list[Any]:
            found = []
            for work in self.model.works:
                seen = await desk.inbox.intents(work_id=work)
                counted = await desk.works.status(work)
                lines = [
                    (each["intent_id"], each["state"], each["delivery"], each["text"], each["revision"])
                    for each in seen["intents"]
                ]
                found.append((work, counted["state"], counted["queued"], counted["claimed"], lines))
                assert set(counted) == {"work_id", "state", "queued", "claimed"}
            return found

        expected = [
            (
                work,
                state,
                len(self.model.waiting(work)),
                len(self.model.claimed(work)),
                [(each.name, each.state, each.delivery, each.text, each.revision) for each in self.model.order[work]],
            )
            for work, state in self.model.works.items()
        ]
        found = self.ask(look)
        for (*known, lines), (*told, seen) in zip(expected, found, strict=True):
            assert told == known
            # What is over keeps a place that may be shared by what took it; of those that wait the order is exact.
            assert sorted(seen) == sorted(lines)
            assert [each for each in seen if each[1] in UNSEEN] == [each for each in lines if each[1] in UNSEEN]

    def teardown(self) -> None:
        assert self.ask(lambda desk: desk.verified()) is True
        self.store.close()
        self.folder.cleanup()


def test_works_and_intents_are_what_a_plain_model_says_whatever_is_done_in_whatever_order() -> None:
    run_state_machine_as_test(
        Steering,
        settings=settings(
            max_examples=60,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
            phases=[Phase.reuse, Phase.generate],  # making a failure small would take minutes, each step writes
        ),
    )
