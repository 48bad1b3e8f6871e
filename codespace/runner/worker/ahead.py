"""What follows in an ended process's output, asked for while a page of it is on its way to the caller.

A client that reads a long output asks for page after page, and each would wait for the worker. What an ended
process wrote does not change any more; what is asked for too early is only thrown away. One answer of the worker
is cut into several pages here, as the worker would cut them: that costs it one wake-up and one look at the disk. It
knows no worker: the way to ask is given to it.
"""

from __future__ import annotations

import base64
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import trio

from codespace import limits
from codespace.contract import Chunk
from codespace.runner.output.pieces import Span, cut, limit_of

Ask = Callable[[Mapping[str, Any]], Awaitable[Chunk | None]]
"""Asks for output by these arguments; None where it cannot be had now. Raises nothing."""


class _Stretch:
    """Several pages in one, from `start` on; empty until they are there."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.asked = trio.current_time()
        self.there = trio.Event()
        self._whole: Chunk | None = None
        self._bytes = b""

    def fill(self, whole: Chunk | None, encoding: str) -> None:
        """Take the answer; one that is not encoded as asked, or not wholly, is of no use, as a part of it might be."""
        if whole is not None and _is_plain(whole, encoding):
            self._bytes = whole.text.encode() if encoding == "text" else base64.b64decode(whole.text)
            self._whole = replace(whole, text="")
        self.there.set()

    def page(self, arguments: Mapping[str, Any]) -> Chunk | None:
        """Return the page of these arguments, None where not all of it is here."""
        whole, cursor, encoding = self._whole, arguments["cursor"], arguments["encoding"]
        if whole is None or not self.start <= cursor < whole.cursor:
            return None
        begin, most = cursor - self.start, limit_of(arguments["limit_bytes"], encoding)
        block = self._bytes[begin : begin + most]
        if len(block) < most and not whole.eof:
            return None
        # Where it does not end with the output, there is more behind it, which is all that the cut has to know.
        stop = whole.cursor if whole.eof else whole.cursor + 1
        span = Span(cursor, stop, whole.eof, whole.retained_from, whole.retained_head)
        piece = cut(block, span, cursor, encoding=encoding, closed=whole.eof)
        return Chunk(
            piece.text,
            piece.encoding,
            piece.cursor,
            piece.eof,
            piece.retained_from,
            piece.output_lost,
            whole.state,
            piece.retained_head,
            piece.replaced,
        )


class Ahead:
    """What was asked for and is not read yet: of a few readers, and not for long."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._stretches: OrderedDict[tuple[Any, ...], _Stretch] = OrderedDict()

    async def take(self, arguments: Mapping[str, Any]) -> Chunk | None:
        """Return the page of these arguments where it was asked for a moment ago; else None.

        Cancel: nothing is consumed.
        """
        stretch = self._stretches.get(_reader(arguments))
        if stretch is None or stretch.asked + limits.WORKER_AHEAD_SECONDS < trio.current_time():
            await trio.lowlevel.checkpoint()
            return None
        await stretch.there.wait()
        return stretch.page(arguments)

    def follow(self, arguments: Mapping[str, Any], page: Chunk, ask: Ask, *, reads_on: bool) -> None:
        """Ask for what is behind a page, where it is not here: one page, or some for a reader who came for one.

        Args:
            arguments: What `page` was the answer to.
        """
        following = {**arguments, "cursor": page.cursor}
        if page.eof or not _is_plain(page, arguments["encoding"]) or page.cursor <= arguments["cursor"]:
            return
        stretch = self._stretches.get(_reader(arguments))
        if stretch is not None and stretch.page(following) is not None:
            return
        size = arguments["limit_bytes"] * (limits.WORKER_AHEAD_PAGES if reads_on else 1)
        self._begin({**following, "limit_bytes": min(size, limits.OUTPUT_READ_BYTES)}, ask)

    def _begin(self, arguments: Mapping[str, Any], ask: Ask) -> None:
        stretch = self._stretches[_reader(arguments)] = _Stretch(arguments["cursor"])
        self._stretches.move_to_end(_reader(arguments))
        while len(self._stretches) > limits.WORKER_AHEAD_READERS:
            self._stretches.popitem(last=False)
        self._nursery.start_soon(self._fetch, stretch, ask, arguments)

    async def _fetch(self, stretch: _Stretch, ask: Ask, arguments: Mapping[str, Any]) -> None:
        whole = None
        try:
            whole = await ask(arguments)
        finally:
            stretch.fill(whole, arguments["encoding"])


def _is_plain(chunk: Chunk, encoding: str) -> bool:
    """Return whether its bytes can be had from it: all of them, without a hole."""
    return chunk.encoding == encoding and not chunk.output_lost and not chunk.replaced


def _reader(arguments: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(arguments[name] for name in ("process_id", "stream", "encoding"))
