"""MCP sessions over HTTP without sockets: who may use one, and when it ends. The clock is trio's mock one."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
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
MANY = PING | {"params": {"x": [0] * (limits.MESSAGE_VALUES + 1)}}
CANCEL = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}


@dataclass
class Answer:
    status: int
    session: str | None
    error: tuple[Any, int] | None
    """Id and code of an error that is the whole answer."""


async def post(
    sessions: Sessions,
    message: Any,
    *,
    identity: str,
    session: str | None = None,
    again: str | None = None,
    revision: str = "",
    at_end: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
    method: str = "POST",
    accept: bytes = b"application/json, text/event-stream",
) -> Answer:
    """Send one request as the door would pass it on; `at_end` is awaited where its answer is whole.

    Args:
        again: A second session that it names behind the first.
    """
    headers = [(b"content-type", b"application/json"), (b"accept", accept)]
    if revision:
        headers.append((b"mcp-protocol-version", revision.encode()))
    if session is not None:
        headers.append((b"mcp-session-id", session.encode()))
    if again is not None:
        headers.append((b"mcp-session-id", again.encode()))
    scope = {"type": "http", "method": method, "path": "/mcp", "query_string": b"", "headers": headers}
    bodies = [json.dumps(message).encode()]
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        if bodies:
            return {"type": "http.request", "body": bodies.pop(), "more_body": False}
        await trio.sleep_forever()
        raise AssertionError

    async def send(message: Any) -> None:
        sent.append(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            await at_end()

    await sessions(scope | {IDENTITY: identity, "http_version": "1.1"}, receive, send)
    headers = dict(sent[0]["headers"])
    opened = headers.get(b"mcp-session-id")
    body = b"".join(part["body"] for part in sent[1:])
    told = json.loads(body) if body and headers[b"content-type"] == b"application/json" else {}
    error = (told["id"], told["error"]["code"]) if "error" in told else None
    return Answer(sent[0]["status"], None if opened is None else opened.decode(), error)


@asynccontextmanager
async def served(fake: FakeTools | None = None) -> AsyncIterator[Sessions]:
    tools = as_tools(FakeTools() if fake is None else fake)
    async with open_sessions(build_server(tools, version="0", transport="http")) as sessions:
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


async def test_a_lost_session_is_told_once_and_what_is_asked_in_it_again_is_answered_without() -> None:
    async with served() as sessions:
        first = await post(sessions, PING, identity="bearer", session="lost-0")
        assert (first.status, first.error) == (404, (1, -32600))
        assert (await post(sessions, PING, identity="bearer", session="lost-0")).status == 200
        assert (await post(sessions, CANCEL, identity="bearer", session="lost-0")).status == 202
        for number in range(1, limits.HTTP_SESSIONS + 1):
            assert (await post(sessions, PING, identity="bearer", session=f"lost-{number}")).status == 404
        assert (await post(sessions, PING, identity="bearer", session="lost-1")).status == 200
        assert (await post(sessions, PING, identity="bearer", session="lost-0")).status == 404  # forgotten


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


async def test_a_refusal_to_who_has_no_session_names_none() -> None:
    async with served() as sessions:
        for method, message in (("POST", PING), ("POST", CANCEL), ("GET", ""), ("DELETE", ""), ("PUT", "")):
            answer = await post(sessions, message, identity="bearer", method=method)
            assert (answer.status, answer.session) == (405 if method == "PUT" else 400, None)
        refused = await post(sessions, INITIALIZE, identity="bearer", accept=b"text/html")
        assert (refused.status, refused.session) == (406, None)
        opened = await post(sessions, INITIALIZE, identity="bearer")
        assert opened.session is not None
        again = await post(sessions, PING, identity="bearer", session=opened.session, accept=b"text/html")
        assert (again.status, again.session) == (406, opened.session)


async def test_who_opens_no_session_takes_nobodys_place() -> None:
    async with served() as sessions:
        opened = [await post(sessions, INITIALIZE, identity="bearer") for _ in range(limits.HTTP_SESSIONS)]
        assert (await post(sessions, PING, identity="bearer")).error == (1, -32600)
        assert (await post(sessions, CANCEL, identity="bearer")).error == (None, -32600)
        for each in opened:
            assert (await post(sessions, PING, identity="bearer", session=each.session)).status == 200


async def test_a_stream_that_is_to_be_resumed_begins_anew() -> None:
    async with served() as sessions, trio.open_nursery() as nursery:
        opened = await post(sessions, INITIALIZE, identity="bearer")
        began = trio.Event()
        resumed = [(b"last-event-id", b"5")]
        nursery.start_soon(listen, sessions, opened.session, resumed, began)
        with trio.fail_after(30):
            await began.wait()
        nursery.cancel_scope.cancel()


async def listen(
    sessions: Sessions, session: str | None, more: Sequence[tuple[bytes, bytes]] = (), began: trio.Event | None = None
) -> None:
    """Hold the stream open on which a session's client only listens."""
    assert session is not None
    headers = [(b"accept", b"text/event-stream"), (b"mcp-session-id", session.encode()), *more]
    scope = {"type": "http", "method": "GET", "path": "/mcp", "query_string": b"", "headers": headers}

    bodies = [b""]

    async def receive() -> dict[str, Any]:
        if bodies:
            return {"type": "http.request", "body": bodies.pop(), "more_body": False}
        await trio.sleep_forever()
        raise AssertionError

    async def send(message: Any) -> None:
        assert message.get("status", 200) == 200
        if began is not None:
            began.set()
        await trio.lowlevel.checkpoint()

    await sessions(scope | {IDENTITY: "bearer", "http_version": "1.1"}, receive, send)


async def test_an_id_that_is_neither_text_nor_integer_is_refused_and_not_taken_for_a_notification() -> None:
    async with served() as sessions:
        opened = await post(sessions, INITIALIZE, identity="bearer")
        for id in (None, 1.5, True, []):
            answer = await post(sessions, PING | {"id": id}, identity="bearer", session=opened.session)
            assert (answer.status, answer.error) == (400, (None, -32600)), id
        told = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        assert (await post(sessions, told, identity="bearer", session=opened.session)).status == 202


async def test_what_is_no_message_is_answered_alike_in_every_era() -> None:
    async with served() as sessions:
        opened = await post(sessions, INITIALIZE, identity="bearer")
        for body, error in (
            ([PING], (None, -32600)),
            (PING | {"method": 5}, (1, -32600)),
            ("", (None, -32600)),
            (MANY, (1, -32600)),
        ):
            early = await post(sessions, body, identity="bearer", session=opened.session)
            late = await post(sessions, body, identity="bearer", revision="2026-07-28")
            assert (early.status, early.error) == (late.status, late.error) == (400, error)


async def test_an_id_that_is_under_way_is_refused_until_its_answer_is_given() -> None:
    fake = FakeTools()
    arguments = {"command": ["sleep"], "wait_seconds": 50}
    call = PING | {"method": "tools/call", "params": {"name": "exec_command", "arguments": arguments}}
    async with served(fake) as sessions, trio.open_nursery() as nursery:
        opened, other = [(await post(sessions, INITIALIZE, identity="bearer")).session for _ in range(2)]
        answers: list[Answer] = []
        nursery.start_soon(keep, answers, sessions, call, opened)
        await fake.waiting.wait()
        for id in (1, "1"):
            again = await post(sessions, PING | {"id": id}, identity="bearer", session=opened)
            assert (again.status, again.error) == (400, (id, -32600))
        # Named twice, a session is the first, as the SDK has it.
        twice = await post(sessions, PING, identity="bearer", session=opened, again=other)
        assert (twice.status, twice.error) == (400, (1, -32600))
        assert (await post(sessions, PING | {"id": 2}, identity="bearer", session=opened)).status == 200
        assert (await post(sessions, PING, identity="bearer", session=other)).status == 200
        await post(sessions, CANCEL, identity="bearer", session=opened)
        with trio.fail_after(30):
            while not answers:
                await trio.testing.wait_all_tasks_blocked()
        assert (await post(sessions, PING, identity="bearer", session=opened)).status == 200


async def keep(answers: list[Answer], sessions: Sessions, message: Any, session: str | None) -> None:
    answers.append(await post(sessions, message, identity="bearer", session=session))


async def test_an_id_may_be_used_again_by_who_has_just_had_its_whole_answer() -> None:
    async with served() as sessions:
        opened = await post(sessions, INITIALIZE, identity="bearer")
        answers: list[Answer] = []

        async def again() -> None:
            await keep(answers, sessions, PING, opened.session)

        await post(sessions, PING, identity="bearer", session=opened.session, at_end=again)
        assert [answer.status for answer in answers] == [200]
