"""A supervisor on real commands, for the tests of its verbs."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from codespace.contract import Chunk, ProcessState, SpawnRequest, Stream, Workspace, WorkspaceLimits
from codespace.errors import Refusal
from codespace.runner.supervisor import Supervisor

DEADLINE_SECONDS = 60.0
# Nothing here takes a second; a hang must fail and not stall the run.


class Bench:
    """A supervisor, one workspace folder, and short words for the verbs."""

    def __init__(self, supervisor: Supervisor, folder: Path, descriptor: int) -> None:
        self.supervisor = supervisor
        self.folder = folder
        self.workspace = Workspace("w", str(folder))
        self._descriptor = descriptor
        self._count = 0

    async def spawn(self, *argv: str, env: Mapping[str, str] | None = None, **how: Any) -> str:
        self._count += 1
        seconds = how.pop("timeout_seconds", 60.0)
        request = SpawnRequest(f"proc-{self._count}", argv, ".", env or {}, seconds, **how)
        await self.supervisor.spawn(self.workspace, request, self._descriptor)
        return request.process_id

    async def read(self, process_id: str, cursor: int = 0, stream: Stream = "combined") -> Chunk:
        return await self.supervisor.output(
            process_id, cursor=cursor, stream=stream, limit_bytes=65_536, encoding="text"
        )

    async def run(self, *argv: str, **how: Any) -> tuple[ProcessState, str]:
        """Run a command to its end; returns its final state and its output."""
        process_id = await self.spawn(*argv, **how)
        state = await self.supervisor.wait_exit(process_id)
        return state, (await self.read(process_id)).text

    async def wait_text(self, process_id: str, text: str, cursor: int = 0) -> str:
        """Return the output from `cursor` on, once `text` is in it."""
        seen = ""
        while text not in seen:
            await self.supervisor.wait_output(process_id, cursor=cursor, stream="combined")
            chunk = await self.read(process_id, cursor)
            assert not chunk.eof or text in seen + chunk.text, f"it ended without {text!r}: {seen + chunk.text!r}"
            seen, cursor = seen + chunk.text, chunk.cursor
        return seen

    async def type(self, process_id: str, keys: str, *, until: str | None = None) -> str:
        """Type, and return what comes after it up to `until`."""
        cursor = self.supervisor.process(process_id).output_total["combined"]
        assert await self.supervisor.write_stdin(process_id, keys.encode(), eof=False) == len(keys.encode())
        return "" if until is None else await self.wait_text(process_id, until, cursor)

    def limit(self, **values: Any) -> None:
        """Give the workspace limits."""
        self.workspace = replace(self.workspace, limits=WorkspaceLimits(**values))

    async def first_pid(self, process_id: str) -> int:
        return int((await self.wait_text(process_id, "\n")).split()[0])


@asynccontextmanager
async def open_bench(tmp_path: Path, **how: Any) -> AsyncIterator[Bench]:
    folder = tmp_path / "root"
    folder.mkdir(exist_ok=True)
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        with trio.fail_after(DEADLINE_SECONDS):
            async with Supervisor(str(tmp_path / "state"), **how) as supervisor:
                yield Bench(supervisor, folder, descriptor)
    finally:
        os.close(descriptor)


async def refused(code: str, call: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        await call
    assert caught.value.code == code, caught.value
    return caught.value
