"""The runner behind its socket by itself: many requests at once, large answers, the same words as in one process."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from codespace.contract import Runner, SpawnRequest, Workspace, WorkspaceLimits
from codespace.errors import Refusal
from codespace.runner import inprocess, uds
from codespace.testing import processes


@asynccontextmanager
async def opened(kind: Any, folder: Path) -> AsyncIterator[tuple[Runner, Workspace]]:
    root, state = folder / "root", folder / "state"
    for each in (root, state):
        each.mkdir(mode=0o700, exist_ok=True)
    async with kind.open_runner(
        state_dir=str(state), rg_path=None, bwrap_path=None, retention_seconds=60, wall_clock=time.time
    ) as runner:
        yield runner, Workspace("main", str(root), profile="workspace-write")


async def read(runner: Runner, workspace: Workspace, path: str, limit_bytes: int = 1_000_000) -> Any:
    return await runner.read(
        workspace, path, start_line=None, line_count=None, encoding="base64", limit_bytes=limit_bytes
    )


async def test_an_answer_that_is_too_large_is_refused_and_the_others_are_not_disturbed(tmp_path: Path) -> None:
    async with opened(uds, tmp_path) as (runner, workspace):
        (tmp_path / "root" / "large").write_bytes(b"\0" * 52_000_000)
        (tmp_path / "root" / "small").write_bytes(b"small")
        codes: list[str] = []

        async def large() -> None:
            unbounded = replace(workspace, limits=WorkspaceLimits(read_bytes=80_000_000))
            with pytest.raises(Refusal) as caught:
                await read(runner, unbounded, "large", 80_000_000)
            codes.append(caught.value.code)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(large)
            for _ in range(50):
                assert (await read(runner, workspace, "small")).size_bytes == 5
        assert codes == ["OUTPUT_LIMIT"]


async def test_a_hundred_requests_at_once_get_each_their_own_answer(tmp_path: Path) -> None:
    async with opened(uds, tmp_path) as (runner, workspace):
        for number in range(100):
            (tmp_path / "root" / f"{number}").write_bytes(b"x" * number)
        sizes: dict[int, int] = {}

        async def one(number: int) -> None:
            sizes[number] = (await read(runner, workspace, str(number))).size_bytes

        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(one, number)
        assert sizes == {number: number for number in range(100)}


async def test_a_refusal_says_the_same_behind_the_socket(tmp_path: Path) -> None:
    bodies = []
    for kind in (inprocess, uds):
        async with opened(kind, tmp_path) as (runner, workspace):
            with pytest.raises(Refusal) as caught:
                await read(runner, workspace, "no/such\udcff")
            with pytest.raises(Refusal) as unknown:
                runner.process("proc-unknown")
            with pytest.raises(Refusal) as wrong:
                runner.check([], ".", {})
            bodies.append([each.value.body() for each in (caught, unknown, wrong)])
    assert bodies[0] == bodies[1]


async def test_a_start_that_is_cancelled_leaves_nothing_or_a_process_that_is_known(tmp_path: Path) -> None:
    async with opened(uds, tmp_path) as (runner, workspace):
        assert isinstance(runner, uds.Uds)
        ran = 0
        for number in range(12):
            process_id = f"proc-{number}"
            with trio.move_on_after(number / 500):
                await runner.spawn(workspace, SpawnRequest(process_id, ("sleep", "1000"), ".", {}, 600))
            try:
                await runner.terminate(process_id, 0)
                ran += 1
            except Refusal as refusal:
                assert refusal.code == "PROCESS_NOT_FOUND"  # noqa: PT017 - either is right, and nothing else
        sleeping = [pid for pid in processes.descendants(runner.worker or 0) if "sleep" in processes.command_line(pid)]
        assert sleeping == []
        assert ran < 12


async def test_output_that_is_followed_arrives_whole_and_once(tmp_path: Path) -> None:
    async with opened(uds, tmp_path) as (runner, workspace):
        command = ("sh", "-c", "for i in 1 2 3 4 5; do echo line $i; sleep 0.02; done; printf end")
        await runner.spawn(workspace, SpawnRequest("proc-1", command, ".", {}, 60))
        cursor, text, eof = 0, "", False
        while not eof:
            await runner.wait_output("proc-1", cursor=cursor, stream="combined")
            chunk = await runner.output("proc-1", cursor=cursor, stream="combined", limit_bytes=100, encoding="text")
            cursor, eof, text = chunk.cursor, chunk.eof, text + chunk.text
            assert runner.process("proc-1").output_total["combined"] >= cursor, "nobody knows less than he was told"
        assert text == "".join(f"line {number}\n" for number in range(1, 6)) + "end"
        assert (await runner.wait_exit("proc-1")).exit_code == 0
        runner.forget("proc-1")
        with pytest.raises(Refusal):
            runner.process("proc-1")


async def test_a_command_that_writes_and_ends_is_told_as_ended_at_once(tmp_path: Path) -> None:
    async with opened(uds, tmp_path) as (runner, workspace):
        took = list[float]()
        for number in range(50):  # one is as good as another, on a machine that others use
            await runner.spawn(workspace, SpawnRequest(f"proc-{number}", ("echo", "x"), ".", {}, 60))
            await runner.wait_exit(f"proc-{number}")
            state = runner.process(f"proc-{number}")
            took.append(time.time() - (state.ended_at or 0))
            if took[-1] < 0.045:
                break
        assert min(took) < 0.045, "the end does not wait for the next time that output may be told"
