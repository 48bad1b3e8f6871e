"""A large answer is one JSON body; a small one, and whatever begins with something else, stays a stream."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
import trio

from codespace import limits
from codespace.protocol.large import Unstreamed

from .door import INITIALIZE, open_door

pytestmark = pytest.mark.filterwarnings(
    # the client's HTTP library leaves its response generators to the garbage collector
    r"ignore:Async generator '(httpx2|httpcore2|mcp\.client|mcp\.shared)\.:ResourceWarning"
)


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_the_official_client_takes_an_answer_that_is_larger_than_it_lets_an_event_be(mode: str) -> None:
    with trio.fail_after(60):
        async with open_door() as door, door.client(mode) as client:
            door.fake.files["large.txt"] = b"as long as a read may be" * 43_000
            answer = await client.call_tool("read", {"path": "large.txt"})
            assert answer.structured_content is not None
            assert answer.structured_content["content"] == door.fake.files["large.txt"].decode()


def call(number: int | str, tool: str, progress: bool = False, **arguments: Any) -> dict[str, Any]:
    told = {"_meta": {"progressToken": 1}} if progress else {}
    params = {"name": tool, "arguments": arguments, **told}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


async def test_a_large_answer_is_json_and_a_small_one_or_one_behind_progress_is_a_stream() -> None:
    async with open_door() as door, door.http() as http:
        opened = await http.post("/mcp", json=INITIALIZE)
        session = {"mcp-session-id": opened.headers["mcp-session-id"]}
        door.fake.files["large.txt"] = b"x" * limits.HTTP_EVENT_BYTES

        large = await http.post("/mcp", json=call('a "name"', "read", path="large.txt"), headers=session)
        assert large.headers["content-type"] == "application/json"
        assert large.headers["content-length"] == str(len(large.content))
        assert large.headers["mcp-session-id"] == opened.headers["mcp-session-id"]
        assert large.json()["id"] == 'a "name"'
        small = await http.post("/mcp", json=call(2, "read", path="a.txt"), headers=session)
        assert small.headers["content-type"].startswith("text/event-stream")

        waits = call(3, "exec_command", progress=True, command=["sleep"], wait_seconds=0.1)
        behind = await http.post("/mcp", json=waits, headers=session)
        assert behind.headers["content-type"].startswith("text/event-stream")
        assert [line for line in behind.text.splitlines() if "notifications/progress" in line]
        assert [line for line in behind.text.splitlines() if '"result"' in line]


async def test_a_stream_on_which_a_client_only_listens_begins_at_once() -> None:
    async with open_door() as door, door.http() as http:
        opened = await http.post("/mcp", json=INITIALIZE)
        session = {"mcp-session-id": opened.headers["mcp-session-id"]}
        with trio.fail_after(10):  # a sign of life would come after 15
            async with http.stream("GET", "/mcp", headers=session) as listening:
                assert listening.headers["content-type"].startswith("text/event-stream")


START = {"type": "http.response.start", "status": 200, "headers": [(b"Content-Type", b"text/event-stream")]}
PAD = b"x" * limits.HTTP_EVENT_BYTES
ANSWER = b'event: message\r\ndata: {"jsonrpc":"2.0","id":1,"result":{"pad":"' + PAD + b'"}}\r\n\r\n'


@pytest.mark.parametrize(
    "first",
    [
        b": ping - 2026-01-01\r\n\r\n",
        b'event: message\r\ndata: {"jsonrpc":"2.0","id":1,"method":"elicitation/create","pad":"' + PAD + b'"}\r\n\r\n',
        b'event: message\r\ndata: {"jsonrpc":"2.0","method":"notifications/x","params":{"result":1,"pad":"'
        + PAD
        + b'"}}\r\n\r\n',
        ANSWER + ANSWER,
        b"",
    ],
)
async def test_whatever_comes_before_a_large_answer_keeps_it_a_stream(first: bytes) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    parts = [{"type": "http.response.body", "body": part, "more_body": True} for part in (first, ANSWER)]
    large = Unstreamed(send)
    await large(START)
    assert sent == []
    for part in parts:
        await large(part)
    assert sent == [START, *parts]


@pytest.mark.parametrize("letter", ["x", '"'])
async def test_an_answer_to_a_long_id_is_looked_at_in_little_memory(letter: str) -> None:
    written = json.dumps({"jsonrpc": "2.0", "id": letter * 1_000_000, "result": {}}, separators=(",", ":")).encode()
    event = b"event: message\r\ndata: " + written + b"\r\n\r\n"
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    large = Unstreamed(send)
    await large(START)
    tracemalloc.start()
    await large({"type": "http.response.body", "body": event, "more_body": True})
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sent[1]["body"] == written
    assert most < 4 * len(event)  # to keep what could be gone back to takes 140 bytes for a letter
