"""What a connection may do to the daemon before any guard is asked: nothing, whatever bytes it sends."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest
import trio

from codespace import limits

from .door import Door, open_door, raw, status_of

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


async def said_to(door: Door, sent: bytes) -> bytes:
    """Send bytes of a stranger; return everything that is said until the connection ends."""
    said = b""
    async with await door.connect() as stream:
        await stream.send_all(sent)
        with trio.fail_after(60):
            try:
                while more := await stream.receive_some():
                    said += more
            except trio.BrokenResourceError:
                pass
    return said


@pytest.mark.parametrize("path", [b"/healthz", b"/\xff"])
async def test_http_2_is_not_spoken_and_its_bytes_end_their_connection_alone(path: bytes) -> None:
    async with open_door() as door:
        assert (await said_to(door, PREFACE + SETTINGS + frame_of_path(path))).startswith(b"HTTP/1.1 421 ")
        assert await is_served(door)


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


async def test_strangers_who_hold_connections_leave_descriptors_for_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_CONNECTIONS", 3)
    monkeypatch.setattr(limits, "HTTP_IDLE_SECONDS", 1000.0)  # one that its client has closed is none, at once
    async with open_door() as door, AsyncExitStack() as held:
        for _ in range(limits.HTTP_CONNECTIONS):
            stream = await held.enter_async_context(await door.connect())
            await stream.send_all(raw("GET", "/healthz", door))
            assert await status_of(stream) == 200  # and stays open
        assert await said_to(door, raw("GET", "/healthz", door)) == b""
        await held.aclose()
        request = raw("GET", "/healthz", door, connection="close")
        with trio.fail_after(60):
            while not (await said_to(door, request)).startswith(b"HTTP/1.1 200 "):
                await trio.lowlevel.checkpoint()
