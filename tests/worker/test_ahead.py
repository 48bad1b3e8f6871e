"""Reading a long output page by page: the worker gets the next page while the one before is on its way."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from codespace import limits
from codespace.contract import Chunk, ProcessState, Runner, SpawnRequest
from codespace.runner import inprocess, uds
from codespace.runner.ahead import Ahead

from .test_both import opened

COMMAND = ("sh", "-c", "seq 60000; seq 1000 >&2")
PAGE = 20_000


async def write(runner: Runner, workspace: Any, command: tuple[str, ...] = COMMAND) -> int:
    """Have a process write much and end; return how much."""
    await runner.spawn(workspace, SpawnRequest("proc-1", command, ".", {}, 60))
    return (await runner.wait_exit("proc-1")).output_total["combined"]


async def page(runner: Runner, cursor: int, **asked: Any) -> Chunk:
    filled: dict[str, Any] = {"stream": "combined", "limit_bytes": PAGE, "encoding": "text"} | asked
    return await runner.output("proc-1", cursor=cursor, **filled)


async def pages(runner: Runner, **asked: Any) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    cursor, eof = 0, False
    while not eof:
        chunk = await page(runner, cursor, **asked)
        cursor, eof = chunk.cursor, chunk.eof
        found.append((chunk.text, chunk.encoding, cursor, eof, chunk.retained_from, chunk.output_lost))
    return found


@pytest.mark.parametrize(
    "asked", [{"stream": "stdout"}, {"stream": "stderr"}, {"encoding": "base64", "stream": "stdout"}]
)
async def test_pages_are_what_they_are_in_one_process(tmp_path: Path, asked: dict[str, Any]) -> None:
    found = []
    for kind in (inprocess, uds):
        async with opened(kind, tmp_path) as (runner, workspace):
            await write(runner, workspace)
            found.append(await pages(runner, **asked))
    assert found[0] == found[1]


async def test_pages_of_many_lengths_are_what_they_are_in_one_process(tmp_path: Path) -> None:
    """Where a page ends in the middle of a character it is shorter, and where the next begins was guessed wrong."""
    found = []
    for kind in (inprocess, uds):
        async with opened(kind, tmp_path) as (runner, workspace):
            await write(runner, workspace, ("sh", "-c", "yes 'a\u00e9\u20ac\U0001f600' | head -c 300000"))
            found.append(await pages(runner, stream="stdout", limit_bytes=4999))
    assert found[0] == found[1]
    assert len({len(text) for text, *_ in found[0]}) > 2


async def asked_ahead(runner: Runner) -> None:
    assert isinstance(runner, uds.Uds)
    for begun in list(runner._ahead._pages.values()):
        await begun.there.wait()


async def test_the_next_page_is_there_before_it_is_wanted(tmp_path: Path) -> None:
    async with opened(uds, tmp_path) as (runner, workspace):
        await write(runner, workspace)
        whole = "".join(f"{number}\n" for number in range(1, 60_001))
        first = await page(runner, 0, stream="stdout")
        await asked_ahead(runner)
        assert isinstance(runner, uds.Uds)
        assert runner.worker is not None
        os.kill(runner.worker, signal.SIGSTOP)
        try:
            with trio.fail_after(10):
                second = await page(runner, first.cursor, stream="stdout")
        finally:
            os.kill(runner.worker, signal.SIGCONT)
        assert first.text + second.text == whole[: 2 * PAGE]


async def test_nothing_is_asked_ahead_of_the_end_or_of_a_process_that_still_runs(tmp_path: Path) -> None:
    async with opened(uds, tmp_path) as (runner, workspace):
        assert isinstance(runner, uds.Uds)
        await runner.spawn(
            workspace, SpawnRequest("proc-1", ("sh", "-c", "seq 9000; cat"), ".", {}, 60, open_stdin=True)
        )
        await runner.wait_output("proc-1", cursor=PAGE, stream="combined")
        await page(runner, 0)
        assert not runner._ahead._pages
        await runner.write_stdin("proc-1", b"", eof=True)
        await runner.wait_exit("proc-1")
        assert (await page(runner, 0, limit_bytes=60_000)).eof
        assert not runner._ahead._pages


async def test_a_worker_that_dies_between_two_pages_costs_no_byte(tmp_path: Path) -> None:
    async with opened(uds, tmp_path) as (runner, workspace):
        total = await write(runner, workspace)
        first = await page(runner, 0)
        assert isinstance(runner, uds.Uds)
        os.kill(runner.worker or 0, signal.SIGKILL)
        cursor, size = first.cursor, len(first.text)
        while cursor < total:
            chunk = await page(runner, cursor)
            assert chunk.output_lost == 0
            cursor, size = chunk.cursor, size + len(chunk.text)
        assert size == total


TOTAL = 100


class Asked:
    """Pages of ten bytes; tells which were asked for."""

    def __init__(self, length: int = 10) -> None:
        self.cursors: list[int] = []
        self.gate: trio.Event | None = None
        self.length = length

    async def __call__(self, arguments: Mapping[str, Any]) -> Chunk | None:
        self.cursors.append(arguments["cursor"])
        if self.gate is not None:
            await self.gate.wait()
        await trio.lowlevel.checkpoint()
        return self.page(arguments["cursor"])

    def page(self, cursor: int, *, lost: int = 0) -> Chunk:
        state = ProcessState("proc-1", "exited", 0.0, {"stdout": TOTAL})
        end = min(cursor + self.length, TOTAL)
        return Chunk(str(cursor), "text", end, end == TOTAL, 0, lost, state)


def asking(cursor: int, process_id: str = "proc-1") -> dict[str, Any]:
    return {"process_id": process_id, "stream": "stdout", "cursor": cursor}


async def test_a_page_is_given_once_and_only_for_what_it_was_asked_for() -> None:
    async with trio.open_nursery() as nursery:
        ahead, ask = Ahead(nursery), Asked()
        ahead.follow(asking(0), ask.page(0), ask, reads_on=False)
        assert await ahead.take(asking(11)) is None
        assert await ahead.take(asking(10, "proc-2")) is None
        chunk = await ahead.take(asking(10))
        assert chunk is not None
        assert chunk.text == "10"
        assert await ahead.take(asking(10)) is None
        assert ask.cursors == [10]


async def test_who_reads_on_gets_some_at_once_and_more_when_they_are_used_up() -> None:
    async with trio.open_nursery() as nursery:
        ahead, ask = Ahead(nursery), Asked()
        ahead.follow(asking(0), ask.page(0), ask, reads_on=True)
        for cursor in range(10, TOTAL, 10):
            chunk = await ahead.take(asking(cursor))
            assert chunk is not None
            ahead.follow(asking(cursor), chunk, ask, reads_on=True)
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(ask.cursors) == list(range(10, TOTAL, 10)), "each once, and none behind the end"
        assert not ahead._pages


@pytest.mark.parametrize(("cursor", "lost", "length"), [(90, 0, 10), (10, 5, 10), (10, 0, 0)])
async def test_nothing_follows_the_end_or_a_hole_or_a_page_of_nothing(cursor: int, lost: int, length: int) -> None:
    async with trio.open_nursery() as nursery:
        ahead, ask = Ahead(nursery), Asked(length)
        ahead.follow(asking(cursor), ask.page(cursor, lost=lost), ask, reads_on=True)
        assert not ahead._pages


async def test_a_page_that_is_on_its_way_is_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        ahead, ask = Ahead(nursery), Asked()
        ask.gate = trio.Event()
        ahead.follow(asking(0), ask.page(0), ask, reads_on=False)
        with trio.move_on_after(1) as patience:
            await ahead.take(asking(10))
        assert patience.cancelled_caught
        ahead.follow(asking(0), ask.page(0), ask, reads_on=False)
        ask.gate.set()
        assert await ahead.take(asking(10)) is not None


async def test_a_page_that_waited_too_long_is_not_given(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        ahead, ask = Ahead(nursery), Asked()
        ahead.follow(asking(0), ask.page(0), ask, reads_on=False)
        await trio.sleep(limits.WORKER_AHEAD_SECONDS + 0.1)
        assert await ahead.take(asking(10)) is None


async def test_only_so_many_pages_are_kept_and_the_oldest_goes_first() -> None:
    async with trio.open_nursery() as nursery:
        ahead, ask = Ahead(nursery), Asked()
        readers = [f"proc-{number}" for number in range(limits.WORKER_AHEAD_PAGES + 1)]
        for reader in readers:
            ahead.follow(asking(0, reader), ask.page(0), ask, reads_on=False)
        assert await ahead.take(asking(10, readers[0])) is None
        for reader in readers[1:]:
            assert await ahead.take(asking(10, reader)) is not None


async def test_a_page_that_could_not_be_had_is_none() -> None:
    async def ask(arguments: Mapping[str, Any]) -> Chunk | None:
        await trio.lowlevel.checkpoint()
        return None

    async with trio.open_nursery() as nursery:
        ahead = Ahead(nursery)
        ahead.follow(asking(0), Asked().page(0), ask, reads_on=False)
        assert await ahead.take(asking(10)) is None
