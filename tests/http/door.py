"""The HTTP door opened in the test's own loop on a free port, with the fake gateway behind it."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx2
import trio
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from codespace.http.exposure import Address
from codespace.http.serve import serve_http
from codespace.protocol.server import build_server

from ..protocol.fake import FakeTools, as_tools

TOKEN = "canary-token-0123456789"
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}},
}


@dataclass
class Door:
    address: Address
    fake: FakeTools
    stop: trio.Event
    ended: trio.Event

    def http(self, token: str | None = TOKEN, **headers: str) -> httpx2.AsyncClient:
        """A plain HTTP client; headers by name with underscores."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            sent["authorization"] = f"Bearer {token}"
        accept = {"accept": "application/json, text/event-stream"}
        return httpx2.AsyncClient(base_url=f"http://{self.address.authority}", headers=accept | sent, timeout=60)

    @asynccontextmanager
    async def client(self, mode: str = "auto", token: str | None = TOKEN) -> AsyncIterator[Client]:
        """The official client."""
        async with (
            self.http(token) as http,
            Client(streamable_http_client(self.address.url, http_client=http), mode=mode) as client,
        ):
            yield client

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", self.address.port)

    async def seconds_to_stop(self) -> float:
        started = trio.current_time()
        self.stop.set()
        with trio.fail_after(60):
            await self.ended.wait()
        return trio.current_time() - started


@asynccontextmanager
async def open_door(*, token: str | None = TOKEN, **options: Any) -> AsyncIterator[Door]:
    fake = FakeTools()
    stop, ended = trio.Event(), trio.Event()

    async def serve(task_status: trio.TaskStatus[Address]) -> None:
        factory = partial(build_server, as_tools(fake), version="0", transport="http")
        options.setdefault("host", "127.0.0.1")
        await serve_http(factory, port=0, token=token, stop=stop, task_status=task_status, **options)
        ended.set()

    async with trio.open_nursery() as nursery:
        address = await nursery.start(serve)
        yield Door(address, fake, stop, ended)
        stop.set()
        with trio.fail_after(60):
            await ended.wait()


def raw(method: str, path: str, door: Door, body: bytes = b"", **headers: str) -> bytes:
    """An HTTP/1.1 request as bytes, with right Host and token unless `headers` says otherwise."""
    sent = {"host": door.address.authority, "authorization": f"Bearer {TOKEN}"}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    if body:
        sent |= {"content-length": str(len(body)), "content-type": "application/json"}
        sent |= {"accept": "application/json, text/event-stream"}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items() if value), "", ""]
    return "\r\n".join(lines).encode() + body


async def status_of(stream: trio.SocketStream) -> int:
    """Read one response's head; return its status."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = await stream.receive_some()
        assert more, data
        data += more
    return int(data.split(b" ", 2)[1])


def small_buffers(stream: trio.SocketStream) -> None:
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)


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
