"""One connection of lines, in memory: what is answered, and what an ordered end still lets through."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import trio
import trio.testing

from codespace import limits
from codespace.protocol.server import build_server
from codespace.protocol.wire import Line, TooLong, serve_lines

from .fake import FakeTools, as_tools

INITIALIZE = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}


@dataclass
class Wire:
    fake: FakeTools
    lines: trio.MemorySendChannel[Line]
    answers: trio.MemoryReceiveChannel[bytes]
    stop: trio.Event
    ended: trio.Event

    async def send(self, method: str, id: int | str | None, **params: Any) -> None:
        message = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
        await self.lines.send(json.dumps({k: v for k, v in message.items() if v is not None}).encode())

    async def receive(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(await self.answers.receive())
        return message

    async def call_under_way(self, id: int) -> None:
        arguments = {"command": ["sleep"], "wait_seconds": 50}
        await self.send("tools/call", id, name="exec_command", arguments=arguments)
        await self.fake.waiting.wait()


@asynccontextmanager
async def wired(begun: bool = True) -> AsyncIterator[Wire]:
    send_line, lines = trio.open_memory_channel[Line](0)
    send_answer, answers = trio.open_memory_channel[bytes](0)
    wire = Wire(FakeTools(), send_line, answers, trio.Event(), trio.Event())

    async def serve(task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        server = build_server(as_tools(wire.fake), version="0", transport="stdio")
        await serve_lines(server, lines, send_answer.send, stop=wire.stop)
        wire.ended.set()

    async with trio.open_nursery() as nursery:
        await nursery.start(serve)
        if begun:
            await wire.send("initialize", 0, **INITIALIZE)
            await wire.receive()
            await wire.send("notifications/initialized", None)
        yield wire
        wire.stop.set()


async def test_a_stop_lets_what_is_under_way_be_answered() -> None:
    async with wired() as wire:
        await wire.call_under_way(1)
        wire.stop.set()
        await trio.testing.wait_all_tasks_blocked()
        next(iter(wire.fake.commands.values())).change(b"late", "exited", 0)
        answer = await wire.receive()
        assert answer["result"]["structuredContent"]["chunk"] == "late"
        await wire.ended.wait()


async def test_a_stop_does_not_wait_for_a_call_that_does_not_end(autojump_clock: trio.testing.MockClock) -> None:
    async with wired() as wire:
        await wire.call_under_way(1)
        started = trio.current_time()
        wire.stop.set()
        await wire.ended.wait()
        assert trio.current_time() - started == pytest.approx(limits.STDIO_FLUSH_SECONDS)
    assert wire.fake.cancelled.is_set()


async def test_a_stop_does_not_wait_for_a_client_that_takes_nothing(autojump_clock: trio.testing.MockClock) -> None:
    async with wired() as wire:
        await wire.send("ping", 1)  # its answer is never taken
        started = trio.current_time()
        wire.stop.set()
        await wire.ended.wait()
        assert trio.current_time() - started == pytest.approx(limits.STDIO_FLUSH_SECONDS)


async def test_no_more_is_read_from_a_client_that_takes_no_answers_until_it_takes_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "STDIO_UNANSWERED", 5)
    async with wired() as wire:
        sent = list[int]()

        async def ask() -> None:
            for id in range(1, 21):
                await wire.send("ping", id)
                sent.append(id)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            assert sent == [1, 2, 3, 4, 5]
            answered = {(await wire.receive())["id"] for _ in range(3)}
            await trio.testing.wait_all_tasks_blocked()
            assert len(sent) == 8
            answered |= {(await wire.receive())["id"] for _ in range(17)}
        assert answered == set(range(1, 21))


@pytest.mark.parametrize("settling", ["one id for all", "a cancel of each"])
async def test_no_id_that_is_used_twice_and_no_cancel_makes_answers_pile_up_before_a_client_that_takes_none(
    settling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STDIO_UNANSWERED", 5)
    async with wired() as wire:
        sent = list[int]()

        async def ask() -> None:
            for count in range(100):
                id = 1 if settling == "one id for all" else count
                await wire.send("ping", id)
                sent.append(id)
                if settling == "a cancel of each":
                    await trio.testing.wait_all_tasks_blocked()  # its answer waits to be taken: too late for a cancel
                    await wire.send("notifications/cancelled", None, requestId=id)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            for _ in range(200):  # both wait until nothing moves, and each has its turn
                await trio.testing.wait_all_tasks_blocked()
            assert len(sent) < 20
            assert [(await wire.receive())["result"] for _ in range(100)] == [{}] * 100


@pytest.mark.parametrize("spell", [int, str])
async def test_calls_that_were_cancelled_under_either_spelling_of_their_ids_keep_nothing_from_being_read(
    monkeypatch: pytest.MonkeyPatch, spell: type
) -> None:
    monkeypatch.setattr(limits, "STDIO_UNANSWERED", 5)
    async with wired() as wire:
        with trio.fail_after(30):
            for id in range(1, 6):
                await wire.call_under_way(id)
                await wire.send("notifications/cancelled", None, requestId=spell(id))
            await wire.send("ping", "after")
            assert (await wire.receive())["id"] == "after"


async def test_a_stop_does_not_wait_for_a_call_that_was_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STDIO_FLUSH_SECONDS", 30.0)
    async with wired() as wire:
        await wire.call_under_way(1)
        await wire.send("notifications/cancelled", None, requestId=1)
        await wire.fake.cancelled.wait()
        clock = trio.current_time()
        wire.stop.set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_drain, wire)
            await wire.ended.wait()
            nursery.cancel_scope.cancel()
        assert trio.current_time() - clock < limits.STDIO_FLUSH_SECONDS


async def _drain(wire: Wire) -> None:
    async for _ in wire.answers:
        pass


@pytest.mark.parametrize(
    ("line", "id", "code"),
    [
        (b"junk", None, -32700),
        (b'{"jsonrpc": "2.0", "id": 7, "method": 5}', 7, -32600),
        (b'{"jsonrpc": "2.0", "id": -7, "method": 5}', -7, -32600),
        (b'{"method": 5, "jsonrpc": "2.0", "id": "a"}', "a", -32600),
        (b'{"params": {"id": 9}, "method": 5}', None, -32600),
        (b'[{"jsonrpc": "2.0", "id": 3, "method": "ping"}]', None, -32600),
        (b'{"jsonrpc": "2.0", "id": 7', 7, -32700),
        (b"[" * 10_000, None, -32700),
        (b"\xff\xfe\x00", None, -32700),
        (TooLong(b'{"jsonrpc":"2.0","id":4,"method":"', b'"}}'), 4, -32600),
        (TooLong(b'{"method":"tools/call","params":{', b'"}},"jsonrpc":"2.0","id":"z"}'), "z", -32600),
        (TooLong(b'{"method":"tools/call","params":{"id":1,', b'"id":5}}'), None, -32600),
        # the beginning of another number is no id: the request that has it would take the answer for its own
        (b'{"jsonrpc": "2.0", "id": 1.5, "method": 5}', None, -32600),
        (b'{"jsonrpc": "2.0", "id": 1e3, "method": 5}', None, -32600),
        (b'{"jsonrpc": "2.0", "id": ' + b"7" * 5000 + b', "method": "ping"}', None, -32700),
        (TooLong(b'{"jsonrpc":"2.0","id":1234567890123456789,"method":"', b'"}}'), None, -32600),
    ],
)
async def test_what_is_no_message_is_answered_to_its_id_where_that_can_be_seen(line: Line, id: Any, code: int) -> None:
    async with wired() as wire:
        await wire.lines.send(line)
        answer = await wire.receive()
        assert (answer["id"], answer["error"]["code"]) == (id, code)
        await wire.send("ping", 8)
        assert (await wire.receive())["id"] == 8


@pytest.mark.parametrize("id", ["null", "true", "12.0", "[]"])
async def test_a_request_whose_id_is_none_is_answered_and_a_notification_about_an_id_is_not(id: str) -> None:
    async with wired() as wire:
        about = b'{"jsonrpc": "2.0", "method": "notifications/x", "params": {"id": 1, "text": "\\"id\\""}}'
        await wire.lines.send(about)
        await wire.lines.send(f'{{"jsonrpc": "2.0", "id": {id}, "method": "ping"}}'.encode())
        answer = await wire.receive()
        assert (answer["id"], answer["error"]["code"]) == (None, -32600)


async def test_a_connection_chooses_its_era_and_keeps_to_it() -> None:
    async with wired() as wire:
        await wire.send("initialize", 1, **INITIALIZE)
        assert (await wire.receive())["result"]["protocolVersion"] == "2025-11-25"
        await wire.send("initialize", 2, **(INITIALIZE | {"protocolVersion": "1999-01-01"}))
        assert (await wire.receive())["result"]["protocolVersion"] == "2025-11-25"


async def test_who_calls_before_anything_is_told_to_initialize() -> None:
    async with wired(begun=False) as wire:
        await wire.send("tools/call", 1, name="read", arguments={"path": "a.txt"})
        told = await wire.receive()
        assert (told["id"], told["error"]["code"]) == (1, -32600)
        assert "`initialize`" in told["error"]["message"]
        assert wire.fake.calls == []
        await wire.send("ping", 2)
        assert (await wire.receive())["result"] == {}
        await wire.send("initialize", 3, **INITIALIZE)
        assert (await wire.receive())["result"]["protocolVersion"] == "2025-11-25"
        await wire.send("tools/call", 4, name="read", arguments={"path": "a.txt"})
        assert (await wire.receive())["result"]["isError"] is False


async def test_parameters_that_are_wrong_are_called_so_after_the_beginning() -> None:
    async with wired() as wire:
        for id, params in enumerate(({"name": 5}, {}, {"name": "read", "arguments": []}, {"name": "none"}), 1):
            await wire.send("tools/call", id, **params)
            told = await wire.receive()
            assert (told["id"], told["error"]["code"]) == (id, -32602)
