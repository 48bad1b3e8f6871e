"""Starts while descriptors are short: each is refused with a step that can be taken, and nothing is left of it."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from codespace.contract import Workspace
from codespace.errors import Refusal
from codespace.runner.keeper import Keeper
from codespace.runner.roots import Roots
from codespace.sandbox import shortage
from codespace.sandbox.box import Sandbox
from codespace.testing.shortage import descriptors

from .supervised import open_bench, refused

ENOUGH = 24
"""Descriptors that a start never needs at once."""


@asynccontextmanager
async def keeper() -> AsyncIterator[Keeper]:
    started = Keeper()
    try:
        yield started
    finally:
        await started.aclose()


@pytest.mark.parametrize("sandbox", [None, Sandbox()], ids=["plain", "boxed"])
async def test_a_start_that_is_short_of_descriptors_is_refused_or_runs_and_leaves_nothing(
    tmp_path: Path, sandbox: Sandbox | None
) -> None:
    ends: list[str | Refusal] = []
    async with open_bench(tmp_path, sandbox=sandbox) as bench:
        await bench.run("/bin/true")
        for left in range(ENOUGH):
            try:
                with descriptors(left):
                    process_id = await bench.spawn("/bin/echo", "here")
            except Refusal as refusal:
                ends.append(refusal)
            else:
                await bench.supervisor.wait_exit(process_id)
                ends.append((await bench.read(process_id)).text)
    refusals = [end for end in ends if isinstance(end, Refusal)]
    assert ends == [*refusals, *["here\n"] * (ENOUGH - len(refusals))]
    assert 0 < len(refusals) < ENOUGH
    assert {end.code for end in refusals} <= {"PROCESS_SPAWN_FAILED", "SANDBOX_UNAVAILABLE", "FILE_OPERATION_FAILED"}
    assert all("Too many open files" in end.message for end in refusals)
    assert not any(word in str(end.next_step) for end in refusals for word in ("program's name", "directory"))


def test_a_root_that_there_is_no_descriptor_for_is_told_as_that_and_opened_by_the_next_call(tmp_path: Path) -> None:
    workspace = Workspace("w", str(tmp_path))
    with closing(Roots()) as roots:
        with descriptors(0), pytest.raises(Refusal) as caught:
            roots.of(workspace)
        assert (caught.value.next_step, caught.value.retryable) == (shortage.NEXT_STEP, True)
        assert roots.of(workspace).path == str(tmp_path)


async def test_a_monitor_that_there_is_no_descriptor_for_is_refused_and_its_keeper_stays() -> None:
    async with keeper() as kept:
        (await kept.monitor()).close()
        with descriptors(1):
            refusal = await refused("PROCESS_SPAWN_FAILED", kept.monitor())
        assert "End commands" in str(refusal.next_step)
        (await kept.monitor()).close()


async def test_what_cannot_be_sent_as_too_much_is_under_way_is_told_as_that_and_its_keeper_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ETOOMANYREFS, os.strerror(errno.ETOOMANYREFS))

    async with keeper() as kept:
        (await kept.monitor()).close()
        resident = kept.resident
        with monkeypatch.context() as full:
            full.setattr("socket.send_fds", refuse)
            refusal = await refused("PROCESS_SPAWN_FAILED", kept.monitor())
        assert "Too many references" in refusal.message
        assert "left too many open files in sockets" in str(refusal.next_step)
        (await kept.monitor()).close()
        assert kept.resident is resident


async def test_a_spare_monitor_that_there_is_no_descriptor_for_fails_nothing_that_was_started() -> None:
    async with keeper() as kept:
        (await kept.monitor()).close()
        with descriptors(1):
            kept.lay_by()
        (await kept.monitor()).close()


async def test_a_keeper_that_cannot_be_started_is_named_and_started_by_the_next_call() -> None:
    async with keeper() as kept:
        with descriptors(1):
            await refused("PROCESS_SPAWN_FAILED", kept.monitor())
        (await kept.monitor()).close()
