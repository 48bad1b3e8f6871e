"""Holds against a plain model, whatever callers and operator do, with crashes and restarts in between.

Rows, laws, admission and the audit chain are the product's; the world that a request would change is a
driver of the test's own, which counts effects. The model says in a few lines what is promised: nothing
runs without the operator, nothing runs twice, what ended stays as it ended, and its body is gone.
"""

from __future__ import annotations

import random
import sqlite3
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import trio
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from sqlite_utils import Database

from codespace.contract import Caller, Workspace
from codespace.errors import Refusal
from codespace.gateway import audit
from codespace.gateway.admission import Admission
from codespace.gateway.audit import Audit
from codespace.gateway.grants import Grants
from codespace.gateway.hold import Hold
from codespace.gateway.holds import Holds
from codespace.gateway.ledger import Ledger
from codespace.gateway.operation import Operation
from codespace.gateway.polls import Polls
from codespace.gateway.registry import Registry
from codespace.gateway.request import Fingerprints, Request
from codespace.gateway.scrubber import Scrubber
from codespace.gateway.store import Store

T = TypeVar("T")
TOOL = "exec_command"
"""Of which nobody can say, once its daemon is dead, whether it was started."""
Mood = Literal["works", "busy", "changed", "fails", "dies before", "dies after"]
MOODS: tuple[Mood, ...] = ("works", "works", "busy", "changed", "fails", "dies before", "dies after")
WORKSPACE = Workspace(id="w", root="/w", profile="workspace-write", approvals="operator")
CALLER = Caller("memory")
NAMES = ("a", "b", "c")
DICE = st.integers(0, 2**32)
# One number a step, mixed with the step's own: choices that Hypothesis draws one by one repeat each
# other so much that little comes to happen.
EXPIRY_SECONDS = 100.0


async def _none_lives(instance_id: str) -> bool:
    return False


class World:
    """What requests would change: the driver of a tool, as Admission sees one."""

    def __init__(self) -> None:
        self.effects: dict[str, int] = {}
        self.mood: Mood = "works"
        self.entered = trio.Event()

    async def authorize(self, workspace: Workspace, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return dict(arguments)

    async def preview(self, request: Request) -> dict[str, Any]:
        return {"files": [request.arguments["name"]], "diff": f"CANARY {request.arguments['name']}"}

    async def perform(self, request: Request, hold: Hold | None) -> dict[str, Any]:
        assert hold is not None, "it ran without a hold"
        if self.mood == "busy":
            raise Refusal("WORKSPACE_BUSY", "Something runs there.")
        if self.mood == "changed":
            raise Refusal("APPROVAL_CONFLICT", "The world had changed.")
        if self.mood == "fails":
            raise Refusal("PATCH_ROLLED_BACK", "It was put back.", operation_id="op-1")
        if self.mood != "dies before":
            self.effects[hold.id] = self.effects.get(hold.id, 0) + 1
        if self.mood.startswith("dies"):
            self.entered.set()
            await trio.sleep_forever()
        return {"name": request.arguments["name"]}

    async def replay(self, request: Request, operation: Operation) -> dict[str, Any]:
        raise AssertionError("no request here has a key")


@dataclass
class Held:
    """A hold in the model; `ended` is the code that a resume gets, `ok` where it ran."""

    name: str
    expires_at: float
    state: str = "pending"
    ended: str | None = None
    ran: int = 0


@dataclass
class Model:
    now: float = 0.0
    holds: dict[str, Held] = field(default_factory=dict)

    def look(self) -> None:
        for each in self.holds.values():
            if each.state in ("pending", "granted") and each.expires_at <= self.now:
                each.state, each.ended = "denied", "APPROVAL_EXPIRED"

    def active(self, name: str) -> str | None:
        ids = (id for id, each in self.holds.items() if each.name == name and each.state in ("pending", "granted"))
        return next(ids, None)

    def run(self, hold: str, mood: Mood) -> str:
        """Say what a resume of a granted hold answers, and what is left behind it."""
        held = self.holds[hold]
        if mood == "busy":
            return "WORKSPACE_BUSY"
        held.ran += mood in ("works", "dies after")
        answers: Mapping[str, str] = {"works": "ok", "changed": "APPROVAL_CONFLICT", "fails": "PATCH_ROLLED_BACK"}
        held.state, held.ended = "consumed", answers.get(mood, "APPROVAL_AMBIGUOUS")
        return held.ended


class Unflushed(Store):
    """A store that leaves flushing to the system: no power is lost here, and a busy disk would only take time."""

    async def write(self, fn: Callable[[Database], T], *, durable: bool = False) -> T:
        return await super().write(fn)


class Deciding(RuleBasedStateMachine):
    """Callers that ask and resume, an operator who decides, a clock, and a daemon that dies."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="holds-")
        self.path = str(Path(self.folder.name, "operations.sqlite"))
        self.store = Unflushed.open(self.path, inline=True)
        self.world, self.model, self.life = World(), Model(), 1
        self.steps = 0

    def ask(self, act: Callable[[Admission, Holds], Awaitable[Any]]) -> Any:
        """Return what the product answers, or the refusal; where the daemon dies meanwhile, that it died."""

        async def main() -> Any:
            self.world.entered = trio.Event()
            answers: list[Any] = []
            async with trio.open_nursery() as nursery:
                admission, holds = self.rooms(nursery)

                async def answer() -> None:
                    try:
                        answers.append(await act(admission, holds))
                    except Refusal as refusal:
                        answers.append(refusal)
                    nursery.cancel_scope.cancel()

                nursery.start_soon(answer)
                await self.world.entered.wait()
                nursery.cancel_scope.cancel()
            return answers[0] if answers else "died"

        return trio.run(main)

    def rooms(self, nursery: trio.Nursery) -> tuple[Admission, Holds]:
        own, clock = f"inst-{self.life}", lambda: self.model.now
        chain = Audit(clock, own)
        ledger = Ledger(self.store, clock, own, chain)
        scrubber = Scrubber(self.store, nursery)
        holds = Holds(
            self.store,
            ledger,
            chain,
            nursery,
            clock,
            own,
            Polls(),
            EXPIRY_SECONDS,
            left_over=lambda: None,
            scrubber=scrubber,
        )
        grants = Grants(self.store, ledger, chain, clock, own, scrubber, _none_lives)
        prints = Fingerprints(self.store.secret("fingerprint"))
        return Admission(Registry({"w": WORKSPACE}), ledger, holds, grants, prints, {TOOL: self.world}), holds

    def restart(self) -> None:
        self.store.close()
        self.store = Unflushed.open(self.path, inline=True)
        dead = f"inst-{self.life}"
        self.life += 1

        async def settle(_: Admission, holds: Holds) -> bool:
            chain = Audit(lambda: self.model.now, f"inst-{self.life}")
            ledger = Ledger(self.store, lambda: self.model.now, f"inst-{self.life}", chain)
            return await holds.settle(dead, ledger)

        assert self.ask(settle) is True

    def roll(self, number: int) -> random.Random:
        self.steps += 1
        return random.Random(number * 1_000_003 + self.steps)

    def known(self, dice: random.Random, *states: str) -> str:
        """Return a hold of the model; one in these states, where there is one."""
        wanted = [id for id, each in self.model.holds.items() if each.state in states]
        return dice.choice(wanted or list(self.model.holds))

    def check(self, answer: Any, expected: str, name: str) -> None:
        if expected == "ok":
            assert isinstance(answer, dict), answer
            assert answer["name"] == name
        else:
            assert isinstance(answer, Refusal), answer
            assert answer.code == expected

    # --- what happens ---

    @rule(number=DICE)
    def send(self, number: int) -> None:
        """A caller asks, or asks again."""
        dice = self.roll(number)
        name, mood = dice.choice(NAMES), dice.choice(MOODS)
        self.world.mood = mood
        self.model.look()
        hold = self.model.active(name)
        arguments = {"workspace_id": "w", "name": name, "patch": f"CANARY {name}"}
        answer = self.ask(lambda admission, _: admission.admit(TOOL, WORKSPACE, arguments, CALLER))
        if hold is not None and self.model.holds[hold].state == "granted":
            self.finish(answer, hold, mood)
            return
        assert isinstance(answer, Refusal), answer
        assert answer.code == "APPROVAL_REQUIRED"
        assert answer.approval_id is not None
        if hold is None:
            assert answer.approval_id not in self.model.holds
            self.model.holds[answer.approval_id] = Held(name, self.model.now + EXPIRY_SECONDS)
        else:
            assert answer.approval_id == hold

    @precondition(lambda self: self.model.holds)
    @rule(number=DICE)
    def resume(self, number: int) -> None:
        """A caller resumes a hold that it knows, mostly one that was granted."""
        dice = self.roll(number)
        mood = self.world.mood = dice.choice(MOODS)
        self.model.look()
        hold = self.known(dice, *dice.choice([("granted",), ("granted",), ("consumed",), ()]))
        held = self.model.holds[hold]

        async def act(admission: Admission, holds: Holds) -> dict[str, Any]:
            return await admission.resume(await holds.get(hold), CALLER)

        answer = self.ask(act)
        if held.state == "granted":
            self.finish(answer, hold, mood)
        elif held.state == "pending":
            self.check(answer, "APPROVAL_REQUIRED", held.name)
        else:
            assert held.ended is not None
            self.check(answer, held.ended, held.name)

    def finish(self, answer: Any, hold: str, mood: Mood) -> None:
        expected = self.model.run(hold, mood)
        if mood.startswith("dies"):
            assert answer == "died"
            self.restart()
        else:
            self.check(answer, expected, self.model.holds[hold].name)

    @precondition(lambda self: self.model.holds)
    @rule(number=DICE)
    def decide(self, number: int) -> None:
        """The operator decides, mostly on what waits, or a caller tries to."""
        dice = self.roll(number)
        decision, caller = dice.choice(["grant", "grant", "grant", "deny"]), dice.random() < 0.2
        self.model.look()
        hold = self.known(dice, *dice.choice([("pending",), ("pending",), ("granted",), ()]))
        held = self.model.holds[hold]
        authority: Literal["caller", "operator"] = "caller" if caller else "operator"
        answer = self.ask(lambda _, holds: holds.resolve(hold, decision, by="test", authority=authority))
        wanted = "granted" if decision == "grant" else "denied"
        if caller:
            self.check(answer, "UNAUTHORIZED", held.name)
        elif held.ended == "APPROVAL_EXPIRED":
            self.check(answer, "APPROVAL_EXPIRED", held.name)
        elif held.state == wanted or held.state == "pending" or (held.state, decision) == ("granted", "deny"):
            assert answer.state == wanted
            if wanted == "denied" and held.state != "denied":
                held.ended = "UNAUTHORIZED"
            held.state = wanted
        else:
            self.check(answer, "APPROVAL_CONFLICT", held.name)

    @rule(number=DICE)
    def wait(self, number: int) -> None:
        self.model.now += self.roll(number).choice([1.0, 10.0, 30.0, EXPIRY_SECONDS])

    @rule()
    def sweep(self) -> None:
        self.model.look()
        self.ask(lambda _, holds: holds.sweep())
        with sqlite3.connect(self.path) as db:
            rows = db.execute("SELECT id, state FROM holds").fetchall()
        db.close()
        assert dict(rows) == {id: each.state for id, each in self.model.holds.items()}

    @rule()
    def end_and_start_again(self) -> None:
        self.restart()

    # --- what is always so ---

    @invariant()
    def nothing_ran_unwanted_or_twice_and_what_ended_has_no_body(self) -> None:
        self.model.look()
        assert self.world.effects == {id: each.ran for id, each in self.model.holds.items() if each.ran}
        assert max(self.world.effects.values(), default=0) <= 1

        async def look(_: Admission, holds: Holds) -> list[Hold]:
            return [await holds.get(id) for id in self.model.holds]

        for hold in self.ask(look):
            held = self.model.holds[hold.id]
            assert hold.state == held.state
            assert (hold.body is None) == (held.state in ("denied", "consumed"))
            assert ("CANARY" in repr(hold)) == (hold.body is not None)

    def teardown(self) -> None:
        async def verify(*_: Any) -> bool:
            return (await self.store.read(audit.verify)).ok

        assert self.ask(verify) is True
        self.store.close()
        self.folder.cleanup()


def test_holds_are_what_a_plain_model_says_whatever_is_done_in_whatever_order() -> None:
    run_state_machine_as_test(
        Deciding,
        settings=settings(
            max_examples=100,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
            phases=[Phase.reuse, Phase.generate],  # making a failure small would take minutes, each step writes
        ),
    )
