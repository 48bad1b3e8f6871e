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
from hypothesis import given
from hypothesis import strategies as st

from codespace import limits
from codespace.contract import Chunk, Encoding, ProcessState, Runner, SpawnRequest
from codespace.runner import inprocess, uds
from codespace.runner.output.pieces import Span, cut, limit_of
from codespace.runner.worker.ahead import Ahead

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
    for begun in list(runner._ahead._stretches.values()):
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
            with trio.fail_after(60):
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
        assert not runner._ahead._stretches
        await runner.write_stdin("proc-1", b"", eof=True)
        await runner.wait_exit("proc-1")
        assert (await page(runner, 0, limit_bytes=60_000)).eof
        assert not runner._ahead._stretches


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


WHOLE = "".join(f"{number:09}\n" for number in range(100))


class Asked:
    """The output of a process that has ended; tells what was asked for."""

    def __init__(self, *, lost: int = 0, encoding: Encoding = "text", replaced: int = 0) -> None:
        self.asked: list[tuple[int, int]] = []
        self.gate: trio.Event | None = None
        self._lost = lost
        self._encoding: Encoding = encoding
        self._replaced = replaced

    async def __call__(self, arguments: Mapping[str, Any]) -> Chunk | None:
        self.asked.append((arguments["cursor"], arguments["limit_bytes"]))
        if self.gate is not None:
            await self.gate.wait()
        await trio.lowlevel.checkpoint()
        return self.page(arguments)

    def page(self, arguments: Mapping[str, Any]) -> Chunk:
        text = WHOLE[arguments["cursor"] :][: arguments["limit_bytes"]]
        end = arguments["cursor"] + len(text)
        state = ProcessState("proc-1", "exited", 0.0, {"stdout": len(WHOLE)})
        return Chunk(text, self._encoding, end, end == len(WHOLE), 0, self._lost, state, 0, self._replaced)


def asking(cursor: int, process_id: str = "proc-1") -> dict[str, Any]:
    return {"process_id": process_id, "stream": "stdout", "cursor": cursor, "limit_bytes": 10, "encoding": "text"}


async def test_a_page_is_given_only_for_what_it_was_asked_for() -> None:
    async with trio.open_nursery() as nursery:
        ahead, ask = Ahead(nursery), Asked()
        ahead.follow(asking(0), ask.page(asking(0)), ask, reads_on=False)
        others = (asking(11), asking(0), asking(10, "proc-2"), asking(10) | {"encoding": "base64"})
        for other in (*others, asking(10) | {"stream": "stderr"}, asking(10) | {"limit_bytes": 11}):
            assert await ahead.take(other) is None, other
        assert await ahead.take(asking(10)) == ask.page(asking(10))
        assert ask.asked == [(10, 10)]


async def test_who_reads_on_gets_some_in_one_answer_and_more_when_they_are_used_up() -> None:
    async with trio.open_nursery() as nursery:
        ahead, ask = Ahead(nursery), Asked()
        chunk = ask.page(asking(0))
        ahead.follow(asking(0), chunk, ask, reads_on=True)
        while not chunk.eof:
            asked = asking(chunk.cursor)
            found = await ahead.take(asked)
            assert found == ask.page(asked)
            chunk = ask.page(asked)
            ahead.follow(asked, chunk, ask, reads_on=True)
        size = 10 * limits.WORKER_AHEAD_PAGES
        assert ask.asked == [(cursor, size) for cursor in range(10, len(WHOLE), size)]


async def test_only_so_much_is_asked_for_at_once() -> None:
    async with trio.open_nursery() as nursery:
        ahead, ask = Ahead(nursery), Asked()
        large = asking(0) | {"limit_bytes": limits.OUTPUT_READ_BYTES}
        ahead.follow(large, ask.page(asking(0)), ask, reads_on=True)
        await trio.testing.wait_all_tasks_blocked()
        assert ask.asked == [(10, limits.OUTPUT_READ_BYTES)]


@pytest.mark.parametrize(
    ("cursor", "ask"),
    [
        (len(WHOLE) - 10, Asked()),
        (len(WHOLE), Asked()),
        (10, Asked(lost=5)),
        (10, Asked(encoding="base64")),
        (10, Asked(replaced=1)),
    ],
    ids=["the end", "behind it", "a hole", "bytes that are no text", "a byte of it that is none"],
)
async def test_nothing_is_asked_for_behind(cursor: int, ask: Asked) -> None:
    async with trio.open_nursery() as nursery:
        ahead = Ahead(nursery)
        ahead.follow(asking(cursor), ask.page(asking(cursor)), ask, reads_on=True)
        assert not ahead._stretches


@pytest.mark.parametrize(
    "ask",
    [Asked(lost=5), Asked(encoding="base64"), Asked(replaced=1)],
    ids=["a hole", "bytes that are no text", "a byte of it that is none"],
)
async def test_an_answer_with_a_hole_or_no_text_is_left_for_the_worker_to_tell(ask: Asked) -> None:
    async with trio.open_nursery() as nursery:
        ahead = Ahead(nursery)
        ahead.follow(asking(0), Asked().page(asking(0)), ask, reads_on=True)
        assert await ahead.take(asking(10)) is None
        assert ask.asked


async def test_what_is_on_its_way_is_waited_for_and_a_cancel_takes_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with trio.open_nursery() as nursery:
        ahead, ask = Ahead(nursery), Asked()
        ask.gate = trio.Event()
        ahead.follow(asking(0), ask.page(asking(0)), ask, reads_on=False)
        with trio.move_on_after(1) as patience:
            await ahead.take(asking(10))
        assert patience.cancelled_caught
        ask.gate.set()
        assert await ahead.take(asking(10)) is not None


async def test_what_waited_too_long_is_not_given(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        ahead, ask = Ahead(nursery), Asked()
        ahead.follow(asking(0), ask.page(asking(0)), ask, reads_on=False)
        await trio.sleep(limits.WORKER_AHEAD_SECONDS + 0.1)
        assert await ahead.take(asking(10)) is None


async def test_only_so_many_readers_are_served_ahead_and_the_oldest_goes_first() -> None:
    async with trio.open_nursery() as nursery:
        ahead, ask = Ahead(nursery), Asked()
        readers = [f"proc-{number}" for number in range(limits.WORKER_AHEAD_READERS + 1)]
        for reader in readers:
            ahead.follow(asking(0, reader), ask.page(asking(0)), ask, reads_on=False)
        assert await ahead.take(asking(10, readers[0])) is None
        for reader in readers[1:]:
            assert await ahead.take(asking(10, reader)) is not None


async def test_what_could_not_be_had_is_none() -> None:
    async def ask(arguments: Mapping[str, Any]) -> Chunk | None:
        await trio.lowlevel.checkpoint()
        return None

    async with trio.open_nursery() as nursery:
        ahead = Ahead(nursery)
        ahead.follow(asking(0), Asked().page(asking(0)), ask, reads_on=False)
        assert await ahead.take(asking(10)) is None


@given(
    st.lists(st.sampled_from([b"a", "é".encode(), "€".encode(), "😀".encode(), b"\xff", b"\n"]), max_size=60).map(
        b"".join
    ),
    st.integers(1, 9),
    st.sampled_from(["text", "base64"]),
)
def test_whatever_was_written_it_is_cut_as_the_worker_cuts_it(written: bytes, limit: int, encoding: Encoding) -> None:
    state = ProcessState("proc-1", "exited", 0.0, {"stdout": len(written)})
    given_ahead = 0

    def cut_there(asked: Mapping[str, Any]) -> Chunk:
        cursor, size = asked["cursor"], limit_of(asked["limit_bytes"], encoding)
        where = Span(cursor, len(written), True, 0, 0)
        piece = cut(written[cursor : cursor + size], where, cursor, encoding=encoding, closed=True)
        return Chunk(
            piece.text, piece.encoding, piece.cursor, piece.eof, 0, piece.output_lost, state, 0, piece.replaced
        )

    async def ask(asked: Mapping[str, Any]) -> Chunk | None:
        await trio.lowlevel.checkpoint()
        return cut_there(asked)

    async def read() -> None:
        nonlocal given_ahead
        async with trio.open_nursery() as nursery:
            ahead, cursor, eof = Ahead(nursery), 0, False
            while not eof:
                asked = asking(cursor) | {"limit_bytes": limit, "encoding": encoding}
                taken = await ahead.take(asked)
                given_ahead += taken is not None
                assert taken in (None, cut_there(asked))
                page = cut_there(asked)
                ahead.follow(asked, page, ask, reads_on=taken is not None)
                cursor, eof = page.cursor, page.eof

    trio.run(read)
    assert given_ahead or len(written) <= 2 * limit_of(limit, encoding) or b"\xff" in written or encoding == "text"
