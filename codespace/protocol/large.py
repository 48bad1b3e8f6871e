"""An answer too large for one event of a stream is sent as one JSON body.

The SDK makes a stream of every answer of the older revisions, so that notifications can come before it. Clients bound
what one event may hold, the official one at 1 MiB, simple ones at a line of 64 KiB, and end the whole stream at a
larger one; an answer has its text twice, for models and for programs. A body has no such bound, and either form is a
client's duty to take. What begins with anything else than the answer stays a stream: a notification, a question, or a
sign of life after 15 s; only long waits do, whose answers hold 64 KiB of output at most.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from typing import Any, Final

from codespace import limits

Message = MutableMapping[str, Any]

_ID: Final = rb'(?:-?\d++|"(?:[^"\\]++|\\.)*+")'
# Possessive: what could be gone back to is kept for every letter, 4 GiB for an id as long as a request may be.
_ANSWER: Final = rb'\{"jsonrpc":"2\.0","id":' + _ID + rb',"(?:result|error)":[^\r\n]*'
_EVENT: Final = re.compile(rb"(?:event: message\r\n)?data: (" + _ANSWER + rb")\r\n\r\n")
"""One event that is a response: a request of the server's names its method after its id."""
_STREAM: Final = b"text/event-stream"
_OF_STREAMS: Final = frozenset(
    {b"content-type", b"content-length", b"cache-control", b"connection", b"x-accel-buffering"}
)


class Unstreamed:
    """The `send` of one POST request."""

    def __init__(self, send: Any) -> None:
        self._send = send
        self._start: Message | None = None
        """The beginning of a stream, held back until it is known what comes first."""
        self._is_sent = False

    async def __call__(self, message: Message) -> None:
        """Send a part of the answer, or hold it back until the next."""
        if self._is_sent:  # the end of the stream, which there is none of
            return
        if message["type"] == "http.response.start" and _is_stream(message):
            self._start = message
            return
        if self._start is not None:
            start, self._start = self._start, None
            event = message.get("body", b"")
            if len(event) > limits.HTTP_EVENT_BYTES and (found := _EVENT.fullmatch(event)):
                self._is_sent = True
                await self._send_whole(start, found[1])
                return
            await self._send(start)
        await self._send(message)

    async def _send_whole(self, start: Message, content: bytes) -> None:
        kept = [(name, value) for name, value in start["headers"] if name.lower() not in _OF_STREAMS]
        own = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode("ascii"))]
        await self._send({**start, "headers": kept + own})
        await self._send({"type": "http.response.body", "body": content})


def _is_stream(start: Message) -> bool:
    return any(
        name.lower() == b"content-type" and value.partition(b";")[0].strip() == _STREAM
        for name, value in start["headers"]
    )
