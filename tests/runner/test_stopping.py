"""Work in a thread ends with its caller, and its caller waits for it, for a time."""

from __future__ import annotations

import os
import select
import threading

import pytest
import trio
import trio.testing

from codespace import limits
from codespace.runner.search.stopping import Stop, run_stoppable


@pytest.fixture
def limiter() -> trio.CapacityLimiter:
    return trio.CapacityLimiter(1)


async def test_the_result_comes_back_and_no_descriptor_stays(limiter: trio.CapacityLimiter) -> None:
    before = os.listdir("/proc/self/fd")
    assert await run_stoppable(lambda stop: 42, limiter) == 42
    assert os.listdir("/proc/self/fd") == before


async def test_an_error_comes_back_as_itself(limiter: trio.CapacityLimiter) -> None:
    def work(stop: Stop) -> int:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await run_stoppable(work, limiter)


async def test_a_cancelled_caller_says_stop_and_waits_for_the_end(limiter: trio.CapacityLimiter) -> None:
    running = trio.Event()
    token = trio.lowlevel.current_trio_token()
    ended: list[str] = []

    def work(stop: Stop) -> int:
        token.run_sync_soon(running.set)
        select.select([stop.fd], [], [])
        ended.append("cleaned up")
        return 0

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_stoppable, work, limiter)
        await running.wait()
        nursery.cancel_scope.cancel()
    assert ended == ["cleaned up"]


async def test_a_caller_cancelled_in_the_queue_never_starts(limiter: trio.CapacityLimiter) -> None:
    before = os.listdir("/proc/self/fd")
    began: list[str] = []

    def work(stop: Stop) -> int:
        began.append("began")
        return 0

    async with limiter:
        with trio.move_on_after(0.01) as scope:
            await run_stoppable(work, limiter)
    assert scope.cancelled_caught
    assert began == []
    assert os.listdir("/proc/self/fd") == before


async def test_a_thread_that_does_not_hear_is_left_behind_after_a_time(
    limiter: trio.CapacityLimiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "REAP_SECONDS", 0.05)
    release = threading.Event()
    with trio.fail_after(60):
        with trio.move_on_after(0.05) as scope:
            await run_stoppable(lambda stop: release.wait(60), limiter)
        assert scope.cancelled_caught
        release.set()
        async with limiter:  # its turn is given back once it has ended
            pass


async def test_a_cancel_at_the_very_end_does_not_wait_for_what_is_over(
    limiter: trio.CapacityLimiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread ends while the loop is busy, so that the cancel is seen before the result."""
    monkeypatch.setattr(limits, "REAP_SECONDS", 60.0)
    done = threading.Event()

    def work(stop: Stop) -> int:
        done.set()
        return 1

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_stoppable, work, limiter)
        await trio.testing.wait_all_tasks_blocked()
        done.wait()  # blocks the loop on purpose
        nursery.cancel_scope.cancel()
    assert trio.current_time() - began < limits.REAP_SECONDS / 2
