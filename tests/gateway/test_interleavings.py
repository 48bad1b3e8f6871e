"""Many callers at once, cancelled at any moment, with a runner that fails now and then: what must hold at the end.

Each seed is one random play on one bench. The invariants are those of the ledger: every operation has
its end or its process lives, the tree is what the applied patches make of it, the root is free, and
nothing is kept for work that is over.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import structlog.testing
import trio

from codespace import limits
from codespace.errors import Refusal
from codespace.gateway import audit
from codespace.gateway.database import connect
from codespace.gateway.recovery import Leftovers
from codespace.testing import Bench, open_bench
from codespace.testing.faulty import Faults, crash, hang
from codespace.testing.site import tree

FINAL = {"applied", "rejected", "failed_rolled_back", "failed_partial", "exited", "spawn_failed", "lost"}
VERBS = ("plan", "stage", "install", "verify", "restore", "finish", "settle", "spawn", "wait_exit")
CALLERS = 6
CALLS = 10


@pytest.fixture(autouse=True)
def _quietly() -> Iterator[None]:
    """Keep the log: printing hundreds of ordered tracebacks takes longer than the plays."""
    with structlog.testing.capture_logs():
        yield


class Play:
    """One random play: what its callers do, and what they know that the tree must be."""

    def __init__(self, bench: Bench, chance: random.Random, faults: Faults | None) -> None:
        self.bench = bench
        self.chance = chance
        self.faults = faults
        self.codes: list[str] = []
        self.marks: dict[str, str] = {}
        """The file that each patch adds, by the operation_key of the patch."""

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any] | None:
        try:
            return await self.bench.call(tool, **arguments)
        except Refusal as refusal:
            self.codes.append(refusal.code)
            return refusal.body()

    async def patch(self) -> None:
        key = f"p{self.chance.randrange(20)}"
        mark = self.marks.setdefault(key, f"marks/{key}.txt")
        patch = f"*** Begin Patch\n*** Add File: {mark}\n+{key}\n*** Update File: f0.txt\n@@\n+{key}\n*** End Patch\n"
        body = await self.call("apply_patch", patch=patch, operation_key=key)
        if body is not None and body.get("code") == "APPROVAL_REQUIRED":
            await self.decide(body["approval_id"])

    async def command(self) -> None:
        seconds = self.chance.choice(["0", "0", "0.01", "0.05", "1000"])
        key = self.chance.choice([None, f"c{self.chance.randrange(6)} {seconds}"])
        named = {} if key is None else {"operation_key": key}
        wait = self.chance.choice([0, 0.02, 0.1])
        body = await self.call("exec_command", command=["sleep", seconds], wait_seconds=wait, **named)
        if body is not None and body.get("code") == "APPROVAL_REQUIRED":
            await self.decide(body["approval_id"])

    async def terminate(self) -> None:
        listed = await self.call("list_processes")
        for each in (listed or {}).get("processes", []):
            await self.call("terminate_process", process_id=each["process_id"], grace_seconds=0)

    async def decide(self, approval_id: str) -> None:
        decision = self.chance.choice(["grant", "grant", "deny"])
        await self.call("approval_resolve", approval_id=approval_id, decision=decision)
        await self.call("operation_resume", approval_id=approval_id)

    async def fault(self) -> None:
        if self.faults is not None:
            when = self.chance.choice(["before", "after"])
            verb = self.chance.choice(VERBS)
            # An exit is waited for as long as the command lives: nothing could tell a hang there from a long command.
            acts = [crash, crash, crash if verb == "wait_exit" else hang]
            self.faults.order(when, verb, self.chance.choice(acts))  # type: ignore[arg-type]

    async def caller(self) -> None:
        acts: list[Callable[[], Awaitable[None]]] = [self.patch] * 4
        acts += [self.command] * 2 + [self.terminate] * 2 + [self.fault]
        for _ in range(CALLS):
            patience = self.chance.choice([0.002, 0.01, 0.03, 30, 30])
            with trio.move_on_after(patience):
                await self.chance.choice(acts)()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(CALLERS):
                nursery.start_soon(self.caller)


def operations(bench: Bench) -> list[dict[str, Any]]:
    with connect(bench.daemon.settings.database) as db:
        return list(db.query("SELECT id, kind, state, operation_key, process_id FROM operations"))


async def settled(bench: Bench) -> None:
    """End what lives, then wait until every row has its end: the daemon sees to it by itself.

    More than once, since a request whose caller was cancelled may only now come to its driver.
    """
    gate: Any = bench.daemon.tools
    execution = gate._admission._drivers["exec_command"]
    leftovers: Leftovers = execution._left_over.__self__
    with trio.fail_after(90):
        while any(row["state"] not in FINAL for row in operations(bench)):
            await execution.end_all(0)
            await gate._patching.wait_idle()
            await gate._holds.wait_idle()
            await leftovers.wait_none()


def check(bench: Bench, play: Play) -> None:
    rows = [row for row in operations(bench) if row["state"] == "applied"]
    applied = {row["operation_key"] for row in rows if row["operation_key"] is not None}
    found = tree(bench.root)
    assert {name for name in found if name.startswith("marks/")} == {play.marks[key] for key in applied}
    assert sorted(found["f0.txt"].decode().split()) == sorted(["base", *applied])
    assert not [name for name in found if ".codespace-" in name]
    with connect(bench.daemon.settings.database) as db:
        assert audit.verify(db).ok
        assert not list(db.query("SELECT id FROM holds WHERE state = 'resuming'"))


def gate_is_busy(bench: Bench) -> bool:
    """Return whether a driver is still at work, such as sweeping behind a fault."""
    gate: Any = bench.daemon.tools
    drivers = gate._admission._drivers
    under_way = gate._patching.under_way | drivers["exec_command"].under_way
    return bool(under_way or gate._holds._running)


def check_nothing_is_kept(bench: Bench) -> None:
    """Look into the rooms: an outside view cannot show what is kept for work that is over."""
    execution: Any = bench.daemon.tools._admission._drivers["exec_command"]  # type: ignore[attr-defined]
    assert all(run.ended and run.told.is_set() for run in execution._runs)


def give_up_after(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VERB_SECONDS", "TIDY_SECONDS"):
        monkeypatch.setattr(limits, name, seconds)


@pytest.mark.parametrize(("approvals", "occupancy"), [("off", "shared"), ("off", "exclusive"), ("confirm", "shared")])
@pytest.mark.parametrize("faulty", [False, True])
@pytest.mark.parametrize("seed", range(2))
async def test_whatever_callers_do_at_once_every_row_gets_its_end_and_the_tree_is_what_was_applied(
    seed: int, faulty: bool, approvals: str, occupancy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RECORD_RETRY_SECONDS", 0.02)
    give_up_after(0.5 if faulty else 60.0, monkeypatch)
    faults = Faults()
    chance = random.Random(f"{seed} {faulty} {approvals} {occupancy}")
    options: dict[str, Any] = {"approvals": approvals, "occupancy": occupancy, "runner": faults.open_runner}
    async with open_bench(files={"f0.txt": "base\n"}, **options) as bench:
        play = Play(bench, chance, faults if faulty else None)
        await play.run()
        faults.forget()
        give_up_after(60.0, monkeypatch)  # from here on no verb hangs, and a slow machine is no fault
        await settled(bench)
        free = "*** Begin Patch\n*** Add File: free.txt\n+free\n*** End Patch\n"
        answer = await play.call("apply_patch", patch=free)
        assert answer is not None
        if approvals == "confirm":
            await bench.call("approval_resolve", approval_id=answer["approval_id"], decision="grant")
            answer = await bench.call("operation_resume", approval_id=answer["approval_id"])
            answer = answer["apply_patch"]
        assert answer["status"] == "applied"
        with trio.fail_after(60):
            while gate_is_busy(bench):
                await trio.lowlevel.checkpoint()
        assert faulty or "INTERNAL" not in play.codes
        check(bench, play)
        check_nothing_is_kept(bench)
        await bench.restart()
        check(bench, play)
