"""The body of one request, taken whole before anything acts on it: bounded in size and in time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import trio

from codespace import limits

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]


class Refused(Exception):
    """The body is not acceptable; `status` is the HTTP status that says why."""

    def __init__(self, status: int) -> None:
        super().__init__(str(status))
        self.status = status


async def take(receive: Receive, declared: bytes | None, most_bytes: int) -> Receive:
    """Return a `receive` that gives the whole body at once, then whatever comes after it.

    Args:
        declared: The Content-Length header.
    Raises: Refused 413 over `most_bytes`, 408 after limits.HTTP_BODY_SECONDS.
    Cancel: what was read is dropped.
    """
    if declared is not None and declared.isdigit() and int(declared) > most_bytes:
        raise Refused(413)
    with trio.move_on_after(limits.HTTP_BODY_SECONDS):
        return _replay(await _whole(receive, most_bytes), receive)
    raise Refused(408)


async def _whole(receive: Receive, most_bytes: int) -> list[Message]:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":  # the client is gone
            return [message]
        size += len(message.get("body", b""))
        if size > most_bytes:
            raise Refused(413)
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return [{"type": "http.request", "body": b"".join(parts), "more_body": False}]


def _replay(taken: list[Message], receive: Receive) -> Receive:
    async def again() -> Message:
        return taken.pop() if taken else await receive()

    return again
