"""The console's event streams: that something changed, and the output of a process as it comes.

Server-sent events, each one line of JSON in ASCII, so that no text can end a line or begin another event.
A stream ends with its browser, with its session, and when the daemon stops.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import Any, Final

from quart import Response, request

from codespace import limits
from codespace.display import display
from codespace.errors import Refusal
from codespace.http.desk import COOKIE, SELF, Desk
from codespace.http.forms import whole
from codespace.http.pages import written

_LOOK_SECONDS: Final = 1.0
# One wait of a stream: how much longer it may last than its session or the daemon.


def add(desk: Desk) -> None:
    """Add the routes of the streams."""
    places = _Places()

    @desk.routes.get("/events")
    async def events() -> Response:
        return places.stream(_changes(desk, request.cookies.get(COOKIE)))

    @desk.routes.get("/processes/<process_id>/output")
    async def output(process_id: str) -> Response:
        async def act() -> Response:
            cursor = whole(request.args.get("cursor"), "cursor") or 0
            return places.stream(_output(desk, request.cookies.get(COOKIE), process_id, cursor))

        return await desk.show(act)


class _Places:
    """How many streams there are."""

    def __init__(self) -> None:
        self._taken = 0

    def stream(self, events: AsyncGenerator[bytes, None]) -> Response:
        if self._taken >= limits.CONSOLE_STREAMS:
            return Response("too many streams are open\n", 503, mimetype="text/plain")
        response = Response(self._counted(events), 200, mimetype="text/event-stream")
        response.timeout = None  # a stream is meant to last
        return response

    async def _counted(self, events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes]:
        with self._place():
            async with aclosing(events):
                async for event in events:
                    yield event

    @contextmanager
    def _place(self) -> Iterator[None]:
        self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1


async def _changes(desk: Desk, cookie: str | None) -> AsyncGenerator[bytes, None]:
    operator, version, silent = desk.console.operator, (-1, -1), 0.0
    yield b"retry: 1000\n\n"
    while _goes_on(desk, cookie):
        try:
            now = await operator.wait_changed(version, _LOOK_SECONDS)
            if now != version:
                version, silent = now, 0.0
                yield _event({"pending": await desk.pending()})
                continue
        except Refusal:  # the database is away: the browser comes back by itself
            return
        silent += _LOOK_SECONDS
        if silent >= limits.CONSOLE_EVENT_SECONDS:
            silent = 0.0
            yield b": still here\n\n"


async def _output(desk: Desk, cookie: str | None, process_id: str, cursor: int) -> AsyncGenerator[bytes, None]:
    yield b"retry: 1000\n\n"
    while _goes_on(desk, cookie):
        try:
            told = await desk.console.tools.read_process(
                SELF,
                process_id=process_id,
                cursor=cursor,
                stream="combined",
                wait_seconds=_LOOK_SECONDS,
                limit_bytes=limits.OUTPUT_CHUNK_BYTES,
                encoding="text",
            )
        except Refusal as refusal:
            yield _event({"text": f"\n({refusal.message})\n", "eof": True})
            return
        cursor = told["cursor"]
        if told["chunk"] or told["eof"]:
            lost = f"\n({told['output_lost']} bytes were lost)\n" if told["output_lost"] else ""
            yield _event({"text": lost + written(told), "eof": told["eof"]})
        if told["eof"]:
            return


def _goes_on(desk: Desk, cookie: str | None) -> bool:
    return not desk.console.stopping.is_set() and desk.sessions.find(cookie) is not None


def _event(told: Mapping[str, Any]) -> bytes:
    shown = {name: display(value, newlines=True) if isinstance(value, str) else value for name, value in told.items()}
    return b"data: " + json.dumps(shown).encode("ascii") + b"\n\n"
