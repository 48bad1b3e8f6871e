"""What a connection may do to the daemon before any guard is asked: nothing, whatever bytes it sends."""

from __future__ import annotations

import itertools
import re
import socket
import struct
from contextlib import AsyncExitStack

import pytest
import trio

from codespace import limits
from codespace.testing.shortage import no_watches

from ..sandbox.until import until
from .door import INITIALIZE, Door, open_door, raw, said_to, status_of

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = bytes.fromhex("000000040000000000")


def frame_of_path(path: bytes) -> bytes:
    """HEADERS of GET on stream 1, its path written out as it is (RFC 7541, section 6.2.2)."""
    block = b"\x82\x86" + b"\x04" + bytes([len(path)]) + path
    return len(block).to_bytes(3, "big") + b"\x01\x05" + (1).to_bytes(4, "big") + block


async def is_served(door: Door) -> bool:
    async with await door.connect() as stream:
        await stream.send_all(raw("GET", "/healthz", door))
        return await status_of(stream) == 200


@pytest.mark.parametrize("path", [b"/healthz", b"/\xff"])
async def test_http_2_is_not_spoken_and_its_bytes_end_their_connection_alone(path: bytes) -> None:
    async with open_door() as door:
        assert (await said_to(door, PREFACE + SETTINGS + frame_of_path(path))).startswith(b"HTTP/1.1 421 ")
        assert await is_served(door)


async def test_a_request_is_read_while_the_account_has_no_watch_left_for_its_connection() -> None:
    async with open_door() as door:
        assert await is_served(door)  # it listens, and is watched itself
        with no_watches() as full, socket.create_connection(("127.0.0.1", door.address.port), 20) as client:
            await until(lambda: full.refused)  # it waits for the request
            client.sendall(raw("GET", "/healthz", door))
            assert (await trio.to_thread.run_sync(client.recv, 64)).startswith(b"HTTP/1.1 200 ")


async def test_an_offer_to_change_to_http_2_is_answered_in_the_protocol_that_it_came_in() -> None:
    async with open_door() as door, await door.connect() as stream:
        offer = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2_settings": "!"}
        await stream.send_all(raw("GET", "/healthz", door, **offer))
        assert await status_of(stream) == 200


async def test_what_hypercorn_cannot_read_ends_its_connection_and_not_the_daemon() -> None:
    upgrade = b"Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x\r\n"
    async with open_door() as door:
        sent = b"GET / HTTP/1.1\r\nHost: x\r\n" + upgrade + b"Sec-WebSocket-Extensions: \xff\r\n\r\n"
        assert await said_to(door, sent) == b""
        assert await is_served(door)


async def test_a_handshake_that_is_none_is_answered_and_its_connection_ended() -> None:
    upgrade = b"Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 1\r\nSec-WebSocket-Key: x\r\n"
    async with open_door() as door:
        said = await said_to(door, b"GET / HTTP/1.1\r\nHost: x\r\n" + upgrade + b"\r\n")
        assert said.startswith(b"HTTP/1.1 400 ")
        assert await is_served(door)


async def test_a_connection_whose_answer_was_cut_off_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_IDLE_SECONDS", 600.0)  # which would end it, too
    async with open_door() as door, await door.connect() as stream:
        assert await greeted(door, stream)
        monkeypatch.setattr(limits, "HTTP_FLUSH_SECONDS", 0.0)  # as where the loop was held up for longer
        await stream.send_all(raw("GET", "/healthz", door))
        with trio.fail_after(30):
            while await stream.receive_some():
                pass
        monkeypatch.undo()
        assert await is_served(door)


async def greeted(door: Door, stream: trio.SocketStream, path: str = "/healthz") -> bool:
    """Return whether a request is answered on a connection, which stays open; the whole answer is taken."""
    answer = b""
    with trio.fail_after(60):
        try:
            await stream.send_all(raw("GET", path, door))
            while not is_whole(answer):
                if not (more := await stream.receive_some()):
                    return False
                answer += more
        except trio.BrokenResourceError:
            return False
    assert b"connection: close" not in answer.lower()
    return True


def is_whole(answer: bytes) -> bool:
    head, end, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    return bool(end) and length is not None and len(body) == int(length[1])


async def test_strangers_who_hold_connections_leave_descriptors_for_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_CONNECTIONS", 3)
    monkeypatch.setattr(limits, "HTTP_IDLE_SECONDS", 1000.0)  # one that its client has closed is none, at once
    async with open_door() as door, AsyncExitStack() as held:
        streams = []
        for _ in range(limits.HTTP_CONNECTIONS + 2):
            streams.append(await held.enter_async_context(await door.connect()))
            assert await greeted(door, streams[-1])
        with trio.fail_after(60):
            for gone in streams[:2]:
                assert await gone.receive_some() == b""  # the longest, and they alone
        assert [await greeted(door, stream) for stream in streams[2:]] == [True] * 3


async def test_a_client_has_its_places_however_few_files_can_be_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DESCRIPTORS", 10**6)
    async with open_door() as door, AsyncExitStack() as held:
        streams = []
        for _ in range(limits.HTTP_CONNECTIONS_LEAST + 1):
            streams.append(await held.enter_async_context(await door.connect()))
            assert await greeted(door, streams[-1])
        assert [await greeted(door, stream) for stream in streams] == [False] + [True] * limits.HTTP_CONNECTIONS_LEAST


async def test_a_stranger_takes_no_place_of_who_has_shown_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_CONNECTIONS", 3)
    monkeypatch.setattr(limits, "HTTP_IDLE_SECONDS", 1000.0)
    async with open_door() as door, AsyncExitStack() as held:
        streams = [await held.enter_async_context(await door.connect()) for _ in range(limits.HTTP_CONNECTIONS)]
        for stream in streams:
            assert await greeted(door, stream, "/mcp")
        assert await said_to(door, raw("GET", "/healthz", door)) == b""
        assert [await greeted(door, stream, "/mcp") for stream in streams] == [True] * 3
        await held.aclose()
        request = raw("GET", "/healthz", door, connection="close")
        with trio.fail_after(60):
            while not (await said_to(door, request)).startswith(b"HTTP/1.1 200 "):
                await trio.lowlevel.checkpoint()


async def test_a_client_gets_in_while_strangers_fill_every_place_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "HTTP_CONNECTIONS", 64)
    monkeypatch.setattr(limits, "HTTP_IDLE_SECONDS", 1000.0)

    async def crowd(door: Door, full: trio.Event) -> None:
        async with AsyncExitStack() as held:
            for count in itertools.count():
                await held.enter_async_context(await door.connect())  # and says nothing
                if count > limits.HTTP_CONNECTIONS:
                    full.set()
                if count > 4 * limits.HTTP_CONNECTIONS:
                    await trio.sleep_forever()

    async with open_door() as door, trio.open_nursery() as nursery:
        full = trio.Event()
        nursery.start_soon(crowd, door, full)
        await full.wait()
        async with door.client() as client:
            for _ in range(20):
                assert (await client.list_tools()).tools
        nursery.cancel_scope.cancel()


async def test_a_client_that_leaves_while_its_stream_ends_holds_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_CONNECTIONS", 4)
    monkeypatch.setattr(limits, "HTTP_IDLE_SECONDS", 1000.0)
    async with open_door() as door, door.http() as http:
        for _ in range(60):  # some are left in the moment in which the connection becomes an idle one
            opened = await http.post("/mcp", json=INITIALIZE)
            session = {"mcp_session_id": opened.headers["mcp-session-id"]}
            async with await door.connect() as listening, await door.connect() as ending:
                await listening.send_all(raw("GET", "/mcp", door, accept="text/event-stream", **session))
                assert await status_of(listening) == 200
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # leaves by a reset
                await ending.send_all(raw("DELETE", "/mcp", door, **session))
                assert await status_of(ending) == 200
        with trio.fail_after(60):
            while not (await said_to(door, raw("GET", "/healthz", door, connection="close"))).startswith(b"HTTP/1.1 2"):
                await trio.lowlevel.checkpoint()


async def test_a_client_that_leaves_while_it_is_answered_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async with open_door() as door:
        begun = raw("POST", "/healthz", door, content_length=str(limits.CONSOLE_FORM_BYTES + 1))
        for _ in range(100):  # every fourth answer begins in the moment in which its connection is being closed
            async with await door.connect() as stream:
                await stream.send_all(begun)
        assert await is_served(door)
    assert caplog.records == []


async def test_an_upload_that_is_too_large_is_refused_while_it_comes(caplog: pytest.LogCaptureFixture) -> None:
    async with open_door() as door:
        for _ in range(10):
            async with await door.connect() as stream, trio.open_nursery() as nursery:
                head = raw("POST", "/healthz", door, transfer_encoding="chunked")
                nursery.start_soon(pour, stream, head, b"10000\r\n" + b"x" * 65_536 + b"\r\n")
                with trio.fail_after(60):
                    assert await status_of(stream) == 413
                nursery.cancel_scope.cancel()
    assert caplog.records == []


async def pour(stream: trio.SocketStream, head: bytes, again: bytes) -> None:
    try:
        await stream.send_all(head)
        while True:
            await stream.send_all(again)
    except trio.BrokenResourceError:
        pass


@pytest.mark.parametrize("target", ["?x=1", "http://[", "http://127.0.0.1/healthz", "*", "x", "127.0.0.1:80"])
async def test_a_target_that_is_no_path_is_refused(target: str, caplog: pytest.LogCaptureFixture) -> None:
    async with open_door() as door, await door.connect() as stream:
        await stream.send_all(raw("GET", target, door))
        assert await status_of(stream) == 400
    assert caplog.records == []
