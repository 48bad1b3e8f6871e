"""The body of one request, taken whole before anything acts on it: bounded in size and in time, and all together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
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


class Held:
    """How much the bodies of all requests hold, each from its first byte until its request is answered."""

    def __init__(self) -> None:
        self._bytes = 0

    @contextmanager
    def one(self) -> Iterator[Callable[[int], None]]:
        """Count one body while the block runs, by a function that is told how large it is by now.

        Raises (the function): Refused 503 over limits.HTTP_BODIES_BYTES. What every body may have is not counted:
        who sends as much as can be held keeps nobody from a call of the usual size.
        """
        own = 0

        def grow(size: int) -> None:
            nonlocal own
            more = max(own, size - limits.HTTP_BODY_FREE_BYTES) - own
            if more and self._bytes + more > limits.HTTP_BODIES_BYTES:
                raise Refused(503)
            own += more
            self._bytes += more

        try:
            yield grow
        finally:
            self._bytes -= own


async def take(receive: Receive, declared: bytes | None, most_bytes: int, grow: Callable[[int], None]) -> Receive:
    """Return a `receive` that gives the whole body at once, then whatever comes after it.

    Args:
        declared: The Content-Length header.
        grow: Told how large the body is, after each part. What it raises ends the taking.
    Raises: Refused 413 over `most_bytes`, 408 after limits.HTTP_BODY_SECONDS.
    Cancel: what was read is dropped.
    """
    if declared is not None and declared.isdigit() and int(declared) > most_bytes:
        raise Refused(413)
    with trio.move_on_after(limits.HTTP_BODY_SECONDS):
        return _replay(await _whole(receive, most_bytes, grow), receive)
    raise Refused(408)


async def _whole(receive: Receive, most_bytes: int, grow: Callable[[int], None]) -> list[Message]:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":  # the client is gone
            return [message]
        size += len(message.get("body", b""))
        if size > most_bytes:
            raise Refused(413)
        grow(size)
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return [{"type": "http.request", "body": b"".join(parts), "more_body": False}]


def _replay(taken: list[Message], receive: Receive) -> Receive:
    async def again() -> Message:
        return taken.pop() if taken else await receive()

    return again
