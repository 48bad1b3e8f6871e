"""What the gateway's side keeps of processes that have ended."""

from __future__ import annotations

from dataclasses import replace

from codespace import limits
from codespace.contract import Spawned
from codespace.runner.worker.mirror import Mirror


async def test_processes_that_were_forgotten_push_no_other_one_out() -> None:
    mirror = Mirror(60, lambda: 1.0)

    def run(process_id: str) -> None:
        mirror.begin(process_id, Spawned(started_at=1.0, sandbox="none", network="none"), 1)
        mirror.update(replace(mirror.find(process_id).state, state="exited"))

    run("kept")
    for number in range(limits.RETAINED_PROCESSES + 1):
        run(f"{number}")
        assert mirror.forget(f"{number}")
    assert mirror.knows("kept")
    for number in range(limits.RETAINED_PROCESSES):
        run(f"{number}")
    assert not mirror.knows("kept")
