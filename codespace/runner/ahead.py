"""The next pages of an ended process's output, asked for while the one before is on its way to the caller.

A client that reads a long output asks for page after page, and each would wait for the worker. What an ended
process wrote does not change any more; what is asked for too early is only thrown away. It knows no worker: the
way to ask is given to it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import trio

from codespace import limits
from codespace.contract import Chunk

Ask = Callable[[Mapping[str, Any]], Awaitable[Chunk | None]]
"""Asks for the page of these arguments; None where it cannot be had now. Raises nothing."""


class _Page:
    """A page that was asked for, or is being asked for."""

    def __init__(self) -> None:
        self.chunk: Chunk | None = None
        self.asked = trio.current_time()
        self.there = trio.Event()


class Ahead:
    """The pages asked for and not wanted yet: a few, and not for long."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._pages: OrderedDict[tuple[tuple[str, Any], ...], _Page] = OrderedDict()

    def follow(self, arguments: Mapping[str, Any], chunk: Chunk, ask: Ask, *, reads_on: bool) -> None:
        """Ask for what follows a page: for one page, and for several where the reader has come for such a one already.

        Several at once cost the worker hardly more wake-ups than one. Where they begin is a guess, that each is
        as long as this one; a wrong guess is never taken.

        Args:
            arguments: What `chunk` was the answer to.
        """
        length = chunk.cursor - arguments["cursor"]
        if chunk.eof or chunk.output_lost or length <= 0 or _key(arguments, chunk.cursor) in self._pages:
            return
        total = chunk.state.output_total[arguments["stream"]]
        most = limits.WORKER_AHEAD_AT_ONCE if reads_on else 1
        for cursor in range(chunk.cursor, total, length)[:most]:
            self._begin({**arguments, "cursor": cursor}, ask)

    def _begin(self, arguments: Mapping[str, Any], ask: Ask) -> None:
        page = self._pages[_key(arguments)] = _Page()
        while len(self._pages) > limits.WORKER_AHEAD_PAGES:
            self._pages.popitem(last=False)
        self._nursery.start_soon(self._fetch, page, ask, arguments)

    async def take(self, arguments: Mapping[str, Any]) -> Chunk | None:
        """Return the page of these arguments where it was asked for a moment ago, once; else None.

        Cancel: it must be asked for again.
        """
        page = self._pages.pop(_key(arguments), None)
        if page is None or page.asked + limits.WORKER_AHEAD_SECONDS < trio.current_time():
            await trio.lowlevel.checkpoint()
            return None
        await page.there.wait()
        return page.chunk

    async def _fetch(self, page: _Page, ask: Ask, arguments: Mapping[str, Any]) -> None:
        try:
            page.chunk = await ask(arguments)
        finally:
            page.there.set()


def _key(arguments: Mapping[str, Any], cursor: int | None = None) -> tuple[tuple[str, Any], ...]:
    """Return what a page is known by: all arguments, with another cursor where one is given."""
    return tuple(sorted((arguments if cursor is None else {**arguments, "cursor": cursor}).items()))
