"""MCP over HTTP with the official client, real sockets and a real Hypercorn."""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from codespace import limits
from codespace.protocol.tools import TABLE

from .door import INITIALIZE, TOKEN, open_door, raw, said_to, small_buffers, status_of

pytestmark = pytest.mark.filterwarnings(
    # the client's HTTP library leaves its response generators to the garbage collector
    r"ignore:Async generator '(httpx2|httpcore2|mcp\.client|mcp\.shared)\.:ResourceWarning"
)
ERAS = pytest.mark.parametrize("mode", ["legacy", "2026-07-28", "auto"])


@ERAS
async def test_the_official_client_works_in_every_era_and_hears_progress(mode: str) -> None:
    told: list[float] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        told.append(progress)

    with trio.fail_after(60):
        async with open_door() as door, door.client(mode) as client:
            assert len((await client.list_tools()).tools) == len(TABLE)
            answer = await client.call_tool("read", {"path": "a.txt"})
            assert answer.structured_content is not None
            assert answer.structured_content["content"] == "one\ntwo\n"
            arguments = {"command": ["sleep"], "wait_seconds": 0.1}
            await client.call_tool("exec_command", arguments, progress_callback=hear)
            assert door.fake.calls[0][1].transport == "http"
    assert told == [1.0]


async def test_a_client_going_away_in_a_call_harms_neither_the_command_nor_the_next_client() -> None:
    async with open_door() as door:
        for mode in ("legacy", "2026-07-28"):
            door.fake.waiting = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_call_and_vanish, door, mode)
                await door.fake.waiting.wait()
                nursery.cancel_scope.cancel()
            async with door.client(mode) as client:
                listed = await client.call_tool("list_processes", {})
                assert listed.structured_content is not None
                assert {each["state"] for each in listed.structured_content["processes"]} == {"running"}


async def _call_and_vanish(door: Any, mode: str) -> None:
    async with door.client(mode) as client:
        await client.call_tool("exec_command", {"command": ["sleep"], "wait_seconds": 50})


async def test_who_asks_under_the_id_of_a_call_that_was_left_never_gets_its_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with open_door() as door, door.http() as http:
        opened = await http.post("/mcp", json=INITIALIZE)
        session = {"mcp_session_id": opened.headers["mcp-session-id"]}
        async with await door.connect() as stream:
            await stream.send_all(raw("POST", "/mcp", door, _calling("sleep"), **session))
            await door.fake.waiting.wait()
        await trio.testing.wait_all_tasks_blocked(0.05)  # the door has noticed that the client left
        http.headers |= {"mcp-session-id": session["mcp_session_id"], "content-type": "application/json"}
        assert (await http.post("/mcp", content=_calling("echo", "own"))).status_code == 400
        (left,) = door.fake.commands.values()
        left.change(b"another's", "exited", 0)
        with trio.fail_after(60):
            while (answer := await http.post("/mcp", content=_calling("echo", "own"))).status_code == 400:
                await trio.lowlevel.checkpoint()
        assert b'"chunk":"own\\n"' in answer.content
    assert caplog.records == []


async def test_a_call_that_was_left_keeps_no_place_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_CONNECTIONS", 2)
    monkeypatch.setattr(limits, "HTTP_IDLE_SECONDS", 1000.0)
    async with open_door() as door, door.http() as http:  # whose connection stays
        session = {"mcp_session_id": (await http.post("/mcp", json=INITIALIZE)).headers["mcp-session-id"]}
        async with await door.connect() as stream:
            await stream.send_all(raw("POST", "/mcp", door, _calling("sleep"), **session))
            await door.fake.waiting.wait()
        request = raw("GET", "/healthz", door, connection="close")
        with trio.fail_after(60):
            while not (await said_to(door, request)).startswith(b"HTTP/1.1 200 "):
                await trio.lowlevel.checkpoint()
        (left,) = door.fake.commands.values()
        left.change(b"", "exited", 0)


async def test_a_call_of_no_session_is_cancelled_where_its_client_leaves() -> None:
    revision = "2026-07-28"
    meta = {"protocolVersion": revision, "clientInfo": {"name": "raw", "version": "1"}, "clientCapabilities": {}}
    told = {f"io.modelcontextprotocol/{name}": value for name, value in meta.items()}
    headers = {"mcp_protocol_version": revision, "mcp_method": "tools/call", "mcp_name": "exec_command"}
    async with open_door() as door:
        async with await door.connect() as stream:
            await stream.send_all(raw("POST", "/mcp", door, _calling("sleep", _meta=told), **headers))
            await door.fake.waiting.wait()
        with trio.fail_after(60):
            await door.fake.cancelled.wait()


def _calling(*command: str, **more: Any) -> bytes:
    call = {"name": "exec_command", "arguments": {"command": command, "wait_seconds": 50}}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call | more}).encode()


async def test_a_deleted_session_answers_not_found_and_initialize_may_come_twice() -> None:
    async with open_door() as door, door.http() as http:
        opened = await http.post("/mcp", json=INITIALIZE)
        session = {"mcp-session-id": opened.headers["mcp-session-id"]}
        again = await http.post("/mcp", json=INITIALIZE, headers=session)
        assert again.status_code == 200
        assert (await http.delete("/mcp", headers=session)).status_code == 200
        gone = await http.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "ping"}, headers=session)
        assert gone.status_code == 404


async def test_a_session_id_is_no_credential() -> None:
    async with open_door() as door, door.http() as http, door.http(token="guess") as thief:
        opened = await http.post("/mcp", json=INITIALIZE)
        session = {"mcp-session-id": opened.headers["mcp-session-id"]}
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        assert (await thief.post("/mcp", json=ping, headers=session)).status_code == 401
        assert (await http.post("/mcp", json=ping, headers=session)).status_code == 200


async def test_probes_are_answered_and_unknown_paths_are_not_found() -> None:
    async with open_door() as door, door.http() as http, door.http(token=None) as stranger:
        healthy = await stranger.get("/healthz")
        assert healthy.json() == {"status": "ok"}
        assert "server" not in healthy.headers
        assert (await http.get("/nothing")).status_code == 404
        assert (await stranger.get("/nothing")).status_code == 401


async def test_an_idle_kept_alive_connection_is_closed_after_mcp_and_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_IDLE_SECONDS", 1.0)
    async with open_door() as door:
        for request in (raw("GET", "/healthz", door), raw("POST", "/mcp", door, json.dumps(INITIALIZE).encode())):
            stream = await door.connect()
            async with stream:
                await stream.send_all(request)
                assert await status_of(stream) == 200
                with trio.fail_after(60):
                    while await stream.receive_some():
                        pass


async def test_a_body_over_the_limit_is_refused_whether_it_says_so_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REQUEST_BYTES", 1000)
    async with open_door() as door, door.http() as http:
        assert (await http.post("/mcp", content=b"x" * 1001)).status_code == 413

        async def chunks() -> Any:
            for _ in range(11):
                yield b"x" * 100

        assert (await http.post("/mcp", content=chunks())).status_code == 413
    assert door.fake.calls == []


async def test_a_body_that_does_not_come_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_BODY_SECONDS", 0.1)
    async with open_door() as door, await door.connect() as stream:
        await stream.send_all(raw("POST", "/mcp", door, content_length="50"))
        with trio.fail_after(60):
            assert await status_of(stream) == 408


async def test_bodies_are_bounded_all_together_and_a_usual_one_has_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_BODY_FREE_BYTES", 1000)
    monkeypatch.setattr(limits, "HTTP_BODIES_BYTES", 10_000)
    async with open_door() as door, door.http() as http:
        async with await door.connect() as slow:
            await slow.send_all(raw("POST", "/mcp", door, content_length="20000") + b"x" * 9000)
            with trio.fail_after(60):  # until all of that has arrived
                while (await http.post("/mcp", content=b"x" * 4000)).status_code != 503:
                    pass
            assert (await http.post("/mcp", content=b"x" * 2900)).status_code == 400  # no JSON
            assert (await http.post("/mcp", json=INITIALIZE)).status_code == 200
            await slow.send_all(b"x" * 3000)
            assert await status_of(slow) == 503
        with trio.fail_after(60):
            while (await http.post("/mcp", content=b"x" * 11_000)).status_code != 400:
                pass


async def test_a_body_is_held_until_its_request_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_BODY_FREE_BYTES", 1000)
    monkeypatch.setattr(limits, "HTTP_BODIES_BYTES", 10_000)
    async with open_door() as door, door.http() as http, trio.open_nursery() as nursery:
        opened = await http.post("/mcp", json=INITIALIZE)
        session = {"mcp-session-id": opened.headers["mcp-session-id"]}
        arguments = {"command": ["sleep"], "wait_seconds": 50, "stdin": "x" * 9000}
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
        call["params"] = {"name": "exec_command", "arguments": arguments}
        nursery.start_soon(partial(http.post, "/mcp", json=call, headers=session))
        await door.fake.waiting.wait()
        assert (await http.post("/mcp", content=b"x" * 4000)).status_code == 503
        next(iter(door.fake.commands.values())).change(b"", "exited", 0)
        with trio.fail_after(60):
            while (await http.post("/mcp", content=b"x" * 4000)).status_code != 400:
                pass


async def test_a_stop_with_idle_clients_and_listening_streams_is_quick() -> None:
    async def stop() -> float:
        async with open_door() as door, door.client("legacy") as client, await door.connect() as idle:
            await client.call_tool("read", {"path": "a.txt"})
            await idle.send_all(raw("GET", "/healthz", door))
            assert await status_of(idle) == 200
            return await door.seconds_to_stop()

    assert await takes_less_than(1.5, stop)


async def takes_less_than(seconds: float, stop: Callable[[], Awaitable[float]]) -> bool:
    """Return whether one of some stops does: a machine that stands still in the midst of one says nothing of doors."""
    for _ in range(5):
        if await stop() < seconds:
            return True
    return False


async def test_a_stop_lets_a_short_call_finish_and_cuts_a_long_one() -> None:
    answers: list[Any] = []
    async with open_door() as door:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_call_and_keep, door, answers)
            await door.fake.waiting.wait()
            door.stop.set()
            next(iter(door.fake.commands.values())).change(b"late", "exited", 0)
        assert answers[0].structured_content["chunk"] == "late"


async def _call_and_keep(door: Any, answers: list[Any]) -> None:
    async with door.client("2026-07-28") as client:
        await client.list_tools()  # the client checks answers against these, and cannot ask for them after a stop
        answers.append(await client.call_tool("exec_command", {"command": ["sleep"], "wait_seconds": 50}))


async def test_a_call_that_does_not_end_does_not_hold_the_stop() -> None:
    async def stop() -> float:
        async with open_door() as door, await door.connect() as stream:
            call = {"name": "exec_command", "arguments": {"command": ["sleep"], "wait_seconds": 50}}
            opened = json.dumps(INITIALIZE).encode()
            await stream.send_all(raw("POST", "/mcp", door, opened))
            data = b""
            while b"\r\n0\r\n\r\n" not in data:
                data += await stream.receive_some()
            session = data.lower().split(b"mcp-session-id: ")[1].split(b"\r\n")[0].decode()
            body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}).encode()
            await stream.send_all(raw("POST", "/mcp", door, body, mcp_session_id=session))
            await door.fake.waiting.wait()
            return await door.seconds_to_stop()

    assert await takes_less_than(limits.STOP_SECONDS / 2, stop)


@pytest.mark.parametrize("cut_by_the_kernel_seconds", [1.0, 1000.0])  # the latter: one that takes a little ever again
async def test_a_reader_that_has_stopped_reading_does_not_block_the_stop(
    monkeypatch: pytest.MonkeyPatch, cut_by_the_kernel_seconds: float
) -> None:
    monkeypatch.setattr(limits, "HTTP_USER_TIMEOUT_SECONDS", cut_by_the_kernel_seconds)

    async def stop() -> float:
        async with open_door() as door, await door.connect() as stream:
            small_buffers(stream)
            door.fake.files["big"] = b"x" * 30_000_000 + b"\n"
            await stream.send_all(raw("POST", "/mcp", door, json.dumps(INITIALIZE).encode()))
            data = b""
            while b"\r\n0\r\n\r\n" not in data:
                data += await stream.receive_some()
            session = data.lower().split(b"mcp-session-id: ")[1].split(b"\r\n")[0].decode()
            call = {"name": "read", "arguments": {"path": "big"}}
            body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}).encode()
            await stream.send_all(raw("POST", "/mcp", door, body, mcp_session_id=session))
            assert await stream.receive_some(1)
            # the answer is under way, and nobody takes the rest of it
            return await door.seconds_to_stop()

    assert await takes_less_than(2 * limits.HTTP_DRAIN_SECONDS + 3, stop)


async def test_the_listening_socket_is_not_inherited() -> None:
    async with open_door() as door:
        assert not os.get_inheritable(_listening_fd(door.address.port))


def _listening_fd(port: int) -> int:
    """Find the descriptor of the socket that listens on `port` the way anyone could: by its inode."""
    listening = f":{port:04X} 00000000:0000 0A "
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines() if listening in row]
    sockets = {f"socket:[{row[9]}]" for row in rows}  # another process may have the same number at another address
    (fd,) = [int(name) for name in os.listdir("/proc/self/fd") if _leads_to(name, sockets)]
    return fd


def _leads_to(fd: str, targets: set[str]) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}") in targets
    except OSError:  # the descriptor of the listing itself
        return False


async def test_the_token_is_in_no_answer_and_no_log(capfd: pytest.CaptureFixture[str]) -> None:
    async with open_door() as door, door.http() as http:
        for answer in (
            await http.get("/nothing"),
            await http.post("/mcp", json={"bad": 1}),
            await http.get("/healthz"),
        ):
            assert TOKEN not in answer.text + str(answer.headers)
    out, err = capfd.readouterr()
    assert TOKEN not in out + err
