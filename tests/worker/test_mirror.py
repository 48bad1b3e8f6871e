"""What the gateway's side keeps of processes that have ended."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import trio

from codespace import limits
from codespace.contract import Spawned
from codespace.runner.output import kept
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


async def test_a_process_is_lost_with_its_worker_also_where_the_disk_with_its_output_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    released, looked = threading.Event(), list[str]()

    def hang(folder: str) -> kept.Kept:
        looked.append(folder)
        released.wait()
        return kept.Kept()

    monkeypatch.setattr(kept, "look", hang)
    monkeypatch.setattr(limits, "WORKER_TOTALS_SECONDS", 0.05)
    mirror = Mirror(60, lambda: 1.0)
    mirror.begin("proc-1", Spawned(started_at=1.0, sandbox="none", network="none", spool="/spool"), 1)
    told = {"combined": 3, "stdout": 2, "stderr": 1}
    mirror.update(replace(mirror.find("proc-1").state, output_total=told))
    try:
        with trio.fail_after(20):
            await mirror.leave(1)
    finally:
        released.set()
    lost = mirror.find("proc-1")
    assert looked == ["/spool"]
    assert (lost.is_left, lost.state.termination, lost.state.output_total) == (True, "lost", told)
