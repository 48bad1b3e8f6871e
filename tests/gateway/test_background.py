"""What the daemon does in the background: a fault in it ends one turn, never the daemon."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import structlog.testing
import trio

from codespace import limits
from codespace.gateway.database import connect
from codespace.gateway.stops import Stops
from codespace.testing import Bench, open_bench
from codespace.testing.faulty import Faults, crash

PATCH = "*** Begin Patch\n*** Add File: a.txt\n+a\n*** End Patch\n"
DAMAGED = "{"  # no JSON


@pytest.fixture(autouse=True)
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    for name in ("HOLD_SWEEP", "PRUNE", "RECORD_RETRY", "STOP_LOOK"):
        monkeypatch.setattr(limits, f"{name}_SECONDS", 0.02)
    with structlog.testing.capture_logs() as entries:
        yield entries


async def met(log: list[Any], event: str, times: int = 1) -> None:
    """Return once a fault was logged so often: it was met, and its loop went on."""
    with trio.fail_after(30):
        while len([entry for entry in log if entry["event"] == event]) < times:
            await trio.lowlevel.checkpoint()


async def still_works(bench: Bench) -> None:
    assert (await bench.call("apply_patch", patch=PATCH))["status"] == "applied"


async def test_a_runner_that_fails_to_end_a_process_for_another_daemon_ends_no_daemon(log: list[Any]) -> None:
    faults = Faults()
    async with open_bench(occupancy="shared", runner=faults.open_runner) as bench:
        ran = await bench.call("exec_command", command=["sleep", "1000"], wait_seconds=0)
        ledger = bench.daemon.tools._ledger  # type: ignore[attr-defined]
        asks = Stops(ledger._store, bench.clock, "inst-another")
        faults.order("before", "terminate", crash)
        await asks.ask(ran["process_id"], ledger._instance_id, 0)
        await met(log, "a process was not ended as asked")
        assert (await bench.call("process_status", process_id=ran["process_id"]))["state"] == "running"
        await asks.ask(ran["process_id"], ledger._instance_id, 0)
        with trio.fail_after(30):
            while (await bench.call("process_status", process_id=ran["process_id"]))["state"] == "running":
                await trio.lowlevel.checkpoint()
        await still_works(bench)


async def test_a_runner_that_fails_to_look_at_snapshots_ends_no_daemon(log: list[Any]) -> None:
    faults = Faults()
    async with open_bench(runner=faults.open_runner) as bench:
        for _ in range(2):
            faults.order("before", "expired", crash)
            await met(log, "snapshots could not be pruned", len(faults.met) + 1)
        await still_works(bench)


@pytest.mark.parametrize(
    ("damage", "event"),
    [
        ("UPDATE holds SET body = ?, expires_at = 0", "holds could not be swept yet"),
        ("UPDATE operations SET files = ?, finished_at = NULL", "leftovers could not be looked for yet"),
    ],
)
async def test_a_row_that_something_else_damaged_ends_no_daemon(damage: str, event: str, log: list[Any]) -> None:
    held = {"root": None, "approvals": "confirm", "profile": "workspace-write"}
    async with open_bench(others={"held": held}) as bench:
        await bench.call(
            "approval_create", tool="exec_command", arguments={"workspace_id": "held", "command": ["true"]}
        )
        await bench.call("exec_command", workspace_id="main", command=["true"])
        with connect(bench.daemon.settings.database) as db:
            db.execute(damage, (DAMAGED,))
        bench.daemon.tools._patching._left_over()  # type: ignore[attr-defined]
        await met(log, event, 2)
        assert (await bench.call("apply_patch", workspace_id="main", patch=PATCH))["status"] == "applied"
