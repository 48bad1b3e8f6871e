"""MCP sessions over HTTP without sockets: who may use one, and when it ends. The clock is trio's mock one."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import trio
import trio.testing

from codespace import limits
from codespace.protocol.server import build_server
from codespace.protocol.sessions import IDENTITY, Sessions, open_sessions

from .fake import FakeTools, as_tools

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}},
}
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


@dataclass
class Answer:
    status: int
    session: str | None


async def post(
    sessions: Sessions, message: dict[str, Any], *, identity: str, session: str | None = None, revision: str = ""
) -> Answer:
    """Send one request as the door would pass it on."""
    headers = [(b"content-type", b"application/json"), (b"accept", b"application/json, text/event-stream")]
    if revision:
        headers.append((b"mcp-protocol-version", revision.encode()))
    if session is not None:
        headers.append((b"mcp-session-id", session.encode()))
    scope = {"type": "http", "method": "POST", "path": "/mcp", "query_string": b"", "headers": headers}
    bodies = [json.dumps(message).encode()]
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        if bodies:
            return {"type": "http.request", "body": bodies.pop(), "more_body": False}
        await trio.sleep_forever()
        raise AssertionError

    async def send(message: Any) -> None:
        sent.append(message)

    await sessions(scope | {IDENTITY: identity, "http_version": "1.1"}, receive, send)
    opened = dict(sent[0]["headers"]).get(b"mcp-session-id")
    return Answer(sent[0]["status"], None if opened is None else opened.decode())


@asynccontextmanager
async def served() -> AsyncIterator[Sessions]:
    async with open_sessions(build_server(as_tools(FakeTools()), version="0", transport="http")) as sessions:
        yield sessions


async def test_a_session_answers_only_the_identity_that_opened_it() -> None:
    async with served() as sessions:
        opened = await post(sessions, INITIALIZE, identity="bearer")
        assert opened.status == 200
        theft = await post(sessions, PING, identity="anonymous", session=opened.session)
        assert theft.status == 404
        assert (await post(sessions, PING, identity="bearer", session=opened.session)).status == 200


async def test_a_session_ends_when_it_was_idle_for_its_time(mock_clock: trio.testing.MockClock) -> None:
    async with served() as sessions:
        opened = await post(sessions, INITIALIZE, identity="bearer")
        mock_clock.jump(limits.HTTP_SESSION_IDLE_SECONDS - 1)
        await trio.testing.wait_all_tasks_blocked()
        assert (await post(sessions, PING, identity="bearer", session=opened.session)).status == 200
        mock_clock.jump(limits.HTTP_SESSION_IDLE_SECONDS + 1)
        await trio.testing.wait_all_tasks_blocked()
        assert (await post(sessions, PING, identity="bearer", session=opened.session)).status == 404


async def test_one_more_than_the_most_takes_the_place_of_the_session_that_was_idle_the_longest(
    mock_clock: trio.testing.MockClock,
) -> None:
    async with served() as sessions:
        opened = []
        for _ in range(limits.HTTP_SESSIONS):
            opened.append((await post(sessions, INITIALIZE, identity="bearer")).session)
            mock_clock.jump(1)
        assert (await post(sessions, PING, identity="bearer", session=opened[0])).status == 200
        await post(sessions, PING, identity="bearer", revision="2026-07-28")  # opens none, so it needs no place
        newest = await post(sessions, INITIALIZE, identity="bearer")
        assert newest.status == 200
        answers = [await post(sessions, PING, identity="bearer", session=each) for each in [*opened, newest.session]]
        assert [number for number, answer in enumerate(answers) if answer.status != 200] == [1]


async def test_sessions_are_limited_in_number_and_none_in_use_is_ended() -> None:
    async with served() as sessions, trio.open_nursery() as nursery:
        opened = [await post(sessions, INITIALIZE, identity="bearer") for _ in range(limits.HTTP_SESSIONS)]
        for each in opened:
            nursery.start_soon(listen, sessions, each.session)
        await trio.testing.wait_all_tasks_blocked()
        assert (await post(sessions, INITIALIZE, identity="bearer")).status == 503
        assert (await post(sessions, PING, identity="bearer", session=opened[0].session)).status == 200
        nursery.cancel_scope.cancel()


async def listen(sessions: Sessions, session: str | None) -> None:
    """Hold the stream open on which a session's client only listens."""
    assert session is not None
    headers = [(b"accept", b"text/event-stream"), (b"mcp-session-id", session.encode())]
    scope = {"type": "http", "method": "GET", "path": "/mcp", "query_string": b"", "headers": headers}

    bodies = [b""]

    async def receive() -> dict[str, Any]:
        if bodies:
            return {"type": "http.request", "body": bodies.pop(), "more_body": False}
        await trio.sleep_forever()
        raise AssertionError

    async def send(message: Any) -> None:
        assert message.get("status", 200) == 200
        await trio.lowlevel.checkpoint()

    await sessions(scope | {IDENTITY: "bearer", "http_version": "1.1"}, receive, send)
