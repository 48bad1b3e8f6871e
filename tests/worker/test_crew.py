"""Who starts workers and buries them, where something comes in between: nobody waits for ever."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
import trio

from codespace import limits
from codespace.runner import uds
from codespace.runner.uds import Uds
from codespace.runner.worker import hire
from codespace.testing import processes


@pytest.fixture(autouse=True)
def _unsaid() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield


@asynccontextmanager
async def opened(state: Path) -> AsyncIterator[Uds]:
    with trio.fail_after(60):
        async with uds.open_runner(
            state_dir=str(state), rg_path=None, bwrap_path=None, retention_seconds=60, wall_clock=time.time
        ) as runner:
            assert isinstance(runner, Uds)
            yield runner


async def kill(runner: Uds) -> None:
    """Kill the worker and wait until it is buried."""
    pid = runner.worker
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await runner._crew.wait_buried(1)
    assert not processes.is_alive(pid)


@asynccontextmanager
async def bounded(runner: Uds) -> AsyncIterator[None]:
    """Fail where the block takes long; a shield that keeps somebody waiting ends with the worker and nothing else."""
    async with trio.open_nursery() as nursery:

        async def end() -> None:
            await trio.sleep(20)
            if runner.worker is not None:
                os.kill(runner.worker, signal.SIGKILL)
            raise AssertionError("somebody waits for ever")

        nursery.start_soon(end)
        yield
        nursery.cancel_scope.cancel()


async def test_a_caller_who_goes_in_the_turn_in_which_a_workers_hello_arrives_takes_nobody_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as runner:
        await kill(runner)
        scope = trio.CancelScope()
        check = hire.check_hello

        def check_and_cancel(*arguments: Any) -> Any:
            scope.cancel()
            return check(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(hire, "check_hello", check_and_cancel)
            async with bounded(runner):
                with scope:
                    await runner.leftovers()
        assert scope.cancelled_caught
        assert runner.worker is None, "a worker that was being started is ended again"
        assert await runner.leftovers() == ()


async def test_a_worker_that_the_kernel_holds_is_given_up_in_time_and_the_next_one_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as runner:
        held = runner._crew._worker
        assert held is not None
        try:
            with monkeypatch.context() as patch:
                patch.setattr(limits, "WORKER_STOP_SECONDS", 0.05)
                patch.setattr(limits, "WORKER_TREES_SECONDS", 0.05)
                patch.setattr(hire.Worker, "kill", lambda _: None)  # a SIGKILL that waits for the kernel
                os.kill(held.pid, signal.SIGSTOP)
                link = runner._crew.link_nowait()
                assert link is not None
                link.close()
                with trio.fail_after(10):
                    await runner._crew.wait_buried(1)
            assert processes.is_alive(held.pid)
            assert await runner.leftovers() == ()
            assert runner.worker not in (None, held.pid)
        finally:
            held._process.kill()
            held._process.wait()
