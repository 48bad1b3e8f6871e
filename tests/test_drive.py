"""The drive: decide, record, adopt; and what is true when any of it is cut short."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from statemachine import StateMachine

from codespace import limits
from codespace.drive import UNKNOWN, Impossible, Motion, Nothing, Stale, Step, decide, finals
from codespace.errors import Refusal
from codespace.gateway import audit
from codespace.gateway.audit import Audit
from codespace.gateway.ledger import Ledger, Operation
from codespace.gateway.store import Store
from statemachines.approval import Approval
from statemachines.execution import Execution
from statemachines.patch import Patch


class Notebook:
    """A recorder in memory, with the compare-and-set of the real one and faults on order."""

    def __init__(self, state: str) -> None:
        self.state = state
        self.steps: list[Step] = []
        self.before: Callable[[], object] = lambda: None
        self.after: Callable[[], object] = lambda: None
        self.pause: trio.Event | None = None
        self.looks = 0

    async def record(self, steps: Sequence[Step]) -> None:
        await trio.lowlevel.checkpoint()
        if self.pause is not None:
            await self.pause.wait()
        self.before()
        if steps[0].source != self.state:
            raise Stale(steps[0].subject, steps[0].source, self.state)
        self.steps += steps
        self.state = steps[-1].target
        self.after()

    async def look(self, subject: str) -> str | None:
        await trio.lowlevel.checkpoint()
        self.looks += 1
        return self.state


def unavailable(**details: str) -> Callable[[], object]:
    def fail() -> None:
        raise Refusal("STORE_UNAVAILABLE", "A fault on order.", details=details or {"outcome": "nothing"})

    return fail


def patch_motion(state: str = "minted") -> tuple[Motion, Notebook]:
    notebook = Notebook(state)
    return Motion(Patch, "op-1", state, notebook), notebook


async def test_a_move_records_the_step_with_its_reason_and_then_is_in_the_new_state() -> None:
    motion, notebook = patch_motion()
    await motion.move("admitted", changes={"files": ["a"]}, details={"why": "test"})

    (step,) = notebook.steps
    assert (step.machine, step.subject) == ("patch", "op-1")
    assert (step.source, step.event, step.target) == ("minted", "admitted", "planning")
    assert step.reason == decide(Patch, "minted", "admitted")[1]
    assert (step.changes, step.details) == ({"files": ["a"]}, {"why": "test"})
    assert motion.state == "planning"


async def test_several_events_are_one_record_and_changes_go_with_the_last() -> None:
    notebook = Notebook("running")
    motion = Motion(Execution, "op-1", "running", notebook)
    await motion.move("ended", "drained", changes={"outcome": {"exit_code": 0}})

    assert [(step.target, dict(step.changes)) for step in notebook.steps] == [
        ("draining", {}),
        ("exited", {"outcome": {"exit_code": 0}}),
    ]
    assert motion.ended


async def test_an_impossible_event_records_nothing_even_behind_a_possible_one() -> None:
    motion, notebook = patch_motion()
    with pytest.raises(Impossible, match="'verified' cannot happen in state 'planning'; nothing was recorded"):
        await motion.move("admitted", "verified")
    assert (notebook.steps, motion.state) == ([], "minted")


async def test_a_move_of_no_events_does_nothing() -> None:
    motion, notebook = patch_motion()
    await motion.move()
    assert (notebook.steps, motion.state) == ([], "minted")


def test_can_says_what_may_happen_now() -> None:
    motion, _ = patch_motion("applying")
    assert motion.can("failed")
    assert not motion.can("refused")
    assert not motion.can("no_such_event")


@pytest.mark.parametrize(
    ("law", "state", "event", "durable"),
    [
        (Patch, "minted", "admitted", False),
        (Patch, "planning", "planned", False),
        (Patch, "snapshotting", "staged", True),
        (Patch, "applying", "installed", False),
        (Patch, "verifying", "verified", True),
        (Patch, "planning", "refused", True),
        (Execution, "minted", "start_ordered", False),
        (Execution, "draining", "drained", True),
        (Approval, "pending", "grant_given", False),
        (Approval, "resuming", "request_ended", True),
    ],
)
def test_final_states_and_applying_are_flushed_and_nothing_else(
    law: type[StateMachine], state: str, event: str, durable: bool
) -> None:
    (step,) = Motion(law, "x", state, Nothing()).steps(event)
    assert step.durable is durable
    (ordered,) = Motion(law, "x", state, Nothing()).steps(event, durable=not durable)
    assert ordered.durable is not durable


async def test_a_stale_record_leaves_the_state_as_it_was() -> None:
    motion, notebook = patch_motion()
    notebook.state = "rejected"
    with pytest.raises(Stale, match="op-1 is recorded as 'rejected', not as 'minted'; nothing was recorded"):
        await motion.move("admitted")
    assert motion.state == "minted"


async def test_a_recorder_that_stores_nothing_lets_a_plan_walk_the_same_law() -> None:
    motion = Motion(Patch, "preview", "minted", Nothing())
    await motion.move("admitted", "previewed")
    assert motion.state == "checked"


async def test_a_cancel_while_recording_is_delivered_after_the_step_is_adopted() -> None:
    motion, notebook = patch_motion()
    notebook.pause = trio.Event()
    scope, reached = trio.CancelScope(), list[str]()

    async def drive() -> None:
        with scope:
            await motion.move("admitted")
            reached.append(motion.state)
            await trio.lowlevel.checkpoint()
            reached.append("the line behind the checkpoint")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(drive)
        await trio.testing.wait_all_tasks_blocked()
        scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert (notebook.state, motion.state, reached) == ("minted", "minted", [])
        notebook.pause.set()
    assert (notebook.state, reached) == ("planning", ["planning"])
    assert scope.cancelled_caught


async def test_cleaning_up_under_a_cancel_can_still_record() -> None:
    motion, notebook = patch_motion()
    with trio.CancelScope() as scope:
        scope.cancel()
        await motion.move("refused")
    assert (notebook.state, motion.state) == ("rejected", "rejected")


async def test_a_refused_record_is_not_looked_up_because_it_says_that_nothing_was_written() -> None:
    motion, notebook = patch_motion()
    notebook.before = unavailable()
    with pytest.raises(Refusal, match="STORE_UNAVAILABLE"):
        await motion.move("admitted")
    assert (motion.state, notebook.looks) == ("minted", 0)


async def test_a_record_of_unknown_outcome_is_adopted_when_it_is_found() -> None:
    motion, notebook = patch_motion()
    notebook.after = unavailable(outcome=UNKNOWN)
    await motion.move("admitted")
    assert (motion.state, notebook.looks) == ("planning", 1)


async def test_a_record_of_unknown_outcome_is_reported_when_it_is_not_found() -> None:
    motion, notebook = patch_motion()
    notebook.before = unavailable(outcome=UNKNOWN)
    with pytest.raises(Refusal, match="STORE_UNAVAILABLE"):
        await motion.move("admitted")
    assert motion.state == "minted"
    notebook.before = lambda: None
    await motion.move("refused")
    assert motion.state == "rejected"


async def test_a_recorder_that_hangs_is_left_after_its_time_and_looked_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    motion, notebook = patch_motion()
    notebook.pause = trio.Event()
    began = trio.current_time()
    with pytest.raises(Refusal, match="STORE_UNAVAILABLE"):
        await motion.move("admitted")
    assert trio.current_time() - began == pytest.approx(limits.RECORD_SECONDS)
    assert (motion.state, notebook.looks) == ("minted", 1)


async def test_while_the_look_fails_too_nothing_is_claimed_and_the_next_move_looks_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    motion, notebook = patch_motion()
    notebook.after = unavailable(outcome=UNKNOWN)
    seeing, look = trio.Event(), notebook.look

    async def blind(subject: str) -> str | None:
        await seeing.wait()
        return await look(subject)

    notebook.look = blind  # type: ignore[method-assign]
    for _ in range(2):
        with pytest.raises(Refusal, match="is not known yet") as caught:
            await motion.move("admitted")
        assert caught.value.details == {"outcome": UNKNOWN}
        assert motion.state == "minted"

    seeing.set()
    notebook.after = lambda: None
    await motion.move("refused")
    assert [step.event for step in notebook.steps] == ["admitted", "refused"]
    assert motion.state == "rejected"


# --- random cancel time, slow store, every state ---


@asynccontextmanager
async def open_ledger(path: str) -> AsyncIterator[tuple[Ledger, Store]]:
    store = Store.open(path)
    try:
        yield Ledger(store, lambda: 1000.0, "inst-1", Audit(lambda: 1000.0, "inst-1")), store
    finally:
        store.close()


def operation(law: type[StateMachine], state: str) -> Operation:
    kind = "patch" if law is Patch else "exec"
    return Operation("op-1", kind, "a tool", "w", "/root", "key", "fingerprint", state, "inst-1", 1000.0)  # type: ignore[arg-type]


class Slow:
    """The real recorder, which the test holds up before and after the transaction."""

    def __init__(self, ledger: Ledger, waits: random.Random) -> None:
        self._inner = ledger.recorder("operation")
        self._waits = waits

    async def record(self, steps: Sequence[Step]) -> None:
        await self._dawdle()
        await self._inner.record(steps)
        await self._dawdle()

    async def look(self, subject: str) -> str | None:
        return await self._inner.look(subject)

    async def _dawdle(self) -> None:
        for _ in range(self._waits.randrange(4)):
            await trio.lowlevel.checkpoint()


async def drive_to_the_end(law: type[StateMachine], motion: Motion, choices: random.Random) -> None:
    """A driver: any possible next event, pauses between; when it is cancelled, the shortest way to an end."""
    try:
        while not motion.ended:
            await motion.move(choices.choice(possible(law, motion.state)))
            for _ in range(choices.randrange(4)):
                await trio.lowlevel.checkpoint()
    finally:
        while not motion.ended:
            await motion.move(shortest(law, motion.state))  # noqa: ASYNC102 - a move shields itself, with a deadline


def possible(law: type[StateMachine], state: str) -> list[str]:
    return sorted(step.event for known in law.states if known.id == state for step in known.transitions)


def shortest(law: type[StateMachine], state: str) -> str:
    """Return the first event of a shortest way from `state` to a final one."""
    front = [(event, decide(law, state, event)[0]) for event in possible(law, state)]
    while True:
        for first, here in front:
            if here in finals(law):
                return first
        front = [(first, decide(law, here, event)[0]) for first, here in front for event in possible(law, here)]


@pytest.mark.parametrize("law", [Patch, Execution], ids=lambda law: law.__name__)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_random_cancel_time_slow_store_every_state_the_recorded_steps_join_up_and_end_in_a_final_state(
    law: type[StateMachine], data: st.DataObject
) -> None:
    state = data.draw(st.sampled_from(sorted(known.id for known in law.states)), "state")
    cancel_after = data.draw(st.integers(0, 60), "cancelled after so many turns of the loop")
    seed = data.draw(st.integers(0, 2**16), "seed")

    async def main() -> None:
        async with open_ledger(":memory:") as (ledger, store):
            await ledger.mint(operation(law, state))
            choices = random.Random(seed)
            motion = Motion(law, "op-1", state, Slow(ledger, choices))
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(drive_to_the_end, law, motion, choices)
                    for _ in range(cancel_after):
                        await trio.lowlevel.checkpoint()
                    scope.cancel()

            stored = await ledger.get("op-1")
            assert stored is not None
            events = (await ledger.events("op-1"))[1:]
            where = state
            for event in events:
                assert event.source == where
                assert (event.target, event.reason) == decide(law, where, event.event)
                where = event.target
            assert where == stored.state == motion.state
            assert where in finals(law)
            assert (stored.finished_at is not None) == bool(events)
            assert (await store.read(audit.verify)).ok

    trio.run(main)


@pytest.mark.parametrize("law", [Patch, Execution], ids=lambda law: law.__name__)
async def test_a_driver_that_is_cancelled_in_any_state_of_a_file_database_ends_in_a_final_one(
    law: type[StateMachine], tmp_path: Path
) -> None:
    for state in [known.id for known in law.states]:
        async with open_ledger(str(tmp_path / f"{state}.sqlite")) as (ledger, _):
            await ledger.mint(operation(law, state))
            motion = Motion(law, "op-1", state, ledger.recorder("operation"))
            with trio.CancelScope() as scope:
                scope.cancel()
                await drive_to_the_end(law, motion, random.Random(state))
            stored = await ledger.get("op-1")
            assert stored is not None
            assert stored.state == motion.state
            assert stored.state in finals(law)
