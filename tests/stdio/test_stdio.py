"""The stdio door with a real process, real pipes and the official client."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from mcp import Client, StdioServerParameters

from codespace import limits
from codespace.protocol.tools import TABLE

ROOT = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-m", "tests.stdio.program"]
ERAS = pytest.mark.parametrize("mode", ["legacy", "2026-07-28", "auto"])


class Raw:
    """The program on pipes, spoken to in lines."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self._buffer = b""

    async def send(self, *messages: dict[str, Any] | bytes) -> None:
        assert self.process.stdin is not None
        for message in messages:
            line = message if isinstance(message, bytes) else json.dumps(message).encode()
            await self.process.stdin.send_all(line + b"\n")

    async def receive(self) -> dict[str, Any]:
        """Return the next message; every line of standard output must be one."""
        assert self.process.stdout is not None
        while b"\n" not in self._buffer:
            data = await self.process.stdout.receive_some()
            assert data, f"the program ended, leaving {self._buffer!r}"
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        message: dict[str, Any] = json.loads(line)
        assert message["jsonrpc"] == "2.0"
        return message

    async def initialize(self) -> dict[str, Any]:
        await self.send(request("initialize", 0, **INITIALIZE))
        answer = await self.receive()
        await self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return answer

    async def seconds_to_end(self) -> float:
        started = trio.current_time()
        with trio.fail_after(60):
            await self.process.wait()
        return trio.current_time() - started


def a_second() -> float:
    """A second of a machine with a core to spare; longer in proportion where many wait for each."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


INITIALIZE = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}


def request(method: str, id: int | str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


def call(id: int | str, tool: str, **arguments: Any) -> dict[str, Any]:
    return request("tools/call", id, name=tool, arguments=arguments)


@asynccontextmanager
async def running() -> AsyncIterator[Raw]:
    process = await trio.lowlevel.open_process(
        PROGRAM, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT
    )
    try:
        with trio.fail_after(90):
            yield Raw(process)
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 60):
            process.kill()
            await process.wait()
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                await stream.aclose()


@ERAS
async def test_the_official_client_works_in_every_era_and_hears_progress(mode: str) -> None:
    told: list[float] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        told.append(progress)

    parameters = StdioServerParameters(command=PROGRAM[0], args=PROGRAM[1:], cwd=str(ROOT))
    with trio.fail_after(90):
        async with Client(parameters, mode=mode) as client:
            assert len((await client.list_tools()).tools) == len(TABLE)
            answer = await client.call_tool("read", {"path": "a.txt"})
            assert answer.structured_content is not None
            assert answer.structured_content["content"] == "one\ntwo\n"
            await client.call_tool("exec_command", {"command": ["sleep"], "wait_seconds": 0.1}, progress_callback=hear)
    assert told == [1.0]


async def test_no_stray_byte_reaches_the_wire() -> None:
    async with running() as raw:
        assert (await raw.initialize())["result"]["serverInfo"]["name"] == "codespace"
        await raw.send(call(1, "workspace_info"))
        answer = await raw.receive()
        assert answer["id"] == 1
        assert answer["result"]["isError"] is False
        assert raw.process.stdin is not None
        await raw.process.stdin.aclose()
        assert raw.process.stdout is not None
        assert await raw.process.stdout.receive_some() == b""


async def test_initialize_twice_is_answered_twice() -> None:
    async with running() as raw:
        first = await raw.initialize()
        again = await raw.initialize()
        assert again["result"] == first["result"]


async def ends_within_a_second(end: Callable[[Raw], Awaitable[None]]) -> bool:
    """End programs by `end`, each of which must end well; return whether one did within a second.

    One is as good as another: a machine that stands still for a second in the midst of one says nothing of the door.
    """
    for _ in range(5):
        async with running() as raw:
            await raw.initialize()
            await end(raw)
            seconds = await raw.seconds_to_end()
            assert raw.process.returncode == 0
        if seconds < a_second():
            return True
    return False


async def test_end_of_input_ends_the_program_within_a_second_with_a_call_under_way() -> None:
    async def end(raw: Raw) -> None:
        await raw.send(call(1, "exec_command", command=["sleep"], wait_seconds=50), request("ping", 2))
        assert (await raw.receive())["id"] == 2
        assert raw.process.stdin is not None
        await raw.process.stdin.aclose()

    assert await ends_within_a_second(end)


async def test_sigterm_ends_the_program_within_a_second_while_the_client_stays() -> None:
    async def end(raw: Raw) -> None:
        raw.process.send_signal(signal.SIGTERM)

    assert await ends_within_a_second(end)


async def test_sigterm_ends_the_program_though_the_client_has_stopped_reading() -> None:
    async def end(raw: Raw) -> None:
        big = "x" * 200_000
        await raw.send(call(1, "exec_command", command=["cat"], stdin=big), call(2, "read", path="a.txt"))
        await raw.send(request("ping", 3))
        raw.process.send_signal(signal.SIGTERM)

    assert await ends_within_a_second(end)


@pytest.mark.parametrize(
    ("line", "times"),
    [
        (lambda id: request("tools/list", id), 2 * limits.STDIO_UNANSWERED),
        (lambda id: b"not json", limits.STDIO_PIPE_BYTES // 70),  # half as much again in answers as a pipe holds
        (lambda id: request("ping", id) | {"id": 0.5}, limits.STDIO_PIPE_BYTES // 70),
    ],
    ids=["requests", "no messages", "requests without an id"],
)
async def test_end_of_input_ends_the_program_though_the_client_asked_much_and_takes_no_answers(
    line: Callable[[int], dict[str, Any] | bytes], times: int
) -> None:
    async with running() as raw:
        await raw.initialize()
        await raw.send(*map(line, range(1, times)))
        assert raw.process.stdin is not None
        await raw.process.stdin.aclose()
        await raw.seconds_to_end()


async def test_what_was_asked_before_end_of_input_is_still_answered() -> None:
    lines = [request("initialize", 0, **INITIALIZE), call(1, "read", path="a.txt")]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    done = await trio.run_process(PROGRAM, stdin=text.encode(), capture_stdout=True, capture_stderr=True, cwd=ROOT)
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == [0, 1]
    assert b"stray child" in done.stderr


async def test_a_plain_file_as_input_and_output_works(tmp_path: Path) -> None:
    asked, answered = tmp_path / "in", tmp_path / "out"
    asked.write_text(json.dumps(request("initialize", 0, **INITIALIZE)) + "\n" + json.dumps(request("ping", 1)))
    with asked.open("rb") as stdin, answered.open("wb") as stdout, trio.fail_after(60):
        await trio.run_process(PROGRAM, stdin=stdin, stdout=stdout, cwd=ROOT)
    assert [json.loads(line)["id"] for line in answered.read_text().splitlines()] == [0, 1]


async def test_no_client_at_all_ends_the_program_at_once() -> None:
    with trio.fail_after(60):
        done = await trio.run_process(PROGRAM, stdin=subprocess.DEVNULL, capture_stdout=True, cwd=ROOT)
    assert done.stdout == b""


async def test_a_client_that_closes_its_reading_end_ends_the_program() -> None:
    async def end(raw: Raw) -> None:
        assert raw.process.stdout is not None
        await raw.process.stdout.aclose()
        await raw.send(request("ping", 1))

    assert await ends_within_a_second(end)


async def test_a_line_that_is_no_message_is_answered_and_the_connection_lives() -> None:
    async with running() as raw:
        await raw.initialize()
        await raw.send(b"not json", b'{"jsonrpc": "2.0", "id": 7, "method": 5}', b"", b"\xff\xfe")
        assert [(await raw.receive())["error"]["code"] for _ in range(3)] == [-32700, -32600, -32700]
        await raw.send(request("ping", 8))
        assert (await raw.receive())["id"] == 8


async def test_an_unknown_method_is_answered_method_not_found() -> None:
    async with running() as raw:
        await raw.initialize()
        await raw.send(request("resources/list", 1), request("codespace/none", 2))
        for _ in range(2):
            assert (await raw.receive())["error"]["code"] == -32601


@pytest.mark.parametrize("last", [False, True])
async def test_a_line_beyond_the_limit_is_refused_to_its_id_and_the_connection_lives(last: bool) -> None:
    from codespace import limits

    filler = b'"method": "ping", "params": {"x": "' + b"y" * (limits.REQUEST_BYTES + 1) + b'"}'
    line = b'{%s, "id": 7}' % filler if last else b'{"jsonrpc": "2.0", "id": 7, %s}' % filler
    async with running() as raw:
        await raw.initialize()
        await raw.send(line, request("ping", 8))
        refusal = await raw.receive()
        assert refusal["id"] == 7
        assert refusal["error"]["code"] == -32600
        assert (await raw.receive())["id"] == 8


async def test_the_parents_ends_of_the_pipes_stay_blocking() -> None:
    read_end, write_end = os.pipe()
    try:
        process = await trio.lowlevel.open_process(
            PROGRAM, stdin=read_end, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT
        )
        os.write(write_end, json.dumps(request("initialize", 0, **INITIALIZE)).encode() + b"\n")
        raw = Raw(process)
        with trio.fail_after(60):
            await raw.receive()
            assert os.get_blocking(read_end)
    finally:
        os.close(read_end)
        os.close(write_end)
    await raw.seconds_to_end()
    assert process.stdout is not None
    await process.stdout.aclose()
